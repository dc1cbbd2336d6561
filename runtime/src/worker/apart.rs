//! Steps that are taken apart: each action is launched by itself and timed.
//!
//! On a card an action stands between two events of its stream, which are read when the step has ended. So the host goes on
//! ahead, and the time to launch counts only where the card has nothing else to do. One worker launches on all streams of a rank.
//! Here an action also waits for the one before on another stream, so nothing runs beside what is timed.
//!
//! Two kinds of ranks do not take turns: those that send or receive, and those whose collectives are on several streams. A rank
//! with all actions in one row could wait to send for what a peer receives only later. All ranks have the collectives of one
//! stream in one order.
//!
//! On a processor an action has ended when it returns, and the clock tells. A rank's streams are threads there and go on beside
//! each other.

use std::collections::BTreeSet;

use graphc_ir::ids::ActorId;

use super::actor::PreparedWork;
use super::lanes::Lanes;
use crate::device::{DeviceStopwatch, DeviceStream};
use crate::error::Cause;

/// The stopwatches of a worker's actions.
#[derive(Default)]
pub(crate) struct ActionStopwatches {
    /// The stopwatches by the actions' places in a step; none where another's launch does an action's work. Made when a step is
    /// first taken apart.
    pub(super) watches: Vec<Option<DeviceStopwatch>>,
    /// Whether each action waits for the one before, whatever its stream.
    pub(super) in_turn: bool,
}

impl ActionStopwatches {
    pub(super) fn new(
        actors: &[Option<PreparedWork>],
        order: &[(ActorId, u32)],
        (lanes, streams): (&Lanes, &[DeviceStream]),
    ) -> Result<Self, Cause> {
        let watch = |(place, &(actor, _)): (usize, &(ActorId, u32))| match actors[actor.index()] {
            None | Some(PreparedWork::Joined(_)) => Ok(None),
            Some(_) => streams[lanes.stream_of(place)].new_stopwatch().map(Some),
        };
        let watches = order.iter().enumerate().map(watch).collect::<Result<_, _>>()?;
        Ok(Self { watches, in_turn: may_take_turns(actors, order, lanes) })
    }
}

/// Whether a rank may do all that it does in one row: what needs other ranks are collectives of one stream, which all
/// ranks have in the same order.
fn may_take_turns(
    actors: &[Option<PreparedWork>],
    order: &[(ActorId, u32)],
    lanes: &Lanes,
) -> bool {
    let works = actors.iter().flatten();
    let sends = works
        .filter(|work| matches!(work, PreparedWork::Send(_) | PreparedWork::Receive(_)))
        .count()
        > 0;
    let places = order.iter().enumerate();
    let collectives = places.filter(|(_, (actor, _))| {
        matches!(actors[actor.index()], Some(PreparedWork::Collective(_)))
    });
    let streams: BTreeSet<usize> = collectives.map(|(place, _)| lanes.stream_of(place)).collect();
    !sends && streams.len() < 2
}
