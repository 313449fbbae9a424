//! Bytes pass through as they are: subnormals, signed zeros, payloads of NaNs. And so do names of files.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use rwkv_pack::{Checkpoint, Checksum, DType, Pack, Writer};
use support::pth::{pth, small_pth, state_dict, whole};
use support::{Entry, safetensors, small_pack, small_safetensors, spec};

/// bf16: 1e38, 1e-40 (subnormal), -0, infinities, quiet and signalling NaNs with payloads.
const BF16: [u16; 8] = [0x7e96, 0x0001, 0x8000, 0x7f80, 0xff80, 0x7fc1, 0xffff, 0x7f81];

#[test]
fn odd_values_keep_their_bits_on_every_way() {
    let bytes: Vec<u8> = BF16.into_iter().flat_map(u16::to_le_bytes).collect();
    let directory = tempfile::tempdir().unwrap();
    let plain = safetensors(&[Entry { name: "w", dtype: "BF16", shape: &[2, 4], bytes: bytes.clone() }]);
    let torch = pth(state_dict(2, &[whole("w", "BFloat16Storage", "0", &[2, 4])]), &[("0", bytes.clone())]);
    let mut transposed = whole("w", "BFloat16Storage", "0", &[2, 4]);
    transposed.strides = vec![1, 2];
    let order = [0, 2, 4, 6, 1, 3, 5, 7];
    let stored: Vec<u8> = (0..8)
        .flat_map(|place| BF16[order.iter().position(|&it| it == place).unwrap()].to_le_bytes())
        .collect();
    let strided = pth(state_dict(2, &[transposed]), &[("0", stored)]);
    for (case, file) in [("safetensors", plain), ("torch", torch), ("strided", strided)] {
        let path = directory.path().join(case);
        fs::write(&path, file).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.tensors()[0].dtype, DType::Bf16);
        let mut read = vec![9; 99];
        checkpoint.read(0, &mut read).unwrap();
        assert_eq!(read, bytes, "{case}");
        let target = directory.path().join(format!("{case}.rwkv"));
        let mut writer = Writer::create(&target, spec(&[("g", &[("w", 16)])])).unwrap();
        writer.write("w", &read).unwrap();
        writer.finish().unwrap();
        let pack = Pack::open(&target).unwrap();
        pack.read_group(0, &mut read).unwrap();
        assert_eq!(&read[pack.manifest().groups[0].tensors[0].range()], bytes, "{case}");
    }
}

#[test]
fn the_source_is_known_by_name_length_and_hash() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("модель.pth");
    fs::write(&path, small_pth()).unwrap();
    let mut calls = Vec::new();
    let source =
        Checkpoint::open(&path).unwrap().source_info(|done, total| calls.push((done, total))).unwrap();
    let len = small_pth().len() as u64;
    assert_eq!((source.file_name.as_str(), source.len), ("модель.pth", len));
    assert_eq!(source.xxh3, Checksum::of(&small_pth()));
    assert_eq!(calls, [(len, len)]);
    // The published value of XXH3-64 for no input.
    assert_eq!(Checksum::of(b"").to_string(), "2d06800538d394c2");
}

fn opens_all(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    for (name, file) in [("m.st", small_safetensors()), ("m.pth", small_pth())] {
        let path = directory.join(name);
        fs::write(&path, file).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.iter().filter(|tensor| tensor.is_ok()).count(), 3);
        checkpoint.source_info(|_, _| {}).unwrap();
    }
    let pack = directory.join("m.rwkv");
    small_pack(&pack);
    Pack::open(&pack).unwrap().verify(|_, _| {}).unwrap();
    let error = Pack::open(directory.join("m.st")).unwrap_err();
    assert_eq!(error.file(), Some(directory.join("m.st").as_path()));
}

#[test]
fn paths_of_all_scripts() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["Загрузки/модель 1", "with space/and 'quotes\"", "模型", "-n", "a\nb"] {
        if cfg!(unix) || !name.contains(['"', '\n']) {
            opens_all(&directory.path().join(name));
        }
    }
}

/// macOS takes only UTF-8 for names.
#[cfg(target_os = "linux")]
#[test]
fn paths_that_are_not_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let directory = tempfile::tempdir().unwrap();
    opens_all(&directory.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9 \xff")));
}

/// A relative name means the working directory of the beginning. The tests of a process share one, so nothing is
/// changed here: it is enough that a bare name works.
#[test]
fn a_bare_name_is_written_to_the_working_directory() {
    let name = format!("rwkv-pack-test-{}.rwkv", std::process::id());
    let path = PathBuf::from(&name);
    let _remove = Remove(&path);
    small_pack(&path);
    Pack::open(&path).unwrap().verify(|_, _| {}).unwrap();
}

struct Remove<'a>(&'a Path);

impl Drop for Remove<'_> {
    fn drop(&mut self) {
        let _gone_already = fs::remove_file(self.0);
    }
}
