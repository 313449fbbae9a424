use anyhow::Result;
use clap::Args;
use rwkv_model::{Model, Sampler, SamplerParams, is_uncounted_text};

use crate::exit::Stop;
use crate::vocabulary::Vocabulary;

/// How tokens are chosen.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Randomness of the choice among what top-p and top-k leave; 0 is greedy [default: 1]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,

    /// Keep the likeliest tokens up to this share of probability; 1 keeps all, 0 is greedy [default: run 0.85, chat 0.3, the demo model 0.5]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,

    /// Keep this many of the likeliest tokens; 0 keeps all [default: 0]
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    top_k: Option<usize>,

    /// Subtract from the logits of tokens that appeared [default: run 0.2, chat 0.5, the demo model 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,

    /// Subtract from the logits of tokens each time that they appeared [default: run 0.2, chat 0.5, the demo model 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,

    /// How fast appearances are forgotten: their counts are multiplied by this at every token [default: 0.996]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    penalty_decay: Option<f32>,

    /// Always the likeliest token, without penalties; the options above still override
    #[arg(long)]
    greedy: bool,

    /// Where the random numbers start: the same seed gives the same text [default: at random]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,

    /// Never choose this token; may be repeated (0 is the end of text)
    #[arg(long, value_name = "ID", allow_negative_numbers = true)]
    ban_token: Vec<u32>,

    /// Add to the logit of a token; may be repeated
    #[arg(long, value_name = "ID=BIAS", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
}

/// Refuses a stop string without text.
pub fn check_stops(stops: &[String]) -> Result<()> {
    match stops.iter().any(String::is_empty) {
        true => Err(Stop::usage("--stop is empty; expected a text")),
        false => Ok(()),
    }
}

impl SamplingArgs {
    /// Checks what can be checked before there is a model, which may have to be packed first.
    pub fn check(&self) -> Result<()> {
        Sampler::new(self.params(SamplerParams::default(), 0), usize::MAX)?;
        Ok(())
    }

    /// A sampler with these parameters where given, and those of `base` where not. Each `round` has its own random numbers.
    pub fn sampler(
        &self,
        base: SamplerParams,
        model: &Model,
        vocabulary: &Vocabulary,
        round: u64,
    ) -> Result<Sampler> {
        let sampler = Sampler::new(self.params(base, round), model.config().vocab)?;
        Ok(sampler.uncounted(|id| vocabulary.token_bytes(id).is_some_and(is_uncounted_text)))
    }

    fn params(&self, base: SamplerParams, round: u64) -> SamplerParams {
        let base = if self.greedy { SamplerParams::greedy() } else { base };
        SamplerParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_p: self.top_p.unwrap_or(base.top_p),
            top_k: self.top_k.unwrap_or(base.top_k),
            presence: self.presence_penalty.unwrap_or(base.presence),
            frequency: self.frequency_penalty.unwrap_or(base.frequency),
            decay: self.penalty_decay.unwrap_or(base.decay),
            seed: self.seed.map(|seed| seed.wrapping_add(round)),
            logit_bias: self.logit_bias.clone(),
            banned: self.ban_token.clone(),
        }
    }
}

/// Reads `ID=BIAS`.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let (id, bias) = text.split_once('=').ok_or("expected ID=BIAS, such as 261=-2.5")?;
    let id = id.trim().parse().map_err(|error| format!("token {id:?}: {error}"))?;
    let bias = bias.trim().parse().map_err(|error| format!("bias {bias:?}: {error}"))?;
    Ok((id, bias))
}
