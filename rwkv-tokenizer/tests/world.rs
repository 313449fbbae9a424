//! Facts about the embedded World vocabulary.

#![cfg(feature = "world")]

use std::collections::HashSet;

use rwkv_tokenizer::{DecodeError, END_OF_TEXT, Tokenizer};

#[test]
fn the_vocabulary_has_its_published_size() {
    let world = Tokenizer::world();
    assert_eq!(world.vocab_size(), 65530);
    assert!(world.is_complete());
    let tokens: Vec<&[u8]> = (0..70_000).filter_map(|id| world.token_bytes(id)).collect();
    assert_eq!(tokens.len(), 65529);
    assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), 65529);
    assert_eq!(tokens.iter().map(|token| token.len()).max(), Some(128));
    assert_eq!(tokens.iter().filter(|token| str::from_utf8(token).is_err()).count(), 486);
}

#[test]
fn lines_that_are_easy_to_read_wrongly() {
    let cases: [(u32, &[u8]); 15] = [
        (1, b"\0"),
        (33, b" "),
        (35, b"\""),
        (40, b"'"),
        (93, b"\\"),
        (129, b"\x80"),
        (150, b"\x95"),
        (256, b"\xff"),
        (261, b"\n\n"),
        (263, b"\r\n"),
        (2423, b"\xc2\x80"),
        (3266, b"\xeb\x85"),
        (18815, "안".as_bytes()),
        (19232, "\u{fffd}".as_bytes()),
        (65529, &[b' '; 128]),
    ];
    for (id, token) in cases {
        assert_eq!(Tokenizer::world().token_bytes(id), Some(token), "id {id}");
        assert_eq!(Tokenizer::world().id_of(token), Some(id), "id {id}");
    }
}

#[test]
fn every_id_round_trips() {
    let world = Tokenizer::world();
    for id in 1..=65529 {
        let bytes = world.decode(&[id]).expect("an id of the vocabulary");
        assert_eq!(world.token_bytes(id), Some(&bytes[..]), "id {id}");
        assert_eq!(world.id_of(&bytes), Some(id), "id {id}");
        assert_eq!(world.encode(&bytes), [id], "the longest match of a token is itself");
        assert_eq!(world.decode_lossy(&[id]), String::from_utf8_lossy(&bytes), "id {id}");
    }
}

#[test]
fn the_end_of_text_has_no_bytes() {
    let world = Tokenizer::world();
    assert_eq!(world.token_bytes(END_OF_TEXT), None);
    assert_eq!(world.id_of(b""), None);
    assert_eq!(world.decode(&[0, 98, 0]).as_deref(), Ok(&b"a"[..]));
    assert_eq!(world.decode_lossy(&[0]), "");
    let bytes: Vec<u8> = (0..=255).collect();
    assert!(!world.encode(bytes.repeat(3)).contains(&END_OF_TEXT));
    assert!(!world.encode("<|endoftext|>").contains(&END_OF_TEXT));
}

#[test]
fn unknown_ids_are_named_or_replaced() {
    let world = Tokenizer::world();
    for id in [65530, 65535, 70_000, u32::MAX] {
        assert_eq!(world.token_bytes(id), None, "id {id}");
        assert_eq!(world.decode(&[98, id, 99]), Err(DecodeError { id, position: 1 }));
        assert_eq!(world.decode_lossy(&[98, id, 99]), "a\u{fffd}b");
        let mut bytes = b"before".to_vec();
        assert!(world.decode_into(&[98, id], &mut bytes).is_err());
        assert_eq!(bytes, b"before", "an error leaves the buffer as it was");
    }
    let message = world.decode(&[98, 65530]).expect_err("not in the vocabulary").to_string();
    assert_eq!(
        message,
        "token id 65530 at position 1 is not in the vocabulary, expected one of its ids or 0"
    );
}

#[test]
fn pieces_of_tokens_are_not_tokens() {
    let world = Tokenizer::world();
    for absent in [&[b' '; 127][..], &[b' '; 129], b"\xeb\x85\x00", b"zzzzzzzzzz"] {
        assert_eq!(world.id_of(absent), None, "{absent:?}");
    }
}

#[test]
fn threads_share_the_tokenizer() {
    let expected = Tokenizer::world().encode("shared between threads");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(Tokenizer::world().encode("shared between threads"), expected));
        }
    });
}
