//! The knowledge that the two streams of a rank have of each other. It follows from the program, not from times.
//!
//! An action begins when the one before it on its stream has ended, and with it all that it waits for on the other
//! stream: registers, credits, and the actor behind which it stands. So the actions of the other stream that are known to
//! have ended then are a number: a vector clock of two streams (Mattern, "Virtual time and global states of distributed
//! systems", 1989). Streams begin a step together, so all steps are alike.
//!
//! Memory goes by this knowledge: a stream may write a register's bytes once it knows that all has been read
//! (`lower::flow` of the compiler). So registers that both streams touch share memory like others, and all-reduces work
//! in place.
//!
//! The state machine ([`crate::machine`]) is what holds actions back; tests hold both to the same times.

use graphc_ir::ids::ActorId;

use crate::{Actor, Program, Rate, RegisterKind, Stream};

/// The actions of a step of both streams, and what each knows of the other stream.
#[derive(Clone, Debug)]
pub struct Known {
    /// The actions of each stream in order, by actor and microbatch.
    pub actions: [Vec<(ActorId, u32)>; 2],
    /// The number of the other stream's actions of the step that have ended when an action begins, by stream and action.
    pub of_other: [Vec<u32>; 2],
}

/// Lists all actions of a program's step in an order in which they may come: of two streams, communication as soon as it may; of others one
/// stream after another.
pub fn one_order(program: &Program) -> Vec<(ActorId, u32)> {
    let both = Known::from_program(program).and_then(|known| known.one_order());
    both.unwrap_or_else(|| program.streams.iter().flat_map(list_actions).collect())
}

/// Something on the other stream that an actor waits for.
#[derive(Clone, Copy)]
struct CrossStreamWait {
    actor: usize,
    which: Which,
}

/// The action that is waited for.
#[derive(Clone, Copy)]
enum Which {
    /// The action of the same microbatch.
    Same,
    /// The action of so many microbatches before.
    Before(u32),
    /// The last of the step.
    Last,
}

impl Known {
    /// The knowledge of a program with two streams; `None` of others.
    pub fn from_program(program: &Program) -> Option<Self> {
        let [first, second] = program.streams.as_slice() else { return None };
        let actions = [list_actions(first), list_actions(second)];
        let mut places: Vec<(usize, Vec<u32>)> = vec![(0, Vec::new()); program.actors.len()];
        for (stream, actions) in actions.iter().enumerate() {
            for (index, &(actor, _)) in actions.iter().enumerate() {
                places[actor.index()].0 = stream;
                places[actor.index()].1.push(index as u32);
            }
        }
        let waits = find_waits(program, &places);
        let of_other = [0, 1].map(|stream| {
            let mut most = 0;
            let of = |&(actor, microbatch): &(ActorId, u32)| {
                for wait in &waits[actor.index()] {
                    most = most.max(count_needed(&places[wait.actor].1, wait.which, microbatch));
                }
                most
            };
            actions[stream].iter().map(of).collect()
        });
        Some(Self { actions, of_other })
    }

    /// The actions of a step in an order in which each comes when all that it waits for has ended, by turns as it goes;
    /// `None` where streams wait for each other.
    pub fn one_order(&self) -> Option<Vec<(ActorId, u32)>> {
        let mut done = [0, 0];
        let mut order = Vec::new();
        while let Some((stream, action)) = self.next_action(done) {
            order.push(self.actions[stream][action]);
            done[stream] += 1;
        }
        let all = [0, 1].iter().all(|&stream| done[stream] == self.actions[stream].len());
        all.then_some(order)
    }

    /// Returns the stream and the number of an action that may be next, when `done` actions of both streams have ended.
    pub fn next_action(&self, done: [usize; 2]) -> Option<(usize, usize)> {
        let may = |&stream: &usize| {
            let needed = self.of_other[stream].get(done[stream]);
            needed.is_some_and(|&needed| needed as usize <= done[1 - stream])
        };
        // Communication comes as soon as it may.
        let stream = [1, 0].into_iter().find(may)?;
        Some((stream, done[stream]))
    }

    /// Actions of the other stream that have ended when an action begins.
    pub fn count_ended(&self, stream: usize, action: usize) -> u32 {
        self.of_other[stream][action]
    }
}

/// The number of actions that must have ended for one of an actor's to have, given the places of all of its.
fn count_needed(places: &[u32], which: Which, microbatch: u32) -> u32 {
    let index = match which {
        Which::Same => Some(microbatch as usize),
        Which::Before(microbatches) => microbatch.checked_sub(microbatches).map(|m| m as usize),
        Which::Last => places.len().checked_sub(1),
    };
    index.and_then(|index| places.get(index)).map_or(0, |place| place + 1)
}

fn list_actions(stream: &Stream) -> Vec<(ActorId, u32)> {
    let blocks = stream.order.iter().map(|item| (&stream.blocks[item.block as usize], item));
    blocks.flat_map(|(block, item)| block.iter().map(|&actor| (actor, item.microbatch))).collect()
}

/// Finds for each actor the actions on the other stream that it waits for.
fn find_waits(program: &Program, places: &[(usize, Vec<u32>)]) -> Vec<Vec<CrossStreamWait>> {
    let mut producers = vec![None; program.registers.len()];
    let mut readers = vec![Vec::new(); program.registers.len()];
    for (index, actor) in program.actors.iter().enumerate() {
        for output in &actor.outputs {
            producers[output.index()] = Some(index);
        }
        for input in &actor.inputs {
            readers[input.index()].push(index);
        }
    }
    let repeats = |actor: &Actor| actor.rate == Rate::Microbatch;
    let of = |(index, actor): (usize, &Actor)| {
        let mut waits = Vec::new();
        let mut wait = |other: usize, which: Which| {
            if places[other].0 != places[index].0 {
                waits.push(CrossStreamWait { actor: other, which });
            }
        };
        for input in &actor.inputs {
            let Some(producer) = producers[input.index()] else { continue };
            let each = program.registers[input.index()].rate == Rate::Microbatch && repeats(actor);
            wait(producer, if each { Which::Same } else { Which::Last });
        }
        for output in &actor.outputs {
            let register = &program.registers[output.index()];
            if register.rate == Rate::Microbatch && repeats(actor) {
                let full = Which::Before(register.slots);
                readers[output.index()].iter().for_each(|&reader| wait(reader, full));
            }
        }
        for update in &actor.updates {
            readers[update.index()].iter().for_each(|&reader| wait(reader, Which::Last));
        }
        if let Some(before) = actor.after {
            wait(before.index(), if repeats(actor) { Which::Same } else { Which::Last });
        }
        waits
    };
    debug_assert!(program.registers.iter().zip(&producers).all(|(register, producer)| {
        producer.is_none() || !matches!(register.kind, RegisterKind::Variable { .. })
    }));
    program.actors.iter().enumerate().map(of).collect()
}
