//! The gradient of recurrent cells over a sequence, from the last step back.

use graphc_ir::op::Op;
use graphc_ir::ops::{Cell, RecurrenceGrad};

use super::{RecurrenceExtents, RecurrenceWork, cells, mismatch_error, with_floats};
use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::precision::Float;
use crate::product::{Hands, Layout, Write, multiply};
use crate::view::{View, ViewMut};

/// The kernel of [`Op::RecurrenceGrad`].
pub(crate) fn recurrence_grad<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let Op::RecurrenceGrad(op) = op else { return Err(mismatch_error("is another op")) };
    let Some(gradient) = operands.get(op.gradient_at()) else {
        return Err(mismatch_error("takes the gradient of states"));
    };
    let extents = RecurrenceExtents::new(op.cell, gradient.shape)?;
    let gates = [extents.batch, extents.time, extents.gates_width()];
    let fits = operands[0].shape == [extents.gates_width(), extents.width]
        && results.first().is_some_and(|result| result.shape == gates)
        && results.len() == if op.gradient_at() == 4 { 3 } else { 2 };
    if !fits {
        return Err(mismatch_error("operands or results of other shapes"));
    }
    let mut given: [Option<&View<'_>>; 6] = [None; 6];
    given.iter_mut().zip(operands).for_each(|(given, operand)| *given = Some(operand));
    let mut rest = results.iter_mut();
    let results = [rest.next(), rest.next(), rest.next()];
    with_floats::<T, 6>(given, results, extents, cx, |operands, results, work| {
        RecurrenceBackward { extents, op: *op, operands }.run(results, work);
    })
}

struct RecurrenceBackward<'a> {
    extents: RecurrenceExtents,
    op: RecurrenceGrad,
    operands: [&'a [f32]; 6],
}

/// The gradients of samples at all steps, of which a thread writes one step.
struct SamplePiece<'a> {
    /// The number of the first sample.
    start: usize,
    state: &'a mut [f32],
    kept: &'a mut [f32],
    of_x: &'a mut [f32],
    /// Empty where it is that of x.
    of_p: &'a mut [f32],
}

impl RecurrenceBackward<'_> {
    fn run(&self, [of_x, second, third]: [&mut [f32]; 3], mut work: RecurrenceWork<'_>) {
        work.state.fill(0.0);
        work.kept.fill(0.0);
        let gru = self.op.cell == Cell::Gru;
        let (of_p, of_state, of_kept) =
            if gru { (second, third, &mut [][..]) } else { (&mut [][..], second, third) };
        for step in self.op.step_order(self.extents.time) {
            self.step(step, of_x, of_p, &mut work);
            self.multiply_weights(step, if gru { of_p } else { of_x }, &mut work);
        }
        of_state.copy_from_slice(work.state);
        if self.op.cell.keeps_values() {
            of_kept.copy_from_slice(work.kept);
        }
    }

    /// Adds what the states' share of a step gives the gradient of the state before it.
    fn multiply_weights(&self, step: usize, of_p: &[f32], work: &mut RecurrenceWork<'_>) {
        let RecurrenceExtents { batch, time, width, .. } = self.extents;
        let gates = self.extents.gates_width();
        let shares = (&of_p[step * gates..], Layout::rows(time * gates));
        let weights = (self.operands[0], Layout::rows(width));
        let state = (&mut *work.state, Layout::rows(width));
        let hands = Hands { pool: work.pool, threads: work.threads, room: &mut *work.room };
        multiply([batch, gates, width], 1.0, shares, weights, state, Write::Add, hands);
    }

    fn step(&self, step: usize, of_x: &mut [f32], of_p: &mut [f32], work: &mut RecurrenceWork<'_>) {
        let (width, gates) = (self.extents.width, self.extents.gates_width());
        let (each, time) = (self.extents.samples_per_piece(work), self.extents.time);
        let of_p_width = if of_p.is_empty() { 0 } else { gates };
        let pieces = work
            .state
            .chunks_mut(each * width)
            .zip(work.kept.chunks_mut(each * width))
            .zip(of_x.chunks_mut(each * time * gates))
            .zip(super::chunks_or_empty(of_p, each * time * of_p_width))
            .enumerate()
            .map(|(index, (((state, kept), of_x), of_p))| {
                let start = index * each;
                SamplePiece { start, state, kept, of_x, of_p }
            })
            .collect();
        let done = parallel::run_parts(work.pool, pieces, &|piece| {
            self.run_samples(step, piece);
            Ok(())
        });
        debug_assert!(done.is_ok(), "cells give no errors");
    }

    fn run_samples(&self, step: usize, piece: SamplePiece<'_>) {
        let RecurrenceExtents { cell, time, width, .. } = self.extents;
        let gates = self.extents.gates_width();
        let SamplePiece { start, state, kept, of_x, of_p } = piece;
        let samples = state.chunks_exact_mut(width).zip(kept.chunks_exact_mut(width));
        for (sample, (state, kept)) in samples.enumerate() {
            let (at, local) = ((start + sample) * time + step, sample * time + step);
            let row = |operand: usize, width: usize| &self.operands[operand][at * width..][..width];
            let of_x = &mut of_x[local * gates..][..gates];
            cells::add_row(state, row(self.op.gradient_at(), width));
            match cell {
                Cell::Lstm => {
                    let given = if self.operands[5].is_empty() { &[] } else { row(5, width) };
                    let before = self.kept_before(start + sample, step);
                    let (gates, after) = (row(1, gates), row(3, width));
                    let step = cells::LstmStep { gates, before, after, given };
                    cells::lstm_grad(&step, state, kept, of_x);
                }
                Cell::Gru => {
                    let (x, p, before) = (row(1, gates), row(2, gates), row(3, width));
                    let of_p = &mut of_p[local * gates..][..gates];
                    cells::gru_grad(&cells::GruStep { x, p, before }, state, of_x, of_p);
                }
                Cell::Tanh => cells::tanh_grad(row(1, width), state, of_x),
                Cell::Relu => cells::relu_grad(row(1, width), state, of_x),
            }
        }
    }

    /// Returns the content that an LSTM keeps before a step of a sample.
    fn kept_before(&self, sample: usize, step: usize) -> &[f32] {
        let RecurrenceExtents { time, width, .. } = self.extents;
        let (all, at) = match self.op.step_before(step, time) {
            Some(before) => (self.operands[3], sample * time + before),
            None => (self.operands[2], sample),
        };
        &all[at * width..][..width]
    }
}
