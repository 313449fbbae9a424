//! The numbers, for scripts and for people.

use std::io;

use rwkv_model::{Config, Model};
use serde::Serialize;

use super::measure::{Measured, Plan};
use crate::model_file::main_codec;
use crate::output::Output;
use crate::statistics::{Counted, wait_share};

/// One number of threads' results. The names are part of what scripts rely on.
#[derive(Debug, Serialize)]
pub struct Report {
    model: String,
    codec: String,
    parameters: u64,
    isa: &'static str,
    threads: usize,
    repetitions: u32,
    decode_tokens_per_s: f64,
    /// Of every weight that a token goes over, skipped or not.
    decode_bytes_per_token: u64,
    decode_gb_per_s: f64,
    /// Tokens before the decode, and the keys and values that the cache held of them.
    context: usize,
    kv_bytes: u64,
    memory_gb_per_s: f64,
    decode_share_of_memory: f64,
    /// Of the inputs of the channel mix's value matrices.
    skipped_share: f64,
    /// Of the bytes per token.
    skipped_bytes_share: f64,
    prompt_tokens: usize,
    prefill_tokens_per_s: f64,
    prefill_gmac_per_s: f64,
    peak_int8_gmac_per_s: f64,
    peak_f32_gmac_per_s: f64,
    prefill_share_of_int8_peak: f64,
    /// `direct`, `buffered`, `mmap`.
    io: String,
    /// Of decoding, as are the next: 0 when all weights stay in memory.
    read_bytes_per_token: f64,
    read_gb_per_s: f64,
    /// Plain reads of the same file in the same mode; nothing when all weights stay in memory.
    disk_gb_per_s: Option<f64>,
    read_share_of_disk: Option<f64>,
    /// Leases of weights that had been read ahead, that were being read.
    read_ahead_ready: u64,
    read_ahead_late: u64,
    /// Of the time.
    wait_share: f64,
    pinned_bytes: u64,
    peak_rss_bytes: Option<u64>,
}

impl Report {
    /// The results of a model.
    pub fn new(name: &str, model: &Model, plan: &Plan, measured: &Measured) -> Report {
        let bytes = model.swept_bytes(true);
        let macs = prompt_macs(model.config(), plan.prompt_tokens) / plan.prompt_tokens as f64;
        let Counted { counters, read_bytes, tokens, time } = measured.reading;
        let read = measured.reading.read_rate();
        let stats = model.cache_stats();
        let billions = |number: f64| number / 1e9;
        Report {
            model: name.to_owned(),
            codec: main_codec(model.manifest()).unwrap_or("mixed").to_owned(),
            parameters: model.config().parameters(),
            isa: model.isa().name(),
            threads: model.threads(),
            repetitions: plan.repeat,
            decode_tokens_per_s: measured.decode.rate,
            decode_bytes_per_token: bytes,
            decode_gb_per_s: billions(measured.decode.rate * bytes as f64),
            context: plan.context,
            kv_bytes: measured.kv_bytes,
            memory_gb_per_s: billions(measured.decode.limit),
            decode_share_of_memory: measured.decode.ratio * bytes as f64,
            skipped_share: measured.skipped_inputs,
            skipped_bytes_share: measured.skipped_bytes,
            prompt_tokens: plan.prompt_tokens,
            prefill_tokens_per_s: measured.prefill.rate,
            prefill_gmac_per_s: billions(measured.prefill.rate * macs),
            peak_int8_gmac_per_s: billions(measured.prefill.limit),
            peak_f32_gmac_per_s: billions(measured.f32),
            prefill_share_of_int8_peak: measured.prefill.ratio * macs,
            io: stats.source.mode.to_string(),
            read_bytes_per_token: read_bytes as f64 / tokens.max(1) as f64,
            read_gb_per_s: billions(read),
            disk_gb_per_s: measured.disk.map(|disk| billions(disk.limit)),
            read_share_of_disk: measured.disk.map(|disk| disk.ratio),
            read_ahead_ready: counters.ready,
            read_ahead_late: counters.late,
            wait_share: wait_share(&counters, time),
            pinned_bytes: stats.pinned_bytes,
            peak_rss_bytes: measured.peak_rss_bytes,
        }
    }
}

/// Multiply-adds of all matrices for a prompt, zeros not left out, and no attention to the rows of a cache; the head is needed for the last token alone.
fn prompt_macs(config: &Config, tokens: usize) -> f64 {
    let Config { layers, width, ffn, vocab, rank_w, rank_a, rank_v, rank_g, attention, .. } = *config;
    let layers = layers - layers % attention.max(1);
    let large = (layers + attention) * (4 * width * width + 2 * width * ffn);
    // The first block has no value residual.
    let low_rank = layers * 2 * width * (rank_w + rank_a + rank_g) + (layers - 1) * 2 * width * rank_v;
    (tokens * (large + low_rank) + vocab * width) as f64
}

/// Prints a table with a column for each report.
pub fn print(reports: &[Report], output: &mut Output) -> io::Result<()> {
    let Some(first) = reports.first() else { return Ok(()) };
    output.line(format_args!(
        "{}, {:.1} million weights, codec {}, {}; medians of {}",
        first.model,
        first.parameters as f64 / 1e6,
        first.codec,
        first.isa,
        first.repetitions
    ))?;
    output.line("")?;
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let number = |number: f64| if number < 100.0 { format!("{number:.1}") } else { format!("{number:.0}") };
    let prompt = format!("prefill of {}", first.prompt_tokens);
    let megabytes = |report: &Report| number(report.decode_bytes_per_token as f64 / 1e6);
    type Cell<'a> = Box<dyn Fn(&Report) -> String + 'a>;
    let rows: [(&str, &str, Cell<'_>); 12] = [
        ("threads", "", Box::new(|r| r.threads.to_string())),
        ("decode", "tokens/s", Box::new(|r| number(r.decode_tokens_per_s))),
        ("", "MB/token", Box::new(megabytes)),
        ("", "GB/s", Box::new(|r| number(r.decode_gb_per_s))),
        ("", "of memory bandwidth", Box::new(|r| percent(r.decode_share_of_memory))),
        ("", "of bytes skipped", Box::new(|r| percent(r.skipped_bytes_share))),
        (&prompt, "tokens/s", Box::new(|r| number(r.prefill_tokens_per_s))),
        ("", "GMAC/s", Box::new(|r| number(r.prefill_gmac_per_s))),
        ("", "of int8 peak", Box::new(|r| percent(r.prefill_share_of_int8_peak))),
        ("machine", "memory GB/s", Box::new(|r| number(r.memory_gb_per_s))),
        ("", "int8 GMAC/s", Box::new(|r| number(r.peak_int8_gmac_per_s))),
        ("", "f32 GMAC/s", Box::new(|r| number(r.peak_f32_gmac_per_s))),
    ];
    let optional = |value: Option<f64>, show: fn(f64) -> String| value.map_or("-".to_owned(), show);
    let reading: [(&str, &str, Cell<'_>); 9] = [
        ("reading", "", Box::new(|r| r.io.clone())),
        ("", "MB/token", Box::new(|r| number(r.read_bytes_per_token / 1e6))),
        ("", "GB/s", Box::new(|r| format!("{:.2}", r.read_gb_per_s))),
        ("", "disk GB/s", Box::new(|r| optional(r.disk_gb_per_s, |disk| format!("{disk:.2}")))),
        (
            "",
            "of disk",
            Box::new(|r| optional(r.read_share_of_disk, |share| format!("{:.0} %", 100.0 * share))),
        ),
        ("", "ahead, late", Box::new(|r| format!("{}, {}", r.read_ahead_ready, r.read_ahead_late))),
        ("", "of time waited", Box::new(|r| percent(r.wait_share))),
        ("memory", "pinned MB", Box::new(|r| number(r.pinned_bytes as f64 / 1e6))),
        (
            "",
            "peak RSS MB",
            Box::new(|r| optional(r.peak_rss_bytes.map(|b| b as f64 / 1e6), |mb| format!("{mb:.0}"))),
        ),
    ];
    let attention: [(&str, &str, Cell<'_>); 2] = [
        ("context", "tokens", Box::new(|r| r.context.to_string())),
        ("", "MB of keys, values", Box::new(|r| number(r.kv_bytes as f64 / 1e6))),
    ];
    let has_context = reports.iter().any(|report| report.context > 0);
    let attention = attention.into_iter().filter(|_| has_context);
    let is_streamed = reports.iter().any(|report| report.disk_gb_per_s.is_some());
    let reading = reading.into_iter().filter(|_| is_streamed);
    for (group, unit, cell) in rows.into_iter().chain(attention).chain(reading) {
        let cells: String = reports.iter().map(|report| format!("{:>10}", cell(report))).collect();
        output.line(format_args!("{group:<15} {unit:<20} {cells}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiply_adds_are_the_weights_of_matrices() {
        for size in ["1.5b", "x-3.6b"] {
            let config = Config::official(size).unwrap();
            let per_token = prompt_macs(&config, 2) - prompt_macs(&config, 1);
            let head = prompt_macs(&config, 1) - per_token;
            assert_eq!(head, 65536.0 * config.width as f64);
            // All weights but embedding, head and vectors (less than a thousandth).
            let matrices = config.parameters() as f64 - 2.0 * head;
            assert!((per_token / matrices - 1.0).abs() < 1e-3, "{per_token} of {matrices}");
        }
    }
}
