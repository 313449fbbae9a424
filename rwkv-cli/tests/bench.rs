//! `rwkv bench`: the keys that scripts rely on, and numbers that make sense. How fast is not tested.

mod support;

use support::Lab;

#[test]
fn json_has_the_promised_keys() {
    let lab = Lab::new();
    let bench = lab.run("bench tiny.rwkv --json --repeat 1 --threads 1,2 --prompt-tokens 16 --quiet").ok();
    let reports: Vec<serde_json::Value> =
        bench.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(reports.len(), 2);
    for (report, threads) in reports.iter().zip([1, 2]) {
        for key in [
            "decode_tokens_per_s",
            "decode_bytes_per_token",
            "decode_gb_per_s",
            "memory_gb_per_s",
            "prefill_tokens_per_s",
            "prefill_gmac_per_s",
            "peak_int8_gmac_per_s",
        ] {
            assert!(report[key].as_f64().is_some_and(|number| number > 0.0), "{key} in {report}");
        }
        let share = report["skipped_share"].as_f64().expect("a share");
        assert!((0.5..1.0).contains(&share), "{share} of the inputs are zero");
        assert_eq!(report["threads"], threads);
        assert_eq!(report["codec"], "f32");
        assert!(rwkv_model::kernels::Isa::available().iter().any(|isa| report["isa"] == isa.name()));
        let facts = lab.run("inspect tiny.rwkv --json").ok().json();
        assert_eq!(report["decode_bytes_per_token"], facts["swept_bytes"]);
    }
}

#[test]
fn sessions_are_held_against_one_after_another() {
    let lab = Lab::new();
    let bench = "bench tiny.rwkv --json --repeat 1 --threads 1 --sessions 1,3 --tokens 4 --quiet";
    let bench = lab.run(bench).ok();
    let reports: Vec<serde_json::Value> =
        bench.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(reports.len(), 2);
    for (report, sessions) in reports.iter().zip([1, 3]) {
        assert_eq!((&report["sessions"], &report["tokens_per_session"]), (&sessions.into(), &4.into()));
        let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key} in {report}"));
        let speedup = number("combined_tokens_per_s") / number("one_by_one_tokens_per_s");
        assert!((number("speedup") / speedup - 1.0).abs() < 1e-9, "{report}");
        assert!(number("ms_per_sweep") > 0.0, "{report}");
        assert_eq!(number("read_bytes_per_sweep"), 0.0, "all weights are in memory");
    }
    lab.run("bench tiny.rwkv --tokens 4").fails(2, "--sessions");
}

#[test]
fn attention_is_measured_at_a_depth() {
    let lab = Lab::new();
    lab.hybrid("x.rwkv");
    let bench = "bench x.rwkv --json --repeat 1 --threads 1 --prompt-tokens 16 --quiet";
    let report = |options: &str| lab.run(&format!("{bench} {options}")).ok().json();
    let f16 = report("--context 100");
    assert_eq!(f16["context"], 100);
    // Two attention blocks of 64 channels, in blocks of 64 tokens.
    assert_eq!(f16["kv_bytes"], 2 * 2 * 64 * 2 * 128);
    assert_eq!(report("--context 100 --kv f32")["kv_bytes"], 2 * 2 * 64 * 4 * 128);
    let window = report("--context 300 --attention window:64")["kv_bytes"].as_u64().expect("bytes");
    assert!(window <= 2 * 2 * 64 * 2 * 128, "{window} bytes of a window of 64");
    for sessions in ["", "--sessions 2"] {
        lab.run(&format!("bench tiny.rwkv --kv f32 {sessions}")).fails(2, "is RWKV-7, without attention");
    }
}
