//! The gradient of attention: scores are computed again, block by block (Dao et al., arXiv 2205.14135, algorithm 4).
//!
//! A head of keys with the heads that read it is one thread's, which adds in a fixed order.

use graphc_ir::op::Op;
use graphc_ir::types::DType;
use half::{bf16, f16};

use super::{COLUMNS, ROWS, Space, product};
use crate::context::KernelContext;
use crate::error::KernelError;
use crate::math;
use crate::parallel;
use crate::product::{Layout, Number, Write, room};
use crate::rows;
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

/// The kernel of [`Op::AttentionGrad`].
pub(crate) fn attention_grad(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    match operands.first().map(|q| q.dtype) {
        Some(DType::BF16) => gradient::<bf16>(op, operands, results, cx),
        Some(DType::F16) => gradient::<f16>(op, operands, results, cx),
        _ => gradient::<f32>(op, operands, results, cx),
    }
}

fn gradient<T: Number>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::AttentionGrad(op), [q, k, v, o, l, of_o, rest @ ..], [dq, dk, dv]) =
        (op, operands, results)
    else {
        return Err(KernelError::call("attention_grad", "takes six operands, gives three results"));
    };
    let space = Space::new("attention_grad", q, k, op.causal, op.scale.0)?;
    let as_query = [o.shape, of_o.shape, dq.shape].iter().all(|shape| *shape == q.shape);
    let as_key = [v.shape, dk.shape, dv.shape].iter().all(|shape| *shape == k.shape);
    let as_row = l.shape == &q.shape[..3] && rest.iter().all(|of_l| of_l.shape == l.shape);
    if !(as_query && as_key && as_row) {
        return Err(KernelError::call("attention_grad", "operands or results of other shapes"));
    }
    let inputs = Inputs::<T> {
        space: &space,
        q: q.as_slice()?,
        k: k.as_slice()?,
        v: v.as_slice()?,
        o: o.as_slice()?,
        l: l.as_slice()?,
        of_o: of_o.as_slice()?,
        of_l: rest.first().map(View::as_slice).transpose()?,
    };
    let to = [dq.as_mut_slice()?, dk.as_mut_slice()?, dv.as_mut_slice()?];
    inputs.all_heads(to, cx)
}

struct Inputs<'a, T> {
    space: &'a Space,
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    o: &'a [T],
    l: &'a [f32],
    of_o: &'a [T],
    of_l: Option<&'a [f32]>,
}

/// What one thread computes, and where it works.
#[derive(Default)]
struct Piece<'a> {
    /// Batch, head of keys, and memory for the gradients.
    heads: Vec<(usize, usize, &'a mut [f32])>,
    scratch: &'a mut [f32],
}

impl<T: Number> Inputs<'_, T> {
    /// Elements of the gradients of one head of keys and of its group: queries, keys, values.
    fn sizes(&self) -> [usize; 3] {
        let Space { queries, keys, group, width, .. } = *self.space;
        [queries * group * width, keys * width, keys * width]
    }

    /// What the products of a block work in.
    fn room(&self) -> usize {
        let width = self.space.width;
        let scores = room::<T, T, f32>([ROWS, width, COLUMNS], 1);
        let of_queries = room::<f32, T, f32>([ROWS, COLUMNS, width], 1);
        scores.max(of_queries).max(room::<f32, T, f32>([COLUMNS, ROWS, width], 1))
    }

    fn all_heads(
        &self,
        [dq, dk, dv]: [&mut [T]; 3],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let Space { batch, queries, keys, shared, group, width, .. } = *self.space;
        let units = batch * shared;
        let size: usize = self.sizes().iter().sum();
        if units * queries * keys * width == 0 {
            [dq, dk, dv].into_iter().for_each(|of_none| of_none.fill(T::default()));
            return Ok(());
        }
        let parts = parallel::parts(cx, self.space.products()).min(units);
        let own = 2 * ROWS * COLUMNS + queries + 2 * width + self.room();
        let (all, scratch) = cx.scratch.take(units * size + parts * own).split_at_mut(units * size);
        let scratch = scratch.chunks_mut(own.max(1));
        let mut pieces: Vec<Piece<'_>> =
            scratch.map(|scratch| Piece { heads: Vec::new(), scratch }).collect();
        for (unit, memory) in all.chunks_mut(size).enumerate() {
            pieces[unit % parts].heads.push((unit / shared, unit % shared, memory));
        }
        parallel::run(cx.pool, pieces, |piece| {
            for (batch, head, memory) in piece.heads {
                self.one_head([batch, head], memory, piece.scratch);
            }
            Ok(())
        })?;
        let all = &*all;
        let [of_queries, of_keys, _] = self.sizes();
        let chunks = |x, size: usize| <[T]>::chunks_mut(x, size.max(1));
        let results = chunks(dq, of_queries * shared)
            .zip(chunks(dk, of_keys * shared).zip(chunks(dv, of_keys * shared)));
        parallel::run(cx.pool, results.enumerate().collect(), |(batch, (dq, (dk, dv)))| {
            for head in 0..shared {
                let memory = &all[(batch * shared + head) * size..][..size];
                let (of_query, rest) = memory.split_at(of_queries);
                let (of_key, of_value) = rest.split_at(of_keys);
                place(of_query, dq, group * width, [head, shared]);
                place(of_key, dk, width, [head, shared]);
                place(of_value, dv, width, [head, shared]);
            }
            Ok(())
        })
    }

    /// The gradients of one head of keys and its group, in memory of their own.
    fn one_head(&self, [batch, shared]: [usize; 2], memory: &mut [f32], scratch: &mut [f32]) {
        let Space { queries, keys, group, width, scale, .. } = *self.space;
        memory.fill(0.0);
        let [of_queries, of_keys, _] = self.sizes();
        let (dq, rest) = memory.split_at_mut(of_queries);
        let (dk, dv) = rest.split_at_mut(of_keys);
        let (weights, rest) = scratch.split_at_mut(ROWS * COLUMNS);
        let (of_scores, rest) = rest.split_at_mut(ROWS * COLUMNS);
        let (shifts, rest) = rest.split_at_mut(queries);
        let (pair, room) = rest.split_at_mut(2 * width);
        let block_layout = Layout::rows(COLUMNS);
        for member in 0..group {
            let head = shared * group + member;
            for (query, shift) in shifts.iter_mut().enumerate() {
                *shift = self.shift([batch, query, head], pair);
            }
            for first in (0..keys).step_by(COLUMNS) {
                let columns = COLUMNS.min(keys - first);
                let at = [batch, first, shared];
                let [key, value] = [self.k, self.v].map(|x| self.space.of_key(x, at));
                for start in (0..queries).step_by(ROWS) {
                    let count = ROWS.min(queries - start);
                    if self.space.seen(start + count - 1, first, columns) == 0 {
                        continue;
                    }
                    let at = [batch, start, head];
                    let [query, of_o] = [self.q, self.of_o].map(|x| self.space.of_query(x, at));
                    self.space.scores(query, key, [count, columns], weights, room);
                    let to = (&mut *of_scores, block_layout);
                    let value = (value.0, value.1.t());
                    product([count, width, columns], 1.0, of_o, value, to, Write::Replace, room);
                    for row in 0..count {
                        weigh(
                            &mut weights[row * COLUMNS..][..columns],
                            &mut of_scores[row * COLUMNS..][..columns],
                            self.space.seen(start + row, first, columns),
                            self.l[self.row([batch, start + row, head])],
                            shifts[start + row],
                        );
                    }
                    let (by_row, by_column) = ([count, columns, width], [columns, count, width]);
                    let to = Layout::rows(width);
                    let weights = (&*weights, block_layout.t());
                    let of_value = (&mut dv[first * width..], to);
                    product(by_column, 1.0, weights, of_o, of_value, Write::Add, room);
                    let turned = (&*of_scores, block_layout.t());
                    let of_key = (&mut dk[first * width..], to);
                    product(by_column, scale, turned, query, of_key, Write::Add, room);
                    let of_scores = (&*of_scores, block_layout);
                    let of_query = &mut dq[(start * group + member) * width..];
                    let of_query = (of_query, Layout::rows(group * width));
                    product(by_row, scale, of_scores, key, of_query, Write::Add, room);
                }
            }
        }
    }

    fn row(&self, [batch, query, head]: [usize; 3]) -> usize {
        (batch * self.space.queries + query) * self.space.heads + head
    }

    /// What is subtracted from do v of a query: sum(do o) - dl. Memory for the two rows is given.
    fn shift(&self, at: [usize; 3], pair: &mut [f32]) -> f32 {
        let (row, width) = (self.row(at), self.space.width);
        let part = row * width..(row + 1) * width;
        let (first, second) = pair.split_at_mut(width);
        T::widen(&self.of_o[part.clone()], first);
        T::widen(&self.o[part], second);
        dot(first, second) - self.of_l.map_or(0.0, |of_l| of_l[row])
    }
}

/// Copies rows of `width` elements to their place among those of `count` heads.
fn place<T: Number>(from: &[f32], to: &mut [T], width: usize, [head, count]: [usize; 2]) {
    let rows = to.chunks_exact_mut((count * width).max(1));
    for (from, to) in from.chunks_exact(width.max(1)).zip(rows) {
        T::narrow(from, &mut to[head * width..][..width]);
    }
}

vectorized! {
    fn dot(x: &[f32], y: &[f32]) -> f32 {
        rows::dot(x, y)
    }
}

vectorized! {
    /// Turns the scores of a query into weights, and do v into the gradient of the scores.
    fn weigh(scores: &mut [f32], of_scores: &mut [f32], seen: usize, l: f32, shift: f32) {
        scores[seen..].fill(0.0);
        of_scores[seen..].fill(0.0);
        for (score, of_score) in scores.iter_mut().zip(of_scores).take(seen) {
            *score = math::exp(*score - l);
            *of_score = *score * (*of_score - shift);
        }
    }
}
