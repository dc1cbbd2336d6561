//! Cuts blocks into legs, which end at meetings with other ranks.
//!
//! Between two meetings a stream that is alone on its rank does not wait. So the local actions of a leg are one sum of seconds.

use graphc_ir::ids::ActorId;
use graphc_ir::op::Op;
use graphc_plan::{Action, Actor, Cluster, Plan, Program};

use super::classes::Classes;
use super::rendezvous::{self, Party, Rendezvous};

/// A part of a block: local actions, then perhaps one that meets other classes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Leg {
    /// The range of its actors: the first position in the block, and one past the last.
    pub places: (usize, usize),
    /// The work of the local actions.
    pub work: SequenceWork,
    /// The action that meets others.
    pub meets: Option<ActorId>,
}

/// The work of a sequence of local actions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SequenceWork {
    /// Seconds of kernels.
    pub compute: f64,
    /// Seconds of collectives among ranks of one class.
    pub communication: f64,
    /// Seconds from the time at which each of the two is free until the stream is, if the other one holds nothing up.
    until_device: Waits,
    /// The same until the host is.
    until_host: Waits,
}

/// Seconds after the times when a stream and its host are free; the later of both sums counts. Infinity below 0 where one says nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Waits {
    device: f64,
    host: f64,
}

/// What the host does for an action.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct HostWork {
    /// The seconds that it takes to issue it.
    pub seconds: f64,
    /// Whether it waits until the device has done it.
    pub waits: bool,
}

/// The times when a stream and its host are free. The host issues actions in order, each in some seconds, and runs ahead of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StreamClock {
    /// The time when the stream has done the actions that were issued.
    pub device: f64,
    /// The time when the host has issued them.
    pub host: f64,
}

impl Default for SequenceWork {
    /// Nothing is done: each is free when it was.
    fn default() -> Self {
        Self {
            compute: 0.0,
            communication: 0.0,
            until_device: Waits { device: 0.0, host: f64::NEG_INFINITY },
            until_host: Waits { device: f64::NEG_INFINITY, host: 0.0 },
        }
    }
}

impl Waits {
    fn add(self, seconds: f64) -> Self {
        Self { device: self.device + seconds, host: self.host + seconds }
    }

    fn later(self, other: Self) -> Self {
        Self { device: self.device.max(other.device), host: self.host.max(other.host) }
    }

    fn time_after(self, clock: StreamClock) -> f64 {
        (clock.device + self.device).max(clock.host + self.host)
    }
}

impl HostWork {
    /// Returns what a host that runs this framework does for an action: products of experts that are not one kernel are issued one by one, and where it
    /// must know how many tokens each expert has, it waits for those that are sent to them.
    fn of_actor(cluster: &Cluster, program: &Program, actor: &Actor) -> Self {
        let framework = &cluster.framework;
        let experts = count_experts(program, actor) as f64;
        let seconds = cluster.dispatch_seconds() + framework.expert_dispatch * experts;
        let waits = framework.waits_for_counts && sends_tokens(actor);
        Self { seconds, waits }
    }
}

/// Returns the number of experts whose products with their tokens an actor takes.
fn count_experts(program: &Program, actor: &Actor) -> usize {
    let Action::Compute { op, .. } = &actor.action else { return 0 };
    let matrices = match op {
        Op::GroupedMatMul(_) => actor.inputs.get(1),
        Op::GroupedMatMulGrad(_) => actor.outputs.first(),
        _ => None,
    };
    let shape = matrices.map(|id| &program.registers[id.index()].shape[..]);
    shape.and_then(|shape| shape.first()).copied().unwrap_or(0)
}

/// Whether an actor puts tokens at the places of the experts that they chose. Their gradients go there with weights.
fn sends_tokens(actor: &Actor) -> bool {
    const TOKENS_AND_CHOICES: usize = 2;
    match &actor.action {
        Action::Compute { op: Op::Dispatch(_), operands } => operands.len() == TOKENS_AND_CHOICES,
        _ => false,
    }
}

impl SequenceWork {
    /// Whether an action with these seconds of computing and of communication is of another kind than the work so far, or meets other ranks.
    fn is_other(&self, seconds: Option<(f64, f64)>) -> bool {
        let any = *self != Self::default();
        any && seconds.is_none_or(|(compute, communication)| {
            compute > 0.0 && self.communication > 0.0 || communication > 0.0 && self.compute > 0.0
        })
    }

    /// Adds an action.
    fn add_action(&mut self, compute: f64, communication: f64, host: HostWork) {
        self.compute += compute;
        self.communication += communication;
        self.until_host = self.until_host.add(host.seconds);
        self.until_device = self.until_device.later(self.until_host).add(compute + communication);
        if host.waits {
            self.until_host = self.until_host.later(self.until_device);
        }
    }

    /// Returns the clock after all actions.
    pub(super) fn clock_after(&self, clock: StreamClock) -> StreamClock {
        StreamClock {
            device: self.until_device.time_after(clock),
            host: self.until_host.time_after(clock),
        }
    }
}

/// The parameters of cutting blocks.
pub(super) struct Cutter<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The classes of its ranks.
    pub classes: &'a Classes,
    /// The other ends of legs.
    pub cuts: Cuts<'a>,
}

/// The positions besides meetings at which legs end.
#[derive(Clone, Copy)]
pub(super) enum Cuts<'a> {
    /// No others.
    Meetings,
    /// Behind the marked positions, by block and position, and between kernels and communication.
    Behind(&'a [Vec<bool>]),
    /// Behind every action.
    Actions,
}

impl Cuts<'_> {
    /// Whether a leg ends behind a position of a block.
    fn cuts_behind(&self, block: usize, place: usize) -> bool {
        match self {
            Self::Meetings => false,
            Self::Behind(places) => places[block][place],
            Self::Actions => true,
        }
    }
}

impl Cutter<'_> {
    /// Cuts every block of a stream into legs, on ranks of a class.
    pub(super) fn cut_blocks(
        &self,
        meetings: &mut Rendezvous,
        class: usize,
        program: &Program,
        blocks: &[Vec<ActorId>],
    ) -> Vec<Vec<Leg>> {
        let of = |(index, block)| self.cut_block(meetings, class, program, (index, block));
        blocks.iter().enumerate().map(of).collect()
    }

    fn cut_block(
        &self,
        meetings: &mut Rendezvous,
        class: usize,
        program: &Program,
        (index, block): (usize, &Vec<ActorId>),
    ) -> Vec<Leg> {
        let (mut legs, mut leg) = (Vec::new(), Leg::default());
        for (place, &id) in block.iter().enumerate() {
            let actor = &program.actors[id.index()];
            let seconds = self.action_seconds(meetings, class, program, actor);
            if matches!(self.cuts, Cuts::Behind(_)) && leg.work.is_other(seconds) {
                let next = Leg { places: (place, place), ..Leg::default() };
                legs.push(std::mem::replace(&mut leg, next));
            }
            leg.places.1 = place + 1;
            match seconds {
                Some((compute, communication)) => {
                    let host = HostWork::of_actor(&self.plan.cluster, program, actor);
                    leg.work.add_action(compute, communication, host)
                }
                None => leg.meets = Some(id),
            }
            if leg.meets.is_some() || self.cuts.cuts_behind(index, place) {
                let next = Leg { places: (place + 1, place + 1), ..Leg::default() };
                legs.push(std::mem::replace(&mut leg, next));
            }
        }
        if leg.places.0 < leg.places.1 {
            legs.push(leg);
        }
        legs
    }

    /// Returns the seconds of computing and of communication of an action, or `None` if it meets ranks of other classes.
    fn action_seconds(
        &self,
        meetings: &mut Rendezvous,
        class: usize,
        program: &Program,
        actor: &Actor,
    ) -> Option<(f64, f64)> {
        match actor.action {
            Action::Send { .. } | Action::Receive { .. } => None,
            Action::Collective { kind, axis, .. } => {
                let party =
                    meetings.find_party(self.plan, self.classes, class, (program, actor, axis));
                let Party { classes, .. } = &*party;
                (classes[..] == [class]).then(|| {
                    let bytes = rendezvous::moved_bytes(&self.plan.layouts, program, actor);
                    (0.0, rendezvous::meeting_seconds(self.plan, &party, kind, bytes))
                })
            }
            _ => Some((actor.seconds, 0.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_actions_is_what_they_take_one_by_one() {
        let seconds = [3.0, 0.5, 0.5, 0.5, 4.0, 1.0];
        for (dispatch, host) in [(0.0, 0.0), (1.0, 0.0), (1.0, 5.0), (2.0, 0.0)] {
            for waits_at in [None, Some(0), Some(3), Some(5)] {
                let mut one_by_one = StreamClock { device: 2.0, host };
                let mut work = SequenceWork::default();
                for (index, s) in seconds.into_iter().enumerate() {
                    let waits = waits_at == Some(index);
                    one_by_one.host += dispatch;
                    one_by_one.device = one_by_one.device.max(one_by_one.host) + s;
                    if waits {
                        one_by_one.host = one_by_one.host.max(one_by_one.device);
                    }
                    work.add_action(s, 0.0, HostWork { seconds: dispatch, waits });
                }
                assert_eq!(work.clock_after(StreamClock { device: 2.0, host }), one_by_one);
            }
        }
    }
}
