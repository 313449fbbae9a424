//! The trie over the bytes of all tokens, and greedy longest match in linear time.
//!
//! # The match
//!
//! Encoding is defined as: at each position take the longest token that the remaining bytes start with. The
//! plain way walks down the trie until it is stuck, remembers the last token that it passed, and goes back to
//! the end of that token. What lies between is read again, and a text that always fails late (a long run of
//! spaces, the longest token without its last byte) costs its length times the longest token.
//!
//! This trie never goes back. Every node knows what to do when the text cannot go on below it: its
//! **exit** is the tokens that the longest match takes from the node's own bytes as long as the outcome
//! can no longer depend on what follows, and the node that spells the bytes left over.
//!
//! ```text
//! node = root
//! for byte in text:
//!     while node has no child `byte`:
//!         output exit(node).tokens
//!         node = exit(node).next
//!     node = child(node, byte)
//! while node is not the root:
//!     output exit(node).tokens
//!     node = exit(node).next
//! ```
//!
//! A node that is a token exits with that token, to the root. Any other node `v`, child `byte` of `p`, first
//! does what `p` does on exit, because no token lies between, and goes on like the loop above:
//!
//! ```text
//! tokens, z = exit(p).tokens, exit(p).next
//! while z has no child `byte`:
//!     tokens += exit(z).tokens
//!     z = exit(z).next
//! exit(v) = tokens, child(z, byte)
//! ```
//!
//! This looks only at shallower nodes, so one pass in order of depth fills all exits, in time and space
//! linear in the bytes of all tokens. It is the construction of Aho and Corasick with outputs chosen for
//! longest match; the same idea for word pieces is in "Fast WordPiece Tokenization" (arXiv 2012.15524).
//!
//! # The bound
//!
//! Each turn of the inner loop tries one child. A try that succeeds consumes one byte of the text. A try
//! that fails outputs at least one token, and tokens are never empty, so a text of `n` bytes takes at
//! most `n` successes and `n` failures: **at most `2 n` steps, whatever the text and the vocabulary.** A
//! test counts them.
//!
//! # When bytes are missing
//!
//! If the vocabulary does not have all 256 bytes, the walk can be stuck at the root, or the remains of an
//! exit can be. Such an exit has no next node: its tokens are output, and the error is at the byte that
//! follows them.
//!
//! # The cells
//!
//! The trie is a double array of 32-bit cells: the child `byte` of a node lies at `base ^ byte`, and is
//! there if that cell carries the label `byte`. No two nodes have the same base, so a label cannot match
//! by accident. The World vocabulary has 116 thousand nodes, 550 kB of cells, so the walk stays inside
//! the second-level cache; exits are a second array because they are read once per token, not once per
//! byte.

mod build;
mod placement;

pub(crate) use build::BuildError;

/// No token matches after those that were output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stuck;

/// A trie over bytes that encodes by greedy longest match.
#[derive(Debug, Clone)]
pub(crate) struct Trie {
    cells: Vec<Cell>,
    /// What happens at each node, by the index of its cell.
    exits: Vec<Exit>,
    /// Exits of several tokens, as lists that are linked from the last token to the first.
    links: Vec<Link>,
}

/// One node: the label of the edge that leads to it, whether it is a token, and the base of its children.
#[derive(Debug, Clone, Copy)]
struct Cell(u32);

impl Cell {
    /// No byte has this label: the cell is no node, or is the root.
    const NO_LABEL: u32 = 0x1ff;
    /// The bit above the label, which is one bit longer than a byte.
    const TOKEN: u32 = 0x200;
    /// The base is above both.
    const BASE_SHIFT: u32 = 10;
    /// The bases that a cell can hold, and so the cells that a trie can have.
    const LIMIT: u32 = 1 << (32 - Self::BASE_SHIFT);

    const NOTHING: Self = Self(LEAF_BASE << Self::BASE_SHIFT | Self::NO_LABEL);
    const ROOT: Self = Self(ROOT_BASE << Self::BASE_SHIFT | Self::NO_LABEL);

    fn leaf(label: u8, is_token: bool) -> Self {
        let token = if is_token { Self::TOKEN } else { 0 };
        Self(LEAF_BASE << Self::BASE_SHIFT | token | u32::from(label))
    }

    fn set_base(&mut self, base: u32) {
        debug_assert!(base < Self::LIMIT, "base {base} must fit a cell");
        self.0 = base << Self::BASE_SHIFT | self.0 & (Self::TOKEN | Self::NO_LABEL);
    }

    #[inline]
    fn label(self) -> u32 {
        self.0 & Self::NO_LABEL
    }

    #[inline]
    fn base(self) -> u32 {
        self.0 >> Self::BASE_SHIFT
    }

    #[inline]
    fn is_token(self) -> bool {
        self.0 & Self::TOKEN != 0
    }
}

/// The children of the root lie at their own byte: block 0.
const ROOT_BASE: u32 = 0;
/// Nodes without children look for them in block 1, where there never are any.
const LEAF_BASE: u32 = 256;
/// The root's own cell is inside the block of nothing.
pub(crate) const ROOT: u32 = LEAF_BASE;
/// The blocks of the two bases above.
const RESERVED_BLOCKS: u32 = 2;

/// What to do at a node where the text does not go on.
#[derive(Debug, Clone, Copy)]
struct Exit {
    output: Output,
    /// The node to go on from, or [`Exit::STUCK`].
    next: u32,
}

impl Exit {
    const STUCK: u32 = u32::MAX;
}

/// The tokens of an exit: one id, or [`Output::LIST`] and the index of the last link plus 1, 0 for no
/// token. An exit that is stuck always has a list, so that the usual path tests one bit.
#[derive(Debug, Clone, Copy)]
struct Output(u32);

impl Output {
    const LIST: u32 = 1 << 31;
    const NOTHING: Self = Self(Self::LIST);
}

#[derive(Debug, Clone, Copy)]
struct Link {
    id: u32,
    /// Index plus 1 of the link before it, 0 for the first.
    before: u32,
}

impl Trie {
    /// Appends the tokens of `text` to `ids`; when stuck, those of everything before that place.
    pub(crate) fn encode(&self, text: &[u8], ids: &mut Vec<u32>) -> Result<(), Stuck> {
        self.encode_counting(text, ids, || {})
    }

    /// [`Trie::encode`], calling `step` each time that it looks for a child or drains a node at the end.
    #[inline(always)]
    fn encode_counting(&self, text: &[u8], ids: &mut Vec<u32>, mut step: impl FnMut()) -> Result<(), Stuck> {
        let node = self.walk(ROOT, text, ids, &mut step)?;
        self.drain(node, ids, step)
    }

    /// Goes on from `node` with more of a text, and appends the tokens that are decided; returns the node reached.
    pub(crate) fn go_on(&self, node: u32, text: &[u8], ids: &mut Vec<u32>) -> Result<u32, Stuck> {
        let node = self.walk(node, text, ids, || {})?;
        // Nothing is longer than a node without children, so it need not wait for another byte.
        if self.cells[node as usize].base() == LEAF_BASE { self.leave(node, ids) } else { Ok(node) }
    }

    /// Ends a text at `node`, and appends the tokens of what led there from the root.
    pub(crate) fn end(&self, node: u32, ids: &mut Vec<u32>) -> Result<(), Stuck> {
        self.drain(node, ids, || {})
    }

    #[inline(always)]
    fn walk(
        &self,
        mut node: u32,
        text: &[u8],
        ids: &mut Vec<u32>,
        mut step: impl FnMut(),
    ) -> Result<u32, Stuck> {
        let mut cell = self.cells[node as usize];
        for &byte in text {
            let byte = u32::from(byte);
            loop {
                step();
                let child = cell.base() ^ byte;
                let child_cell = self.cells[child as usize];
                if child_cell.label() == byte {
                    node = child;
                    cell = child_cell;
                    break;
                }
                if cell.is_token() {
                    // What `leave` does, but the walk goes on without waiting for the exit.
                    ids.push(self.exits[node as usize].output.0);
                    node = ROOT;
                    cell = Cell::ROOT;
                } else {
                    node = self.leave(node, ids)?;
                    cell = self.cells[node as usize];
                }
            }
        }
        Ok(node)
    }

    #[inline(always)]
    fn drain(&self, mut node: u32, ids: &mut Vec<u32>, mut step: impl FnMut()) -> Result<(), Stuck> {
        while node != ROOT {
            step();
            node = self.leave(node, ids)?;
        }
        Ok(())
    }

    /// Outputs the tokens of the exit of `node` and returns the node after it.
    ///
    /// Out of line, because in ordinary text 99 of 100 exits are at tokens and do not come here.
    #[cold]
    #[inline(never)]
    fn leave(&self, node: u32, ids: &mut Vec<u32>) -> Result<u32, Stuck> {
        let Exit { output, next } = self.exits[node as usize];
        if output.0 & Output::LIST == 0 {
            ids.push(output.0);
            return Ok(next);
        }
        let start = ids.len();
        let mut last = output.0 & !Output::LIST;
        while last != 0 {
            let link = self.links[last as usize - 1];
            ids.push(link.id);
            last = link.before;
        }
        ids[start..].reverse();
        if next == Exit::STUCK { Err(Stuck) } else { Ok(next) }
    }

    /// The id of the token with exactly these bytes.
    pub(crate) fn id_of(&self, bytes: &[u8]) -> Option<u32> {
        let node = bytes.iter().try_fold(ROOT, |node, &byte| self.child(node, byte))?;
        self.cells[node as usize].is_token().then_some(self.exits[node as usize].output.0)
    }

    fn child(&self, node: u32, byte: u8) -> Option<u32> {
        let child = self.cells[node as usize].base() ^ u32::from(byte);
        (self.cells[child as usize].label() == u32::from(byte)).then_some(child)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trie(tokens: &[&[u8]]) -> Trie {
        let mut ids: Vec<u32> = (1..).take(tokens.len()).collect();
        ids.sort_by_key(|&id| tokens[id as usize - 1]);
        Trie::build(&ids, |id| tokens[id as usize - 1]).expect("a small vocabulary")
    }

    /// Ids and steps.
    fn encode(trie: &Trie, text: &[u8]) -> (Vec<u32>, usize) {
        let (mut ids, mut steps) = (Vec::new(), 0);
        trie.encode_counting(text, &mut ids, || steps += 1).expect("a full vocabulary");
        (ids, steps)
    }

    /// All bytes, and then the given tokens: byte `b` has id `b + 1`.
    fn with_all_bytes(tokens: &[&[u8]]) -> Trie {
        let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
        let all: Vec<&[u8]> = bytes.iter().map(|byte| &byte[..]).chain(tokens.iter().copied()).collect();
        trie(&all)
    }

    #[test]
    fn exits_of_several_tokens_keep_their_order() {
        let trie = with_all_bytes(&[b"ab", b"cd", b"abcdefgh"]);
        assert_eq!(encode(&trie, b"abcdefg").0, [257, 258, 102, 103, 104]);
        assert_eq!(encode(&trie, b"abcdefgabcdefgh").0, [257, 258, 102, 103, 104, 259]);
        assert_eq!(encode(&trie, b"abcabcd").0, [257, 100, 257, 258]);
    }

    #[test]
    fn a_text_takes_at_most_two_steps_a_byte() {
        let long = [b' '; 128];
        let near: Vec<u8> = (0..127).map(|i| b'a' + i % 7).collect();
        let trie = with_all_bytes(&[b"  ", &long, &near, b"ab", b"bc", &[b'x'; 100], b"xxx", b"xxxxxxx"]);
        let cases: [(&str, Vec<u8>); 5] = [
            ("spaces", vec![b' '; 10_000]),
            ("all but one space of the longest token", [&long[..127], b"!"].concat().repeat(100)),
            ("all but one byte of a long token", [&near[..126], b"#"].concat().repeat(100)),
            ("x", [&[b'x'; 99][..], b"y"].concat().repeat(100)),
            ("only bytes", (0..=255).rev().cycle().take(10_000).collect()),
        ];
        for (name, text) in cases {
            let (ids, steps) = encode(&trie, &text);
            assert!(steps <= 2 * text.len(), "{name}: {steps} steps for {} bytes", text.len());
            assert_eq!(steps, text.len() + exits(&trie, &text), "{name}: {} ids", ids.len());
        }
    }

    /// The times that encoding leaves a node, by walking the definition once more.
    fn exits(trie: &Trie, text: &[u8]) -> usize {
        let (mut node, mut exits) = (ROOT, 0);
        for &byte in text {
            node = loop {
                match trie.child(node, byte) {
                    Some(child) => break child,
                    None => node = trie.exits[node as usize].next,
                }
                exits += 1;
            };
        }
        while node != ROOT {
            node = trie.exits[node as usize].next;
            exits += 1;
        }
        exits
    }

    #[test]
    fn stuck_where_no_token_matches() {
        // `c` and `e` are no tokens, and `ab`, `b` have no ends in common with them.
        let trie = trie(&[b"ab", b"abcde", b"b", b"eb"]);
        let cases: &[(&[u8], _, &[u32])] = &[
            (b"", Ok(()), &[]),
            (b"abb", Ok(()), &[1, 3]),
            (b"abcdeb", Ok(()), &[2, 3]),
            (b"abcd", Err(Stuck), &[1]),
            (b"abcdx", Err(Stuck), &[1]),
            (b"bbe", Err(Stuck), &[3, 3]),
            (b"a", Err(Stuck), &[]),
            (b"x", Err(Stuck), &[]),
        ];
        for (text, result, expected) in cases {
            let mut ids = Vec::new();
            assert_eq!(trie.encode(text, &mut ids), *result, "{text:?}");
            assert_eq!(ids, *expected, "{text:?}");
        }
    }

    #[test]
    fn building_is_refused_beyond_the_cells() {
        let long = vec![b'a'; Cell::LIMIT as usize];
        assert!(Trie::build(&[1], |_| &long).is_err());
    }

    #[cfg(feature = "world")]
    #[test]
    fn the_world_vocabulary_fits_the_second_level_cache() {
        let cells = crate::Tokenizer::world().trie().cells.len();
        assert!((116_078..140_000).contains(&cells), "{cells} cells for 116078 nodes");
    }

    #[cfg(feature = "world")]
    #[test]
    fn every_near_miss_of_the_world_vocabulary_is_linear() {
        let world = crate::Tokenizer::world();
        let ids = 1..u32::try_from(world.vocab_size()).expect("vocabulary size");
        let (mut longest_first, mut text) = (Vec::new(), Vec::new());
        longest_first.extend(ids.filter_map(|id| world.token_bytes(id)));
        longest_first.sort_by_key(|token| std::cmp::Reverse(token.len()));
        for token in &longest_first[..2000] {
            text.extend_from_slice(&token[..token.len() - 1]);
            text.push(0);
        }
        text.extend_from_slice(&[b' '; 128].repeat(100));
        let (_, steps) = encode(world.trie(), &text);
        assert!(steps <= 2 * text.len(), "{steps} steps for {} bytes", text.len());
    }
}
