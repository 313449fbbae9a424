//! What `rwkv perplexity` prints.

use std::io;
use std::path::Path;

use rwkv_model::Model;
use serde::Serialize;

use super::score::{Fit, Positions};
use super::{PerplexityArgs, Scorer};
use crate::model_file::{DEMO, main_codec};
use crate::output::Output;

/// What `--json` prints.
#[derive(Debug, Serialize)]
pub struct Report {
    model: String,
    /// Of most weights.
    codec: String,
    tokens: u64,
    bytes: u64,
    bits_per_byte: f64,
    perplexity: f64,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<Against>,
}

/// The model held against a reference. Divergences are in nats per token.
#[derive(Debug, Serialize)]
struct Against {
    model: String,
    codec: String,
    bits_per_byte: f64,
    perplexity: f64,
    kl_mean: f64,
    kl_p99: f64,
    kl_max: f64,
    /// The share of tokens for which both have the same likeliest one.
    same_top1: f64,
    kl_by_position: Vec<AtPositions>,
}

#[derive(Debug, Serialize)]
struct AtPositions {
    first: u64,
    last: u64,
    tokens: u64,
    kl_mean: f64,
}

impl Report {
    /// What was found.
    pub fn new(args: &PerplexityArgs, scorer: &Scorer<'_>) -> Report {
        let Fit { tokens, bytes, .. } = scorer.fit;
        let named = args.model.model.as_deref().unwrap_or(Path::new(DEMO));
        let (model, codec) = names(named, &scorer.model);
        let against = match (&args.against, &scorer.reference, &scorer.distance) {
            (Some(path), Some(reference), Some(distance)) => {
                let (model, codec) = names(path, reference);
                let ranges = distance.positions().iter().enumerate().filter(|(_, range)| range.tokens > 0);
                let at = |(index, range): (usize, &Positions)| {
                    let (first, last) = Positions::bounds(index);
                    AtPositions { first, last, tokens: range.tokens, kl_mean: range.mean() }
                };
                Some(Against {
                    model,
                    codec,
                    bits_per_byte: distance.reference.bits_per_byte(),
                    perplexity: distance.reference.perplexity(),
                    kl_mean: distance.mean(),
                    kl_p99: distance.quantile(0.99),
                    kl_max: distance.largest(),
                    same_top1: distance.same_top(),
                    kl_by_position: ranges.map(at).collect(),
                })
            }
            _ => None,
        };
        Report {
            model,
            codec,
            tokens,
            bytes,
            bits_per_byte: scorer.fit.bits_per_byte(),
            perplexity: scorer.fit.perplexity(),
            seconds: scorer.begin.elapsed().as_secs_f64(),
            against,
        }
    }

    /// Prints it for a person.
    pub fn print(&self, output: &mut Output) -> io::Result<()> {
        let mut line = |what: &str, text: String| output.line(format_args!("{what:<16} {text}"));
        line("model", format!("{}, {}", self.model, self.codec))?;
        line("text", format!("{} tokens, {} bytes", self.tokens, self.bytes))?;
        line("bits per byte", format!("{:.5}", self.bits_per_byte))?;
        line("perplexity", format!("{:.4} per token", self.perplexity))?;
        let Some(against) = &self.against else { return Ok(()) };
        line("against", format!("{}, {}", against.model, against.codec))?;
        let change = self.bits_per_byte - against.bits_per_byte;
        line("  bits per byte", format!("{:.5}, so the model has {change:+.5}", against.bits_per_byte))?;
        line("  perplexity", format!("{:.4} per token", against.perplexity))?;
        let Against { kl_mean, kl_p99, kl_max, .. } = against;
        line(
            "  divergence",
            format!("mean {kl_mean:.6}, 99th percentile {kl_p99:.5}, largest {kl_max:.4} nats"),
        )?;
        line("  same top 1", format!("{:.2} %", 100.0 * against.same_top1))?;
        output.line("")?;
        output.line(format_args!("{:>17} {:>9} {:>16}", "position", "tokens", "mean divergence"))?;
        for at in &against.kl_by_position {
            let range = format!("{} to {}", at.first, at.last);
            output.line(format_args!("{range:>17} {:>9} {:>16.6}", at.tokens, at.kl_mean))?;
        }
        Ok(())
    }
}

fn names(path: &Path, model: &Model) -> (String, String) {
    let codec = main_codec(model.manifest()).unwrap_or_default().to_owned();
    (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), codec)
}
