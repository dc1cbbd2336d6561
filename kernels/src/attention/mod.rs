//! Attention by blocks of queries and keys, with a running maximum and sum of each query (Milakov and Gimelshein, arXiv
//! 1805.02867; Dao et al., arXiv 2205.14135, algorithm 1). Scores exist for one block at a time.
//!
//! One thread computes a block of queries and goes over the keys in order, so bits do not depend on the number of threads.
//! Scores, weights and sums are f32 whatever the element type. The scores of a key lie together, a vector for 16 queries
//! ([`weights`]). A block that a causal mask cuts is multiplied in strips ([`strips`]).

mod dropping;
mod gradient;
mod of_bias;
mod scoring;
mod strips;
mod weights;

use graphc_ir::op::Op;
use graphc_ir::ops::Attention;
use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::math;
use crate::parallel;
use crate::product::{Hands, Layout, Number, Write, multiply, room};
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

use dropping::WeightDropping;
pub(crate) use gradient::attention_grad;
use scoring::Scoring;
use strips::{ScoreStrip, Strips};
use weights::{LANES, SoftmaxState, absorb_scores};

/// Queries of a block.
const QUERIES: usize = 128;
/// Keys of a block.
const KEYS: usize = 128;
/// The distance from the scores of one key to those of the next. (Were it a multiple of 512 bytes, scores of one query would meet in few
/// places of the nearest cache.)
const APART: usize = QUERIES + LANES;

/// The kernel of [`Op::Attention`].
pub(crate) fn attention(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    match operands.first().map(|q| q.dtype) {
        Some(DType::BF16) => compute_attention::<bf16>(op, operands, results, cx),
        Some(DType::F16) => compute_attention::<f16>(op, operands, results, cx),
        _ => compute_attention::<f32>(op, operands, results, cx),
    }
}

fn compute_attention<T: Number>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Attention(op), [q, k, v, bias @ ..], [o, l]) = (op, operands, results) else {
        return Err(KernelError::bad_call(
            "attention",
            "takes three operands and gives two results",
        ));
    };
    let space = AttentionExtents::new("attention", q, k, *op)?;
    let scoring = Scoring::<T>::new(*op, bias.first(), space.score_extents())?;
    let weighing = Weighing { scoring, dropping: WeightDropping::from_op(*op, [q, k], cx) };
    if v.shape != k.shape || o.shape != q.shape || l.shape != &q.shape[..3] {
        return Err(KernelError::bad_call("attention", "operands or results of other shapes"));
    }
    let operands = [q.as_slice::<T>()?, k.as_slice::<T>()?, v.as_slice::<T>()?];
    let (o, l) = (o.as_mut_slice::<T>()?, l.as_mut_slice()?);
    let parts = parallel::count_parts(cx, space.count_multiplications());
    let mut pieces: Vec<QueryPiece<'_, T>> = (0..parts).map(|_| QueryPiece::default()).collect();
    for (index, block) in cut_blocks(&space, o, l).into_iter().enumerate() {
        // In turn, as under a causal mask later queries see more keys.
        pieces[index % parts].blocks.push(block);
    }
    let of_scores = room::<T, T, f32>([KEYS, space.width, QUERIES], 1);
    let of_values = room::<f32, T, f32>([QUERIES, KEYS, space.width], 1);
    let room = of_scores.max(of_values).max(space.width);
    let own = KEYS * APART + QUERIES * (space.width + 3) + room;
    for (piece, scratch) in pieces.iter_mut().zip(cx.scratch.take(parts * own).chunks_mut(own)) {
        piece.scratch = scratch;
    }
    parallel::run_parts(cx.pool, pieces, &|piece| {
        for block in piece.blocks {
            space.attend_block(operands, &weighing, block, piece.scratch);
        }
        Ok(())
    })
}

/// The steps from a scaled product of query and key to the weight of a value.
struct Weighing<'a, T> {
    scoring: Scoring<'a, T>,
    dropping: Option<WeightDropping>,
}

/// The blocks that one thread computes, and the memory that it works in.
struct QueryPiece<'a, T> {
    blocks: Vec<QueryBlock<'a, T>>,
    scratch: &'a mut [f32],
}

impl<T> Default for QueryPiece<'_, T> {
    fn default() -> Self {
        Self { blocks: Vec::new(), scratch: &mut [] }
    }
}

/// A block of queries with all heads, and their results: consecutive in memory.
struct QueryBlock<'a, T> {
    batch: usize,
    start: usize,
    count: usize,
    o: &'a mut [T],
    l: &'a mut [f32],
}

fn cut_blocks<'a, T>(
    space: &AttentionExtents,
    mut o: &'a mut [T],
    mut l: &'a mut [f32],
) -> Vec<QueryBlock<'a, T>> {
    let mut blocks = Vec::new();
    for batch in 0..space.batch {
        for (start, count) in space.query_blocks() {
            let (own_o, rest_o) = o.split_at_mut(count * space.heads * space.width);
            let (own_l, rest_l) = l.split_at_mut(count * space.heads);
            (o, l) = (rest_o, rest_l);
            blocks.push(QueryBlock { batch, start, count, o: own_o, l: own_l });
        }
    }
    blocks
}

/// Extents of the shards, and where they lie.
struct AttentionExtents {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    /// Heads of keys and values.
    shared: usize,
    /// Heads that read one head of keys.
    group: usize,
    width: usize,
    first_query: usize,
    first_key: usize,
    /// Queries and keys of all ranks.
    whole: [usize; 2],
    /// The op, by which queries see keys.
    op: Attention,
    scale: f32,
}

impl AttentionExtents {
    fn new(
        op: &'static str,
        q: &View<'_>,
        k: &View<'_>,
        payload: Attention,
    ) -> Result<Self, KernelError> {
        let (&[batch, queries, heads, width], &[key_batch, keys, shared, key_width]) =
            (q.shape, k.shape)
        else {
            return Err(KernelError::bad_call(op, "operands of other rank than 4"));
        };
        if (batch, width) != (key_batch, key_width) {
            return Err(KernelError::bad_call(op, "queries and keys of other batch or width"));
        }
        let group = heads.checked_div(shared).unwrap_or(0);
        let of_group = q.global[2] / k.global[2].max(1);
        let reads = |head: usize| (q.origin[2] + head) / of_group.max(1);
        let fits = |head: usize| reads(head) == k.origin[2] + head / group;
        if heads != group * shared || heads > 0 && !(fits(0) && fits(heads - 1)) {
            return Err(KernelError::bad_call(op, "heads that read keys of another rank"));
        }
        Ok(Self {
            batch,
            queries,
            keys,
            heads,
            shared,
            group,
            width,
            first_query: q.origin[1],
            first_key: k.origin[1],
            whole: [q.global[1], k.global[1]],
            op: payload,
            scale: payload.scale.0 as f32,
        })
    }

    /// Batch, heads, queries and keys.
    fn score_extents(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.keys]
    }

    /// The queries of a head, and room for a whole vector from any of them on.
    fn rows(&self) -> usize {
        self.queries + LANES
    }

    /// Multiplications of one product.
    fn count_multiplications(&self) -> usize {
        self.batch * self.heads * self.queries * self.keys * self.width
    }

    /// The block of `count` queries from `start` on and `keys` keys from `first` on, in strips.
    fn strips(&self, [start, count]: [usize; 2], [first, keys]: [usize; 2]) -> Strips {
        let query = self.op.position(self.first_query + start, self.whole[0]);
        let key = self.op.position(self.first_key + first, self.whole[1]);
        let ahead = self.op.causal.then_some((query + 1) as isize - key as isize);
        let window = self.op.window.map(|window| window.get() as usize);
        Strips { queries: count, keys, ahead, window }
    }

    /// The queries in blocks of at most [`QUERIES`], each a first one and a number of them, which follow each other in the sequence.
    fn query_blocks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        self.cut_runs(0, self.first_query, [self.queries, QUERIES])
    }

    /// The keys in blocks of at most [`KEYS`], as queries are.
    fn key_blocks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        self.cut_runs(1, self.first_key, [self.keys, KEYS])
    }

    /// Cuts `count` queries (0) or keys (1) of a shard that begins at `origin` where `most` are full, and where a chunk of the sequence ends.
    fn cut_runs(
        &self,
        dim: usize,
        origin: usize,
        [count, most]: [usize; 2],
    ) -> impl Iterator<Item = (usize, usize)> + use<> {
        let pairs = self.op.zigzag.map(|pairs| 2 * pairs.get() as usize);
        let chunk = pairs.map_or(usize::MAX, |chunks| (self.whole[dim] / chunks).max(1));
        let mut start = 0;
        std::iter::from_fn(move || {
            let to_border = chunk - (origin + start) % chunk;
            let block = (start, most.min(count - start).min(to_border));
            start += block.1;
            (block.1 > 0).then_some(block)
        })
    }

    /// The queries of a head from `start` on.
    fn of_query<'a, T>(&self, x: &'a [T], [batch, start, head]: [usize; 3]) -> (&'a [T], Layout) {
        let row = self.heads * self.width;
        (&x[(batch * self.queries + start) * row + head * self.width..], Layout::rows(row))
    }

    /// The keys, or values, of a head of these from `start` on.
    fn of_key<'a, T>(&self, x: &'a [T], [batch, start, head]: [usize; 3]) -> (&'a [T], Layout) {
        let row = self.shared * self.width;
        (&x[(batch * self.keys + start) * row + head * self.width..], Layout::rows(row))
    }

    fn attend_block<T: Number>(
        &self,
        operands: [&[T]; 3],
        weighing: &Weighing<'_, T>,
        block: QueryBlock<'_, T>,
        scratch: &mut [f32],
    ) {
        let QueryBlock { batch, start, count, o, l } = block;
        let (sums, rest) = scratch.split_at_mut(QUERIES * self.width);
        let (greatest, rest) = rest.split_at_mut(QUERIES);
        let (total, rest) = rest.split_at_mut(QUERIES);
        for head in 0..self.heads {
            let at = [batch, start, head];
            let to = [&mut *sums, &mut *greatest, &mut *total];
            self.sum_values(operands, weighing, (at, count), to, rest);
            finish_softmax(greatest, total);
            l.chunks_exact_mut(self.heads).zip(&*total).for_each(|(l, total)| l[head] = *total);
            let sums = &sums[..count * self.width];
            let apart = self.heads * self.width;
            write_scaled(sums, greatest, &mut o[head * self.width..], [self.width, apart], rest);
        }
    }

    /// Sums of values for some queries of a head, each value multiplied by exp(score - greatest); the greatest score and the total of
    /// each query.
    fn sum_values<T: Number>(
        &self,
        [q, k, v]: [&[T]; 3],
        weighing: &Weighing<'_, T>,
        ([batch, start, head], count): ([usize; 3], usize),
        [sums, greatest, total]: [&mut [f32]; 3],
        scratch: &mut [f32],
    ) {
        let query = self.of_query(q, [batch, start, head]);
        let (scores, rest) = scratch.split_at_mut(KEYS * APART);
        let (shrink, room) = rest.split_at_mut(QUERIES);
        sums.fill(0.0);
        greatest.fill(f32::NEG_INFINITY);
        total.fill(0.0);
        for (first, keys) in self.key_blocks() {
            let strips = self.strips([start, count], [first, keys]);
            if strips.are_empty() {
                continue;
            }
            let at = [batch, first, head / self.group];
            let [key, values] = [k, v].map(|x| self.of_key(x, at));
            self.multiply_scores(strips, self.scale, [key, query], scores, room);
            weighing.scoring.apply(strips, ([batch, start, head], first), scores, &mut []);
            // Of queries that see none of these keys.
            shrink.fill(1.0);
            for (place, group) in strips.groups(APART) {
                let of_group = place..place + LANES;
                let state = SoftmaxState {
                    greatest: &mut greatest[of_group.clone()],
                    total: &mut total[of_group.clone()],
                    shrink: &mut shrink[of_group],
                };
                absorb_scores(&mut scores[place..], group, state);
                if let Some(dropping) = &weighing.dropping {
                    let from = ([batch, start + place, head], first);
                    dropping.factors(from, group.keys).apply(&mut scores[place..], group);
                }
            }
            if first > 0 {
                scale_rows(sums, &shrink[..count], self.width);
            }
            for ScoreStrip { queries, keys } in strips.by_queries() {
                let extents = [queries.len(), keys.end, self.width];
                let to = (&mut sums[queries.start * self.width..], Layout::rows(self.width));
                let weights = (&scores[queries.start..], Layout::rows(APART).t());
                multiply_or_zero(extents, 1.0, weights, values, to, Write::Add, room);
            }
        }
    }

    /// Products of keys and queries of a block, or of what lies as they do, where a query sees a key: those of a key lie together.
    fn multiply_scores<T: Number>(
        &self,
        strips: Strips,
        scale: f32,
        [key, (query, by_query)]: [(&[T], Layout); 2],
        scores: &mut [f32],
        room: &mut [f32],
    ) {
        for ScoreStrip { queries, keys } in strips.by_queries() {
            let extents = [keys.end, self.width, queries.len()];
            let query = (&query[queries.start * by_query.row..], by_query.t());
            let to = (&mut scores[queries.start..], Layout::rows(APART));
            multiply_or_zero(extents, scale, key, query, to, Write::Replace, room);
        }
    }
}

/// A product on this thread; of nothing it is 0.
fn multiply_or_zero<A: Number, B: Number>(
    extents: [usize; 3],
    scale: f32,
    a: (&[A], Layout),
    b: (&[B], Layout),
    (out, to): (&mut [f32], Layout),
    write: Write,
    room: &mut [f32],
) {
    let [rows, inner, columns] = extents;
    if inner == 0 && write == Write::Replace {
        for row in 0..rows {
            out[row * to.row..][..columns].fill(0.0);
        }
    }
    if extents.iter().all(|&extent| extent > 0) {
        multiply(extents, scale, a, b, (out, to), write, Hands::own(room));
    }
}

vectorized! {
    /// Multiplies rows of so many numbers, each by its factor.
    fn scale_rows(rows: &mut [f32], factors: &[f32], width: usize) {
        for (row, factor) in rows.chunks_exact_mut(width.max(1)).zip(factors) {
            for value in row {
                *value *= factor;
            }
        }
    }
}

vectorized! {
    /// Turns the greatest score of each query into what its sums are multiplied by, and the total into the log-sum-exp.
    fn finish_softmax(greatest: &mut [f32], total: &mut [f32]) {
        for (greatest, total) in greatest.iter_mut().zip(total) {
            let factor = if *total == 0.0 { 0.0 } else { 1.0 / *total };
            let l = *greatest + math::log(*total);
            (*greatest, *total) = (factor, l);
        }
    }
}

vectorized! {
    /// Writes rows that are so wide and lie one behind the other, each multiplied by its factor, to rows that lie so far apart. Memory for
    /// one is given.
    fn write_scaled<T: Number>(from: &[f32], factors: &[f32], to: &mut [T], extents: [usize; 2], room: &mut [f32]) {
        let [width, apart] = extents.map(|extent| extent.max(1));
        let rows = from.chunks_exact(width).zip(factors).zip(to.chunks_mut(apart));
        for ((from, factor), to) in rows {
            T::write_values(&mut to[..width], room, |to| {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = from * factor;
                }
            });
        }
    }
}
