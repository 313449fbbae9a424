use crate::error::{Result, bail};

/// How tokens are chosen from logits.
///
/// The cuts come first and the temperature last, as in RWKV's own pipeline: probabilities are the softmax of the
/// logits, the cuts drop tokens by those, and what is left is raised to the power `1 / temperature` and drawn from.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerParams {
    /// Exponent `1 / temperature` on the probabilities that the cuts leave; 1 changes nothing, large values make them
    /// equal, small values favour the likeliest. 0 is greedy: always the likeliest token, whatever else is set.
    pub temperature: f32,
    /// Keeps the likeliest tokens until their probabilities add up to this; equally likely ones stay together.
    /// 1 and above cut nothing; 0 is greedy.
    pub top_p: f32,
    /// Keeps this many of the likeliest tokens; as likely ones as the last stay too. 0, and the
    /// vocabulary's size and above, cut nothing; 1 is greedy.
    pub top_k: usize,
    /// Subtracted from the logit of every token that was accepted before. 0 is off; negative values favour them.
    pub presence: f32,
    /// Subtracted from the logit of a token per time that it was accepted before.
    pub frequency: f32,
    /// The counts of accepted tokens are multiplied by this at every further one: 1 keeps them, 0 forgets them.
    pub decay: f32,
    /// Where the random numbers start. The same seed, parameters and logits give the same tokens. Without one, the
    /// system's randomness gives it: see [`Sampler::seed`](crate::Sampler::seed).
    pub seed: Option<u64>,
    /// Added to the logits of tokens, before all else. A token may appear several times.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens that are never chosen.
    pub banned: Vec<u32>,
}

impl Default for SamplerParams {
    /// The defaults of RWKV's pipeline: temperature 1, top-p 0.85, no top-k, penalties of 0.2 decaying by 0.996.
    fn default() -> SamplerParams {
        SamplerParams {
            temperature: 1.0,
            top_p: 0.85,
            top_k: 0,
            presence: 0.2,
            frequency: 0.2,
            decay: 0.996,
            seed: None,
            logit_bias: Vec::new(),
            banned: Vec::new(),
        }
    }
}

impl SamplerParams {
    /// What the official chat demonstration of the G1 models uses: top-p 0.3, penalties of 0.5.
    pub fn chat() -> SamplerParams {
        SamplerParams { top_p: 0.3, presence: 0.5, frequency: 0.5, ..SamplerParams::default() }
    }

    /// Always the likeliest token, without penalties.
    pub fn greedy() -> SamplerParams {
        SamplerParams { temperature: 0.0, presence: 0.0, frequency: 0.0, ..SamplerParams::default() }
    }

    /// Whether the choice is the likeliest token.
    pub(crate) fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_p == 0.0 || self.top_k == 1
    }

    pub(crate) fn validate(&self, vocab: usize) -> Result<()> {
        let numbers = [
            ("temperature", self.temperature, 0.0..=f32::MAX),
            ("top_p", self.top_p, 0.0..=f32::MAX),
            ("presence penalty", self.presence, f32::MIN..=f32::MAX),
            ("frequency penalty", self.frequency, f32::MIN..=f32::MAX),
            ("penalty decay", self.decay, 0.0..=1.0),
        ];
        for (what, value, range) in numbers {
            if !range.contains(&value) {
                let expected = match (*range.start(), *range.end()) {
                    (0.0, 1.0) => "0 to 1",
                    (0.0, _) => "a finite number of at least 0",
                    _ => "a finite number",
                };
                bail!(Parameter, "{what} is {value}; expected {expected}");
            }
        }
        let inside = |token: u32| (token as usize) < vocab;
        for &(token, bias) in &self.logit_bias {
            if !inside(token) {
                bail!(Parameter, "logit bias for token {token}; expected tokens below {vocab}");
            }
            if !bias.is_finite() {
                bail!(Parameter, "logit bias of token {token} is {bias}; expected a finite number");
            }
        }
        if let Some(token) = self.banned.iter().find(|&&token| !inside(token)) {
            bail!(Parameter, "banned token {token}; expected tokens below {vocab}");
        }
        Ok(())
    }
}
