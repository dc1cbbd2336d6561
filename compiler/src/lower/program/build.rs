//! Builds programs: each is one rank's part of the job, with registers at offsets, actors and streams.

use std::collections::BTreeMap;

use graphc_ir::ids::{ActorId, RegisterId};
use graphc_plan::check::ALIGNMENT;
use graphc_plan::streams::Known;
use graphc_plan::{Actor, Layout, Program, Register, RegisterKind, Stream, StreamItem};

use crate::lower::RunAhead;
use crate::lower::memory::flow::Flow;
use crate::lower::memory::in_place::{RegisterGroup, Sharing};
use crate::lower::memory::lifetimes::{self, count_slots, find_lives};
use crate::lower::memory::places::Places;
use crate::lower::memory::reuse::{self, ReuseClock};
use crate::lower::memory::together::Together;
use crate::lower::order::background;
use crate::lower::order::block_clock::BlockActors;
use crate::lower::order::schedule::{BlockKey, BlockSchedule, block_key};
use crate::lower::tasks::task_graph::{BufferId, TaskGraph, TaskId};

/// The part of the job in which a rank takes part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::lower) struct ProgramPart {
    /// Its stage.
    pub stage: usize,
    /// Its tasks, in order.
    pub tasks: Vec<TaskId>,
    /// Its buffers: variables, then the others by first use.
    pub buffers: Vec<BufferId>,
    /// The extents of its shard of each buffer.
    pub shapes: Vec<Vec<usize>>,
}

/// The context in which a program is built from a part.
pub(in crate::lower) struct Context<'a> {
    /// The job.
    pub graph: &'a TaskGraph,
    /// The order of blocks.
    pub schedule: &'a BlockSchedule,
    /// Whether registers get slots and offsets.
    pub placed: bool,
    /// Whether there is a second stream.
    pub overlap: bool,
    /// How far the streams may run ahead of each other.
    pub ahead: RunAhead,
    /// Bytes of a device's memory.
    pub memory: u64,
}

/// The divisor of an arena's bytes that gives the most it may grow by, so that a device can do more by one launch: sums of gradients, which are much
/// smaller than the tensors that are summed, then have places of their own.
const FOR_LAUNCHES: u64 = 128;

/// Builds the program of a part.
pub(in crate::lower) fn build_program(cx: &Context<'_>, part: &ProgramPart) -> Program {
    let registers = build_registers(cx.graph, part);
    let place: BTreeMap<BufferId, RegisterId> =
        part.buffers.iter().enumerate().map(|(i, &buffer)| (buffer, RegisterId::new(i))).collect();
    let mut actors: Vec<Actor> =
        part.tasks.iter().map(|&task| build_actor(cx, task, &place)).collect();
    let (streams, order) = build_streams(cx, part, &mut actors);
    let mut program =
        Program { stage: part.stage, arena_bytes: 0, live_bytes: 0, registers, actors, streams };
    if cx.placed || program.streams.len() > 1 {
        place_registers(cx, part, &mut program, &order);
    }
    program
}

fn build_registers(graph: &TaskGraph, part: &ProgramPart) -> Vec<Register> {
    let register = |(&id, shape): (&BufferId, &Vec<usize>)| {
        let buffer = &graph.buffers[id.0];
        let bytes =
            shape.iter().product::<usize>() * graph.layouts[buffer.layout.index()].dtype.size();
        let kind = match &buffer.variable {
            None => RegisterKind::Activation,
            Some(variable) => RegisterKind::Variable {
                name: variable.name.clone(),
                init: variable.init.clone(),
                role: variable.role,
            },
        };
        Register {
            name: buffer.name.clone(),
            layout: buffer.layout,
            shape: shape.clone(),
            offset: 0,
            slot_bytes: (bytes as u64).next_multiple_of(ALIGNMENT),
            slots: 1,
            rate: buffer.rate,
            kind,
            shares: None,
        }
    };
    part.buffers.iter().zip(&part.shapes).map(register).collect()
}

fn build_actor(cx: &Context<'_>, id: TaskId, place: &BTreeMap<BufferId, RegisterId>) -> Actor {
    let task = &cx.graph.tasks[id.0];
    let places = |buffers: &[BufferId]| -> Vec<RegisterId> {
        buffers.iter().filter_map(|buffer| place.get(buffer).copied()).collect()
    };
    Actor {
        name: task.name.clone(),
        action: task.action.clone(),
        inputs: places(&task.inputs),
        outputs: places(&task.outputs),
        updates: places(&task.updates),
        after: None,
        rate: task.rate,
        seconds: task.seconds,
        flops: task.flops,
        bytes: task.bytes,
    }
}

/// Builds the streams, and returns them with the order of all actions as if there were one stream. Sets the actors for which others wait.
fn build_streams(
    cx: &Context<'_>,
    part: &ProgramPart,
    actors: &mut [Actor],
) -> (Vec<Stream>, Vec<lifetimes::StepAction>) {
    let mut blocks: BTreeMap<BlockKey, Vec<usize>> = BTreeMap::new();
    for (actor, task) in part.tasks.iter().enumerate() {
        blocks.entry(block_key(&cx.graph.tasks[task.0])).or_default().push(actor);
    }
    let items: Vec<(BlockKey, u32)> = cx.schedule.order_blocks(part.stage);
    let mut order = Vec::new();
    for (block, microbatch) in &items {
        let actions = blocks.get(block).into_iter().flatten();
        let microbatch = *microbatch as usize;
        order.extend(actions.map(|&actor| lifetimes::StepAction { actor, microbatch }));
    }
    let in_background =
        |actor: usize| cx.overlap && cx.graph.tasks[part.tasks[actor].0].background.is_some();
    if !(0..actors.len()).any(in_background) {
        return (vec![build_stream(&blocks, &items, |_| true)], order);
    }
    for block in blocks.values() {
        let tasks = block.iter().map(|&actor| &cx.graph.tasks[part.tasks[actor].0]).collect();
        for (place, before) in
            background::find_waits(&BlockActors { tasks, graph: cx.graph, ahead: cx.ahead })
                .into_iter()
                .enumerate()
        {
            actors[block[place]].after = before.map(|before| ActorId::new(block[before]));
        }
    }
    let first = build_stream(&blocks, &items, |actor| !in_background(actor));
    (vec![first, build_stream(&blocks, &items, in_background)], order)
}

fn build_stream(
    blocks: &BTreeMap<BlockKey, Vec<usize>>,
    items: &[(BlockKey, u32)],
    takes: impl Fn(usize) -> bool,
) -> Stream {
    let mut stream = Stream { blocks: Vec::new(), order: Vec::new() };
    let mut index: BTreeMap<BlockKey, u32> = BTreeMap::new();
    for (key, actors) in blocks {
        let taken = actors.iter().filter(|&&actor| takes(actor)).map(|&actor| ActorId::new(actor));
        let taken: Vec<ActorId> = taken.collect();
        if !taken.is_empty() {
            index.insert(*key, stream.blocks.len() as u32);
            stream.blocks.push(taken);
        }
    }
    let item = |(key, microbatch): &(BlockKey, u32)| {
        Some(StreamItem { block: *index.get(key)?, microbatch: *microbatch })
    };
    stream.order = items.iter().filter_map(item).collect();
    stream
}

/// Gives registers their slots and, if the program is to be placed, their offsets.
fn place_registers(
    cx: &Context<'_>,
    part: &ProgramPart,
    program: &mut Program,
    order: &[lifetimes::StepAction],
) {
    let graph = cx.graph;
    let streams = stream_of(program);
    let lives =
        find_lives(&program.registers, &program.actors, order, &streams, graph.microbatches);
    if !cx.placed {
        for (register, lives) in program.registers.iter_mut().zip(&lives) {
            register.slots = count_slots(lives);
        }
        return;
    }
    // Registers that share memory may get more slots than each would have: nobody waits for them here.
    program.registers.iter_mut().for_each(|register| register.slots = u32::MAX);
    let flow = Flow::new(order, &streams, Known::from_program(program));
    let sharing = Sharing {
        registers: &program.registers,
        actors: &program.actors,
        layouts: &graph.layouts,
        order,
        lives: &lives,
        flow: &flow,
        microbatches: graph.microbatches,
    };
    let (mut groups, shares) = sharing.find_groups();
    let flow = with_slots(program, &mut groups, (order, &streams));
    let waits = cx.ahead.is_short() && flow.is_double() && reuse::may_wait(&program.actors);
    let places = Places {
        registers: &program.registers,
        flow: &flow,
        starts: find_block_starts(program, order),
        within: cx.ahead.is_short().then_some(cx.memory),
        clock: waits
            .then(|| ReuseClock::new(order.iter().map(|action| part.tasks[action.actor]), graph)),
    };
    let mut arena = places.find_arena(&groups);
    let together = Together {
        registers: &program.registers,
        actors: &program.actors,
        order,
        stream_of: &streams,
    };
    let most = arena.bytes.max(cx.memory.min(arena.bytes + arena.bytes / FOR_LAUNCHES));
    if let Some(wished) =
        together.lengthen_lives(&groups, most).map(|groups| places.find_arena(&groups))
        && wished.bytes <= most
    {
        (arena.offsets, arena.bytes) = (wished.offsets, wished.bytes);
    }
    if waits {
        let contents = places.list_contents(&groups, &arena.offsets);
        reuse::add_waits(contents, order, &flow, &mut program.actors);
    }
    for (group, &offset) in groups.iter().zip(&arena.offsets) {
        for &member in &group.members {
            program.registers[member].offset = offset;
        }
    }
    for (register, shares) in program.registers.iter_mut().zip(shares) {
        register.shares = shares;
    }
    program.arena_bytes = arena.bytes;
    program.live_bytes = arena.live_bytes;
}

/// Gives registers the slots of their groups, and a group one more slot as long as it is not known that what was in a slot before has ended. Returns
/// what streams then know of each other.
fn with_slots(
    program: &mut Program,
    groups: &mut [RegisterGroup],
    (order, streams): (&[lifetimes::StepAction], &[usize]),
) -> Flow {
    loop {
        for group in &*groups {
            group.members.iter().for_each(|&member| program.registers[member].slots = group.slots);
        }
        let flow = Flow::new(order, streams, Known::from_program(program));
        let mut unknown = groups.iter_mut().filter(|group| !group.is_known(&flow)).peekable();
        if unknown.peek().is_none() {
            return flow;
        }
        unknown.for_each(|group| group.slots += 1);
    }
}

/// Returns the places where blocks begin in the order, the last one past all. A block begins where the microbatch changes, or the order comes back to
/// an actor of the block.
fn find_block_starts(program: &Program, order: &[lifetimes::StepAction]) -> Vec<usize> {
    let mut starts = vec![0];
    let mut last_seen = vec![usize::MAX; program.actors.len()];
    for (place, action) in order.iter().enumerate() {
        let begin = starts[starts.len() - 1];
        let again = last_seen[action.actor] != usize::MAX && last_seen[action.actor] >= begin;
        let changes = place > 0 && order[place - 1].microbatch != action.microbatch;
        if place > begin && (changes || again) {
            starts.push(place);
        }
        last_seen[action.actor] = place;
    }
    starts.push(order.len());
    starts
}

/// Returns the stream of each actor.
fn stream_of(program: &Program) -> Vec<usize> {
    let mut streams = vec![0; program.actors.len()];
    for (stream, actors) in program.streams.iter().enumerate() {
        for actor in actors.blocks.iter().flatten() {
            streams[actor.index()] = stream;
        }
    }
    streams
}

/// Returns the different parts, and the index of each rank's part. Ranks that take part in the same tasks and hold shards of the same extents have
/// the same part.
pub(in crate::lower) fn find_parts(
    graph: &TaskGraph,
    world: usize,
    stages: usize,
) -> (Vec<ProgramPart>, Vec<usize>) {
    let shapes = ShardShapes::new(graph);
    let mut known: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
    let (mut firsts, mut part_of) = (Vec::new(), Vec::new());
    for (rank, kind) in find_kinds(graph, &shapes, world, stages).into_iter().enumerate() {
        part_of.push(*known.entry(kind).or_insert_with(|| {
            firsts.push(rank);
            firsts.len() - 1
        }));
    }
    let mut tasks: Vec<Vec<TaskId>> = vec![Vec::new(); firsts.len()];
    let mut variables: Vec<Vec<BufferId>> = vec![Vec::new(); firsts.len()];
    for (index, task) in graph.tasks.iter().enumerate() {
        for (part, _) in
            firsts.iter().enumerate().filter(|(_, rank)| contains_rank(&task.ranks, **rank))
        {
            tasks[part].push(TaskId(index));
        }
    }
    for (index, buffer) in graph.buffers.iter().enumerate().filter(|(_, b)| b.variable.is_some()) {
        let ranks = &graph.layouts[buffer.layout.index()].ranks;
        for (part, _) in firsts.iter().enumerate().filter(|(_, rank)| contains_rank(ranks, **rank))
        {
            variables[part].push(BufferId(index));
        }
    }
    let parts = firsts.into_iter().zip(tasks.into_iter().zip(variables));
    let parts = parts.map(|(rank, (tasks, variables))| {
        let first = tasks.iter().map(|task| graph.tasks[task.0].stage).min();
        let stage = first.unwrap_or(rank * stages / world);
        let buffers = list_buffers(graph, rank as u32, &tasks, variables);
        let shapes =
            buffers.iter().map(|&buffer| shapes.shard_shape(graph, buffer, rank as u32)).collect();
        ProgramPart { stage, tasks, buffers, shapes }
    });
    (parts.collect(), part_of)
}

fn contains_rank(ranks: &[u32], rank: usize) -> bool {
    // Ranks of a mesh mostly ascend.
    let first = ranks.first().map_or(0, |&first| first as usize);
    let rank = rank as u32;
    ranks.get((rank as usize).wrapping_sub(first)) == Some(&rank) || ranks.contains(&rank)
}

/// Returns, for each rank, a key that tells its part from others: the meshes to which it belongs, its stage if it has nothing to do, and the extents
/// of its shards in layouts that are not split evenly.
fn find_kinds(
    graph: &TaskGraph,
    shapes: &ShardShapes,
    world: usize,
    stages: usize,
) -> Vec<Vec<usize>> {
    let mut meshes: BTreeMap<&[u32], usize> = BTreeMap::new();
    let of_layouts = graph.layouts.iter().map(|layout| &layout.ranks);
    for ranks in graph.tasks.iter().map(|task| &task.ranks).chain(of_layouts) {
        let next = meshes.len();
        meshes.entry(ranks).or_insert(next);
    }
    let mut kinds: Vec<Vec<usize>> = (0..world).map(|rank| vec![rank * stages / world]).collect();
    for (ranks, mesh) in meshes {
        for &rank in ranks {
            kinds[rank as usize].push(mesh);
        }
    }
    for (layout, of_rank) in shapes.0.iter().enumerate() {
        let ShardExtents::Different(of_rank) = of_rank else { continue };
        for (&rank, extents) in of_rank {
            let kind = &mut kinds[rank as usize];
            kind.push(usize::MAX - layout);
            kind.extend(extents);
        }
    }
    kinds
}

/// Returns the buffers that tasks touch on a rank, each once: the variables, and then the others in order of first use.
fn list_buffers(
    graph: &TaskGraph,
    rank: u32,
    tasks: &[TaskId],
    variables: Vec<BufferId>,
) -> Vec<BufferId> {
    let mut known = vec![false; graph.buffers.len()];
    let mut buffers = variables;
    buffers.iter().for_each(|buffer| known[buffer.0] = true);
    for task in tasks.iter().map(|task| &graph.tasks[task.0]) {
        for &buffer in task.inputs.iter().chain(&task.outputs).chain(&task.updates) {
            if !std::mem::replace(&mut known[buffer.0], true) {
                buffers.push(buffer);
            }
        }
    }
    debug_assert!(buffers.iter().all(|buffer| {
        graph.layouts[graph.buffers[buffer.0].layout.index()].ranks.contains(&rank)
    }));
    buffers
}

/// The extents of every shard of every layout.
struct ShardShapes(Vec<ShardExtents>);

enum ShardExtents {
    /// The extents on every rank.
    Equal(Vec<usize>),
    /// The extents by rank.
    Different(BTreeMap<u32, Vec<usize>>),
}

impl ShardShapes {
    fn new(graph: &TaskGraph) -> Self {
        let of = |layout: &Layout| match layout.uniform_extents(graph.microbatches) {
            Some(extents) => ShardExtents::Equal(extents),
            None => {
                let rect = |position| layout.rect_at(position, 0, graph.microbatches);
                let ranks = layout.ranks.iter().enumerate();
                let extents = ranks.map(|(position, &rank)| (rank, rect(position).extent));
                ShardExtents::Different(extents.collect())
            }
        };
        Self(graph.layouts.iter().map(of).collect())
    }

    fn shard_shape(&self, graph: &TaskGraph, buffer: BufferId, rank: u32) -> Vec<usize> {
        match &self.0[graph.buffers[buffer.0].layout.index()] {
            ShardExtents::Equal(extents) => extents.clone(),
            ShardExtents::Different(of_rank) => of_rank.get(&rank).cloned().unwrap_or_default(),
        }
    }
}
