//! Tells which part of a step an actor belongs to, for colours and legends.

use std::collections::BTreeMap;

use graphc_compiler::decisions::{Decisions, Phase};
use graphc_ir::ids::ValueId;
use graphc_plan::{Action, Actor, Program};

use crate::report::alternatives::name_of;

/// The part of a step that an actor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Doing {
    /// Computes from inputs to the loss.
    Forward,
    /// Computes again what the forward pass has computed.
    Recomputed,
    /// Computes from the loss to gradients.
    Backward,
    /// Computes new variables.
    Update,
    /// Sends to other ranks, or receives.
    Communication,
    /// Takes in what is fed, gives out what is fetched.
    Data,
}

impl Doing {
    /// The names, in the order of the numbers that pages use.
    pub(super) const NAMES: [&str; 6] =
        ["forward", "recomputed", "backward", "update", "communication", "data"];

    /// The number that pages use.
    pub(super) fn number(self) -> usize {
        self as usize
    }
}

/// Names of passes, in the order of the numbers that pages use. What is computed again is of the backward pass.
pub(super) const PASSES: [&str; 3] = ["forward", "backward", "update"];

/// The pass of each actor of a program, by what it does: of communication that of the first actor that computes with what it brings,
/// else that of the one whose results it takes away.
pub(super) fn passes_of_actors(program: &Program, doings: &[Doing]) -> Vec<Option<usize>> {
    let own = |doing: Doing| match doing {
        Doing::Forward => Some(0),
        Doing::Recomputed | Doing::Backward => Some(1),
        Doing::Update => Some(2),
        Doing::Communication | Doing::Data => None,
    };
    let (mut made, mut read) =
        (vec![None; program.registers.len()], vec![None; program.registers.len()]);
    let mut passes: Vec<Option<usize>> = doings.iter().map(|&doing| own(doing)).collect();
    for (place, actor) in program.actors.iter().enumerate() {
        let brought = actor.inputs.iter().find_map(|input| made[input.index()]);
        let pass = passes[place].or(brought);
        actor.outputs.iter().for_each(|output| made[output.index()] = pass);
    }
    for (place, actor) in program.actors.iter().enumerate().rev() {
        if passes[place].is_none() {
            let later = actor.outputs.iter().find_map(|output| read[output.index()]);
            let before = actor.inputs.iter().find_map(|input| made[input.index()]);
            // Gradients travel while the backward pass goes on, though updates are the first to read them.
            let gradient = (before, later) == (Some(1), Some(2));
            passes[place] = if gradient { before } else { later.or(before) };
        }
        for input in &actor.inputs {
            read[input.index()] = passes[place].or(read[input.index()]);
        }
    }
    passes
}

/// The part of the step that makes each tensor, by name.
pub(super) struct Makers(BTreeMap<String, Doing>);

impl Makers {
    /// The makers of a graph. Of values of one name the first counts.
    pub(super) fn new(decisions: &Decisions) -> Self {
        let graph = decisions.graph();
        let mut all = BTreeMap::new();
        for value in (0..graph.values.len()).map(ValueId::new) {
            let node = graph.value(value).producer.index();
            let doing = match decisions.training.phases[node] {
                _ if decisions.recomputed[node].is_some() => Doing::Recomputed,
                Phase::Forward => Doing::Forward,
                Phase::Backward => Doing::Backward,
                Phase::Update => Doing::Update,
            };
            all.entry(name_of(decisions, value)).or_insert(doing);
        }
        Self(all)
    }

    /// Tells what each actor of a program does.
    pub(super) fn of_program(&self, program: &Program) -> Vec<Doing> {
        let mut updated = vec![false; program.registers.len()];
        for actor in program.actors.iter().filter(|actor| is_update(actor)) {
            actor.inputs.iter().for_each(|input| updated[input.index()] = true);
        }
        let of = |actor: &Actor| self.of_actor(program, actor, &updated);
        program.actors.iter().map(of).collect()
    }

    /// `updated` says of each register whether an update reads it.
    fn of_actor(&self, program: &Program, actor: &Actor, updated: &[bool]) -> Doing {
        let by_name = || {
            let made = actor.outputs.last().or(actor.inputs.first());
            let name = made.map(|register| program.registers[register.index()].name.as_str());
            name.and_then(|name| self.0.get(name)).copied().unwrap_or(Doing::Forward)
        };
        match &actor.action {
            Action::Collective { .. } | Action::Send { .. } | Action::Receive { .. } => {
                Doing::Communication
            }
            Action::Feed { .. } | Action::Fetch { .. } => Doing::Data,
            Action::Accumulate => Doing::Backward,
            _ if is_update(actor) => Doing::Update,
            Action::Local { .. } if actor.outputs.iter().any(|o| updated[o.index()]) => {
                Doing::Update
            }
            _ => by_name(),
        }
    }
}

fn is_update(actor: &Actor) -> bool {
    !actor.updates.is_empty() || matches!(actor.action, Action::Assign)
}
