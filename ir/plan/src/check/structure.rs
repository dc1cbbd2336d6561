//! Checks of each part of a plan by itself: indices, extents, offsets, blocks.

use std::collections::BTreeMap;

use graphc_ir::ids::LayoutId;
use graphc_ir::sbp::Sbp;
use graphc_ir::types::DType;

use super::{ErrorCollector, actors};
use crate::{
    Channel, Layout, PLAN_VERSION, Plan, Program, Rate, Register, RegisterKind, Stream, TensorEntry,
};

/// Bytes that offsets and slots of registers are multiples of: a cache line, and the widest vector.
pub const ALIGNMENT: u64 = 64;

/// Microbatches that a plan may have although nothing is done for each of them.
const FEW_MICROBATCHES: usize = 1024;

/// Actions of a step, of all programs together: what the proof executes, and more than any step has.
const MOST_ACTIONS: u64 = 1 << 26;

/// Checks the whole plan; each level only where what it stands on holds.
pub(super) fn check_structure(plan: &Plan, errors: &mut ErrorCollector) {
    check_header(plan, errors);
    for (index, layout) in plan.layouts.iter().enumerate() {
        check_layout(plan, layout, &format!("layouts[{index}]"), errors);
    }
    for (index, entry) in plan.tensors.iter().enumerate() {
        check_tensor(plan, entry, &format!("tensors[{index}] `{}`", entry.name), errors);
    }
    for (index, channel) in plan.channels.iter().enumerate() {
        let place = format!("channels[{index}] `{}`", channel.tensor);
        check_channel(plan, channel, &place, errors);
    }
    for (rank, entry) in plan.ranks.iter().enumerate() {
        let known = entry.program.index() < plan.programs.len();
        errors
            .require(known, format!("ranks[{rank}]"), || format!("there is no {}", entry.program));
    }
    if !errors.0.is_empty() {
        return;
    }
    let ranks_of = ranks_of(plan);
    for (index, ranks) in ranks_of.iter().enumerate() {
        check_program(plan, index, ranks, errors);
    }
    let bounded = !errors.0.is_empty() || count_actions(plan).is_some();
    errors.require(bounded, "programs", || format!("a step has more than {MOST_ACTIONS} actions"));
}

/// Checks the extent and the place of a tensor of the logical graph: programs do not read them, people do.
fn check_tensor(plan: &Plan, entry: &TensorEntry, place: &str, errors: &mut ErrorCollector) {
    check_size(&entry.shape, entry.dtype, place, errors);
    let beyond = entry.ranks.iter().find(|&&rank| rank as usize >= plan.world_size);
    errors.require(beyond.is_none(), place, || {
        format!("lies on rank {} of {} ranks", beyond.copied().unwrap_or_default(), plan.world_size)
    });
}

/// The ranks of each program.
pub(super) fn ranks_of(plan: &Plan) -> Vec<Vec<u32>> {
    let mut ranks = vec![Vec::new(); plan.programs.len()];
    for (rank, entry) in plan.ranks.iter().enumerate() {
        ranks[entry.program.index()].push(rank as u32);
    }
    ranks
}

/// The actions of a step of all programs; `None` where they are too many, or blocks are missing.
fn count_actions(plan: &Plan) -> Option<u64> {
    let mut actions = 0u64;
    for stream in plan.programs.iter().flat_map(|program| &program.streams) {
        for item in &stream.order {
            actions += stream.blocks.get(item.block as usize)?.len() as u64;
            if actions > MOST_ACTIONS {
                return None;
            }
        }
    }
    Some(actions)
}

fn check_header(plan: &Plan, errors: &mut ErrorCollector) {
    let world = plan.mesh.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
    errors.require(plan.version == PLAN_VERSION, "version", || {
        format!("is {}, this build knows {PLAN_VERSION}: compile the model again", plan.version)
    });
    errors.require(world == Some(plan.world_size), "world_size", || {
        format!("is {}, but the mesh is {:?}", plan.world_size, plan.mesh)
    });
    errors.require(plan.ranks.len() == plan.world_size, "ranks", || {
        format!("has {} entries for {} ranks", plan.ranks.len(), plan.world_size)
    });
    errors.require(plan.microbatches > 0, "microbatches", || "is 0".into());
    // Whoever acts for every microbatch is listed for each.
    let streams = plan.programs.iter().flat_map(|program| &program.streams);
    let most = streams.map(|stream| stream.order.len()).max().unwrap_or(0).max(FEW_MICROBATCHES);
    errors.require(plan.microbatches <= most, "microbatches", || {
        format!("is {}, but no program does anything so often", plan.microbatches)
    });
    errors.require(plan.stages > 0 && plan.stages <= plan.world_size.max(1) + 64, "stages", || {
        format!("is {}", plan.stages)
    });
    check_peaks(plan, errors);
    let levels = &plan.cluster.levels;
    let bounded = levels.iter().rev().skip(1).all(|level| level.size > 0);
    errors.require(bounded, "cluster.levels", || "only the last may be without a size".into());
}

/// Checks that the predicted memory of each program is its arena.
fn check_peaks(plan: &Plan, errors: &mut ErrorCollector) {
    let peaks = &plan.predicted.peak_memory_bytes;
    errors.require(peaks.len() == plan.programs.len(), "predicted.peak_memory_bytes", || {
        format!("has {} entries for {} programs", peaks.len(), plan.programs.len())
    });
    for (index, (program, &peak)) in plan.programs.iter().zip(peaks).enumerate() {
        errors.require(program.arena_bytes == peak, format!("programs[{index}]"), || {
            format!("has an arena of {} bytes, but {peak} are predicted", program.arena_bytes)
        });
    }
}

fn check_layout(plan: &Plan, layout: &Layout, place: &str, errors: &mut ErrorCollector) {
    let size = layout.hierarchy.iter().try_fold(1usize, |size, &extent| size.checked_mul(extent));
    let known = |rank: &u32| (*rank as usize) < plan.world_size;
    let mut distinct = layout.ranks.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let holds = size == Some(layout.ranks.len())
        && !layout.ranks.is_empty()
        && layout.ranks.iter().all(known)
        && distinct.len() == layout.ranks.len();
    errors.require(holds, place, || {
        let count = layout.ranks.len();
        let first = &layout.ranks[..count.min(16)];
        let hierarchy = &layout.hierarchy;
        format!("its {count} ranks {first:?} .. are no mesh {hierarchy:?} of this job")
    });
    let splits = |sbp: &Sbp| !matches!(sbp, Sbp::Split(dim) if *dim >= layout.shape.len());
    let fits = layout.sbp.0.len() == layout.hierarchy.len() && layout.sbp.0.iter().all(splits);
    errors.require(fits, place, || {
        format!("{} is no layout of {:?} over {:?}", layout.sbp, layout.shape, layout.hierarchy)
    });
    let cut = layout.microbatch_dim;
    let divides = cut.is_none_or(|dim| {
        layout.shape.get(dim).is_some_and(|&n| n.is_multiple_of(plan.microbatches.max(1)))
    });
    errors.require(divides, place, || {
        format!("{} microbatches do not cut dim {cut:?} of {:?}", plan.microbatches, layout.shape)
    });
    check_size(&layout.shape, layout.dtype, place, errors);
}

fn check_size(shape: &[usize], dtype: DType, place: &str, errors: &mut ErrorCollector) {
    // A dim of extent 0 does not make the others harmless: strides are products of these.
    let size = |bytes: usize, &extent: &usize| bytes.checked_mul(extent.max(1));
    let bytes = shape.iter().try_fold(dtype.size(), size);
    let sensible = bytes.is_some_and(|bytes| bytes < usize::MAX / 4);
    errors.require(sensible, place, || format!("{shape:?} is larger than any memory"));
}

fn check_channel(plan: &Plan, channel: &Channel, place: &str, errors: &mut ErrorCollector) {
    let layout = |id: LayoutId| plan.layouts.get(id.index());
    let (Some(from), Some(to)) = (layout(channel.from), layout(channel.to)) else {
        errors.add(place, format!("layout {} or {} does not exist", channel.from.0, channel.to.0));
        return;
    };
    let same = from.shape == to.shape
        && from.dtype == to.dtype
        && from.microbatch_dim == to.microbatch_dim;
    errors.require(same, place, || "the two layouts are of different tensors".into());
    // Two steps may be under way.
    let times = if channel.rate == Rate::Step { 1 } else { plan.microbatches };
    let most = times.saturating_mul(2);
    errors.require((1..=most).contains(&(channel.slots as usize)), place, || {
        format!("has {} slots, of 1 to {most}", channel.slots)
    });
}

fn check_program(plan: &Plan, index: usize, ranks: &[u32], errors: &mut ErrorCollector) {
    let place = format!("programs[{index}]");
    let program = &plan.programs[index];
    errors.require(!ranks.is_empty(), &place, || "no rank runs it".into());
    errors.require(program.stage < plan.stages, &place, || format!("stage {}", program.stage));
    errors.require(!program.streams.is_empty(), &place, || "it has no stream".into());
    check_arena(program, &place, errors);
    let mut members = LayoutMembers::default();
    for (index, register) in program.registers.iter().enumerate() {
        let place = format!("{place}.registers[{index}] `{}`", register.name);
        check_register(plan, (program, index), (ranks, &mut members), &place, errors);
    }
    for (index, actor) in program.actors.iter().enumerate() {
        let place = format!("{place}.actors[{index}] `{}`", actor.name);
        actors::check_references(plan, program, actor, &place, errors);
    }
    // What follows takes what is named here to be there.
    if !errors.0.is_empty() {
        return;
    }
    for (index, actor) in program.actors.iter().enumerate() {
        let place = format!("{place}.actors[{index}] `{}`", actor.name);
        actors::check_actor(plan, program, actor, &place, errors);
    }
    check_producers(program, &place, errors);
    check_blocks(plan, program, &place, errors);
}

/// An arena is as large as its registers need.
fn check_arena(program: &Program, place: &str, errors: &mut ErrorCollector) {
    let ends = program.registers.iter().map(|register| register_end(register).unwrap_or(0));
    let needed = ends.max().unwrap_or(0);
    errors.require(program.arena_bytes <= needed.next_multiple_of(ALIGNMENT), place, || {
        format!("its arena has {} bytes, its registers need {needed}", program.arena_bytes)
    });
}

/// Returns one past the last byte of a register; `None` beyond the address space.
fn register_end(register: &Register) -> Option<u64> {
    let size = register.slot_bytes.checked_mul(u64::from(register.slots))?;
    size.checked_add(register.offset).filter(|&end| end < u64::MAX / 4)
}

/// The place of each rank in each layout, as far as it was asked.
#[derive(Default)]
struct LayoutMembers(BTreeMap<LayoutId, Vec<Option<u32>>>);

impl LayoutMembers {
    fn positions_in(&mut self, plan: &Plan, layout: LayoutId) -> &[Option<u32>] {
        self.0.entry(layout).or_insert_with(|| {
            let mut members = vec![None; plan.world_size];
            for (position, &rank) in plan.layouts[layout.index()].ranks.iter().enumerate() {
                members[rank as usize] = Some(position as u32);
            }
            members
        })
    }
}

fn check_register(
    plan: &Plan,
    (program, index): (&Program, usize),
    (ranks, members): (&[u32], &mut LayoutMembers),
    place: &str,
    errors: &mut ErrorCollector,
) {
    let register = &program.registers[index];
    let Some(layout) = plan.layouts.get(register.layout.index()) else {
        errors.add(place, format!("there is no layout {}", register.layout.0));
        return;
    };
    // Where every cut is even one look suffices for all.
    let even = layout.uniform_extents(plan.microbatches).as_ref() == Some(&register.shape);
    let known = members.positions_in(plan, register.layout);
    let suspects = ranks.iter().filter(|&&rank| !even || known[rank as usize].is_none());
    for &rank in suspects {
        let last = plan.microbatches - 1;
        for microbatch in [0, last] {
            let rect = |at: u32| layout.rect_at(at as usize, microbatch, plan.microbatches);
            let extent = known[rank as usize].map(|at| rect(at).extent);
            if extent.as_ref() != Some(&register.shape) {
                errors.add(
                    place,
                    match extent {
                        Some(extent) => {
                            format!("is {:?}, rank {rank} holds {extent:?}", register.shape)
                        }
                        None => format!("rank {rank} is not of its layout"),
                    },
                );
                return;
            }
        }
    }
    let bytes = (register.shape.iter().product::<usize>() * layout.dtype.size()) as u64;
    let aligned =
        register.slot_bytes.is_multiple_of(ALIGNMENT) && register.offset.is_multiple_of(ALIGNMENT);
    errors.require(register.slot_bytes >= bytes && aligned, place, || {
        format!("slots of {} bytes at {} cannot hold {bytes}", register.slot_bytes, register.offset)
    });
    let end = register_end(register);
    let inside = end.is_some_and(|end| end <= program.arena_bytes);
    errors.require(inside, place, || {
        format!("ends at {end:?}, behind the arena's {} bytes", program.arena_bytes)
    });
    let variable = matches!(register.kind, RegisterKind::Variable { .. });
    let most = if variable || register.rate == Rate::Step { 1 } else { plan.microbatches };
    errors.require(register.slots > 0 && register.slots as usize <= most, place, || {
        format!("has {} slots, of 1 to {most}", register.slots)
    });
    errors.require(!variable || register.rate == Rate::Step, place, || {
        "is a variable, but not kept for the step".into()
    });
    let cut = layout.microbatch_dim.is_some() && plan.microbatches > 1;
    errors.require(!cut || register.rate == Rate::Microbatch, place, || {
        "holds a part of each microbatch, but is filled once a step".into()
    });
    let Some(shared) = register.shares else { return };
    let same = |other: &Register| {
        (other.offset, other.slot_bytes, other.slots)
            == (register.offset, register.slot_bytes, register.slots)
    };
    let earlier = program.registers[..index].get(shared.index());
    errors.require(earlier.is_some_and(same), place, || {
        format!("shares {shared}, which lies elsewhere or is no register before it")
    });
}

/// Checks that every activation is filled by one actor, and every variable updated by one at most.
fn check_producers(program: &Program, place: &str, errors: &mut ErrorCollector) {
    let mut fills = vec![0; program.registers.len()];
    let mut updates = vec![0; program.registers.len()];
    for actor in &program.actors {
        actor.outputs.iter().for_each(|output| fills[output.index()] += 1);
        actor.updates.iter().for_each(|update| updates[update.index()] += 1);
    }
    for (index, register) in program.registers.iter().enumerate() {
        let place = format!("{place}.registers[{index}] `{}`", register.name);
        let holds = match register.kind {
            RegisterKind::Variable { .. } => fills[index] == 0 && updates[index] <= 1,
            RegisterKind::Activation => fills[index] == 1 && updates[index] == 0,
        };
        errors.require(holds, place, || {
            format!("{} actors fill it and {} update it", fills[index], updates[index])
        });
    }
}

/// Checks that every actor stands in one block; blocks run once a step, or once for each microbatch.
fn check_blocks(plan: &Plan, program: &Program, place: &str, errors: &mut ErrorCollector) {
    let mut stands = vec![0; program.actors.len()];
    for (index, stream) in program.streams.iter().enumerate() {
        let place = format!("{place}.streams[{index}]");
        for actor in stream.blocks.iter().flatten() {
            match stands.get_mut(actor.index()) {
                Some(count) => *count += 1,
                None => errors.add(&place, format!("there is no actor {actor}")),
            }
        }
        if errors.0.is_empty() {
            check_block_order(plan, program, stream, &place, errors);
        }
    }
    for (actor, _) in stands.iter().enumerate().filter(|(_, count)| **count != 1) {
        let name = &program.actors[actor].name;
        let message = format!("stands {} times in blocks", stands[actor]);
        errors.add(format!("{place}.actors[{actor}] `{name}`"), message);
    }
}

fn check_block_order(
    plan: &Plan,
    program: &Program,
    stream: &Stream,
    place: &str,
    errors: &mut ErrorCollector,
) {
    let mut runs: Vec<Vec<u32>> = vec![Vec::new(); stream.blocks.len()];
    for item in &stream.order {
        match runs.get_mut(item.block as usize) {
            Some(runs) => runs.push(item.microbatch),
            None => errors.add(place, format!("there is no block {}", item.block)),
        }
    }
    for (block, actors) in stream.blocks.iter().enumerate() {
        let rates: Vec<Rate> = actors.iter().map(|a| program.actors[a.index()].rate).collect();
        let place = format!("{place}.blocks[{block}]");
        let Some(&rate) = rates.first() else {
            errors.add(place, "is empty");
            continue;
        };
        errors.require(rates.iter().all(|&r| r == rate), &place, || "rates differ".into());
        let times = if rate == Rate::Step { 1 } else { plan.microbatches };
        // In their order: registers count their contents, and ranks meet for one microbatch after the other.
        let runs = &runs[block];
        let each = runs.len() == times && runs.iter().enumerate().all(|(i, &m)| m as usize == i);
        errors.require(each, &place, || {
            format!("runs for microbatches {:?} .. of 0..{times}", &runs[..runs.len().min(16)])
        });
    }
}
