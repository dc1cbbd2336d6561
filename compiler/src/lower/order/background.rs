//! The choice of what runs on the second stream of a rank, beside kernels: communication that nothing waits for at once.
//!
//! There is a second stream only where the machines run communication beside kernels (`Device::overlap`, as GPUs do). On
//! it are:
//!
//! - Gathers of variables from their layout at rest. They depend on nothing, and may go ahead of their readers. Casts of
//!   variables that are gathered in half precision go with them.
//! - Collectives whose results only accumulations and the update phase read, that is gradients. They stand right behind
//!   what they reduce, not in the update phase, so they begin while the backward pass goes on. Accumulations of their
//!   results go with them, and casts of gradients that are reduced in half precision.
//! - Collectives of the update phase, which bring variables to their layout.
//!
//! All else stays among the kernels of the first stream, such as what tensor parallelism reduces and what stages send
//! each other. Computing waits for it at once, so it gains nothing on another stream, and would queue there behind
//! gradients. Both streams take their part of the one order of all communication, whose numbers ascend on each.
//!
//! What is made ahead takes memory, so one stream runs ahead of the other only so far ([`find_waits`]). A gather waits until
//! computing is near its first reader: so near that it is there in time even if the longest other communication has just begun. Computing waits for gradients that are scattered, as these free memory.
//!
//! A rank on a processor has one stream. Its cores are busy with kernels, and a second thread would only add a hand-over
//! of 10 us. There, collectives that scatter gradients of 4 MiB and more stand right behind what makes these
//! ([`scatter_early`]), so that they are not whole until the updates. Smaller gradients wait for the update phase and
//! share messages (`buckets`).

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::op::Op;
use graphc_plan::{Action, BoxingKind};

use super::block_clock::{BlockActors, BlockClock};
use super::in_flight::{Hold, scatters_gradient};
use crate::boxing::SCATTERED_BYTES;
use crate::decisions::Phase;
use crate::lower::RunAhead;
use crate::lower::tasks::task_graph::{Background, BufferId, Task, TaskGraph, TaskId};

/// Moves collectives that scatter large gradients, and those before them, right behind the tasks whose results they reduce. This is for jobs with one
/// stream: whole gradients are then not kept until the update phase. Tasks are sorted.
pub(in crate::lower) fn scatter_early(graph: &mut TaskGraph) {
    let (late, readers) = (find_late_boxing(graph), graph.readers());
    let mut early = vec![false; graph.tasks.len()];
    for task in (0..graph.tasks.len()).rev() {
        let scatters = matches!(
            graph.tasks[task].action,
            Action::Collective { kind: BoxingKind::ReduceScatter, .. }
        );
        let mut of_task = graph.tasks[task].outputs.iter().flat_map(|output| &readers[output.0]);
        let mut leads =
            || is_boxing(&graph.tasks[task]) && of_task.any(|&TaskId(reader)| early[reader]);
        early[task] = late[task] && is_large(graph, task) && (scatters || leads());
    }
    for (task, early) in early.into_iter().enumerate() {
        if early && find_origin(graph, task).is_some() {
            graph.tasks[task].background = Some(Background::Gradient);
        }
    }
    move_to_origins(graph, |graph, task| graph.tasks[task].background.is_some());
}

fn is_large(graph: &TaskGraph, task: usize) -> bool {
    let layouts =
        graph.tasks[task].inputs.iter().map(|input| graph.buffers[input.0].layout.index());
    let bytes = layouts.map(|at| {
        let layout = &graph.layouts[at];
        layout.shape.iter().product::<usize>() * layout.dtype.size()
    });
    bytes.max().unwrap_or(0) >= SCATTERED_BYTES
}

/// Moves boxing of the update phase behind the tasks from which its tensors come.
fn move_to_origins(graph: &mut TaskGraph, moves: impl Fn(&TaskGraph, usize) -> bool) {
    for task in 0..graph.tasks.len() {
        if let Some((phase, anchor)) = find_origin(graph, task).filter(|_| moves(graph, task)) {
            (graph.tasks[task].phase, graph.tasks[task].anchor) = (phase, anchor);
        }
    }
}

/// Marks the tasks of the second stream, and moves gradients' collectives behind the tasks whose results they reduce. Tasks are sorted.
pub(in crate::lower) fn mark_background(graph: &mut TaskGraph) {
    let (gathers, late) = (find_gathers(graph), find_late_boxing(graph));
    let ahead = casts_ahead(graph, &gathers);
    for task in 0..graph.tasks.len() {
        let collective = matches!(graph.tasks[task].action, Action::Collective { .. });
        let kind = match (gathers[task], late[task]) {
            (true, _) if collective || ahead[task] => Some(Background::Gather),
            (false, true) if find_origin(graph, task).is_none() && collective => {
                Some(Background::Home)
            }
            (false, true) if collective || follows_gradient(graph, task) => {
                Some(Background::Gradient)
            }
            (false, _) if follows_gradient(graph, task) => Some(Background::Gradient),
            _ => None,
        };
        graph.tasks[task].background = kind;
    }
    move_to_origins(graph, |_, _| true);
}

/// Whether a task accumulates, casts or slices the result of a gradient's collective.
fn follows_gradient(graph: &TaskGraph, task: usize) -> bool {
    let of = &graph.tasks[task];
    let cheap = matches!(of.action, Action::Accumulate | Action::Local { .. }) || is_cast(of);
    cheap
        && find_producers(graph, task)
            .any(|before| graph.tasks[before].background == Some(Background::Gradient))
}

fn find_producers(graph: &TaskGraph, task: usize) -> impl Iterator<Item = usize> + '_ {
    let inputs = graph.tasks[task].inputs.iter();
    inputs.filter_map(|input| graph.buffers[input.0].producer.map(|TaskId(task)| task))
}

/// Returns, for each task, whether it casts a variable in its layout at rest for gathers alone. Such a cast goes ahead with them, as they would
/// otherwise wait until computing comes to it.
fn casts_ahead(graph: &TaskGraph, gathers: &[bool]) -> Vec<bool> {
    let readers = graph.readers();
    let ahead = |(index, task): (usize, &Task)| {
        let mut of_task = task.outputs.iter().flat_map(|output| &readers[output.0]);
        let gather = |&TaskId(reader): &TaskId| {
            gathers[reader] && matches!(graph.tasks[reader].action, Action::Collective { .. })
        };
        gathers[index] && is_cast(task) && of_task.all(gather)
    };
    graph.tasks.iter().enumerate().map(ahead).collect()
}

fn is_cast(task: &Task) -> bool {
    matches!(task.action, Action::Compute { op: Op::Cast(_), .. })
}

/// Returns, for each task, whether it boxes a variable from its layout at rest, or casts it there.
fn find_gathers(graph: &TaskGraph) -> Vec<bool> {
    let mut gathers = vec![false; graph.tasks.len()];
    for task in 0..graph.tasks.len() {
        let of = |&BufferId(input): &BufferId| match graph.buffers[input].producer {
            Some(TaskId(before)) => gathers[before],
            None => graph.buffers[input].variable.is_some(),
        };
        let resting = |&BufferId(input): &BufferId| graph.buffers[input].variable.is_some();
        let inputs = &graph.tasks[task].inputs;
        gathers[task] = is_boxing(&graph.tasks[task]) && inputs.iter().all(of)
            || is_cast(&graph.tasks[task]) && inputs.iter().all(resting);
    }
    gathers
}

/// Whether a task is a step of boxing on one mesh.
pub(in crate::lower) fn is_boxing(task: &Task) -> bool {
    matches!(task.action, Action::Collective { .. } | Action::Local { .. })
}

/// Returns, for each task, whether it is boxing whose results only accumulations and the update phase read, cast or not.
fn find_late_boxing(graph: &TaskGraph) -> Vec<bool> {
    let readers = graph.readers();
    let mut late = vec![false; graph.tasks.len()];
    for task in (0..graph.tasks.len()).rev() {
        let mut of_task = graph.tasks[task].outputs.iter().flat_map(|output| &readers[output.0]);
        let waits = |&TaskId(reader): &TaskId| {
            let accumulates = matches!(graph.tasks[reader].action, Action::Accumulate);
            late[reader] || accumulates || graph.tasks[reader].phase == Phase::Update
        };
        let passes = is_boxing(&graph.tasks[task]) || is_cast(&graph.tasks[task]);
        late[task] = passes && of_task.all(waits);
    }
    for (late, task) in late.iter_mut().zip(&graph.tasks) {
        *late = *late && is_boxing(task);
    }
    late
}

/// Returns the phase and place of the last task before the update phase from which boxing of that phase comes; `None` if there is none.
fn find_origin(graph: &TaskGraph, task: usize) -> Option<(Phase, usize)> {
    let of = &graph.tasks[task];
    match of.phase {
        Phase::Update if is_boxing(of) => {
            let origins = find_producers(graph, task).map(|before| find_origin(graph, before));
            origins.collect::<Option<Vec<_>>>()?.into_iter().max()
        }
        Phase::Update => None,
        phase => Some((phase, of.anchor)),
    }
}

/// Returns, for each place in a block, the place of an earlier actor of the other stream for which it waits.
///
/// A gather may begin when computing is no further from its first reader than twice the longest gather takes, plus the longest time from one such
/// reader to the next. So much suffices to hide it, or to let no time pass between two. If memory is short, it begins when it must
/// ([`BlockActors::latest_gates`]), and if that needs too much memory, no sooner than few bytes are in flight (`in_flight`). A collective that
/// scatters a gradient frees the memory of its operand. Computing goes on without it for as long, by the times of these collectives.
pub(in crate::lower) fn find_waits(block: &BlockActors<'_>) -> Vec<Option<usize>> {
    let mut waits = vec![None; block.tasks.len()];
    if block.tasks.iter().all(|task| task.background.is_none()) {
        return waits;
    }
    let clock = BlockClock::new(block);
    block.hold_gathers(&clock, &mut waits);
    block.hold_computing(&clock, &mut waits);
    waits
}

fn multiplies_matrices(task: &Task) -> bool {
    matches!(&task.action, Action::Compute { op, .. } if op.operation().multiplies_matrices())
}

/// The gate of a gather, which holds it back.
#[derive(Clone, Copy, Debug)]
pub(in crate::lower) struct Gate {
    /// The first place of the first stream that reads the gather's result.
    pub reader: usize,
    /// The time of the clock at which the gather may begin.
    pub opens: f64,
    /// The place of the first stream that must have ended, too, before there is memory for the gather.
    pub behind: Option<usize>,
}

impl BlockActors<'_> {
    fn hold_gathers(&self, clock: &BlockClock, waits: &mut [Option<usize>]) {
        for (gather, gate) in self.find_gates(clock) {
            waits[gather] = self.find_place_behind_gate(clock, gate, gather);
        }
    }

    /// Returns the place of the first stream before `place` for which an actor waits that a gate holds back.
    pub(in crate::lower) fn find_place_behind_gate(
        &self,
        clock: &BlockClock,
        gate: Gate,
        place: usize,
    ) -> Option<usize> {
        let by_time = self.find_place_behind(clock, gate.opens, place);
        by_time.max(gate.behind.filter(|&behind| behind < place.min(gate.reader)))
    }

    /// Returns the place of the first stream before `place` for which an actor waits that is held back until a time: the last that begins by then, or
    /// if memory is short, that ends by then. If this is a matrix product, and a chain of elementwise ops that reads it comes next, it is that chain.
    /// A device may do both by one launch, but not if something waits for the product alone.
    fn find_place_behind(&self, clock: &BlockClock, time: f64, place: usize) -> Option<usize> {
        let last = match self.ahead {
            RunAhead::Far => clock.last_by(time, place)?,
            RunAhead::ByTime | RunAhead::ByBytes => clock.ended_by(time, place)?,
        };
        let next = clock.first_from(f64::NEG_INFINITY, last).filter(|&next| next < place);
        let joins = |&next: &usize| {
            let [product, chain] = [last, next].map(|place| self.tasks[place]);
            multiplies_matrices(product)
                && !multiplies_matrices(chain)
                && chain.inputs.iter().any(|input| product.outputs.contains(input))
        };
        Some(next.filter(joins).unwrap_or(last))
    }

    /// Returns the gathers of variables that the first stream reads, each with its gate.
    pub(in crate::lower) fn find_gates(&self, clock: &BlockClock) -> Vec<(usize, Gate)> {
        let readers: Vec<(usize, usize)> = self.first_readers();
        if self.ahead.is_short() {
            return self.latest_gates(clock, &readers);
        }
        let own = readers.iter().map(|&(gather, _)| self.tasks[gather].expected);
        let own = own.fold(0.0, f64::max);
        // What may be under way when a gather could begin is not interrupted.
        let under_way = own.max(self.longest_reduction());
        let gate = |reader: usize| {
            let gap = self.longest_gap(clock, &readers, self.tasks[reader].phase);
            let ahead = own + under_way + gap;
            Gate { reader, opens: clock.begins[reader] - ahead, behind: None }
        };
        readers.iter().map(|&(gather, reader)| (gather, gate(reader))).collect()
    }

    /// Returns the seconds of the longest communication of gradients.
    fn longest_reduction(&self) -> f64 {
        let all = self.tasks.iter().filter(|task| task.background == Some(Background::Gradient));
        all.map(|task| task.expected).fold(0.0, f64::max)
    }

    /// Returns the longest time between two of these readers that follow each other in a phase. If the backward pass alone reads a few weights in
    /// their layout, theirs spans many layers, which says nothing of the forward pass.
    fn longest_gap(&self, clock: &BlockClock, readers: &[(usize, usize)], phase: Phase) -> f64 {
        let places = readers.iter().map(|&(_, reader)| reader);
        let times = places.filter(|&reader| self.tasks[reader].phase == phase);
        let times = times.map(|reader| clock.begins[reader]);
        let gaps = times.clone().skip(1).zip(times).map(|(next, time)| next - time);
        gaps.fold(0.0, f64::max)
    }

    /// Returns the gates if memory is short. Each gather then begins as late as it may if all are to be there in time, one after the other. It begins
    /// sooner by the time of the longest other communication, which may be under way by then and is not interrupted.
    fn latest_gates(&self, clock: &BlockClock, readers: &[(usize, usize)]) -> Vec<(usize, Gate)> {
        let longest = self.longest_reduction();
        let mut order = readers.to_vec();
        order.sort_by_key(|&(gather, reader)| (reader, gather));
        let behind = match self.ahead {
            RunAhead::ByBytes => self.readers_to_end(&order),
            RunAhead::Far | RunAhead::ByTime => vec![None; order.len()],
        };
        let mut next = f64::INFINITY;
        let gate = |((gather, reader), behind): ((usize, usize), Option<usize>)| {
            next = next.min(clock.begins[reader]) - self.tasks[gather].expected;
            (gather, Gate { reader, opens: next - longest, behind })
        };
        order.into_iter().zip(behind).rev().map(gate).collect()
    }

    /// Returns the gathers of variables, each with the first place of the first stream that reads its result.
    fn first_readers(&self) -> Vec<(usize, usize)> {
        let mut first = BTreeMap::new();
        for (place, task) in self.tasks.iter().enumerate().rev() {
            for input in task.inputs.iter().filter(|_| task.background.is_none()) {
                first.insert(*input, place);
            }
        }
        let gather = Some(Background::Gather);
        let gathers = self.tasks.iter().enumerate().filter(|(_, task)| task.background == gather);
        let reader = |task: &Task| task.outputs.iter().filter_map(|o| first.get(o)).min().copied();
        gathers.filter_map(|(place, task)| Some((place, reader(task)?))).collect()
    }

    /// Lets computing wait for collectives that scatter gradients, so that their operands are freed.
    fn hold_computing(&self, clock: &BlockClock, waits: &mut [Option<usize>]) {
        let made: BTreeSet<BufferId> =
            self.tasks.iter().flat_map(|task| task.outputs.iter().copied()).collect();
        let frees = |task: &Task| {
            scatters_gradient(task) && task.inputs.iter().any(|input| made.contains(input))
        };
        let all: Vec<(usize, f64)> = self
            .tasks
            .iter()
            .enumerate()
            .filter(|(_, task)| frees(task))
            .map(|(place, task)| (place, task.expected))
            .collect();
        let times = || all.iter().map(|&(place, _)| clock.begins[place]);
        let gaps = times().skip(1).zip(times()).map(|(next, time)| next - time);
        let longest = all.iter().map(|&(_, seconds)| seconds).fold(0.0, f64::max);
        let behind = 2.0 * longest + gaps.fold(0.0, f64::max);
        for (place, _) in all {
            if let Some(held) = clock.first_from(clock.begins[place] + behind, place) {
                waits[held] = waits[held].max(Some(place));
            }
        }
        if self.ahead == RunAhead::ByBytes {
            // Others come behind what waits for them, if something else holds them up.
            let holds = self.bytes_holds(clock).into_iter();
            for Hold { scatter, held } in holds.filter(|hold| hold.scatter < hold.held) {
                waits[held] = waits[held].max(Some(scatter));
            }
        }
    }
}
