//! Collectives that do not wait.

use std::ops::Range;

use graphc_ir::types::DType;

use super::{
    all_gather, all_reduce, all_to_all, copy_pieces, describe_op, describe_reduction,
    describe_rooted, gather_lists, reduce_scatter, scatter_lists, split_buffer,
};
use crate::dist::broadcast::broadcast_buffer;
use crate::dist::collectives;
use crate::dist::element::{ElementBuffer, TensorElement, writable_bytes};
use crate::dist::engine::What;
use crate::dist::error::DistError;
use crate::dist::group::Group;
use crate::dist::header::GroupOp;
use crate::dist::reduce::ReduceOp;
use crate::dist::work::PendingWork;

/// # Collectives without waiting
///
/// They are done in the order in which they were started, on a thread of the group. A collective that waits, called while
/// some are under way, comes after them.
impl Group {
    /// Starts [`Group::barrier`].
    ///
    /// # Errors
    /// Here wrong arguments, the rest at [`PendingWork::wait`]. So do all of these.
    pub fn barrier_async(&self) -> Result<PendingWork<()>, DistError> {
        self.start_collective(describe_op(GroupOp::Barrier, DType::U8), |ends, call| {
            collectives::run_barrier(ends, &call)
        })
    }

    /// Starts [`Group::broadcast`].
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn broadcast_async<B: ElementBuffer + Send + 'static>(
        &self,
        mut buffer: B,
        root: usize,
    ) -> Result<PendingWork<B>, DistError> {
        self.check_rank(GroupOp::Broadcast, root)?;
        self.start_collective(
            describe_rooted(GroupOp::Broadcast, buffer.dtype(), root),
            move |ends, call| {
                broadcast_buffer(ends, &call, root, writable_bytes(&mut buffer)).map(|()| buffer)
            },
        )
    }

    /// Starts [`Group::all_reduce`].
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn all_reduce_async<B: ElementBuffer + Send + 'static>(
        &self,
        mut buffer: B,
        op: ReduceOp,
    ) -> Result<PendingWork<B>, DistError> {
        let what = describe_reduction(GroupOp::AllReduce, buffer.dtype(), op);
        self.check_reducible(what)?;
        self.start_collective(what, move |ends, call| {
            all_reduce(ends, call, &mut buffer).map(|()| buffer)
        })
    }

    /// Starts [`Group::reduce`].
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn reduce_async<B: ElementBuffer + Send + 'static>(
        &self,
        mut buffer: B,
        root: usize,
        op: ReduceOp,
    ) -> Result<PendingWork<B>, DistError> {
        self.check_rank(GroupOp::Reduce, root)?;
        let what =
            What { root: Some(root), ..describe_reduction(GroupOp::Reduce, buffer.dtype(), op) };
        self.check_reducible(what)?;
        self.start_collective(what, move |ends, call| {
            all_reduce(ends, call, &mut buffer).map(|()| buffer)
        })
    }

    /// Starts [`Group::all_gather`].
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn all_gather_async<T: TensorElement>(
        &self,
        data: Vec<T>,
    ) -> Result<PendingWork<Vec<Vec<T>>>, DistError> {
        let what = describe_op(GroupOp::AllGather, T::DTYPE);
        self.start_collective(what, move |ends, call| all_gather(ends, call, &data))
    }

    /// Starts [`Group::all_gather_into`] of equal parts; gives both buffers back.
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn all_gather_into_async<A, B>(
        &self,
        data: A,
        mut into: B,
    ) -> Result<PendingWork<(A, B)>, DistError>
    where
        A: ElementBuffer + Send + 'static,
        B: ElementBuffer + Send + 'static,
    {
        let call = describe_op(GroupOp::AllGather, data.dtype());
        let sizes = self.part_ranges(call, None, into.as_bytes().len())?;
        self.same_type(call, into.dtype())?;
        self.check_size(call, "this rank's part", sizes[self.rank()].len(), data.as_bytes().len())?;
        self.start_collective(call, move |ends, call| {
            let outgoing = vec![Some(data.as_bytes()); ends.members.len()];
            copy_pieces(ends, call, outgoing, split_buffer(writable_bytes(&mut into), &sizes))?;
            Ok((data, into))
        })
    }

    /// Starts [`Group::gather`].
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn gather_async<T: TensorElement>(
        &self,
        data: Vec<T>,
        root: usize,
    ) -> Result<PendingWork<Option<Vec<Vec<T>>>>, DistError> {
        self.check_rank(GroupOp::Gather, root)?;
        let what = describe_rooted(GroupOp::Gather, T::DTYPE, root);
        self.start_collective(what, move |ends, call| gather_lists(ends, call, &data, root))
    }

    /// Starts [`Group::scatter`].
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn scatter_async<T: TensorElement>(
        &self,
        parts: Option<Vec<Vec<T>>>,
        root: usize,
    ) -> Result<PendingWork<Vec<T>>, DistError> {
        self.check_rank(GroupOp::Scatter, root)?;
        let call = describe_rooted(GroupOp::Scatter, T::DTYPE, root);
        self.rooted_argument(call, root, parts.is_some(), "parts")?;
        let parts = parts.filter(|_| self.rank() == root).unwrap_or_default();
        if self.rank() == root {
            self.one_each(call, parts.len())?;
        }
        self.start_collective(call, move |ends, call| scatter_lists(ends, call, &parts, root))
    }

    /// Starts [`Group::reduce_scatter_in_place`]; gives the buffer back, with this rank's part in place.
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn reduce_scatter_async<B: ElementBuffer + Send + 'static>(
        &self,
        mut data: B,
        counts: Option<&[usize]>,
        op: ReduceOp,
    ) -> Result<PendingWork<(B, Range<usize>)>, DistError> {
        let call = describe_reduction(GroupOp::ReduceScatter, data.dtype(), op);
        self.check_reducible(call)?;
        let sizes = self.part_ranges(call, counts, data.as_bytes().len())?;
        let own = sizes[self.rank()].clone();
        self.start_collective(call, move |ends, call| {
            reduce_scatter(ends, call, writable_bytes(&mut data), sizes).map(|()| (data, own))
        })
    }

    /// Starts [`Group::all_to_all`].
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn all_to_all_async<T: TensorElement>(
        &self,
        parts: Vec<Vec<T>>,
    ) -> Result<PendingWork<Vec<Vec<T>>>, DistError> {
        let call = describe_op(GroupOp::AllToAll, T::DTYPE);
        self.one_each(call, parts.len())?;
        self.start_collective(call, move |ends, call| all_to_all(ends, call, &parts))
    }
}
