//! The gradient of attention: scores are computed again, block by block (Dao et al., arXiv 2205.14135, algorithm 4).
//!
//! A head of keys with the heads that read it is one thread's, which adds in a fixed order.

use std::iter::StepBy;
use std::marker::PhantomData;
use std::ops::Range;

use graphc_ir::op::Op;
use graphc_ir::ops;
use graphc_ir::types::DType;
use half::{bf16, f16};

use super::dropping::WeightDropping;
use super::scoring::{Scoring, multiply_slopes};
use super::weights::weigh_scores;
use super::{APART, AttentionExtents, KEYS, QUERIES, ScoreStrip, Strips, multiply_or_zero};
use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::product::{Layout, Number, Write, room};
use crate::rows;
use crate::simd::vectorized;
use crate::view::{OutputParts, View, ViewMut};

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
        Some(DType::BF16) => compute_gradients::<bf16>(op, operands, results, cx),
        Some(DType::F16) => compute_gradients::<f16>(op, operands, results, cx),
        _ => compute_gradients::<f32>(op, operands, results, cx),
    }
}

fn compute_gradients<T: Number>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::AttentionGrad(op), [q, k, v, o, l, of_o, ..], [dq, dk, dv, of_bias @ ..]) =
        (op, operands, results)
    else {
        return Err(KernelError::bad_call(
            "attention_grad",
            "takes six operands, gives three results",
        ));
    };
    let (of_l, bias) = op.optional_operands(operands.len());
    let [of_l, bias] = [of_l, bias].map(|place| place.and_then(|place| operands.get(place)));
    let space = AttentionExtents::new("attention_grad", q, k, op.forward())?;
    let as_query = [o.shape, of_o.shape, dq.shape].iter().all(|shape| *shape == q.shape);
    let as_key = [v.shape, dk.shape, dv.shape].iter().all(|shape| *shape == k.shape);
    let as_row = l.shape == &q.shape[..3] && of_l.is_none_or(|of_l| of_l.shape == l.shape);
    if !(as_query && as_key && as_row) {
        return Err(KernelError::bad_call("attention_grad", "operands or results of other shapes"));
    }
    let inputs = AttentionGradInputs::<T> {
        space: &space,
        q: q.as_slice()?,
        k: k.as_slice()?,
        v: v.as_slice()?,
        o: o.as_slice()?,
        l: l.as_slice()?,
        of_o: of_o.as_slice()?,
        of_l: of_l.map(View::as_slice).transpose()?,
        scoring: Scoring::new(op.forward(), bias, space.score_extents())?,
        dropping: WeightDropping::from_op(op.forward(), [q, k], cx),
    };
    let to = [dq.as_mut_slice()?, dk.as_mut_slice()?, dv.as_mut_slice()?];
    inputs.all_heads(to, cx)?;
    match of_bias.first_mut() {
        Some(to) if op.bias == ops::AttentionBias::Learned => inputs.all_biases(to, cx),
        _ => Ok(()),
    }
}

pub(super) struct AttentionGradInputs<'a, T> {
    pub space: &'a AttentionExtents,
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    o: &'a [T],
    l: &'a [f32],
    of_o: &'a [T],
    of_l: Option<&'a [f32]>,
    scoring: Scoring<'a, T>,
    dropping: Option<WeightDropping>,
}

/// The work of one thread, and its scratch memory.
struct HeadPiece<'a> {
    /// Every so many heads of keys of all batches, from one on.
    heads: StepBy<Range<usize>>,
    scratch: &'a mut [f32],
}

impl<T: Number> AttentionGradInputs<'_, T> {
    /// Elements of the gradients of one head of keys and of its group: queries, keys, values.
    fn sizes(&self) -> [usize; 3] {
        let AttentionExtents { queries, keys, group, width, .. } = *self.space;
        [queries * group * width, keys * width, keys * width]
    }

    /// Returns the number of `f32` of scratch memory that the products of a block need.
    pub(super) fn scratch_len(&self) -> usize {
        let width = self.space.width;
        let scores = room::<T, T, f32>([KEYS, width, QUERIES], 1);
        let of_queries = room::<f32, T, f32>([QUERIES, KEYS, width], 1);
        scores.max(of_queries).max(room::<f32, T, f32>([KEYS, QUERIES, width], 1))
    }

    fn all_heads(
        &self,
        [dq, dk, dv]: [&mut [T]; 3],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let AttentionExtents { batch, shared, width, .. } = *self.space;
        let units = batch * shared;
        if self.space.count_multiplications() == 0 {
            [dq, dk, dv].into_iter().for_each(|of_none| of_none.fill(T::default()));
            return Ok(());
        }
        let parts = parallel::count_parts(cx, self.space.count_multiplications()).min(units);
        let rows = 2 * self.space.rows();
        let own = self.sizes().iter().sum::<usize>() + self.score_blocks() + rows + 2 * width;
        let own = own + self.scratch_len();
        let pieces = cx.scratch.take(parts * own).chunks_mut(own).enumerate();
        let pieces = pieces
            .map(|(first, scratch)| HeadPiece { heads: (first..units).step_by(parts), scratch });
        let results = [dq, dk, dv].map(|result| OutputParts::from_slice(T::DTYPE, result));
        parallel::run_parts(cx.pool, pieces.collect(), &|piece| {
            for head in piece.heads {
                self.one_head([head / shared, head % shared], results, piece.scratch)?;
            }
            Ok(())
        })
    }

    /// Elements of weights, of gradients of scores and, where there is a soft cap, of slopes, of a block.
    pub(super) fn score_blocks(&self) -> usize {
        if self.scoring.is_capped() { 3 * KEYS * APART } else { 2 * KEYS * APART }
    }

    /// Cuts the memory of [`Self::score_blocks`] in weights, gradients of scores and slopes.
    pub(super) fn cut_blocks<'s>(&self, blocks: &'s mut [f32]) -> [&'s mut [f32]; 3] {
        let (weights, rest) = blocks.split_at_mut(KEYS * APART);
        let (of_scores, slopes) = rest.split_at_mut(KEYS * APART);
        [weights, of_scores, slopes]
    }

    /// The gradients of one head of keys and its group.
    fn one_head(
        &self,
        at: [usize; 2],
        [dq, dk, dv]: [OutputParts<'_>; 3],
        scratch: &mut [f32],
    ) -> Result<(), KernelError> {
        let AttentionExtents { queries, keys, shared, group, width, scale, .. } = *self.space;
        let [of_queries, of_keys, of_values] = self.sizes();
        let (of_query, rest) = scratch.split_at_mut(of_queries);
        let (of_key, rest) = rest.split_at_mut(of_keys);
        let (of_value, rest) = rest.split_at_mut(of_values);
        self.accumulate_head(at, [&mut *of_query, &mut *of_key, &mut *of_value], rest);
        let [batch, head] = at;
        let place = |from: &[f32], scale, result, rows: usize, width: usize| {
            let first = (batch * rows * shared + head) * width;
            // SAFETY: these columns are this head's, which is one thread's.
            let to = unsafe { GradientRows::<T>::from_parts(result, first, shared * width, width) };
            scaled_to(from, scale, to)
        };
        place(of_query, scale, dq, queries, group * width)?;
        place(of_key, scale, dk, keys, width)?;
        place(of_value, 1.0, dv, keys, width)
    }

    /// Computes the gradients of one head of keys and its group into `to`, which holds just these. Those of queries and keys are without
    /// the scale.
    fn accumulate_head(
        &self,
        [batch, shared]: [usize; 2],
        to: [&mut [f32]; 3],
        scratch: &mut [f32],
    ) {
        let AttentionExtents { group, width, .. } = *self.space;
        let [dq, dk, dv] = to;
        [&mut *dq, &mut *dk, &mut *dv].into_iter().for_each(|all| all.fill(0.0));
        let (blocks, rest) = scratch.split_at_mut(self.score_blocks());
        let [weights, of_scores, slopes] = self.cut_blocks(blocks);
        let (l, rest) = rest.split_at_mut(self.space.rows());
        let (shifts, rest) = rest.split_at_mut(self.space.rows());
        let (pair, room) = rest.split_at_mut(2 * width);
        for member in 0..group {
            let head = shared * group + member;
            self.prepare_rows([batch, head], pair, [&mut *l, &mut *shifts]);
            for (first, keys) in self.space.key_blocks() {
                for (start, count) in self.space.query_blocks() {
                    let strips = self.space.strips([start, count], [first, keys]);
                    if strips.are_empty() {
                        continue;
                    }
                    let block = ScoreBlock { batch, shared, head, start, first, strips };
                    let rows = [&l[start..], &shifts[start..]];
                    self.compute_scores(
                        &block,
                        rows,
                        [&mut *weights, &mut *of_scores, &mut *slopes],
                        room,
                    );
                    self.take_slopes(&block, of_scores, slopes);
                    let to = [&mut dk[first * width..], &mut dv[first * width..]];
                    self.add_of_keys(&block, [&*weights, &*of_scores], to, room);
                    let dq = &mut dq[(start * group + member) * width..];
                    self.add_of_queries(&block, of_scores, dq, room);
                }
            }
        }
    }

    /// Computes, for each query and key of a block, the attention weight behind the dropout, the gradient of the score and, if there is a soft cap, its slope.
    /// `rows` gives the log-sum-exp and the shift of each query.
    pub(super) fn compute_scores(
        &self,
        block: &ScoreBlock,
        rows: [&[f32]; 2],
        [weights, of_scores, slopes]: [&mut [f32]; 3],
        room: &mut [f32],
    ) {
        let (space, strips) = (self.space, block.strips);
        let [key, value] = [self.k, self.v].map(|x| space.of_key(x, block.key()));
        let [query, of_o] = [self.q, self.of_o].map(|x| space.of_query(x, block.query(0)));
        space.multiply_scores(strips, space.scale, [key, query], weights, room);
        self.scoring.apply(strips, (block.query(0), block.first), weights, slopes);
        space.multiply_scores(strips, 1.0, [value, of_o], of_scores, room);
        for (place, group) in strips.groups(APART) {
            let rows = rows.map(|row| &row[place..]);
            let (weights, of_scores) = (&mut weights[place..], &mut of_scores[place..]);
            let from = (block.query(place), block.first);
            let dropping = self.dropping.as_ref();
            let factors = dropping.map(|dropping| dropping.factors(from, group.keys));
            if let Some(factors) = &factors {
                factors.apply(of_scores, group);
            }
            weigh_scores(weights, of_scores, group, rows);
            if let Some(factors) = &factors {
                factors.apply(weights, group);
            }
        }
    }

    /// Turns gradients of scores into those of the products that they are made of.
    fn take_slopes(&self, block: &ScoreBlock, of_scores: &mut [f32], slopes: &[f32]) {
        if self.scoring.is_capped() {
            for (place, group) in block.strips.groups(APART) {
                multiply_slopes(&mut of_scores[place..], &slopes[place..], group.keys);
            }
        }
    }

    /// Adds what keys and values get from a block.
    fn add_of_keys(
        &self,
        block: &ScoreBlock,
        [weights, of_scores]: [&[f32]; 2],
        [dk, dv]: [&mut [f32]; 2],
        room: &mut [f32],
    ) {
        let width = self.space.width;
        let (by_key, to) = (Layout::rows(APART), Layout::rows(width));
        for ScoreStrip { queries, keys } in block.strips.by_keys() {
            let extents = [keys.len(), queries.len(), width];
            let place = keys.start * APART + queries.start;
            let [query, of_o] =
                [self.q, self.of_o].map(|x| self.space.of_query(x, block.query(queries.start)));
            let [of_key, of_value] = [&mut *dk, &mut *dv].map(|x| &mut x[keys.start * width..]);
            let factor = (&weights[place..], by_key);
            multiply_or_zero(extents, 1.0, factor, of_o, (of_value, to), Write::Add, room);
            let factor = (&of_scores[place..], by_key);
            multiply_or_zero(extents, 1.0, factor, query, (of_key, to), Write::Add, room);
        }
    }

    /// Adds what queries get from a block, of a head among those of its group.
    fn add_of_queries(
        &self,
        block: &ScoreBlock,
        of_scores: &[f32],
        dq: &mut [f32],
        room: &mut [f32],
    ) {
        let AttentionExtents { group, width, .. } = *self.space;
        let key = self.space.of_key(self.k, block.key());
        for ScoreStrip { queries, keys } in block.strips.by_queries() {
            let extents = [queries.len(), keys.end, width];
            let factor = (&of_scores[queries.start..], Layout::rows(APART).t());
            let to = (&mut dq[queries.start * group * width..], Layout::rows(group * width));
            multiply_or_zero(extents, 1.0, factor, key, to, Write::Add, room);
        }
    }

    /// Computes for each query of a head its log-sum-exp, and the number that is subtracted from do v: sum(do o) - dl. `pair` is memory for
    /// two rows.
    pub(super) fn prepare_rows(
        &self,
        [batch, head]: [usize; 2],
        pair: &mut [f32],
        [l, shifts]: [&mut [f32]; 2],
    ) {
        let [of_o, o] = [self.of_o, self.o].map(|x| self.space.of_query(x, [batch, 0, head]).0);
        let shifts = &mut shifts[..self.space.queries];
        dot_heads(of_o, o, self.space.heads, pair, shifts);
        for (query, (l, shift)) in l.iter_mut().zip(shifts).enumerate() {
            let row = self.row_index([batch, query, head]);
            // A query whose keys are all hidden by a bias has scores of -inf, and no weights beside any other number.
            *l = if self.l[row] == f32::NEG_INFINITY { 0.0 } else { self.l[row] };
            *shift -= self.of_l.map_or(0.0, |of_l| of_l[row]);
        }
    }

    fn row_index(&self, [batch, query, head]: [usize; 3]) -> usize {
        (batch * self.space.queries + query) * self.space.heads + head
    }
}

/// A block of queries and keys of a head.
pub(super) struct ScoreBlock {
    pub batch: usize,
    /// The head of keys, and the one of queries.
    pub shared: usize,
    pub head: usize,
    pub start: usize,
    pub first: usize,
    pub strips: Strips,
}

impl ScoreBlock {
    fn query(&self, row: usize) -> [usize; 3] {
        [self.batch, self.start + row, self.head]
    }

    fn key(&self) -> [usize; 3] {
        [self.batch, self.first, self.shared]
    }
}

/// Rows of a result that nobody else reaches.
struct GradientRows<'a, T> {
    result: OutputParts<'a>,
    /// The place of the first, and how far each lies from the one before.
    first: usize,
    apart: usize,
    width: usize,
    elements: PhantomData<T>,
}

impl<'a, T: Number> GradientRows<'a, T> {
    /// # Safety
    /// Nobody else reaches these rows while they are there.
    unsafe fn from_parts(
        result: OutputParts<'a>,
        first: usize,
        apart: usize,
        width: usize,
    ) -> Self {
        Self { result, first, apart, width, elements: PhantomData }
    }

    #[inline(always)]
    fn row(&mut self, index: usize) -> Result<&mut [T], KernelError> {
        let start = self.first + index * self.apart;
        // SAFETY: nobody else reaches it, as `of` was told.
        unsafe { self.result.part(start..start + self.width) }.into_slice()
    }
}

vectorized! {
    /// Writes values to rows, multiplied by a number.
    fn scaled_to<T: Number>(from: &[f32], scale: f32, rows: GradientRows<'_, T>) -> Result<(), KernelError> {
        let (mut rows, mut room) = (rows, [0.0; PIECE]);
        for (index, from) in from.chunks_exact(rows.width).enumerate() {
            let to = rows.row(index)?;
            for (from, to) in from.chunks(PIECE).zip(to.chunks_mut(PIECE)) {
                T::write_values(to, &mut room, |to| {
                    for (to, from) in to.iter_mut().zip(from) {
                        *to = from * scale;
                    }
                });
            }
        }
        Ok(())
    }
}

vectorized! {
    /// sum(do o) of each query of a head, of rows of `heads` heads that are `width` wide. Memory for two of them is given.
    fn dot_heads<T: Number>(of_o: &[T], o: &[T], heads: usize, pair: &mut [f32], to: &mut [f32]) {
        let width = pair.len() / 2;
        let (first, second) = pair.split_at_mut(width);
        let rows = of_o.chunks((heads * width).max(1)).zip(o.chunks((heads * width).max(1)));
        for (to, (of_o, o)) in to.iter_mut().zip(rows) {
            *to = rows::dot_product(T::read_values(&of_o[..width], first), T::read_values(&o[..width], second));
        }
    }
}
