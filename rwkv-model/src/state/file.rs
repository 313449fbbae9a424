//! States on disk: a safetensors file with `F32` tensors and, in its metadata under `rwkv.state`, whose state it is.
//!
//! | tensor | shape | content |
//! |---|---|---|
//! | `att_x` | `[L, C]` | `ln1` output of the last token |
//! | `ffn_x` | `[L, C]` | `ln2` output of the last token |
//! | `S` | `[L, H, N, N]` | time mix state, value channel before key channel |
//! | `attn_ffn_x` | `[A, C]` | RWKV-X: `ln2` output of the last token, in attention blocks |
//! | `k_cache.J`, `v_cache.J` | `[rows, C]` | RWKV-X: keys and values of attention block J, of the type that they are stored in |
//!
//! Tensors whose names begin with `beside.` are no part of the state.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use rwkv_kernels::{DType, KvFormat, widen};
use rwkv_pack::NewFile;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};

use super::{State, transposed};
use crate::attention::Attention;
use crate::error::{ErrorKind, ModelError, Result, bail};
use crate::identity::Identity;
use crate::kv::{BLOCK_ROWS, Budget};

const METADATA_KEY: &str = "rwkv.state";
const VERSION: u32 = 1;
/// How the names of tensors begin that are no part of the state.
const BESIDE: &str = "beside.";
/// A header is some 500 bytes; more than this is no state of ours.
const MAX_HEADER_BYTES: u64 = 1 << 16;
/// More tokens than anybody reads; such a number can still be counted on from.
const MOST_TOKENS: u64 = 1 << 62;

#[derive(Serialize, Deserialize)]
struct Metadata {
    version: u32,
    tokens: u64,
    model: Identity,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    cache: Option<CacheMetadata>,
}

/// Of a model with attention blocks.
#[derive(Serialize, Deserialize)]
struct CacheMetadata {
    attention: Attention,
    format: String,
    /// Rows that are no longer stored.
    dropped: usize,
    /// Rows that are.
    rows: usize,
}

/// A tensor by its name, type, shape and bytes.
type NamedTensor = (String, Dtype, Vec<usize>, Vec<u8>);

impl State {
    /// Writes the state to a file, whole or not at all: it is written beside its name, synced and renamed.
    ///
    /// # Errors
    /// The state is [poisoned](State::is_poisoned), or the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.check_usable()?;
        let path = path.as_ref();
        let failed = |error: io::Error| file_error(path, "cannot be written").caused_by(error);
        let mut file = NewFile::create(path, "state").map_err(failed)?;
        file.write_all(&self.to_bytes(Vec::new(), HashMap::new())).map_err(failed)?;
        file.commit().map_err(failed)
    }

    /// Reads a state that [`State::save`] wrote for this model.
    ///
    /// # Errors
    /// The file cannot be read, is no state, is damaged, holds a value that is not finite, or
    /// belongs to another model.
    pub fn load(path: impl AsRef<Path>, model: &Identity) -> Result<State> {
        let path = path.as_ref();
        let unreadable = |error: io::Error| file_error(path, "cannot be read").caused_by(error);
        // Asked before opening, because opening a named pipe waits for its writer.
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(file_error(path, "is a directory, a device or a pipe; expected the file of a state"));
        }
        let file = File::open(path).map_err(unreadable)?;
        let len = file.metadata().map_err(unreadable)?.len();
        let fixed = model.config().state_bytes() + MAX_HEADER_BYTES + 8;
        if len > fixed && model.config().attention == 0 {
            let what = format!("has {len} bytes; expected a state of this model, of at most {fixed}");
            return Err(file_error(path, &what));
        }
        let mut bytes = Vec::new();
        let mut file = file.take(len);
        file.by_ref().take(8 + MAX_HEADER_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
        // No more memory than the header says that there is to be read.
        if bytes.len() as u64 != len && described_len(&bytes) != Some(len) {
            return Err(file_error(
                path,
                &format!("is no state file: its {len} bytes are not what its header describes"),
            ));
        }
        file.read_to_end(&mut bytes).map_err(unreadable)?;
        State::from_bytes(&bytes, model).map_err(|error| file_error(path, &error.to_string()))
    }

    /// The content of a state file, with further entries in its metadata, for programs that keep more than a state in it.
    ///
    /// # Errors
    /// The state is [poisoned](State::is_poisoned), or the entries are more than [`State::load`] takes.
    pub fn to_bytes_with(&self, metadata: HashMap<String, String>) -> Result<Vec<u8>> {
        self.check_usable()?;
        let bytes = self.to_bytes(Vec::new(), metadata);
        let header = bytes.first_chunk().map_or(0, |len| u64::from_le_bytes(*len));
        if header > MAX_HEADER_BYTES {
            bail!(State, "would have a header of {header} bytes; expected at most {MAX_HEADER_BYTES}");
        }
        Ok(bytes)
    }

    /// The content of a state file, with further tensors, whose names begin with `beside.`, and further metadata.
    pub(crate) fn to_bytes(
        &self,
        beside: Vec<NamedTensor>,
        mut metadata_map: HashMap<String, String>,
    ) -> Vec<u8> {
        let config = self.identity.config();
        let (layers, width, heads, n) = (config.layers, config.width, config.heads, config.head_size);
        let wkv: Vec<f32> = self.wkv.chunks_exact(n * n).flat_map(|head| transposed(head, n)).collect();
        let floats = |name: &str, shape: Vec<usize>, values: &[f32]| {
            (name.to_owned(), Dtype::F32, shape, bytemuck::cast_slice(values).to_vec())
        };
        let (of_layers, of_attention) = self.ffn_shift.split_at(layers * width);
        let mut tensors: Vec<NamedTensor> = vec![
            floats("att_x", vec![layers, width], &self.att_shift),
            floats("ffn_x", vec![layers, width], of_layers),
            floats("S", vec![layers, heads, n, n], &wkv),
        ];
        if config.attention > 0 {
            tensors.push(floats("attn_ffn_x", vec![config.attention, width], of_attention));
        }
        for (block, cache) in self.kv.iter().enumerate() {
            let shape = vec![self.kv_stored(), width];
            for (letter, rows) in ["k", "v"].into_iter().zip(cache.to_rows()) {
                let (dtype, bytes) = narrowed(self.kv_format, &rows);
                tensors.push((format!("{letter}_cache.{block}"), dtype, shape.clone(), bytes));
            }
        }
        tensors.extend(beside);
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            let view = TensorView::new(*dtype, shape.clone(), bytes);
            (name, view.expect("the shape is that of the values"))
        });
        let cache = self.kv.first().map(|cache| CacheMetadata {
            attention: self.attention,
            format: self.kv_format.to_string(),
            dropped: cache.dropped(),
            rows: self.kv_stored(),
        });
        let metadata =
            Metadata { version: VERSION, tokens: self.tokens, model: Identity::clone(&self.identity), cache };
        let json = serde_json::to_string(&metadata).expect("numbers and strings have a JSON form");
        metadata_map.insert(METADATA_KEY.to_owned(), json);
        safetensors::serialize(views, Some(metadata_map))
            .expect("tensors of valid shape have a safetensors form")
    }

    pub(crate) fn from_bytes(bytes: &[u8], model: &Identity) -> Result<State> {
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
        let config = model.config();
        let (layers, width, heads, n) = (config.layers, config.width, config.heads, config.head_size);
        let more = if config.attention > 0 { 1 + 2 * config.attention } else { 0 };
        let of_state = tensors.names().into_iter().filter(|name| !name.starts_with(BESIDE)).count();
        if of_state != 3 + more {
            let names =
                if more > 0 { "att_x, ffn_x, S, attn_ffn_x and caches" } else { "att_x, ffn_x and S" };
            bail!(State, "has {of_state} tensors; expected {}: {names}", 3 + more);
        }
        let (attention, format, dropped, rows) = match (&metadata.cache, config.attention) {
            (None, 0) => (Attention::Full, KvFormat::default(), 0, 0),
            (Some(cache), 1..) => {
                let format = cache.format.parse().map_err(|error| {
                    ModelError::new(ErrorKind::State, format!("has unreadable metadata: {error}"))
                })?;
                cache.attention.validate()?;
                (cache.attention, format, cache.dropped, cache.rows)
            }
            (cache, blocks) => {
                let found = if cache.is_some() { "a" } else { "no" };
                bail!(
                    State,
                    "has {found} key/value cache; expected one for each of {blocks} attention blocks"
                );
            }
        };
        if metadata.tokens > MOST_TOKENS {
            bail!(State, "has seen {} tokens; expected at most {MOST_TOKENS}", metadata.tokens);
        }
        if let Attention::Window(window) = attention {
            let seen_from = dropped.saturating_add(rows).saturating_add(1).saturating_sub(window);
            if dropped > seen_from {
                bail!(State, "has dropped {dropped} rows, and its window sees them from {seen_from} on");
            }
        }
        if dropped % BLOCK_ROWS != 0 || (dropped > 0 && !matches!(attention, Attention::Window(_))) {
            bail!(State, "has {dropped} dropped rows with attention {attention}");
        }
        let mut state = State::new(Arc::new(metadata.model), attention, format, Budget::new(u64::MAX));
        read(&tensors, "att_x", Dtype::F32, &[layers, width], &mut state.att_shift)?;
        let (of_layers, of_attention) = state.ffn_shift.split_at_mut(layers * width);
        read(&tensors, "ffn_x", Dtype::F32, &[layers, width], of_layers)?;
        read(&tensors, "S", Dtype::F32, &[layers, heads, n, n], &mut state.wkv)?;
        for head in state.wkv.chunks_exact_mut(n * n) {
            head.copy_from_slice(&transposed(head, n));
        }
        if config.attention > 0 {
            read(&tensors, "attn_ffn_x", Dtype::F32, &[config.attention, width], of_attention)?;
        }
        for (block, cache) in state.kv.iter_mut().enumerate() {
            let dtype = narrowed(format, &[]).0;
            let [keys, values] = ["k", "v"].map(|letter| -> Result<Vec<f32>> {
                let name = format!("{letter}_cache.{block}");
                // The tensor's shape is checked before so much is allocated.
                expect(&tensors, &name, dtype, &[rows, width])?;
                let mut values = vec![0.0; rows * width];
                read(&tensors, &name, dtype, &[rows, width], &mut values)?;
                Ok(values)
            });
            cache.fill(dropped, &keys?, &values?);
        }
        state.charge.set(state.kv_bytes_of(rows));
        state.tokens = metadata.tokens;
        Ok(state)
    }
}

/// The length of a safetensors file, if `bytes` have its header.
fn described_len(bytes: &[u8]) -> Option<u64> {
    let (len, rest) = bytes.split_first_chunk()?;
    let header_len = u64::from_le_bytes(*len);
    let header = rest.get(..usize::try_from(header_len).ok()?)?;
    let tensors: HashMap<String, serde_json::Value> = serde_json::from_slice(header).ok()?;
    let end = tensors.values().filter_map(|tensor| tensor["data_offsets"][1].as_u64()).max()?;
    end.checked_add(8)?.checked_add(header_len)
}

/// Rows as they are stored: exact, as that is where they come from.
fn narrowed(format: KvFormat, values: &[f32]) -> (Dtype, Vec<u8>) {
    match format {
        KvFormat::F32 => (Dtype::F32, bytemuck::cast_slice(values).to_vec()),
        KvFormat::F16 => {
            let halves = values.iter().flat_map(|&value| half::f16::from_f32(value).to_le_bytes());
            (Dtype::F16, halves.collect())
        }
    }
}

/// A tensor of this type and shape.
fn expect<'a>(
    tensors: &SafeTensors<'a>,
    name: &str,
    dtype: Dtype,
    shape: &[usize],
) -> Result<TensorView<'a>> {
    let Ok(tensor) = tensors.tensor(name) else {
        bail!(State, "tensor {name} is missing");
    };
    if tensor.dtype() != dtype || tensor.shape() != shape {
        let (of, found) = (tensor.dtype(), tensor.shape());
        bail!(State, "tensor {name} is {of:?} {found:?}; expected {dtype:?} {shape:?}");
    }
    Ok(tensor)
}

fn read(tensors: &SafeTensors<'_>, name: &str, dtype: Dtype, shape: &[usize], out: &mut [f32]) -> Result<()> {
    let tensor = expect(tensors, name, dtype, shape)?;
    let mut values = Vec::new();
    widen(if dtype == Dtype::F16 { DType::F16 } else { DType::F32 }, tensor.data(), &mut values);
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        bail!(State, "tensor {name}: element {index} is {}; expected a finite number", values[index]);
    }
    out.copy_from_slice(&values);
    Ok(())
}

fn file_error(path: &Path, what: &str) -> ModelError {
    ModelError::new(ErrorKind::State, format!("state {}: {what}", path.display()))
}
