//! Safetensors headers that contradict themselves, their format or their file.

use rwkv_pack::PackErrorKind::{Malformed, Truncated, Unsupported, WrongFormat};

use crate::support::{numbers, with_header};
use crate::{Case, run};

#[test]
fn safetensors_headers() {
    let file = |header: &str, len: usize| with_header(header, &numbers(len));
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        format!("{{\"w\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}}}")
    };
    let two = |first: &str, second: &str| {
        format!(
            "{{\"v\":{{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":{first}}},\
             \"w\":{{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":{second}}}}}"
        )
    };
    let nested = format!("{{\"w\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let long_shape = entry("U8", &format!("[{}1]", "1,".repeat(100_000)), "[0,1]");
    let mut huge = with_header("{}", &[]);
    huge[..8].copy_from_slice(&99_999_999u64.to_le_bytes());
    let mut too_huge = huge.clone();
    too_huge[..8].copy_from_slice(&(1u64 << 40).to_le_bytes());
    let twice = "{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\
                 \"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}";
    let cases: Vec<Case> = vec![
        ("short data", file(&entry("F32", "[2]", "[0,8]"), 7), Truncated, "its tensors end at"),
        (
            "trailing bytes",
            file(&entry("F32", "[2]", "[0,8]"), 9),
            Malformed,
            "has 1 bytes after the last tensor",
        ),
        (
            "inverted",
            file(&entry("F32", "[2]", "[8,0]"), 8),
            Malformed,
            "tensor w: data offsets 8..0 are inverted",
        ),
        (
            "shape",
            file(&entry("F32", "[3]", "[0,8]"), 8),
            Malformed,
            "tensor w: shape [3] of F32 takes 12 bytes",
        ),
        (
            "small shape",
            file(&entry("F32", "[1]", "[0,8]"), 8),
            Malformed,
            "takes 4 bytes, its data offsets span 8",
        ),
        ("dtype", file(&entry("Q4_0", "[8]", "[0,8]"), 8), Unsupported, "tensor w: has element type Q4_0"),
        (
            "overflow",
            file(&entry("F32", "[4294967296,4294967296]", "[0,8]"), 8),
            Malformed,
            "overflows 64 bits",
        ),
        (
            "far",
            file(&entry("U8", "[18446744073709551615]", "[0,18446744073709551615]"), 8),
            Malformed,
            "overflow",
        ),
        ("negative", file(&entry("U8", "[-1]", "[0,1]"), 8), Malformed, "entry w: invalid value"),
        ("fraction", file(&entry("U8", "[1.5]", "[0,1]"), 8), Malformed, "entry w: invalid type"),
        ("one offset", file(&entry("U8", "[1]", "[0]"), 1), Malformed, "entry w: invalid length 1"),
        ("many dimensions", file(&long_shape, 1), Malformed, "at most 16 dimensions"),
        (
            "hole before",
            file(&entry("U8", "[4]", "[4,8]"), 8),
            Malformed,
            "data offset 4 leaves a hole before it",
        ),
        ("hole between", file(&two("[0,4]", "[5,9]"), 9), Malformed, "tensor w: data offset 5 leaves a hole"),
        ("overlap", file(&two("[0,4]", "[3,7]"), 7), Malformed, "tensor w: data offset 3 overlaps"),
        ("same place", file(&two("[0,4]", "[0,4]"), 4), Malformed, "overlaps the tensor before it"),
        ("two of a name", file(twice, 8), Malformed, "the name w occurs twice"),
        ("two metadata", file("{\"__metadata__\":{},\"__metadata__\":{}}", 0), Malformed, "occurs twice"),
        (
            "two keys",
            file("{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", 0),
            Malformed,
            "the key a occurs twice",
        ),
        ("metadata", file("{\"__metadata__\":{\"a\":1}}", 0), Malformed, "entry __metadata__: invalid type"),
        ("missing field", file("{\"w\":{\"dtype\":\"U8\"}}", 0), Malformed, "entry w: missing field `shape`"),
        ("no object", file("{\"w\":7}", 0), Malformed, "entry w: invalid type"),
        ("no tensors", file("{}", 0), Malformed, "holds no tensors"),
        ("no JSON", file("{\"w\"", 0), Malformed, "is not a safetensors header"),
        ("two values", file("{} {}", 0), Malformed, "is not a safetensors header"),
        ("control characters", file("{\"a\\nb\":7}", 0), Malformed, "entry a\\nb: invalid type"),
        ("nested", file(&nested, 0), Malformed, "is not a safetensors header"),
        (
            "not UTF-8",
            with_header("{\"\u{1}", b"").into_iter().map(|b| if b == 1 { 0xff } else { b }).collect(),
            Malformed,
            "is not UTF-8",
        ),
        ("huge header", huge, Truncated, "its header ends at 100000007, the file has 10 bytes"),
        ("too huge header", too_huge, WrongFormat, "is no model of a known format"),
    ];
    run(&["checkpoint"], cases);
}
