//! The facts as a person reads them.

use std::io;

use indicatif::HumanBytes;
use rwkv_model::Config;
use rwkv_model::kernels::KvFormat;

use super::{CheckpointFacts, Facts, PackFacts};
use crate::output::Output;

/// Prints the facts, and all tensors if they are asked for.
pub fn print(facts: &Facts, tensors: bool, output: &mut Output) -> io::Result<()> {
    match facts {
        Facts::Pack(facts) => pack(facts, tensors, output),
        Facts::Safetensors(facts) => checkpoint("safetensors checkpoint", facts, tensors, output),
        Facts::Torch(facts) => checkpoint("PyTorch checkpoint", facts, tensors, output),
    }
}

fn pack(facts: &PackFacts, tensors: bool, output: &mut Output) -> io::Result<()> {
    let manifest = &facts.manifest;
    field(output, "file", &facts.file)?;
    field(
        output,
        "format",
        format_args!("pack, version {}, {}", manifest.version, HumanBytes(facts.file_bytes)),
    )?;
    match Config::from_manifest(manifest) {
        Ok(config) => sizes(&config, facts.parameters.unwrap_or(0), output)?,
        Err(error) => field(output, "model", format_args!("not one that this program runs: {error}"))?,
    }
    field(output, "tokenizer", manifest.tokenizer.as_deref().map_or("not named".into(), shown))?;
    let source = &manifest.source;
    field(
        output,
        "made from",
        format_args!("{}, {}, xxh3 {}", shown(&source.file_name), HumanBytes(source.len), source.xxh3),
    )?;
    let codecs: Vec<String> = facts
        .codecs
        .iter()
        .map(|(codec, share)| {
            format!("{} {} in {} tensors", shown(codec), HumanBytes(share.bytes), share.tensors)
        })
        .collect();
    field(output, "codecs", codecs.join(", "))?;
    field(output, "a token reads", HumanBytes(facts.swept_bytes))?;
    if let Some(bytes) = facts.state_bytes {
        field(output, "a state takes", HumanBytes(bytes))?;
    }
    output.line("")?;
    output
        .line(format_args!("{:<18} {:>12} {:>12} {:>8}  checksum", "group", "offset", "size", "tensors"))?;
    for group in &manifest.groups {
        let size = HumanBytes(group.len).to_string();
        output.line(format_args!(
            "{:<18} {:>12} {size:>12} {:>8}  {}",
            shown(&group.name),
            group.offset,
            group.tensors.len(),
            group.checksum
        ))?;
        for tensor in group.tensors.iter().filter(|_| tensors) {
            output.line(format_args!(
                "  {} {} {} {:?}, {}",
                shown(&tensor.name),
                shown(&tensor.codec),
                shown(&tensor.layout),
                tensor.shape,
                HumanBytes(tensor.len)
            ))?;
        }
    }
    Ok(())
}

fn checkpoint(format: &str, facts: &CheckpointFacts, tensors: bool, output: &mut Output) -> io::Result<()> {
    field(output, "file", &facts.file)?;
    field(output, "format", format_args!("{format}, {}", HumanBytes(facts.file_bytes)))?;
    field(output, "family", &facts.family)?;
    match (&facts.model, &facts.problem) {
        (Some(config), _) => sizes(config, config.parameters(), output)?,
        (None, problem) => {
            field(output, "runs here", format_args!("no: {}", problem.as_deref().unwrap_or("unknown")))?;
            field(output, "weights", millions(facts.parameters))?;
        }
    }
    let mut types: Vec<(&str, u64)> = Vec::new();
    for tensor in &facts.tensors {
        match types.iter_mut().find(|(dtype, _)| *dtype == tensor.dtype) {
            Some((_, count)) => *count += 1,
            None => types.push((&tensor.dtype, 1)),
        }
    }
    let types: Vec<String> = types.iter().map(|(dtype, count)| format!("{count} of {dtype}")).collect();
    field(output, "tensors", format_args!("{} ({})", facts.tensors.len(), types.join(", ")))?;
    for (key, value) in &facts.metadata {
        field(output, &shown(key), shown(value))?;
    }
    if tensors {
        output.line("")?;
        for tensor in &facts.tensors {
            output.line(format_args!("{} {} {:?}", shown(&tensor.name), tensor.dtype, tensor.shape))?;
        }
    }
    Ok(())
}

fn sizes(config: &Config, parameters: u64, output: &mut Output) -> io::Result<()> {
    field(output, "model", format_args!("{}, {}", config.family(), millions(parameters)))?;
    field(
        output,
        "blocks",
        format_args!(
            "{} of width {} ({} heads of {}), ffn {}",
            config.layers, config.width, config.heads, config.head_size, config.ffn
        ),
    )?;
    if config.attention > 0 {
        let run = config.active_layers();
        let idle = match config.layers - run {
            0 => String::new(),
            idle => format!("; the last {idle} of those not run"),
        };
        let (blocks, each) = (config.attention, run / config.attention);
        let after = format_args!("{blocks} blocks, one after every {each} of the others{idle}");
        field(output, "attention", after)?;
        let bytes = [KvFormat::F16, KvFormat::F32].map(|format| HumanBytes(config.kv_row_bytes(format)));
        field(output, "a token adds", format_args!("{} to the cache, {} with --kv f32", bytes[0], bytes[1]))?;
    }
    field(
        output,
        "low ranks",
        format_args!("w {}, a {}, v {}, g {}", config.rank_w, config.rank_a, config.rank_v, config.rank_g),
    )?;
    field(output, "vocabulary", config.vocab)
}

fn field(output: &mut Output, name: &str, value: impl std::fmt::Display) -> io::Result<()> {
    output.line(format_args!("{name:<14} {value}"))
}

fn millions(parameters: u64) -> String {
    match parameters {
        0..100_000 => format!("{parameters} weights"),
        100_000..1_000_000_000 => format!("{:.1} million weights", parameters as f64 / 1e6),
        _ => format!("{:.2} billion weights", parameters as f64 / 1e9),
    }
}

/// Text from a file on one line of reasonable length, without control characters.
fn shown(text: &str) -> String {
    const LONGEST: usize = 120;
    let mut shown: String =
        text.chars().take(LONGEST).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}
