//! Collects what streams did in a simulated step: the null device's trace, each event with its actor.

use std::collections::BTreeMap;

use graphc_compiler::null_device::{ClassReport, Simulation};
use graphc_plan::{Plan, Program, Stream};

use super::places::{RankRun, ranks_of_class};

/// Ranks that behave alike, and what the first of them did.
pub(super) struct Ran<'a> {
    /// The first of them, and how many there are.
    pub class: ClassReport,
    /// All of them.
    pub ranks: Vec<RankRun>,
    /// The number of their program.
    pub index: usize,
    /// The program of the ranks.
    pub program: &'a Program,
    /// The events of each stream in order.
    pub streams: Vec<Vec<Event>>,
}

/// One action.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    /// The actor.
    pub actor: usize,
    /// The place in the stream's order of blocks.
    pub item: usize,
    /// The microbatch.
    pub microbatch: u32,
    /// Seconds from the step's start.
    pub start: f64,
    /// Seconds from the step's start.
    pub end: f64,
}

impl Ran<'_> {
    /// Returns its events of all streams, by start.
    pub(super) fn by_start(&self) -> Vec<Event> {
        let mut all: Vec<Event> = self.streams.iter().flatten().copied().collect();
        all.sort_by(|a, b| a.start.total_cmp(&b.start));
        all
    }
}

/// The actions of each class's streams in the first step of a traced simulation.
pub(super) fn collect_runs<'a>(plan: &'a Plan, traced: &Simulation) -> Vec<Ran<'a>> {
    let mut times: BTreeMap<(u32, usize), Vec<(f64, f64)>> = BTreeMap::new();
    for event in traced.trace.iter().filter(|event| event.step == 0) {
        times.entry((event.rank, event.stream)).or_default().push((event.start, event.end));
    }
    let mut of_class = |(number, &class): (usize, &ClassReport)| {
        let ranks = ranks_of_class(&traced.class_of_rank, number);
        let index = plan.ranks[class.rank as usize].program.index();
        let program = &plan.programs[index];
        let stream = |(number, stream): (usize, &Stream)| {
            let times = times.remove(&(class.rank, number)).unwrap_or_default();
            list_events(stream, &times)
        };
        let streams = program.streams.iter().enumerate().map(stream).collect();
        Ran { class, ranks, index, program, streams }
    };
    traced.classes.iter().enumerate().map(&mut of_class).collect()
}

/// The actions of a stream in its order with when they came.
fn list_events(stream: &Stream, times: &[(f64, f64)]) -> Vec<Event> {
    let actions = stream.order.iter().enumerate().flat_map(|(item, of)| {
        let block = &stream.blocks[of.block as usize];
        block.iter().map(move |actor| (actor.index(), item, of.microbatch))
    });
    let event = |((actor, item, microbatch), &(start, end)): (_, &(f64, f64))| Event {
        actor,
        item,
        microbatch,
        start,
        end,
    };
    actions.zip(times).map(event).collect()
}
