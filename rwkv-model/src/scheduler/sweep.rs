use std::time::Duration;

/// A sweep of the scheduler, after it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepReport {
    /// Counted from 0.
    pub number: u64,
    /// How long the step took.
    pub time: Duration,
    /// Tokens of all sessions.
    pub rows: usize,
    /// The sessions in it, in the order of their rows.
    pub sessions: Vec<SweptSession>,
}

/// A session's share of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweptSession {
    /// Its [`Ticket::id`](super::Ticket::id).
    pub id: u64,
    /// Its tokens in the sweep.
    pub rows: usize,
    /// Whether they are of its prompt.
    pub prefill: bool,
}

/// Divides the rows of a sweep among sessions that have so many tokens to feed: as equally as can be, so that who wants no
/// more than an equal share gets all of it. What cannot be divided goes to the first ones. Each gets a row at least, if
/// there are as many rows as sessions.
pub(super) fn share(wanted: &[usize], rows: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|&session| wanted[session]);
    let mut shares = vec![0; wanted.len()];
    let mut left = rows;
    let mut rest = order.as_slice();
    while let [session, others @ ..] = rest {
        let equal = left / rest.len();
        if wanted[*session] > equal {
            // All of the rest want more than that.
            let mut by_age = rest.to_vec();
            by_age.sort_unstable();
            for (place, session) in by_age.into_iter().enumerate() {
                shares[session] = equal + usize::from(place < left % rest.len());
            }
            break;
        }
        shares[*session] = wanted[*session];
        left -= wanted[*session];
        rest = others;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn shares_are_as_equal_as_can_be() {
        for (wanted, rows, expected) in [
            (vec![], 8, vec![]),
            (vec![5], 8, vec![5]),
            (vec![50], 8, vec![8]),
            (vec![1, 50, 1], 8, vec![1, 6, 1]),
            (vec![50, 50], 9, vec![5, 4]),
            (vec![3, 50, 50], 9, vec![3, 3, 3]),
            (vec![2, 50, 50], 9, vec![2, 4, 3]),
            (vec![50, 2, 50, 1], 16, vec![7, 2, 6, 1]),
            (vec![1, 1, 1], 2, vec![1, 1, 0]),
            (vec![4, 4, 4], 3, vec![1, 1, 1]),
            (vec![0, 4], 3, vec![0, 3]),
        ] {
            assert_eq!(share(&wanted, rows), expected, "{wanted:?} of {rows}");
        }
    }
}
