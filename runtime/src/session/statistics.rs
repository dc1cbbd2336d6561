//! Measurements of a session.

use std::time::Duration;

use graphc_ir::ids::ActorId;
use graphc_plan::{Actor, Plan, RankEntry, Register};

use crate::worker::Report;

/// The measurements of a session, over all steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Steps done.
    pub steps: u64,
    /// One entry per rank.
    pub ranks: Vec<RankStatistics>,
}

/// The measurements of one rank, summed over its workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankStatistics {
    /// Number of actions.
    pub actions: u64,
    /// Time in kernels.
    pub kernels: Duration,
    /// Time in collectives, channels, feeds and fetches, without waiting.
    pub communication: Duration,
    /// Time spent waiting for other ranks or other workers of the rank while a step was under way.
    pub waiting: Duration,
    /// Time from the first action of a step to its last, summed over steps.
    pub steps: Duration,
    /// The rank's actors, in the program's order.
    pub actors: Vec<ActorStatistics>,
    /// The rank's registers, in the plan's order.
    pub registers: Vec<RegisterStatistics>,
}

/// The measurements of one actor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActorStatistics {
    /// The actor's name.
    pub name: String,
    /// Time in its actions, without waiting.
    pub time: Duration,
    /// The times of each action in steps taken apart ([`Session::step_apart`](super::Session::step_apart)), from where it
    /// is launched to its end, with waiting for other ranks.
    pub apart: Vec<Duration>,
    /// The actor whose launch does what this one says, where several are launched as one: its actions are theirs.
    pub joined: Option<ActorId>,
}

/// The measurements of one register.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisterStatistics {
    /// The register's name.
    pub name: String,
    /// The number of contents that it can hold.
    pub slots: u32,
    /// The greatest number of contents that existed at once.
    pub high_water: u64,
}

/// Statistics of a plan before anything was measured.
pub(super) fn empty_statistics(plan: &Plan, steps: u64) -> Statistics {
    let rank = |entry: &RankEntry| {
        let program = &plan.programs[entry.program.index()];
        let actor = |a: &Actor| ActorStatistics { name: a.name.clone(), ..Default::default() };
        let register = |r: &Register| RegisterStatistics {
            name: r.name.clone(),
            slots: r.slots,
            high_water: 0,
        };
        RankStatistics {
            actors: program.actors.iter().map(actor).collect(),
            registers: program.registers.iter().map(register).collect(),
            ..RankStatistics::default()
        }
    };
    Statistics { steps, ranks: plan.ranks.iter().map(rank).collect() }
}

impl RankStatistics {
    /// Adds what one worker has measured.
    pub(super) fn add_report(&mut self, report: &Report) {
        self.actions += report.actions;
        self.kernels += report.kernels;
        self.communication += report.communication;
        self.waiting += report.waiting;
        self.steps = self.steps.max(report.steps);
        for (actor, &time) in self.actors.iter_mut().zip(&report.actors) {
            actor.time += time;
        }
        for (actor, times) in self.actors.iter_mut().zip(&report.apart) {
            actor.apart.extend(times);
        }
        for (actor, joined) in self.actors.iter_mut().zip(&report.joined) {
            actor.joined = actor.joined.or(joined.map(ActorId));
        }
        for (register, &high_water) in self.registers.iter_mut().zip(&report.high_water) {
            register.high_water = register.high_water.max(high_water);
        }
    }
}
