//! Checks of ranks against each other: all that should take part in a collective or a channel do, once, and alike.

use std::collections::{BTreeMap, BTreeSet};

use super::{ErrorCollector, edges, structure};
use crate::{Action, Actor, Plan, Program};

/// Checks collectives and channels of all ranks.
pub(super) fn check_communication(plan: &Plan, errors: &mut ErrorCollector) {
    let ranks_of = structure::ranks_of(plan);
    edges::check_edges(plan, &ranks_of, errors);
    check_collectives(plan, &ranks_of, errors);
    check_channels(plan, &ranks_of, errors);
    for (index, program) in plan.programs.iter().enumerate() {
        check_sequence_order(plan, index, program, errors);
    }
}

/// The terms on which all ranks of a collective must agree.
fn describe_terms(program: &Program, actor: &Actor) -> String {
    let layouts = |ids: &[graphc_ir::ids::RegisterId]| -> Vec<u32> {
        ids.iter().map(|id| program.registers[id.index()].layout.0).collect()
    };
    let (inputs, outputs) = (layouts(&actor.inputs), layouts(&actor.outputs));
    format!("{:?} {:?} from layouts {inputs:?} to {outputs:?}", actor.action, actor.rate)
}

fn check_collectives(plan: &Plan, ranks_of: &[Vec<u32>], errors: &mut ErrorCollector) {
    let mut terms_of: BTreeMap<u32, (String, String)> = BTreeMap::new();
    let mut comes: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    let mut expected: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (index, program) in plan.programs.iter().enumerate() {
        for actor in &program.actors {
            let Action::Collective { sequence, .. } = actor.action else { continue };
            let place = format!("programs[{index}] `{}`", actor.name);
            let terms = describe_terms(program, actor);
            let known = terms_of.entry(sequence).or_insert((actor.name.clone(), terms.clone()));
            errors.require(known.1 == terms, &place, || {
                format!("disagrees with `{}` of other ranks: {terms}; {}", known.0, known.1)
            });
            for &rank in &ranks_of[index] {
                let first = comes.entry(sequence).or_default().insert(rank);
                errors.require(first, &place, || format!("number {sequence} is given twice"));
            }
            let layout = program.registers[actor.inputs[0].index()].layout;
            expected.entry(sequence).or_default().extend(&plan.layouts[layout.index()].ranks);
        }
    }
    for (sequence, expected) in expected {
        let missing: Vec<&u32> = expected.difference(&comes[&sequence]).collect();
        let name = &terms_of[&sequence].0;
        errors.require(missing.is_empty(), format!("`{name}`"), || {
            format!("ranks {missing:?} do not take part")
        });
    }
}

fn check_channels(plan: &Plan, ranks_of: &[Vec<u32>], errors: &mut ErrorCollector) {
    let count = plan.channels.len();
    let mut sends: Vec<Vec<u32>> = vec![Vec::new(); count];
    let mut receives = sends.clone();
    for (program, ranks) in plan.programs.iter().zip(ranks_of) {
        for actor in &program.actors {
            let (list, channel) = match actor.action {
                Action::Send { channel } => (&mut sends, channel),
                Action::Receive { channel } => (&mut receives, channel),
                _ => continue,
            };
            list[channel.index()].extend(ranks);
            let rate = plan.channels[channel.index()].rate;
            errors.require(actor.rate == rate, format!("`{}`", actor.name), || {
                format!("{channel} has another rate")
            });
        }
    }
    for (index, channel) in plan.channels.iter().enumerate() {
        let place = format!("channels[{index}] `{}`", channel.tensor);
        let sides = [
            (channel.from, &mut sends[index], "send"),
            (channel.to, &mut receives[index], "receive"),
        ];
        for (layout, ranks, what) in sides {
            let mut expected = plan.layouts[layout.index()].ranks.clone();
            expected.sort_unstable();
            ranks.sort_unstable();
            errors.require(*ranks == expected, &place, || {
                format!("ranks {ranks:?} {what}, ranks {expected:?} should")
            });
        }
    }
}

/// Checks that collectives and sends stand in ascending order in a block, no two with the same number.
fn check_sequence_order(plan: &Plan, index: usize, program: &Program, errors: &mut ErrorCollector) {
    let mut seen = BTreeSet::new();
    for (number, stream) in program.streams.iter().enumerate() {
        for (block, actors) in stream.blocks.iter().enumerate() {
            let mut last: Option<(u32, &str)> = None;
            for actor in actors.iter().map(|actor| &program.actors[actor.index()]) {
                let sequence = match actor.action {
                    Action::Collective { sequence, .. } => sequence,
                    Action::Send { channel } => plan.channels[channel.index()].sequence,
                    _ => continue,
                };
                let place = format!("programs[{index}].streams[{number}].blocks[{block}]");
                errors.require(seen.insert(sequence), &place, || {
                    format!("`{}` has the number {sequence} of another", actor.name)
                });
                if let Some((before, name)) = last.filter(|last| last.0 > sequence) {
                    let message = format!(
                        "`{name}` ({before}) stands before `{}` ({sequence}): out of order",
                        actor.name
                    );
                    errors.add(&place, message);
                }
                last = Some((sequence, &actor.name));
            }
        }
    }
}
