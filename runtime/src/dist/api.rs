//! The collectives and messages of a group.

mod asynchronous;

use std::ops::Range;

use graphc_ir::types::DType;

use super::broadcast::broadcast_buffer;
use super::collectives::{self, CopyFlow, ReduceFlow, run_exchange};
use super::element::{ElementBuffer, TensorElement, writable_bytes};
use super::ends::CollectiveEnds;
use super::engine::What;
use super::error::DistError;
use super::group::Group;
use super::header::{GroupCall, GroupOp};
use super::lists::{all_gather, all_to_all, gather_lists, scatter_lists};
use super::pairs::LineDirection;
use super::reduce::{RankReduction, ReduceOp};
use super::work::PendingWork;

fn describe_op(op: GroupOp, dtype: DType) -> What {
    What { op, reduce: None, dtype, root: None }
}

fn describe_reduction(op: GroupOp, dtype: DType, reduce: ReduceOp) -> What {
    What { op, reduce: Some(reduce), dtype, root: None }
}

fn describe_rooted(op: GroupOp, dtype: DType, root: usize) -> What {
    What { op, reduce: None, dtype, root: Some(root) }
}

/// # Messages between two ranks
///
/// Messages of a pair arrive in the order in which they were sent. Sizes and types of both ends must be the same.
/// [`Group::send`] may wait until the peer receives, so two ranks that both send first may wait for each other: start one
/// of the two with [`Group::isend`].
impl Group {
    /// Sends `data` to rank `to`. Returns when the memory may be used again.
    ///
    /// # Errors
    /// Where the peer does not receive the same, has gone, or the job ends; and where there is no such rank.
    pub fn send<B: ElementBuffer + ?Sized>(&self, data: &B, to: usize) -> Result<(), DistError> {
        self.check_rank(GroupOp::Send, to)?;
        self.pairs().pairs.send(to, data)
    }

    /// Receives from rank `from`.
    ///
    /// # Errors
    /// As [`Group::send`].
    pub fn recv<B: ElementBuffer + ?Sized>(
        &self,
        into: &mut B,
        from: usize,
    ) -> Result<(), DistError> {
        self.check_rank(GroupOp::Send, from)?;
        self.pairs().pairs.recv(from, into)
    }

    /// Sends without waiting.
    ///
    /// # Errors
    /// As [`Group::send`], here or at [`PendingWork::wait`].
    pub fn isend<B: ElementBuffer + Send + 'static>(
        &self,
        data: B,
        to: usize,
    ) -> Result<PendingWork<B>, DistError> {
        self.check_rank(GroupOp::Send, to)?;
        self.pairs().start_transfer((LineDirection::To, to), data)
    }

    /// Receives without waiting; [`PendingWork::wait`] gives what was received.
    ///
    /// # Errors
    /// As [`Group::send`], here or at [`PendingWork::wait`].
    pub fn irecv<B: ElementBuffer + Send + 'static>(
        &self,
        into: B,
        from: usize,
    ) -> Result<PendingWork<B>, DistError> {
        self.check_rank(GroupOp::Send, from)?;
        self.pairs().start_transfer((LineDirection::From, from), into)
    }
}

/// # Collectives
///
/// Each is called by all ranks of the group, with the same type and root and sizes that fit; otherwise the job ends with an
/// error that says who does what.
impl Group {
    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// Where a rank does something else or does not come, or the job ends. So do all collectives.
    pub fn barrier(&self) -> Result<(), DistError> {
        self.run_collective(describe_op(GroupOp::Barrier, DType::U8), |ends, call| {
            collectives::run_barrier(ends, &call)
        })
    }

    /// Gives all ranks the root's content.
    ///
    /// # Errors
    /// As [`Group::barrier`]; and where there is no such rank.
    pub fn broadcast<B: ElementBuffer + ?Sized>(
        &self,
        buffer: &mut B,
        root: usize,
    ) -> Result<(), DistError> {
        self.check_rank(GroupOp::Broadcast, root)?;
        let what = describe_rooted(GroupOp::Broadcast, buffer.dtype(), root);
        self.run_collective(what, |ends, call| {
            broadcast_buffer(ends, &call, root, writable_bytes(buffer))
        })
    }

    /// Replaces every rank's content by the reduction of all.
    ///
    /// # Errors
    /// As [`Group::barrier`]; and where the type has no such reduction.
    pub fn all_reduce<B: ElementBuffer + ?Sized>(
        &self,
        buffer: &mut B,
        op: ReduceOp,
    ) -> Result<(), DistError> {
        let what = describe_reduction(GroupOp::AllReduce, buffer.dtype(), op);
        self.check_reducible(what)?;
        self.run_collective(what, |ends, call| all_reduce(ends, call, buffer))
    }

    /// Replaces the root's content by the reduction of all. That of the others is arbitrary afterwards.
    ///
    /// # Errors
    /// As [`Group::all_reduce`] and [`Group::broadcast`].
    pub fn reduce<B: ElementBuffer + ?Sized>(
        &self,
        buffer: &mut B,
        root: usize,
        op: ReduceOp,
    ) -> Result<(), DistError> {
        self.check_rank(GroupOp::Reduce, root)?;
        let what =
            What { root: Some(root), ..describe_reduction(GroupOp::Reduce, buffer.dtype(), op) };
        self.check_reducible(what)?;
        self.run_collective(what, |ends, call| all_reduce(ends, call, buffer))
    }

    /// Gathers the data of all ranks, which may differ in length.
    ///
    /// # Errors
    /// As [`Group::barrier`].
    pub fn all_gather<T: TensorElement>(&self, data: &[T]) -> Result<Vec<Vec<T>>, DistError> {
        self.run_collective(describe_op(GroupOp::AllGather, T::DTYPE), |ends, call| {
            all_gather(ends, call, data)
        })
    }

    /// Gathers as [`Group::all_gather`], into one buffer, rank after rank. All ranks bring the same number of elements, or
    /// `counts` says how many each.
    ///
    /// # Errors
    /// As [`Group::barrier`]; and where the sizes do not fit.
    pub fn all_gather_into<A: ElementBuffer + ?Sized, B: ElementBuffer + ?Sized>(
        &self,
        data: &A,
        into: &mut B,
        counts: Option<&[usize]>,
    ) -> Result<(), DistError> {
        let call = describe_op(GroupOp::AllGather, data.dtype());
        let sizes = self.part_ranges(call, counts, into.as_bytes().len())?;
        self.same_type(call, into.dtype())?;
        self.check_size(call, "this rank's part", sizes[self.rank()].len(), data.as_bytes().len())?;
        self.run_collective(call, |ends, call| {
            let data = data.as_bytes();
            let outgoing = vec![Some(data); ends.members.len()];
            copy_pieces(ends, call, outgoing, split_buffer(writable_bytes(into), &sizes))
        })
    }

    /// Gathers the data of all ranks on the root, which may differ in length; `None` elsewhere.
    ///
    /// # Errors
    /// As [`Group::broadcast`].
    pub fn gather<T: TensorElement>(
        &self,
        data: &[T],
        root: usize,
    ) -> Result<Option<Vec<Vec<T>>>, DistError> {
        self.check_rank(GroupOp::Gather, root)?;
        self.run_collective(describe_rooted(GroupOp::Gather, T::DTYPE, root), |ends, call| {
            gather_lists(ends, call, data, root)
        })
    }

    /// Gathers as [`Group::gather`], into the root's buffer, rank after rank; all ranks bring the same number of
    /// elements.
    ///
    /// # Errors
    /// As [`Group::gather`]; and where the sizes do not fit, or the root gives no memory.
    pub fn gather_into<A: ElementBuffer + ?Sized, B: ElementBuffer + ?Sized>(
        &self,
        data: &A,
        into: Option<&mut B>,
        root: usize,
    ) -> Result<(), DistError> {
        self.check_rank(GroupOp::Gather, root)?;
        let call = describe_rooted(GroupOp::Gather, data.dtype(), root);
        let (me, n, data) = (self.rank(), self.world_size(), data.as_bytes());
        self.rooted_argument(call, root, into.is_some(), "memory")?;
        let Some(into) = into.filter(|_| me == root) else {
            return self.run_collective(call, |ends, call| {
                let outgoing = (0..n).map(|peer| (peer == root).then_some(data)).collect();
                copy_pieces(ends, call, outgoing, (0..n).map(|_| None).collect())
            });
        };
        self.same_type(call, into.dtype())?;
        self.check_size(call, "the root's memory", data.len() * n, into.as_bytes().len())?;
        let sizes = self.part_ranges(call, None, data.len() * n)?;
        self.run_collective(call, |ends, call| {
            let mut outgoing = vec![None; n];
            outgoing[me] = Some(data);
            copy_pieces(ends, call, outgoing, split_buffer(writable_bytes(into), &sizes))
        })
    }

    /// Gives each rank its part of the root's `parts`, which may differ in length.
    ///
    /// # Errors
    /// As [`Group::broadcast`]; and where the root does not bring one part for each rank.
    pub fn scatter<T: TensorElement>(
        &self,
        parts: Option<&[Vec<T>]>,
        root: usize,
    ) -> Result<Vec<T>, DistError> {
        self.check_rank(GroupOp::Scatter, root)?;
        let call = describe_rooted(GroupOp::Scatter, T::DTYPE, root);
        self.rooted_argument(call, root, parts.is_some(), "parts")?;
        let parts = parts.filter(|_| self.rank() == root).unwrap_or_default();
        if self.rank() == root {
            self.one_each(call, parts.len())?;
        }
        self.run_collective(call, |ends, call| scatter_lists(ends, call, parts, root))
    }

    /// Scatters as [`Group::scatter`], the root's `data` cut into equal parts.
    ///
    /// # Errors
    /// As [`Group::scatter`]; and where the sizes do not fit.
    pub fn scatter_into<A: ElementBuffer + ?Sized, B: ElementBuffer + ?Sized>(
        &self,
        data: Option<&A>,
        into: &mut B,
        root: usize,
    ) -> Result<(), DistError> {
        self.check_rank(GroupOp::Scatter, root)?;
        let call = describe_rooted(GroupOp::Scatter, into.dtype(), root);
        let (me, n) = (self.rank(), self.world_size());
        self.rooted_argument(call, root, data.is_some(), "data")?;
        let data = data.filter(|_| me == root);
        let mut outgoing = vec![None; n];
        if let Some(data) = data {
            self.same_type(call, data.dtype())?;
            let bytes = data.as_bytes();
            self.check_size(call, "the root's data", into.as_bytes().len() * n, bytes.len())?;
            let sizes = self.part_ranges(call, None, bytes.len())?;
            outgoing = sizes.into_iter().map(|range| Some(&bytes[range])).collect();
        }
        self.run_collective(call, |ends, call| {
            let mut incoming: Vec<_> = (0..n).map(|_| None).collect();
            incoming[root] = Some(writable_bytes(into));
            copy_pieces(ends, call, outgoing, incoming)
        })
    }

    /// Reduces all ranks' `data` and returns this rank's part. All ranks' data are of one size; the parts are equal, or
    /// `counts` says how many elements each rank gets.
    ///
    /// # Errors
    /// As [`Group::all_reduce`]; and where the sizes do not fit.
    pub fn reduce_scatter<T: TensorElement>(
        &self,
        data: &[T],
        counts: Option<&[usize]>,
        op: ReduceOp,
    ) -> Result<Vec<T>, DistError> {
        let mut data = data.to_vec();
        let own = self.reduce_scatter_in_place(&mut data, counts, op)?;
        let (start, end) = (own.start / size_of::<T>(), own.end / size_of::<T>());
        Ok(data[start..end].to_vec())
    }

    /// Reduces as [`Group::reduce_scatter`], this rank's part in its place in `data`; returns the range of its bytes. The
    /// others are arbitrary afterwards.
    ///
    /// # Errors
    /// As [`Group::reduce_scatter`].
    pub fn reduce_scatter_in_place<B: ElementBuffer + ?Sized>(
        &self,
        data: &mut B,
        counts: Option<&[usize]>,
        op: ReduceOp,
    ) -> Result<Range<usize>, DistError> {
        let call = describe_reduction(GroupOp::ReduceScatter, data.dtype(), op);
        self.check_reducible(call)?;
        let sizes = self.part_ranges(call, counts, data.as_bytes().len())?;
        let own = sizes[self.rank()].clone();
        self.run_collective(call, |ends, call| {
            reduce_scatter(ends, call, writable_bytes(data), sizes)
        })?;
        Ok(own)
    }

    /// Gives part `i` to rank `i`; returns what each rank has for this one. Lengths may differ.
    ///
    /// # Errors
    /// As [`Group::barrier`]; and where there is not one part for each rank.
    pub fn all_to_all<T: TensorElement>(&self, parts: &[Vec<T>]) -> Result<Vec<Vec<T>>, DistError> {
        let call = describe_op(GroupOp::AllToAll, T::DTYPE);
        self.one_each(call, parts.len())?;
        self.run_collective(call, |ends, call| all_to_all(ends, call, parts))
    }

    /// Exchanges as [`Group::all_to_all`], from one buffer into another, rank after rank: equal parts, or as many elements to
    /// and from each rank as `counts` says.
    ///
    /// # Errors
    /// As [`Group::all_to_all`]; and where the sizes do not fit.
    pub fn all_to_all_into<A: ElementBuffer + ?Sized, B: ElementBuffer + ?Sized>(
        &self,
        data: &A,
        into: &mut B,
        counts: Option<(&[usize], &[usize])>,
    ) -> Result<(), DistError> {
        let call = describe_op(GroupOp::AllToAll, data.dtype());
        self.same_type(call, into.dtype())?;
        let bytes = data.as_bytes();
        let out = self.part_ranges(call, counts.map(|counts| counts.0), bytes.len())?;
        let sizes = self.part_ranges(call, counts.map(|counts| counts.1), into.as_bytes().len())?;
        let me = self.rank();
        self.check_size(call, "what goes to this rank itself", out[me].len(), sizes[me].len())?;
        self.run_collective(call, |ends, call| {
            let outgoing = out.iter().map(|range| Some(&bytes[range.clone()])).collect();
            copy_pieces(ends, call, outgoing, split_buffer(writable_bytes(into), &sizes))
        })
    }
}

/// The collectives, each checked before anything is communicated.
impl Group {
    pub(super) fn run_collective<R>(
        &self,
        what: What,
        work: impl FnOnce(&mut CollectiveEnds, GroupCall) -> Result<R, DistError>,
    ) -> Result<R, DistError> {
        self.engine().run_collective(what, work)
    }

    fn start_collective<R: Send + 'static>(
        &self,
        what: What,
        work: impl FnOnce(&mut CollectiveEnds, GroupCall) -> Result<R, DistError> + Send + 'static,
    ) -> Result<PendingWork<R>, DistError> {
        self.background().start_collective(self.engine(), what, work)
    }

    fn check_rank(&self, op: GroupOp, rank: usize) -> Result<(), DistError> {
        if rank < self.world_size() {
            return Ok(());
        }
        let reason = format!("there is no rank {rank} in a group of {}", self.world_size());
        Err(self.usage_error(op, reason))
    }

    fn check_reducible(&self, what: What) -> Result<(), DistError> {
        let refusal = what.reduce.and_then(|reduce| reduce.refusal(what.dtype));
        refusal.map_or(Ok(()), |reason| Err(self.usage_error(what.op, reason)))
    }

    fn same_type(&self, what: What, other: DType) -> Result<(), DistError> {
        if other == what.dtype {
            return Ok(());
        }
        Err(self.usage_error(what.op, format!("{} goes out, but {other} comes in", what.dtype)))
    }

    fn check_size(
        &self,
        what: What,
        name: &str,
        needed: usize,
        given: usize,
    ) -> Result<(), DistError> {
        if needed == given {
            return Ok(());
        }
        let size = what.dtype.size();
        let (needed, given) = (needed / size, given / size);
        Err(self.usage_error(what.op, format!("{name} has {given} elements, but needs {needed}")))
    }

    fn one_each(&self, what: What, parts: usize) -> Result<(), DistError> {
        let n = self.world_size();
        if parts == n {
            return Ok(());
        }
        Err(self.usage_error(what.op, format!("{parts} parts for {n} ranks")))
    }

    fn rooted_argument(
        &self,
        what: What,
        root: usize,
        given: bool,
        name: &str,
    ) -> Result<(), DistError> {
        if given || self.rank() != root {
            return Ok(());
        }
        Err(self.usage_error(what.op, format!("the root brings no {name}")))
    }

    /// Returns the bytes of each rank's part of so many.
    fn part_ranges(
        &self,
        what: What,
        counts: Option<&[usize]>,
        bytes: usize,
    ) -> Result<Vec<Range<usize>>, DistError> {
        let (n, size) = (self.world_size(), what.dtype.size());
        let elements = bytes / size;
        let equal = vec![elements / n; n];
        let counts = counts.unwrap_or(&equal);
        self.one_each(what, counts.len())?;
        let sum = counts.iter().try_fold(0_usize, |sum, &count| sum.checked_add(count));
        if sum != Some(elements) {
            let reason = match counts == equal {
                true => format!("{elements} elements are not {n} equal parts"),
                false => format!("{elements} elements are not parts of {counts:?}"),
            };
            return Err(self.usage_error(what.op, reason));
        }
        let mut start = 0;
        Ok(counts
            .iter()
            .map(|&count| {
                start += count * size;
                start - count * size..start
            })
            .collect())
    }
}

/// Splits a buffer into parts.
fn split_buffer<'a>(mut bytes: &'a mut [u8], sizes: &[Range<usize>]) -> Vec<Option<&'a mut [u8]>> {
    let take = |range: &Range<usize>| {
        let (part, rest) = std::mem::take(&mut bytes).split_at_mut(range.len());
        bytes = rest;
        Some(part)
    };
    sizes.iter().map(take).collect()
}

/// Pieces from rank to rank, this one's own copied.
fn copy_pieces<'a>(
    ends: &mut CollectiveEnds,
    call: GroupCall,
    outgoing: Vec<Option<&'a [u8]>>,
    mut into: Vec<Option<&'a mut [u8]>>,
) -> Result<(), DistError> {
    let me = ends.members.me;
    let own = outgoing[me].zip(into[me].take());
    run_exchange(ends, &call, &mut CopyFlow { call, outgoing, into, own, kept: 0 })
}

fn new_reduction(ends: &CollectiveEnds, call: &GroupCall) -> RankReduction {
    RankReduction {
        dtype: call.dtype,
        op: call.reduce.unwrap_or(ReduceOp::Sum),
        ranks: ends.members.len(),
        me: ends.members.me,
        own: Vec::new(),
        wide: Vec::new(),
    }
}

fn all_reduce<B: ElementBuffer + ?Sized>(
    ends: &mut CollectiveEnds,
    call: GroupCall,
    buffer: &mut B,
) -> Result<(), DistError> {
    let reduction = new_reduction(ends, &call);
    let bytes = writable_bytes(buffer);
    reduction.op.prepare_own(call.dtype, bytes);
    collectives::all_reduce(ends, &call, bytes, reduction)
}

fn reduce_scatter(
    ends: &mut CollectiveEnds,
    call: GroupCall,
    bytes: &mut [u8],
    sizes: Vec<Range<usize>>,
) -> Result<(), DistError> {
    let reduction = new_reduction(ends, &call);
    reduction.op.prepare_own(call.dtype, bytes);
    let parts = sizes.into_iter().map(Some).collect();
    run_exchange(ends, &call, &mut ReduceFlow { whole: bytes, parts, reduction })
}
