//! Checkpoints are packed once, found again, and packed again when they change; packs are inspected and verified.

mod support;

use std::fs;
use std::time::{Duration, SystemTime};

use support::Lab;

const RUN: &str = "run model.safetensors --vocab tiny.vocab -p x -n 1";

/// Sets a file's time of modification.
fn touch(lab: &Lab, name: &str, seconds: u64) {
    let file = fs::File::options().append(true).open(lab.path(name)).expect("the file");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).expect("its time");
}

fn packs(run: support::Ended) -> bool {
    run.ok().stderr.contains("packing as")
}

#[test]
fn a_checkpoint_is_packed_beside_it_and_found_again() {
    let lab = Lab::new();
    lab.checkpoint("model.safetensors", 1);
    touch(&lab, "model.safetensors", 1_000_000);
    assert!(packs(lab.run(RUN)));
    assert!(lab.path("model.u8.rwkv").exists() && !lab.path("cache").exists());
    assert!(!packs(lab.run(RUN)), "it is found again");
    assert!(packs(lab.run(&format!("{RUN} --codec f16"))), "another codec is another pack");
    assert!(!packs(lab.run(&format!("{RUN} --codec f16"))) && !packs(lab.run(RUN)), "both are found again");
    touch(&lab, "model.safetensors", 2_000_000);
    assert!(!packs(lab.run(RUN)), "another time, the same bytes");
    lab.checkpoint("model.safetensors", 2);
    assert!(packs(lab.run(RUN)), "other bytes of the same length");
    assert!(!packs(lab.run(RUN)));
}

#[test]
fn files_of_others_are_left_alone() {
    let lab = Lab::new();
    lab.checkpoint("model.safetensors", 1);
    lab.write("model.u8.rwkv", "my diary");
    assert!(packs(lab.run(RUN)));
    assert_eq!(fs::read(lab.path("model.u8.rwkv")).expect("the diary"), b"my diary");
    assert!(!packs(lab.run(RUN)), "the pack in the cache directory is found again");
    assert_eq!(fs::read_dir(lab.path("cache/packs")).expect("the cache").count(), 1);
}

#[cfg(unix)]
#[test]
fn a_folder_that_is_read_only_is_left_alone() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new();
    fs::create_dir(lab.path("ro")).expect("a folder");
    lab.checkpoint("ro/model.safetensors", 1);
    fs::set_permissions(lab.path("ro"), fs::Permissions::from_mode(0o555)).expect("its mode");
    let run = "run ro/model.safetensors --vocab tiny.vocab -p x -n 1";
    assert!(packs(lab.run(run)));
    assert!(!packs(lab.run(run)));
    assert_eq!(fs::read_dir(lab.path("ro")).expect("the folder").count(), 1);
    fs::set_permissions(lab.path("ro"), fs::Permissions::from_mode(0o755)).expect("its mode");
}

#[cfg(target_os = "linux")]
#[test]
fn names_of_all_kinds() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let lab = Lab::new();
    lab.checkpoint("model", 1);
    for name in ["Загрузки модель 1.st".as_bytes(), b"not \xff utf-8.st", b"-dash.st"] {
        let path = lab.path("").join(OsStr::from_bytes(name));
        fs::copy(lab.path("model"), &path).expect("a copy");
        let output = lab
            .command(["run", "--vocab", "tiny.vocab", "-p", "x", "-n", "1"])
            .arg(&path)
            .output()
            .expect("it runs");
        support::Ended::new(&path.to_string_lossy(), output).ok();
    }
}

#[test]
fn pack_writes_what_is_asked_for() {
    let lab = Lab::new();
    lab.checkpoint("model.safetensors", 1);
    lab.run("pack model.safetensors --codec u4 --codec-for head.weight=f32 --codec-for *.ffn.value.weight=f16 -o m.rwkv").ok();
    let facts = lab.run("inspect m.rwkv --json").ok().json();
    assert_eq!((&facts["format"], &facts["codec"]), (&"pack".into(), &"u4".into()));
    let codec = |group: &str| {
        let groups = facts["groups"].as_array().expect("groups");
        let found = groups.iter().find(|entry| entry["name"] == group).expect("the group");
        found["tensors"][0]["codec"].as_str().map(str::to_owned)
    };
    assert_eq!(codec("head.0").as_deref(), Some("f32"));
    assert_eq!(codec("blocks.1.value").as_deref(), Some("f16"));
    assert_eq!(codec("blocks.1.att").as_deref(), Some("u4"));
    assert_eq!(codec("blocks.1.key").as_deref(), Some("u8"));
    lab.run("pack model.safetensors -o m.rwkv").fails(2, "m.rwkv: exists already; --force replaces it");
    let report = lab.run("pack model.safetensors -o m.rwkv --force --json").ok().json();
    assert_eq!(report["codec"], "u8");
    assert_eq!(
        report["bytes"].as_u64(),
        fs::metadata(lab.path("m.rwkv")).ok().map(|metadata| metadata.len())
    );
    lab.run("pack model.safetensors -o model.safetensors --force").fails(2, "is the checkpoint itself");
    lab.run("pack model.safetensors -o cache/none/m.rwkv").fails(1, "cannot be written");
    lab.run("pack model.safetensors -o .").fails(2, "is a directory");
    lab.run("pack model.safetensors -o n.rwkv --codec-for nothing=f16")
        .fails(2, "\"nothing\" matches no matrix");
    lab.run("pack model.safetensors -o n.rwkv --codec-for head.weight").fails(2, "expected PATTERN=CODEC");
    lab.run("pack model.safetensors -o n.rwkv --codec-for head.weight=q4").fails(2, "unknown codec \"q4\"");
    lab.run("pack m.rwkv -o n.rwkv").fails(3, "is a pack already");
    assert!(!lab.path("n.rwkv").exists());
}

#[test]
fn inspect_says_what_a_file_is() {
    let lab = Lab::new();
    lab.checkpoint("model.safetensors", 1);
    let facts = lab.run("inspect tiny.rwkv --json").ok().json();
    assert_eq!(facts["model"]["family"], "rwkv7");
    assert_eq!(facts["model"]["config"]["vocab"], 272);
    assert_eq!(facts["version"], 1);
    assert_eq!(facts["parameters"].as_u64(), Some(support::config(272).parameters()));
    for key in ["file", "file_bytes", "codecs", "swept_bytes", "state_bytes", "source", "groups"] {
        assert!(!facts[key].is_null(), "{key}");
    }
    assert!(facts["groups"][0]["checksum"].as_str().is_some_and(|sum| sum.len() == 16));
    let facts = lab.run("inspect model.safetensors --json").ok().json();
    assert_eq!((&facts["format"], &facts["family"]), (&"safetensors".into(), &"RWKV-7".into()));
    assert_eq!(facts["model"]["layers"], 2);
    for (file, parts) in [
        ("tiny.rwkv", ["pack, version 1", "2 of width 64 (1 heads of 64), ffn 128", "blocks.1.value"]),
        ("model.safetensors", ["safetensors checkpoint", "2 of width 64", "of BF16"]),
    ] {
        let text = lab.run(&format!("inspect {file}")).ok();
        for part in parts {
            assert!(text.text().contains(part), "{part:?} in {}", text.text());
        }
        assert!(
            lab.run(&format!("inspect {file} --tensors"))
                .ok()
                .text()
                .contains("blocks.0.att.receptance.weight")
        );
    }
}

#[test]
fn verify_finds_a_flipped_bit() {
    let lab = Lab::new();
    lab.checkpoint("model.safetensors", 1);
    let good = lab.run("verify tiny.rwkv model.safetensors").ok();
    assert!(
        good.text().contains("tiny.rwkv: ok, ") && good.text().contains("model.safetensors: ok, "),
        "{}",
        good.text()
    );
    assert_eq!(lab.run("verify tiny.rwkv --json").ok().json()["ok"], true);
    let mut bytes = fs::read(lab.path("tiny.rwkv")).expect("the pack");
    let at = bytes.len() - 5000;
    bytes[at] ^= 1;
    lab.write("bad.rwkv", bytes);
    lab.run("verify bad.rwkv").fails(3, "expected").fails(3, "the file is damaged");
    let both = lab.run("verify bad.rwkv tiny.rwkv").fails(3, "1 of 2 files are bad");
    assert!(both.text().contains("tiny.rwkv: ok"), "{}", both.text());
    lab.run("run bad.rwkv --vocab tiny.vocab -p x -n 1").fails(3, "the file is damaged");
}
