//! Collectives that do not wait.

use std::ops::Range;

use graphc_ir::types::DType;

use super::{
    all_gather, all_reduce, all_to_all, copy, cut, gather, reduce_scatter, reducing, rooted,
    scatter, what,
};
use crate::dist::broadcast::broadcast;
use crate::dist::collectives;
use crate::dist::element::{Buffer, Element, writable};
use crate::dist::engine::What;
use crate::dist::error::DistError;
use crate::dist::group::Group;
use crate::dist::header::Op;
use crate::dist::reduce::ReduceOp;
use crate::dist::work::Work;

/// # Collectives without waiting
///
/// They are done in the order in which they were started, on a thread of the group. A collective that waits, called while
/// some are under way, comes after them.
impl Group {
    /// As [`Group::barrier`].
    ///
    /// # Errors
    /// Here wrong arguments, the rest at [`Work::wait`]. So do all of these.
    pub fn barrier_async(&self) -> Result<Work<()>, DistError> {
        self.start(what(Op::Barrier, DType::U8), |ends, call| collectives::barrier(ends, &call))
    }

    /// As [`Group::broadcast`].
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn broadcast_async<B: Buffer + Send + 'static>(
        &self,
        mut buffer: B,
        root: usize,
    ) -> Result<Work<B>, DistError> {
        self.known(Op::Broadcast, root)?;
        self.start(rooted(Op::Broadcast, buffer.dtype(), root), move |ends, call| {
            broadcast(ends, &call, root, writable(&mut buffer)).map(|()| buffer)
        })
    }

    /// As [`Group::all_reduce`].
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn all_reduce_async<B: Buffer + Send + 'static>(
        &self,
        mut buffer: B,
        op: ReduceOp,
    ) -> Result<Work<B>, DistError> {
        let what = reducing(Op::AllReduce, buffer.dtype(), op);
        self.reducible(what)?;
        self.start(what, move |ends, call| all_reduce(ends, call, &mut buffer).map(|()| buffer))
    }

    /// As [`Group::reduce`].
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn reduce_async<B: Buffer + Send + 'static>(
        &self,
        mut buffer: B,
        root: usize,
        op: ReduceOp,
    ) -> Result<Work<B>, DistError> {
        self.known(Op::Reduce, root)?;
        let what = What { root: Some(root), ..reducing(Op::Reduce, buffer.dtype(), op) };
        self.reducible(what)?;
        self.start(what, move |ends, call| all_reduce(ends, call, &mut buffer).map(|()| buffer))
    }

    /// As [`Group::all_gather`].
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn all_gather_async<T: Element>(
        &self,
        data: Vec<T>,
    ) -> Result<Work<Vec<Vec<T>>>, DistError> {
        let what = what(Op::AllGather, T::DTYPE);
        self.start(what, move |ends, call| all_gather(ends, call, &data))
    }

    /// As [`Group::all_gather_into`] of equal parts; gives both buffers back.
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn all_gather_into_async<A, B>(
        &self,
        data: A,
        mut into: B,
    ) -> Result<Work<(A, B)>, DistError>
    where
        A: Buffer + Send + 'static,
        B: Buffer + Send + 'static,
    {
        let call = what(Op::AllGather, data.dtype());
        let sizes = self.sizes(call, None, into.as_bytes().len())?;
        self.same_type(call, into.dtype())?;
        self.fits(call, "this rank's part", sizes[self.rank()].len(), data.as_bytes().len())?;
        self.start(call, move |ends, call| {
            let outgoing = vec![Some(data.as_bytes()); ends.members.len()];
            copy(ends, call, outgoing, cut(writable(&mut into), &sizes))?;
            Ok((data, into))
        })
    }

    /// As [`Group::gather`].
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn gather_async<T: Element>(
        &self,
        data: Vec<T>,
        root: usize,
    ) -> Result<Work<Option<Vec<Vec<T>>>>, DistError> {
        self.known(Op::Gather, root)?;
        let what = rooted(Op::Gather, T::DTYPE, root);
        self.start(what, move |ends, call| gather(ends, call, &data, root))
    }

    /// As [`Group::scatter`].
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn scatter_async<T: Element>(
        &self,
        parts: Option<Vec<Vec<T>>>,
        root: usize,
    ) -> Result<Work<Vec<T>>, DistError> {
        self.known(Op::Scatter, root)?;
        let call = rooted(Op::Scatter, T::DTYPE, root);
        self.rooted_argument(call, root, parts.is_some(), "parts")?;
        let parts = parts.filter(|_| self.rank() == root).unwrap_or_default();
        if self.rank() == root {
            self.one_each(call, parts.len())?;
        }
        self.start(call, move |ends, call| scatter(ends, call, &parts, root))
    }

    /// As [`Group::reduce_scatter_in_place`]; gives the buffer back, with this rank's part in place.
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn reduce_scatter_async<B: Buffer + Send + 'static>(
        &self,
        mut data: B,
        counts: Option<&[usize]>,
        op: ReduceOp,
    ) -> Result<Work<(B, Range<usize>)>, DistError> {
        let call = reducing(Op::ReduceScatter, data.dtype(), op);
        self.reducible(call)?;
        let sizes = self.sizes(call, counts, data.as_bytes().len())?;
        let own = sizes[self.rank()].clone();
        self.start(call, move |ends, call| {
            reduce_scatter(ends, call, writable(&mut data), sizes).map(|()| (data, own))
        })
    }

    /// As [`Group::all_to_all`].
    ///
    /// # Errors
    /// As [`Group::barrier_async`].
    pub fn all_to_all_async<T: Element>(
        &self,
        parts: Vec<Vec<T>>,
    ) -> Result<Work<Vec<Vec<T>>>, DistError> {
        let call = what(Op::AllToAll, T::DTYPE);
        self.one_each(call, parts.len())?;
        self.start(call, move |ends, call| all_to_all(ends, call, &parts))
    }
}
