//! Collectives of lists whose lengths their owners alone know.

use super::collectives::{Collect, exchange};
use super::element::{Buffer, Element, writable};
use super::ends::Ends;
use super::error::DistError;
use super::header::Call;

/// What `outgoing` sends to each rank; what comes from those that are wanted, this rank's own as it is.
fn collect<T: Element>(
    ends: &mut Ends,
    call: Call,
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
        write(writable(into));
    };
    let outgoing = outgoing.iter().map(|part| part.map(Buffer::as_bytes)).collect();
    exchange(ends, &call, &mut Collect { call, outgoing, wanted, grow: &mut grow })?;
    Ok(all)
}

pub(super) fn all_gather<T: Element>(
    ends: &mut Ends,
    call: Call,
    data: &[T],
) -> Result<Vec<Vec<T>>, DistError> {
    let n = ends.members.len();
    collect(ends, call, &vec![Some(data); n], vec![true; n])
}

pub(super) fn gather<T: Element>(
    ends: &mut Ends,
    call: Call,
    data: &[T],
    root: usize,
) -> Result<Option<Vec<Vec<T>>>, DistError> {
    let (me, n) = (ends.members.me, ends.members.len());
    let outgoing: Vec<_> = (0..n).map(|peer| (peer == root).then_some(data)).collect();
    let all = collect(ends, call, &outgoing, vec![me == root; n])?;
    Ok((me == root).then_some(all))
}

pub(super) fn scatter<T: Element>(
    ends: &mut Ends,
    call: Call,
    parts: &[Vec<T>],
    root: usize,
) -> Result<Vec<T>, DistError> {
    let n = ends.members.len();
    let outgoing: Vec<_> = (0..n).map(|peer| parts.get(peer).map(Vec::as_slice)).collect();
    let wanted = (0..n).map(|peer| peer == root).collect();
    let mut all = collect(ends, call, &outgoing, wanted)?;
    Ok(all.swap_remove(root))
}

pub(super) fn all_to_all<T: Element>(
    ends: &mut Ends,
    call: Call,
    parts: &[Vec<T>],
) -> Result<Vec<Vec<T>>, DistError> {
    let outgoing: Vec<_> = parts.iter().map(|part| Some(part.as_slice())).collect();
    let wanted = vec![true; parts.len()];
    collect(ends, call, &outgoing, wanted)
}
