//! Choosing a token from logits.
//!
//! ```text
//! logits[t] += bias[t];  banned logits = -inf
//! logits[t] -= presence + count[t] * frequency      for every accepted token t
//! p = softmax(logits)
//! p[t] = 0 where p[t] < the probability at which the descending cumulative sum reaches top_p
//! p[t] = 0 where p[t] < the top_k-th largest
//! draw from p^(1 / temperature), renormalised
//! ```
//!
//! Both cuts keep what is equal to the last one kept, so both are one threshold on the logits, and
//! `p^(1 / temperature)` is the softmax of what is left of the logits, divided by the temperature. Only
//! a few tokens are ever sorted: `cut.rs` says which.
//!
//! Sources: RWKV's pipeline (`rwkv` 0.8.32), as it is meant: at top-p 1 its sum of rounded numbers may miss 1 and
//! cut everything but the likeliest token, and its top-k keeps an arbitrary choice of equally likely tokens.

mod cut;
mod params;

pub use params::SamplerParams;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use rwkv_kernels::{Isa, exp};

use crate::error::{ErrorKind, ModelError, Result, bail};
use crate::rng::Rng;
use cut::{Cuts, Cutter};
pub(crate) use cut::{largest, sum};

/// Chooses tokens, and remembers for the penalties which were accepted.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplerParams,
    vocab: usize,
    isa: Isa,
    seed: u64,
    rng: Rng,
    counts: BTreeMap<u32, f64>,
    uncounted: Vec<bool>,
    cutter: Cutter,
    scratch: Scratch,
}

/// Buffers of one choice.
#[derive(Debug, Clone, Default)]
struct Scratch {
    logits: Vec<f32>,
    weights: Vec<f32>,
    kept: Vec<u32>,
}

impl Sampler {
    /// A sampler for a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    /// A parameter is not finite or outside the range that its documentation states, or a token is not below `vocab`.
    pub fn new(params: SamplerParams, vocab: usize) -> Result<Sampler> {
        params.validate(vocab)?;
        // Small enough for those who read JSON numbers as f64.
        let random = || RandomState::new().build_hasher().finish() >> (64 - f64::MANTISSA_DIGITS);
        let seed = params.seed.unwrap_or_else(random);
        Ok(Sampler {
            params,
            vocab,
            isa: Isa::detect(),
            seed,
            rng: Rng::new(seed),
            counts: BTreeMap::new(),
            uncounted: Vec::new(),
            cutter: Cutter::default(),
            scratch: Scratch::default(),
        })
    }

    /// Names the tokens that the frequency penalty spares, see [`is_uncounted_text`]. The presence penalty holds
    /// for them like for any other.
    pub fn uncounted(mut self, is_uncounted: impl Fn(u32) -> bool) -> Sampler {
        self.uncounted = (0..self.vocab as u32).map(is_uncounted).collect();
        self
    }

    /// The parameters.
    pub fn params(&self) -> &SamplerParams {
        &self.params
    }

    /// Tokens of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Where the random numbers started.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Forgets the accepted tokens and starts the random numbers anew.
    pub fn reset(&mut self) {
        self.counts.clear();
        self.rng = Rng::new(self.seed);
    }

    /// Chooses a token. It counts for the penalties once it is [accepted](Sampler::accept).
    ///
    /// A greedy choice among equally likely tokens takes the lowest, and uses no random number; every other
    /// choice uses one.
    ///
    /// # Errors
    /// [`ErrorKind::Parameter`] if there is not one logit per token, [`ErrorKind::NonFinite`] if a logit is NaN or
    /// positive infinity, or all of them are banned or negative infinity.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        self.keep(logits)?;
        if self.params.is_greedy() {
            return Ok(self.scratch.kept[0]);
        }
        let total = sum(&self.scratch.weights);
        let mut left = self.rng.next_unit() * total;
        for (&token, &weight) in self.scratch.kept.iter().zip(&self.scratch.weights) {
            left -= f64::from(weight);
            if left < 0.0 {
                return Ok(token);
            }
        }
        // Rounding may leave a remainder past the last token: it belongs to the likeliest.
        let likeliest = self.scratch.weights.iter().position(|&w| w == 1.0).unwrap_or(0);
        Ok(self.scratch.kept[likeliest])
    }

    /// The probabilities from which [`sample`](Sampler::sample) would draw: tokens ascending, zeros left out.
    /// Equally likely tokens share also where the choice is greedy.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn distribution(&mut self, logits: &[f32]) -> Result<Vec<(u32, f64)>> {
        self.keep(logits)?;
        let total = sum(&self.scratch.weights);
        let drawn = self.scratch.kept.iter().zip(&self.scratch.weights);
        Ok(drawn.filter(|(_, w)| **w > 0.0).map(|(&token, &w)| (token, f64::from(w) / total)).collect())
    }

    /// Counts a token for the penalties: all counts decay, then this one's grows.
    ///
    /// # Panics
    /// The token is not in the vocabulary.
    pub fn accept(&mut self, token: u32) {
        assert!((token as usize) < self.vocab, "token {token} of a vocabulary of {}", self.vocab);
        let decay = f64::from(self.params.decay);
        self.counts.values_mut().for_each(|count| *count *= decay);
        let counted = !self.uncounted.get(token as usize).copied().unwrap_or(false);
        *self.counts.entry(token).or_insert(0.0) += f64::from(u8::from(counted));
    }

    /// Leaves in the scratch the tokens that the cuts keep, ascending, and their weights: the likeliest has 1.
    fn keep(&mut self, logits: &[f32]) -> Result<()> {
        let max = self.adjust(logits)?;
        let least = self.least_kept(max);
        let Scratch { logits, weights, kept, .. } = &mut self.scratch;
        kept.clear();
        weights.clear();
        let temperature = if self.params.temperature == 0.0 { 1.0 } else { self.params.temperature };
        for (token, &logit) in logits.iter().enumerate() {
            if logit >= least {
                kept.push(token as u32);
                weights.push((logit - max) / temperature);
            }
        }
        exp(self.isa, weights);
        Ok(())
    }

    /// Fills the scratch with the logits after bias, bans and penalties; returns the largest.
    fn adjust(&mut self, logits: &[f32]) -> Result<f32> {
        if logits.len() != self.vocab {
            bail!(Parameter, "{} logits for a vocabulary of {}", logits.len(), self.vocab);
        }
        let adjusted = &mut self.scratch.logits;
        adjusted.clear();
        adjusted.extend_from_slice(logits);
        for &(token, bias) in &self.params.logit_bias {
            adjusted[token as usize] += bias;
        }
        for (&token, &count) in &self.counts {
            let penalty = f64::from(self.params.presence) + count * f64::from(self.params.frequency);
            adjusted[token as usize] -= penalty as f32;
        }
        for &token in &self.params.banned {
            adjusted[token as usize] = f32::NEG_INFINITY;
        }
        let (max, has_nan) = largest(adjusted);
        if !max.is_finite() || has_nan {
            return Err(self.no_choice());
        }
        Ok(max)
    }

    fn no_choice(&self) -> ModelError {
        let strange = self.scratch.logits.iter().position(|&l| l.is_nan() || l == f32::INFINITY);
        let message = match strange {
            Some(token) => {
                format!("logit of token {token} is {}; expected a number", self.scratch.logits[token])
            }
            None => "every token is banned or has a logit of -inf; expected one to choose".into(),
        };
        ModelError::new(ErrorKind::NonFinite, message)
    }

    /// The smallest logit that both cuts keep.
    fn least_kept(&mut self, max: f32) -> f32 {
        if self.params.is_greedy() {
            return max;
        }
        let cuts = Cuts {
            share: (self.params.top_p < 1.0).then(|| f64::from(self.params.top_p)),
            count: Some(self.params.top_k).filter(|&k| k > 0 && k < self.vocab),
        };
        self.cutter.least_kept(self.isa, &self.scratch.logits, max, cuts)
    }
}

/// Whether a token of this text is spared by the frequency penalty: its text is a part of `" \t0123456789"`, such as
/// a blank or a digit, whose repetition says nothing.
///
/// Source: RWKV's pipeline (`rwkv` 0.8.32).
pub fn is_uncounted_text(text: &[u8]) -> bool {
    let spared: &[u8] = b" \t0123456789";
    text.is_empty() || spared.windows(text.len()).any(|part| part == text)
}
