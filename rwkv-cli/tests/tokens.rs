//! `rwkv tokenize` and `rwkv detokenize`: exact outputs that scripts rely on.

mod support;

use support::Lab;

#[test]
fn tokenize_json_is_one_object() {
    let lab = Lab::empty();
    assert_eq!(lab.run_with("tokenize --json", b"Hello, world").ok().text(), "{\"ids\":[33155,45,40213]}\n");
    assert_eq!(lab.run_with("tokenize --json", b"").ok().text(), "{\"ids\":[]}\n");
    // Any bytes are text.
    assert_eq!(lab.run_with("tokenize --json", b"\xff\x00").ok().text(), "{\"ids\":[256,1]}\n");
    assert_eq!(
        lab.run_args(&["tokenize", "--json", "--prompt", "hi"]).ok().text(),
        "{\"ids\":[5585]}\n".replace("5585", &id_of("hi"))
    );
}

fn id_of(text: &str) -> String {
    rwkv_tokenizer::Tokenizer::world().encode(text)[0].to_string()
}

#[test]
fn tokenize_lists_tokens() {
    let lab = Lab::empty();
    let listed = lab.run_with("tokenize", "User: \"hi\"\n\n\u{1f600}".as_bytes()).ok();
    let expected = "24281\t\"User\"\n59\t\":\"\n269\t\" \\\"\"\n";
    assert!(listed.text().starts_with(expected), "{}", listed.text());
    assert!(
        listed.text().ends_with("3319\t\"\\xf0\\x9f\"\n153\t\"\\x98\"\n129\t\"\\x80\"\n"),
        "{}",
        listed.text()
    );
    assert_eq!(lab.run_with("tokenize --count", b"Hello, world").ok().text(), "3\n");
}

#[test]
fn a_long_text_has_the_ids_of_the_whole() {
    let lab = Lab::empty();
    // Around the borders of what is read at a time, runs of blanks are longer than any token.
    let text = format!("{}{}{}", "word ".repeat(13_000), " ".repeat(2_000), "end\n\n".repeat(40_000));
    let ids = lab.run_with("tokenize --json", text.as_bytes()).ok().json();
    assert_eq!(ids["ids"], serde_json::json!(rwkv_tokenizer::Tokenizer::world().encode(&text)));
}

#[test]
fn detokenize_writes_the_bytes() {
    let lab = Lab::empty();
    assert_eq!(lab.run("detokenize --ids 33155,45,40213").ok().stdout, b"Hello, world");
    assert_eq!(lab.run("detokenize --ids 256,0,256").ok().stdout, b"\xff\xff");
    assert_eq!(lab.run_with("detokenize", b"{\"ids\":[33155,45]}").ok().stdout, b"Hello,");
    assert_eq!(lab.run_with("detokenize", b"33155 45\n").ok().stdout, b"Hello,");
    lab.run("detokenize --ids 65530").fails(1, "token id 65530 at position 0 is not in the vocabulary");
    lab.run("detokenize --ids 1,x").fails(2, "invalid value 'x'");
    lab.run_with("detokenize", b"1 minus").fails(2, "token id \"minus\"");
}

#[test]
fn other_vocabularies() {
    let lab = Lab::new();
    let ids = lab.run_with("tokenize --json --vocab tiny.vocab", b"User: a\n\n").ok();
    assert_eq!(ids.text(), "{\"ids\":[264,33,98,257]}\n");
    assert_eq!(lab.run("detokenize --vocab tiny.vocab --ids 264,33,98,257").ok().stdout, b"User: a\n\n");
    lab.write("bad.vocab", "7 __import__('os').system('x') 1\n");
    lab.run("tokenize --vocab bad.vocab").fails(1, "bad.vocab:1:");
    lab.run("tokenize --vocab absent.vocab").fails(1, "absent.vocab: cannot be read: ");
    lab.write("few.vocab", "1 'a' 1\n");
    lab.run_with("tokenize --vocab few.vocab", b"ab").fails(1, "no token matches at byte 1 (0x62)");
}
