//! Real files: what torch saved, against the same tensors in the safetensors format.

mod support;

use rwkv_pack::{Checkpoint, DType, FileFormat};
use support::oracle;

/// The values as bits of `f32`, exactly.
fn widened(dtype: DType, bytes: &[u8]) -> Vec<u32> {
    match dtype {
        DType::F32 => bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        DType::Bf16 => bytes.chunks_exact(2).map(|b| u32::from_le_bytes([0, 0, b[0], b[1]])).collect(),
        other => panic!("{other} in the oracle"),
    }
}

#[test]
fn torch_files_equal_their_safetensors_twins() {
    let Some(oracle) = oracle() else { return };
    let mut compared = 0;
    for entry in std::fs::read_dir(oracle.join("models")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "pth") {
            continue;
        }
        let torch = Checkpoint::open(&path).unwrap();
        let twin = Checkpoint::open(path.with_extension("safetensors")).unwrap();
        assert_eq!((torch.format(), twin.format()), (FileFormat::Torch, FileFormat::Safetensors));
        assert_eq!(torch.tensors().len(), twin.tensors().len(), "{}", path.display());
        let mut other = Vec::new();
        for tensor in torch.iter() {
            let (info, bytes) = tensor.unwrap();
            let index =
                twin.find(&info.name).unwrap_or_else(|| panic!("{}: no {}", path.display(), info.name));
            assert_eq!(twin.tensors()[index].shape, info.shape, "{}", info.name);
            twin.read(index, &mut other).unwrap();
            let expected = widened(twin.tensors()[index].dtype, &other);
            assert!(widened(info.dtype, &bytes) == expected, "{}: {}", path.display(), info.name);
            compared += 1;
        }
    }
    assert!(compared > 100, "only {compared} tensors compared");
}

#[test]
fn all_safetensors_files_are_read() {
    let Some(oracle) = oracle() else { return };
    for folder in ["models", "golden", "trained"] {
        for entry in std::fs::read_dir(oracle.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "safetensors") {
                continue;
            }
            let file = std::fs::read(&path).unwrap();
            let reference = safetensors::SafeTensors::deserialize(&file).unwrap();
            let checkpoint = Checkpoint::open(&path).unwrap();
            assert_eq!(checkpoint.tensors().len(), reference.len());
            for tensor in checkpoint.iter() {
                let (info, bytes) = tensor.unwrap();
                let expected = reference.tensor(&info.name).unwrap();
                assert_eq!((info.shape.as_slice(), bytes.as_slice()), (expected.shape(), expected.data()));
            }
        }
    }
}
