use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rwkv_model::pack::NewFile;
use serde_json::{Map, Value, json};

/// A safetensors file of F32 tensors, which are written piece by piece in any order. What is never written is zero.
///
/// It takes its name when it is finished, so that nothing half-written is ever seen under it.
#[derive(Debug)]
pub struct TensorFile {
    file: NewFile,
    path: PathBuf,
    places: HashMap<String, Place>,
    bytes: Vec<u8>,
}

/// Where a tensor begins in the file, and how many numbers it has.
#[derive(Debug, Clone, Copy)]
struct Place {
    begin: u64,
    len: u64,
}

impl TensorFile {
    /// A file of such tensors: name and shape.
    pub fn create(path: &Path, tensors: &[(String, Vec<u64>)]) -> Result<TensorFile> {
        let mut end = 0_u64;
        let mut header = Map::new();
        let mut places = HashMap::new();
        for (name, shape) in tensors {
            let sizes = shape.iter().try_fold(1_u64, |len, &size| len.checked_mul(size));
            let len = sizes.filter(|&len| len < 1 << 60).with_context(|| format!("{name} is too large"))?;
            let begin = end;
            end = len.checked_mul(4).and_then(|bytes| bytes.checked_add(end)).context("too many tensors")?;
            header.insert(
                name.clone(),
                json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, end] }),
            );
            places.insert(name.clone(), Place { begin, len });
        }
        let mut header = Value::Object(header).to_string();
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        let data = 8 + header.len() as u64;
        places.values_mut().for_each(|place| place.begin += data);

        let file = NewFile::create(path, "logits").with_context(|| unwritable(path))?;
        let begin = |mut file: &File| -> io::Result<()> {
            file.write_all(&(header.len() as u64).to_le_bytes())?;
            file.write_all(header.as_bytes())?;
            file.set_len(data + end)
        };
        begin(file.as_file()).with_context(|| unwritable(path))?;
        Ok(TensorFile { file, path: path.to_owned(), places, bytes: Vec::new() })
    }

    /// Writes some numbers of a tensor, from one of them on.
    ///
    /// # Panics
    /// There is no such tensor, or it has fewer numbers.
    pub fn write(&mut self, tensor: &str, at: u64, values: &[f32]) -> Result<()> {
        let Place { begin, len } = self.places[tensor];
        assert!(
            at + values.len() as u64 <= len,
            "{} numbers at {at} of {tensor}, which has {len}",
            values.len()
        );
        self.bytes.clear();
        self.bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let mut file = self.file.as_file();
        file.seek(SeekFrom::Start(begin + 4 * at))
            .and_then(|_| file.write_all(&self.bytes))
            .with_context(|| unwritable(&self.path))
    }

    /// Gives the file its name.
    pub fn finish(self) -> Result<()> {
        let TensorFile { file, path, .. } = self;
        file.commit().with_context(|| unwritable(&path))
    }
}

fn unwritable(path: &Path) -> String {
    format!("{}: cannot be written", path.display())
}
