//! The random numbers of the sampler, fixed for good: the same seed draws the same numbers in every version.
//!
//! The generator is xoshiro256++ (Blackman and Vigna, 2019); its four words are the first four outputs of
//! SplitMix64 started at the seed.

/// A xoshiro256++ generator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rng {
    words: [u64; 4],
}

impl Rng {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Rng {
        let mut state = seed;
        Rng { words: std::array::from_fn(|_| split_mix(&mut state)) }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.words;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let t = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= t;
        *d = d.rotate_left(45);
        result
    }

    /// The next number in [0, 1): the top 53 bits, so every value is exact.
    pub fn next_unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_mix_matches_its_published_sequence() {
        let mut state = 1_234_567;
        let drawn: Vec<u64> = (0..5).map(|_| split_mix(&mut state)).collect();
        let published: [u64; 5] = [
            6457827717110365317,
            3203168211198807973,
            9817491932198370423,
            4593380528125082431,
            16408922859458223821,
        ];
        assert_eq!(drawn, published);
    }

    #[test]
    fn xoshiro_matches_its_published_sequence() {
        let mut rng = Rng { words: [1, 2, 3, 4] };
        let drawn: Vec<u64> = (0..5).map(|_| rng.next_u64()).collect();
        let published: [u64; 5] =
            [41943041, 58720359, 3588806011781223, 3591011842654386, 9228616714210784205];
        assert_eq!(drawn, published);
    }

    #[test]
    fn units_stay_below_one() {
        let mut rng = Rng::new(0);
        let drawn: Vec<f64> = (0..10_000).map(|_| rng.next_unit()).collect();
        assert!(drawn.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        assert!((mean - 0.5).abs() < 0.02, "mean {mean}");
    }
}
