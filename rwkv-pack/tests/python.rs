//! Python's own readers and writers: `safetensors` opens a pack, and we read what `pickle` and `zipfile` write.
//!
//! `RWKV_PYTHON` names the interpreter, `python3` otherwise. Skipped loudly where it or a package is missing.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use rwkv_pack::{Checkpoint, DType};
use support::{SMALL, numbers, small_pack};

/// Runs a script with arguments, and returns what it prints; `None`, with a note, where `needs` cannot be imported.
#[allow(clippy::print_stderr, reason = "a skipped test says so")]
fn python(needs: &str, script: &str, arguments: &[&Path]) -> Option<String> {
    let interpreter = std::env::var_os("RWKV_PYTHON").unwrap_or_else(|| "python3".into());
    let import = format!("import {needs}");
    let able = Command::new(&interpreter).args(["-c", &import]).output().is_ok_and(|it| it.status.success());
    if !able {
        eprintln!("SKIPPED: {} with {needs} is not there, set RWKV_PYTHON", interpreter.display());
        return None;
    }
    let output = Command::new(interpreter).arg("-c").arg(script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn safetensors_opens_a_pack() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.rwkv");
    small_pack(&path);
    let script = r#"
import json, sys
from safetensors import safe_open
with safe_open(sys.argv[1], framework="numpy") as file:
    assert json.loads(file.metadata()["rwkv.pack"])["version"] == 1
    for name in file.keys():
        tensor = file.get_tensor(name)
        print(name, list(tensor.shape), int(tensor.astype("int64").sum()))
"#;
    let Some(printed) = python("safetensors, numpy", script, &[&path]) else { return };
    for (_, tensors) in SMALL {
        for &(name, len) in *tensors {
            let sum: u64 = numbers(len).into_iter().map(u64::from).sum();
            let line = format!("{name} [{len}] {sum}");
            assert!(printed.lines().any(|printed| printed == line), "{line} in\n{printed}");
        }
    }
}

/// Stand-ins for torch's classes, so that Python's pickler writes what it writes for torch.
const TORCH: &str = r#"
import collections, io, pickle, sys, types, zipfile
def module(name):
    sys.modules[name] = types.ModuleType(name)
    return sys.modules[name]
torch, utils = module("torch"), module("torch._utils")
torch._utils = utils
class FloatStorage: pass
class HalfStorage: pass
for storage in (FloatStorage, HalfStorage):
    storage.__module__ = "torch"
    setattr(torch, storage.__name__, storage)
def _rebuild_tensor_v2(*arguments): pass
_rebuild_tensor_v2.__module__ = "torch._utils"
utils._rebuild_tensor_v2 = _rebuild_tensor_v2
class Storage:
    def __init__(self, kind, key, count): self.id = ("storage", kind, key, "cpu", count)
class Tensor:
    def __init__(self, *view): self.view = view
    def __reduce__(self): return _rebuild_tensor_v2, self.view + (False, collections.OrderedDict())
class Pickler(pickle.Pickler):
    def persistent_id(self, value): return value.id if isinstance(value, Storage) else None
half, single = Storage(HalfStorage, "0", 6), Storage(FloatStorage, "1", 2)
state = collections.OrderedDict()
state["a.weight"] = Tensor(half, 0, (2, 3), (3, 1))
state["a.transposed"] = Tensor(half, 0, (3, 2), (1, 3))
state["b"] = Tensor(single, 1, (1,), (1,))
for index in range(300):
    state["many.%d" % index] = Tensor(single, 0, (2,), (1,))
state._metadata = collections.OrderedDict([("", {"version": 1})])
for protocol in range(2, 6):
    out = io.BytesIO()
    Pickler(out, protocol).dump(state)
    with zipfile.ZipFile("%s/%d.pth" % (sys.argv[1], protocol), "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("m/data.pkl", out.getvalue())
        with archive.open("m/data/0", "w", force_zip64=protocol % 2 == 0) as member:
            member.write(bytes(range(12)))
        archive.writestr("m/data/1", bytes(range(8)))
"#;

#[test]
fn we_read_what_pickle_and_zipfile_write() {
    let directory = tempfile::tempdir().unwrap();
    if python("pickle", TORCH, &[directory.path()]).is_none() {
        return;
    }
    for protocol in 2..=5 {
        let path = directory.path().join(format!("{protocol}.pth"));
        assert!(fs::exists(&path).unwrap());
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.tensors().len(), 303, "protocol {protocol}");
        let mut bytes = Vec::new();
        let expected: [(&str, DType, &[usize], &[u8]); 4] = [
            ("a.weight", DType::F16, &[2, 3], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
            ("a.transposed", DType::F16, &[3, 2], &[0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]),
            ("b", DType::F32, &[1], &[4, 5, 6, 7]),
            ("many.299", DType::F32, &[2], &[0, 1, 2, 3, 4, 5, 6, 7]),
        ];
        for (name, dtype, shape, content) in expected {
            let index = checkpoint.find(name).unwrap();
            let info = &checkpoint.tensors()[index];
            checkpoint.read(index, &mut bytes).unwrap();
            assert_eq!(
                (info.dtype, info.shape.as_slice(), bytes.as_slice()),
                (dtype, shape, content),
                "{name}"
            );
        }
    }
}
