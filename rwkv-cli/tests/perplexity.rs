//! `rwkv perplexity`: its figures are those of the logits, however they are computed.

mod support;

use rwkv_model::kernels::Codec;
use rwkv_model::{ConvertOptions, Synthetic, convert};
use serde_json::Value;
use support::{Lab, VOCAB, config, oracle, read_logits, weights};

const TEXT: &str =
    "User: the land and the sea\n\nAssistant: all things are new, and the old ones pass. \u{e9}\u{4e16} User";

fn lab() -> Lab {
    let lab = Lab::new();
    for (name, codec) in [("u4", Codec::U4), ("u8", Codec::U8)] {
        convert(&weights(1), lab.path(&format!("tiny.{name}.rwkv")), ConvertOptions::new(codec))
            .expect("a pack");
    }
    lab.write("text", TEXT);
    lab
}

/// The figures, without the time that they took.
fn figures(lab: &Lab, args: &str) -> Value {
    let mut json = lab.run(&format!("perplexity {args} --vocab tiny.vocab --json")).ok().json();
    let seconds = json.as_object_mut().expect("an object").remove("seconds");
    assert!(seconds.expect("a time").as_f64() >= Some(0.0));
    json
}

/// Natural logarithms of the probabilities after each token but the last, with token 0 before the first.
fn log_probabilities(lab: &Lab, model: &str, ids: &[u32]) -> Vec<Vec<f64>> {
    let tokens: Vec<String> = std::iter::once(&0).chain(ids).map(u32::to_string).collect();
    let tokens = tokens.join(",");
    lab.run(&format!("logits {model} --all --step --tokens {tokens} -o {model}.logits")).ok();
    let (rows, logits) = read_logits(&lab.path(&format!("{model}.logits")));
    let log = |row: &[f32]| {
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        row.iter().map(|&logit| f64::from(logit) - sum.ln()).collect()
    };
    logits.chunks_exact(logits.len() / rows).take(ids.len()).map(log).collect()
}

fn ids(lab: &Lab) -> Vec<u32> {
    let json = lab.run_args(&["tokenize", "--vocab", "tiny.vocab", "--json", "-p", TEXT]).ok().json();
    json["ids"].as_array().expect("ids").iter().map(|id| id.as_u64().expect("a number") as u32).collect()
}

#[track_caller]
fn close(found: &Value, expected: f64) {
    let found = found.as_f64().expect("a number");
    assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{found} for {expected}");
}

#[test]
fn figures_are_those_of_the_logits() {
    let lab = lab();
    let ids = ids(&lab);
    let ours = log_probabilities(&lab, "tiny.u4.rwkv", &ids);
    let theirs = log_probabilities(&lab, "tiny.rwkv", &ids);
    let json = figures(&lab, "tiny.u4.rwkv text --against tiny.rwkv");
    let nats = |rows: &[Vec<f64>]| -> f64 { rows.iter().zip(&ids).map(|(row, &id)| -row[id as usize]).sum() };
    let count = ids.len() as f64;
    assert_eq!(json["tokens"].as_u64(), Some(ids.len() as u64));
    assert_eq!(json["bytes"].as_u64(), Some(TEXT.len() as u64));
    let against = &json["against"];
    for (json, rows, codec) in [(&json, &ours, "u4"), (against, &theirs, "f32")] {
        assert_eq!(json["codec"], codec);
        close(&json["bits_per_byte"], nats(rows) / std::f64::consts::LN_2 / TEXT.len() as f64);
        close(&json["perplexity"], (nats(rows) / count).exp());
    }
    let mut divergences: Vec<f64> = ours
        .iter()
        .zip(&theirs)
        .map(|(ours, theirs)| ours.iter().zip(theirs).map(|(q, p)| p.exp() * (p - q)).sum())
        .collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    assert!(mean(&divergences) > 1e-6, "a codec of 4 bits shows");
    close(&against["kl_mean"], mean(&divergences));
    let by_position = against["kl_by_position"].as_array().expect("ranges");
    let bounds = [0, 16, 32, 64, 128];
    for (at, bounds) in by_position.iter().zip(bounds.windows(2)) {
        let range = &divergences[bounds[0]..bounds[1].min(divergences.len())];
        assert_eq!(
            [&at["first"], &at["last"]].map(Value::as_u64),
            [Some(bounds[0] as u64), Some(bounds[1] as u64 - 1)]
        );
        assert_eq!(at["tokens"].as_u64(), Some(range.len() as u64));
        close(&at["kl_mean"], mean(range));
    }
    assert_eq!(by_position.len(), 3, "{} tokens", ids.len());
    let top = |row: &Vec<f64>| (1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
    let same = ours.iter().zip(&theirs).filter(|(ours, theirs)| top(ours) == top(theirs)).count();
    close(&against["same_top1"], same as f64 / count);
    divergences.sort_by(f64::total_cmp);
    close(&against["kl_max"], divergences[divergences.len() - 1]);
    let (p99, exact) =
        (against["kl_p99"].as_f64().expect("a number"), divergences[(0.99 * count).ceil() as usize - 1]);
    assert!((p99 - exact).abs() <= exact / 256.0, "{p99} for {exact}");
}

#[test]
fn nothing_but_the_text_changes_a_figure() {
    let lab = lab();
    let expected = figures(&lab, "tiny.u8.rwkv text --against tiny.rwkv");
    for args in
        ["--chunk 1", "--chunk 7", "--threads 1", "--threads 3 --chunk 64", "--ram 2MiB", "--residency mmap"]
    {
        assert_eq!(
            figures(&lab, &format!("tiny.u8.rwkv text --against tiny.rwkv {args}")),
            expected,
            "{args}"
        );
    }
    let stdin =
        lab.run_with("perplexity tiny.u8.rwkv - --vocab tiny.vocab --json", TEXT.as_bytes()).ok().json();
    assert_eq!(stdin["bits_per_byte"], expected["bits_per_byte"]);
}

#[test]
fn the_logits_of_a_chunk_count_in_the_budget() {
    let lab = lab();
    let plan = lab.run("plan tiny.rwkv --json --no-probe").ok().json();
    let refused = lab.run("perplexity tiny.rwkv text --vocab tiny.vocab --ram 0").fails(1, "smallest");
    let least =
        refused.stderr.split("the smallest that can is ").nth(1).and_then(|rest| rest.split(' ').next());
    let least: u64 = least.and_then(|least| least.parse().ok()).expect("a number of bytes");
    // A sweep has 16 rows at least.
    let rows = 16 * 4 * VOCAB as u64;
    assert!(least >= plan["smallest_budget"].as_u64().expect("bytes") + rows, "{least} bytes, and {plan}");
    let figures = |options: &str| figures(&lab, &format!("tiny.rwkv text {options}"));
    assert_eq!(figures(&format!("--ram {least}")), figures(""));
}

#[test]
fn every_file_is_a_document() {
    let lab = lab();
    lab.write("other", "the and the and");
    lab.write("empty", "");
    let one = figures(&lab, "tiny.rwkv text");
    let other = figures(&lab, "tiny.rwkv other");
    let both = figures(&lab, "tiny.rwkv text empty other --against tiny.u8.rwkv");
    let bits =
        |json: &Value| json["bits_per_byte"].as_f64().expect("bits") * json["bytes"].as_f64().expect("bytes");
    assert_eq!(both["bytes"].as_u64(), Some(TEXT.len() as u64 + 15));
    close(&both["bits_per_byte"], (bits(&one) + bits(&other)) / (TEXT.len() + 15) as f64);
    // The positions of a document begin anew.
    assert_eq!(
        both["against"]["kl_by_position"][0]["tokens"].as_u64().expect("tokens"),
        16 + other["tokens"].as_u64().expect("tokens")
    );
}

#[test]
fn a_limit_ends_in_the_middle() {
    let lab = lab();
    let ids = ids(&lab);
    let rows = log_probabilities(&lab, "tiny.rwkv", &ids);
    for (limit, chunk) in [(1, 256), (9, 4), (20, 20)] {
        let json = figures(&lab, &format!("tiny.rwkv text --limit {limit} --chunk {chunk}"));
        assert_eq!(json["tokens"].as_u64(), Some(limit));
        let limit = limit as usize;
        let nats: f64 = rows.iter().zip(&ids).take(limit).map(|(row, &id)| -row[id as usize]).sum();
        close(&json["perplexity"], (nats / limit as f64).exp());
    }
    assert_eq!(figures(&lab, "tiny.rwkv text --limit 1000"), figures(&lab, "tiny.rwkv text"));
}

#[test]
fn a_model_is_no_different_from_itself() {
    let lab = lab();
    lab.checkpoint("tiny.safetensors", 1);
    // The checkpoint as reference is packed as f32, and the weights of the checkpoint are bf16: f16 would lose nothing either.
    let text = lab
        .run("perplexity tiny.safetensors text --vocab tiny.vocab --codec f32 --against tiny.safetensors")
        .ok();
    for line in [
        "model            tiny.safetensors, f32",
        "so the model has +0.00000",
        "divergence     mean 0.000000",
        "same top 1     100.00 %",
        "0 to 15",
    ] {
        assert!(text.text().contains(line), "{line:?} in {}", text.text());
    }
    let json =
        figures(&lab, "tiny.safetensors text --codec u4 --against tiny.safetensors --against-codec u4");
    assert_eq!(json["against"]["kl_max"].as_f64(), Some(0.0));
    assert_eq!(json["against"]["codec"], "u4");
}

#[test]
fn what_cannot_be_compared_or_scored() {
    let lab = lab();
    lab.write("empty", "");
    lab.write("not-a-model", "hello");
    let larger = Synthetic::new(config(300), 1);
    convert(&larger, lab.path("larger.rwkv"), ConvertOptions::new(Codec::F32)).expect("a pack");
    convert(&weights(2), lab.path("second.rwkv"), ConvertOptions::new(Codec::F32)).expect("a pack");
    let with_vocab = |args: &str| lab.run(&format!("perplexity {args} --vocab tiny.vocab"));
    with_vocab("tiny.rwkv empty").fails(2, "the text is empty: there is no token to score");
    with_vocab("tiny.rwkv text --against larger.rwkv").fails(2, "--against larger.rwkv: is RWKV-7");
    with_vocab("tiny.rwkv text --against not-a-model").fails(3, "not-a-model");
    with_vocab("tiny.rwkv text --against absent").fails(1, "absent");
    with_vocab("tiny.rwkv absent").fails(1, "absent: cannot be opened");
    with_vocab("tiny.rwkv text --chunk 0").fails(2, "invalid value '0'");
    with_vocab("tiny.rwkv text --against-codec u8").fails(2, "--against <OTHER>");
    with_vocab("tiny.rwkv text --codec u8").fails(2, "is a pack with codec f32");
    lab.run("perplexity tiny.rwkv").fails(2, "<FILE>");
    lab.run("perplexity tiny.rwkv text").fails(2, "is not the model's; name its own with --vocab FILE");
    let second = with_vocab("tiny.rwkv text --against second.rwkv").ok();
    assert!(second.stderr.contains("are they the same weights?"), "{}", second.stderr);
}

/// The trained model on a text that its training has not seen: a figure of this size only comes out if all is right.
#[test]
fn a_trained_model_predicts_english() {
    let Some(model) = oracle("trained/sotu-x.safetensors") else { return };
    let lab = Lab::empty();
    std::fs::copy(model, lab.path("sotu.safetensors")).expect("a copy");
    std::fs::copy(oracle("trained/sotu-x.vocab.txt").expect("its vocabulary"), lab.path("tiny.vocab"))
        .expect("a copy");
    lab.write("text", "The people of the United States have reason to be grateful for the progress of the last year, and the Congress will, I am sure, continue to provide for the common defense.\n");
    let found = |codec: &str| {
        figures(&lab, &format!("sotu.safetensors text --codec {codec}"))["bits_per_byte"].as_f64()
    };
    let exact = found("f32").expect("a number");
    assert!((0.5..1.5).contains(&exact), "{exact} bits per byte");
    let u8 = found("u8").expect("a number");
    assert!((u8 - exact).abs() < 0.02, "{u8} for {exact}");
}
