//! The streaming decoder: complete characters at once, nothing lost, never stalled.

#![cfg(feature = "world")]

use std::sync::Arc;

use proptest::prelude::*;
use rwkv_tokenizer::{Decoder, Tokenizer};

/// What each push returns, and then what the end returns.
fn stream(ids: &[u32]) -> (Vec<String>, String) {
    let mut decoder = Tokenizer::world().decoder();
    let released = ids.iter().map(|&id| decoder.push(id).to_owned()).collect();
    (released, decoder.finish().to_owned())
}

#[test]
fn what_is_released_when() {
    let cases: [(&str, &[u32], &[&str], &str); 14] = [
        ("no tokens", &[], &[], ""),
        ("a character in two tokens", &[18815, 3266, 150, 19052], &["안", "", "녕", "하"], ""),
        ("emoji in three tokens", &[3319, 153, 129], &["", "", "😀"], ""),
        ("cut inside an emoji", &[98, 3319, 153], &["a", "", ""], "\u{fffd}"),
        ("end of text", &[98, 0, 99], &["a", "", "b"], ""),
        ("end of text inside a character", &[3266, 0, 150], &["", "", "녕"], ""),
        ("a stray byte", &[256, 98, 99], &["\u{fffd}", "a", "b"], ""),
        ("two stray bytes", &[256, 256], &["\u{fffd}", "\u{fffd}"], ""),
        ("a continuation alone", &[129, 98], &["\u{fffd}", "a"], ""),
        ("a character broken by a letter", &[3266, 98], &["", "\u{fffd}a"], ""),
        ("a character broken by another's start", &[3266, 3266, 150], &["", "\u{fffd}", "녕"], ""),
        ("the token that is the replacement", &[19232, 98], &["\u{fffd}", "a"], ""),
        ("an unknown id", &[98, 65535, 99], &["a", "\u{fffd}", "b"], ""),
        ("an unknown id inside a character", &[3266, 70_000, 98], &["", "\u{fffd}\u{fffd}", "a"], ""),
    ];
    for (name, ids, released, end) in cases {
        let (found, found_end) = stream(ids);
        assert_eq!(found, released, "{name}");
        assert_eq!(found_end, end, "{name}");
        assert_eq!(found.concat() + &found_end, Tokenizer::world().decode_lossy(ids), "{name}");
    }
}

#[test]
fn only_the_incomplete_character_is_pending() {
    let mut decoder = Tokenizer::world().decoder();
    assert_eq!(decoder.pending(), b"");
    assert_eq!(decoder.push_all(&[98, 3319]), "a");
    assert_eq!(decoder.pending(), b"\xf0\x9f");
    assert_eq!(decoder.push(153), "");
    assert_eq!(decoder.pending(), b"\xf0\x9f\x98");
    assert_eq!(decoder.finish(), "\u{fffd}");
    assert_eq!(decoder.pending(), b"");
    assert_eq!(decoder.finish(), "", "the end is told once");
    assert_eq!(decoder.push_all(&[98, 99]), "ab", "the decoder is at the start of a new text");
}

#[test]
fn a_decoder_can_own_its_tokenizer() {
    let tokenizer = Tokenizer::from_tokens([(1, "a"), (2, "b")]).expect("two tokens");
    let mut decoder = Decoder::new(Arc::new(tokenizer));
    let mut moved = std::thread::spawn(move || {
        assert_eq!(decoder.push(2), "b");
        decoder
    })
    .join()
    .expect("no panic");
    assert_eq!(moved.push(1), "a");
}

proptest! {
    #[test]
    fn the_parts_are_the_whole(ids in prop::collection::vec(any_id(), 0..40), split in 0usize..40) {
        let (released, end) = stream(&ids);
        let whole = Tokenizer::world().decode_lossy(&ids);
        prop_assert_eq!(released.concat() + &end, whole.clone());

        let (first, second) = ids.split_at(split.min(ids.len()));
        let mut decoder = Tokenizer::world().decoder();
        let mut text = decoder.push_all(first).to_owned();
        prop_assert!(decoder.pending().len() <= 3);
        text += decoder.push_all(second);
        text += decoder.finish();
        prop_assert_eq!(text, whole);
    }

    #[test]
    fn valid_text_comes_out_character_by_character(text in any::<String>()) {
        // Byte tokens are the worst case: every character is released with its last byte.
        let mut decoder = Tokenizer::world().decoder();
        let mut released = String::new();
        for (at, byte) in text.bytes().enumerate() {
            released += decoder.push(u32::from(byte) + 1);
            let complete = (0..=at + 1).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
            prop_assert_eq!(&released, &text[..complete]);
        }
        prop_assert_eq!(decoder.finish(), "");
    }
}

/// Mostly tokens that are not whole characters, so that they meet.
fn any_id() -> impl Strategy<Value = u32> {
    let fragments: Vec<u32> = (0..65_530)
        .filter(|&id| Tokenizer::world().token_bytes(id).is_none_or(|token| str::from_utf8(token).is_err()))
        .collect();
    prop_oneof![
        8 => prop::sample::select(fragments),
        3 => 0u32..66_000,
        1 => Just(0u32),
        1 => any::<u32>(),
    ]
}
