//! Work shared among a rank's threads. What a thread computes never depends on how many there are: cuts fall between
//! rows or blocks whose results are independent.

use std::ops::Range;

use rayon::prelude::*;

use graphc_ir::shard::split_range;

use crate::context::KernelContext;
use crate::error::KernelError;

/// Below this many elements one thread is faster than waking another.
const WORTHWHILE: usize = 1 << 16;

/// In how many parts work on this many elements is cut.
pub(crate) fn parts(cx: &KernelContext<'_>, elements: usize) -> usize {
    if cx.pool.is_none() || elements < WORTHWHILE { 1 } else { cx.threads.max(1) }
}

/// Works on each part, in parallel where there are several. Of several errors the first part's is returned.
pub(crate) fn run<P: Send>(
    pool: Option<&rayon::ThreadPool>,
    parts: Vec<P>,
    work: impl Fn(P) -> Result<(), KernelError> + Send + Sync,
) -> Result<(), KernelError> {
    match pool {
        Some(pool) if parts.len() > 1 => {
            let run = || parts.into_par_iter().with_max_len(1).map(work).collect::<Vec<_>>();
            pool.install(run).into_iter().collect()
        }
        _ => parts.into_iter().try_for_each(work),
    }
}

/// Calls `work(rows, [their elements in each output])` for ranges of `rows` rows; output i has `widths[i]` elements a row.
pub(crate) fn over_rows<T: Send, const N: usize>(
    cx: &KernelContext<'_>,
    rows: usize,
    weight: usize,
    outputs: [&mut [T]; N],
    widths: [usize; N],
    work: impl Fn(Range<usize>, [&mut [T]; N]) -> Result<(), KernelError> + Send + Sync,
) -> Result<(), KernelError> {
    let count = parts(cx, rows * weight).min(rows);
    if count <= 1 {
        return work(0..rows, outputs);
    }
    let mut rest = outputs;
    let mut pieces = Vec::with_capacity(count);
    for index in 0..count {
        let range = split_range(rows, count, index);
        let mut width = widths.iter();
        let mut tails = Vec::with_capacity(N);
        let heads = rest.map(|slice| {
            let width = width.next().copied().unwrap_or(0);
            let (head, tail) = slice.split_at_mut(width * range.len());
            tails.push(tail);
            head
        });
        let mut tails = tails.into_iter();
        rest = std::array::from_fn(|_| tails.next().unwrap_or(&mut []));
        pieces.push((range, heads));
    }
    run(cx.pool, pieces, |(range, heads)| work(range, heads))
}
