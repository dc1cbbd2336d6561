//! What fills a rank's memory at its peak.

use std::collections::BTreeMap;

use graphc_ir::plan::{Plan, Program, Rate, RegisterKind, TensorKind};
use graphc_ir::streams::one_order;

/// How many of the largest tensors are named.
const NAMED: usize = 8;

/// The fullest moment of a step on a rank of one program.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// Bytes that are alive.
    pub bytes: u64,
    /// The actor that then runs.
    pub actor: String,
    /// Bytes by what they are for.
    pub kinds: BTreeMap<String, u64>,
    /// The largest contents, at most eight.
    pub largest: Vec<(String, u64)>,
}

/// A content of a register: alive from the first to the last position of the order that touches it.
struct Content {
    register: usize,
    first: usize,
    last: usize,
}

/// The peak of a program's step, in one of the orders that its streams may take.
pub fn peak(plan: &Plan, program: &Program) -> Peak {
    let order: Vec<(usize, u32)> =
        one_order(program).into_iter().map(|(actor, m)| (actor.index(), m)).collect();
    let contents = contents(program, &order);
    let bytes = |content: &Content| program.registers[content.register].slot_bytes;
    let mut change = vec![0i64; order.len() + 1];
    for content in &contents {
        change[content.first] += bytes(content) as i64;
        change[content.last + 1] -= bytes(content) as i64;
    }
    let (mut alive, mut most, mut at) = (0, i64::MIN, 0);
    for (position, change) in change.iter().enumerate().take(order.len().max(1)) {
        alive += change;
        if alive > most {
            (most, at) = (alive, position);
        }
    }
    let there: Vec<&Content> =
        contents.iter().filter(|content| (content.first..=content.last).contains(&at)).collect();
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    let mut largest = Vec::new();
    for content in there {
        let register = &program.registers[content.register];
        *kinds.entry(kind(plan, program, content.register)).or_default() += register.slot_bytes;
        largest.push((register.name.clone(), register.slot_bytes));
    }
    largest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    largest.truncate(NAMED);
    let actor = order.get(at).map_or("no actor", |&(actor, _)| &program.actors[actor].name);
    Peak { bytes: most.max(0) as u64, actor: actor.to_owned(), kinds, largest }
}

/// All contents of a step. A register that shares another's memory lives in that one.
fn contents(program: &Program, order: &[(usize, u32)]) -> Vec<Content> {
    let owner = |mut register: usize| {
        while let Some(shares) = program.registers[register].shares {
            register = shares.index();
        }
        register
    };
    let end = order.len().saturating_sub(1);
    let mut all: BTreeMap<(usize, u32), Content> = BTreeMap::new();
    for (position, &(actor, microbatch)) in order.iter().enumerate() {
        let actor = &program.actors[actor];
        for register in actor.inputs.iter().chain(&actor.outputs).chain(&actor.updates) {
            let register = owner(register.index());
            let number = match program.registers[register].rate {
                Rate::Step => 0,
                Rate::Microbatch => microbatch,
            };
            let content = Content { register, first: position, last: position };
            all.entry((register, number)).or_insert(content).last = position;
        }
    }
    for (register, definition) in program.registers.iter().enumerate() {
        if matches!(definition.kind, RegisterKind::Variable { .. }) && owner(register) == register {
            all.insert((register, 0), Content { register, first: 0, last: end });
        }
    }
    all.into_values().collect()
}

fn kind(plan: &Plan, program: &Program, register: usize) -> String {
    let register = &program.registers[register];
    let named = |kind: TensorKind| format!("{kind:?}").to_lowercase();
    match &register.kind {
        RegisterKind::Variable { role, .. } => named(*role),
        RegisterKind::Activation => {
            let entry = plan.tensors.iter().find(|entry| entry.name == register.name);
            entry.map_or_else(|| "intermediate".into(), |entry| named(entry.kind))
        }
    }
}
