//! Text to tokens and back: `tokenize [TEXT]`.

use std::error::Error;

use rwkv_tokenizer::Tokenizer;

fn main() -> Result<(), Box<dyn Error>> {
    let text = std::env::args().nth(1).unwrap_or_else(|| "Streaming is fun: 안녕!".into());
    let world = Tokenizer::world();
    let ids = world.encode(&text);
    println!("{} bytes, {} tokens", text.len(), ids.len());

    // A token need not be whole characters: a decoder releases each of them with its last byte.
    let mut decoder = world.decoder();
    for &id in &ids {
        let bytes = world.token_bytes(id).ok_or("an encoded token is in the vocabulary")?;
        println!("{id:>6}  {:<12} {:?}", format!("\"{}\"", bytes.escape_ascii()), decoder.push(id));
    }
    assert_eq!(decoder.finish(), "", "a whole text leaves nothing behind");
    assert_eq!(world.decode(&ids)?, text.as_bytes());
    Ok(())
}
