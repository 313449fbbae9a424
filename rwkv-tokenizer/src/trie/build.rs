//! Building the trie from sorted tokens, in order of depth.

use super::placement::Placement;
use super::{Cell, Exit, Link, Output, RESERVED_BLOCKS, ROOT, ROOT_BASE, Trie};

/// Tokens of which no trie can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BuildError {
    /// The trie would need more cells than a cell can address.
    TooManyNodes { cells: u64, limit: u64 },
    /// Two ids have the same bytes.
    SameToken(u32, u32),
}

/// A node whose children are to be placed: the tokens `sorted[first..end]` start with its bytes.
#[derive(Clone, Copy)]
struct Open {
    node: u32,
    first: u32,
    end: u32,
}

impl Trie {
    /// The trie of the tokens with the ids `sorted`, in the order of their bytes.
    pub(crate) fn build<'a>(sorted: &[u32], token: impl Fn(u32) -> &'a [u8]) -> Result<Self, BuildError> {
        let mut trie = Self { cells: Vec::new(), exits: Vec::new(), links: Vec::new() };
        trie.grow(RESERVED_BLOCKS * 256)?;
        trie.cells[ROOT as usize] = Cell::ROOT;
        trie.exits[ROOT as usize] = Exit { output: Output::NOTHING, next: Exit::STUCK };

        let mut placement = Placement::new(RESERVED_BLOCKS);
        // There are at most 2^20 tokens.
        let mut level = vec![Open { node: ROOT, first: 0, end: sorted.len() as u32 }];
        let mut next_level = Vec::new();
        let (mut labels, mut children) = (Vec::new(), Vec::new());
        for depth in 0.. {
            for Open { node, mut first, end } in level.drain(..) {
                let token_at = |at: u32| token(sorted[at as usize]);
                // The one token that ends here comes first; its exit was set with the node.
                if depth > 0 && token_at(first).len() == depth {
                    first += 1;
                    if first < end && token_at(first).len() == depth {
                        let id_at = |at: u32| sorted[at as usize];
                        return Err(BuildError::SameToken(id_at(first - 1), id_at(first)));
                    }
                }
                labels.clear();
                children.clear();
                while first < end {
                    let label = token_at(first)[depth];
                    let next = (first + 1..end).find(|&at| token_at(at)[depth] != label).unwrap_or(end);
                    labels.push(label);
                    children.push(Open { node: 0, first, end: next });
                    first = next;
                }
                if labels.is_empty() {
                    continue;
                }
                let base = if node == ROOT { ROOT_BASE } else { placement.place(&labels) };
                trie.grow(placement.cells())?;
                trie.cells[node as usize].set_base(base);
                for (&label, child) in labels.iter().zip(&children) {
                    let node_below = base ^ u32::from(label);
                    let id = sorted[child.first as usize];
                    let is_token = token(id).len() == depth + 1;
                    trie.cells[node_below as usize] = Cell::leaf(label, is_token);
                    trie.exits[node_below as usize] = if is_token {
                        Exit { output: Output(id), next: ROOT }
                    } else {
                        trie.exit_below(node, label)
                    };
                    next_level.push(Open { node: node_below, ..*child });
                }
            }
            std::mem::swap(&mut level, &mut next_level);
            if level.is_empty() {
                break;
            }
        }
        Ok(trie)
    }

    /// The exit of the child `label` of `parent`, a node that is not a token.
    fn exit_below(&mut self, parent: u32, label: u8) -> Exit {
        let Exit { mut output, mut next } = self.exits[parent as usize];
        while next != Exit::STUCK {
            if let Some(child) = self.child(next, label) {
                return Exit { output, next: child };
            }
            let exit = self.exits[next as usize];
            output = self.concatenate(output, exit.output);
            next = exit.next;
        }
        Exit { output: self.as_list(output), next: Exit::STUCK }
    }

    /// The tokens of `first` and then those of `second`; the links of `first` are shared.
    fn concatenate(&mut self, first: Output, second: Output) -> Output {
        if second.0 == Output::NOTHING.0 {
            return first;
        }
        if first.0 == Output::NOTHING.0 {
            return second;
        }
        let mut ids = Vec::new();
        let mut last = self.as_list(second).0 & !Output::LIST;
        while last != 0 {
            let link = self.links[last as usize - 1];
            ids.push(link.id);
            last = link.before;
        }
        let list = self.as_list(first);
        ids.into_iter().rev().fold(list, |list, id| self.append(list, id))
    }

    fn as_list(&mut self, output: Output) -> Output {
        if output.0 & Output::LIST != 0 { output } else { self.append(Output::NOTHING, output.0) }
    }

    fn append(&mut self, list: Output, id: u32) -> Output {
        self.links.push(Link { id, before: list.0 & !Output::LIST });
        // There are at most a few links for each byte of the tokens, of which there are at most 2^26.
        Output(Output::LIST | self.links.len() as u32)
    }

    fn grow(&mut self, cells: u32) -> Result<(), BuildError> {
        if cells > Cell::LIMIT {
            return Err(BuildError::TooManyNodes { cells: cells.into(), limit: Cell::LIMIT.into() });
        }
        self.cells.resize(cells as usize, Cell::NOTHING);
        self.exits.resize(cells as usize, Exit { output: Output::NOTHING, next: Exit::STUCK });
        Ok(())
    }
}
