//! Working out a collective for one rank.

use std::ops::Range;

use graphc_ir::plan::{BoxingKind, Layout};
use graphc_ir::sbp::{ReduceKind, Sbp};
use graphc_ir::shard::{Rect, split_range};
use graphc_ir::types::DType;

use super::stage::{Buffer, Exchange, Pack, Part, Piece, Show, Stage};
use super::through::Through;
use crate::rectangles::{Move, along_axis, masked, sums_wide};
use crate::transport::Offer;

/// All-reduce goes in one stage where that makes each rank read no more than this many bytes in all.
const SMALL: usize = 32 << 10;

/// A tensor that changes its layout along one axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) from: &'a Layout,
    pub(crate) to: &'a Layout,
    /// Whether the result shares memory with the operand.
    pub(crate) in_place: bool,
}

/// For whom a collective is worked out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    pub(crate) rank: u32,
    pub(crate) axis: usize,
    pub(crate) microbatch: usize,
    pub(crate) microbatches: usize,
    /// Whether ranks read each other's memory in place.
    pub(crate) direct: bool,
}

/// The ranks that take part.
///
/// # Errors
/// Where the tensors do not have the same ranks along the axis.
pub(crate) fn group_of(changes: &[Change<'_>], scope: Scope) -> Result<Vec<u32>, String> {
    let along = |change: &Change<'_>| {
        let fits = scope.axis < change.from.hierarchy.len();
        fits.then(|| change.from.group(scope.rank, scope.axis)).flatten()
    };
    let first = changes.first().and_then(along);
    let group = first.ok_or("a collective on a rank or an axis that its layout lacks")?;
    if changes.iter().all(|change| along(change).as_ref() == Some(&group)) {
        return Ok(group);
    }
    Err("a collective of tensors on different ranks".into())
}

/// The stages of a collective.
///
/// # Errors
/// Where the layouts do not fit the kind.
pub(crate) fn plan(
    kind: BoxingKind,
    changes: &[Change<'_>],
    scope: Scope,
) -> Result<Vec<Stage>, String> {
    let group = group_of(changes, scope)?;
    if let Some(reduce) = check(kind, changes, scope)? {
        let flats: Vec<Flat> = changes.iter().map(|c| Flat::of(c, scope)).collect();
        let bytes: usize = flats.iter().map(|flat| flat.elements * flat.dtype.size()).sum();
        if bytes * (group.len() - 1) > SMALL {
            let me = group.iter().position(|&r| r == scope.rank).unwrap_or(0);
            let (ranks, flats) = (group.len(), flats.as_slice());
            if scope.direct {
                return Ok(vec![Stage::Through(through(flats, ranks, me, reduce))]);
            }
            let stages = [reduce_flat(flats, ranks, me, reduce), gather_flat(flats, ranks, me)];
            return Ok(stages.map(Stage::Exchange).into());
        }
    }
    Ok(vec![Stage::Exchange(exchange(changes, scope, &group)?)])
}

/// Whether the layouts fit the kind. Of an all-reduce how values are combined.
///
/// # Errors
/// Where they do not.
pub(crate) fn check(
    kind: BoxingKind,
    changes: &[Change<'_>],
    scope: Scope,
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
fn alike_elsewhere(change: &Change<'_>, axis: usize) -> bool {
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

fn masked_along(change: &Change<'_>, scope: Scope) -> bool {
    change.to.sbp.0[scope.axis].is_partial() && masked(change.to, scope.rank).is_some()
}

fn all_reduce_kind(changes: &[Change<'_>], axis: usize) -> Result<ReduceKind, String> {
    let kind = |change: &Change<'_>| match (change.from.sbp.0[axis], change.to.sbp.0[axis]) {
        (Sbp::Partial(kind), Sbp::Broadcast) => Some(kind),
        _ => None,
    };
    let first = changes.first().and_then(kind);
    let all = changes.iter().all(|change| kind(change) == first);
    first.filter(|_| all).ok_or("an all-reduce of what is not partial in one way".into())
}

fn held(layout: &Layout, rank: u32, scope: Scope) -> Result<Rect, String> {
    let rect = layout.rect(rank, scope.microbatch, scope.microbatches);
    rect.ok_or_else(|| format!("rank {rank} holds nothing"))
}

/// One stage in which rectangles go from rank to rank.
fn exchange(changes: &[Change<'_>], scope: Scope, group: &[u32]) -> Result<Exchange, String> {
    let me = group.iter().position(|&rank| rank == scope.rank).unwrap_or(0);
    let mut stage = Exchange { own_after: me, ..Exchange::default() };
    let mut parts: Vec<Vec<Part>> = group.iter().map(|_| Vec::new()).collect();
    let mut pieces = vec![0; group.len()];
    for (tensor, change) in changes.iter().enumerate() {
        let target = held(change.to, scope.rank, scope)?;
        let dtype = change.to.dtype;
        let (axis, m, ms) = (scope.axis, scope.microbatch, scope.microbatches);
        let bytes = target.elements() * dtype.size();
        let mut wide = false;
        for part in along_axis(change.from, change.to, axis, scope.rank, m, ms)? {
            let from = group.iter().position(|&rank| rank == part.source).unwrap_or(0);
            let source = held(change.from, part.source, scope)?;
            let packed = !scope.direct && from != me;
            let copy = if packed {
                Move::unpack(dtype, &part.part, &target, 0)
            } else {
                Move::new(dtype, &part.part, &source, &target)
            };
            let piece = match (from == me, scope.direct) {
                (true, _) => Piece::Own(0..source.elements() * dtype.size()),
                (false, true) => Piece::Shown(tensor),
                (false, false) => Piece::Shown(pieces[from]),
            };
            pieces[from] += 1;
            wide |= sums_wide(dtype, part.combine);
            parts[from].push(Part { tensor, piece, target: 0..bytes, copy, combine: part.combine });
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
    show(&mut stage, changes, scope, group, me)?;
    Ok(stage)
}

/// What the peers want to see.
fn show(
    stage: &mut Exchange,
    changes: &[Change<'_>],
    scope: Scope,
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
            let source = held(change.from, scope.rank, scope)?;
            for part in parts.iter().filter(|part| part.source == scope.rank) {
                wanted = true;
                if scope.direct {
                    continue;
                }
                let (dtype, rect) = (change.from.dtype, &part.part);
                let range = packed..packed + rect.elements() * dtype.size();
                packed = range.end;
                let copy = Move::pack(dtype, rect, &source, 0);
                stage.packs.push(Pack { tensor, range: range.clone(), copy });
                stage.shows.push(Show { buffer: Buffer::Packed, range });
            }
        }
        if wanted {
            let pieces = if scope.direct { 0..changes.len() } else { first..stage.shows.len() };
            stage.offers.push(Offer { peer, pieces });
        }
    }
    if scope.direct && !stage.offers.is_empty() {
        for (tensor, change) in changes.iter().enumerate() {
            let bytes = held(change.from, scope.rank, scope)?.elements() * change.from.dtype.size();
            stage.shows.push(Show { buffer: Buffer::Input(tensor), range: 0..bytes });
        }
    }
    Ok(())
}

/// A tensor as a row of elements.
struct Flat {
    dtype: DType,
    elements: usize,
    in_place: bool,
}

impl Flat {
    fn of(change: &Change<'_>, scope: Scope) -> Self {
        let elements = held(change.from, scope.rank, scope).map_or(0, |rect| rect.elements());
        Self { dtype: change.from.dtype, elements, in_place: change.in_place }
    }

    /// The bytes that the rank at a coordinate reduces.
    fn chunk(&self, ranks: usize, coordinate: usize) -> Range<usize> {
        let range = split_range(self.elements, ranks, coordinate);
        range.start * self.dtype.size()..range.end * self.dtype.size()
    }

    fn part(
        &self,
        tensor: usize,
        piece: Piece,
        target: Range<usize>,
        of: Option<ReduceKind>,
    ) -> Part {
        let copy = Move::contiguous(self.dtype, target.len());
        Part { tensor, piece, target, copy, combine: of }
    }
}

/// An all-reduce between ranks that write each other's memory.
fn through(flats: &[Flat], ranks: usize, me: usize, kind: ReduceKind) -> Through {
    let chunks = flats.iter().map(|flat| (flat.dtype, flat.chunk(ranks, me))).collect();
    Through { ranks, kind, chunks }
}

/// The first stage of an all-reduce: each rank reduces its chunk of every tensor.
fn reduce_flat(flats: &[Flat], ranks: usize, me: usize, kind: ReduceKind) -> Exchange {
    let mut stage = Exchange { own_after: me, ..Exchange::default() };
    for peer in (0..ranks).filter(|&peer| peer != me) {
        let first = stage.shows.len();
        let show = |(tensor, flat): (usize, &Flat)| Show {
            buffer: Buffer::Input(tensor),
            range: flat.chunk(ranks, peer),
        };
        stage.shows.extend(flats.iter().enumerate().map(show));
        stage.offers.push(Offer { peer, pieces: first..stage.shows.len() });
        let combine = (peer > 0).then_some(kind);
        let part = |(t, flat): (usize, &Flat)| {
            flat.part(t, Piece::Shown(t), flat.chunk(ranks, me), combine)
        };
        stage.takes.push(peer);
        stage.parts.push(flats.iter().enumerate().map(part).collect());
    }
    for (tensor, flat) in flats.iter().enumerate() {
        let chunk = flat.chunk(ranks, me);
        if sums_wide(flat.dtype, Some(kind)) {
            stage.wide.push((tensor, flat.dtype, chunk.clone()));
        } else if flat.in_place {
            stage.copy_back.push((tensor, chunk.clone()));
        }
        let own = Piece::Own(chunk.clone());
        stage.own.push(flat.part(tensor, own, chunk, (me > 0).then_some(kind)));
    }
    stage
}

/// The second stage of an all-reduce: each rank copies the others' chunks.
fn gather_flat(flats: &[Flat], ranks: usize, me: usize) -> Exchange {
    let mut stage = Exchange::default();
    let show = |(tensor, flat): (usize, &Flat)| Show {
        buffer: Buffer::Output(tensor),
        range: flat.chunk(ranks, me),
    };
    stage.shows.extend(flats.iter().enumerate().map(show));
    for peer in (0..ranks).filter(|&peer| peer != me) {
        stage.offers.push(Offer { peer, pieces: 0..flats.len() });
        let part = |(t, flat): (usize, &Flat)| {
            flat.part(t, Piece::Shown(t), flat.chunk(ranks, peer), None)
        };
        stage.takes.push(peer);
        stage.parts.push(flats.iter().enumerate().map(part).collect());
    }
    stage
}
