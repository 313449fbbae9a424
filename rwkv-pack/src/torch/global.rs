//! The Python names that a tensor file may mention. They are looked up here and nowhere else: nothing is imported or run.

use crate::dtype::DType;

/// What a Python name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    /// `collections.OrderedDict`.
    OrderedDict,
    /// `torch._utils._rebuild_tensor` and its successors.
    RebuildTensor(Rebuild),
    /// `torch._utils._rebuild_parameter`.
    RebuildParameter,
    /// A storage class. `None`: raw bytes, the tensor has the element type.
    Storage(Option<DType>),
    /// An element type such as `torch.float16`.
    ElementType(DType),
}

/// The generations of the function that makes a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rebuild {
    /// Storage, offset, size, stride.
    V1,
    /// The same, then whether it requires a gradient, hooks, and perhaps metadata.
    V2,
    /// The same as V2 with the element type before the metadata.
    V3,
}

impl Global {
    /// The meaning of `module.name`, or `None` for all that no tensor file needs.
    pub fn of(module: &str, name: &str) -> Option<Self> {
        let global = match (module, name) {
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("torch._utils", "_rebuild_tensor") => Self::RebuildTensor(Rebuild::V1),
            ("torch._utils", "_rebuild_tensor_v2") => Self::RebuildTensor(Rebuild::V2),
            ("torch._utils", "_rebuild_tensor_v3") => Self::RebuildTensor(Rebuild::V3),
            ("torch._utils", "_rebuild_parameter") => Self::RebuildParameter,
            ("torch.storage" | "torch", "UntypedStorage") => Self::Storage(None),
            ("torch", _) => match name.strip_suffix("Storage") {
                Some(class) => Self::Storage(Some(storage(class)?)),
                None => Self::ElementType(element_type(name)?),
            },
            _ => return None,
        };
        Some(global)
    }
}

fn storage(class: &str) -> Option<DType> {
    Some(match class {
        "Float" => DType::F32,
        "Half" => DType::F16,
        "BFloat16" => DType::Bf16,
        "Double" => DType::F64,
        "Bool" => DType::Bool,
        "Byte" => DType::U8,
        "Char" => DType::I8,
        "Short" => DType::I16,
        "Int" => DType::I32,
        "Long" => DType::I64,
        "ComplexFloat" => DType::C64,
        _ => return None,
    })
}

fn element_type(name: &str) -> Option<DType> {
    Some(match name {
        "float32" => DType::F32,
        "float16" => DType::F16,
        "bfloat16" => DType::Bf16,
        "float64" => DType::F64,
        "float8_e4m3fn" => DType::F8E4M3,
        "float8_e5m2" => DType::F8E5M2,
        "bool" => DType::Bool,
        "uint8" => DType::U8,
        "int8" => DType::I8,
        "uint16" => DType::U16,
        "int16" => DType::I16,
        "uint32" => DType::U32,
        "int32" => DType::I32,
        "uint64" => DType::U64,
        "int64" => DType::I64,
        "complex64" => DType::C64,
        _ => return None,
    })
}
