//! The share of each worker of a rank in its actions.

use std::collections::BTreeSet;

use graphc_ir::ids::ActorId;
use graphc_plan::Program;

use super::actor::PreparedWork;
use super::lanes::Lanes;
use super::resolve::RankPart;

/// The actions of one worker.
pub(crate) struct WorkerShare {
    /// The actors at their ids; none at those of others.
    pub(crate) actors: Vec<Option<PreparedWork>>,
    /// The actions of a step in order: (actor, microbatch).
    pub(crate) order: Vec<(ActorId, u32)>,
    /// The stream that each action is on.
    pub(crate) lanes: Lanes,
    /// The number of those streams.
    pub(crate) streams: usize,
}

impl RankPart {
    /// Returns the shares of a rank's workers: one for both streams where a device launches all that they do, otherwise
    /// one for each. `records`: whether the device's streams record launches.
    pub(crate) fn into_shares(self, program: &Program, records: bool) -> Vec<WorkerShare> {
        let mut works = self.actors.iter().flatten().flatten();
        let both =
            (records && works.all(PreparedWork::is_launched)).then(|| Lanes::of_both(program));
        match both.flatten() {
            Some((order, lanes)) => vec![self.into_one_share(order, lanes)],
            None => self.into_stream_shares(),
        }
    }

    fn into_one_share(self, order: Vec<(ActorId, u32)>, lanes: Lanes) -> WorkerShare {
        let streams = self.actors.len();
        let mut actors: Vec<Option<PreparedWork>> = Vec::new();
        for stream in self.actors {
            actors.resize_with(stream.len(), || None);
            let found = actors.iter_mut().zip(stream).filter(|(_, work)| work.is_some());
            found.for_each(|(place, work)| *place = work);
        }
        WorkerShare { actors, order, lanes, streams }
    }

    fn into_stream_shares(self) -> Vec<WorkerShare> {
        let parts = self.actors.into_iter().zip(self.orders);
        let share = |(actors, order): (_, Vec<_>)| {
            let lanes = Lanes::of_one_stream(order.len());
            WorkerShare { actors, order, lanes, streams: 1 }
        };
        parts.map(share).collect()
    }
}

/// Finds the actors beside which something goes on, which are those that send from a device, with their streams.
pub(crate) fn find_sending_actors(
    actors: &[Option<PreparedWork>],
    order: &[(ActorId, u32)],
    lanes: &Lanes,
) -> Vec<(usize, usize)> {
    let sends = |actor: usize| matches!(actors[actor], Some(PreparedWork::Send(_)));
    let actions = order
        .iter()
        .enumerate()
        .map(|(place, &(actor, _))| (actor.index(), lanes.stream_of(place)));
    let found: BTreeSet<_> = actions.filter(|&(actor, _)| sends(actor)).collect();
    found.into_iter().collect()
}

/// Finds the actions that feed or fetch, by their places.
pub(crate) fn find_edge_actions(
    actors: &[Option<PreparedWork>],
    order: &[(ActorId, u32)],
) -> Vec<usize> {
    let is_edge = |&(_, &(actor, _)): &(usize, &(ActorId, u32))| {
        matches!(actors[actor.index()], Some(PreparedWork::Feed(_) | PreparedWork::Fetch(_)))
    };
    order.iter().enumerate().filter(is_edge).map(|(place, _)| place).collect()
}
