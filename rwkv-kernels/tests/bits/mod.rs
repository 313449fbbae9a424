//! What the tests of equal bits share.
#![allow(dead_code, reason = "no test file uses everything")]

use rwkv_kernels::Isa;

/// A reproducible stream of numbers (xorshift).
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From `low` to `high`.
    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * ((self.bits() >> 40) as f32 / (1 << 24) as f32)
    }

    pub fn vector(&mut self, len: usize, low: f32, high: f32) -> Vec<f32> {
        (0..len).map(|_| self.uniform(low, high)).collect()
    }

    /// Values of every size, one in eight of them special.
    pub fn wild(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.wild_value()).collect()
    }

    fn wild_value(&mut self) -> f32 {
        const SPECIAL: [f32; 18] = [
            0.0,
            -0.0,
            1.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::MAX,
            f32::MIN,
            f32::MIN_POSITIVE,
            -f32::MIN_POSITIVE,
            1e-40,
            -1e-45,
            88.722_84,
            88.72,
            -87.336_54,
            -87.34,
            -103.0,
            12_582_912.0,
        ];
        match self.bits() % 8 {
            0 => SPECIAL[self.bits() as usize % SPECIAL.len()],
            1..=3 => self.uniform(-3.0, 3.0),
            4..=5 => self.uniform(-100.0, 100.0),
            _ => f32::from_bits(self.bits() as u32),
        }
    }
}

/// Runs an operation that writes to `output` on every instruction set and compares the bits with the
/// definition's. The output sits unaligned between guards, which must stay as they are.
///
/// Any NaN equals any other: which operand of an addition hands on its payload is not defined.
#[track_caller]
pub fn assert_equal_bits(case: &str, output: &[f32], operation: impl Fn(Isa, &mut [f32])) {
    const GUARD: u32 = 0x4bad_c0de;
    for offset in [16, 1, 19] {
        let run = |isa| {
            let mut buffer = vec![f32::from_bits(GUARD); output.len() + 64];
            let place = offset..offset + output.len();
            buffer[place.clone()].copy_from_slice(output);
            operation(isa, &mut buffer[place.clone()]);
            let result: Vec<f32> = buffer.drain(place).collect();
            assert!(buffer.iter().all(|x| x.to_bits() == GUARD), "{case}: {isa} wrote outside its output");
            result
        };
        let expected = run(Isa::scalar());
        for &isa in Isa::available() {
            for (i, (got, expected)) in run(isa).iter().zip(&expected).enumerate() {
                assert!(
                    got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()),
                    "{case}, {} elements at offset {offset}: {isa} gave {got:e} ({:08x}) at {i}, expected {expected:e} ({:08x})",
                    output.len(),
                    got.to_bits(),
                    expected.to_bits(),
                );
            }
        }
    }
}
