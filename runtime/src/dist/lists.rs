//! Collectives of lists whose lengths their owners alone know.

use super::collectives::{Collect, run_exchange};
use super::element::{ElementBuffer, TensorElement, writable_bytes};
use super::ends::CollectiveEnds;
use super::error::DistError;
use super::header::GroupCall;

/// Sends `outgoing`, a part for each rank, and returns the lists of the ranks that are `wanted`, this rank's own as it
/// is.
fn collect_lists<T: TensorElement>(
    ends: &mut CollectiveEnds,
    call: GroupCall,
    outgoing: &[Option<&[T]>],
    wanted: Vec<bool>,
) -> Result<Vec<Vec<T>>, DistError> {
    let me = ends.members.me;
    let mut all: Vec<Vec<T>> = vec![Vec::new(); ends.members.len()];
    if let Some(own) = outgoing[me].filter(|_| wanted[me]) {
        all[me] = own.to_vec();
    }
    let mut grow = |peer: usize, bytes: usize, write: &mut dyn FnMut(&mut [u8])| {
        let into: &mut Vec<T> = &mut all[peer];
        into.resize(bytes / size_of::<T>(), T::default());
        write(writable_bytes(into));
    };
    let outgoing = outgoing.iter().map(|part| part.map(ElementBuffer::as_bytes)).collect();
    run_exchange(ends, &call, &mut Collect { call, outgoing, wanted, grow: &mut grow })?;
    Ok(all)
}

pub(super) fn all_gather<T: TensorElement>(
    ends: &mut CollectiveEnds,
    call: GroupCall,
    data: &[T],
) -> Result<Vec<Vec<T>>, DistError> {
    let n = ends.members.len();
    collect_lists(ends, call, &vec![Some(data); n], vec![true; n])
}

pub(super) fn gather_lists<T: TensorElement>(
    ends: &mut CollectiveEnds,
    call: GroupCall,
    data: &[T],
    root: usize,
) -> Result<Option<Vec<Vec<T>>>, DistError> {
    let (me, n) = (ends.members.me, ends.members.len());
    let outgoing: Vec<_> = (0..n).map(|peer| (peer == root).then_some(data)).collect();
    let all = collect_lists(ends, call, &outgoing, vec![me == root; n])?;
    Ok((me == root).then_some(all))
}

pub(super) fn scatter_lists<T: TensorElement>(
    ends: &mut CollectiveEnds,
    call: GroupCall,
    parts: &[Vec<T>],
    root: usize,
) -> Result<Vec<T>, DistError> {
    let n = ends.members.len();
    let outgoing: Vec<_> = (0..n).map(|peer| parts.get(peer).map(Vec::as_slice)).collect();
    let wanted = (0..n).map(|peer| peer == root).collect();
    let mut all = collect_lists(ends, call, &outgoing, wanted)?;
    Ok(all.swap_remove(root))
}

pub(super) fn all_to_all<T: TensorElement>(
    ends: &mut CollectiveEnds,
    call: GroupCall,
    parts: &[Vec<T>],
) -> Result<Vec<Vec<T>>, DistError> {
    let outgoing: Vec<_> = parts.iter().map(|part| Some(part.as_slice())).collect();
    let wanted = vec![true; parts.len()];
    collect_lists(ends, call, &outgoing, wanted)
}
