//! A text in pieces has the ids of the text in one.

#[cfg(feature = "world")]
use proptest::prelude::*;
use rwkv_tokenizer::Tokenizer;

/// All 256 bytes and some tokens that overlap.
fn overlapping() -> Tokenizer {
    let words = ["ab", "abc", "abcdefgh", "cd", "fgh", "    ", "  ", "ef"];
    let bytes = (0..=255u8).map(|byte| (u32::from(byte) + 1, vec![byte]));
    let words = (257..).zip(words).map(|(id, word)| (id, word.as_bytes().to_vec()));
    Tokenizer::from_tokens(bytes.chain(words)).expect("a vocabulary")
}

/// The ids of a text that is cut at `cuts`, and the most bytes that were kept back.
fn in_pieces(tokenizer: &Tokenizer, text: &[u8], cuts: &[usize]) -> (Vec<u32>, usize) {
    let mut encoder = tokenizer.stream_encoder();
    let (mut ids, mut kept, mut begin) = (Vec::new(), 0, 0);
    for &end in cuts.iter().chain([&text.len()]) {
        encoder.push(&text[begin..end], &mut ids).expect("a complete vocabulary");
        kept = kept.max(encoder.pending().len());
        begin = end;
    }
    encoder.finish(&mut ids).expect("a complete vocabulary");
    (ids, kept)
}

#[test]
fn every_cut_of_short_texts() {
    let tokenizer = overlapping();
    for text in ["", "a", "abcdefg", "abcdefgh", "abcdefgabcdefghab", "       ", "abab    cd", "\u{fffd}ab"] {
        let text = text.as_bytes();
        let whole = tokenizer.encode(text);
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let (ids, kept) = in_pieces(&tokenizer, text, &[first, second]);
                assert_eq!(ids, whole, "{text:?} cut at {first}, {second}");
                assert!(kept < 8, "{kept} bytes kept back of {text:?}");
            }
        }
        let bytewise: Vec<usize> = (0..text.len()).collect();
        assert_eq!(in_pieces(&tokenizer, text, &bytewise).0, whole, "{text:?} byte by byte");
    }
}

#[test]
fn an_encoder_begins_anew_after_the_end() {
    let tokenizer = overlapping();
    let mut encoder = tokenizer.stream_encoder();
    for _ in 0..2 {
        let mut ids = Vec::new();
        encoder.push("abcd", &mut ids).expect("complete");
        encoder.finish(&mut ids).expect("complete");
        assert_eq!(ids, tokenizer.encode("abcd"));
        assert!(encoder.pending().is_empty());
    }
}

#[test]
fn the_error_of_an_incomplete_vocabulary_is_that_of_the_whole_text() {
    let tokenizer =
        Tokenizer::from_tokens([(1, "ab"), (2, "abcde"), (3, "b"), (4, "eb")]).expect("a vocabulary");
    for text in ["abcd", "abcdx", "bbe", "a", "x", "abbabcd", "abcdeb", "abb"] {
        let whole = tokenizer.try_encode(text);
        for cut in 0..=text.len() {
            let mut encoder = tokenizer.stream_encoder();
            let mut ids = Vec::new();
            let result = encoder
                .push(&text[..cut], &mut ids)
                .and_then(|()| encoder.push(&text[cut..], &mut ids))
                .and_then(|()| encoder.finish(&mut ids));
            assert_eq!(result.map(|()| ids), whole, "{text:?} cut at {cut}");
        }
    }
}

#[cfg(feature = "world")]
proptest! {
    #[test]
    fn random_cuts_of_random_texts(
        pieces in prop::collection::vec("[ \\n]{0,200}|[a-z ]{0,30}|\\PC{0,12}", 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let world = Tokenizer::world();
        let text = pieces.concat().into_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.sort_unstable();
        let (ids, kept) = in_pieces(world, &text, &cuts);
        prop_assert_eq!(ids, world.encode(&text));
        prop_assert!(kept < 128, "{} bytes kept back", kept);
    }
}
