//! States of known prefixes on disk.
//!
//! Each is a state file (`state/file.rs`) that also holds its tokens and, where there are any, the logits after them. Its
//! name is `prefix-`, the XXH3-64 hash of its bytes, and `.state`: what is read back is compared with it. Files of
//! other packs, and those that are no such files, are left alone.
//!
//! A thread of its own writes: an engine does not wait for the disk because something else needs its memory. A state
//! that comes while it is busy is dropped. It is read by the engine, as that is shorter than a sweep or two.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rwkv_kernels::KvFormat;
use rwkv_pack::Checksum;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde::Deserialize;

use super::prefix::{Entry, common};
use crate::attention::Attention;
use crate::error::{ErrorKind, ModelError, Result, bail};
use crate::identity::Identity;
use crate::model::Model;
use crate::state::State;

const TOKENS: &str = "beside.tokens";
const LOGITS: &str = "beside.logits";
/// The key of the metadata whose value says which pack computed the state.
const PACK_KEY: &str = "rwkv.pack";
/// A header is a few hundred bytes, and some for each attention block.
const MAX_HEADER_BYTES: u64 = 1 << 20;
/// States that wait to be written.
const WAITING: usize = 4;

/// The files, and the thread that writes them.
#[derive(Debug)]
pub(super) struct Spill {
    place: Arc<Place>,
    jobs: Option<SyncSender<Entry>>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Place {
    dir: PathBuf,
    /// The hash of the pack's checksums: another pack of the same checkpoint gives other bits.
    pack: String,
    identity: Arc<Identity>,
    /// How new states attend, and store keys and values.
    attention: (Attention, KvFormat),
    limit_bytes: u64,
    index: Mutex<Index>,
}

#[derive(Debug, Default)]
struct Index {
    files: Vec<Spilled>,
    clock: u64,
}

/// A file.
#[derive(Debug)]
struct Spilled {
    path: PathBuf,
    bytes: u64,
    tokens: Vec<u32>,
    has_logits: bool,
    used: u64,
}

impl Spill {
    /// Makes the directory if need be, and finds what is there.
    ///
    /// # Errors
    /// The directory cannot be made or read, or the system gives no thread.
    pub fn open(dir: &Path, model: &Model, limit_bytes: u64) -> Result<Spill> {
        let failed = |error: io::Error| {
            ModelError::new(ErrorKind::Io, format!("directory {}: cannot be used", dir.display()))
                .caused_by(error)
        };
        fs::create_dir_all(dir).map_err(failed)?;
        let groups = &model.manifest().groups;
        let checksums: String = groups.iter().map(|group| group.checksum.to_string()).collect();
        let state = model.new_state();
        let place = Place {
            dir: dir.to_owned(),
            pack: Checksum::of(checksums.as_bytes()).to_string(),
            identity: Arc::clone(&model.identity),
            attention: (state.attention(), state.kv_format()),
            limit_bytes,
            index: Mutex::default(),
        };
        place.scan().map_err(failed)?;
        let place = Arc::new(place);
        let (jobs, waiting) = sync_channel(WAITING);
        let writes = Arc::clone(&place);
        let writer = std::thread::Builder::new()
            .name("rwkv-spill".into())
            .spawn(move || writes.write_all(&waiting))
            .map_err(failed)?;
        Ok(Spill { place, jobs: Some(jobs), writer: Some(writer) })
    }

    /// Files and their bytes.
    pub fn len_and_bytes(&self) -> (usize, u64) {
        let index = self.place.index();
        (index.files.len(), index.bytes())
    }

    /// Writes a state, if it is not there and the disk keeps up.
    pub fn offer(&self, entry: Entry) {
        let Some(jobs) = self.jobs_for(&entry) else { return };
        if let Err(TrySendError::Full(entry)) = jobs.try_send(entry) {
            tracing::debug!(tokens = entry.tokens.len(), "the disk is busy; a state is dropped");
        }
    }

    /// Writes a state, however long that takes.
    pub fn put(&self, entry: Entry) {
        if let Some(jobs) = self.jobs_for(&entry) {
            // The writer ends with the sender alone.
            let _ = jobs.send(entry);
        }
    }

    /// Where to put a state that is not known.
    fn jobs_for(&self, entry: &Entry) -> Option<&SyncSender<Entry>> {
        let is_known = self.place.index().knows(entry);
        self.jobs.as_ref().filter(|_| !is_known)
    }

    /// How many tokens the prompt has in common with the sequence that it follows longest.
    pub fn shared(&self, prompt: &[u32]) -> usize {
        self.place.index().files.iter().map(|file| common(&file.tokens, prompt)).max().unwrap_or(0)
    }

    /// Reads the state after the longest sequence of more than `more_than` tokens that the prompt begins with.
    pub fn find(&self, prompt: &[u32], wants_logits: bool, more_than: usize) -> Option<Entry> {
        loop {
            let longest = self.place.index().longest(prompt, wants_logits, more_than);
            let (path, bytes) = longest?;
            match self.place.read(&path, bytes, prompt) {
                Ok(entry) => return Some(entry),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "a kept state is of no use");
                    self.place.forget(&path);
                }
            }
        }
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(writer) = self.writer.take() {
            // It does not panic, and if it did, what it had to do is done.
            let _ = writer.join();
        }
    }
}

impl Place {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in the files that are there, the oldest first.
    fn scan(&self) -> io::Result<()> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if checksum_of(&entry.path()).is_some()
                && let Ok(metadata) = entry.metadata()
                && let Ok(Some((tokens, has_logits))) = self.peek(&entry.path())
            {
                found.push((metadata.modified().ok(), entry.path(), metadata.len(), tokens, has_logits));
            }
        }
        found.sort_by_key(|file| file.0);
        let mut index = self.index();
        for (_, path, bytes, tokens, has_logits) in found {
            index.push(path, bytes, tokens, has_logits);
        }
        index.shrink_to(self.limit_bytes);
        Ok(())
    }

    /// The tokens of a file of this pack, and whether it has logits.
    fn peek(&self, path: &Path) -> io::Result<Option<(Vec<u32>, bool)>> {
        #[derive(Deserialize)]
        struct At {
            data_offsets: [u64; 2],
        }
        let mut file = File::open(path)?;
        let file_bytes = file.metadata()?.len();
        let mut len = [0; 8];
        file.read_exact(&mut len)?;
        let header_bytes = u64::from_le_bytes(len);
        if header_bytes > MAX_HEADER_BYTES.min(file_bytes) {
            return Ok(None);
        }
        let mut header = vec![0; header_bytes as usize];
        file.read_exact(&mut header)?;
        let Ok(header) = serde_json::from_slice::<serde_json::Value>(&header) else { return Ok(None) };
        if header["__metadata__"][PACK_KEY] != self.pack.as_str() {
            return Ok(None);
        }
        let Ok(At { data_offsets: [begin, end] }) = serde_json::from_value(header[TOKENS].clone()) else {
            return Ok(None);
        };
        let data = 8 + header_bytes;
        if begin > end || end > file_bytes - data {
            return Ok(None);
        }
        file.seek(SeekFrom::Start(data + begin))?;
        let mut bytes = vec![0; (end - begin) as usize];
        file.read_exact(&mut bytes)?;
        Ok(Some((tokens_of(&bytes), header.get(LOGITS).is_some())))
    }

    fn write_all(&self, jobs: &Receiver<Entry>) {
        for entry in jobs {
            if let Err(error) = self.write(entry) {
                tracing::warn!(dir = %self.dir.display(), %error, "a state cannot be kept");
            }
        }
    }

    /// Writes a state, whole or not at all, and forgets what was not used for longest to make room. It is not synced: if the
    /// machine fails, the name says that the bytes are wrong.
    fn write(&self, entry: Entry) -> io::Result<()> {
        let Entry { tokens, state, logits, .. } = entry;
        let flat = |tokens: &[u32]| tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let mut beside = vec![(TOKENS.to_owned(), Dtype::U32, vec![tokens.len()], flat(&tokens))];
        let has_logits = logits.is_some();
        beside.extend(logits.map(|logits| {
            let bytes = bytemuck::cast_slice(&logits).to_vec();
            (LOGITS.to_owned(), Dtype::F32, vec![logits.len()], bytes)
        }));
        let metadata = HashMap::from([(PACK_KEY.to_owned(), self.pack.clone())]);
        let bytes = state.to_bytes(beside, metadata);
        drop(state);
        let len = bytes.len() as u64;
        if len > self.limit_bytes {
            return Ok(());
        }
        self.index().shrink_to(self.limit_bytes - len);
        let path = self.dir.join(format!("prefix-{}.state", Checksum::of(&bytes)));
        let mut file =
            tempfile::Builder::new().prefix(".rwkv-prefix-").suffix(".tmp").tempfile_in(&self.dir)?;
        file.write_all(&bytes)?;
        file.persist(&path).map_err(|error| error.error)?;
        self.index().push(path, len, tokens, has_logits);
        Ok(())
    }

    /// Reads a file whose tokens the prompt begins with, and verifies all of it.
    fn read(&self, path: &Path, bytes: u64, prompt: &[u32]) -> Result<Entry> {
        let wrong = |what: &str| ModelError::new(ErrorKind::State, format!("{}: {what}", path.display()));
        let unreadable = |error: io::Error| wrong("cannot be read").caused_by(error);
        let mut content = Vec::new();
        let file = File::open(path).map_err(unreadable)?;
        // No more than it had when it was found.
        file.take(bytes + 1).read_to_end(&mut content).map_err(unreadable)?;
        let found = Checksum::of(&content);
        if checksum_of(path) != Some(found) {
            return Err(wrong(&format!("is damaged: its bytes have the checksum {found}")));
        }
        let state = State::from_bytes(&content, &self.identity)?;
        if (state.attention(), state.kv_format()) != self.attention {
            bail!(State, "{}: attends in another way than new states do", path.display());
        }
        let tensors =
            SafeTensors::deserialize(&content).map_err(|error| wrong("is no state file").caused_by(error))?;
        let tensor = |name: &str| tensors.tensor(name).ok();
        let tokens = tensor(TOKENS).map(|tensor| tokens_of(tensor.data())).unwrap_or_default();
        if !prompt.starts_with(&tokens) || state.tokens() != tokens.len() as u64 {
            return Err(wrong("is of other tokens than it was found by"));
        }
        let logits = tensor(LOGITS).map(|tensor| {
            let numbers = tensor.data().chunks_exact(4);
            numbers.map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
        });
        let vocab = self.identity.config().vocab;
        if logits.as_ref().is_some_and(|logits: &Vec<f32>| logits.len() != vocab) {
            return Err(wrong("has logits of another vocabulary"));
        }
        Ok(Entry { tokens, state, logits, used: 0 })
    }

    fn forget(&self, path: &Path) {
        let mut index = self.index();
        if let Some(at) = index.files.iter().position(|file| file.path == path) {
            index.remove(at);
        }
    }
}

impl Index {
    fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    fn knows(&mut self, entry: &Entry) -> bool {
        self.clock += 1;
        let clock = self.clock;
        let is_same =
            |file: &&mut Spilled| file.tokens == entry.tokens && (file.has_logits || entry.logits.is_none());
        let known = self.files.iter_mut().find(is_same);
        known.map(|file| file.used = clock).is_some()
    }

    fn longest(&mut self, prompt: &[u32], wants_logits: bool, more_than: usize) -> Option<(PathBuf, u64)> {
        let is_usable = |file: &&mut Spilled| {
            let len = file.tokens.len();
            len > more_than
                && (len < prompt.len() || !wants_logits || file.has_logits)
                && prompt.starts_with(&file.tokens)
        };
        self.clock += 1;
        let clock = self.clock;
        let found = self.files.iter_mut().filter(is_usable).max_by_key(|file| file.tokens.len())?;
        found.used = clock;
        Some((found.path.clone(), found.bytes))
    }

    fn push(&mut self, path: PathBuf, bytes: u64, tokens: Vec<u32>, has_logits: bool) {
        self.clock += 1;
        self.files.retain(|file| file.path != path);
        self.files.push(Spilled { path, bytes, tokens, has_logits, used: self.clock });
    }

    /// Removes files until they have so many bytes at most.
    fn shrink_to(&mut self, bytes: u64) {
        while self.bytes() > bytes {
            let Some(oldest) = (0..self.files.len()).min_by_key(|&at| self.files[at].used) else { return };
            self.remove(oldest);
        }
    }

    fn remove(&mut self, at: usize) {
        let file = self.files.swap_remove(at);
        if let Err(error) = fs::remove_file(&file.path) {
            tracing::warn!(path = %file.path.display(), %error, "a kept state cannot be removed");
        }
    }
}

/// The checksum in a file's name.
fn checksum_of(path: &Path) -> Option<Checksum> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix("prefix-")?.strip_suffix(".state")?.parse().ok()
}

fn tokens_of(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
