//! Executes every route step by step on the shards of all ranks, and compares the result with the target's shards.

use graphc_ir::array::Array;
use graphc_ir::mesh::unravel_position;
use graphc_ir::sbp::{NdSbp, ReduceKind, Sbp};
use graphc_ir::shard::Rect;
use graphc_ir::types::DType;
use graphc_plan::Layout;

use super::exchange::{exchange_traffic, holds_value};
use super::{BoxingStep, Router};
use crate::cluster::preset;

/// Shards in the order of a layout's ranks.
type Shards = Vec<Array>;

fn layout(shape: &[usize], first: u32, hierarchy: &[usize], sbp: NdSbp) -> Layout {
    let size: usize = hierarchy.iter().product();
    Layout {
        shape: shape.to_vec(),
        dtype: DType::F32,
        microbatch_dim: None,
        ranks: (first..first + size as u32).collect(),
        hierarchy: hierarchy.to_vec(),
        sbp,
    }
}

fn rect(layout: &Layout, rank: u32) -> Rect {
    layout.rect(rank, 0, 1).expect("the rank is of the mesh")
}

fn kind(layout: &Layout) -> ReduceKind {
    let partial = |sbp: &Sbp| if let Sbp::Partial(kind) = sbp { Some(*kind) } else { None };
    layout.sbp.0.iter().find_map(partial).unwrap_or(ReduceKind::Sum)
}

/// Makes shards whose reduction is the whole. The parts of a sum differ from rank to rank.
fn scatter(whole: &Array, layout: &Layout) -> Shards {
    let kind = kind(layout);
    let partial: Vec<bool> = layout.sbp.0.iter().map(|sbp| sbp.is_partial()).collect();
    let extents = layout.hierarchy.iter().zip(&partial);
    let parts: usize = extents.map(|(&n, &is)| if is { n } else { 1 }).product();
    let shard = |rank: &u32| {
        let mut shard = whole.slice_rect(&rect(layout, *rank));
        let coordinates = layout.coordinates(*rank).expect("of the mesh");
        let part = (0..partial.len())
            .filter(|&axis| partial[axis])
            .fold(0, |part, axis| part * layout.hierarchy[axis] + coordinates[axis]);
        for value in &mut shard.data {
            *value = match kind {
                ReduceKind::Sum if part == 0 => *value - (1..parts).sum::<usize>() as f64,
                ReduceKind::Sum => part as f64,
                ReduceKind::Max => *value - ((part + 1) % parts) as f64,
                ReduceKind::Min => *value + ((part + 1) % parts) as f64,
            };
        }
        shard
    };
    layout.ranks.iter().map(shard).collect()
}

/// Returns the ranks from which a receiver takes what it needs: one rank for each coordinate of the axes that split or are partial. Along broadcast
/// axes, where ranks hold copies, it takes itself if it is one of them. Otherwise it takes the one at its own position modulo their number, so that
/// receivers share the load.
pub(super) fn source_ranks(from: &Layout, receiver: u32, position: usize) -> Vec<u32> {
    let own = from.coordinates(receiver);
    let copies: Vec<bool> = from.sbp.0.iter().map(|&sbp| sbp == Sbp::Broadcast).collect();
    let extents = |copy: bool| -> Vec<usize> {
        let axes = from.hierarchy.iter().zip(&copies);
        axes.map(|(&extent, &is_copy)| if is_copy == copy { extent } else { 1 }).collect()
    };
    let count: usize = extents(true).iter().product();
    let mine = own.unwrap_or_else(|| unravel_position(position % count, &extents(true)));
    let parts = extents(false);
    (0..parts.iter().product())
        .map(|part| {
            let part = unravel_position(part, &parts);
            let at = |axis: usize| if copies[axis] { mine[axis] } else { part[axis] };
            let position = (0..parts.len()).fold(0, |p, axis| p * from.hierarchy[axis] + at(axis));
            from.ranks[position]
        })
        .collect()
}

/// Returns the whole tensor of shards.
fn gather(shards: &Shards, layout: &Layout) -> Array {
    let kind = kind(layout);
    let mut whole = Array::full(layout.shape.clone(), kind.identity());
    let receiver = layout.ranks[0];
    for sender in source_ranks(layout, receiver, 0) {
        add(&mut whole, &Rect::whole(&layout.shape), shards, layout, sender, kind);
    }
    whole
}

/// Combines a rank's shard with the part of `into` that it covers.
fn add(
    into: &mut Array,
    at: &Rect,
    shards: &Shards,
    layout: &Layout,
    sender: u32,
    kind: ReduceKind,
) {
    let held = rect(layout, sender);
    let Some(common) = held.intersect(at) else { return };
    let within = |of: &Rect| Rect {
        origin: common.origin.iter().zip(&of.origin).map(|(c, o)| c - o).collect(),
        extent: common.extent.clone(),
    };
    let position = layout.ranks.iter().position(|&rank| rank == sender).expect("of the mesh");
    let part = shards[position].slice_rect(&within(&held));
    let mut sum = into.slice_rect(&within(at));
    for (sum, value) in sum.data.iter_mut().zip(part.data) {
        *sum = kind.combine(*sum, value);
    }
    into.write_rect(&within(at), &sum);
}

/// Executes one step on all ranks. Single-axis steps look only at the shards of the rank's own group.
fn apply(step: &BoxingStep, shards: &Shards, before: &Layout, after: &Layout) -> Shards {
    let shard = |(position, &rank): (usize, &u32)| {
        let need = rect(after, rank);
        let own = || {
            shards[position].slice_rect(&Rect {
                origin: need
                    .origin
                    .iter()
                    .zip(&rect(before, rank).origin)
                    .map(|(n, h)| n - h)
                    .collect(),
                extent: need.extent.clone(),
            })
        };
        match *step {
            BoxingStep::Slice { .. } => own(),
            BoxingStep::Mask { axis, kind } => {
                let first = after.coordinates(rank).expect("of the mesh")[axis] == 0;
                if first { own() } else { Array::full(need.extent, kind.identity()) }
            }
            BoxingStep::AllReduce { axis, kind } | BoxingStep::ReduceScatter { axis, kind, .. } => {
                collect(
                    shards,
                    before,
                    &before.axis_group(rank, axis).expect("of the mesh"),
                    &need,
                    kind,
                )
            }
            BoxingStep::AllGather { axis, .. } | BoxingStep::AllToAll { axis, .. } => {
                let group = before.axis_group(rank, axis).expect("of the mesh");
                collect(shards, before, &group, &need, ReduceKind::Sum)
            }
            BoxingStep::Exchange if holds_value(after, position) => {
                collect(shards, before, &source_ranks(before, rank, position), &need, kind(before))
            }
            BoxingStep::Exchange => Array::full(need.extent, kind(after).identity()),
        }
    };
    after.ranks.iter().enumerate().map(shard).collect()
}

fn collect(
    shards: &Shards,
    before: &Layout,
    senders: &[u32],
    need: &Rect,
    kind: ReduceKind,
) -> Array {
    let mut result = Array::full(need.extent.clone(), kind.identity());
    for &sender in senders {
        add(&mut result, need, shards, before, sender, kind);
    }
    result
}

/// Executes the route and compares the result shard by shard, or as a whole if the target is partial.
fn check(router: &mut Router<'_>, from: &Layout, to: &Layout) {
    let mut count = 0.0;
    let whole = Array::from_fn(from.shape.clone(), |_| {
        count += 1.0;
        count
    });
    let route = router.find_route(from, to);
    let (mut shards, mut at) = (scatter(&whole, from), from.clone());
    for step in &route.steps {
        shards = apply(&step.step, &shards, &at, &step.layout_after);
        at = step.layout_after.clone();
    }
    let name = format!(
        "{:?} {}: ({}) to {:?} ({})",
        from.shape,
        from.ranks.len(),
        from.sbp,
        to.ranks,
        to.sbp
    );
    assert_eq!(gather(&shards, to), whole, "{name}: {route:?}");
    if !to.sbp.is_partial() {
        assert_eq!(shards, scatter(&whole, to), "{name}: {route:?}");
    }
    for (shard, &rank) in shards.iter().zip(&to.ranks) {
        assert_eq!(shard.shape, rect(to, rank).extent, "{name}");
    }
}

fn all_sbps(axes: usize, of: &[Sbp]) -> Vec<NdSbp> {
    (0..axes).fold(vec![NdSbp(Vec::new())], |known, _| {
        let longer = |sbp: &NdSbp| of.iter().map(|&s| NdSbp([&sbp.0[..], &[s]].concat())).collect();
        known.iter().flat_map(|sbp| -> Vec<NdSbp> { longer(sbp) }).collect()
    })
}

const FOUR: [Sbp; 4] = [Sbp::Split(0), Sbp::Split(1), Sbp::Broadcast, Sbp::PARTIAL];

#[test]
fn all_pairs_on_one_mesh() {
    let cluster = preset("cpu").expect("a preset");
    let mut router = Router::new(&cluster, 1);
    for shape in [&[5, 7][..], &[25, 33], &[8, 0, 4]] {
        for mesh in [&[4][..], &[2, 2], &[3], &[2, 3]] {
            for from in all_sbps(mesh.len(), &FOUR) {
                for to in all_sbps(mesh.len(), &FOUR) {
                    let at = |sbp: &NdSbp| layout(shape, 0, mesh, sbp.clone());
                    check(&mut router, &at(&from), &at(&to));
                }
            }
        }
    }
}

#[test]
fn all_pairs_between_meshes() {
    let cluster = preset("cpu").expect("a preset");
    let mut router = Router::new(&cluster, 1);
    let meshes: [(u32, &[usize]); 5] =
        [(0, &[4]), (0, &[2, 2]), (1, &[3]), (2, &[2, 2]), (4, &[3])];
    for shape in [&[5, 7][..], &[8, 0, 4]] {
        for (from_first, from_mesh) in meshes {
            for (to_first, to_mesh) in meshes {
                for from in all_sbps(from_mesh.len(), &FOUR) {
                    for to in all_sbps(to_mesh.len(), &FOUR) {
                        let from = layout(shape, from_first, from_mesh, from.clone());
                        check(&mut router, &from, &layout(shape, to_first, to_mesh, to));
                    }
                }
            }
        }
    }
}

#[test]
fn partial_maxima_and_minima_travel_like_sums() {
    let cluster = preset("cpu").expect("a preset");
    let mut router = Router::new(&cluster, 1);
    for kind in [ReduceKind::Max, ReduceKind::Min] {
        let of = [Sbp::Split(0), Sbp::Split(1), Sbp::Broadcast, Sbp::Partial(kind)];
        for from in all_sbps(2, &of) {
            for to in all_sbps(2, &of) {
                let at = |sbp: &NdSbp| layout(&[5, 7], 0, &[2, 2], sbp.clone());
                check(&mut router, &at(&from), &at(&to));
            }
        }
    }
    let at = |sbp| layout(&[5, 7], 0, &[3], NdSbp(vec![sbp]));
    let kinds = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min].map(Sbp::Partial);
    for from in kinds {
        for to in kinds {
            check(&mut router, &at(from), &at(to));
        }
    }
}

#[test]
fn routes_are_the_cheapest_steps() {
    let cluster = preset("cpu").expect("a preset");
    let mut router = Router::new(&cluster, 1);
    let mut kinds = |mesh: &[usize], from: &str, to: &str| -> Vec<&'static str> {
        let at = |sbp: &str| layout(&[1024, 1024], 0, mesh, sbp.parse().expect("an SBP"));
        let route = router.find_route(&at(from), &at(to));
        let sum: f64 = route.steps.iter().map(|step| step.seconds).sum();
        assert!((sum - route.seconds).abs() < 1e-12);
        let name = |step: &BoxingStep| match step {
            BoxingStep::AllReduce { .. } => "all_reduce",
            BoxingStep::ReduceScatter { .. } => "reduce_scatter",
            BoxingStep::AllGather { .. } => "all_gather",
            BoxingStep::AllToAll { .. } => "all_to_all",
            BoxingStep::Slice { .. } => "slice",
            BoxingStep::Mask { .. } => "mask",
            BoxingStep::Exchange => "exchange",
        };
        route.steps.iter().map(|step| name(&step.step)).collect()
    };
    assert_eq!(kinds(&[4], "P(sum)", "B"), ["all_reduce"]);
    assert_eq!(kinds(&[4], "P(sum)", "S(1)"), ["reduce_scatter"]);
    assert_eq!(kinds(&[4], "S(1)", "S(0)"), ["all_to_all"]);
    assert_eq!(kinds(&[4], "B", "S(0)"), ["slice"]);
    assert_eq!(kinds(&[4], "B", "B"), [""; 0]);
    assert_eq!(
        kinds(&[1, 4], "S(0), B", "P(sum), B"),
        [""; 0],
        "an axis of extent 1 splits nothing"
    );
    // Two all-reduces of the whole cost more than a reduce-scatter, an all-reduce of a part and an all-gather.
    let found = kinds(&[2, 2], "P(sum), P(sum)", "B, B");
    assert_eq!(found, ["reduce_scatter", "all_reduce", "all_gather"]);
    assert_eq!(kinds(&[2, 2], "S(0), S(0)", "S(0), B"), ["all_gather"]);
}

#[test]
fn an_exchange_is_priced_by_its_busiest_rank() {
    let at = |first, mesh: &[usize], sbp: &str| {
        layout(&[8, 2], first, mesh, sbp.parse().expect("an SBP"))
    };
    let traffic = exchange_traffic(&at(0, &[2], "S(0)"), &at(2, &[4], "B"), 1);
    assert_eq!((traffic.messages, traffic.bytes), (4, 4 * 32), "each sends its half to four");
    let traffic = exchange_traffic(&at(0, &[2], "B"), &at(2, &[4], "B"), 1);
    assert_eq!((traffic.messages, traffic.bytes), (2, 2 * 64), "copies share the receivers");
    let traffic = exchange_traffic(&at(0, &[2], "B"), &at(0, &[2], "S(1)"), 1);
    assert_eq!((traffic.messages, traffic.bytes), (0, 0), "what a rank keeps is no message");
}
