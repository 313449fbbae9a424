//! `rwkv logits`: the same bits however the tokens are split, and the numbers of the reference.

mod support;

use std::fs;

use support::{Lab, VOCAB, oracle, read_logits};

fn tokens(n: usize) -> String {
    let ids: Vec<String> = (0..n).map(|i| (1 + i * 37 % 270).to_string()).collect();
    ids.join(",")
}

#[test]
fn every_split_gives_the_same_bits() {
    let lab = Lab::new();
    let tokens = tokens(40);
    let whole = lab.run(&format!("logits tiny.rwkv --tokens {tokens} --all -o whole.safetensors")).ok();
    assert_eq!(whole.text(), "");
    let (rows, whole) = read_logits(&lab.path("whole.safetensors"));
    assert_eq!((rows, whole.len()), (40, 40 * VOCAB));
    for split in ["--step", "--chunk 1", "--chunk 7", "--chunk 40", "--chunk 1000", "--threads 3"] {
        lab.run(&format!("logits tiny.rwkv --tokens {tokens} --all -o split.safetensors {split}")).ok();
        assert_eq!(read_logits(&lab.path("split.safetensors")), (rows, whole.clone()), "{split}");
        lab.run(&format!("logits tiny.rwkv --tokens {tokens} -o last.safetensors {split}")).ok();
        let last = read_logits(&lab.path("last.safetensors"));
        assert_eq!(last, (1, whole[39 * VOCAB..].to_vec()), "{split}");
    }
}

#[test]
fn json_has_the_same_numbers() {
    let lab = Lab::new();
    lab.run("logits tiny.rwkv --tokens 5,6,7 --all -o file.safetensors").ok();
    let (_, expected) = read_logits(&lab.path("file.safetensors"));
    let json = lab.run("logits tiny.rwkv --tokens 5,6,7 --all").ok().json();
    assert_eq!(json["tokens"], serde_json::json!([5, 6, 7]));
    let found: Vec<f32> = json["logits"]
        .as_array()
        .expect("rows")
        .iter()
        .flat_map(|row| {
            row.as_array().expect("a row").iter().map(|logit| logit.as_f64().expect("a number") as f32)
        })
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn text_and_tokens_agree() {
    let lab = Lab::new();
    let tokens = lab.run("logits tiny.rwkv --tokens 264,98").ok();
    for args in ["--prompt User:a", "-p User:a --chunk 1"] {
        let text = lab.run(&format!("logits tiny.rwkv --vocab tiny.vocab {args}")).ok();
        assert_eq!(text.stdout, tokens.stdout, "{args}");
    }
    assert_eq!(lab.run_with("logits tiny.rwkv --vocab tiny.vocab", b"User:a").ok().stdout, tokens.stdout);
}

#[test]
fn wrong_tokens() {
    let lab = Lab::new();
    lab.run("logits tiny.rwkv --tokens 272 --all")
        .fails(2, "token 272 is not in the model's vocabulary of 272");
    lab.run("logits tiny.rwkv --tokens 1,-2").fails(2, "invalid value '-2'");
    lab.run("logits tiny.rwkv").fails(2, "there are no tokens");
    lab.run("logits tiny.rwkv --prompt hello").fails(2, "is not the model's; name its own with --vocab FILE");
    lab.run("logits tiny.rwkv --tokens 1 --prompt x").fails(2, "cannot be used with");
    lab.run("logits tiny.rwkv --tokens 1 --chunk 0").fails(2, "expected at least 1");
    lab.run("logits tiny.rwkv --tokens 1 -o absent/f").fails(1, "--output absent/f: cannot be written: ");
    lab.run("logits tiny.rwkv --tokens 1 -o .").fails(2, "is a directory");
    assert!(fs::read_dir(lab.path("")).expect("the folder").count() == 2, "nothing is left behind");
}

#[test]
fn the_reference_agrees() {
    let Some(index) = oracle("index.json") else { return };
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(index).expect("the index")).expect("JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let mut compared = 0;
    for case in index["cases"].as_array().expect("cases") {
        let (name, model, golden) = (text(&case["name"]), text(&case["model"]), text(&case["golden_file"]));
        let [call] = case["calls"].as_array().expect("calls").as_slice() else { continue };
        let is_plain = case["reference_args"].as_object().is_none_or(serde_json::Map::is_empty);
        let is_ours =
            ["rwkv7-tiny.", "rwkv7-odd.", "rwkvcpp-tiny-7v0"].iter().any(|part| model.contains(part));
        if !is_plain || !is_ours || name.ends_with(".expected") {
            continue;
        }
        let tokens = call["tokens"].as_array().expect("tokens").iter().map(|id| id.to_string());
        let tokens = tokens.collect::<Vec<_>>().join(",");
        let mode = match call["mode"].as_str() {
            Some("last") => "",
            Some("step") => "--all --step",
            _ => "--all",
        };
        let golden = fs::read(oracle(&golden).expect("the golden file")).expect("it can be read");
        let golden = read_tensor(&golden, &format!("{name}.0"));
        for model in [model.clone(), model.replace(".safetensors", ".pth")] {
            let Some(checkpoint) = oracle(&model) else { continue };
            let lab = Lab::empty();
            fs::copy(checkpoint, lab.path("model")).expect("a copy");
            lab.run(&format!("logits model --codec f32 --tokens {tokens} {mode} -o l.safetensors")).ok();
            let (_, found) = read_logits(&lab.path("l.safetensors"));
            assert_eq!(found.len(), golden.len(), "{name}");
            let worst = found.iter().zip(&golden).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= 1e-4, "{name} from {model}: {worst}");
            compared += 1;
        }
    }
    assert!(compared > 1, "{compared} cases of the oracle have one call");
}

fn read_tensor(file: &[u8], name: &str) -> Vec<f32> {
    let len = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + len]).expect("a header");
    let at = |i: usize| header[name]["data_offsets"][i].as_u64().expect("an offset") as usize;
    file[8 + len..][at(0)..at(1)]
        .chunks_exact(4)
        .map(|value| f32::from_le_bytes(value.try_into().expect("four bytes")))
        .collect()
}

/// A tensor of a file: its shape and values.
fn tensor(lab: &Lab, file: &str, name: &str) -> (Vec<usize>, Vec<f32>) {
    let bytes = fs::read(lab.path(file)).expect("the file");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let tensor = file.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let values =
        tensor.data().chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().expect("four")));
    (tensor.shape().to_vec(), values.collect())
}

#[test]
fn captured_embeddings_and_weights_are_those_of_every_split() {
    const TOKENS: usize = 30;
    let lab = Lab::new();
    lab.hybrid("x.rwkv");
    let tokens = tokens(TOKENS);
    for policy in ["full", "window:9", "top-k:4,2"] {
        let capture = |options: &str, file: &str| {
            lab.run(&format!(
                "logits x.rwkv --tokens {tokens} --capture embeddings,attention --attention {policy} -o {file} {options}"
            ))
            .ok();
            fs::read(lab.path(file)).expect("the file")
        };
        let whole = capture("", "whole");
        for split in ["--step", "--chunk 7", "--threads 2"] {
            assert!(capture(split, "split") == whole, "{policy}, {split}");
        }
        let order =
            ["blocks.0", "blocks.1", "attention.0", "blocks.2", "blocks.3", "attention.1"].map(|block| {
                let sides = ["input", "output"].map(|side| tensor(&lab, "whole", &format!("{block}.{side}")));
                sides.map(|(shape, values)| {
                    assert_eq!(shape, [TOKENS, 64]);
                    values
                })
            });
        for pair in order.windows(2) {
            assert!(
                pair[0][1] == pair[1][0] && pair[0][0] != pair[0][1],
                "a block begins where another ends"
            );
        }
        for block in 0..2 {
            let (shape, weights) = tensor(&lab, "whole", &format!("attention.{block}.weights"));
            assert_eq!(shape, [1, TOKENS, TOKENS]);
            for (position, row) in weights.chunks_exact(TOKENS).enumerate() {
                let sum: f32 = row.iter().sum();
                assert!((sum - 1.0).abs() < 1e-5, "{policy}: token {position} has {sum} in all");
                assert!(row[position] > 0.0, "{policy}: token {position} sees itself");
                assert!(
                    row[position + 1..].iter().all(|&weight| weight == 0.0),
                    "{policy}: no token sees ahead"
                );
                let seen = row.iter().filter(|&&weight| weight > 0.0).count();
                let most = match policy {
                    "full" => position + 1,
                    "window:9" => (position + 1).min(9),
                    _ if position <= 8 => position + 1,
                    _ => 8 + position % 4 + 1,
                };
                assert_eq!(seen, most, "{policy}: token {position}");
            }
        }
    }
}

#[test]
fn a_capture_goes_on_from_a_state() {
    let lab = Lab::new();
    lab.hybrid("x.rwkv");
    lab.run("run x.rwkv --vocab tiny.vocab --prompt abcdef -n 0 --save-state s").ok();
    let ended = lab.run("logits x.rwkv --state s --tokens 5,6 --capture attention -o out").ok();
    assert_eq!(ended.text(), "");
    let (shape, weights) = tensor(&lab, "out", "attention.0.weights");
    let [heads, rows, seen] = shape[..] else { panic!("{shape:?}") };
    assert!(heads == 1 && rows >= 2 && seen > rows, "{shape:?}");
    assert!(weights[..seen - rows].iter().all(|&weight| weight > 0.0), "earlier tokens are seen");
}

#[test]
fn captures_that_make_no_sense() {
    let lab = Lab::new();
    lab.run("logits tiny.rwkv --tokens 1 --capture embeddings").fails(2, "--output <FILE>");
    lab.run("logits tiny.rwkv --tokens 1 --capture attention -o x")
        .fails(2, "the model is RWKV-7, without attention that --capture could write");
    lab.run("logits tiny.rwkv --tokens 1 --capture thoughts -o x").fails(2, "invalid value 'thoughts'");
    assert!(!lab.path("x").exists());
}

/// A file of tensors: BF16 or F32, row after row.
struct Tensors(Vec<u8>);

impl Tensors {
    fn of(file: &str) -> Tensors {
        Tensors(fs::read(oracle(file).expect("a file of the oracle")).expect("it can be read"))
    }

    fn get(&self, name: &str) -> Option<Vec<f64>> {
        let file = safetensors::SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let tensor = file.tensor(name).ok()?;
        let values = match tensor.dtype() {
            safetensors::Dtype::BF16 => {
                let value = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
                tensor.data().chunks_exact(2).map(value).collect::<Vec<f32>>()
            }
            _ => {
                tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
        };
        Some(values.into_iter().map(f64::from).collect())
    }

    /// `norm` of a row, with the weights of this name.
    fn norm(&self, name: &str, row: &[f64]) -> Vec<f64> {
        let [weight, bias] = ["weight", "bias"].map(|part| self.get(&format!("{name}.{part}")).expect(name));
        let mean = row.iter().sum::<f64>() / row.len() as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / row.len() as f64;
        let normed = row.iter().map(|x| (x - mean) / (variance + 1e-5).sqrt());
        normed.zip(weight.iter().zip(&bias)).map(|(x, (weight, bias))| x * weight + bias).collect()
    }

    /// The product of the matrix of this name with a row.
    fn times(&self, name: &str, row: &[f64]) -> Vec<f64> {
        let matrix = self.get(&format!("{name}.weight")).expect(name);
        matrix
            .chunks_exact(row.len())
            .map(|weights| weights.iter().zip(row).map(|(w, x)| w * x).sum())
            .collect()
    }
}

#[track_caller]
fn near(what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst <= 1e-4, "{what}: off by {worst:e}");
}

/// The oracle has no embeddings between blocks and no weights of attention, but what the official implementations make of them: the
/// norms of the last token's before each part of a block, and all keys and values.
#[test]
fn captured_embeddings_and_weights_lead_to_the_states_of_the_oracle() {
    let Some(index) = oracle("index.json") else { return };
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(index).expect("the index")).expect("JSON");
    for (case, layers, attention, width) in [
        ("rwkv7-tiny.seq40", 3, 0, 128),
        ("rwkv7-odd.seq40", 2, 0, 96),
        ("rwkvx-tiny.old-full.seq40", 6, 2, 128),
    ] {
        let all = index["cases"].as_array().expect("cases");
        let entry = all.iter().find(|entry| entry["name"] == case).expect(case);
        let [model, golden] = ["model", "golden_file"].map(|file| entry[file].as_str().expect("a file"));
        let tokens: Vec<String> =
            entry["calls"][0]["tokens"].as_array().expect("tokens").iter().map(|id| id.to_string()).collect();
        let lab = Lab::empty();
        fs::copy(oracle(model).expect("a model"), lab.path("model.safetensors")).expect("a copy");
        let what = if attention > 0 { "embeddings,attention --kv f32" } else { "embeddings" };
        let tokens_list = tokens.join(",");
        lab.run(&format!(
            "logits model.safetensors --codec f32 --tokens {tokens_list} --capture {what} -o inside --chunk 13"
        ))
        .ok();
        let (weights, golden) = (Tensors::of(model), Tensors::of(golden));
        let dump = |name: &str| golden.get(&format!("{case}.state.{name}")).expect(name);
        let captured = |name: &str| -> Vec<f64> {
            let (shape, values) = tensor(&lab, "inside", name);
            let last = if name.ends_with("weights") { tokens.len() } else { width };
            assert_eq!(shape.last(), Some(&last), "{name}");
            values.into_iter().map(f64::from).collect()
        };
        let prefix = if attention > 0 { "rwkv." } else { "" };
        let last = |rows: &[f64]| rows[rows.len() - width..].to_vec();
        for block in 0..layers {
            let input = last(&captured(&format!("blocks.{block}.input")));
            let normed = weights.norm(&format!("{prefix}blocks.{block}.ln1"), &input);
            near(&format!("{case}, block {block}"), &normed, &dump("att_x")[block * width..][..width]);
        }
        for block in 0..attention {
            let name = format!("{case}, attention {block}");
            let inputs = captured(&format!("attention.{block}.input"));
            let (keys, values) = (dump(&format!("k_cache.{block}")), dump(&format!("v_cache.{block}")));
            for (position, input) in inputs.chunks_exact(width).enumerate() {
                let normed = weights.norm(&format!("moba.{block}.ln1"), input);
                for (matrix, rows) in [("key", &keys), ("value", &values)] {
                    let found = weights.times(&format!("moba.{block}.att.{matrix}"), &normed);
                    near(&format!("{name}, {matrix} {position}"), &found, &rows[position * width..][..width]);
                }
            }
            // What the last token attended to, with the oracle's values, gives the oracle's input of the channel mix.
            let rows = tokens.len();
            let attended = captured(&format!("attention.{block}.weights"));
            let mixed: Vec<f64> = (0..width)
                .map(|channel| {
                    let weights = &attended[(channel / 64 * rows + rows - 1) * rows..][..rows];
                    weights
                        .iter()
                        .enumerate()
                        .map(|(row, weight)| weight * values[row * width + channel])
                        .sum()
                })
                .collect();
            let output = weights.times(&format!("moba.{block}.att.output"), &mixed);
            let sum: Vec<f64> = last(&inputs).iter().zip(&output).map(|(x, y)| x + y).collect();
            let normed = weights.norm(&format!("moba.{block}.ln2"), &sum);
            near(&format!("{name}, after it"), &normed, &dump(&format!("attn_ffn_x.{block}")));
        }
        let end = match attention {
            0 => format!("blocks.{}.output", layers - 1),
            _ => format!("attention.{}.output", attention - 1),
        };
        let outputs = captured(&end);
        let logits: Vec<f64> = outputs
            .chunks_exact(width)
            .flat_map(|row| {
                weights.times(&format!("{prefix}head"), &weights.norm(&format!("{prefix}ln_out"), row))
            })
            .collect();
        near(&format!("{case}, logits"), &logits, &golden.get(&format!("{case}.0")).expect("logits"));
    }
}
