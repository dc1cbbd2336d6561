//! Work shared among a rank's threads. What a thread computes never depends on how many there are: cuts fall between
//! rows or blocks whose results are independent.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use graphc_ir::shard::split_range;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::threads::ThreadPool;

/// Below this many elements, some microseconds of work, one thread is faster than two and the hand-over.
const WORTHWHILE: usize = 1 << 14;

/// Returns the number of parts into which work on this many elements is cut.
pub(crate) fn count_parts(cx: &KernelContext<'_>, elements: usize) -> usize {
    if cx.pool.is_none() || elements < WORTHWHILE { 1 } else { cx.threads.max(1) }
}

/// Works on each part, in parallel where there are several. Of several errors the first part's is returned.
///
/// The work is called by its address, so that the compiler makes one copy of a kernel's loops, not one for each way to run them.
pub(crate) fn run_parts<P: Send>(
    pool: Option<&ThreadPool>,
    parts: Vec<P>,
    work: &(dyn Fn(P) -> Result<(), KernelError> + Sync),
) -> Result<(), KernelError> {
    let Some(pool) = pool.filter(|_| parts.len() > 1) else {
        return parts.into_iter().try_for_each(work);
    };
    let parts: Vec<Mutex<Option<P>>> = parts.into_iter().map(|p| Mutex::new(Some(p))).collect();
    for_each_index(Some(pool), parts.len(), &|index| {
        let part = parts[index].lock().unwrap_or_else(PoisonError::into_inner).take();
        part.map_or(Ok(()), work)
    })
}

/// Calls `work` once for each index; of several errors that of the least is returned.
pub(crate) fn for_each_index(
    pool: Option<&ThreadPool>,
    count: usize,
    work: &(dyn Fn(usize) -> Result<(), KernelError> + Sync),
) -> Result<(), KernelError> {
    let Some(pool) = pool.filter(|_| count > 1) else {
        return (0..count).try_for_each(work);
    };
    let failed: Mutex<Option<(usize, KernelError)>> = Mutex::new(None);
    pool.run(count, &|index| {
        if let Err(error) = work(index) {
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            if failed.as_ref().is_none_or(|(least, _)| index < *least) {
                *failed = Some((index, error));
            }
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_or(Ok(()), |(_, error)| Err(error))
}

/// An output, or several, that can be cut between rows.
pub(crate) trait CutRows: Send + Sized {
    /// The first rows, and the rest.
    fn split_rows(self, rows: usize) -> (Self, Self);
}

/// An output that has `width` elements a row.
pub(crate) struct RowOutput<'a, T> {
    elements: &'a mut [T],
    width: usize,
}

impl<'a, T> RowOutput<'a, T> {
    pub(crate) fn new(elements: &'a mut [T], width: usize) -> Self {
        Self { elements, width }
    }

    /// The elements of a row, counted from the part's first.
    pub(crate) fn row(&mut self, index: usize) -> &mut [T] {
        &mut self.elements[index * self.width..(index + 1) * self.width]
    }

    /// Returns all elements of the part.
    pub(crate) fn into_elements(self) -> &'a mut [T] {
        self.elements
    }
}

impl<T: Send> CutRows for RowOutput<'_, T> {
    fn split_rows(self, rows: usize) -> (Self, Self) {
        let (own, rest) = self.elements.split_at_mut(rows * self.width);
        (Self::new(own, self.width), Self::new(rest, self.width))
    }
}

impl<A: CutRows, B: CutRows> CutRows for (A, B) {
    fn split_rows(self, rows: usize) -> (Self, Self) {
        let (a, rest_a) = self.0.split_rows(rows);
        let (b, rest_b) = self.1.split_rows(rows);
        ((a, b), (rest_a, rest_b))
    }
}

/// Work on some rows, with their part of the outputs and room to work in.
type OnRows<'a, R> = dyn Fn(Range<usize>, R, &mut [f32]) -> Result<(), KernelError> + Sync + 'a;

/// Calls `work(rows, their part of the outputs, room)` for ranges of `rows` rows, of the weight of `weight` elements each;
/// `room` is memory to work in, as many `f32` for each range.
pub(crate) fn over_rows<R: CutRows>(
    cx: &mut KernelContext<'_>,
    [rows, weight]: [usize; 2],
    room: usize,
    outputs: R,
    work: &OnRows<'_, R>,
) -> Result<(), KernelError> {
    let (pool, count) = (cx.pool, count_parts(cx, rows * weight).min(rows).max(1));
    let mut rooms = cx.scratch.take::<f32>(count * room);
    if count == 1 {
        return work(0..rows, outputs, rooms);
    }
    let mut rest = outputs;
    let mut pieces = Vec::with_capacity(count);
    for index in 0..count {
        let range = split_range(rows, count, index);
        let (own, tail) = rest.split_rows(range.len());
        rest = tail;
        let (room, others) = rooms.split_at_mut(room);
        rooms = others;
        pieces.push((range, own, room));
    }
    run_parts(pool, pieces, &|(range, own, room)| work(range, own, room))
}

/// Gives each piece of work `room` elements of `rooms` to work in.
pub(crate) fn with_rooms<P, T>(
    pieces: impl Iterator<Item = P>,
    mut rooms: &mut [T],
    room: usize,
) -> Vec<(P, &mut [T])> {
    let with_room = |piece| {
        let (own, rest) = std::mem::take(&mut rooms).split_at_mut(room);
        rooms = rest;
        (piece, own)
    };
    pieces.map(with_room).collect()
}
