//! What is in a pack: `inspect PACK`.

use std::collections::BTreeMap;
use std::error::Error;

use rwkv_pack::Pack;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: inspect PACK")?;
    let pack = Pack::open(&path)?;
    let manifest = pack.manifest();
    println!("packed from {} ({} bytes)", manifest.source.file_name, manifest.source.len);
    println!("tokenizer   {}", manifest.tokenizer.as_deref().unwrap_or("not named"));
    println!("model       {}", manifest.model);
    println!("{:<14} {:>9} {:>9}  {:<6} tensors", "group", "offset", "bytes", "swept");
    for group in &manifest.groups {
        let mut kinds: BTreeMap<_, usize> = BTreeMap::new();
        for tensor in &group.tensors {
            *kinds.entry(format!("{} {}", tensor.codec, tensor.layout)).or_default() += 1;
        }
        let kinds: Vec<String> = kinds.into_iter().map(|(kind, count)| format!("{count} x {kind}")).collect();
        let swept = if group.swept { "yes" } else { "no" };
        println!("{:<14} {:>9} {:>9}  {swept:<6} {}", group.name, group.offset, group.len, kinds.join(", "));
    }
    pack.verify(|_done, _total| {})?;
    println!("every checksum is right");
    Ok(())
}
