use super::rows::Pass;
use super::scratch::Scratch;
use super::sweep::Wanted;
use super::tasks::{Then, for_rows, task_width, tasks};
use crate::error::Result;
use crate::observer::StageKind;
use crate::weights::vector_at;

/// The rows of the step's logits that this sweep fills. Both lists ascend.
fn rows_of<'a>(
    logits: &'a mut [f32],
    vocab: usize,
    wanted: &'a [Wanted],
) -> impl Iterator<Item = &'a mut [f32]> {
    let mut rows = logits.chunks_exact_mut(vocab);
    let mut next = 0;
    wanted.iter().map(move |wanted| {
        let row = rows.nth(wanted.out_row - next).expect("a row of logits for every row that is wanted");
        next = wanted.out_row + 1;
        row
    })
}

impl Pass<'_, '_> {
    /// Ends the last block, and computes the logits that are wanted.
    pub fn head(&mut self) -> Result<()> {
        let width = self.weights.config.width;
        let vectors = self.residence.vectors();
        let [weight, bias] = self.weights.ln_out.map(|offset| vector_at(vectors, offset, width));
        self.begin(None, weight, bias);
        self.sum_hidden();
        self.watch.lap(StageKind::Norm);
        if self.sweep.wanted.is_empty() {
            return Ok(());
        }
        self.multiply_head()
    }

    /// Adds the rows of feeds that want their sum.
    fn sum_hidden(&mut self) {
        let width = self.weights.config.width;
        for span in &self.sweep.spans {
            if let Some(sum) = &mut self.feeds[span.feed].hidden_sum {
                for row in self.scratch.normed.chunks_exact(width).skip(span.first_row).take(span.rows) {
                    sum.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value));
                }
            }
        }
    }

    fn multiply_head(&mut self) -> Result<()> {
        let isa = self.isa;
        let (width, vocab) = (self.weights.config.width, self.weights.config.vocab);
        let wanted = &*self.sweep.wanted;
        let Scratch { normed, input, logits: panels, .. } = &mut *self.scratch;
        let normed = &**normed;
        let parts = &self.weights.head;
        let forms = parts.iter().fold(Default::default(), |forms, part| part.tiles.forms().union(forms));
        input.reset(wanted.len(), width, forms);
        let rows = input.rows_mut().zip(wanted);
        for_rows(self.team, wanted.len() * width, rows, |(row, wanted)| {
            row.set(isa, &normed[wanted.row * width..][..width]);
        });
        for part in parts {
            let group = self.watch.lease(self.residence, part.group)?;
            let w = part.tiles.view(&group);
            self.watch.lap(StageKind::Bind);
            panels.reset(wanted.len(), w.rows(), task_width(w, self.team.threads()));
            let mut items: Vec<_> = tasks(w, input, panels, Then::Nothing).collect();
            self.team.for_each(&mut items, |task| task.run(isa));
            let panels = &*panels;
            let columns = part.first_row..part.first_row + w.rows();
            let outs = rows_of(self.logits, vocab, wanted).enumerate();
            for_rows(self.team, wanted.len() * w.rows(), outs, |(r, out)| {
                panels.read_row(*r, &mut out[columns.clone()]);
            });
            self.watch.lap(StageKind::Head);
            self.watch.release(group);
        }
        Ok(())
    }
}
