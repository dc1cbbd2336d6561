//! Cuts blocks into legs, which end at meetings with other ranks.
//!
//! Between two meetings a stream that is alone on its rank does not wait. So the local actions of a leg are one sum of seconds.

use graphc_ir::ids::ActorId;
use graphc_plan::{Action, Actor, Plan, Program};

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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SequenceWork {
    /// Seconds of kernels.
    pub compute: f64,
    /// Seconds of collectives among ranks of one class.
    pub communication: f64,
    /// The number of actions that the host issues.
    issued: usize,
    /// Seconds from the time at which the host begins to issue them until the last is done, if the stream is free.
    from_host: f64,
}

/// The times when a stream and its host are free. The host issues actions in order, each in `dispatch` seconds, and runs ahead of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StreamClock {
    /// The time when the stream has done the actions that were issued.
    pub device: f64,
    /// The time when the host has issued them.
    pub host: f64,
}

impl SequenceWork {
    /// Whether an action with these seconds of computing and of communication is of another kind than the work so far, or meets other ranks.
    fn is_other(&self, seconds: Option<(f64, f64)>) -> bool {
        let any = self.issued > 0;
        any && seconds.is_none_or(|(compute, communication)| {
            compute > 0.0 && self.communication > 0.0 || communication > 0.0 && self.compute > 0.0
        })
    }

    /// Adds an action.
    fn add_action(&mut self, compute: f64, communication: f64, dispatch: f64) {
        self.compute += compute;
        self.communication += communication;
        self.issued += 1;
        let issued = self.issued as f64 * dispatch;
        self.from_host = self.from_host.max(issued) + compute + communication;
    }

    /// Returns the clock after all actions.
    pub(super) fn clock_after(&self, clock: StreamClock, dispatch: f64) -> StreamClock {
        let device = clock.device + self.compute + self.communication;
        StreamClock {
            device: device.max(clock.host + self.from_host),
            host: clock.host + self.issued as f64 * dispatch,
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
        let dispatch = self.plan.cluster.dispatch_seconds();
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
                    leg.work.add_action(compute, communication, dispatch)
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
            let mut one_by_one = StreamClock { device: 2.0, host };
            let mut work = SequenceWork::default();
            for s in seconds {
                one_by_one.host += dispatch;
                one_by_one.device = one_by_one.device.max(one_by_one.host) + s;
                work.add_action(s, 0.0, dispatch);
            }
            assert_eq!(work.clock_after(StreamClock { device: 2.0, host }, dispatch), one_by_one);
        }
    }
}
