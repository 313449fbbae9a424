//! Writes `.pth` files as torch does, and wrong ones.

use super::zip::{Member, member, zip};

/// Writes the instructions of a pickle.
pub struct Pickler {
    pub protocol: u8,
    pub out: Vec<u8>,
    memo: u32,
}

impl Pickler {
    pub fn new(protocol: u8) -> Self {
        let mut out = vec![0x80, protocol];
        if protocol >= 4 {
            // A frame. Its length is a hint that readers of whole pickles do not need.
            out.push(0x95);
            out.extend_from_slice(&1u64.to_le_bytes());
        }
        Self { protocol, out, memo: 0 }
    }

    pub fn op(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }

    /// Stores the top in the memo, as Python does with nearly everything.
    pub fn put(&mut self) -> &mut Self {
        let slot = self.memo;
        self.memo += 1;
        match (self.protocol, u8::try_from(slot)) {
            (4.., _) => self.op(&[0x94]),
            (_, Ok(slot)) => self.op(&[b'q', slot]),
            _ => self.op(b"r").op(&slot.to_le_bytes()),
        }
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        match (self.protocol, u8::try_from(text.len())) {
            (4.., Ok(len)) => self.op(&[0x8c, len]),
            _ => self.op(b"X").op(&(text.len() as u32).to_le_bytes()),
        };
        self.op(text.as_bytes()).put()
    }

    pub fn int(&mut self, value: i64) -> &mut Self {
        match value {
            0..=0xff => self.op(&[b'K', value as u8]),
            0x100..=0xffff => self.op(b"M").op(&(value as u16).to_le_bytes()),
            _ if i32::try_from(value).is_ok() => self.op(b"J").op(&(value as i32).to_le_bytes()),
            _ => self.op(&[0x8a, 8]).op(&value.to_le_bytes()),
        }
    }

    pub fn global(&mut self, module: &str, name: &str) -> &mut Self {
        if self.protocol >= 4 {
            return self.text(module).text(name).op(&[0x93]).put();
        }
        self.op(b"c").op(module.as_bytes()).op(b"\n").op(name.as_bytes()).op(b"\n").put()
    }

    pub fn ints(&mut self, values: &[i64]) -> &mut Self {
        let many = values.len() > 3;
        if many {
            self.op(b"(");
        }
        for &value in values {
            self.int(value);
        }
        match values.len() {
            0 => self.op(b")"),
            len @ 1..=3 => self.op(&[0x84 + len as u8]).put(),
            _ => self.op(b"t").put(),
        }
    }

    pub fn storage(&mut self, class: &str, key: &str, count: i64) -> &mut Self {
        let module = if class == "UntypedStorage" { "torch.storage" } else { "torch" };
        self.op(b"(").text("storage").global(module, class).text(key).text("cuda:0").int(count);
        self.op(b"t").put().op(b"Q")
    }

    pub fn ordered_dict(&mut self) -> &mut Self {
        self.global("collections", "OrderedDict").op(b")R").put()
    }

    /// A tensor as `_rebuild_tensor_v2` or, with an element type, `_rebuild_tensor_v3` makes it.
    pub fn tensor(&mut self, tensor: &PthTensor<'_>) -> &mut Self {
        if tensor.parameter {
            self.global("torch._utils", "_rebuild_parameter").op(b"(");
        }
        let function = if tensor.dtype.is_some() { "_rebuild_tensor_v3" } else { "_rebuild_tensor_v2" };
        self.global("torch._utils", function).op(b"(");
        self.storage(tensor.class, tensor.key, tensor.count).int(tensor.first);
        self.ints(&tensor.shape).ints(&tensor.strides).op(&[0x89]).ordered_dict();
        if let Some(dtype) = tensor.dtype {
            self.global("torch", dtype);
        }
        self.op(b"t").put().op(b"R").put();
        if tensor.parameter {
            self.op(&[0x88]).ordered_dict().op(b"t").put().op(b"R").put();
        }
        self
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.op(b".");
        self.out
    }
}

/// A tensor in a pickle.
#[derive(Clone)]
pub struct PthTensor<'a> {
    pub name: &'a str,
    pub class: &'a str,
    pub key: &'a str,
    /// Elements of the storage.
    pub count: i64,
    pub first: i64,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    pub parameter: bool,
    /// Made by `_rebuild_tensor_v3` with this type.
    pub dtype: Option<&'a str>,
}

/// A contiguous tensor that is all of its storage.
pub fn whole<'a>(name: &'a str, class: &'a str, key: &'a str, shape: &[i64]) -> PthTensor<'a> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim];
    }
    let count = shape.iter().product();
    PthTensor {
        name,
        class,
        key,
        count,
        first: 0,
        shape: shape.into(),
        strides,
        parameter: false,
        dtype: None,
    }
}

/// The pickle of a state dict.
pub fn state_dict(protocol: u8, tensors: &[PthTensor<'_>]) -> Vec<u8> {
    let mut pickler = Pickler::new(protocol);
    pickler.ordered_dict().op(b"(");
    for tensor in tensors {
        pickler.text(tensor.name).tensor(tensor);
    }
    pickler.op(b"u");
    // The version numbers that module.state_dict() attaches.
    pickler.op(b"}").put().text("_metadata").ordered_dict().text("").op(b"}").put().text("version").int(1);
    pickler.op(b"sssb");
    pickler.finish()
}

/// The members of a torch file.
pub fn members(pickle: Vec<u8>, storages: &[(&str, Vec<u8>)]) -> Vec<Member> {
    let mut members = vec![
        member("archive/data.pkl", pickle),
        member("archive/byteorder", b"little".to_vec()),
        member("archive/version", b"3\n".to_vec()),
    ];
    members.extend(storages.iter().map(|(key, bytes)| member(&format!("archive/data/{key}"), bytes.clone())));
    members
}

/// A torch file.
pub fn pth(pickle: Vec<u8>, storages: &[(&str, Vec<u8>)]) -> Vec<u8> {
    zip(&members(pickle, storages), false)
}

/// A small valid torch file.
pub fn small_pth() -> Vec<u8> {
    let tensors = [
        whole("emb.weight", "BFloat16Storage", "0", &[5, 3]),
        whole("head.weight", "FloatStorage", "1", &[2, 4]),
        whole("ln.bias", "HalfStorage", "2", &[1, 1, 7]),
    ];
    let storages = [("0", super::numbers(30)), ("1", super::numbers(32)), ("2", super::numbers(14))];
    pth(state_dict(2, &tensors), &storages)
}
