use std::fmt;
use std::str::FromStr;

/// Rows of a tile: a SIMD lane is a row.
pub const TILE_ROWS: usize = 16;
/// Inputs that share one activation scale, and one weight scale in the `u8` codec.
pub const GROUP: usize = 64;
/// Weights that share a scale in the `u4` codec: half a [`GROUP`].
pub const GROUP_U4: usize = 32;
/// The widest matrix: integer sums of a whole row must fit 32 bits (`i8` has one group per row).
pub const MAX_COLS: usize = 65_536;

/// How a matrix's weights are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Codec {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// Bytes 0..=255 with an f16 scale and minimum per group of 64: `w = min + scale * q`.
    U8,
    /// Bytes -127..=127 with one f32 scale per row: `w = scale * q`. Row tiles only.
    I8,
    /// Nibbles 0..=15 with an f16 scale and minimum per group of 32: `w = min + scale * q`.
    U4,
}

/// What a codec multiplies with: the forms of an input row that [`Activations`](crate::Activations) prepares.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Forms {
    pub(crate) dense: bool,
    pub(crate) groups: bool,
    pub(crate) row: bool,
}

impl Forms {
    /// The forms of both.
    pub fn union(self, other: Forms) -> Forms {
        Forms {
            dense: self.dense | other.dense,
            groups: self.groups | other.groups,
            row: self.row | other.row,
        }
    }

    /// Whether the values of a row are kept: the scale of a whole row is only known at its end.
    pub(crate) fn keeps_values(self) -> bool {
        self.dense || self.row
    }
}

impl Codec {
    /// Every codec.
    pub const ALL: [Codec; 6] = [Codec::F32, Codec::F16, Codec::Bf16, Codec::U8, Codec::I8, Codec::U4];

    /// The codec's name in packs and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Codec::F32 => "f32",
            Codec::F16 => "f16",
            Codec::Bf16 => "bf16",
            Codec::U8 => "u8",
            Codec::I8 => "i8",
            Codec::U4 => "u4",
        }
    }

    /// The form of activations that row tiles of this codec are multiplied with.
    pub fn forms(self) -> Forms {
        match self {
            Codec::F32 | Codec::F16 | Codec::Bf16 => Forms { dense: true, ..Forms::default() },
            Codec::U8 | Codec::U4 => Forms { groups: true, ..Forms::default() },
            Codec::I8 => Forms { row: true, ..Forms::default() },
        }
    }

    /// Bytes of one weight where the codec stores plain floats.
    pub(crate) fn float_bytes(self) -> Option<usize> {
        match self {
            Codec::F32 => Some(4),
            Codec::F16 | Codec::Bf16 => Some(2),
            Codec::U8 | Codec::I8 | Codec::U4 => None,
        }
    }

    /// The safetensors name of the stored element.
    pub(crate) fn stored_dtype(self) -> &'static str {
        match self {
            Codec::F32 => "F32",
            Codec::F16 => "F16",
            Codec::Bf16 => "BF16",
            Codec::U8 | Codec::I8 | Codec::U4 => "U8",
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A codec's name that is none of [`Codec::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown codec {0:?} (known: f32, f16, bf16, u8, i8, u4)")]
pub struct UnknownCodec(String);

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Codec, UnknownCodec> {
        Codec::ALL.into_iter().find(|codec| codec.name() == name).ok_or_else(|| UnknownCodec(name.to_owned()))
    }
}

/// The element type of source weights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DType {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
}

/// Appends the little-endian elements of `bytes` to `out` as f32. Exact for every type, NaN payloads included.
///
/// # Panics
/// `bytes` is not a whole number of elements.
pub fn widen(dtype: DType, bytes: &[u8], out: &mut Vec<f32>) {
    let size = if dtype == DType::F32 { 4 } else { 2 };
    assert_eq!(bytes.len() % size, 0, "{} bytes are no whole number of {size}-byte elements", bytes.len());
    let half_of = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    match dtype {
        DType::F32 => {
            out.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        }
        DType::F16 => out.extend(bytes.chunks_exact(2).map(|b| half::f16::from_bits(half_of(b)).to_f32())),
        DType::Bf16 => {
            out.extend(bytes.chunks_exact(2).map(|b| f32::from_bits(u32::from(half_of(b)) << 16)));
        }
    }
}

/// A matrix that cannot be laid out, or bytes that are not of the size that its layout has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The shape is empty, or too large for the codec or for memory.
    #[error(
        "a matrix of {rows} x {cols} cannot be stored as {codec} (1..={MAX_COLS} columns, at least one row)"
    )]
    Shape {
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
        /// The codec that was asked for.
        codec: Codec,
    },
    /// The codec has no such layout.
    #[error("codec {codec} has no column layout")]
    NoColumns {
        /// The codec that was asked for.
        codec: Codec,
    },
    /// The bytes have another length.
    #[error("{found} bytes for a {codec} matrix of {rows} x {cols}, which takes {expected}")]
    Length {
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
        /// The codec that was asked for.
        codec: Codec,
        /// Bytes that were given.
        found: usize,
        /// Bytes that the layout takes.
        expected: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codec_names_round_trip() {
        for codec in Codec::ALL {
            assert_eq!(codec.name().parse(), Ok(codec));
        }
        assert!("q4_0".parse::<Codec>().is_err());
    }

    #[test]
    fn bf16_widens_exactly() {
        let cases = [(1e38f32, 0x7e96u16), (1e-40, 0x0001), (-0.0, 0x8000), (f32::NAN, 0x7fc1)];
        for (value, bits) in cases {
            let mut out = Vec::new();
            widen(DType::Bf16, &bits.to_le_bytes(), &mut out);
            assert_eq!(out[0].to_bits(), u32::from(bits) << 16, "near {value}");
        }
    }
}
