//! States on disk: a safetensors file with three `F32` tensors and, in its metadata under `rwkv.state`, whose state it is.
//!
//! | tensor | shape | content |
//! |---|---|---|
//! | `att_x` | `[L, C]` | `ln1` output of the last token |
//! | `ffn_x` | `[L, C]` | `ln2` output of the last token |
//! | `S` | `[L, H, N, N]` | time mix state, value channel before key channel |

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};

use super::{State, transposed};
use crate::error::{ErrorKind, ModelError, Result, bail};
use crate::identity::Identity;

const METADATA_KEY: &str = "rwkv.state";
const VERSION: u32 = 1;
/// A header is some 500 bytes; more than this is no state of ours.
const MAX_HEADER_BYTES: u64 = 1 << 16;

#[derive(Serialize, Deserialize)]
struct Metadata {
    version: u32,
    tokens: u64,
    model: Identity,
}

impl State {
    /// Writes the state to a file, whole or not at all: it is written beside its name, synced and renamed.
    ///
    /// # Errors
    /// The state is [poisoned](State::is_poisoned), or the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.check_usable()?;
        let path = path.as_ref();
        let failed = |error: io::Error| file_error(path, "cannot be written").caused_by(error);
        let bytes = self.to_bytes();
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut file = builder.prefix(".rwkv-state-").tempfile_in(dir).map_err(failed)?;
        file.write_all(&bytes).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        #[cfg(unix)]
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
        Ok(())
    }

    /// Reads a state that [`State::save`] wrote for this model.
    ///
    /// # Errors
    /// The file cannot be read, is no state, is damaged, holds a value that is not finite, or
    /// belongs to another model.
    pub fn load(path: impl AsRef<Path>, model: &Identity) -> Result<State> {
        let path = path.as_ref();
        let unreadable = |error: io::Error| file_error(path, "cannot be read").caused_by(error);
        let most = model.config().state_bytes() + MAX_HEADER_BYTES + 8;
        let len = fs::metadata(path).map_err(unreadable)?.len();
        if len > most {
            let what = format!("has {len} bytes; expected a state of this model, of at most {most}");
            return Err(file_error(path, &what));
        }
        let mut bytes = Vec::new();
        File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)).map_err(unreadable)?;
        State::from_bytes(&bytes, model).map_err(|error| file_error(path, &error.to_string()))
    }

    fn to_bytes(&self) -> Vec<u8> {
        let config = self.identity.config();
        let (layers, heads, n) = (config.layers, config.heads, config.head_size);
        let wkv: Vec<f32> = self.wkv.chunks_exact(n * n).flat_map(|head| transposed(head, n)).collect();
        let tensors: [(&str, Vec<usize>, &[f32]); 3] = [
            ("att_x", vec![layers, config.width], &self.att_shift),
            ("ffn_x", vec![layers, config.width], &self.ffn_shift),
            ("S", vec![layers, heads, n, n], &wkv),
        ];
        let views = tensors.map(|(name, shape, values)| {
            let view = TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(values));
            (name, view.expect("the shape is that of the values"))
        });
        let metadata =
            Metadata { version: VERSION, tokens: self.tokens, model: Identity::clone(&self.identity) };
        let json = serde_json::to_string(&metadata).expect("numbers and strings have a JSON form");
        safetensors::serialize(views, Some(HashMap::from([(METADATA_KEY.to_owned(), json)])))
            .expect("three tensors of valid shape have a safetensors form")
    }

    fn from_bytes(bytes: &[u8], model: &Identity) -> Result<State> {
        let damaged = |error| ModelError::new(ErrorKind::State, format!("is no state file: {error}"));
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
        let Some(json) = header.metadata().as_ref().and_then(|map| map.get(METADATA_KEY)) else {
            bail!(State, "is no state file: its metadata has no {METADATA_KEY}");
        };
        let version =
            serde_json::from_str::<serde_json::Value>(json).ok().and_then(|v| v["version"].as_u64());
        if version != Some(u64::from(VERSION)) {
            let found = version.map_or_else(|| "none".into(), |v| v.to_string());
            bail!(State, "has state version {found}; expected {VERSION}");
        }
        let metadata: Metadata = serde_json::from_str(json).map_err(|error| {
            ModelError::new(ErrorKind::State, format!("has unreadable metadata: {error}"))
        })?;
        if metadata.model != *model {
            bail!(State, "belongs to {}; expected a state of {model}", metadata.model);
        }
        let tensors = SafeTensors::deserialize(bytes).map_err(damaged)?;
        if tensors.len() != 3 {
            bail!(State, "has {} tensors; expected att_x, ffn_x and S", tensors.len());
        }
        let mut state = State::new(Arc::new(metadata.model));
        let config = model.config();
        let (layers, heads, n) = (config.layers, config.heads, config.head_size);
        read(&tensors, "att_x", &[layers, config.width], &mut state.att_shift)?;
        read(&tensors, "ffn_x", &[layers, config.width], &mut state.ffn_shift)?;
        read(&tensors, "S", &[layers, heads, n, n], &mut state.wkv)?;
        for head in state.wkv.chunks_exact_mut(n * n) {
            head.copy_from_slice(&transposed(head, n));
        }
        state.tokens = metadata.tokens;
        Ok(state)
    }
}

fn read(tensors: &SafeTensors<'_>, name: &str, shape: &[usize], out: &mut [f32]) -> Result<()> {
    let Ok(tensor) = tensors.tensor(name) else {
        bail!(State, "tensor {name} is missing");
    };
    if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
        let (dtype, found) = (tensor.dtype(), tensor.shape());
        bail!(State, "tensor {name} is {dtype:?} {found:?}; expected F32 {shape:?}");
    }
    for (index, (value, bytes)) in out.iter_mut().zip(tensor.data().chunks_exact(4)).enumerate() {
        *value = f32::from_le_bytes(bytes.try_into().expect("chunks of four"));
        if !value.is_finite() {
            bail!(State, "tensor {name}: element {index} is {value}; expected a finite number");
        }
    }
    Ok(())
}

fn file_error(path: &Path, what: &str) -> ModelError {
    ModelError::new(ErrorKind::State, format!("state {}: {what}", path.display()))
}
