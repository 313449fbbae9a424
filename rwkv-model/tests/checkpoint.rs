//! What checkpoints are accepted, and what the others are told.

mod support;

use rwkv_kernels::Codec;
use rwkv_model::{Config, ConvertOptions, ErrorKind, Family, ModelError, convert};
use rwkv_pack::Checkpoint;
use support::oracle;
use support::random::{Weights, config, weights};

type Names = Vec<(String, Vec<usize>)>;

fn names(weights: &Weights) -> Names {
    weights.tensors.iter().map(|(name, (shape, _))| (name.clone(), shape.clone())).collect()
}

fn read(names: &Names) -> Result<Config, ModelError> {
    Config::from_shapes(names.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())))
}

fn family(names: &Names) -> Family {
    Family::detect(names.iter().map(|(name, shape)| (name.as_str(), shape.as_slice()))).unwrap()
}

fn of(list: &[(&str, &[usize])]) -> Names {
    list.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect()
}

#[test]
fn sizes_come_from_the_shapes() {
    for config in [config(1, 1, 16), config(2, 3, 16), config(3, 2, 64), config(2, 1, 128), config(2, 1, 256)]
    {
        assert_eq!(read(&names(&weights(&config, 1))).unwrap(), config);
    }
}

#[test]
fn dimensions_of_one_do_not_matter() {
    let config = config(2, 1, 48);
    let mut squeezed = names(&weights(&config, 1));
    for (_, shape) in &mut squeezed {
        shape.retain(|&dim| dim != 1);
    }
    assert_eq!(read(&squeezed).unwrap(), config);
    let mut padded = names(&weights(&config, 1));
    for (name, shape) in &mut padded {
        if !name.ends_with("r_k") {
            shape.insert(0, 1);
        }
    }
    assert_eq!(read(&padded).unwrap(), config);
}

#[test]
fn the_first_blocks_value_residual_is_ignored() {
    let config = config(2, 2, 16);
    let mut more = names(&weights(&config, 1));
    for name in ["v0", "v1", "v2"] {
        more.push((format!("blocks.0.att.{name}"), vec![config.width, 3]));
    }
    assert_eq!(read(&more).unwrap(), config);
}

#[test]
fn wrong_tensors_are_named() {
    let config = config(2, 2, 16);
    let good = names(&weights(&config, 1));
    let width = config.width;
    let without = |gone: &str| -> Names { good.iter().filter(|(name, _)| name != gone).cloned().collect() };
    let with = |name: &str, shape: &[usize]| -> Names {
        let mut list = without(name);
        list.push((name.to_owned(), shape.to_vec()));
        list
    };
    let mut without_a_block = good.clone();
    without_a_block.retain(|(name, _)| !name.starts_with("blocks.0.") || name.ends_with("r_k"));
    let cases: Vec<(Names, &str)> = vec![
        (without("blocks.1.att.key.weight"), "tensor blocks.1.att.key.weight is missing; "),
        (without("blocks.1.att.v1"), "tensor blocks.1.att.v1 is missing"),
        (without("head.weight"), "tensor head.weight is missing"),
        (without("emb.weight"), "tensor emb.weight is missing"),
        (without_a_block, "is missing"),
        (with("blocks.1.att.extra", &[3]), "tensor blocks.1.att.extra is not part of an RWKV-7 model"),
        (with("blocks.x.att.w1", &[3]), "tensor blocks.x.att.w1 has block number \"x\""),
        (with("blocks.99999999999999999999.att.w1", &[3]), "has block number \"99999999999999999999\""),
        (with("blocks.65535.att.w1", &[3]), "layers is 65536; expected 1 to 4096"),
        (
            with("blocks.1.ffn.key.weight", &[width, config.ffn]),
            "tensor blocks.1.ffn.key.weight has shape [32, 104]; expected [104, 32] (is it transposed?)",
        ),
        (
            with("blocks.1.att.w2", &[width, config.rank_w]),
            "tensor blocks.1.att.w2 has shape [32, 12]; expected [12, 32] (is it transposed?)",
        ),
        (with("blocks.1.att.a1", &[width, 8]), "tensor blocks.1.att.a1 has shape [32, 8]; expected [32, 7]"),
        (with("blocks.0.att.r_k", &[width]), "tensor blocks.1.att.r_k has shape [2, 16]; expected [1, 32]"),
        (with("blocks.0.att.r_k", &[2, 15]), "tensor blocks.0.att.r_k has shape [2, 15]"),
        (with("blocks.0.att.r_k", &[4, 8]), "head size is 8; expected a multiple of 16"),
        (with("blocks.0.att.r_k", &[32, 0]), "tensor blocks.0.att.r_k has shape [32, 0]"),
        (with("emb.weight", &[width]), "tensor emb.weight has shape [32]; expected [vocabulary, width]"),
        (with("head.weight", &[70, width]), "tensor head.weight has shape [70, 32]; expected [69, 32]"),
        (with("ln_out.bias", &[width - 1]), "tensor ln_out.bias has shape [31]; expected [32]"),
    ];
    let mut failures = Vec::new();
    for (list, expected) in cases {
        match read(&list) {
            Ok(config) => failures.push(format!("accepted as {config}; expected {expected:?}")),
            Err(error) if error.kind() == ErrorKind::Checkpoint && error.to_string().contains(expected) => {}
            Err(error) => failures.push(format!("{error} ({:?}); expected {expected:?}", error.kind())),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let mut twice = good.clone();
    twice.push(good[0].clone());
    assert!(read(&twice).unwrap_err().to_string().ends_with("appears twice"));
}

#[test]
fn a_flattened_head_vector_is_refused() {
    let config = config(2, 6, 48);
    let mut list = names(&weights(&config, 1));
    for (name, shape) in &mut list {
        if name.ends_with("r_k") {
            *shape = vec![config.width];
        }
    }
    let line = read(&list).unwrap_err().to_string();
    assert!(line.contains("r_k has shape [288]; expected [heads, head size]"), "{line}");
}

#[test]
fn other_families_are_refused_by_name() {
    let base = config(2, 2, 16);
    let with = |name: &str| {
        let mut list = names(&weights(&base, 1));
        list.push((name.to_owned(), vec![4, 4]));
        list
    };
    let mut swapped = names(&weights(&base, 1));
    for (name, shape) in &mut swapped {
        if name.ends_with('1') || name.ends_with('2') {
            shape.reverse();
        }
    }
    let cases: Vec<(Names, Family, &str)> = vec![
        (with("blocks.0.ffn.s_emb.weight"), Family::Rwkv7a, "RWKV-7a (DeepEmbed)"),
        (with("blocks.1.qkv.w"), Family::Rwkv7b, "RWKV-7b"),
        (with("blocks.0.ffn.enn.weight"), Family::Rwkv8, "RWKV-8"),
        (with("blocks.0.rosa.emb"), Family::Rwkv8, "RWKV-8"),
        (swapped, Family::WebRwkv, "web-rwkv's spelling"),
        (
            of(&[
                ("model.layers.0.attn.w_lora.lora.0.weight", &[8, 32]),
                ("model.embeddings.weight", &[9, 32]),
            ]),
            Family::Fla,
            "flash-linear-attention",
        ),
        (
            of(&[("rwkv.embeddings.weight", &[9, 32]), ("rwkv.blocks.0.attention.time_decay", &[32])]),
            Family::HfRwkv,
            "Hugging Face",
        ),
        (of(&[("token_embd.weight", &[9, 32]), ("blk.0.time_mix_w1", &[8, 32])]), Family::Gguf, "GGUF"),
        (
            of(&[
                ("model.embed_tokens.weight", &[9, 32]),
                ("model.layers.0.self_attn.q_proj.weight", &[32, 32]),
            ]),
            Family::Transformer,
            "transformer",
        ),
        (of(&[("transformer.h.0.attn.c_attn.weight", &[32, 96])]), Family::Transformer, "transformer"),
        (of(&[("encoder.weight", &[3, 3])]), Family::Unknown, "not recognised"),
        (of(&[]), Family::Unknown, "not recognised"),
    ];
    for (list, expected, line) in cases {
        assert_eq!(family(&list), expected);
        let error = read(&list).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(line), "{error}; expected {line:?}");
    }
    assert_eq!(family(&names(&weights(&base, 1))), Family::Rwkv7);
}

#[test]
fn the_oracles_other_families_are_recognised() {
    for (file, expected) in [
        ("rwkv4-rand.safetensors", Family::Rwkv4),
        ("rwkv4-rand.pth", Family::Rwkv4),
        ("rwkvcpp-tiny-4v0-660K.safetensors", Family::Rwkv4),
        ("rwkv5p0-rand.safetensors", Family::Rwkv5_0),
        ("rwkv5p1-rand.safetensors", Family::Rwkv5_1),
        ("rwkv5p2-rand.safetensors", Family::Rwkv5_2),
        ("rwkv6-rand.safetensors", Family::Rwkv6),
        ("rwkvcpp-tiny-6v0-3m-q51-f16.safetensors", Family::Rwkv6),
        ("rwkv7a-tiny.safetensors", Family::Rwkv7a),
    ] {
        let Some(path) = oracle(&format!("models/{file}")) else { return };
        let checkpoint = Checkpoint::open(path).unwrap();
        let shapes = || checkpoint.tensors().iter().map(|t| (t.name.as_str(), t.shape.as_slice()));
        assert_eq!(Family::detect(shapes()).unwrap(), expected, "{file}");
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out.rwkv");
        let error = convert(&checkpoint, &out, ConvertOptions::new(Codec::F32)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(&expected.to_string()), "{file}: {error}");
        assert!(!out.exists());
    }
}
