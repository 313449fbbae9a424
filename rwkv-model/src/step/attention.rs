use std::ops::Range;

use rwkv_kernels::{Activations, Forms, Isa, dot};

use super::Feed;
use super::rows::{Origin, Pass};
use super::scratch::{HeadPanels, Scratch};
use super::sweep::Span;
use super::tasks::{Then, for_rows, tasks};
use super::visible::{Segment, Visible, segments};
use crate::block::Block;
use crate::config::ATTENTION_HEAD;
use crate::error::Result;
use crate::kv::HeadRows;
use crate::names::BlockVector;
use crate::observer::{AttentionWeights, StageKind};
use crate::weights::Projections;

impl Pass<'_, '_> {
    /// The attention of a block; its result is left in `delta`.
    pub fn attention(&mut self, number: usize) -> Result<()> {
        let block = Block::Attention(number);
        let at = &self.weights.attention[number];
        let vectors = at.vectors.view(self.residence.vectors(), self.weights.config.width);
        let (weight, bias) = (vectors.get(BlockVector::Ln1Weight), vectors.get(BlockVector::Ln1Bias));
        self.begin(Some(block), weight, bias);
        self.watch.lap(StageKind::Norm);
        let group = self.watch.lease(self.residence, at.projections.group)?;
        let projections = at.projections.view(&group);
        self.watch.lap(StageKind::Bind);
        self.project_attention(&projections);
        self.attend(number);
        self.project_output(projections.output);
        self.watch.lap(StageKind::Attention);
        self.watch.release(group);
        let config = &self.weights.config;
        self.scratch.heads.reset_attention(self.sweep.rows, config.width, config.head_size);
        self.origin = Origin::Mix(block);
        Ok(())
    }

    /// Queries, keys and values.
    fn project_attention(&mut self, projections: &Projections<'_>) {
        let isa = self.isa;
        let (rows, width) = (self.sweep.rows, self.weights.config.width);
        let Scratch { normed, input, heads, .. } = &mut *self.scratch;
        heads.reset_attention(rows, width, ATTENTION_HEAD);
        let Projections { receptance, key, value, .. } = *projections;
        let forms = [receptance, key, value].map(|w| w.codec().forms());
        let forms = forms.into_iter().fold(Forms::default(), Forms::union);
        input.reset(rows, width, forms);
        let normed = &**normed;
        for_rows(self.team, normed.len(), input.rows_mut().enumerate(), |(r, row)| {
            row.set(isa, &normed[*r * width..][..width]);
        });
        let HeadPanels { r: q, k, v, .. } = heads;
        let input: &Activations = input;
        let mut items = Vec::new();
        items.extend(tasks(receptance, input, q, Then::Nothing));
        items.extend(tasks(key, input, k, Then::Nothing));
        items.extend(tasks(value, input, v, Then::Nothing));
        self.team.for_each(&mut items, |task| task.run(isa));
    }

    /// Takes keys and values into the caches, and attends.
    ///
    /// It goes round by round where a cache is compressed on the way: a round is one segment of each feed.
    fn attend(&mut self, number: usize) {
        let plans: Vec<Vec<Segment>> = self
            .sweep
            .spans
            .iter()
            .map(|span| {
                let state = &self.feeds[span.feed].state;
                segments(&state.attention(), state.kv(number).rows(), span.rows)
            })
            .collect();
        let rounds = plans.iter().map(Vec::len).max().unwrap_or(0);
        for round in 0..rounds {
            let parts: Vec<Part> = self
                .sweep
                .spans
                .iter()
                .zip(&plans)
                .filter_map(|(span, plan)| plan.get(round).map(|segment| Part::new(*span, segment.clone())))
                .collect();
            self.watch.lap(StageKind::Attention);
            self.extend_caches(number, &parts);
            self.watch.lap(StageKind::SaveState);
            let visible: Vec<Visible> = parts.iter().map(|part| self.visible(number, part)).collect();
            self.attend_to(number, &parts, &visible);
            if self.watch.wants_attention() {
                self.show_attention(number, &parts, &visible);
            }
            for part in &parts {
                let rows = part.segment.cached + part.segment.rows.len();
                self.feeds[part.feed].state.set_kv_rows(number, rows);
            }
        }
    }

    /// Compresses caches where it is time to, and appends keys and values.
    fn extend_caches(&mut self, number: usize, parts: &[Part]) {
        let isa = self.isa;
        let HeadPanels { r: q, k, v, .. } = &self.scratch.heads;
        let mut items = Vec::new();
        for (feed, part) in of_parts(self.feeds, parts) {
            let attention = feed.state.attention();
            let heads = feed.state.kv_mut(number).heads.iter_mut().enumerate();
            items.extend(heads.map(|(head, rows)| (head, rows, part, attention)));
        }
        let elements = parts.iter().map(|part| part.segment.rows.len()).sum::<usize>() * q.cols();
        for_rows(self.team, elements, items.into_iter(), |(head, rows, part, attention)| {
            let elements = part.elements(ATTENTION_HEAD);
            if let (true, Some(compression)) = (part.segment.compress, attention.compression()) {
                let query = &q.panel(*head)[elements.clone()][..ATTENTION_HEAD];
                rows.compress(isa, query, compression, &mut Vec::new());
            }
            rows.append(&k.panel(*head)[elements.clone()], &v.panel(*head)[elements]);
            if let Some(top_k) = attention.top_k() {
                rows.extend_means(isa, top_k.chunk_rows);
            }
        });
    }

    /// What the rows of a part attend to.
    fn visible(&self, number: usize, part: &Part) -> Visible {
        let isa = self.isa;
        let q = &self.scratch.heads.r;
        let state = &self.feeds[part.feed].state;
        let (attention, cache) = (state.attention(), state.kv(number));
        let mut visible = Visible::default();
        for (i, row) in part.rows().enumerate() {
            // One choice for all heads: the sum of what their queries say, heads ascending.
            let score = |chunk: usize| {
                let of_head =
                    |(head, rows): (usize, &HeadRows)| dot(isa, q.row_part(row, head), rows.mean(chunk));
                cache.heads.iter().enumerate().map(of_head).fold(0.0, |sum, score| sum + score)
            };
            visible.push(&attention, part.segment.cached + i, cache.dropped(), score);
        }
        visible
    }

    /// Attends, head by head.
    fn attend_to(&mut self, number: usize, parts: &[Part], visible: &[Visible]) {
        let isa = self.isa;
        let feeds = &*self.feeds;
        let Scratch { heads, attention_weights: weights, .. } = &mut *self.scratch;
        let HeadPanels { r: q, y, .. } = heads;
        let q = &*q;
        let mut items: Vec<HeadTask<'_>> = Vec::new();
        for (head, y) in y.panels_mut().enumerate() {
            let mut rest = y;
            let mut done = 0;
            for (part, visible) in parts.iter().zip(visible) {
                let range = part.elements(ATTENTION_HEAD);
                let (_, after) = rest.split_at_mut(range.start - done);
                let (y, after) = after.split_at_mut(range.len());
                (rest, done) = (after, range.end);
                let q = &q.panel(head)[range];
                let rows = &feeds[part.feed].state.kv(number).heads[head];
                items.push(HeadTask { q, rows, visible, weights: Vec::new(), y });
            }
        }
        weights.resize_with(items.len(), Vec::new);
        for (item, weights) in items.iter_mut().zip(&mut *weights) {
            item.weights = std::mem::take(weights);
        }
        self.team.for_each(&mut items, |task| task.run(isa));
        for (item, weights) in items.into_iter().zip(weights) {
            *weights = item.weights;
        }
    }

    /// Computes the weights of every row once more, and tells the observer.
    fn show_attention(&mut self, number: usize, parts: &[Part], visible: &[Visible]) {
        let isa = self.isa;
        let q = &self.scratch.heads.r;
        let mut heads: Vec<Vec<f32>> = vec![Vec::new(); q.cols() / ATTENTION_HEAD];
        for (part, visible) in parts.iter().zip(visible) {
            let state = &*self.feeds[part.feed].state;
            let cache = state.kv(number);
            for (i, row) in part.rows().enumerate() {
                let stored = visible.of(i);
                let items = cache.heads.iter().zip(&mut heads).enumerate();
                let elements = stored.iter().map(ExactSizeIterator::len).sum::<usize>() * q.cols();
                for_rows(self.team, elements, items, |(head, (rows, weights))| {
                    rows.weights(isa, q.row_part(row, *head), stored, weights);
                });
                let dropped = cache.dropped();
                let visible: Vec<Range<usize>> =
                    stored.iter().map(|rows| rows.start + dropped..rows.end + dropped).collect();
                self.watch.attention(&AttentionWeights {
                    block: number,
                    feed: part.feed,
                    position: state.tokens() + (part.first_token + part.segment.rows.start + i) as u64,
                    visible: &visible,
                    heads: &heads,
                });
            }
        }
    }
}

/// A segment of a feed.
#[derive(Debug)]
struct Part {
    feed: usize,
    first_token: usize,
    first_row: usize,
    segment: Segment,
}

impl Part {
    fn new(span: Span, segment: Segment) -> Part {
        Part { feed: span.feed, first_token: span.first_token, first_row: span.first_row, segment }
    }

    /// Its rows in the sweep.
    fn rows(&self) -> Range<usize> {
        self.first_row + self.segment.rows.start..self.first_row + self.segment.rows.end
    }

    /// Its elements in a panel.
    fn elements(&self, width: usize) -> Range<usize> {
        let Range { start, end } = self.rows();
        start * width..end * width
    }
}

/// The feeds of some parts, which ascend.
fn of_parts<'a, 'f>(
    feeds: &'a mut [Feed<'f>],
    parts: &'a [Part],
) -> impl Iterator<Item = (&'a mut Feed<'f>, &'a Part)> {
    feeds.iter_mut().enumerate().filter_map(|(index, feed)| {
        let part = parts.binary_search_by_key(&index, |part| part.feed).ok()?;
        Some((feed, &parts[part]))
    })
}

/// One head of one part: `q` and `y` are `[rows, 64]`.
struct HeadTask<'a> {
    q: &'a [f32],
    rows: &'a HeadRows,
    visible: &'a Visible,
    weights: Vec<f32>,
    y: &'a mut [f32],
}

impl HeadTask<'_> {
    fn run(&mut self, isa: Isa) {
        let rows = self.q.len() / ATTENTION_HEAD;
        let visible: Vec<&[Range<usize>]> = (0..rows).map(|row| self.visible.of(row)).collect();
        self.rows.attend(isa, self.q, &visible, &mut self.weights, self.y);
    }
}
