//! Working out a collective for one rank.

use std::ops::Range;

use graphc_comm::transport::Offer;
use graphc_ir::sbp::{ReduceKind, Sbp};
use graphc_ir::shard::{Rect, split_range};
use graphc_ir::types::DType;
use graphc_plan::{BoxingKind, Layout};

use super::stage::{
    CollectiveStage, ExchangePart, ExchangeStage, InputPack, PieceSource, Show, ShownBuffer,
};
use super::through::Through;
use crate::rectangles::{Move, along_axis, masked_kind, sums_wide};

/// The bytes that each rank may read in all where an all-reduce goes in one stage.
const SMALL: usize = 32 << 10;

/// A tensor that changes its layout along one axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayoutChange<'a> {
    pub(crate) from: &'a Layout,
    pub(crate) to: &'a Layout,
    /// Whether the result shares memory with the operand.
    pub(crate) in_place: bool,
}

/// The rank, axis and microbatch for which a collective is planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CollectiveScope {
    pub(crate) rank: u32,
    pub(crate) axis: usize,
    pub(crate) microbatch: usize,
    pub(crate) microbatches: usize,
    /// Whether ranks read each other's memory in place.
    pub(crate) direct: bool,
}

/// Returns the ranks that take part.
///
/// # Errors
/// Where the tensors do not have the same ranks along the axis.
pub(crate) fn group_of(
    changes: &[LayoutChange<'_>],
    scope: CollectiveScope,
) -> Result<Vec<u32>, String> {
    let along = |change: &LayoutChange<'_>| {
        let fits = scope.axis < change.from.hierarchy.len();
        fits.then(|| change.from.axis_group(scope.rank, scope.axis)).flatten()
    };
    let first = changes.first().and_then(along);
    let group = first.ok_or("a collective on a rank or an axis that its layout lacks")?;
    if changes.iter().all(|change| along(change).as_ref() == Some(&group)) {
        return Ok(group);
    }
    Err("a collective of tensors on different ranks".into())
}

/// Plans the stages of a collective.
///
/// # Errors
/// Where the layouts do not fit the kind.
pub(crate) fn plan_collective(
    kind: BoxingKind,
    changes: &[LayoutChange<'_>],
    scope: CollectiveScope,
) -> Result<Vec<CollectiveStage>, String> {
    let group = group_of(changes, scope)?;
    if let Some(reduce) = check_collective(kind, changes, scope)? {
        let flats: Vec<FlatTensor> =
            changes.iter().map(|c| FlatTensor::from_change(c, scope)).collect();
        let bytes: usize = flats.iter().map(|flat| flat.elements * flat.dtype.size()).sum();
        if bytes * (group.len() - 1) > SMALL {
            let me = group.iter().position(|&r| r == scope.rank).unwrap_or(0);
            let (ranks, flats) = (group.len(), flats.as_slice());
            if scope.direct {
                return Ok(vec![CollectiveStage::Through(plan_through(flats, ranks, me, reduce))]);
            }
            let stages = [reduce_flat(flats, ranks, me, reduce), gather_flat(flats, ranks, me)];
            return Ok(stages.map(CollectiveStage::Exchange).into());
        }
    }
    Ok(vec![CollectiveStage::Exchange(plan_exchange(changes, scope, &group)?)])
}

/// Checks that the layouts fit the kind. Returns how an all-reduce combines values.
///
/// # Errors
/// Where they do not.
pub(crate) fn check_collective(
    kind: BoxingKind,
    changes: &[LayoutChange<'_>],
    scope: CollectiveScope,
) -> Result<Option<ReduceKind>, String> {
    if !changes.iter().all(|change| alike_elsewhere(change, scope.axis)) {
        return Err("a collective between layouts that differ beyond its axis".into());
    }
    if changes.iter().any(|change| masked_along(change, scope)) {
        return Err("a collective towards a partial layout".into());
    }
    let all_reduce = kind == BoxingKind::AllReduce;
    all_reduce.then(|| all_reduce_kind(changes, scope.axis)).transpose()
}

/// Whether both layouts are of one tensor on one mesh and differ along `axis` at most. On an axis of one rank all layouts
/// are the same.
fn alike_elsewhere(change: &LayoutChange<'_>, axis: usize) -> bool {
    let mut from = change.from.clone();
    let to = &change.to.sbp.0;
    if axis >= from.hierarchy.len() || from.sbp.0.len() != to.len() {
        return false;
    }
    for (other, before) in from.sbp.0.iter_mut().enumerate() {
        if other == axis || from.hierarchy.get(other) == Some(&1) {
            *before = to[other];
        }
    }
    from == *change.to
}

fn masked_along(change: &LayoutChange<'_>, scope: CollectiveScope) -> bool {
    change.to.sbp.0[scope.axis].is_partial() && masked_kind(change.to, scope.rank).is_some()
}

fn all_reduce_kind(changes: &[LayoutChange<'_>], axis: usize) -> Result<ReduceKind, String> {
    let kind = |change: &LayoutChange<'_>| match (change.from.sbp.0[axis], change.to.sbp.0[axis]) {
        (Sbp::Partial(kind), Sbp::Broadcast) => Some(kind),
        _ => None,
    };
    let first = changes.first().and_then(kind);
    let all = changes.iter().all(|change| kind(change) == first);
    first.filter(|_| all).ok_or("an all-reduce of what is not partial in one way".into())
}

fn held_rect(layout: &Layout, rank: u32, scope: CollectiveScope) -> Result<Rect, String> {
    let rect = layout.rect(rank, scope.microbatch, scope.microbatches);
    rect.ok_or_else(|| format!("rank {rank} holds nothing"))
}

/// Plans one stage in which rectangles go from rank to rank.
fn plan_exchange(
    changes: &[LayoutChange<'_>],
    scope: CollectiveScope,
    group: &[u32],
) -> Result<ExchangeStage, String> {
    let me = group.iter().position(|&rank| rank == scope.rank).unwrap_or(0);
    let mut stage = ExchangeStage { own_after: me, ..ExchangeStage::default() };
    let mut parts: Vec<Vec<ExchangePart>> = group.iter().map(|_| Vec::new()).collect();
    let mut pieces = vec![0; group.len()];
    for (tensor, change) in changes.iter().enumerate() {
        let target = held_rect(change.to, scope.rank, scope)?;
        let dtype = change.to.dtype;
        let (axis, m, ms) = (scope.axis, scope.microbatch, scope.microbatches);
        let bytes = target.elements() * dtype.size();
        let mut wide = false;
        for part in along_axis(change.from, change.to, axis, scope.rank, m, ms)? {
            let from = group.iter().position(|&rank| rank == part.source).unwrap_or(0);
            let source = held_rect(change.from, part.source, scope)?;
            let packed = !scope.direct && from != me;
            let copy = if packed {
                Move::new_unpack(dtype, &part.part, &target, 0)
            } else {
                Move::new(dtype, &part.part, &source, &target)
            };
            let piece = match (from == me, scope.direct) {
                (true, _) => PieceSource::Own(0..source.elements() * dtype.size()),
                (false, true) => PieceSource::Shown(tensor),
                (false, false) => PieceSource::Shown(pieces[from]),
            };
            pieces[from] += 1;
            wide |= sums_wide(dtype, part.combine);
            parts[from].push(ExchangePart {
                tensor,
                piece,
                target: 0..bytes,
                copy,
                combine: part.combine,
            });
        }
        match wide {
            true => stage.wide.push((tensor, dtype, 0..bytes)),
            false if change.in_place => stage.copy_back.push((tensor, 0..bytes)),
            false => {}
        }
    }
    stage.own = std::mem::take(&mut parts[me]);
    for (peer, parts) in parts.into_iter().enumerate().filter(|(_, parts)| !parts.is_empty()) {
        stage.takes.push(peer);
        stage.parts.push(parts);
    }
    stage.own_after = stage.takes.iter().filter(|&&peer| peer < me).count();
    plan_shows(&mut stage, changes, scope, group, me)?;
    Ok(stage)
}

/// Plans the pieces that this rank shows to its peers.
fn plan_shows(
    stage: &mut ExchangeStage,
    changes: &[LayoutChange<'_>],
    scope: CollectiveScope,
    group: &[u32],
    me: usize,
) -> Result<(), String> {
    let mut packed = 0;
    for (peer, &rank) in group.iter().enumerate().filter(|&(peer, _)| peer != me) {
        let first = stage.shows.len();
        let mut wanted = false;
        for (tensor, change) in changes.iter().enumerate() {
            let (m, ms) = (scope.microbatch, scope.microbatches);
            let parts = along_axis(change.from, change.to, scope.axis, rank, m, ms)?;
            let source = held_rect(change.from, scope.rank, scope)?;
            for part in parts.iter().filter(|part| part.source == scope.rank) {
                wanted = true;
                if scope.direct {
                    continue;
                }
                let (dtype, rect) = (change.from.dtype, &part.part);
                let range = packed..packed + rect.elements() * dtype.size();
                packed = range.end;
                let copy = Move::new_pack(dtype, rect, &source, 0);
                stage.packs.push(InputPack { tensor, range: range.clone(), copy });
                stage.shows.push(Show { buffer: ShownBuffer::Packed, range });
            }
        }
        if wanted {
            let pieces = if scope.direct { 0..changes.len() } else { first..stage.shows.len() };
            stage.offers.push(Offer { peer, pieces });
        }
    }
    if scope.direct && !stage.offers.is_empty() {
        for (tensor, change) in changes.iter().enumerate() {
            let bytes =
                held_rect(change.from, scope.rank, scope)?.elements() * change.from.dtype.size();
            stage.shows.push(Show { buffer: ShownBuffer::Input(tensor), range: 0..bytes });
        }
    }
    Ok(())
}

/// A tensor as a row of elements.
struct FlatTensor {
    dtype: DType,
    elements: usize,
    in_place: bool,
}

impl FlatTensor {
    fn from_change(change: &LayoutChange<'_>, scope: CollectiveScope) -> Self {
        let elements = held_rect(change.from, scope.rank, scope).map_or(0, |rect| rect.elements());
        Self { dtype: change.from.dtype, elements, in_place: change.in_place }
    }

    /// Returns the bytes that the rank at a coordinate reduces.
    fn chunk_range(&self, ranks: usize, coordinate: usize) -> Range<usize> {
        let range = split_range(self.elements, ranks, coordinate);
        range.start * self.dtype.size()..range.end * self.dtype.size()
    }

    fn build_part(
        &self,
        tensor: usize,
        piece: PieceSource,
        target: Range<usize>,
        of: Option<ReduceKind>,
    ) -> ExchangePart {
        let copy = Move::contiguous(self.dtype, target.len());
        ExchangePart { tensor, piece, target, copy, combine: of }
    }
}

/// Plans an all-reduce between ranks that write each other's memory.
fn plan_through(flats: &[FlatTensor], ranks: usize, me: usize, kind: ReduceKind) -> Through {
    let chunks = flats.iter().map(|flat| (flat.dtype, flat.chunk_range(ranks, me))).collect();
    Through { ranks, kind, chunks }
}

/// Plans the first stage of an all-reduce: each rank reduces its chunk of every tensor.
fn reduce_flat(flats: &[FlatTensor], ranks: usize, me: usize, kind: ReduceKind) -> ExchangeStage {
    let mut stage = ExchangeStage { own_after: me, ..ExchangeStage::default() };
    for peer in (0..ranks).filter(|&peer| peer != me) {
        let first = stage.shows.len();
        let show = |(tensor, flat): (usize, &FlatTensor)| Show {
            buffer: ShownBuffer::Input(tensor),
            range: flat.chunk_range(ranks, peer),
        };
        stage.shows.extend(flats.iter().enumerate().map(show));
        stage.offers.push(Offer { peer, pieces: first..stage.shows.len() });
        let combine = (peer > 0).then_some(kind);
        let part = |(t, flat): (usize, &FlatTensor)| {
            flat.build_part(t, PieceSource::Shown(t), flat.chunk_range(ranks, me), combine)
        };
        stage.takes.push(peer);
        stage.parts.push(flats.iter().enumerate().map(part).collect());
    }
    for (tensor, flat) in flats.iter().enumerate() {
        let chunk = flat.chunk_range(ranks, me);
        if sums_wide(flat.dtype, Some(kind)) {
            stage.wide.push((tensor, flat.dtype, chunk.clone()));
        } else if flat.in_place {
            stage.copy_back.push((tensor, chunk.clone()));
        }
        let own = PieceSource::Own(chunk.clone());
        stage.own.push(flat.build_part(tensor, own, chunk, (me > 0).then_some(kind)));
    }
    stage
}

/// Plans the second stage of an all-reduce: each rank copies the others' chunks.
fn gather_flat(flats: &[FlatTensor], ranks: usize, me: usize) -> ExchangeStage {
    let mut stage = ExchangeStage::default();
    let show = |(tensor, flat): (usize, &FlatTensor)| Show {
        buffer: ShownBuffer::Output(tensor),
        range: flat.chunk_range(ranks, me),
    };
    stage.shows.extend(flats.iter().enumerate().map(show));
    for peer in (0..ranks).filter(|&peer| peer != me) {
        stage.offers.push(Offer { peer, pieces: 0..flats.len() });
        let part = |(t, flat): (usize, &FlatTensor)| {
            flat.build_part(t, PieceSource::Shown(t), flat.chunk_range(ranks, peer), None)
        };
        stage.takes.push(peer);
        stage.parts.push(flats.iter().enumerate().map(part).collect());
    }
    stage
}
