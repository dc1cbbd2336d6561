//! Recurrent cells over a sequence: for each step one product of all samples' states with the weights, and then the cell, element
//! by element. Threads share products by their rows or columns, and cells by samples.

mod cells;
mod gradient;

use graphc_ir::op::Op;
use graphc_ir::ops::{Cell, Recurrence};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::precision::Float;
use crate::product::{Hands, Layout, Write, multiply, room, threads_for};
use crate::strided;
use crate::threads::ThreadPool;
use crate::view::{View, ViewMut};

pub(crate) use gradient::recurrence_grad;

/// Elements of a step below which one thread computes the cells faster than several.
const WORTHWHILE: usize = 1 << 13;

/// The kernel of [`Op::Recurrence`].
pub(crate) fn recurrence<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Recurrence(op), [x, r, b, first, rest @ ..], [y, kept @ ..]) = (op, operands, results)
    else {
        return Err(mismatch_error("takes 4 operands, or 5 where the cell keeps something"));
    };
    let extents = RecurrenceExtents::new(op.cell, y.shape)?;
    let fits = x.shape == [extents.batch, extents.time, extents.gates_width()]
        && r.shape == [extents.gates_width(), extents.width]
        && (rest.len(), kept.len()) == if op.cell.keeps_values() { (1, 1) } else { (0, 0) };
    if !fits {
        return Err(mismatch_error("operands or results of other shapes"));
    }
    let operands = [Some(x), Some(r), Some(b), Some(first), rest.first()];
    let results = [Some(y), kept.first_mut(), None];
    with_floats::<T, 5>(operands, results, extents, cx, |operands, [y, kept, _], work| {
        extents.forward(op, operands, [y, kept], work);
    })
}

fn mismatch_error(reason: &str) -> KernelError {
    KernelError::bad_call("recurrence", reason.to_string())
}

/// Extents of the shards.
#[derive(Clone, Copy)]
struct RecurrenceExtents {
    cell: Cell,
    batch: usize,
    time: usize,
    width: usize,
}

/// The threads and the scratch memory of a kernel.
struct RecurrenceWork<'a> {
    pool: Option<&'a ThreadPool>,
    /// The threads that compute a product.
    threads: usize,
    /// The state, or its gradient, of all samples.
    state: &'a mut [f32],
    /// The kept content, or its gradient.
    kept: &'a mut [f32],
    /// The gates of all samples at one step.
    gates: &'a mut [f32],
    /// The weights as the product of a step reads them fastest: by rows of the state. The gradient has no use for it.
    weights: &'a mut [f32],
    /// The scratch memory of a product.
    room: &'a mut [f32],
}

impl RecurrenceExtents {
    fn new(cell: Cell, states: &[usize]) -> Result<Self, KernelError> {
        match states {
            &[batch, time, width] => Ok(Self { cell, batch, time, width }),
            _ => Err(mismatch_error("gives states of three dims")),
        }
    }

    /// The width of all gates.
    fn gates_width(&self) -> usize {
        self.cell.count_gates() * self.width
    }

    /// Returns the number of samples for which a thread computes cells at a time.
    fn samples_per_piece(&self, work: &RecurrenceWork<'_>) -> usize {
        let large = work.pool.is_some() && self.batch * self.gates_width() >= WORTHWHILE;
        if large { self.batch.div_ceil(work.threads.max(1)) } else { self.batch }
    }

    fn forward(
        &self,
        op: &Recurrence,
        [x, r, b, first, kept]: [&[f32]; 5],
        [y, all_kept]: [&mut [f32]; 2],
        mut work: RecurrenceWork<'_>,
    ) {
        // Once, as otherwise each step would lay them out anew.
        strided::transpose_rows(r, work.weights, [self.gates_width(), self.width], 0);
        work.state.copy_from_slice(first);
        if self.cell.keeps_values() {
            work.kept.copy_from_slice(kept);
        }
        for step in op.step_order(self.time) {
            work.gates
                .chunks_exact_mut(self.gates_width())
                .for_each(|gates| gates.copy_from_slice(b));
            let extents = [self.batch, self.width, self.gates_width()];
            let state = (&*work.state, Layout::rows(self.width));
            let weights = (&*work.weights, Layout::rows(self.gates_width()));
            let gates = (&mut *work.gates, Layout::rows(self.gates_width()));
            let hands = Hands { pool: work.pool, threads: work.threads, room: &mut *work.room };
            multiply(extents, 1.0, state, weights, gates, Write::Add, hands);
            self.run_cells(step, x, [&mut *y, &mut *all_kept], &mut work);
        }
    }

    /// The cells of all samples at one step, of which the gates hold the states' share.
    fn run_cells(
        &self,
        step: usize,
        x: &[f32],
        [y, all_kept]: [&mut [f32]; 2],
        work: &mut RecurrenceWork<'_>,
    ) {
        let (gates, width, each) = (self.gates_width(), self.width, self.samples_per_piece(work));
        let kept_width = if self.cell.keeps_values() { width } else { 0 };
        let pieces = work
            .state
            .chunks_mut(each * width)
            .zip(work.gates.chunks(each * gates))
            .zip(x.chunks(each * self.time * gates))
            .zip(y.chunks_mut(each * self.time * width))
            .zip(chunks_or_empty(&mut *work.kept, each * kept_width))
            .zip(chunks_or_empty(all_kept, each * self.time * kept_width))
            .collect();
        let cell = self.cell;
        let done =
            parallel::run_parts(work.pool, pieces, &|(((((states, p), x), y), kept), all_kept)| {
                for (sample, state) in states.chunks_exact_mut(width).enumerate() {
                    let at = sample * self.time + step;
                    let (x, p) = (&x[at * gates..][..gates], &p[sample * gates..][..gates]);
                    let kept = &mut kept[sample * kept_width..][..kept_width];
                    match cell {
                        Cell::Lstm => cells::lstm_cell(x, p, state, kept),
                        Cell::Gru => cells::gru_cell(x, p, state),
                        Cell::Tanh => cells::tanh_cell(x, p, state),
                        Cell::Relu => cells::relu_cell(x, p, state),
                    }
                    y[at * width..][..width].copy_from_slice(state);
                    all_kept[at * kept_width..][..kept_width].copy_from_slice(kept);
                }
                Ok(())
            });
        debug_assert!(done.is_ok(), "cells give no errors");
    }
}

/// Chunks of these elements, or empty ones without end where they have none.
fn chunks_or_empty(all: &mut [f32], size: usize) -> impl Iterator<Item = &mut [f32]> {
    let empty = (size == 0).then(|| std::iter::repeat_with(|| -> &mut [f32] { &mut [] }));
    let chunks = if size == 0 { [].chunks_mut(1) } else { all.chunks_mut(size) };
    chunks.chain(empty.into_iter().flatten())
}

/// Calls `work` with operands and results as `f32`, empty ones where there is none, and with memory to work in.
fn with_floats<T: Float, const N: usize>(
    operands: [Option<&View<'_>>; N],
    results: [Option<&mut ViewMut<'_>>; 3],
    extents: RecurrenceExtents,
    cx: &mut KernelContext<'_>,
    work: impl FnOnce([&[f32]; N], [&mut [f32]; 3], RecurrenceWork<'_>),
) -> Result<(), KernelError> {
    let mut given: [&[T]; N] = [&[]; N];
    for (given, operand) in given.iter_mut().zip(operands) {
        *given = operand.map_or(Ok(&[][..]), |operand| operand.as_slice::<T>())?;
    }
    let [a, b, c] = results.map(|result| match result {
        Some(result) => result.as_mut_slice::<T>(),
        None => Ok(&mut [][..]),
    });
    let (a, b, c) = (a?, b?, c?);
    if extents.batch == 0 {
        return Ok(());
    }
    let RecurrenceExtents { batch, width, .. } = extents;
    let products = [[batch, width, extents.gates_width()], [batch, extents.gates_width(), width]];
    let threads = threads_for(cx, batch * width * extents.gates_width());
    let of_product =
        products.map(|extents| room::<f32, f32, f32>(extents, threads)).into_iter().max();
    let counts = given.map(|given| T::scratch_len(given.len()));
    let of_weights = width * extents.gates_width();
    let own = [
        batch * width,
        batch * width,
        batch * extents.gates_width(),
        of_weights,
        of_product.unwrap_or(0),
    ];
    let of_results = [&a, &b, &c].map(|result| T::scratch_len(result.len()));
    let all = counts.iter().chain(&own).chain(&of_results);
    let mut rest = cx.scratch.take::<f32>(all.map(|count| count.next_multiple_of(16)).sum());
    let mut take = |count: usize| {
        let (own, tail) = std::mem::take(&mut rest).split_at_mut(count.next_multiple_of(16));
        rest = tail;
        &mut own[..count]
    };
    let given = std::array::from_fn(|at| T::read_values(given[at], take(counts[at])));
    let [state, kept, gates, weights, room] = own.map(&mut take);
    let [of_a, of_b, of_c] = of_results.map(take);
    let place = RecurrenceWork { pool: cx.pool, threads, state, kept, gates, weights, room };
    T::write_values(a, of_a, |a| {
        T::write_values(b, of_b, |b| T::write_values(c, of_c, |c| work(given, [a, b, c], place)))
    });
    Ok(())
}
