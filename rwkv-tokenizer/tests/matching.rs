//! Longest match against its plain definition, on generated vocabularies and texts.

use std::collections::HashMap;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use rwkv_tokenizer::{EncodeError, Tokenizer};

/// At each position, try every length from the longest token down.
fn definition(tokens: &HashMap<Vec<u8>, u32>, text: &[u8]) -> Result<Vec<u32>, EncodeError> {
    let longest = tokens.keys().map(Vec::len).max().unwrap_or(0);
    let (mut ids, mut offset) = (Vec::new(), 0);
    while offset < text.len() {
        let rest = &text[offset..];
        let found =
            (1..=longest.min(rest.len())).rev().find_map(|len| Some((len, *tokens.get(&rest[..len])?)));
        let (len, id) = found.ok_or(EncodeError { offset, byte: text[offset] })?;
        ids.push(id);
        offset += len;
    }
    Ok(ids)
}

fn tokenizer(tokens: &HashMap<Vec<u8>, u32>) -> Tokenizer {
    Tokenizer::from_tokens(tokens.iter().map(|(token, &id)| (id, token))).expect("a vocabulary")
}

/// Few letters, so that tokens overlap, nest and repeat.
fn letters(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![4 => Just(b'a'), 3 => Just(b'b'), 1 => Just(b'c'), 1 => Just(0xff)], len)
}

fn vocabulary() -> impl Strategy<Value = HashMap<Vec<u8>, u32>> {
    btree_set(letters(1..9), 1..30).prop_map(|tokens| tokens.into_iter().zip(1..).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_vocabulary_agrees_with_the_definition(tokens in vocabulary(), text in letters(0..80)) {
        let found = tokenizer(&tokens).try_encode(&text);
        prop_assert_eq!(&found, &definition(&tokens, &text));
        if let Ok(ids) = found {
            prop_assert_eq!(tokenizer(&tokens).decode(&ids).expect("known ids"), text);
        }
    }

    #[test]
    fn texts_of_tokens_and_pieces_of_tokens(
        tokens in vocabulary(),
        pieces in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..20),
    ) {
        let mut sorted: Vec<&Vec<u8>> = tokens.keys().collect();
        sorted.sort();
        let text: Vec<u8> = pieces
            .iter()
            .flat_map(|(token, len)| {
                let token = token.get(&sorted);
                token[..=len.index(token.len())].to_vec()
            })
            .collect();
        prop_assert_eq!(tokenizer(&tokens).try_encode(&text), definition(&tokens, &text));
    }
}

#[cfg(feature = "world")]
mod world {
    use std::sync::LazyLock;

    use super::*;

    static TOKENS: LazyLock<HashMap<Vec<u8>, u32>> = LazyLock::new(|| {
        let world = Tokenizer::world();
        (1..65_530).filter_map(|id| Some((world.token_bytes(id)?.to_vec(), id))).collect()
    });

    fn pieces() -> impl Strategy<Value = Vec<u8>> {
        let token =
            (1u32..65_530).prop_map(|id| Tokenizer::world().token_bytes(id).unwrap_or_default().to_vec());
        let long = (65_000u32..65_530)
            .prop_map(|id| Tokenizer::world().token_bytes(id).unwrap_or_default().to_vec());
        let cut = (prop_oneof![token.clone(), long.clone()], any::<prop::sample::Index>())
            .prop_map(|(token, len)| token[..=len.index(token.len())].to_vec());
        let run =
            (prop::sample::select(&b" \n\t-=*#/0a"[..]), 1usize..300).prop_map(|(byte, len)| vec![byte; len]);
        prop_oneof![
            4 => token,
            1 => long,
            3 => cut,
            1 => run,
            2 => any::<String>().prop_map(String::into_bytes),
            2 => vec(any::<u8>(), 0..40),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn world_agrees_with_the_definition(pieces in vec(pieces(), 0..12)) {
            let text = pieces.concat();
            let ids = Tokenizer::world().encode(&text);
            prop_assert_eq!(&ids, &definition(&TOKENS, &text).expect("a complete vocabulary"));
            prop_assert!(!ids.contains(&0));
            prop_assert_eq!(Tokenizer::world().decode(&ids).expect("known ids"), text);
        }
    }
}
