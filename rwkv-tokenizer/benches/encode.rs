//! Speed of encoding, decoding and loading, in bytes of text per second.
//!
//! `cargo bench -p rwkv-tokenizer`. The comparison with another tokenizer is in `benches/peer`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rwkv_tokenizer::Tokenizer;

mod corpus;

const MIXED_BYTES: usize = 2 << 20;
const SINGLE_BYTES: usize = 256 << 10;

fn texts() -> Vec<(&'static str, String)> {
    let mut texts = vec![
        ("mixed", corpus::mixed(MIXED_BYTES)),
        ("english", corpus::of(corpus::english, SINGLE_BYTES)),
        ("words", corpus::of(corpus::words, SINGLE_BYTES)),
        ("code", corpus::of(corpus::code, SINGLE_BYTES)),
        ("chinese", corpus::of(corpus::chinese, SINGLE_BYTES)),
        ("japanese", corpus::of(corpus::japanese, SINGLE_BYTES)),
        ("korean", corpus::of(corpus::korean, SINGLE_BYTES)),
        ("european", corpus::of(corpus::european, SINGLE_BYTES)),
        ("data", corpus::of(corpus::data, SINGLE_BYTES)),
        ("chat", corpus::of(corpus::chat, SINGLE_BYTES)),
    ];
    texts.extend(corpus::adversarial(SINGLE_BYTES));
    texts
}

fn encode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("encode");
    for (name, text) in texts() {
        group.throughput(Throughput::Bytes(text.len() as u64));
        let mut ids = Vec::new();
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                ids.clear();
                Tokenizer::world().encode_into(black_box(&text), &mut ids);
                black_box(ids.len())
            });
        });
    }
    group.finish();
}

fn decode(criterion: &mut Criterion) {
    let text = corpus::mixed(MIXED_BYTES);
    let ids = Tokenizer::world().encode(&text);
    let mut group = criterion.benchmark_group("decode");
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("bytes", |bencher| {
        let mut bytes = Vec::new();
        bencher.iter(|| {
            bytes.clear();
            Tokenizer::world().decode_into(black_box(&ids), &mut bytes).expect("its own ids");
        });
    });
    group.bench_function("stream", |bencher| {
        let mut decoder = Tokenizer::world().decoder();
        bencher.iter(|| ids.iter().map(|&id| decoder.push(black_box(id)).len()).sum::<usize>());
    });
    group.finish();
}

fn load(criterion: &mut Criterion) {
    let text = include_bytes!("../vocab/rwkv_vocab_v20230424.txt");
    let mut group = criterion.benchmark_group("load");
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("world", |bencher| {
        bencher.iter(|| Tokenizer::from_bytes(black_box(text)).expect("the World vocabulary"));
    });
    group.finish();
}

criterion_group!(
    name = benches;
    config = Criterion::default().sample_size(30);
    targets = encode, decode, load
);
criterion_main!(benches);
