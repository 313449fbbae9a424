//! Checkpoints in the safetensors format.

mod support;

use rwkv_pack::{Checkpoint, DType, FileFormat};
use support::{numbers, small_safetensors};

#[test]
fn tensors_come_in_file_order_with_their_bytes() {
    let directory = tempfile::tempdir().unwrap();
    // The name says nothing.
    let path = directory.path().join("model.pth");
    std::fs::write(&path, small_safetensors()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.format(), FileFormat::Safetensors);
    let found: Vec<_> = checkpoint
        .iter()
        .map(|tensor| {
            let (info, bytes) = tensor.unwrap();
            (info.name.as_str(), info.dtype, info.shape.as_slice(), bytes)
        })
        .collect();
    let expected: [(&str, DType, &[usize], Vec<u8>); 3] = [
        ("emb.weight", DType::Bf16, &[5, 3], numbers(30)),
        ("head.weight", DType::F32, &[2, 4], numbers(32)),
        ("ln.bias", DType::F16, &[1, 1, 7], numbers(14)),
    ];
    assert_eq!(found, expected);
    assert_eq!(checkpoint.find("ln.bias"), Some(2));
    assert_eq!(checkpoint.find("ln"), None);
}
