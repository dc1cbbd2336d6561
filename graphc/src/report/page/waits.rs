//! Tells what streams wait for: of each actor that begins later than it could, the tensor and the ranks that it needs.

use std::collections::BTreeMap;

use graphc_compiler::boxing::Senders;
use graphc_ir::ids::RegisterId;
use graphc_ir::plan::{Action, Plan};
use serde::Serialize;

use super::events::{Event, Ran};
use super::places::{RankRun, rank_runs};

/// What an actor of a stream waits for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wait {
    /// The actor.
    pub actor: usize,
    /// The name of the tensor; empty where none is known.
    pub tensor: String,
    /// The ranks that give it or take part; none where the rank waits for another stream of its own.
    pub ranks: Vec<RankRun>,
}

/// Lists what each stream of a class waits for, where an event begins more than `least` seconds after the one before it.
pub fn list_waits(plan: &Plan, ran: &Ran<'_>, least: f64) -> Vec<Vec<Wait>> {
    let ends = ends_of_actors(ran);
    let of_stream = |(stream, events): (usize, &Vec<Event>)| {
        let mut found: BTreeMap<usize, Wait> = BTreeMap::new();
        let mut free = 0.0;
        for event in events {
            if event.start - free > least {
                let wait = || describe_wait(plan, ran, (stream, event), (&ends, least));
                found.entry(event.actor).or_insert_with(wait);
            }
            free = event.end;
        }
        found.into_values().collect()
    };
    ran.streams.iter().enumerate().map(of_stream).collect()
}

/// Of each actor its stream, and when its actions ended.
fn ends_of_actors(ran: &Ran<'_>) -> BTreeMap<usize, (usize, Vec<f64>)> {
    let mut ends: BTreeMap<usize, (usize, Vec<f64>)> = BTreeMap::new();
    for (stream, events) in ran.streams.iter().enumerate() {
        for event in events {
            ends.entry(event.actor).or_insert((stream, Vec::new())).1.push(event.end);
        }
    }
    ends
}

fn describe_wait(
    plan: &Plan,
    ran: &Ran<'_>,
    (stream, event): (usize, &Event),
    (ends, least): (&BTreeMap<usize, (usize, Vec<f64>)>, f64),
) -> Wait {
    let rank = ran.class.rank;
    let actor = &ran.program.actors[event.actor];
    let name = |id: &RegisterId| ran.program.registers[id.index()].name.clone();
    let own = last_made_elsewhere(ran, (stream, event), ends);
    let (tensor, ranks) = match &actor.action {
        Action::Receive { channel } => {
            let channel = &plan.channels[channel.index()];
            (channel.tensor.clone(), senders_to(plan, (channel.from, channel.to), rank))
        }
        Action::Send { channel } => {
            let channel = &plan.channels[channel.index()];
            (channel.tensor.clone(), plan.layouts[channel.to as usize].ranks.clone())
        }
        // A collective begins when its operand is there, or else when the last of its ranks is ready.
        Action::Collective { axis, .. }
            if own.as_ref().is_none_or(|(end, _)| event.start - end > least) =>
        {
            let first = actor.inputs.first();
            let layout = first.map(|id| ran.program.registers[id.index()].layout);
            let layout = layout.map(|layout| &plan.layouts[layout as usize]);
            let group = layout.and_then(|layout| layout.axis_group(rank, *axis));
            (first.map(name).unwrap_or_default(), group.unwrap_or_default())
        }
        _ => (own.map(|(_, tensor)| tensor).unwrap_or_default(), Vec::new()),
    };
    let ranks: Vec<u32> = ranks.into_iter().filter(|&other| other != rank).collect();
    Wait { actor: event.actor, tensor, ranks: rank_runs(&ranks) }
}

/// The ranks of one layout that hold something of what a rank holds in another.
fn senders_to(plan: &Plan, (from, to): (u32, u32), rank: u32) -> Vec<u32> {
    let (from, to) = (&plan.layouts[from as usize], &plan.layouts[to as usize]);
    let mut found = Vec::new();
    if let Some(position) = to.ranks.iter().position(|&other| other == rank) {
        let mut senders = Senders::new(from, plan.microbatches);
        senders.visit_senders(to, position, &mut |sender, _| found.push(from.ranks[sender]));
    }
    found.sort_unstable();
    found
}

/// The operand of an event that another stream made last before it, and when.
fn last_made_elsewhere(
    ran: &Ran<'_>,
    (stream, event): (usize, &Event),
    ends: &BTreeMap<usize, (usize, Vec<f64>)>,
) -> Option<(f64, String)> {
    let reads = &ran.program.actors[event.actor].inputs;
    let mut last: Option<(f64, RegisterId)> = None;
    for (maker, (_, ends)) in ends.iter().filter(|(_, (other, _))| *other != stream) {
        let made = &ran.program.actors[*maker].outputs;
        let Some(&read) = made.iter().find(|register| reads.contains(register)) else { continue };
        let before = ends.iter().copied().filter(|&end| end <= event.start).reduce(f64::max);
        if let Some(end) = before.filter(|&end| last.is_none_or(|(known, _)| end > known)) {
            last = Some((end, read));
        }
    }
    last.map(|(end, register)| (end, ran.program.registers[register.index()].name.clone()))
}
