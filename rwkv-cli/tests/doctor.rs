//! `rwkv doctor`, and the speeds that `rwkv plan` predicts: what is said, and that it follows from what was measured. How fast the
//! machine is is not tested.

mod support;

use serde_json::Value;
use support::Lab;

fn number(report: &Value, key: &str) -> f64 {
    report[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {report}"))
}

#[test]
fn the_machine_and_every_official_size() {
    let lab = Lab::new();
    let report = lab.run("doctor tiny.rwkv --json --threads 1").ok().json();
    for key in ["memory_gb_per_s", "disk_gb_per_s", "processors"] {
        assert!(number(&report, key) > 0.0, "{key} in {report}");
    }
    assert_eq!((&report["threads"], &report["disk"]), (&1.into(), &"tiny.rwkv".into()));
    assert!(rwkv_model::kernels::Isa::available().iter().any(|isa| report["isa"] == isa.name()));
    let models = report["models"].as_array().expect("models");
    assert_eq!(models.len(), 3 * rwkv_model::Config::official_names().count());
    for model in models {
        let residency = model["residency"].as_str().expect("a residency");
        assert!(["resident", "stream", "none"].contains(&residency), "{model}");
        assert_eq!(model["predicted_tokens_per_s"].as_f64().is_some(), residency != "none", "{model}");
    }
}

#[test]
fn a_budget_decides_what_streams() {
    let lab = Lab::new();
    let report = lab.run("doctor tiny.rwkv --json --ram 1GiB").ok().json();
    let of = |name: &str, codec: &str| {
        let models = report["models"].as_array().expect("models");
        models.iter().find(|model| model["model"] == name && model["codec"] == codec).expect("the model")
    };
    let fits = of("0.1b", "u8");
    assert_eq!(fits["pinned_groups"], fits["swept_groups"], "{fits}");
    let streams = of("7.2b", "f16");
    assert!(number(streams, "pinned_groups") < number(streams, "swept_groups"), "{streams}");
    let seconds = number(streams, "read_bytes_per_token") / (1e9 * number(&report, "disk_gb_per_s"));
    let ratio = number(streams, "predicted_read_s_per_token") / seconds;
    assert!((0.99..1.01).contains(&ratio), "{streams}");
    let slower = seconds.max(number(streams, "predicted_compute_s_per_token"));
    let ratio = number(streams, "predicted_tokens_per_s") * slower;
    assert!((0.99..1.01).contains(&ratio), "{streams}");
    assert_eq!(of("13.3b", "f16")["budget"], 1 << 30);
}

#[test]
fn the_table_and_the_directory() {
    let lab = Lab::new();
    let text = lab.run("doctor --dir . --quiet").ok().text().to_owned();
    for part in ["processor", "available", "disk", "GB/s", "13.3b", "x-3.6b", "u4"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let left = std::fs::read_dir(lab.path(".")).expect("the folder").flatten();
    let left: Vec<String> = left.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(!left.iter().any(|name| name.starts_with(".rwkv-doctor")), "{left:?}");
    lab.run("doctor --dir nowhere").fails(1, "nowhere: no file can be written there");
    lab.run("doctor missing.rwkv").fails(1, "missing.rwkv");
    lab.run("doctor tiny.rwkv --dir .").fails(2, "--dir");
    lab.run("doctor tiny.rwkv --ram 12Q").fails(2, "is no size");
}

#[test]
fn a_plan_predicts_from_what_it_measures() {
    let lab = Lab::new();
    let resident = lab.run("plan tiny.rwkv --json --threads 1").ok().json();
    assert!(number(&resident, "predicted_tokens_per_s") > 0.0 && resident["disk_gb_per_s"].is_null());
    assert!(number(&resident["kernel_gb_per_s"], "f32") > 0.0, "{resident}");
    let ram = number(&resident, "smallest_budget");
    let streamed = lab.run(&format!("plan tiny.rwkv --json --ram {ram}")).ok().json();
    let seconds = number(&streamed, "read_bytes_per_token") / (1e9 * number(&streamed, "disk_gb_per_s"));
    let ratio = number(&streamed, "predicted_read_s_per_token") / seconds;
    assert!((0.99..1.01).contains(&ratio), "{streamed}");
    let mapped = lab.run("plan tiny.rwkv --json --residency mmap").ok().json();
    assert!(mapped["predicted_tokens_per_s"].is_null(), "{mapped}");
    let silent = lab.run("plan tiny.rwkv --json --no-probe").ok().json();
    assert!(silent["kernel_gb_per_s"].is_null() && silent["memory"].is_number(), "{silent}");
    let text = lab.run(&format!("plan tiny.rwkv --ram {ram}")).ok().text().to_owned();
    assert!(text.contains("tokens/s") && text.contains("disk"), "{text}");
    let text = lab.run("plan tiny.rwkv --no-probe").ok().text().to_owned();
    assert!(!text.contains("tokens/s"), "{text}");
}
