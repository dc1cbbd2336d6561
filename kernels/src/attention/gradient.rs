//! The gradient of attention: scores are computed again, block by block (Dao et al., arXiv 2205.14135, algorithm 4).
//!
//! A head of keys with the heads that read it is one thread's, which adds in a fixed order.

use graphc_ir::op::Op;
use graphc_ir::types::DType;
use half::{bf16, f16};

use super::{COLUMNS, ROWS, Space, Strip, Strips, product};
use crate::context::KernelContext;
use crate::error::KernelError;
use crate::math;
use crate::parallel;
use crate::product::{Layout, Number, Write, room};
use crate::rows;
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

/// Elements of a row that are rounded at a time.
const PIECE: usize = 256;

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
        let Space { batch, queries, keys, shared, group, width, scale, .. } = *self.space;
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
        parallel::run(cx.pool, pieces, &|piece| {
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
        parallel::run(cx.pool, results.enumerate().collect(), &|(batch, (dq, (dk, dv)))| {
            for head in 0..shared {
                let memory = &all[(batch * shared + head) * size..][..size];
                let (of_query, rest) = memory.split_at(of_queries);
                let (of_key, of_value) = rest.split_at(of_keys);
                place(of_query, scale, dq, group * width, head, shared);
                place(of_key, scale, dk, width, head, shared);
                place(of_value, 1.0, dv, width, head, shared);
            }
            Ok(())
        })
    }

    /// The gradients of one head of keys and its group, in memory of their own; those of queries and keys without the scale.
    fn one_head(&self, [batch, shared]: [usize; 2], memory: &mut [f32], scratch: &mut [f32]) {
        let Space { queries, keys, group, width, .. } = *self.space;
        memory.fill(0.0);
        let [of_queries, of_keys, _] = self.sizes();
        let (dq, rest) = memory.split_at_mut(of_queries);
        let (dk, dv) = rest.split_at_mut(of_keys);
        let (weights, rest) = scratch.split_at_mut(ROWS * COLUMNS);
        let (of_scores, rest) = rest.split_at_mut(ROWS * COLUMNS);
        let (shifts, rest) = rest.split_at_mut(queries);
        let (pair, room) = rest.split_at_mut(2 * width);
        for member in 0..group {
            let head = shared * group + member;
            self.shifts([batch, head], pair, shifts);
            for first in (0..keys).step_by(COLUMNS) {
                let columns = COLUMNS.min(keys - first);
                for start in (0..queries).step_by(ROWS) {
                    let count = ROWS.min(queries - start);
                    if self.space.seen(start + count - 1, first, columns) == 0 {
                        continue;
                    }
                    let strips = self.space.strips([start, count], [first, columns]);
                    let block = Block { batch, shared, head, start, first, strips };
                    self.scores(&block, shifts, [&mut *weights, &mut *of_scores], room);
                    let to = [&mut dk[first * width..], &mut dv[first * width..]];
                    self.add_of_keys(&block, [&*weights, &*of_scores], to, room);
                    let dq = &mut dq[(start * group + member) * width..];
                    self.add_of_queries(&block, of_scores, dq, room);
                }
            }
        }
    }

    /// What a query pays to a key, and the gradient of the scores.
    fn scores(
        &self,
        block: &Block,
        shifts: &[f32],
        [weights, of_scores]: [&mut [f32]; 2],
        room: &mut [f32],
    ) {
        let Block { batch, head, start, first, strips, .. } = *block;
        let space = self.space;
        let [key, value] = [self.k, self.v].map(|x| space.of_key(x, block.key()));
        let [query, of_o] = [self.q, self.of_o].map(|x| space.of_query(x, block.query(0)));
        space.scores(strips, space.scale, [query, key], weights, room);
        space.scores(strips, 1.0, [of_o, value], of_scores, room);
        for row in 0..strips.rows {
            weigh(
                &mut weights[row * COLUMNS..][..COLUMNS],
                &mut of_scores[row * COLUMNS..][..COLUMNS],
                strips.columns,
                space.seen(start + row, first, strips.columns),
                (self.l[self.row([batch, start + row, head])], shifts[start + row]),
            );
        }
    }

    /// Adds what keys and values get from a block.
    fn add_of_keys(
        &self,
        block: &Block,
        [weights, of_scores]: [&[f32]; 2],
        [dk, dv]: [&mut [f32]; 2],
        room: &mut [f32],
    ) {
        let width = self.space.width;
        let (turned, to) = (Layout::rows(COLUMNS).t(), Layout::rows(width));
        for Strip { rows, columns } in block.strips.by_columns() {
            let extents = [columns.len(), rows.len(), width];
            let place = rows.start * COLUMNS + columns.start;
            let [query, of_o] =
                [self.q, self.of_o].map(|x| self.space.of_query(x, block.query(rows.start)));
            let [of_key, of_value] = [&mut *dk, &mut *dv].map(|x| &mut x[columns.start * width..]);
            let factor = (&weights[place..], turned);
            product(extents, 1.0, factor, of_o, (of_value, to), Write::Add, room);
            let factor = (&of_scores[place..], turned);
            product(extents, 1.0, factor, query, (of_key, to), Write::Add, room);
        }
    }

    /// Adds what queries get from a block, of a head among those of its group.
    fn add_of_queries(&self, block: &Block, of_scores: &[f32], dq: &mut [f32], room: &mut [f32]) {
        let Space { group, width, .. } = *self.space;
        let key = self.space.of_key(self.k, block.key());
        for Strip { rows, columns } in block.strips.by_rows() {
            let extents = [rows.len(), columns.end, width];
            let factor = (&of_scores[rows.start * COLUMNS..], Layout::rows(COLUMNS));
            let to = (&mut dq[rows.start * group * width..], Layout::rows(group * width));
            product(extents, 1.0, factor, key, to, Write::Add, room);
        }
    }

    /// What is subtracted from do v of each query: sum(do o) - dl. Memory for two rows is given.
    fn shifts(&self, [batch, head]: [usize; 2], pair: &mut [f32], to: &mut [f32]) {
        let [of_o, o] = [self.of_o, self.o].map(|x| self.space.of_query(x, [batch, 0, head]).0);
        shifts(of_o, o, self.space.heads, pair, to);
        for (query, shift) in to.iter_mut().enumerate() {
            *shift -= self.of_l.map_or(0.0, |of_l| of_l[self.row([batch, query, head])]);
        }
    }

    fn row(&self, [batch, query, head]: [usize; 3]) -> usize {
        (batch * self.space.queries + query) * self.space.heads + head
    }
}

/// A block of queries and keys of a head.
struct Block {
    batch: usize,
    /// The head of keys, and the one of queries.
    shared: usize,
    head: usize,
    start: usize,
    first: usize,
    strips: Strips,
}

impl Block {
    fn query(&self, row: usize) -> [usize; 3] {
        [self.batch, self.start + row, self.head]
    }

    fn key(&self) -> [usize; 3] {
        [self.batch, self.first, self.shared]
    }
}

vectorized! {
    /// Brings rows of `width` elements, multiplied by a number, to their place among those of `count` heads.
    fn place<T: Number>(
        from: &[f32],
        scale: f32,
        to: &mut [T],
        width: usize,
        head: usize,
        count: usize,
    ) {
        let mut room = [0.0; PIECE];
        let rows = to.chunks_exact_mut((count * width).max(1));
        for (from, to) in from.chunks_exact(width.max(1)).zip(rows) {
            let to = &mut to[head * width..][..width];
            for (from, to) in from.chunks(PIECE).zip(to.chunks_mut(PIECE)) {
                T::write(to, &mut room, |to| {
                    for (to, from) in to.iter_mut().zip(from) {
                        *to = from * scale;
                    }
                });
            }
        }
    }
}

vectorized! {
    /// What is subtracted from do v of each query of a head: sum(do o), of rows of `heads` heads that are `width` wide. Memory for two of
    /// them is given.
    fn shifts<T: Number>(of_o: &[T], o: &[T], heads: usize, pair: &mut [f32], to: &mut [f32]) {
        let width = pair.len() / 2;
        let (first, second) = pair.split_at_mut(width);
        let rows = of_o.chunks((heads * width).max(1)).zip(o.chunks((heads * width).max(1)));
        for (to, (of_o, o)) in to.iter_mut().zip(rows) {
            *to = rows::dot(T::read(&of_o[..width], first), T::read(&o[..width], second));
        }
    }
}

vectorized! {
    /// Turns the scores of a query into weights, and do v into the gradient of the scores: 0 from `seen` to `columns`.
    fn weigh(
        scores: &mut [f32],
        of_scores: &mut [f32],
        columns: usize,
        seen: usize,
        row: (f32, f32),
    ) {
        let (l, shift) = row;
        let whole = rows::whole_vectors(seen, scores.len());
        for (score, of_score) in scores.iter_mut().zip(&mut *of_scores).take(whole) {
            *score = math::exp(*score - l);
            *of_score = *score * (*of_score - shift);
        }
        for values in [scores, of_scores] {
            values[seen..columns.max(whole)].fill(0.0);
        }
    }
}
