//! The order in which groups are expected to be leased.

/// A position in the cycle of the groups that stream. Groups are indices of the cache's list.
///
/// Normally the expectation is the cycle itself. [`Sequence::expect`] puts a list before it, for a sweep
/// that leaves groups out; when that list is used up, the cycle begins at its start again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sequence {
    cycle: Vec<usize>,
    position: usize,
    expected: Vec<usize>,
    used: usize,
}

impl Sequence {
    pub(crate) fn new(cycle: Vec<usize>) -> Self {
        Sequence { cycle, position: 0, expected: Vec::new(), used: 0 }
    }

    /// Expects `groups`, then the cycle from its start.
    pub(crate) fn expect(&mut self, groups: impl Iterator<Item = usize>) {
        self.expected.clear();
        self.expected.extend(groups);
        self.used = 0;
        self.position = 0;
    }

    /// Notes that `group` is used now. A group that was not expected changes nothing.
    pub(crate) fn arrive(&mut self, group: usize) {
        if let Some(ahead) = self.expected[self.used..].iter().position(|&next| next == group) {
            self.used += ahead + 1;
        } else if let Ok(place) = self.cycle.binary_search(&group) {
            if self.used < self.expected.len() && place != 0 {
                return;
            }
            self.used = self.expected.len();
            self.position = (place + 1) % self.cycle.len();
        }
    }

    /// What is expected, the next first, one whole cycle long at most.
    pub(crate) fn ahead(&self) -> impl Iterator<Item = usize> + '_ {
        let rest = self.expected[self.used..].iter();
        let (wrapped, first) = self.cycle.split_at(self.position);
        rest.chain(first).chain(wrapped).copied().take(self.cycle.len().max(1))
    }

    /// After how many other groups this one is expected.
    pub(crate) fn distance(&self, group: usize) -> usize {
        self.ahead().position(|next| next == group).unwrap_or(usize::MAX)
    }

    /// How many groups stream.
    pub(crate) fn len(&self) -> usize {
        self.cycle.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead(sequence: &Sequence) -> Vec<usize> {
        sequence.ahead().collect()
    }

    #[test]
    fn wraps_from_one_sweep_to_the_next() {
        let mut sequence = Sequence::new(vec![1, 3, 5]);
        assert_eq!(ahead(&sequence), [1, 3, 5]);
        sequence.arrive(3);
        assert_eq!(ahead(&sequence), [5, 1, 3]);
        sequence.arrive(5);
        assert_eq!(ahead(&sequence), [1, 3, 5]);
    }

    #[test]
    fn a_shorter_sweep_is_followed_by_the_cycle() {
        let mut sequence = Sequence::new(vec![1, 3, 5]);
        sequence.expect([1, 3].into_iter());
        sequence.arrive(1);
        assert_eq!(ahead(&sequence), [3, 1, 3]);
        sequence.arrive(3);
        assert_eq!(ahead(&sequence), [1, 3, 5]);
    }

    #[test]
    fn a_sweep_that_was_given_up_starts_again_at_the_first_group() {
        let mut sequence = Sequence::new(vec![1, 3, 5]);
        sequence.expect([1, 3].into_iter());
        sequence.arrive(1);
        sequence.arrive(1);
        assert_eq!(ahead(&sequence), [3, 5, 1]);
    }

    #[test]
    fn what_was_not_expected_changes_nothing() {
        let mut sequence = Sequence::new(vec![1, 3, 5]);
        sequence.arrive(4);
        assert_eq!(ahead(&sequence), [1, 3, 5]);
        sequence.expect([1, 3].into_iter());
        sequence.arrive(5);
        assert_eq!(ahead(&sequence), [1, 3, 1]);
        assert_eq!((sequence.distance(3), sequence.distance(5)), (1, usize::MAX));
    }
}
