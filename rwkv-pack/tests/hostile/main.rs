//! Files that are wrong, each through every way into this crate: an error that says what is wrong, no panic, nothing
//! left behind.

mod archives;
mod manifests;
mod pickles;
mod safetensors;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;

use rwkv_pack::PackErrorKind::{self, Checksum, Truncated, WrongFormat};
use rwkv_pack::{Pack, PackError, Writer};
use support::entry::{ENTRY_POINTS, checkpoint, pack};
use support::pth::{members, small_pth, state_dict, whole};
use support::zip::{member, zip};
use support::{names, numbers, small_pack, small_pack_bytes, small_safetensors, spec};

/// A name, a file, and what the entry points that the file is meant for must say.
type Case = (&'static str, Vec<u8>, PackErrorKind, &'static str);

/// Runs every case through every entry point. Those of `meant` must say what the case expects, the others must fail.
fn run(meant: &[&str], cases: Vec<Case>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.bin");
    let mut wrong = Vec::new();
    for (case, bytes, kind, expected) in cases {
        // Some file systems sync a file that is cut and written again.
        let _there_was_none = fs::remove_file(&path);
        fs::write(&path, bytes).unwrap();
        for (entry, enter) in ENTRY_POINTS {
            match enter(&path) {
                Ok(()) => wrong.push(format!("{case}: {entry} finds nothing wrong")),
                Err(error) => {
                    let line = error.to_string();
                    let detail =
                        line.strip_prefix(&format!("{}: ", path.display())).unwrap_or("names no file");
                    let said = error.kind() == kind && line.contains(expected);
                    if meant.contains(entry) && !said {
                        wrong.push(format!("{case}: {entry} says {:?} {detail}", error.kind()));
                    }
                    let style = detail.chars().next().is_some_and(|c| !c.is_uppercase())
                        && !line.ends_with('.')
                        && line.chars().all(|c| !c.is_control());
                    if !style || detail == "names no file" {
                        wrong.push(format!("{case}: {entry} has a bad line: {line}"));
                    }
                }
            }
        }
        if names(directory.path()) != ["m.bin"] {
            wrong.push(format!("{case}: left {:?}", names(directory.path())));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn truncated_files_of_all_formats() {
    for (format, whole) in
        [("safetensors", small_safetensors()), ("pth", small_pth()), ("pack", small_pack_bytes())]
    {
        let cut = |len: usize| ("cut", whole[..len].to_vec(), Truncated, "");
        // Every sixteenth, and every byte around the ends of the parts.
        let mut lengths: Vec<_> = (1..16).map(|nth| whole.len() * nth / 16).collect();
        lengths.extend(9..600.min(whole.len()));
        lengths.extend(whole.len() - 30..whole.len());
        let meant: &[&str] = match format {
            "safetensors" => &["checkpoint"],
            "pth" => &["checkpoint"],
            _ => &["pack"],
        };
        run(meant, lengths.into_iter().map(cut).collect());
    }
}

#[test]
fn files_that_are_something_else() {
    let cbor = b"\xa4dinfo\xa7gversionbV7ilayers\x18\x18".to_vec();
    let docx = zip(&[member("word/document.xml", b"<x/>".to_vec())], false);
    let mut script = members(state_dict(2, &[whole("a", "FloatStorage", "0", &[1])]), &[("0", numbers(4))]);
    script.push(member("archive/constants.pkl", b"\x80\x02).".to_vec()));
    let lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    run(
        &["checkpoint"],
        vec![
            ("torchscript", zip(&script, false), WrongFormat, "is a TorchScript program"),
            ("docx", docx.clone(), WrongFormat, "is a zip archive without data.pkl"),
        ],
    );
    run(
        &["pack"],
        vec![("docx", docx, WrongFormat, "is a zip archive (a torch checkpoint?), expected a pack")],
    );
    run(
        &["detect", "checkpoint", "hash", "pack"],
        vec![
            ("empty", vec![], WrongFormat, "is an empty file"),
            ("html", b"\n<!doctype html>\n<html><body>Sign in</body>".to_vec(), WrongFormat, "is a web page"),
            (
                "json",
                b"{\"error\": \"not found\"}".to_vec(),
                WrongFormat,
                "is a text file that begins with \"{\"error",
            ),
            ("lfs", lfs.into(), WrongFormat, "is a Git LFS pointer"),
            ("gguf", b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0llama".to_vec(), WrongFormat, "is a GGUF file"),
            ("prefab", cbor, WrongFormat, "is a web-rwkv prefab"),
            ("bare pickle", state_dict(2, &[]), WrongFormat, "is a bare pickle"),
            ("one byte", vec![7], WrongFormat, "has only 1 bytes"),
            ("noise", numbers(4000), WrongFormat, "is no model of a known format"),
            ("empty zip", zip(&[], false), WrongFormat, "is an empty zip archive"),
        ],
    );
}

#[test]
fn directories_and_files_that_are_not_there() {
    let directory = tempfile::tempdir().unwrap();
    for (entry, enter) in ENTRY_POINTS {
        let error = enter(directory.path()).unwrap_err();
        assert_eq!(error.kind(), WrongFormat, "{entry}");
        assert!(error.to_string().ends_with("is a directory, expected a model file"), "{entry}: {error}");
        let error = enter(&directory.path().join("none")).unwrap_err();
        assert_eq!(error.kind(), PackErrorKind::Io, "{entry}");
        assert!(std::error::Error::source(&error).is_some(), "{entry}: the reason is kept");
    }
}

#[test]
fn one_format_in_place_of_the_other() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: Vec<u8>| {
        let path = directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let says = |result: Result<(), PackError>, expected: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), WrongFormat);
        assert!(error.to_string().contains(expected), "{error}");
    };
    says(checkpoint(&file("a", small_pack_bytes())), "is a pack already, expected a checkpoint");
    says(pack(&file("b", small_safetensors())), "is a safetensors checkpoint, expected a pack");
    says(pack(&file("c", small_pth())), "is a zip archive (a torch checkpoint?), expected a pack");
}

#[test]
fn a_damaged_group_is_named_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.rwkv");
    small_pack(&path);
    let mut bytes = fs::read(&path).unwrap();
    let pack = Pack::open(&path).unwrap();
    let group = &pack.manifest().groups[2];
    bytes[group.offset as usize + 77] ^= 1;
    fs::write(&path, &bytes).unwrap();
    for error in [pack.verify(|_, _| {}).unwrap_err(), pack.read_group(2, &mut Vec::new()).unwrap_err()] {
        assert_eq!(
            (error.kind(), error.group(), error.offset()),
            (Checksum, Some("blocks.0.key"), Some(group.offset))
        );
        assert_eq!(error.file(), Some(path.as_path()));
    }
    pack.read_group(1, &mut Vec::new()).unwrap();
    let error = pack.check_group(1, &[0; 7]).unwrap_err();
    assert_eq!((error.kind(), error.group()), (Truncated, Some("blocks.0.att")));
}

#[test]
fn a_file_that_shrinks_while_it_is_open_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.rwkv");
    small_pack(&path);
    let pack = Pack::open(&path).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(pack.file_len() - 1).unwrap();
    let error = pack.verify(|_, _| {}).unwrap_err();
    assert_eq!((error.kind(), error.group()), (Truncated, Some("head.0")), "{error}");
}

#[test]
fn a_conversion_that_meets_damage_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("m.pth");
    let tensors = [whole("a", "HalfStorage", "0", &[4]), whole("b", "HalfStorage", "1", &[4])];
    let mut archive = members(state_dict(2, &tensors), &[("0", numbers(8)), ("1", numbers(8))]);
    archive[4].crc = Some(1);
    fs::write(&source, zip(&archive, false)).unwrap();
    let convert = |target: &Path| -> Result<(), PackError> {
        let checkpoint = rwkv_pack::Checkpoint::open(&source)?;
        let mut writer = Writer::create(target, spec(&[("g", &[("a", 8), ("b", 8)])]))?;
        for tensor in checkpoint.iter() {
            let (info, bytes) = tensor?;
            writer.write(&info.name, &bytes)?;
        }
        writer.finish().map(drop)
    };
    let error = convert(&directory.path().join("m.rwkv")).unwrap_err();
    assert_eq!((error.kind(), error.tensor()), (Checksum, Some("b")));
    assert_eq!(names(directory.path()), ["m.pth"]);
}
