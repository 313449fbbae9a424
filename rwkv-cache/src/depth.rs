//! How many groups are read ahead of use.

use crate::options::ReadAhead;
use crate::stats::Found;

/// The depth of the read-ahead. In the adaptive mode it follows what consumers find: one more after each
/// wait, as far as there are slots, and one less after two sweeps without a wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Depth {
    read_ahead: ReadAhead,
    groups: usize,
    most: usize,
    calm: usize,
}

impl Depth {
    /// For a ring of so many slots and sweeps of so many groups.
    pub(crate) fn new(read_ahead: ReadAhead, slots: usize, sweep: usize) -> Self {
        let groups = usize::from(read_ahead != ReadAhead::Off);
        Depth { read_ahead, groups, most: slots.max(1), calm: 2 * sweep }
    }

    pub(crate) fn groups(&self) -> usize {
        self.groups
    }

    /// Takes note of what a consumer found that came for a group, in sweeps of so many groups.
    pub(crate) fn adapt(&mut self, found: Found, sweep: usize) {
        if self.read_ahead != ReadAhead::Adaptive {
            return;
        }
        if found != Found::Ready {
            self.groups = (self.groups + 1).min(self.most);
            self.calm = 2 * sweep;
        } else if self.groups > 1 {
            self.calm -= 1;
            if self.calm == 0 {
                self.groups -= 1;
                self.calm = 2 * sweep;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_what_is_found_only_when_adaptive() {
        for (read_ahead, before, after) in
            [(ReadAhead::Off, 0, 0), (ReadAhead::Next, 1, 1), (ReadAhead::Adaptive, 1, 3)]
        {
            let mut depth = Depth::new(read_ahead, 3, 5);
            assert_eq!(depth.groups(), before, "{read_ahead}");
            for found in [Found::Late, Found::Absent, Found::Late, Found::Absent] {
                depth.adapt(found, 5);
            }
            assert_eq!(depth.groups(), after, "{read_ahead}");
            (0..9).for_each(|_| depth.adapt(Found::Ready, 5));
            assert_eq!(depth.groups(), after, "{read_ahead}");
            depth.adapt(Found::Ready, 5);
            assert_eq!(depth.groups(), after.saturating_sub(1).max(before), "{read_ahead}");
            (0..100).for_each(|_| depth.adapt(Found::Ready, 5));
            assert_eq!(depth.groups(), before, "{read_ahead}");
        }
    }
}
