//! Sums the bytes that are alive over a simulated step, by what they are for.

use std::collections::{BTreeMap, BTreeSet};

use graphc_plan::{Plan, Program};
use serde::Serialize;

use super::events::{Event, Ran};
use super::places::{RankRun, ranks_of_class};
use super::table::InternTable;
use crate::report::contents::{OrderedAction, Use, list_contents, register_uses};

/// Moments of all programs together, and of one at most.
const MOMENTS: usize = 2400;
const MOST_MOMENTS: usize = 480;

/// Contents that are named at a moment.
const NAMED: usize = 6;

/// Programs that are shown: of more those with the most memory.
const MOST_PROGRAMS: usize = 16;

/// The memory of all programs.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// Bytes that a device has.
    pub device_bytes: u64,
    /// Bytes that a rank may use, where the plan was made for less than a device has.
    pub limit_bytes: Option<u64>,
    /// Names of what bytes are for, in the order of [`Moment`]s.
    pub kinds: [&'static str; 9],
    /// The programs that are shown.
    pub programs: Vec<Filled>,
    /// Programs that are left out.
    pub left_out: usize,
}

/// The memory of one program.
#[derive(Clone, Debug, Serialize)]
pub struct Filled {
    /// The program.
    pub program: usize,
    /// Its stage.
    pub stage: usize,
    /// Its ranks.
    pub ranks: Vec<RankRun>,
    /// Bytes of its arena: what a rank takes.
    pub arena_bytes: u64,
    /// The number of the fullest moment.
    pub peak: usize,
    /// Names that `moments` refer to.
    pub names: Vec<String>,
    /// Moments, in order.
    pub moments: Vec<Moment>,
}

/// A moment: seconds, bytes by kind, actor (into the names of the timeline), largest contents as (name, bytes, how many).
pub(super) type Moment = (f64, [u64; 9], usize, Vec<(usize, u64, u32)>);

/// Sums what fills the memory of each program while its first class runs.
pub(super) fn sum_memory(plan: &Plan, ran: &[Ran<'_>]) -> Memory {
    let mut first: BTreeMap<usize, &Ran<'_>> = BTreeMap::new();
    for ran in ran.iter().filter(|ran| !ran.program.actors.is_empty()) {
        first.entry(ran.index).or_insert(ran);
    }
    let mut shown: Vec<&Ran<'_>> = first.into_values().collect();
    let all = shown.len();
    shown.sort_by_key(|ran| std::cmp::Reverse(ran.program.arena_bytes));
    shown.truncate(MOST_PROGRAMS);
    shown.sort_by_key(|ran| (ran.program.stage, ran.index));
    let moments = MOMENTS.div_ceil(shown.len().max(1)).min(MOST_MOMENTS);
    Memory {
        device_bytes: plan.cluster.device.memory,
        limit_bytes: plan.options.memory,
        kinds: Use::ALL.map(Use::name),
        left_out: all - shown.len(),
        programs: shown.into_iter().map(|ran| fill_over_time(plan, ran, moments)).collect(),
    }
}

fn fill_over_time(plan: &Plan, ran: &Ran<'_>, most: usize) -> Filled {
    let events = ran.by_start();
    let mut sweep = Sweep::new(plan, ran.program, &events);
    let totals = sweep.totals();
    let mut names = InternTable::default();
    let mut moments: Vec<Moment> = Vec::new();
    for position in choose_positions(&events, &totals, most) {
        sweep.go_to(position);
        let event = &events[position];
        moments.push((event.start, sweep.kinds, event.actor, sweep.largest(&mut names)));
    }
    let total = |moment: &Moment| moment.1.iter().sum::<u64>();
    let most = moments.iter().map(total).max().unwrap_or(0);
    Filled {
        program: ran.index,
        stage: ran.program.stage,
        ranks: ranks_of_class(
            &plan.ranks.iter().map(|rank| rank.program.index()).collect::<Vec<_>>(),
            ran.index,
        ),
        arena_bytes: ran.program.arena_bytes,
        peak: moments.iter().position(|moment| total(moment) == most).unwrap_or(0),
        names: names.all,
        moments,
    }
}

/// Positions that are shown: all, or of each of `most` equal spans of time the fullest.
fn choose_positions(events: &[Event], totals: &[u64], most: usize) -> Vec<usize> {
    if events.len() <= most {
        return (0..events.len()).collect();
    }
    let end = events.last().map_or(0.0, |event| event.start).max(f64::MIN_POSITIVE);
    let span = |event: &Event| (event.start / end * most as f64) as usize;
    let mut fullest: BTreeMap<usize, usize> = BTreeMap::new();
    for (position, event) in events.iter().enumerate() {
        let best = fullest.entry(span(event)).or_insert(position);
        if totals[position] > totals[*best] {
            *best = position;
        }
    }
    fullest.into_values().collect()
}

/// Goes through the positions of a step and knows what is alive.
struct Sweep<'a> {
    program: &'a Program,
    uses: Vec<Use>,
    /// The registers of which a content begins at a position, and those of which one ends behind it, by position.
    begins: Vec<Vec<usize>>,
    ends: Vec<Vec<usize>>,
    next: usize,
    /// Bytes by kind at the position before `next`.
    kinds: [u64; 9],
    /// The number of contents that are alive, by register.
    alive: Vec<u32>,
    /// Bytes and register of all that are alive.
    by_size: BTreeSet<(u64, usize)>,
}

impl<'a> Sweep<'a> {
    fn new(plan: &Plan, program: &'a Program, events: &[Event]) -> Self {
        // One past the last that begins before this one ends; never before itself.
        let until = |(position, event): (usize, &Event)| {
            events.partition_point(|other| other.start < event.end).saturating_sub(1).max(position)
        };
        let order: Vec<OrderedAction> = (events.iter().enumerate())
            .map(|(position, event)| OrderedAction {
                actor: event.actor,
                microbatch: event.microbatch,
                until: until((position, event)),
            })
            .collect();
        let mut begins = vec![Vec::new(); order.len()];
        let mut ends = begins.clone();
        for content in list_contents(program, &order) {
            if let Some(end) = ends.get_mut(content.last) {
                begins[content.first].push(content.register);
                end.push(content.register);
            }
        }
        Self {
            program,
            uses: register_uses(plan, program),
            begins,
            ends,
            next: 0,
            kinds: [0; 9],
            alive: vec![0; program.registers.len()],
            by_size: BTreeSet::new(),
        }
    }

    /// Bytes that are alive at each position.
    fn totals(&self) -> Vec<u64> {
        let bytes = |registers: &Vec<usize>| -> u64 {
            registers.iter().map(|&register| self.program.registers[register].slot_bytes).sum()
        };
        let mut alive = 0;
        let both = self.begins.iter().zip(&self.ends);
        both.map(|(begins, ends)| {
            alive += bytes(begins);
            let now = alive;
            alive -= bytes(ends);
            now
        })
        .collect()
    }

    /// Goes on to a position, at which what begins there is alive, and what ends there still is.
    fn go_to(&mut self, position: usize) {
        while self.next <= position {
            if self.next > 0 {
                for register in std::mem::take(&mut self.ends[self.next - 1]) {
                    self.change(register, false);
                }
            }
            for register in std::mem::take(&mut self.begins[self.next]) {
                self.change(register, true);
            }
            self.next += 1;
        }
    }

    fn change(&mut self, register: usize, more: bool) {
        let bytes = self.program.registers[register].slot_bytes;
        let kind = &mut self.kinds[self.uses[register].place()];
        let alive = &mut self.alive[register];
        self.by_size.remove(&(bytes * u64::from(*alive), register));
        (*kind, *alive) =
            if more { (*kind + bytes, *alive + 1) } else { (*kind - bytes, *alive - 1) };
        if *alive > 0 {
            self.by_size.insert((bytes * u64::from(*alive), register));
        }
    }

    fn largest(&self, names: &mut InternTable<String>) -> Vec<(usize, u64, u32)> {
        let mut of = |&(bytes, register): &(u64, usize)| {
            let name = names.intern(self.program.registers[register].name.clone());
            (name, bytes, self.alive[register])
        };
        self.by_size.iter().rev().take(NAMED).map(&mut of).collect()
    }
}
