//! Attention by blocks of queries and keys, with a running maximum and sum of each query (Milakov and Gimelshein, arXiv
//! 1805.02867; Dao et al., arXiv 2205.14135, algorithm 1). Scores exist for one block at a time.
//!
//! Each block of queries is one thread's, and goes over the keys in order: bits do not depend on the number of threads.
//! Scores, weights and sums are f32 whatever the element type is. Where a causal mask cuts a block it is multiplied in strips, of
//! which each leaves out what none of its queries sees.

mod gradient;
mod strips;

use graphc_ir::op::Op;
use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::math;
use crate::parallel;
use crate::product::{Hands, Layout, Number, Write, multiply, room};
use crate::rows;
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

pub(crate) use gradient::attention_grad;
use strips::{Strip, Strips};

/// Queries of a block.
const ROWS: usize = 128;
/// Keys of a block.
const COLUMNS: usize = 128;

/// The kernel of [`Op::Attention`].
pub(crate) fn attention(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    match operands.first().map(|q| q.dtype) {
        Some(DType::BF16) => forward::<bf16>(op, operands, results, cx),
        Some(DType::F16) => forward::<f16>(op, operands, results, cx),
        _ => forward::<f32>(op, operands, results, cx),
    }
}

fn forward<T: Number>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Attention(op), [q, k, v], [o, l]) = (op, operands, results) else {
        return Err(KernelError::call("attention", "takes three operands and gives two results"));
    };
    let space = Space::new("attention", q, k, op.causal, op.scale.0)?;
    if v.shape != k.shape || o.shape != q.shape || l.shape != &q.shape[..3] {
        return Err(KernelError::call("attention", "operands or results of other shapes"));
    }
    let operands = [q.as_slice::<T>()?, k.as_slice::<T>()?, v.as_slice::<T>()?];
    let (o, l) = (o.as_mut_slice::<T>()?, l.as_mut_slice()?);
    let parts = parallel::parts(cx, space.products());
    let mut pieces: Vec<Piece<'_, T>> = (0..parts).map(|_| Piece::default()).collect();
    for (index, block) in blocks(&space, o, l).into_iter().enumerate() {
        // In turn, as under a causal mask later queries see more keys.
        pieces[index % parts].blocks.push(block);
    }
    let of_scores = room::<T, T, f32>([ROWS, space.width, COLUMNS], 1);
    let of_values = room::<f32, T, f32>([ROWS, COLUMNS, space.width], 1);
    let own = ROWS * (COLUMNS + space.width + 2) + of_scores.max(of_values).max(space.width);
    for (piece, scratch) in pieces.iter_mut().zip(cx.scratch.take(parts * own).chunks_mut(own)) {
        piece.scratch = scratch;
    }
    parallel::run(cx.pool, pieces, &|piece| {
        for block in piece.blocks {
            space.forward(operands, block, piece.scratch);
        }
        Ok(())
    })
}

/// What one thread computes, and where it works.
struct Piece<'a, T> {
    blocks: Vec<Block<'a, T>>,
    scratch: &'a mut [f32],
}

impl<T> Default for Piece<'_, T> {
    fn default() -> Self {
        Self { blocks: Vec::new(), scratch: &mut [] }
    }
}

/// A block of queries with all heads, and their results: consecutive in memory.
struct Block<'a, T> {
    batch: usize,
    start: usize,
    count: usize,
    o: &'a mut [T],
    l: &'a mut [f32],
}

fn blocks<'a, T>(space: &Space, mut o: &'a mut [T], mut l: &'a mut [f32]) -> Vec<Block<'a, T>> {
    let mut blocks = Vec::new();
    for batch in 0..space.batch {
        for start in (0..space.queries).step_by(ROWS) {
            let count = ROWS.min(space.queries - start);
            let (own_o, rest_o) = o.split_at_mut(count * space.heads * space.width);
            let (own_l, rest_l) = l.split_at_mut(count * space.heads);
            (o, l) = (rest_o, rest_l);
            blocks.push(Block { batch, start, count, o: own_o, l: own_l });
        }
    }
    blocks
}

/// Extents of the shards, and where they lie.
struct Space {
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
    causal: bool,
    scale: f32,
}

impl Space {
    fn new(
        op: &'static str,
        q: &View<'_>,
        k: &View<'_>,
        causal: bool,
        scale: f64,
    ) -> Result<Self, KernelError> {
        let (&[batch, queries, heads, width], &[key_batch, keys, shared, key_width]) =
            (q.shape, k.shape)
        else {
            return Err(KernelError::call(op, "operands of other rank than 4"));
        };
        if (batch, width) != (key_batch, key_width) {
            return Err(KernelError::call(op, "queries and keys of other batch or width"));
        }
        let group = heads.checked_div(shared).unwrap_or(0);
        let of_group = q.global[2] / k.global[2].max(1);
        let reads = |head: usize| (q.origin[2] + head) / of_group.max(1);
        let fits = |head: usize| reads(head) == k.origin[2] + head / group;
        if heads != group * shared || heads > 0 && !(fits(0) && fits(heads - 1)) {
            return Err(KernelError::call(op, "heads that read keys of another rank"));
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
            causal,
            scale: scale as f32,
        })
    }

    /// Multiplications of one product.
    fn products(&self) -> usize {
        self.batch * self.heads * self.queries * self.keys * self.width
    }

    /// How many of `count` keys from `start` on a query sees.
    fn seen(&self, query: usize, start: usize, count: usize) -> usize {
        if !self.causal {
            return count;
        }
        (self.first_query + query + 1).saturating_sub(self.first_key + start).min(count)
    }

    /// The block of `count` queries from `start` on and `columns` keys from `first` on, in strips.
    fn strips(&self, [start, count]: [usize; 2], [first, columns]: [usize; 2]) -> Strips {
        let ahead = (self.first_query + start + 1) as isize - (self.first_key + first) as isize;
        Strips { rows: count, columns, ahead: self.causal.then_some(ahead) }
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

    fn forward<T: Number>(&self, [q, k, v]: [&[T]; 3], block: Block<'_, T>, scratch: &mut [f32]) {
        let Block { batch, start, count, o, l } = block;
        let (scores, rest) = scratch.split_at_mut(ROWS * COLUMNS);
        let (sums, rows) = rest.split_at_mut(ROWS * self.width);
        let (greatest, rest) = rows.split_at_mut(ROWS);
        let (total, room) = rest.split_at_mut(ROWS);
        for head in 0..self.heads {
            let query = self.of_query(q, [batch, start, head]);
            sums.fill(0.0);
            greatest.fill(f32::NEG_INFINITY);
            total.fill(0.0);
            for first in (0..self.keys).step_by(COLUMNS) {
                let columns = COLUMNS.min(self.keys - first);
                if self.seen(start + count - 1, first, columns) == 0 {
                    break;
                }
                let at = [batch, first, head / self.group];
                let [key, values] = [k, v].map(|x| self.of_key(x, at));
                let strips = self.strips([start, count], [first, columns]);
                self.scores(strips, self.scale, [query, key], scores, room);
                for row in 0..count {
                    absorb(
                        &mut scores[row * COLUMNS..][..COLUMNS],
                        columns,
                        self.seen(start + row, first, columns),
                        (&mut greatest[row], &mut total[row]),
                        &mut sums[row * self.width..][..self.width],
                    );
                }
                for Strip { rows, columns } in strips.by_rows() {
                    let extents = [rows.len(), columns.end, self.width];
                    let to = (&mut sums[rows.start * self.width..], Layout::rows(self.width));
                    let weights = (&scores[rows.start * COLUMNS..], Layout::rows(COLUMNS));
                    product(extents, 1.0, weights, values, to, Write::Add, room);
                }
            }
            close(greatest, total);
            for row in 0..count {
                let place = row * self.heads + head;
                let sums = &sums[row * self.width..][..self.width];
                let o = &mut o[place * self.width..][..self.width];
                T::write(o, room, |o| scaled(sums, greatest[row], o));
                l[place] = total[row];
            }
        }
    }

    /// Products of queries and keys of a block, or of what lies as they do, where a query sees a key. Rows lie [`COLUMNS`] apart.
    fn scores<T: Number>(
        &self,
        strips: Strips,
        scale: f32,
        [(query, by_query), (key, by_key)]: [(&[T], Layout); 2],
        scores: &mut [f32],
        room: &mut [f32],
    ) {
        for Strip { rows, columns } in strips.by_columns() {
            let extents = [rows.len(), self.width, columns.len()];
            let query = (&query[rows.start * by_query.row..], by_query);
            let key = (&key[columns.start * by_key.row..], by_key.t());
            let to = &mut scores[rows.start * COLUMNS + columns.start..];
            let to = (to, Layout::rows(COLUMNS));
            product(extents, scale, query, key, to, Write::Replace, room);
        }
    }
}

/// A product on this thread; of nothing it is 0.
fn product<A: Number, B: Number>(
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
    /// Turns the scores of a query into weights: exp(score - greatest), 0 from `seen` to `columns`. What has been summed before is
    /// brought to the new greatest score.
    fn absorb(
        scores: &mut [f32],
        columns: usize,
        seen: usize,
        state: (&mut f32, &mut f32),
        sums: &mut [f32],
    ) {
        let (greatest, total) = state;
        if seen == 0 {
            return scores[..columns].fill(0.0);
        }
        let whole = rows::whole_vectors(seen, scores.len());
        scores[seen..whole].fill(f32::NEG_INFINITY);
        let new = rows::greatest(&scores[..whole]).max(*greatest);
        let shrink = math::exp(*greatest - new);
        for score in &mut scores[..whole] {
            *score = math::exp(*score - new);
        }
        scores[seen..columns.max(whole)].fill(0.0);
        *total = *total * shrink + rows::sum(&scores[..whole]);
        for sum in sums.iter_mut() {
            *sum *= shrink;
        }
        *greatest = new;
    }
}

vectorized! {
    /// Turns the greatest score of each query into what its sums are multiplied by, and the total into the log-sum-exp.
    fn close(greatest: &mut [f32], total: &mut [f32]) {
        for (greatest, total) in greatest.iter_mut().zip(total) {
            let factor = if *total == 0.0 { 0.0 } else { 1.0 / *total };
            let l = *greatest + math::log(*total);
            (*greatest, *total) = (factor, l);
        }
    }
}

vectorized! {
    fn scaled(from: &[f32], factor: f32, to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from * factor;
        }
    }
}
