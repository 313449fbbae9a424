//! Encoding by this crate and by the published crate `rwkv-tokenizer`, on the same texts in the same run.
//!
//! `cargo bench --manifest-path rwkv-tokenizer/benches/peer/Cargo.toml`

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

#[path = "../../corpus/mod.rs"]
#[allow(dead_code, reason = "this bench uses a part of the texts")]
mod corpus;

const VOCABULARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vocab/rwkv_vocab_v20230424.txt");

fn compare(criterion: &mut Criterion) {
    let ours = ours::Tokenizer::world();
    let peer = peer::WorldTokenizer::new(Some(VOCABULARY)).expect("the vocabulary");
    let mut texts = vec![("mixed", corpus::mixed(2 << 20))];
    texts.extend(corpus::adversarial(256 << 10));

    let mut group = criterion.benchmark_group("encode");
    for (name, text) in texts {
        let same = ours.encode(&text).into_iter().eq(peer.encode(&text).into_iter().map(u32::from));
        assert!(same, "{name}: both must find the same ids");
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(BenchmarkId::new("ours", name), |bencher| {
            bencher.iter(|| ours.encode(black_box(&text)));
        });
        group.bench_function(BenchmarkId::new("peer", name), |bencher| {
            bencher.iter(|| peer.encode(black_box(&text)));
        });
    }
    group.finish();
}

criterion_group!(
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = compare
);
criterion_main!(benches);
