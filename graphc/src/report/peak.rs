//! Lists what fills a rank's memory at its peak.

use std::collections::BTreeMap;

use graphc_plan::streams::one_order;
use graphc_plan::{Plan, Program};

use super::contents::{OrderedAction, RegisterContent, list_contents, register_uses};

/// The number of the largest tensors that are named.
const NAMED: usize = 8;

/// The fullest moment of a step on a rank of one program.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryPeak {
    /// Bytes that are alive.
    pub bytes: u64,
    /// The actor that then runs.
    pub actor: String,
    /// Bytes by what they are for.
    pub kinds: BTreeMap<String, u64>,
    /// The largest contents, at most eight.
    pub largest: Vec<(String, u64)>,
}

/// The peak of a program's step, in one of the orders that its streams may take.
pub fn find_peak(plan: &Plan, program: &Program) -> MemoryPeak {
    let order: Vec<OrderedAction> = one_order(program)
        .into_iter()
        .enumerate()
        .map(|(until, (actor, microbatch))| OrderedAction {
            actor: actor.index(),
            microbatch,
            until,
        })
        .collect();
    let contents = list_contents(program, &order);
    let kind_of = register_uses(plan, program);
    let bytes = |content: &RegisterContent| program.registers[content.register].slot_bytes;
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
    let there: Vec<&RegisterContent> =
        contents.iter().filter(|content| (content.first..=content.last).contains(&at)).collect();
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    let mut largest = Vec::new();
    for content in there {
        let register = &program.registers[content.register];
        *kinds.entry(kind_of[content.register].name().into()).or_default() += register.slot_bytes;
        largest.push((register.name.clone(), register.slot_bytes));
    }
    largest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    largest.truncate(NAMED);
    let actor = order.get(at).map_or("no actor", |action| &program.actors[action.actor].name);
    MemoryPeak { bytes: most.max(0) as u64, actor: actor.to_owned(), kinds, largest }
}
