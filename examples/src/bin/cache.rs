//! The cache alone, over a source of its own: twelve layers stream through the memory of six.

use std::error::Error;
use std::io;
use std::sync::Arc;

use rwkv_cache::source::{IoMode, SourceInfo};
use rwkv_cache::{Cache, CacheOptions, Extent, Group, GroupId, Source, plan};

const LAYERS: u64 = 12;
const LAYER_BYTES: u64 = 64 << 10;
const SWEEPS: usize = 3;

/// A file that is computed: every byte is the number of its layer.
struct Layers;

impl Source for Layers {
    fn len(&self) -> u64 {
        LAYERS * LAYER_BYTES
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let len = (buf.len() as u64).min(self.len().saturating_sub(offset)) as usize;
        for (byte, at) in buf[..len].iter_mut().zip(offset..) {
            *byte = (at / LAYER_BYTES) as u8;
        }
        Ok(len)
    }

    fn describe(&self) -> SourceInfo {
        SourceInfo { name: "layers".into(), mode: IoMode::Other, reason: "bytes that are computed".into() }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let layer = |i| Group::swept(format!("layer.{i}"), Extent { offset: i * LAYER_BYTES, len: LAYER_BYTES });
    let groups: Vec<Group> = (0..LAYERS).map(layer).collect();
    let refused = plan(&groups, LAYER_BYTES - 1).expect_err("not even one layer fits");
    println!("{refused}");

    let plan = plan(&groups, 6 * LAYER_BYTES)?;
    let pinned: Vec<String> = plan.pinned().map(|id| id.to_string()).collect();
    println!("a budget of {} bytes: layers {} stay,", 6 * LAYER_BYTES, pinned.join(" "));
    println!("the others pass through {} slots, {} bytes a sweep", plan.slots(), plan.bytes_per_sweep());

    let cache = Cache::new(Arc::new(Layers), groups, plan, CacheOptions::default())?;
    cache.load_pinned()?;
    for _ in 0..SWEEPS {
        for layer in 0..LAYERS as usize {
            let bytes = cache.lease(GroupId::new(layer))?;
            assert!(bytes.iter().all(|&byte| usize::from(byte) == layer), "the bytes of layer {layer}");
        }
    }
    let total = cache.totals();
    println!(
        "{SWEEPS} sweeps: {} leases, {} of them pinned, all with the right bytes",
        total.leases, total.hits
    );
    Ok(())
}
