//! Where the nodes of a double array go.
//!
//! The children of a node lie at `base ^ label`, all inside one block of 256 cells. A base fits when
//! every one of those cells is free and no other node has that base. With the free cells and the unused
//! bases of a block as bit sets, all 256 bases of a block are tried at once: the bases for which the cell
//! of `label` is free are the set of free cells with each index exclusive-ored by `label`.

/// Set of the numbers below 256: bit `i % 64` of word `i / 64`.
type Set = [u64; 4];

const ALL: Set = [u64::MAX; 4];

/// Blocks that are tried before a new one is opened. It bounds the work; with 2, the World vocabulary takes a
/// sixth more cells than it has nodes, and more blocks cost more time at the start than they save cells.
const OPEN_BLOCKS: usize = 2;

/// A block is closed when this few of its cells are free.
const NEARLY_FULL: u32 = 8;

struct Block {
    index: u32,
    free: Set,
    bases: Set,
}

/// Gives out bases of a growing array of cells.
pub(super) struct Placement {
    open: Vec<Block>,
    blocks: u32,
}

impl Placement {
    /// An array whose first `reserved` blocks are used otherwise.
    pub(super) fn new(reserved: u32) -> Self {
        Self { open: Vec::new(), blocks: reserved }
    }

    /// The number of cells so far.
    pub(super) fn cells(&self) -> u32 {
        self.blocks * 256
    }

    /// Claims the cells `base ^ label` for distinct `labels` and returns the base.
    pub(super) fn place(&mut self, labels: &[u8]) -> u32 {
        for (at, block) in self.open.iter_mut().enumerate() {
            if let Some(base) = block.place(labels) {
                if block.free.iter().map(|word| word.count_ones()).sum::<u32>() <= NEARLY_FULL {
                    self.open.remove(at);
                }
                return base;
            }
        }
        let mut block = Block { index: self.blocks, free: ALL, bases: ALL };
        self.blocks += 1;
        let base = block.place(labels).expect("distinct labels fit an empty block");
        if self.open.len() == OPEN_BLOCKS {
            self.open.remove(0);
        }
        self.open.push(block);
        base
    }
}

impl Block {
    fn place(&mut self, labels: &[u8]) -> Option<u32> {
        let mut fits = self.bases;
        for &label in labels {
            let free = exclusive_or(&self.free, label);
            for (fits, free) in fits.iter_mut().zip(free) {
                *fits &= free;
            }
            if fits == [0; 4] {
                return None;
            }
        }
        let word = fits.iter().position(|&word| word != 0)?;
        let base = word as u8 * 64 + fits[word].trailing_zeros() as u8;
        remove(&mut self.bases, base);
        for &label in labels {
            remove(&mut self.free, base ^ label);
        }
        Some(self.index * 256 + u32::from(base))
    }
}

fn remove(set: &mut Set, element: u8) {
    set[usize::from(element / 64)] &= !(1 << (element % 64));
}

/// The set of all `element ^ label`.
fn exclusive_or(set: &Set, label: u8) -> Set {
    // The upper two bits of the label exchange words, each lower bit exchanges neighbours inside all words.
    let mut set: Set = std::array::from_fn(|word| set[word ^ usize::from(label / 64)]);
    for (distance, low_halves) in [
        (1, 0x5555_5555_5555_5555_u64),
        (2, 0x3333_3333_3333_3333),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (8, 0x00ff_00ff_00ff_00ff),
        (16, 0x0000_ffff_0000_ffff),
        (32, 0x0000_0000_ffff_ffff),
    ] {
        // Without a branch: labels are as good as random.
        let moved = u64::from(label & distance != 0).wrapping_neg();
        set = set.map(|bits| {
            let exchanged = (bits & low_halves) << distance | (bits >> distance) & low_halves;
            bits ^ (bits ^ exchanged) & moved
        });
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusive_or_moves_every_element() {
        for label in [0, 1, 2, 5, 63, 64, 100, 200, 255] {
            for element in 0..=255u8 {
                let mut set = ALL;
                remove(&mut set, element);
                let mut moved = ALL;
                remove(&mut moved, element ^ label);
                assert_eq!(exclusive_or(&set, label), moved, "{element} ^ {label}");
            }
        }
    }

    #[test]
    fn cells_and_bases_are_given_once() {
        let mut placement = Placement::new(2);
        let (mut cells, mut bases) = (std::collections::HashSet::new(), std::collections::HashSet::new());
        let mut seed = 1u32;
        for round in 0..3000 {
            let labels: std::collections::BTreeSet<u8> = (0..1 + round % 7 * (round % 5))
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (seed >> 24) as u8
                })
                .collect();
            let labels: Vec<u8> = labels.into_iter().collect();
            let base = placement.place(&labels);
            assert!(base >= 512, "the reserved blocks stay free");
            assert!(bases.insert(base), "base {base} given twice");
            for label in labels {
                let cell = base ^ u32::from(label);
                assert!(cell < placement.cells());
                assert!(cells.insert(cell), "cell {cell} given twice");
            }
        }
        let all: Vec<u8> = (0..=255).collect();
        let base = placement.place(&all);
        assert!(all.iter().all(|&label| cells.insert(base ^ u32::from(label))));
    }
}
