//! The actor state machine of one rank: pure counts that say when an actor may act.
//!
//! The null device drives it with modelled time, the runtime with kernels. An actor may act when each register that it
//! reads is full for it and each register that it fills has a free slot (OneFlow, arXiv 2110.15032, section 4).
//!
//! Contents of a register are numbered. Content `n` of a register that is filled once per microbatch is that of
//! microbatch `n mod M` of step `n / M`, and lies in slot `n mod slots`. So the whole state is how many contents were
//! made and how many each reader has given back. A worker that owns some of a rank's actors therefore hears no more than
//! which actions of the others finished.
//!
//! A rank with several streams begins no step before all of them have ended the one before. An actor may also stand
//! behind another ([`crate::Actor::after`]), so one stream runs ahead of the other no further than memory allows.
//!
//! Communication between ranks is no part of it. A channel between stages has slots as well, so a send waits only where the receiver is
//! that many contents behind.

use graphc_ir::ids::{ActorId, RegisterId};

use crate::{Program, Rate, RegisterKind, Stream};

/// The state of one rank.
#[derive(Clone, Debug)]
pub struct Machine {
    microbatches: u64,
    /// Actions of a step, where streams wait for each other at its end.
    of_step: Option<u64>,
    /// Actions finished so far.
    finished: u64,
    registers: Vec<RegisterState>,
    actors: Vec<ActorState>,
}

#[derive(Clone, Debug)]
struct RegisterState {
    rate: Rate,
    slots: u64,
    /// Contents made so far; of a variable, its versions.
    made: u64,
    /// The actor that fills or updates it.
    producer: Option<ActorId>,
    readers: Vec<(ActorId, u64)>,
    high_water: u64,
    variable: bool,
}

#[derive(Clone, Debug)]
struct ActorState {
    rate: Rate,
    /// Registers read, with the place among the register's readers.
    inputs: Vec<(u32, u32)>,
    outputs: Vec<u32>,
    updates: Vec<u32>,
    after: Option<ActorId>,
    /// Actions finished so far.
    acted: u64,
}

/// The reason why an actor may not act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// A register that it reads has no content for it yet.
    Empty {
        /// The register.
        register: RegisterId,
        /// The actor that fills it.
        producer: Option<ActorId>,
    },
    /// A register that it fills has no free slot: a reader is late.
    Full {
        /// The register.
        register: RegisterId,
        /// A reader that still holds a content.
        reader: ActorId,
    },
    /// An actor that it stands behind has not acted yet.
    Behind {
        /// The actor.
        actor: ActorId,
    },
    /// Another stream of the rank has not ended the step before.
    Step,
}

impl Blocked {
    /// The wait in words; `actor` and `register` give names.
    pub fn describe<'a>(
        self,
        actor: impl Fn(ActorId) -> &'a str,
        register: impl Fn(RegisterId) -> &'a str,
    ) -> String {
        match self {
            Self::Empty { register: empty, producer } => {
                let empty = register(empty);
                match producer {
                    Some(producer) => {
                        format!("waits for `{empty}`, which `{}` fills later", actor(producer))
                    }
                    None => format!("waits for `{empty}`, which nobody fills"),
                }
            }
            Self::Full { register: full, reader } => {
                let (full, reader) = (register(full), actor(reader));
                format!("waits for a free slot of `{full}`, which `{reader}` has yet to read")
            }
            Self::Behind { actor: before } => format!("stands behind `{}`", actor(before)),
            Self::Step => "waits for the other stream's step before".into(),
        }
    }
}

/// One action: an actor at a microbatch of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActionId {
    /// The actor.
    pub actor: ActorId,
    /// The step, from 0.
    pub step: u64,
    /// The microbatch; 0 for step-rate actors.
    pub microbatch: u32,
}

impl Machine {
    /// The state before the first step: variables are full, everything else empty.
    pub fn new(program: &Program, microbatches: usize) -> Self {
        let mut registers: Vec<RegisterState> = program
            .registers
            .iter()
            .map(|register| {
                let variable = matches!(register.kind, RegisterKind::Variable { .. });
                RegisterState {
                    rate: register.rate,
                    slots: u64::from(register.slots),
                    made: u64::from(variable),
                    producer: None,
                    readers: Vec::new(),
                    high_water: 0,
                    variable,
                }
            })
            .collect();
        let actors = program
            .actors
            .iter()
            .enumerate()
            .map(|(index, actor)| {
                let id = ActorId::new(index);
                for register in actor.outputs.iter().chain(&actor.updates) {
                    registers[register.index()].producer = Some(id);
                }
                let inputs = actor.inputs.iter().map(|r| (r.0, add_reader(&mut registers, *r, id)));
                ActorState {
                    rate: actor.rate,
                    inputs: inputs.collect(),
                    outputs: actor.outputs.iter().map(|r| r.0).collect(),
                    updates: actor.updates.iter().map(|r| r.0).collect(),
                    after: actor.after,
                    acted: 0,
                }
            })
            .collect();
        let actions = |stream: &Stream| -> usize {
            let blocks =
                stream.order.iter().filter_map(|item| stream.blocks.get(item.block as usize));
            blocks.map(Vec::len).sum()
        };
        let all = || program.streams.iter().map(actions).sum::<usize>() as u64;
        let of_step = (program.streams.len() > 1).then(all);
        Self { microbatches: microbatches as u64, of_step, finished: 0, registers, actors }
    }

    /// The reason why an action may not begin; `None` where it may.
    pub fn find_blocker(&self, action: ActionId) -> Option<Blocked> {
        if self.of_step.is_some_and(|of_step| self.finished < action.step * of_step) {
            return Some(Blocked::Step);
        }
        let actor = &self.actors[action.actor.index()];
        if let Some(before) = actor.after.filter(|&before| self.is_ahead(action, before)) {
            return Some(Blocked::Behind { actor: before });
        }
        let input = |&(register, _): &(u32, u32)| self.find_empty_input(register, action);
        let output = |&register: &u32| self.find_full_output(register, actor, action);
        let update = |&register: &u32| self.find_unread_update(register, action);
        (actor.inputs.iter().find_map(input))
            .or_else(|| actor.outputs.iter().find_map(output))
            .or_else(|| actor.updates.iter().find_map(update))
    }

    /// Whether an action would come before that of an actor which it stands behind, of the same rate.
    fn is_ahead(&self, action: ActionId, before: ActorId) -> bool {
        let acted = self.actors[before.index()].acted;
        acted <= self.count_occurrences(self.actors[before.index()].rate, action)
    }

    fn find_empty_input(&self, register: u32, action: ActionId) -> Option<Blocked> {
        let state = &self.registers[register as usize];
        let needed = self.content_number(state, action);
        let endless = state.variable && state.producer.is_none();
        (state.made <= needed && !endless)
            .then_some(Blocked::Empty { register: RegisterId(register), producer: state.producer })
    }

    fn find_full_output(
        &self,
        register: u32,
        actor: &ActorState,
        action: ActionId,
    ) -> Option<Blocked> {
        let state = &self.registers[register as usize];
        // Over a step-rate register an accumulation has begun with its first microbatch and holds the slot since.
        if actor.rate == Rate::Microbatch && state.rate == Rate::Step && action.microbatch > 0 {
            return None;
        }
        let content = self.content_number(state, action);
        let late =
            |&&(_, given_back): &&(ActorId, u64)| content - given_back.min(content) >= state.slots;
        let reader = state.readers.iter().find(late)?.0;
        Some(Blocked::Full { register: RegisterId(register), reader })
    }

    /// An update overwrites a variable once everybody else has read this step's version.
    fn find_unread_update(&self, register: u32, action: ActionId) -> Option<Blocked> {
        let state = &self.registers[register as usize];
        let late = |&&(_, given_back): &&(ActorId, u64)| given_back <= action.step;
        let reader = state.readers.iter().find(late)?.0;
        Some(Blocked::Full { register: RegisterId(register), reader })
    }

    /// Counts a finished action: its outputs are full, its inputs given back.
    pub fn finish_action(&mut self, action: ActionId) {
        let last = action.microbatch as u64 + 1 == self.microbatches;
        self.finished += 1;
        self.actors[action.actor.index()].acted += 1;
        let actor = &self.actors[action.actor.index()];
        let each = |register: &RegisterState| {
            actor.rate == Rate::Step || register.rate == Rate::Microbatch || last
        };
        for &(register, reader) in &actor.inputs {
            let state = &mut self.registers[register as usize];
            if each(state) {
                state.readers[reader as usize].1 += 1;
            }
        }
        for &register in actor.outputs.iter().chain(&actor.updates) {
            let state = &mut self.registers[register as usize];
            if each(state) {
                state.made += 1;
                let least = state.readers.iter().map(|r| r.1).min().unwrap_or(state.made);
                state.high_water = state.high_water.max(state.made - least.min(state.made));
            }
        }
    }

    /// The content of a register that an action reads or makes.
    fn content_number(&self, register: &RegisterState, action: ActionId) -> u64 {
        self.count_occurrences(register.rate, action)
    }

    /// The number of times that something of a rate has happened before an action.
    fn count_occurrences(&self, rate: Rate, action: ActionId) -> u64 {
        match rate {
            Rate::Step => action.step,
            Rate::Microbatch => action.step * self.microbatches + u64::from(action.microbatch),
        }
    }

    /// The slot of a register that an action reads or fills.
    pub fn slot(&self, register: RegisterId, action: ActionId) -> u64 {
        let state = &self.registers[register.index()];
        if state.variable { 0 } else { self.content_number(state, action) % state.slots.max(1) }
    }

    /// The greatest number of contents of a register that existed at once.
    pub fn high_water(&self, register: RegisterId) -> u64 {
        self.registers[register.index()].high_water
    }
}

fn add_reader(registers: &mut [RegisterState], register: RegisterId, actor: ActorId) -> u32 {
    let readers = &mut registers[register.index()].readers;
    readers.push((actor, 0));
    readers.len() as u32 - 1
}
