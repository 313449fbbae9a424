//! Nothing but tokens and states decides the output: equal bits whatever the threads, the instruction set, the
//! company, and the split of a prompt.

mod support;

use rwkv_kernels::{Codec, Isa};
use rwkv_model::{Feed, Logits, Model, ModelOptions, State};
use support::random::{Numbers, config};
use support::{Packed, random_pack};

const CHUNK: usize = 16;

fn open(packed: &Packed, threads: usize, isa: Isa, chunk: usize) -> Model {
    let options = ModelOptions::default().threads(threads).isa(isa).chunk_rows(chunk);
    Model::open(&packed.path, options).expect("the pack opens")
}

/// Logits of every token, as bits, and the state after them.
fn run(model: &mut Model, pieces: &[&[u32]]) -> (Vec<u32>, State) {
    let mut state = model.new_state();
    let mut bits = Vec::new();
    for piece in pieces {
        let output = model.step(&mut [Feed::new(&mut state, piece, Logits::All)]).expect("the step succeeds");
        bits.extend(output.logits(0).iter().map(|logit| logit.to_bits()));
    }
    (bits, state)
}

#[test]
fn threads_and_instruction_sets_change_no_bit() {
    for codec in Codec::ALL {
        // Heads of 64 and of 16; groups that are whole and groups that are padded.
        for (heads, head_size) in [(2, 64), (3, 16)] {
            let config = config(2, heads, head_size);
            let (_, packed) = random_pack(&config, 5, codec);
            let tokens = Numbers::new(8).tokens(37, config.vocab);
            let expected = run(&mut open(&packed, 1, Isa::scalar(), 256), &[&tokens]);
            for &isa in Isa::available() {
                for threads in 1..=4 {
                    let found = run(&mut open(&packed, threads, isa, 256), &[&tokens]);
                    assert!(
                        found == expected,
                        "{codec}, heads of {head_size}: {isa} with {threads} threads differs"
                    );
                }
            }
        }
    }
}

#[test]
fn every_split_of_a_prompt_gives_the_same_bits() {
    for codec in [Codec::F32, Codec::U8] {
        let config = config(2, 3, 16);
        let (_, packed) = random_pack(&config, 6, codec);
        let tokens = Numbers::new(9).tokens(70, config.vocab);
        let expected = run(&mut open(&packed, 1, Isa::detect(), 256), &[&tokens]);
        let mut model = open(&packed, 2, Isa::detect(), CHUNK);
        for split in 0..=tokens.len() {
            let (first, second) = tokens.split_at(split);
            assert!(run(&mut model, &[first, second]) == expected, "{codec}: split at {split} differs");
        }
        for size in [1, 2, 7, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1, 69] {
            let pieces: Vec<&[u32]> = tokens.chunks(size).collect();
            assert!(run(&mut model, &pieces) == expected, "{codec}: pieces of {size} differ");
        }
        for chunk in [1, 3, 69, 70, 71] {
            let mut model = open(&packed, 2, Isa::detect(), chunk);
            assert!(run(&mut model, &[&tokens]) == expected, "{codec}: sweeps of {chunk} rows differ");
        }
    }
}

#[test]
fn company_changes_no_bit() {
    let config = config(2, 2, 32);
    for codec in [Codec::F32, Codec::U8] {
        let (_, packed) = random_pack(&config, 7, codec);
        let mut model = open(&packed, 2, Isa::detect(), CHUNK);
        let mut numbers = Numbers::new(10);
        let prompts: Vec<Vec<u32>> =
            [1, 5, 40, 1, 17, 16].iter().map(|&len| numbers.tokens(len, config.vocab)).collect();
        let alone: Vec<(Vec<u32>, State)> = prompts.iter().map(|prompt| run(&mut model, &[prompt])).collect();
        for order in [vec![0, 1, 2, 3, 4, 5], vec![5, 4, 3, 2, 1, 0], vec![3, 0], vec![2, 2, 2], vec![1]] {
            let mut states: Vec<State> = order.iter().map(|_| model.new_state()).collect();
            let mut feeds: Vec<Feed<'_>> = states
                .iter_mut()
                .zip(&order)
                .map(|(state, &i)| Feed::new(state, &prompts[i], Logits::All))
                .collect();
            let output = model.step(&mut feeds).expect("the step succeeds");
            for (place, &i) in order.iter().enumerate() {
                let bits: Vec<u32> = output.logits(place).iter().map(|logit| logit.to_bits()).collect();
                assert!(bits == alone[i].0, "{codec}: logits of prompt {i} in {order:?} differ");
            }
            for (state, &i) in states.iter().zip(&order) {
                assert!(*state == alone[i].1, "{codec}: state of prompt {i} in {order:?} differs");
            }
        }
    }
}

#[test]
fn wanting_fewer_logits_changes_neither_the_others_nor_the_state() {
    let config = config(2, 2, 32);
    let (_, packed) = random_pack(&config, 7, Codec::U8);
    let mut model = open(&packed, 2, Isa::detect(), CHUNK);
    let tokens = Numbers::new(4).tokens(40, config.vocab);
    let (all, after) = run(&mut model, &[&tokens]);
    for (logits, rows) in [(Logits::None, 0), (Logits::Last, 1)] {
        let mut state = model.new_state();
        let output = model.step(&mut [Feed::new(&mut state, &tokens, logits)]).unwrap();
        let bits: Vec<u32> = output.logits(0).iter().map(|logit| logit.to_bits()).collect();
        assert_eq!(bits, all[(tokens.len() - rows) * config.vocab..], "{logits:?}");
        assert!(state == after, "{logits:?}");
    }
}
