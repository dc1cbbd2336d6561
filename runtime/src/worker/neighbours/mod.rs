//! Neighbours: actors that stand near each other in a stream's order, and that a device may therefore do by one launch.
//! These are updates and casts of several variables ([`find_runs`]), a product with what reads it, e.g. the sum over microbatches,
//! and a product with a sum of what it reads ([`pairs`]).
//!
//! A plan says what is done; how many launches that takes is the device's. So actors are joined when a rank's part of a plan is
//! prepared, and the plan, its reports and `graphc_torch` know nothing of it. Cards join all of these. A processor joins only a
//! product with the update that reads it (`PairRelation::Updating`) or with the sum over microbatches, which saves a way through
//! memory: a call there costs less than a microsecond.
//!
//! Joining is allowed where nothing tells the difference:
//!
//! - An actor that acts earlier than the plan says waits for no more of the rank's other streams than was waited for by then.
//! - Nobody waits for an actor that acts later.
//! - None of them touches memory that another writes, or that an actor between them writes.

mod pairs;

use std::collections::BTreeSet;
use std::ops::Range;

pub(super) use pairs::{ActorPair, ActorPairs, PairRelation};

use graphc_ir::ids::{ActorId, RegisterId};
use graphc_plan::{Actor, Program, Rate};

/// (actor, microbatch) of each stream, in order.
pub(super) type Orders = [Vec<(ActorId, u32)>];

/// Finds the runs of two or more actors that `joins` names, of those that a stream executes, which may be launched where their
/// first stands. None goes past an actor of `moved`, which acts elsewhere.
pub(super) fn find_runs(
    program: &Program,
    orders: &Orders,
    stream: usize,
    moved: &BTreeSet<u32>,
    joins: impl Fn(&Actor) -> bool,
) -> Vec<Vec<u32>> {
    let (places, users) = (last_places(program, orders), Users::from_program(program));
    let mut walk = StreamWalk::new(program, orders.len());
    for &(ActorId(index), _) in &orders[stream] {
        let Some(actor) = program.actors.get(index as usize) else { continue };
        if actor.rate != Rate::Step || moved.contains(&index) {
            walk.close_run();
            continue;
        }
        let waits =
            users.actors_before(actor).filter_map(|other| places.get(other.index()).copied()?);
        let waits: Vec<_> = waits.filter(|&(other, _)| other != stream).collect();
        walk.note_waits(&waits);
        match joins(actor) && keeps_its_places(program, actor) {
            true => walk.take_actor(index, &waits),
            false => walk.pass_actor(index),
        }
    }
    walk.runs.retain(|run| run.len() > 1);
    walk.runs
}

/// A way through a stream's order.
struct StreamWalk<'a> {
    program: &'a Program,
    /// The place in each stream up to which all that it does in a step has been waited for.
    waited: Vec<Option<usize>>,
    /// The same places as they were when the last run began.
    known: Vec<Option<usize>>,
    /// The last may go on; an empty one has just ended.
    runs: Vec<Vec<u32>>,
    /// Others that stand between the actors of the last.
    passed: Vec<u32>,
}

/// Others that a run goes past at most.
const PASSED: usize = 16;

impl<'a> StreamWalk<'a> {
    fn new(program: &'a Program, streams: usize) -> Self {
        let waited = vec![None; streams];
        let known = waited.clone();
        Self { program, waited, known, runs: Vec::new(), passed: Vec::new() }
    }

    fn note_waits(&mut self, waits: &[(usize, usize)]) {
        for &(stream, place) in waits {
            self.waited[stream] = self.waited[stream].max(Some(place));
        }
    }

    fn close_run(&mut self) {
        self.passed.clear();
        if self.runs.last().is_some_and(|run| !run.is_empty()) {
            self.runs.push(Vec::new());
        }
    }

    /// Goes past an actor of another kind.
    fn pass_actor(&mut self, index: u32) {
        self.passed.push(index);
        if self.passed.len() > PASSED {
            self.close_run();
        }
    }

    fn take_actor(&mut self, index: u32, waits: &[(usize, usize)]) {
        let known = waits.iter().all(|&(stream, place)| self.known[stream] >= Some(place));
        let actor = |index: u32| &self.program.actors[index as usize];
        let apart = |&other: &u32| are_apart(self.program, actor(other), actor(index));
        match self.runs.last_mut() {
            Some(run) if known && run.iter().chain(&self.passed).all(apart) => run.push(index),
            _ => {
                self.passed.clear();
                self.known.clone_from(&self.waited);
                self.runs.push(vec![index]);
            }
        }
    }
}

/// The actors that fill or overwrite each register, and those that read it.
struct Users {
    writers: Vec<Vec<ActorId>>,
    readers: Vec<Vec<ActorId>>,
}

impl Users {
    fn from_program(program: &Program) -> Self {
        let none = vec![Vec::new(); program.registers.len()];
        let mut users = Self { writers: none.clone(), readers: none };
        for (index, actor) in program.actors.iter().enumerate() {
            for register in actor.outputs.iter().chain(&actor.updates) {
                users.writers[register.index()].push(ActorId::new(index));
            }
            for register in &actor.inputs {
                users.readers[register.index()].push(ActorId::new(index));
            }
        }
        users
    }

    /// Returns the actors that an actor waits for within a step: those that fill what it reads, and those that read what it
    /// overwrites.
    fn actors_before<'a>(&'a self, actor: &'a Actor) -> impl Iterator<Item = ActorId> + 'a {
        let makers = actor.inputs.iter().flat_map(|register| &self.writers[register.index()]);
        let readers = actor.updates.iter().flat_map(|register| &self.readers[register.index()]);
        makers.chain(readers).copied().chain(actor.after)
    }
}

/// Returns the stream of each actor, and the place in its order where it acts last in a step.
fn last_places(program: &Program, orders: &Orders) -> Vec<Option<(usize, usize)>> {
    let mut places = vec![None; program.actors.len()];
    for (stream, order) in orders.iter().enumerate() {
        for (place, &(actor, _)) in order.iter().enumerate() {
            if let Some(last) = places.get_mut(actor.index()) {
                *last = Some((stream, place));
            }
        }
    }
    places
}

/// Whether all of its registers lie at one place in every step.
fn keeps_its_places(program: &Program, actor: &Actor) -> bool {
    used_registers(actor).all(|r| program.registers.get(r.index()).is_some_and(|r| r.slots <= 1))
}

fn used_registers(actor: &Actor) -> impl Iterator<Item = RegisterId> + '_ {
    actor.inputs.iter().chain(&actor.outputs).chain(&actor.updates).copied()
}

/// Whether neither of two actors touches memory that the other writes.
fn are_apart(program: &Program, one: &Actor, other: &Actor) -> bool {
    let apart = |writer: &Actor, other: &Actor| {
        writer.outputs.iter().chain(&writer.updates).all(|&written| {
            let written = register_span(program, written);
            used_registers(other)
                .all(|register| are_disjoint(&written, &register_span(program, register)))
        })
    };
    apart(one, other) && apart(other, one)
}

/// Returns the bytes of the arena that a register takes.
fn register_span(program: &Program, register: RegisterId) -> Range<u64> {
    let register = &program.registers[register.index()];
    let bytes = register.slot_bytes * u64::from(register.slots.max(1));
    register.offset..register.offset + bytes
}

/// Whether two registers share memory.
pub(super) fn registers_overlap(program: &Program, one: RegisterId, other: RegisterId) -> bool {
    !are_disjoint(&register_span(program, one), &register_span(program, other))
}

fn are_disjoint(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.end <= other.start || other.end <= one.start
}

#[cfg(test)]
pub(super) mod tests {
    use graphc_ir::ids::LayoutId;
    use graphc_plan::{Action, Register, RegisterKind};

    use super::*;

    pub(super) fn register(offset: u64) -> Register {
        Register {
            name: String::new(),
            layout: LayoutId(0),
            shape: vec![16],
            offset,
            slot_bytes: 64,
            slots: 1,
            rate: Rate::Step,
            kind: RegisterKind::Activation,
            shares: None,
        }
    }

    pub(super) fn actor(inputs: &[u32], outputs: &[u32], updates: &[u32]) -> Actor {
        let registers = |all: &[u32]| all.iter().map(|&register| RegisterId(register)).collect();
        Actor {
            name: String::new(),
            action: Action::Assign,
            inputs: registers(inputs),
            outputs: registers(outputs),
            updates: registers(updates),
            after: None,
            rate: Rate::Step,
            seconds: 0.0,
            flops: 0.0,
            bytes: 0.0,
        }
    }

    /// Registers of 64 bytes, and two streams: that which is looked at, and another.
    pub(super) fn program(offsets: &[u64], actors: Vec<Actor>) -> Program {
        Program {
            stage: 0,
            arena_bytes: 0,
            live_bytes: 0,
            registers: offsets.iter().map(|&offset| register(offset)).collect(),
            actors,
            streams: Vec::new(),
        }
    }

    fn order(actors: &[u32]) -> Vec<(ActorId, u32)> {
        actors.iter().map(|&actor| (ActorId(actor), 0)).collect()
    }

    /// The joint launches of the first stream, where all that overwrite something may be one.
    fn found(program: &Program, orders: [&[u32]; 2]) -> Vec<Vec<u32>> {
        let orders = orders.map(order);
        find_runs(program, &orders, 0, &BTreeSet::new(), |actor| !actor.updates.is_empty())
    }

    #[test]
    fn updates_side_by_side_are_one_launch_and_go_past_what_is_apart() {
        let offsets = [0, 64, 128, 192, 256, 320];
        let updates = || [actor(&[0], &[], &[1]), actor(&[0], &[], &[2]), actor(&[0], &[], &[3])];
        let [a, b, c] = updates();
        let apart = program(&offsets, vec![a, actor(&[4], &[5], &[]), b, c]);
        assert_eq!(found(&apart, [&[0, 1, 2, 3], &[]]), [[0, 2, 3]]);
        // What stands between them makes what the second reads.
        let [a, _, c] = updates();
        let maker = program(&offsets, vec![a, actor(&[4], &[5], &[]), actor(&[5], &[], &[2]), c]);
        assert_eq!(found(&maker, [&[0, 1, 2, 3], &[]]), [[2, 3]]);
    }

    #[test]
    fn memory_that_another_writes_ends_a_launch() {
        // The second puts its result where the gradient of the first lay.
        let actors = || vec![actor(&[0], &[], &[1]), actor(&[2], &[4], &[3])];
        let reused = program(&[0, 64, 128, 192, 0], actors());
        assert!(found(&reused, [&[0, 1], &[]]).is_empty());
        let own = program(&[0, 64, 128, 192, 256], actors());
        assert_eq!(found(&own, [&[0, 1], &[]]), [[0, 1]]);
    }

    #[test]
    fn an_update_that_waits_for_more_of_another_stream_begins_a_launch() {
        let offsets = [0, 64, 128, 192, 256];
        let (makers, updates) = (
            [actor(&[], &[0], &[]), actor(&[], &[1], &[])],
            [actor(&[0], &[], &[2]), actor(&[1], &[], &[3]), actor(&[0], &[], &[4])],
        );
        let program = program(&offsets, makers.into_iter().chain(updates).collect());
        assert_eq!(found(&program, [&[2, 3, 4], &[0, 1]]), [[3, 4]]);
        assert_eq!(found(&program, [&[3, 2, 4], &[0, 1]]), [[3, 2, 4]]);
        // What stands between two updates waits, but not the first.
        let between = vec![
            actor(&[], &[0], &[]),
            actor(&[], &[], &[1]),
            actor(&[0], &[2], &[]),
            actor(&[0], &[], &[3]),
        ];
        let between = self::program(&offsets, between);
        assert!(found(&between, [&[1, 2, 3], &[0]]).is_empty());
    }
}
