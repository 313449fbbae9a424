use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{Expected, Family, Role, canonical, expected, is_ignored};
use crate::config::Config;
use crate::error::{Result, bail};

/// Names and shapes of a checkpoint's tensors; those of RWKV-X under their [canonical] names.
pub(crate) struct Shapes<'a> {
    by_name: BTreeMap<Cow<'a, str>, &'a [usize]>,
    family: Family,
}

impl<'a> Shapes<'a> {
    pub fn new(tensors: impl IntoIterator<Item = (&'a str, &'a [usize])>) -> Result<Shapes<'a>> {
        let mut by_name = BTreeMap::new();
        for (name, shape) in tensors {
            if by_name.insert(Cow::Borrowed(name), shape).is_some() {
                bail!(Checkpoint, "tensor {name} appears twice");
            }
        }
        let mut shapes = Shapes { by_name, family: Family::Unknown };
        shapes.family = Family::of(&shapes);
        if shapes.family == Family::RwkvX {
            for (name, shape) in std::mem::take(&mut shapes.by_name) {
                let canonical = canonical(&name).into_owned();
                if shapes.by_name.insert(Cow::Owned(canonical), shape).is_some() {
                    bail!(Checkpoint, "tensor {name} appears twice, in two spellings");
                }
            }
        }
        Ok(shapes)
    }

    pub fn family(&self) -> Family {
        self.family
    }

    pub fn get(&self, name: &str) -> Option<&'a [usize]> {
        self.by_name.get(name).copied()
    }

    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(|name| &**name)
    }

    fn expect(&self, name: &str) -> Result<&'a [usize]> {
        match self.get(name) {
            Some(shape) => Ok(shape),
            None => bail!(Checkpoint, "tensor {name} is missing"),
        }
    }

    /// Rows and columns of a matrix; a dimension of 1 may have been dropped from a matrix of `rows` rows.
    fn matrix(&self, name: &str, rows: usize) -> Result<[usize; 2]> {
        let shape = self.expect(name)?;
        match squeeze(shape)[..] {
            [] if rows == 1 => Ok([1, 1]),
            [only] if only == rows => Ok([only, 1]),
            [only] if rows == 1 => Ok([1, only]),
            [first, second] => Ok([first, second]),
            _ => bail!(Checkpoint, "tensor {name} has shape {shape:?}; expected a matrix"),
        }
    }
}

/// A shape without its dimensions of 1.
pub(crate) fn squeeze(shape: &[usize]) -> Vec<usize> {
    shape.iter().copied().filter(|&dim| dim != 1).collect()
}

/// Reads the sizes of an RWKV-7 or RWKV-X checkpoint; any other family is refused by name.
pub(crate) fn read_config(shapes: &Shapes<'_>) -> Result<Config> {
    let family = shapes.family();
    if !matches!(family, Family::Rwkv7 | Family::RwkvX) {
        bail!(Unsupported, "{}", family.refusal());
    }
    let r_k_name = "blocks.0.att.r_k";
    let r_k = shapes.expect(r_k_name)?;
    let emb = shapes.expect("emb.weight")?;
    let [vocab, width] = match squeeze(emb)[..] {
        [vocab, width] => [vocab, width],
        _ => bail!(Checkpoint, "tensor emb.weight has shape {emb:?}; expected [vocabulary, width]"),
    };
    let head_size = r_k.last().copied().unwrap_or(0);
    if head_size == 0 || !width.is_multiple_of(head_size) || (r_k.len() == 1 && head_size > 256) {
        bail!(
            Checkpoint,
            "tensor {r_k_name} has shape {r_k:?}; expected [heads, head size] with {width} values in all"
        );
    }
    let rank = |block: usize, letter: char| -> Result<usize> {
        let [rows, rank] = shapes.matrix(&format!("blocks.{block}.att.{letter}1"), width)?;
        if rows != width {
            bail!(
                Checkpoint,
                "tensor blocks.{block}.att.{letter}1 has shape [{rows}, {rank}]; expected [{width}, rank]"
            );
        }
        Ok(rank)
    };
    let layers = block_count(shapes, "blocks.")?;
    Ok(Config {
        layers,
        width,
        heads: width / head_size,
        head_size,
        ffn: shapes.matrix("blocks.0.ffn.key.weight", 0)?[0],
        vocab,
        rank_w: rank(0, 'w')?,
        rank_a: rank(0, 'a')?,
        rank_v: if layers > 1 { rank(1, 'v')? } else { 0 },
        rank_g: rank(0, 'g')?,
        attention: block_count(shapes, "moba.")?,
    })
}

/// One more than the largest block number after a prefix.
fn block_count(shapes: &Shapes<'_>, prefix: &str) -> Result<usize> {
    let mut layers = 0;
    for name in shapes.names() {
        let Some((number, _)) = name.strip_prefix(prefix).and_then(|rest| rest.split_once('.')) else {
            continue;
        };
        match number.parse::<u16>() {
            Ok(block) => layers = layers.max(usize::from(block) + 1),
            Err(_) => bail!(Checkpoint, "tensor {name} has block number {number:?}; expected 0 to 65535"),
        }
    }
    Ok(layers)
}

/// Checks that the tensors are exactly those of the configuration, with its shapes.
pub(crate) fn check_complete(config: &Config, shapes: &Shapes<'_>) -> Result<()> {
    let expected = expected(config);
    let mut missing = Vec::new();
    for Expected { role, dims } in &expected {
        let name = role.name();
        let Some(shape) = shapes.get(&name) else {
            missing.push(name);
            continue;
        };
        // A flattened `r_k` would fit no head; it was looked at when the head size was read.
        if squeeze(shape) != squeeze(dims) {
            let transposed = dims.len() == 2 && squeeze(shape).iter().rev().eq(squeeze(dims).iter());
            let hint = if transposed { " (is it transposed?)" } else { "" };
            bail!(Checkpoint, "tensor {name} has shape {shape:?}; expected {dims:?}{hint}");
        }
    }
    if let Some(name) = missing.first() {
        let more = if missing.len() > 1 { format!(" and {} more", missing.len() - 1) } else { String::new() };
        bail!(Checkpoint, "tensor {name} is missing{more}; {config} needs it");
    }
    let known: std::collections::HashSet<String> =
        expected.iter().map(|tensor: &Expected| Role::name(tensor.role)).collect();
    let extra: Vec<&str> =
        shapes.names().filter(|name| !known.contains(*name) && !is_ignored(name)).collect();
    if let Some(name) = extra.first() {
        let more = if extra.len() > 1 { format!(" and {} more", extra.len() - 1) } else { String::new() };
        bail!(
            Checkpoint,
            "tensor {name}{more} is not part of an {} model; a variant that is not supported?",
            config.family()
        );
    }
    Ok(())
}
