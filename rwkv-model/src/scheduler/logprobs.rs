use rwkv_kernels::{Isa, exp};

use crate::sampler::{largest, sum};

/// The logarithmic probabilities of a token and of the likeliest ones in its place.
///
/// They are the model's own: of the softmax of its logits, before bias, penalties, temperature and cuts.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub token: u32,
    /// Its logarithmic probability.
    pub logprob: f32,
    /// The likeliest tokens, the likeliest first; of equally likely ones the lowest first.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    /// Of a token, and of the `count` likeliest.
    pub(super) fn new(isa: Isa, logits: &[f32], token: u32, count: usize) -> TokenLogprobs {
        let (max, _) = largest(logits);
        let mut weights: Vec<f32> = logits.iter().map(|&logit| logit - max).collect();
        exp(isa, &mut weights);
        let log_total = sum(&weights).ln();
        let logprob = |token: u32| (f64::from(logits[token as usize] - max) - log_total) as f32;
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let count = count.min(order.len());
        let descending =
            |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if count < order.len() {
            order.select_nth_unstable_by(count, descending);
            order.truncate(count);
        }
        order.sort_unstable_by(descending);
        let top = order.into_iter().map(|token| (token, logprob(token))).collect();
        TokenLogprobs { token, logprob: logprob(token), top }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_logarithms_of_the_softmax() {
        let logits = [1.0f32, 3.0, 2.0, 3.0, f32::NEG_INFINITY];
        let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let expected = |token: usize| (f64::from(logits[token]).exp() / total).ln();
        for (count, order) in [
            (0, vec![]),
            (1, vec![1]),
            (3, vec![1, 3, 2]),
            (5, vec![1, 3, 2, 0, 4]),
            (9, vec![1, 3, 2, 0, 4]),
        ] {
            let found = TokenLogprobs::new(Isa::detect(), &logits, 2, count);
            assert!((f64::from(found.logprob) - expected(2)).abs() < 1e-6, "{found:?}");
            assert_eq!(found.top.iter().map(|&(token, _)| token as usize).collect::<Vec<_>>(), order);
            for &(token, logprob) in found.top.iter().filter(|(token, _)| *token < 4) {
                assert!((f64::from(logprob) - expected(token as usize)).abs() < 1e-6, "{found:?}");
            }
        }
    }
}
