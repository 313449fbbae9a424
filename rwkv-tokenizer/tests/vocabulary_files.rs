//! Vocabulary files: what is read, and what is refused with which words.

use std::path::PathBuf;

use rwkv_tokenizer::{EncodeError, MAX_TOKEN_ID, Tokenizer, VocabularyErrorKind};

/// A file of this name with these contents.
fn file(name: &str, contents: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, contents).expect("a writable target directory");
    path
}

#[test]
fn line_ends_make_no_difference() {
    let lines = ["1 'a' 1", "2 ' ' 1", "3 'a b' 3", r"4 b'\xff' 1", r"5 '\n\r' 2", "9 '你' 3", "7 \"'\" 1"];
    let copies = [lines.join("\n"), lines.join("\n") + "\n", lines.join("\r\n"), lines.join("\r\n") + "\r\n"];
    for (number, copy) in copies.iter().enumerate() {
        let path = file(&format!("line_ends_{number}.txt"), copy.as_bytes());
        let tokenizer = Tokenizer::from_path(&path).expect("a vocabulary");
        assert_eq!(tokenizer.vocab_size(), 10, "copy {number}");
        assert_eq!(
            tokenizer.try_encode("a bba"),
            Err(EncodeError { offset: 3, byte: b'b' }),
            "copy {number}"
        );
        let ids = tokenizer.try_encode("aa ba \n\r你'".as_bytes()).expect("covered");
        assert_eq!(ids, [1, 3, 1, 2, 5, 9, 7], "copy {number}");
        assert_eq!(tokenizer.token_bytes(4), Some(&b"\xff"[..]));
        assert_eq!(tokenizer.token_bytes(6), None);
        assert_eq!(tokenizer.token_bytes(8), None);
    }
}

#[test]
fn bad_lines_are_named() {
    let max = MAX_TOKEN_ID;
    let length = "the number of bytes of the literal";
    let format = "expected `id literal length`";
    let cases: [(&str, &str); 27] = [
        ("", "line is \"\", {format}"),
        ("7", "line is \"7\", {format}"),
        ("7 'a'", "line is \"7 'a'\", {format}"),
        ("7 1", "line is \"7 1\", {format}"),
        ("'a' 7 1", "line is \"'a' 7 1\", {format}"),
        ("-7 'a' 1", "line is \"-7 'a' 1\", {format}"),
        ("+7 'a' 1", "line is \"+7 'a' 1\", {format}"),
        (" 7 'a' 1", "line is \" 7 'a' 1\", {format}"),
        ("7 'a' 1 ", "line is \"7 'a' 1 \", {format}"),
        ("7 'a' x", "line is \"7 'a' x\", {format}"),
        ("7\t'a'\t1", "line is \"7\\t'a'\\t1\", {format}"),
        ("\u{feff}7 'a' 1", "line is \"\\u{feff}7 'a' 1\", {format}"),
        ("0 'a' 1", "id is 0, expected 1 to {max}"),
        ("1048576 'a' 1", "id is 1048576, expected 1 to {max}"),
        ("4294967297 'a' 1", "id is 4294967297, expected 1 to {max}"),
        ("99999999999999999999999 'a' 1", "id is 99999999999999999999999, expected 1 to {max}"),
        ("7 'a' 2", "length is 2, expected 1, {length}"),
        ("7 'é' 1", "length is 1, expected 2, {length}"),
        ("7 'a' 99999999999999999999999", "length is 18446744073709551615, expected 1, {length}"),
        ("7 '' 0", "token of id 7 is empty, expected at least one byte"),
        (
            "7 __import__('os').system('x') 1",
            "literal is \"__import__('os').system('x')\", expected '…', \"…\" or b'…'",
        ),
        ("7 a 1", "literal is \"a\", expected '…', \"…\" or b'…'"),
        ("7  'a' 1", "literal is \" 'a'\", expected '…', \"…\" or b'…'"),
        (r"7 '\x4' 1", r"escape \x4 in the literal, expected 2 hexadecimal digits"),
        (r"7 b'é' 2", "character 'é' in a bytes literal, expected ASCII or \\x escapes"),
        ("2 'a' 1", "id 2 appears a second time, expected each id once"),
        ("7 'xyz' 3", "id 7 is the token \"xyz\", expected a new one: it is id 2 already"),
    ];
    for (line, expected) in cases {
        let expected = expected
            .replace("{max}", &max.to_string())
            .replace("{length}", length)
            .replace("{format}", format);
        let contents = format!("1 'b' 1\n2 'xyz' 3\n{line}\n5 'c' 1\n");
        let path = file("bad_line.txt", contents.as_bytes());
        let error = Tokenizer::from_path(&path).expect_err(line);
        assert_eq!(error.to_string(), format!("{}:3: {expected}", path.display()), "{line}");
        assert_eq!((error.line(), error.path()), (Some(3), Some(&*path)), "{line}");
        let error = Tokenizer::from_bytes(contents.as_bytes()).expect_err(line);
        assert_eq!(error.to_string(), format!("vocabulary line 3: {expected}"), "{line}");
    }
}

#[test]
fn the_later_of_two_lines_is_at_fault() {
    // Whatever the order of the ids.
    let error = Tokenizer::from_bytes(b"9 'a' 1\n3 'a' 1\n").expect_err("a token twice");
    assert_eq!(
        error.to_string(),
        "vocabulary line 2: id 3 is the token \"a\", expected a new one: it is id 9 already"
    );
}

#[test]
fn files_that_are_no_vocabulary() {
    let error = Tokenizer::from_bytes(b"1 'a' 1\n2 '\xff' 1\n").expect_err("not UTF-8");
    assert_eq!(error.to_string(), "vocabulary line 2: text is \"\u{fffd}' 1\", expected UTF-8");

    for empty in [&b""[..], b"\n", b"\r\n"] {
        let path = file("empty.txt", empty);
        let error = Tokenizer::from_path(&path).expect_err("nothing in it");
        assert!(error.to_string().ends_with("expected at least one"), "{error}");
    }

    let page = file("page.html", b"<!DOCTYPE html>\n<html></html>\n");
    let error = Tokenizer::from_path(&page).expect_err("a web page");
    let expected = "1: line is \"<!DOCTYPE html>\", expected `id literal length`";
    assert_eq!(error.to_string(), format!("{}:{expected}", page.display()));

    let long = Tokenizer::from_bytes(&[b'x'; 100_000]).expect_err("one long line").to_string();
    assert!(long.len() < 200 && long.contains('…'), "the excerpt is short: {long}");
}

#[test]
fn files_that_cannot_be_read() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    for path in [directory.join("no such file.txt"), directory] {
        let error = Tokenizer::from_path(&path).expect_err("not a file");
        assert!(matches!(error.kind(), VocabularyErrorKind::Read(_)), "{error:?}");
        assert!(std::error::Error::source(&error).is_some(), "the cause is kept");
        assert_eq!(error.to_string(), format!("{}: cannot be read", path.display()));
    }
}

#[test]
fn a_huge_file_is_not_read_to_its_end() {
    let path = file("huge.txt", b"");
    std::fs::File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(1 << 40))
        .expect("sparse files");
    let error = Tokenizer::from_path(&path).expect_err("a terabyte").to_string();
    std::fs::remove_file(&path).expect("our file");
    assert!(error.ends_with("size in bytes is 67108865, expected at most 67108864"), "{error}");
}

#[test]
fn tokens_from_memory_are_checked_too() {
    let cases: [(&[(u32, &str)], &str); 6] = [
        (&[], "vocabulary: no token found, expected at least one"),
        (&[(0, "a")], "vocabulary: id is 0, expected 1 to 1048575"),
        (&[(u32::MAX, "a")], "vocabulary: id is 4294967295, expected 1 to 1048575"),
        (&[(1, "")], "vocabulary: token of id 1 is empty, expected at least one byte"),
        (&[(1, "a"), (1, "b")], "vocabulary: id 1 appears a second time, expected each id once"),
        (
            &[(1, "a"), (2, "a")],
            "vocabulary: id 2 is the token \"a\", expected a new one: it is id 1 already",
        ),
    ];
    for (tokens, expected) in cases {
        let error = Tokenizer::from_tokens(tokens.iter().copied()).expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }
    let tokenizer = Tokenizer::from_tokens([(MAX_TOKEN_ID, "a")]).expect("the largest id");
    assert_eq!(tokenizer.try_encode("aa"), Ok(vec![MAX_TOKEN_ID; 2]));
}

#[test]
fn an_incomplete_vocabulary_says_where_it_ends() {
    let tokenizer = Tokenizer::from_tokens([(1, "ab"), (2, "abcd"), (3, "b")]).expect("three tokens");
    assert!(!tokenizer.is_complete());
    let mut ids = vec![42];
    let cases: [(&str, usize, u8); 4] =
        [("abx", 2, b'x'), ("ababc", 4, b'c'), ("babca", 3, b'c'), ("ba", 1, b'a')];
    for (text, offset, byte) in cases {
        assert_eq!(tokenizer.try_encode_into(text, &mut ids), Err(EncodeError { offset, byte }), "{text}");
        assert_eq!(ids, [42], "an error leaves the buffer as it was");
    }
    let message = tokenizer.try_encode("abx").expect_err("no x").to_string();
    assert_eq!(message, "no token matches at byte 2 (0x78), expected a vocabulary that covers the text");
    assert_eq!(tokenizer.try_encode("abcdb"), Ok(vec![2, 3]));
    assert_eq!(tokenizer.try_encode(""), Ok(vec![]));
}

#[test]
#[should_panic(expected = "encode needs a vocabulary with all 256 bytes")]
fn encode_refuses_an_incomplete_vocabulary() {
    Tokenizer::from_tokens([(1, "a")]).expect("one token").encode("a");
}

#[cfg(feature = "world")]
#[test]
fn the_world_file_with_other_line_ends() {
    let text = include_str!("../vocab/rwkv_vocab_v20230424.txt");
    let copies =
        [text.replace('\n', "\r\n"), text.trim_end().to_owned(), text.trim_end().replace('\n', "\r\n")];
    for copy in copies {
        let tokenizer = Tokenizer::from_bytes(copy.as_bytes()).expect("the same vocabulary");
        for id in 0..65_540 {
            assert_eq!(tokenizer.token_bytes(id), Tokenizer::world().token_bytes(id), "id {id}");
        }
    }
}
