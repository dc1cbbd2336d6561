//! Every collective against a serial reference, ranks as threads.

use std::sync::Arc;
use std::time::Duration;

use graphc_comm::memory::{ArenaRange, HostArena};
use graphc_comm::transport::Patience;
use graphc_comm::transport::in_process::Hub;
use graphc_host::tensor::HostTensor;
use graphc_ir::random::RandomStream;
use graphc_ir::sbp::{ReduceKind, Sbp};
use graphc_ir::types::DType;
use graphc_plan::{BoxingKind, Layout};

use super::{Buffers, CollectiveScope, LayoutChange, StageLists, group_of, plan_collective};
use crate::{ShardedTensor, rectangles};

const KINDS: [ReduceKind; 3] = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min];

#[derive(Clone)]
struct Case {
    kind: BoxingKind,
    axis: usize,
    /// (before, after) of each tensor.
    changes: Vec<(Layout, Layout)>,
    in_place: bool,
}

fn layout(dtype: DType, shape: &[usize], hierarchy: &[usize], sbp: &[Sbp]) -> Layout {
    let ranks: u32 = hierarchy.iter().product::<usize>() as u32;
    Layout {
        shape: shape.to_vec(),
        dtype,
        microbatch_dim: None,
        ranks: (0..ranks).rev().collect(),
        hierarchy: hierarchy.to_vec(),
        sbp: graphc_ir::sbp::NdSbp(sbp.to_vec()),
    }
}

/// Numbers that differ from rank to rank where the layout is partial, and are the tensor's own otherwise.
fn shard(layout: &Layout, rank: u32) -> HostTensor {
    let rect = layout.rect(rank, 0, 1).expect("a rank of the layout");
    let key = if layout.sbp.is_partial() { u64::from(rank) } else { 99 };
    let stream = RandomStream { seed: 1, key, step: 0 };
    let whole = graphc_ir::types::row_major_strides(&layout.shape);
    let own = graphc_ir::types::row_major_strides(&rect.extent);
    let number = |local: usize| {
        let dims = 0..own.len();
        let place = dims.map(|d| (local / own[d] % rect.extent[d] + rect.origin[d]) * whole[d]);
        let uniform = f64::from(stream.uniform(place.sum::<usize>() as u64));
        if layout.dtype.is_float() { uniform - 0.5 } else { (uniform * 20.0).floor() }
    };
    let data: Vec<f64> = (0..rect.elements()).map(number).collect();
    HostTensor::from_f64(layout.dtype, rect.extent, &data).expect("as many as the shard has")
}

/// Runs a case on all ranks. Returns the shards after it: per tensor and rank.
fn run(case: &Case, direct: bool) -> Vec<Vec<HostTensor>> {
    let patience = Patience { timeout: Duration::from_secs(20), spin: Duration::from_micros(5) };
    let hub = if direct { Hub::new(patience) } else { Hub::new_packed(patience) };
    let ranks = case.changes[0].0.ranks.clone();
    let shards: Vec<Vec<HostTensor>> = std::thread::scope(|scope| {
        let start = |&rank: &u32| {
            let hub = Arc::clone(&hub);
            scope.spawn(move || run_rank(case, rank, &hub))
        };
        let threads: Vec<_> = ranks.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank fails")).collect()
    });
    (0..case.changes.len()).map(|t| shards.iter().map(|rank| rank[t].clone()).collect()).collect()
}

fn run_rank(case: &Case, rank: u32, hub: &Arc<Hub>) -> Vec<HostTensor> {
    let transport = hub.new_transport(rank);
    let direct = transport.is_direct(&[]);
    let in_place = case.in_place;
    let changes: Vec<LayoutChange<'_>> =
        case.changes.iter().map(|(from, to)| LayoutChange { from, to, in_place }).collect();
    let scope = CollectiveScope { rank, axis: case.axis, microbatch: 0, microbatches: 1, direct };
    let stages = plan_collective(case.kind, &changes, scope).expect("it fits");
    let ranks = group_of(&changes, scope).expect("one group");
    let mut group = transport.join_group(3, &ranks).expect("joined once");
    let (arena, inputs, outputs) = memory(case, rank);
    let mut staging: Vec<Vec<u8>> = outputs.iter().map(|place| vec![0; place.bytes]).collect();
    let mut wide: Vec<Vec<f32>> = outputs.iter().map(|_| Vec::new()).collect();
    let (mut packed, mut lists) = (Vec::new(), StageLists::default());
    // Twice, because buffers are used again.
    for _ in 0..2 {
        for (place, (from, _)) in inputs.iter().zip(&case.changes) {
            arena.write(*place).copy_from_slice(shard(from, rank).bytes());
        }
        let mut buffers = Buffers {
            arena: &arena,
            inputs: &inputs,
            outputs: &outputs,
            staging: &mut staging,
            wide: &mut wide,
            packed: &mut packed,
        };
        for stage in &stages {
            stage.run(&mut *group, &mut buffers, &mut lists).expect("nobody fails");
        }
    }
    let result = |(place, (_, to)): (&ArenaRange, &(Layout, Layout))| {
        let extent = to.rect(rank, 0, 1).expect("a rank of the layout").extent;
        HostTensor::new(to.dtype, extent, arena.read(*place).to_vec()).expect("its size")
    };
    outputs.iter().zip(&case.changes).map(result).collect()
}

/// An arena with the inputs and outputs of a rank.
fn memory(case: &Case, rank: u32) -> (HostArena, Vec<ArenaRange>, Vec<ArenaRange>) {
    let mut end = 0;
    let mut place = |layout: &Layout| {
        let rect = layout.rect(rank, 0, 1).expect("a rank of the layout");
        let bytes = rect.elements() * layout.dtype.size();
        let place = ArenaRange { offset: end, bytes };
        end = (end + bytes).next_multiple_of(64);
        place
    };
    let inputs: Vec<ArenaRange> = case.changes.iter().map(|(from, _)| place(from)).collect();
    let outputs: Vec<ArenaRange> = match case.in_place {
        true => case
            .changes
            .iter()
            .zip(&inputs)
            .map(|((_, to), input)| {
                let bytes = to.rect(rank, 0, 1).expect("a rank").elements() * to.dtype.size();
                ArenaRange { offset: input.offset, bytes }
            })
            .collect(),
        false => case.changes.iter().map(|(_, to)| place(to)).collect(),
    };
    (HostArena::new(end as u64).expect("small"), inputs, outputs)
}

/// The serial reference: shards combined in the order of ranks, those of 16-bit numbers as `f32`, and rounded once.
fn reference(from: &Layout, to: &Layout, axis: usize) -> Vec<HostTensor> {
    if matches!(from.dtype, DType::F16 | DType::BF16) {
        let wide = |layout: &Layout| Layout { dtype: DType::F32, ..layout.clone() };
        let round = |sum: &HostTensor| {
            HostTensor::from_f64(from.dtype, sum.ty().shape.clone(), &sum.to_f64()).expect("fits")
        };
        let shard = |layout: &Layout, rank| {
            let own = shard(&Layout { dtype: from.dtype, ..layout.clone() }, rank);
            HostTensor::from_f64(DType::F32, own.ty().shape.clone(), &own.to_f64()).expect("fits")
        };
        return serial(&wide(from), &wide(to), axis, shard).iter().map(round).collect();
    }
    serial(from, to, axis, shard)
}

fn serial(
    from: &Layout,
    to: &Layout,
    axis: usize,
    shard: impl Fn(&Layout, u32) -> HostTensor,
) -> Vec<HostTensor> {
    let expected = |&rank: &u32| {
        let target = to.rect(rank, 0, 1).expect("a rank of the layout");
        let mut data = HostTensor::zeros(to.dtype, target.extent.clone());
        let parts = rectangles::along_axis(from, to, axis, rank, 0, 1).expect("it fits");
        for part in parts {
            let held = from.rect(part.source, 0, 1).expect("a rank of the layout");
            rectangles::Move::new(to.dtype, &part.part, &held, &target).apply(
                part.combine,
                shard(from, part.source).bytes(),
                data.bytes_mut(),
            );
        }
        data
    };
    to.ranks.iter().map(expected).collect()
}

fn check(case: &Case) {
    let expected: Vec<_> =
        case.changes.iter().map(|(from, to)| reference(from, to, case.axis)).collect();
    for direct in [true, false] {
        let found = run(case, direct);
        let (from, to) = &case.changes[0];
        let what = format!("{} {:?} ({}) to ({})", from.ty(), from.hierarchy, from.sbp, to.sbp);
        assert!(found == expected, "direct {direct}: {what}");
    }
}

fn steps(kind: ReduceKind) -> Vec<(BoxingKind, Sbp, Sbp)> {
    let partial = Sbp::Partial(kind);
    vec![
        (BoxingKind::AllReduce, partial, Sbp::Broadcast),
        (BoxingKind::ReduceScatter, partial, Sbp::Split(0)),
        (BoxingKind::ReduceScatter, partial, Sbp::Split(1)),
        (BoxingKind::AllGather, Sbp::Split(0), Sbp::Broadcast),
        (BoxingKind::AllGather, Sbp::Split(1), Sbp::Broadcast),
        (BoxingKind::AllToAll, Sbp::Split(0), Sbp::Split(1)),
        (BoxingKind::AllToAll, Sbp::Split(1), Sbp::Split(0)),
    ]
}

#[test]
fn every_collective_on_one_to_five_ranks_even_uneven_and_empty() {
    let shapes: [&[usize]; 5] = [&[5, 7], &[25, 33], &[8, 0, 4], &[2, 3], &[150, 170]];
    for (ranks, shape) in (1..=5).flat_map(|n| shapes.map(|shape| (n, shape))) {
        for (kind, before, after) in steps(ReduceKind::Sum) {
            let at = |sbp| layout(DType::F32, shape, &[ranks], &[sbp]);
            let changes = vec![(at(before), at(after))];
            check(&Case { kind, axis: 0, changes, in_place: false });
        }
    }
}

#[test]
fn every_element_type_and_way_to_combine() {
    // Floating-point numbers of 8 bits are moved, but never combined.
    let combined = DType::ALL.into_iter().filter(|&dtype| !dtype.is_float8());
    for (dtype, reduce) in combined.flat_map(|d| KINDS.map(|k| (d, k))) {
        for (shape, (kind, before, after)) in [[5, 7], [200, 301]]
            .into_iter()
            .flat_map(|s| steps(reduce)[..3].to_vec().into_iter().map(move |k| (s, k)))
        {
            let at = |sbp| layout(dtype, &shape, &[3], &[sbp]);
            let changes = vec![(at(before), at(after))];
            check(&Case { kind, axis: 0, changes, in_place: false });
        }
    }
}

#[test]
fn several_tensors_go_together_on_either_axis_of_a_mesh() {
    for axis in [0, 1] {
        for (kind, before, after) in steps(ReduceKind::Sum) {
            for scale in [1, 60] {
                let at = |shape: &[usize], sbp| {
                    let mut sbps = [Sbp::Broadcast; 2];
                    sbps[axis] = sbp;
                    layout(DType::F32, shape, &[2, 3], &sbps)
                };
                let shapes = [[5, 7 * scale], [0, 4], [3, 1], [40, 2 * scale]];
                let changes = shapes.map(|s| (at(&s, before), at(&s, after))).to_vec();
                check(&Case { kind, axis, changes, in_place: false });
            }
        }
    }
}

#[test]
fn results_may_take_the_place_of_operands() {
    for (ranks, shape) in (1..=4).flat_map(|n| [[5, 7], [200, 301]].map(|shape| (n, shape))) {
        let types = [DType::F32, DType::BF16, DType::F16];
        let steps = steps(ReduceKind::Sum).into_iter();
        for ((kind, before, after), dtype) in steps.flat_map(|s| types.map(|t| (s, t))) {
            let at = |sbp| layout(dtype, &shape, &[ranks], &[sbp]);
            if kind == BoxingKind::AllGather || kind == BoxingKind::AllToAll {
                continue; // the result is larger than the operand
            }
            let changes = vec![(at(before), at(after))];
            check(&Case { kind, axis: 0, changes, in_place: true });
        }
    }
}

/// Tensors of several types in one exchange: some of them are sums of 16-bit numbers.
#[test]
fn sums_of_halves_and_other_tensors_go_together() {
    for (kind, before, after) in steps(ReduceKind::Sum).drain(..3) {
        for (scale, in_place) in [(1, false), (60, false), (1, true), (60, true)] {
            let of = |dtype, shape: &[usize]| {
                let at = |sbp| layout(dtype, shape, &[4], &[sbp]);
                (at(before), at(after))
            };
            let changes = vec![
                of(DType::BF16, &[5, 7 * scale]),
                of(DType::F32, &[40, 2 * scale]),
                of(DType::F16, &[9, 3 * scale]),
            ];
            check(&Case { kind, axis: 0, changes, in_place });
        }
    }
}

#[test]
fn all_ranks_get_the_same_bits_in_every_run() {
    let at = |sbp| layout(DType::F32, &[300, 100], &[4], &[sbp]);
    let changes = vec![(at(Sbp::PARTIAL), at(Sbp::Broadcast))];
    let case = Case { kind: BoxingKind::AllReduce, axis: 0, changes, in_place: false };
    let first = run(&case, true);
    assert!(first[0].iter().all(|shard| *shard == first[0][0]));
    for _ in 0..5 {
        assert!(run(&case, true) == first);
    }
    let shards = case.changes[0].0.ranks.iter().map(|&rank| shard(&case.changes[0].0, rank));
    let global = ShardedTensor::of_layout(case.changes[0].0.clone(), shards.collect());
    let whole = global.expect("shards of the layout").to_host().expect("one kind");
    assert!(whole == first[0][0], "a channel reduces in the same order");
}

#[test]
fn what_is_no_collective_is_refused() {
    let at = |hierarchy: &[usize], sbp: &str| {
        let sbp: graphc_ir::sbp::NdSbp = sbp.parse().expect("an SBP");
        layout(DType::F32, &[4, 4], hierarchy, &sbp.0)
    };
    let refuse = |from: &Layout, to: &Layout, kind, axis| {
        let change = LayoutChange { from, to, in_place: false };
        let scope = CollectiveScope { rank: 1, axis, microbatch: 0, microbatches: 1, direct: true };
        plan_collective(kind, &[change], scope).expect_err("refused")
    };
    let (p, s) = (at(&[2, 2], "P,S(0)"), at(&[2, 2], "S(0),S(0)"));
    assert!(refuse(&p, &s, BoxingKind::ReduceScatter, 0).contains("have a source"));
    assert!(refuse(&s, &p, BoxingKind::AllReduce, 0).contains("towards a partial layout"));
    let (b, line) = (at(&[2, 2], "B,B"), at(&[4], "P"));
    assert!(refuse(&line, &b, BoxingKind::AllReduce, 0).contains("beyond its axis"));
    assert!(refuse(&p, &b, BoxingKind::AllReduce, 0).contains("beyond its axis"));
    assert!(refuse(&s, &at(&[2, 2], "B,S(0)"), BoxingKind::AllReduce, 0).contains("not partial"));
    assert!(refuse(&p, &b, BoxingKind::AllReduce, 2).contains("lacks"));
}

#[test]
fn a_rank_that_nobody_joins_says_for_whom_it_waits() {
    let patience = Patience { timeout: Duration::from_millis(30), spin: Duration::ZERO };
    let hub = Hub::new(patience);
    let mut group = hub.new_transport(1).join_group(3, &[0, 1, 2]).expect("joined once");
    let arena = HostArena::new(64).expect("small");
    let own = [arena.lend(ArenaRange { offset: 0, bytes: 64 })];
    let lending = group.as_lending().expect("ranks are threads");
    let error = lending.lend(&own, &mut |_| panic!("nobody has lent")).expect_err("nobody joins");
    assert!(error.to_string().contains("for rank 0 to join collective 3"), "{error}");
}
