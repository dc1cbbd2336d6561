//! Packs the simulated step for a page.
//!
//! A step of many microbatches is a million events. Nearly all are those of another microbatch, later. So each block
//! of a stream is written once, with the times of its first run. Of every run the page has the start, and where it
//! departs from the first because it waited or took longer. A page of 1,024 ranks then has 2.5 MB.

use std::collections::BTreeMap;

use graphc_plan::{Actor, Plan, Program};
use serde::Serialize;

use super::doing::{Doing, Makers, PASSES, passes_of_actors};
use super::events::{Event, Ran};
use super::parts::Parts;
use super::places::{PlanPlaces, RankRun};
use super::registers::{RegisterRow, Touched, list_registers, touched_registers};
use super::table::InternTable;
use super::waits::{StreamHistory, Wait};

/// Ticks of a step: what times are counted in.
const TICKS: f64 = (1u64 << 28) as f64;

/// Departures of at most so many ticks are none: a hundred millionth of the step.
const SAME: i64 = 3;

/// Classes of ranks that a page shows; of more those with the lowest ranks of each program come first.
const MOST_ROWS: usize = 64;

/// Actors that the programs of those classes have together, unless one alone has more.
const MOST_ACTORS: usize = 40_000;

/// The step.
#[derive(Clone, Debug, Serialize)]
pub struct Timeline {
    /// Seconds of a tick.
    pub tick_seconds: f64,
    /// Names of what actors do.
    pub doings: [&'static str; 6],
    /// Names of passes.
    pub passes: [&'static str; 3],
    /// The actors of each program; empty for programs that are not shown.
    pub actors: Vec<Vec<ActorRow>>,
    /// The registers of each program; empty for programs that are not shown.
    pub registers: Vec<Vec<RegisterRow>>,
    /// Ranks that behave alike.
    pub rows: Vec<TimelineRow>,
    /// Rows that are left out.
    pub left_out: usize,
}

/// An actor: its name, what it does, its pass, the number of the part of the model that it works on, its layer (null where there is
/// none), and the registers that it makes, reads and changes.
pub(crate) type ActorRow = (String, usize, Option<usize>, usize, Option<usize>, Touched);

/// The streams of ranks that behave alike.
#[derive(Clone, Debug, Serialize)]
pub struct TimelineRow {
    /// The first of them.
    pub rank: u32,
    /// The number of the ranks.
    pub ranks: usize,
    /// The ranks.
    pub of: Vec<RankRun>,
    /// The stage of the ranks.
    pub stage: usize,
    /// The program of the ranks.
    pub program: usize,
    /// The lanes, by stream.
    pub streams: Vec<Lane>,
    /// The waits of actors, by stream.
    pub waits: Vec<Vec<Wait>>,
}

/// The blocks and runs of a stream.
#[derive(Clone, Debug, Serialize)]
pub struct Lane {
    /// Blocks: their actors.
    pub blocks: Vec<Vec<usize>>,
    /// For each block and actor, its start from the block's start, and its end, in ticks, at the first run.
    pub base: Vec<Vec<(i64, i64)>>,
    /// Runs of blocks.
    pub items: Vec<Item>,
}

/// One run of a block: block, microbatch, start in ticks, and departures from the first run as (place, ticks that this and
/// all that follows comes later, ticks that it takes longer).
pub(super) type Item = (u32, u32, i64, Vec<(usize, i64, i64)>);

/// The names of actors: what they do, the parts of the model, and the numbers of parts and of tensors.
pub(super) struct Names<'a> {
    /// The ops that make each tensor.
    pub makers: &'a Makers,
    /// The parts of the model.
    pub parts: &'a Parts,
    /// Names of parts by number.
    pub paths: &'a mut InternTable<String>,
}

impl Names<'_> {
    fn rows(&mut self, program: &Program) -> Vec<ActorRow> {
        let doings = self.makers.of_program(program);
        let passes = passes_of_actors(program, &doings);
        let of = |(actor, (doing, pass)): (&Actor, (Doing, Option<usize>))| {
            let named = tensors_of_actor(program, actor);
            let part = self.parts.of_names(named.iter().copied());
            let path = self.paths.intern(part.path);
            let touched = touched_registers(actor);
            (actor.name.clone(), doing.number(), pass, path, part.layer, touched)
        };
        program.actors.iter().zip(doings.into_iter().zip(passes)).map(of).collect()
    }
}

/// The names of the tensors that an actor is about: what it changes, else makes, else takes.
fn tensors_of_actor<'a>(program: &'a Program, actor: &Actor) -> Vec<&'a str> {
    let all = [&actor.updates, &actor.outputs, &actor.inputs];
    let first = all.into_iter().find(|registers| !registers.is_empty());
    let registers = first.into_iter().flatten();
    registers.map(|register| program.registers[register.index()].name.as_str()).collect()
}

/// Packs what was simulated.
pub(super) fn pack_timeline(
    plan: &Plan,
    ran: &[Ran<'_>],
    names: &mut Names<'_>,
    places: &mut PlanPlaces,
    step_seconds: f64,
) -> Timeline {
    let tick = if step_seconds > 0.0 { step_seconds / TICKS } else { 1.0 };
    let shown: Vec<&Ran<'_>> = shown_classes(ran);
    let waits = StreamHistory::new(plan, ran, tick * SAME as f64);
    let is_shown = |index: usize| shown.iter().any(|ran| ran.index == index);
    let programs = plan.programs.iter().enumerate();
    let actors = programs.map(|(index, program)| match is_shown(index) {
        true => names.rows(program),
        false => Vec::new(),
    });
    Timeline {
        tick_seconds: tick,
        doings: Doing::NAMES,
        passes: PASSES,
        actors: actors.collect(),
        registers: list_registers(plan, is_shown, places),
        left_out: ran.iter().filter(|ran| !ran.program.actors.is_empty()).count() - shown.len(),
        rows: shown.iter().map(|ran| timeline_row(ran, &waits, tick)).collect(),
    }
}

/// The classes that are shown, by stage.
pub(super) fn shown_classes<'a, 'b>(ran: &'a [Ran<'b>]) -> Vec<&'a Ran<'b>> {
    let mut firsts = BTreeMap::new();
    let mut order: Vec<(bool, &Ran<'_>)> = (ran.iter())
        .map(|ran| (firsts.insert(ran.index, ()).is_some(), ran))
        .filter(|(_, ran)| !ran.program.actors.is_empty())
        .collect();
    order.sort_by_key(|&(again, _)| again);
    let (mut rows, mut actors) = (0, 0);
    order.retain(|(again, ran)| {
        actors += if *again { 0 } else { ran.program.actors.len() };
        rows += 1;
        rows == 1 || rows <= MOST_ROWS && actors <= MOST_ACTORS
    });
    order.sort_by_key(|(_, ran)| (ran.class.stage, ran.class.rank));
    order.into_iter().map(|(_, ran)| ran).collect()
}

fn timeline_row(ran: &Ran<'_>, waits: &StreamHistory<'_, '_>, tick: f64) -> TimelineRow {
    let lanes = ran.program.streams.iter().zip(&ran.streams).map(|(stream, events)| {
        let blocks = stream.blocks.iter().map(|block| block.iter().map(|a| a.index()).collect());
        let mut lane = Lane {
            blocks: blocks.collect(),
            base: vec![Vec::new(); stream.blocks.len()],
            items: Vec::new(),
        };
        for run in events.chunk_by(|a, b| a.item == b.item) {
            let block = stream.order[run[0].item].block;
            let item = lane.item(block, run, tick);
            lane.items.push(item);
        }
        lane
    });
    let streams = lanes.collect();
    let class = ran.class;
    TimelineRow {
        rank: class.rank,
        ranks: class.ranks,
        of: ran.ranks.clone(),
        stage: class.stage,
        program: ran.index,
        streams,
        waits: waits.list_of_rank(class.rank),
    }
}

impl Lane {
    /// Packs a run of a block, and keeps its times if it is the first.
    fn item(&mut self, block: u32, run: &[Event], tick: f64) -> Item {
        let ticks = |seconds: f64| (seconds / tick).round() as i64;
        let start = ticks(run[0].start);
        let base = &mut self.base[block as usize];
        if base.is_empty() {
            *base = run.iter().map(|e| (ticks(e.start) - start, ticks(e.end) - start)).collect();
        }
        let (mut later, mut departures) = (0, Vec::new());
        for (place, (event, &(from, to))) in run.iter().zip(base.iter()).enumerate() {
            let waited = ticks(event.start) - start - from - later;
            let longer = ticks(event.end) - ticks(event.start) - (to - from);
            if waited.abs() > SAME || longer.abs() > SAME {
                departures.push((place, waited, longer));
                later += waited + longer;
            }
        }
        (block, run[0].microbatch, start, departures)
    }
}
