//! Tells which part of a step an actor belongs to, for colours and legends.

use std::collections::BTreeMap;

use graphc_compiler::decisions::{Decisions, Phase};
use graphc_ir::ids::ValueId;
use graphc_ir::plan::{Action, Actor, Program};

use crate::report::alternatives::name_of;

/// The part of a step that an actor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doing {
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
    pub const NAMES: [&str; 6] =
        ["forward", "recomputed", "backward", "update", "communication", "data"];

    /// The number that pages use.
    pub fn number(self) -> usize {
        self as usize
    }
}

/// The part of the step that makes each tensor, by name.
pub struct Makers(BTreeMap<String, Doing>);

impl Makers {
    /// The makers of a graph. Of values of one name the first counts.
    pub fn new(decisions: &Decisions) -> Self {
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
    pub fn of(&self, program: &Program) -> Vec<Doing> {
        let mut updated = vec![false; program.registers.len()];
        for actor in program.actors.iter().filter(|actor| updates(actor)) {
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
            _ if updates(actor) => Doing::Update,
            Action::Local { .. } if actor.outputs.iter().any(|o| updated[o.index()]) => {
                Doing::Update
            }
            _ => by_name(),
        }
    }
}

fn updates(actor: &Actor) -> bool {
    !actor.updates.is_empty() || matches!(actor.action, Action::Assign)
}
