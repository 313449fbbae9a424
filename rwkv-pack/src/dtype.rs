//! Element types of stored tensors.

use std::fmt;
use std::str::FromStr;

/// The element type of a tensor in a file. All multi-byte elements are little-endian.
///
/// [`Display`](fmt::Display) and [`FromStr`] use the names of the safetensors format: `F32`, `BF16`, `BOOL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of a single precision number.
    Bf16,
    /// IEEE 754 double precision.
    F64,
    /// Eight-bit float with four exponent bits, as named by the safetensors format.
    F8E4M3,
    /// Eight-bit float with five exponent bits, as named by the safetensors format.
    F8E5M2,
    /// One byte, zero or one.
    Bool,
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    I64,
    /// Two single precision numbers: real, imaginary.
    C64,
}

const NAMES: [(DType, &str, u8); 16] = [
    (DType::F32, "F32", 4),
    (DType::F16, "F16", 2),
    (DType::Bf16, "BF16", 2),
    (DType::F64, "F64", 8),
    (DType::F8E4M3, "F8_E4M3", 1),
    (DType::F8E5M2, "F8_E5M2", 1),
    (DType::Bool, "BOOL", 1),
    (DType::U8, "U8", 1),
    (DType::I8, "I8", 1),
    (DType::U16, "U16", 2),
    (DType::I16, "I16", 2),
    (DType::U32, "U32", 4),
    (DType::I32, "I32", 4),
    (DType::U64, "U64", 8),
    (DType::I64, "I64", 8),
    (DType::C64, "C64", 8),
];

impl DType {
    /// Bytes of one element.
    pub fn byte_len(self) -> usize {
        self.row().2.into()
    }

    /// The name that the safetensors format gives this type.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    fn row(self) -> &'static (DType, &'static str, u8) {
        // The table lists the variants in their order; a test holds it to that.
        &NAMES[self as usize]
    }

    /// Bytes of a tensor of `shape`, or `None` when that overflows.
    pub(crate) fn tensor_bytes(self, shape: &[usize]) -> Option<u64> {
        shape.iter().try_fold(self.byte_len() as u64, |bytes, &dim| bytes.checked_mul(dim as u64))
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no [`DType`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownDType(String);

impl fmt::Display for UnknownDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown element type {}", crate::error::shown(&self.0))
    }
}

impl std::error::Error for UnknownDType {}

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(name: &str) -> Result<Self, UnknownDType> {
        let known = NAMES.iter().find(|row| row.1 == name);
        known.map(|row| row.0).ok_or_else(|| UnknownDType(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_its_own_variant() {
        for (index, &(dtype, name, bytes)) in NAMES.iter().enumerate() {
            assert_eq!(dtype as usize, index, "{name}");
            assert_eq!((dtype.name(), dtype.byte_len()), (name, bytes.into()));
            assert_eq!(name.parse(), Ok(dtype));
        }
        assert!("f32".parse::<DType>().is_err());
    }

    #[test]
    fn sizes_that_overflow_are_none() {
        assert_eq!(DType::F32.tensor_bytes(&[3, 5]), Some(60));
        assert_eq!(DType::F32.tensor_bytes(&[]), Some(4));
        assert_eq!(DType::U8.tensor_bytes(&[usize::MAX, 2]), None);
    }
}
