use super::{Feed, Logits};

/// The rows of one sweep over the weights.
#[derive(Debug)]
pub(super) struct Sweep {
    pub rows: usize,
    /// The feeds in it, ascending.
    pub spans: Vec<Span>,
    /// For each row the feed whose first row in this sweep it is.
    pub starts: Vec<Option<usize>>,
    pub wanted: Vec<Wanted>,
}

/// A feed's share of a sweep.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub feed: usize,
    pub first_token: usize,
    pub first_row: usize,
    pub rows: usize,
}

/// A row whose logits are wanted, and which row of the step's logits they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub row: usize,
    pub out_row: usize,
}

/// Fills sweeps of at most `most` rows with the tokens of the feeds, in their order.
pub(super) fn sweeps(feeds: &[Feed<'_>], most: usize) -> Vec<Sweep> {
    let mut sweeps: Vec<Sweep> = Vec::new();
    let mut first_out = 0;
    for (index, feed) in feeds.iter().enumerate() {
        let mut done = 0;
        while done < feed.tokens.len() {
            if sweeps.last().is_none_or(|sweep| sweep.rows == most) {
                sweeps.push(Sweep { rows: 0, spans: Vec::new(), starts: Vec::new(), wanted: Vec::new() });
            }
            let sweep = sweeps.last_mut().expect("one was pushed");
            let rows = (feed.tokens.len() - done).min(most - sweep.rows);
            sweep.spans.push(Span { feed: index, first_token: done, first_row: sweep.rows, rows });
            for i in 0..rows {
                let token = done + i;
                sweep.starts.push((i == 0).then_some(index));
                let out = match feed.logits {
                    Logits::None => None,
                    Logits::Last => (token + 1 == feed.tokens.len()).then_some(0),
                    Logits::All => Some(token),
                };
                let row = sweep.rows + i;
                sweep.wanted.extend(out.map(|out| Wanted { row, out_row: first_out + out }));
            }
            sweep.rows += rows;
            done += rows;
        }
        first_out += feed.logit_rows();
    }
    sweeps
}
