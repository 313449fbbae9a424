//! What the instructions that import, call and refer mean in a tensor file.

use crate::error::{PackError, PackErrorKind, shown};
use crate::header::MAX_RANK;
use crate::torch::global::{Global, Rebuild};
use crate::torch::machine::{Machine, Storage, Tensor, Value};

const MOST_TENSORS: usize = 1 << 17;

impl<'a> Machine<'a> {
    pub(super) fn global(&mut self, module: &str, name: &str) -> Result<(), PackError> {
        let Some(global) = Global::of(module, name) else {
            let line = format!(
                "asks for {}.{}, which no tensor file needs: not loaded, the file may be malicious",
                shown(module),
                shown(name)
            );
            return Err(PackError::new(PackErrorKind::Refused, line));
        };
        self.stack.push(Value::Global(global));
        Ok(())
    }

    /// Calls one of the functions of [`Global`].
    pub(super) fn reduce(&mut self) -> Result<(), PackError> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let Value::Tuple(start, len) = arguments else {
            return Err(PackError::malformed(format!("its pickle calls with {}", arguments.kind())));
        };
        let Value::Global(function) = function else {
            return Err(PackError::malformed(format!("its pickle calls {}", function.kind())));
        };
        match (function, &self.items[start..start + len]) {
            (Global::OrderedDict, []) => self.dict(),
            (Global::RebuildParameter, &[tensor @ Value::Tensor(_), _, _]) => self.stack.push(tensor),
            (Global::RebuildTensor(Rebuild::V1), &[storage, first, size, strides])
            | (Global::RebuildTensor(Rebuild::V2), &[storage, first, size, strides, _, _])
            | (Global::RebuildTensor(Rebuild::V2), &[storage, first, size, strides, _, _, _]) => {
                self.tensor([storage, first, size, strides], None)?;
            }
            (Global::RebuildTensor(Rebuild::V3), &[storage, first, size, strides, _, _, dtype])
            | (Global::RebuildTensor(Rebuild::V3), &[storage, first, size, strides, _, _, dtype, _]) => {
                self.tensor([storage, first, size, strides], Some(dtype))?;
            }
            (function, arguments) => {
                let line = format!("its pickle calls {function:?} with {} unfit arguments", arguments.len());
                return Err(PackError::malformed(line));
            }
        }
        Ok(())
    }

    fn tensor(&mut self, arguments: [Value<'a>; 4], dtype: Option<Value<'a>>) -> Result<(), PackError> {
        let [Value::Storage(storage), Value::Int(first), size, strides] = arguments else {
            return Err(PackError::malformed("its pickle makes a tensor of something else than a storage"));
        };
        let dtype = match (dtype, self.storages[storage].dtype) {
            (None, Some(dtype)) => dtype,
            (Some(Value::Global(Global::ElementType(dtype))), _) => dtype,
            _ => return Err(PackError::malformed("its pickle makes a tensor without an element type")),
        };
        let first = u64::try_from(first).map_err(|_| {
            PackError::malformed(format!("its pickle has a tensor with storage offset {first}"))
        })?;
        let shape = self.numbers(size, "size")?;
        let strides = self.numbers(strides, "stride")?;
        if shape.len() != strides.len() {
            let line = format!(
                "its pickle has a tensor of {} dimensions and {} strides",
                shape.len(),
                strides.len()
            );
            return Err(PackError::malformed(line));
        }
        if self.tensors.len() == MOST_TENSORS {
            return Err(PackError::malformed(format!("its pickle has more than {MOST_TENSORS} tensors")));
        }
        self.stack.push(Value::Tensor(self.tensors.len()));
        self.tensors.push(Tensor { storage, dtype, first, shape, strides });
        Ok(())
    }

    /// A tuple of sizes or strides, none negative.
    fn numbers<T: TryFrom<i64>>(&self, value: Value<'a>, what: &str) -> Result<Vec<T>, PackError> {
        let Value::Tuple(start, len) = value else {
            return Err(PackError::malformed(format!(
                "its pickle has a tensor whose {what} is {}",
                value.kind()
            )));
        };
        if len > MAX_RANK {
            let line = format!("its pickle has a tensor of {len} dimensions, expected at most {MAX_RANK}");
            return Err(PackError::malformed(line));
        }
        let number = |item: &Value<'_>| match *item {
            Value::Int(number) => T::try_from(number).ok(),
            _ => None,
        };
        let numbers = self.items[start..start + len].iter().map(number).collect::<Option<_>>();
        numbers.ok_or_else(|| {
            PackError::malformed(format!("its pickle has a tensor whose {what} is not positive"))
        })
    }

    /// Attributes of dicts (a state dict carries version numbers) are of no use here.
    pub(super) fn build(&mut self) -> Result<(), PackError> {
        self.pop()?;
        match self.top()? {
            Value::Dict(_) => Ok(()),
            other => {
                let line =
                    format!("its pickle sets attributes of {}, only a dict may have some", other.kind());
                Err(PackError::new(PackErrorKind::Refused, line))
            }
        }
    }

    /// A reference to a storage: `("storage", class, key, device, count)`.
    pub(super) fn persistent_id(&mut self) -> Result<(), PackError> {
        let Value::Tuple(start, 5) = self.pop()? else {
            return Err(PackError::malformed("its pickle has a persistent id that is not a tuple of five"));
        };
        let parts = &self.items[start..start + 5];
        let &[
            Value::Str("storage"),
            Value::Global(Global::Storage(dtype)),
            Value::Str(key),
            _,
            Value::Int(count),
        ] = parts
        else {
            return Err(PackError::malformed("its pickle has a persistent id that is no storage"));
        };
        let count = u64::try_from(count)
            .map_err(|_| PackError::malformed(format!("its pickle has a storage of {count} elements")))?;
        self.stack.push(Value::Storage(self.storages.len()));
        self.storages.push(Storage { key, dtype, count });
        Ok(())
    }
}
