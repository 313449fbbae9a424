//! The report as a person reads it.

use std::io;

use indicatif::BinaryBytes;

use super::Report;
use super::forecast::Forecast;
use crate::output::Output;
use crate::prediction::ZEROS;

/// Prints the machine, and a table of models.
pub fn report(report: &Report, output: &mut Output) -> io::Result<()> {
    let facts = &report.facts;
    let mut line = |what: &str, text: String| output.line(format_args!("{what:<12} {text}"));
    let bytes =
        |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |bytes| BinaryBytes(bytes).to_string());
    line("rwkv", format!("{}, {} on {}", report.version, facts.system, facts.architecture))?;
    let name = facts.processor.as_deref().unwrap_or("unknown");
    line(
        "processor",
        format!(
            "{name}, {} usable, {} of last-level cache",
            facts.processors,
            bytes(facts.last_level_cache_bytes)
        ),
    )?;
    let features = if facts.features.is_empty() { "none".to_owned() } else { facts.features.join(" ") };
    line("kernels", format!("{} (of {features}), threads: {}", report.isa, report.threads))?;
    let limit = facts.limit_bytes.map_or("no limit by a control group".to_owned(), |limit| {
        format!("limited to {} by a control group", BinaryBytes(limit))
    });
    line(
        "memory",
        format!("{}, {} available, {limit}", bytes(facts.memory_bytes), bytes(facts.available_bytes)),
    )?;
    line("  reads", format!("{:.1} GB/s", report.memory_gb_per_s))?;
    for (codec, speed) in &report.kernel_gb_per_s {
        line(&format!("  {codec}"), format!("{speed:.1} GB/s of weights multiplied"))?;
    }
    line(
        "disk",
        format!("{:.2} GB/s, {} ({}), at {}", report.disk_gb_per_s, report.io, report.io_reason, report.disk),
    )?;
    output.line("")?;
    output.line(format_args!(
        "predicted tokens per second, {:.0} % of the channel mix's activations zero; in memory, but * streamed, - too large",
        100.0 * ZEROS
    ))?;
    let models = models(&report.models);
    if let Some((_, first)) = models.first() {
        let codecs: String = first.iter().map(|forecast| format!("{:>21}", forecast.codec)).collect();
        output.line(format_args!("{:<8} {:>10}{codecs}", "model", "weights"))?;
    }
    for (name, forecasts) in models {
        let weights = forecasts.first().map_or(0, |forecast| forecast.parameters);
        let cells: String = forecasts.iter().map(|forecast| format!("{:>21}", cell(forecast))).collect();
        output.line(format_args!("{name:<8} {:>8.0} M{cells}", weights as f64 / 1e6))?;
    }
    Ok(())
}

/// Forecasts by model, which follow one another.
fn models(forecasts: &[Forecast]) -> Vec<(&str, &[Forecast])> {
    forecasts.chunk_by(|a, b| a.model == b.model).map(|models| (models[0].model, models)).collect()
}

/// The size of the pack and the speed.
fn cell(forecast: &Forecast) -> String {
    let size = format!("{:.1} GB", forecast.bytes as f64 / 1e9);
    let mark = if forecast.streams { "*" } else { " " };
    let speed = forecast.prediction.map_or("-".to_owned(), |prediction| short(prediction.tokens_per_s));
    format!("{size:>9} {speed:>8} {mark}")
}

/// A number with two digits that matter, or all before the point.
fn short(number: f64) -> String {
    let decimals = if number < 1.0 { 2 } else { usize::from(number < 10.0) };
    format!("{number:.decimals$}")
}
