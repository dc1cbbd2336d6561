//! Tells what streams wait for: of each actor that begins later than it could, the tensor and the ranks that it needs.

use std::collections::BTreeMap;

use graphc_compiler::boxing::Senders;
use graphc_ir::ids::{LayoutId, RegisterId};
use graphc_plan::{Action, Plan};
use serde::Serialize;

use super::events::{Event, Ran};
use super::places::{RankRun, rank_runs, ranks_of_run};

/// The wait of an actor of a stream.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wait {
    /// The actor.
    pub actor: usize,
    /// The name of the tensor; empty where none is known.
    pub tensor: String,
    /// The ranks that give it or take part; none where the rank waits for another stream of its own.
    pub ranks: Vec<RankRun>,
}

/// Of each actor its stream, and when its actions ended.
type Ends = BTreeMap<usize, (usize, Vec<f64>)>;

/// The actions of the streams of all classes, from which follows what each waits for.
pub(super) struct StreamHistory<'a, 'b> {
    plan: &'a Plan,
    all: &'a [Ran<'b>],
    /// The ends of actors of each class.
    ends: Vec<Ends>,
    /// The number of the class of each rank.
    class_of_rank: BTreeMap<u32, usize>,
    /// Seconds up to which an event follows at once.
    least: f64,
}

impl<'a, 'b> StreamHistory<'a, 'b> {
    /// Takes what all classes did.
    pub(super) fn new(plan: &'a Plan, all: &'a [Ran<'b>], least: f64) -> Self {
        let ends = all.iter().map(ends_of_actors).collect();
        let ranks_of = |(number, ran): (usize, &Ran<'b>)| {
            let ranks = ran.ranks.iter().flat_map(|&run| ranks_of_run(run));
            ranks.map(move |rank| (rank, number)).collect::<Vec<_>>()
        };
        let class_of_rank = all.iter().enumerate().flat_map(ranks_of).collect();
        Self { plan, all, ends, class_of_rank, least }
    }

    /// Lists what each stream of a rank waits for, where an event begins later than the one before it ends.
    pub(super) fn list_of_rank(&self, rank: u32) -> Vec<Vec<Wait>> {
        let class = self.class_of_rank[&rank];
        let of_stream = |(stream, events): (usize, &Vec<Event>)| {
            let mut found: BTreeMap<usize, Wait> = BTreeMap::new();
            let mut free = 0.0;
            for event in events {
                if event.start - free > self.least {
                    let wait = || self.describe_wait(class, stream, event);
                    found.entry(event.actor).or_insert_with(wait);
                }
                free = event.end;
            }
            found.into_values().collect()
        };
        self.all[class].streams.iter().enumerate().map(of_stream).collect()
    }

    fn describe_wait(&self, class: usize, stream: usize, event: &Event) -> Wait {
        let (plan, ran) = (self.plan, &self.all[class]);
        let rank = ran.class.rank;
        let actor = &ran.program.actors[event.actor];
        let own = last_made_elsewhere(ran, (stream, event), &self.ends[class]);
        let (tensor, ranks) = match &actor.action {
            Action::Receive { channel } => {
                let channel = &plan.channels[channel.index()];
                (channel.tensor.clone(), senders_to(plan, (channel.from, channel.to), rank))
            }
            Action::Send { channel } => {
                let channel = &plan.channels[channel.index()];
                (channel.tensor.clone(), plan.layouts[channel.to.index()].ranks.clone())
            }
            // A collective begins when its operand is there, or else when the last of its ranks is ready.
            Action::Collective { axis, .. }
                if own.as_ref().is_none_or(|(end, _)| event.start - end > self.least) =>
            {
                let first = actor.inputs.first().map(|id| &ran.program.registers[id.index()]);
                let group = first.and_then(|register| {
                    plan.layouts[register.layout.index()].axis_group(rank, *axis)
                });
                let tensor = first.map(|register| register.name.clone()).unwrap_or_default();
                let last = self.last_of_group(&group.unwrap_or_default(), &tensor, event.start);
                // Where none comes late it is the rank itself that holds it back until there is room.
                match last.is_empty() {
                    true => (self.ended_elsewhere(class, stream, event.start), last),
                    false => (tensor, last),
                }
            }
            _ => (own.map(|(_, tensor)| tensor).unwrap_or_default(), Vec::new()),
        };
        let ranks: Vec<u32> = ranks.into_iter().filter(|&other| other != rank).collect();
        Wait { actor: event.actor, tensor, ranks: rank_runs(&ranks) }
    }

    /// Those of a group that come last to a collective that begins at `start`; none where nobody has waited for another.
    fn last_of_group(&self, group: &[u32], tensor: &str, start: f64) -> Vec<u32> {
        let mut late: BTreeMap<usize, bool> = BTreeMap::new();
        let mut is_late = |rank: &u32| {
            let class = self.class_of_rank[rank];
            *late.entry(class).or_insert_with(|| {
                let ready = self.ready_time(class, tensor, start);
                ready.is_some_and(|ready| start - ready <= self.least)
            })
        };
        group.iter().copied().filter(|rank| is_late(rank)).collect()
    }

    /// The name of what another stream of a rank has done when an event begins; empty where none ends then.
    fn ended_elsewhere(&self, class: usize, stream: usize, start: f64) -> String {
        let ran = &self.all[class];
        let others = ran.streams.iter().enumerate().filter(|(other, _)| *other != stream);
        let ended = others.filter_map(|(_, events)| {
            let place = events.partition_point(|event| event.end < start - self.least);
            events.get(place).filter(|event| event.end <= start + self.least)
        });
        let name = |event: &Event| {
            let actor = &ran.program.actors[event.actor];
            let done = [&actor.outputs, &actor.updates, &actor.inputs].into_iter().flatten().next();
            done.map(|id| ran.program.registers[id.index()].name.clone())
        };
        ended.filter_map(name).next().unwrap_or_default()
    }

    /// The time from which a class could begin the collective of a tensor that begins at `start`: its stream is free, and the
    /// operand is there.
    fn ready_time(&self, class: usize, tensor: &str, start: f64) -> Option<f64> {
        let ran = &self.all[class];
        let is_it = |event: &Event| {
            let actor = &ran.program.actors[event.actor];
            let first = actor.inputs.first().map(|id| &ran.program.registers[id.index()]);
            matches!(actor.action, Action::Collective { .. })
                && first.is_some_and(|register| register.name == tensor)
        };
        ran.streams.iter().enumerate().find_map(|(stream, events)| {
            let from = events.partition_point(|event| event.start < start - self.least);
            let mut near =
                events[from..].iter().take_while(|event| event.start <= start + self.least);
            let place = from + near.position(is_it)?;
            let free = if place > 0 { events[place - 1].end } else { 0.0 };
            let operand = last_made_elsewhere(ran, (stream, &events[place]), &self.ends[class]);
            Some(operand.map_or(free, |(end, _)| free.max(end)))
        })
    }
}

fn ends_of_actors(ran: &Ran<'_>) -> Ends {
    let mut ends = Ends::new();
    for (stream, events) in ran.streams.iter().enumerate() {
        for event in events {
            ends.entry(event.actor).or_insert((stream, Vec::new())).1.push(event.end);
        }
    }
    ends
}

/// The ranks of one layout that hold something of what a rank holds in another.
fn senders_to(plan: &Plan, (from, to): (LayoutId, LayoutId), rank: u32) -> Vec<u32> {
    let (from, to) = (&plan.layouts[from.index()], &plan.layouts[to.index()]);
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
    ends: &Ends,
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

#[cfg(test)]
mod tests {
    use graphc_compiler::cluster::preset;
    use graphc_compiler::compile::compile;
    use graphc_compiler::null_device::trace;
    use graphc_ir::builder::GraphBuilder;
    use graphc_ir::ops::Init;
    use graphc_ir::types::DType;
    use graphc_plan::CompileOptions;

    use super::*;
    use crate::report::page::events::collect_runs;

    #[test]
    fn a_collective_waits_for_those_that_come_last() {
        let g = GraphBuilder::new("mean");
        let w = g.variable("w", DType::F32, [512, 512], Init::Fill(0.01.into()));
        let x = g.input("x", DType::F32, [3072, 512]);
        g.output("y", &x.matmul(&w).mean(&[0, 1], false));
        let options = CompileOptions { mesh: vec![3], ..CompileOptions::default() };
        let cpu = preset("cpu").expect("a preset");
        let plan =
            compile(g.finish().expect("a graph"), &options, &cpu, None).expect("a plan").plan;
        let traced = trace(&plan, 1).expect("it runs");
        let ran = collect_runs(&plan, &traced);
        let [alike] = ran.as_slice() else { panic!("{} classes", ran.len()) };
        let is_collective = |event: &Event| {
            matches!(alike.program.actors[event.actor].action, Action::Collective { .. })
        };
        let place = alike.streams[0].iter().position(is_collective).expect("summands are added");
        let meeting = alike.streams[0][place].actor;
        // As if each rank were of a class of its own, and rank 2 a second late.
        let one = |rank: u32| {
            let mut class = alike.class;
            (class.rank, class.ranks) = (rank, 1);
            let mut streams = alike.streams.clone();
            streams[0][place - 1].end += if rank == 2 { 1.0 } else { 0.0 };
            for event in &mut streams[0][place..] {
                (event.start, event.end) = (event.start + 1.0, event.end + 1.0);
            }
            let ranks = vec![(rank, 1, 1)];
            Ran { class, ranks, index: alike.index, program: alike.program, streams }
        };
        let all = [one(0), one(1), one(2)];
        let waits = StreamHistory::new(&plan, &all, 1e-9);
        for rank in 0..2 {
            let found = waits.list_of_rank(rank);
            let wait = found[0].iter().find(|wait| wait.actor == meeting).expect("it waits");
            assert_eq!(wait.ranks, [(2, 1, 1)]);
        }
        assert!(waits.list_of_rank(2)[0].iter().all(|wait| wait.actor != meeting));
    }
}
