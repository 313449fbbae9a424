//! What the tests share: the program, a folder to run it in, and a tiny model.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rwkv_model::kernels::Codec;
use rwkv_model::{Config, ConvertOptions, Synthetic, WeightSource, convert};
use tempfile::TempDir;

/// Tokens of the tiny model, and of its vocabulary: 256 bytes and some words.
pub const VOCAB: usize = 272;

/// A folder with a tiny model and its vocabulary, and the program that runs in it.
pub struct Lab {
    dir: TempDir,
}

impl Lab {
    /// An empty folder.
    pub fn empty() -> Lab {
        Lab { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    /// A folder with `tiny.rwkv` (f32) and `tiny.vocab`.
    pub fn new() -> Lab {
        let lab = Lab::empty();
        convert(&weights(1), lab.path("tiny.rwkv"), ConvertOptions::new(Codec::F32)).expect("a pack");
        fs::write(lab.path("tiny.vocab"), vocabulary()).expect("a vocabulary");
        lab
    }

    /// The path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a tiny RWKV-X of four blocks with a time mix and two with attention.
    pub fn hybrid(&self, name: &str) {
        let config = Config { layers: 4, attention: 2, ..config(VOCAB) };
        convert(&Synthetic::new(config, 1), self.path(name), ConvertOptions::new(Codec::F32))
            .expect("a pack");
    }

    /// Writes a file.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).expect("a file");
    }

    /// Writes the tiny model as a checkpoint.
    pub fn checkpoint(&self, name: &str, seed: u64) {
        self.write(name, safetensors(&weights(seed)));
    }

    /// The program with arguments, in the folder, with directories of its own and an empty stdin.
    pub fn command<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rwkv"));
        command
            .args(args)
            .current_dir(self.dir.path())
            .env("RWKV_CACHE_DIR", self.path("cache"))
            .env("XDG_DATA_HOME", self.path("data"))
            .env_remove("RWKV_LOG")
            .stdin(Stdio::null());
        command
    }

    /// Runs the program to its end. Arguments are separated by blanks.
    pub fn run(&self, args: &str) -> Ended {
        Ended::new(args, self.command(args.split_whitespace()).output().expect("the program runs"))
    }

    /// Runs the program with arguments that may have blanks.
    pub fn run_args(&self, args: &[&str]) -> Ended {
        Ended::new(&args.join(" "), self.command(args.iter().copied()).output().expect("the program runs"))
    }

    /// Runs the program with this stdin.
    pub fn run_with(&self, args: &str, stdin: &[u8]) -> Ended {
        let file = self.path("stdin");
        fs::write(&file, stdin).expect("a file");
        let stdin = fs::File::open(file).expect("the file");
        Ended::new(
            args,
            self.command(args.split_whitespace()).stdin(stdin).output().expect("the program runs"),
        )
    }

    /// Starts the program with pipes.
    pub fn start(&self, args: &str) -> Child {
        self.command(args.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts")
    }
}

/// How a run of the program ended.
#[derive(Debug)]
pub struct Ended {
    pub args: String,
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ended {
    pub fn new(args: &str, output: Output) -> Ended {
        Ended {
            args: args.to_owned(),
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).expect("stderr is text"),
        }
    }

    /// Checks that all went well.
    #[track_caller]
    pub fn ok(self) -> Ended {
        assert_eq!(self.code, Some(0), "rwkv {}: {}", self.args, self.stderr);
        self
    }

    /// Checks that it failed with a code, and one line of error that has this in it.
    #[track_caller]
    pub fn fails(self, code: i32, part: &str) -> Ended {
        assert_eq!(self.code, Some(code), "rwkv {}: {}", self.args, self.stderr);
        assert!(self.stderr.contains(part), "rwkv {}: {:?} lacks {part:?}", self.args, self.stderr);
        self
    }

    /// The output as text.
    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("stdout is text")
    }

    /// The output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("rwkv {}: {error}", self.args))
    }
}

/// Random weights of a tiny model.
pub fn weights(seed: u64) -> Synthetic {
    Synthetic::new(config(VOCAB), seed)
}

/// Two blocks of width 64.
pub fn config(vocab: usize) -> Config {
    let mut config = Config::official("0.1b").expect("an official size");
    (config.layers, config.width, config.ffn, config.vocab) = (2, 64, 128, vocab);
    (config.heads, config.head_size) = (1, 64);
    (config.rank_w, config.rank_a, config.rank_v, config.rank_g) = (16, 16, 16, 16);
    config
}

/// A vocabulary in the World format: all bytes, and words.
pub fn vocabulary() -> String {
    let mut text = String::new();
    for byte in 0..=255u8 {
        let prefix = if byte < 128 { "" } else { "b" };
        text.push_str(&format!("{} {prefix}'\\x{byte:02x}' 1\n", u32::from(byte) + 1));
    }
    let words = ["\\n\\n", "User", "Assistant", " the", " and", "    ", "ing", "User:", ".\\n\\n"];
    for (id, word) in (257..).zip(words) {
        let len = word.replace("\\n", "n").len();
        text.push_str(&format!("{id} '{word}' {len}\n"));
    }
    text
}

/// Weights as a safetensors file.
pub fn safetensors(source: &impl WeightSource) -> Vec<u8> {
    let (mut header, mut data, mut bytes) = (serde_json::Map::new(), Vec::new(), Vec::new());
    for (index, tensor) in source.tensors().iter().enumerate() {
        source.read(index, &mut bytes).expect("weights");
        let begin = data.len();
        data.extend_from_slice(&bytes);
        let (name, shape) = (tensor.name.clone(), &tensor.shape);
        let entry =
            serde_json::json!({ "dtype": "BF16", "shape": shape, "data_offsets": [begin, data.len()] });
        header.insert(name, entry);
    }
    let header = serde_json::to_vec(&header).expect("JSON");
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    file
}

/// The only tensor of a file that `rwkv logits --output` wrote: rows and values.
pub fn read_logits(path: &Path) -> (usize, Vec<f32>) {
    let bytes = fs::read(path).expect("the file of logits");
    let len = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + len]).expect("a header");
    let entry = &header["logits"];
    assert_eq!(entry["dtype"], "F32");
    let rows = entry["shape"][0].as_u64().expect("rows") as usize;
    let values: Vec<f32> = bytes[8 + len..]
        .chunks_exact(4)
        .map(|value| f32::from_le_bytes(value.try_into().expect("four bytes")))
        .collect();
    assert_eq!(values.len() as u64, rows as u64 * entry["shape"][1].as_u64().expect("columns"));
    assert_eq!(entry["data_offsets"][1].as_u64(), Some(4 * values.len() as u64));
    (rows, values)
}

/// A file of the oracle, or `None` with a message where the oracle is absent.
pub fn oracle(file: &str) -> Option<PathBuf> {
    let root = std::env::var_os("RWKV_ORACLE")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/oracle"));
    let path = root.join(file);
    if path.exists() {
        return Some(path);
    }
    #[allow(clippy::print_stderr, reason = "a skipped test must be seen")]
    {
        eprintln!("SKIPPED: no oracle file {} (set RWKV_ORACLE)", path.display());
    }
    None
}
