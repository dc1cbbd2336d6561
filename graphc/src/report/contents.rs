//! Lists what lies in registers, and from when to when.

use std::collections::BTreeMap;

use graphc_plan::{Plan, Program, Rate, RegisterKind, TensorKind};

/// A content of a register: alive from the first to the last position of the order that touches it.
pub(super) struct RegisterContent {
    /// The register; of those that share memory the first.
    pub register: usize,
    /// The first position.
    pub first: usize,
    /// The last position.
    pub last: usize,
}

/// An action in an order of actions.
pub(super) struct OrderedAction {
    /// The actor.
    pub actor: usize,
    /// The microbatch.
    pub microbatch: u32,
    /// The last position of the order at which it is still at work: its own, of streams that take turns.
    pub until: usize,
}

/// Lists all contents of a step. A register that shares another's memory lives in that one.
pub(super) fn list_contents(program: &Program, order: &[OrderedAction]) -> Vec<RegisterContent> {
    let owner = |mut register: usize| {
        while let Some(shares) = program.registers[register].shares {
            register = shares.index();
        }
        register
    };
    let end = order.len().saturating_sub(1);
    let mut all: BTreeMap<(usize, u32), RegisterContent> = BTreeMap::new();
    for (position, action) in order.iter().enumerate() {
        let actor = &program.actors[action.actor];
        for register in actor.inputs.iter().chain(&actor.outputs).chain(&actor.updates) {
            let register = owner(register.index());
            let number = match program.registers[register].rate {
                Rate::Step => 0,
                Rate::Microbatch => action.microbatch,
            };
            let content = RegisterContent { register, first: position, last: position };
            let last = &mut all.entry((register, number)).or_insert(content).last;
            *last = action.until.max(*last);
        }
    }
    for (register, definition) in program.registers.iter().enumerate() {
        if matches!(definition.kind, RegisterKind::Variable { .. }) && owner(register) == register {
            all.insert((register, 0), RegisterContent { register, first: 0, last: end });
        }
    }
    all.into_values().collect()
}

/// The use of the bytes of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Use {
    /// A tensor that the plan lists.
    Tensor(TensorKind),
    /// A parameter that was brought to another layout: gathered, say.
    Copy,
    /// A tensor that has no name in the plan: gradients on the way, what is computed again.
    Intermediate,
}

impl Use {
    /// All of them, those that stay from step to step first.
    pub(super) const ALL: [Self; 9] = [
        Self::Tensor(TensorKind::Parameter),
        Self::Tensor(TensorKind::Table),
        Self::Tensor(TensorKind::State),
        Self::Copy,
        Self::Tensor(TensorKind::Gradient),
        Self::Tensor(TensorKind::Activation),
        Self::Tensor(TensorKind::Input),
        Self::Tensor(TensorKind::Output),
        Self::Intermediate,
    ];

    /// Returns its name in one word.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tensor(kind) => kind.name(),
            Self::Copy => "copy",
            Self::Intermediate => "intermediate",
        }
    }

    /// Returns its place in [`Self::ALL`].
    pub(super) fn place(self) -> usize {
        Self::ALL.iter().position(|&one| one == self).unwrap_or(Self::ALL.len() - 1)
    }
}

/// The use of each register of a program.
pub(super) fn register_uses(plan: &Plan, program: &Program) -> Vec<Use> {
    let listed: BTreeMap<&str, TensorKind> =
        plan.tensors.iter().rev().map(|entry| (entry.name.as_str(), entry.kind)).collect();
    let of = |register: &graphc_plan::Register| match &register.kind {
        RegisterKind::Variable { role, .. } => Use::Tensor(*role),
        RegisterKind::Activation => match listed.get(register.name.as_str()) {
            Some(TensorKind::Parameter | TensorKind::Table) => Use::Copy,
            Some(&kind) => Use::Tensor(kind),
            None => Use::Intermediate,
        },
    };
    program.registers.iter().map(of).collect()
}
