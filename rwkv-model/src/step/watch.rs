use std::time::Instant;

use rwkv_cache::{GroupId, Lease};

use super::Feed;
use super::sweep::Sweep;
use crate::block::Block;
use crate::error::Result;
use crate::observer::{
    AttentionWeights, Embeddings, FeedRows, Interest, Observer, Side, Stage, StageGroup, StageKind, SweepRows,
};
use crate::residency::Residence;

/// Tells the observer of a model about a sweep, if there is one.
///
/// Each stage is told when it is over, so that it began where the one before it ended: a watch with laps.
pub(super) struct Watch<'p>(Option<Watched<'p>>);

struct Watched<'p> {
    observer: &'p mut dyn Observer,
    interest: Interest,
    residence: &'p Residence,
    feeds: Vec<FeedRows>,
    block: Option<Block>,
    group: Option<GroupId>,
    since: Instant,
}

impl<'p> Watch<'p> {
    pub fn new(
        observer: Option<&'p mut (dyn Observer + 'static)>,
        residence: &'p Residence,
        feeds: &[Feed<'_>],
        sweep: &Sweep,
    ) -> Watch<'p> {
        let Some(observer) = observer else { return Watch(None) };
        let interest = observer.interest();
        if interest == Interest::NONE {
            return Watch(None);
        }
        let feeds = sweep.spans.iter().map(|span| FeedRows {
            feed: span.feed,
            rows: span.first_row..span.first_row + span.rows,
            first_position: feeds[span.feed].state.tokens() + span.first_token as u64,
        });
        let feeds: Vec<FeedRows> = feeds.collect();
        if interest.stages {
            let rows = SweepRows { rows: sweep.rows, logit_rows: sweep.wanted.len(), feeds: &feeds };
            observer.sweep_begin(Instant::now(), &rows);
        }
        let since = Instant::now();
        Watch(Some(Watched { observer, interest, residence, feeds, block: None, group: None, since }))
    }

    /// From here on it is about this block.
    pub fn enter(&mut self, block: Option<Block>) {
        if let Some(watched) = &mut self.0 {
            watched.block = block;
        }
    }

    /// What was done since the last lap.
    pub fn lap(&mut self, kind: StageKind) {
        if let Some(watched) = &mut self.0 {
            watched.lap(kind, Instant::now());
        }
    }

    /// Leases a group.
    pub fn lease(&mut self, residence: &Residence, group: GroupId) -> Result<Lease> {
        let lease = residence.lease(group)?;
        if let Some(watched) = &mut self.0 {
            let end = Instant::now();
            watched.group = Some(group);
            // The observer's time of the first lap is not a part of the second.
            let found_at = end.checked_sub(lease.waited()).unwrap_or(end).max(watched.since);
            watched.lap(StageKind::Find(lease.found()), found_at);
            if !lease.waited().is_zero() {
                watched.since = found_at;
                watched.lap(StageKind::Wait, end);
            }
        }
        Ok(lease)
    }

    /// Ends a lease.
    pub fn release(&mut self, lease: Lease) {
        drop(lease);
        self.lap(StageKind::Release);
        if let Some(watched) = &mut self.0 {
            watched.group = None;
        }
    }

    pub fn end(&mut self) {
        if let Some(Watched { observer, interest: Interest { stages: true, .. }, .. }) = &mut self.0 {
            observer.sweep_end(Instant::now());
        }
    }

    /// The residual stream between two blocks.
    pub fn embeddings(&mut self, after: Option<Block>, before: Option<Block>, rows: &[f32]) {
        let Some(Watched { observer, interest: Interest { embeddings: true, .. }, feeds, since, .. }) =
            &mut self.0
        else {
            return;
        };
        for (block, side) in [(after, Side::Output), (before, Side::Input)] {
            if let Some(block) = block {
                observer.embeddings(&Embeddings { block, side, rows, feeds });
            }
        }
        *since = Instant::now();
    }

    pub fn wants_attention(&self) -> bool {
        matches!(self.0, Some(Watched { interest: Interest { attention: true, .. }, .. }))
    }

    pub fn attention(&mut self, weights: &AttentionWeights<'_>) {
        if let Some(watched) = &mut self.0 {
            watched.observer.attention(weights);
            watched.since = Instant::now();
        }
    }
}

impl Watched<'_> {
    fn lap(&mut self, kind: StageKind, end: Instant) {
        if !self.interest.stages {
            return;
        }
        let group = self.group.map(|id| {
            let group = self.residence.group(id);
            StageGroup { id, name: &group.name, bytes: group.extent.len }
        });
        self.observer.stage(&Stage { kind, block: self.block, group, begin: self.since, end });
        self.since = Instant::now();
    }
}
