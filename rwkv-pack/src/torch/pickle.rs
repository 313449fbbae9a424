//! A reader for the pickles in torch files that cannot run anything.
//!
//! A pickle is a program for a small stack machine. The full machine imports modules and calls functions; this one knows
//! the instructions of `opcode` and the names of `global`, and refuses all others. Its result is not an object but
//! the list of tensors that the state dict names.
//!
//! Nothing here can grow out of hand: values are copied, not nested, so that neither reading nor dropping recurses;
//! each instruction adds a bounded amount; and the number of bytes, instructions and tensors is bounded.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::dtype::DType;
use crate::error::{PackError, PackErrorKind, shown};
use crate::torch::machine::{Machine, Storage, Tensor, Value};

/// The longest pickle that is read, in bytes. That of a large model has less than one MiB.
pub(crate) const LONGEST_PICKLE: u64 = 32 << 20;
/// The longest key of a storage, in bytes. They are numbers.
const LONGEST_KEY: usize = 256;

/// A tensor as the pickle describes it. Nothing was held against the archive yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PickledTensor {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// In elements, one for each dimension.
    pub strides: Vec<u64>,
    /// The first element's index in the storage.
    pub first: u64,
    /// Names the archive member with the data. Tensors of one storage share it.
    pub storage: Arc<str>,
    /// Length of the whole storage in bytes.
    pub storage_bytes: u64,
}

/// Runs the pickle and returns the tensors of its state dict, in its order.
///
/// Errors carry the offset in the pickle.
pub(crate) fn state_dict(pickle: &[u8]) -> Result<Vec<PickledTensor>, PackError> {
    let mut machine = Machine::new(pickle);
    let root = machine.run().map_err(|error| error.at(machine.instruction()))?;
    machine.tensors_of(root)
}

impl<'a> Machine<'a> {
    /// The tensors of the state dict `root`.
    fn tensors_of(&self, root: Value<'a>) -> Result<Vec<PickledTensor>, PackError> {
        let unfit = |line: String| Err(PackError::new(PackErrorKind::Unsupported, line));
        let Value::Dict(dict) = root else {
            return unfit(format!("holds {}, expected a state dict: names and their tensors", root.kind()));
        };
        let mut names = HashSet::new();
        let mut keys: HashMap<&str, Arc<str>> = HashMap::new();
        let mut tensors = Vec::with_capacity(self.dicts[dict].len());
        for &(key, value) in &self.dicts[dict] {
            let Value::Str(name) = key else {
                return unfit(format!("its dict has {} as a key, expected names of tensors", key.kind()));
            };
            let Value::Tensor(tensor) = value else {
                let nested = matches!(value, Value::Dict(_));
                let advice = if nested { ": save the inner dict of tensors alone" } else { "" };
                let (name, kind) = (shown(name), value.kind());
                return unfit(format!("its entry {name} is {kind}, expected only tensors{advice}"));
            };
            if !names.insert(name) {
                return Err(PackError::malformed("occurs twice in the state dict").in_tensor(name));
            }
            let Tensor { storage, dtype, first, ref shape, ref strides } = self.tensors[tensor];
            let Storage { key, dtype: stored, count } = self.storages[storage];
            if key.len() > LONGEST_KEY {
                let line =
                    format!("its storage has a key of {} bytes, expected at most {LONGEST_KEY}", key.len());
                return Err(PackError::malformed(line).in_tensor(name));
            }
            let bytes = count.checked_mul(stored.map_or(1, |dtype| dtype.byte_len() as u64));
            let Some(storage_bytes) = bytes else {
                let line = format!("its storage of {count} elements overflows 64 bits");
                return Err(PackError::malformed(line).in_tensor(name));
            };
            tensors.push(PickledTensor {
                name: name.to_owned(),
                dtype,
                shape: shape.clone(),
                strides: strides.clone(),
                first,
                storage: Arc::clone(keys.entry(key).or_insert_with(|| key.into())),
                storage_bytes,
            });
        }
        Ok(tensors)
    }
}
