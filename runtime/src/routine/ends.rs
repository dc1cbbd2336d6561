//! The endpoints of all routines of a rank. Routines run one after the other and in the same order on all ranks; so a set of
//! ranks needs one group, and a pair one queue for each direction, however many routines come and go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use graphc_comm::JobEnd;
use graphc_comm::memory::Offered;
use graphc_comm::transport::{
    ExchangeGroup, Lending, Lent, Offer, Receiver, Sender, Transport, TransportError, Work,
};
use graphc_plan::{Action, Plan};

use crate::dist::{GroupLane, GroupMembers};

/// An endpoint that several routines hold.
type Common<T> = Arc<Mutex<Box<T>>>;

/// The greatest number of sets of ranks that have a group: tags of groups lie apart by this factor.
const MOST_SETS: u32 = 1 << 12;

/// A transport whose ranks are indices in a group, and whose endpoints are made once.
pub(super) struct SharedEnds {
    members: GroupMembers,
    known: Mutex<KnownEnds>,
}

#[derive(Default)]
struct KnownEnds {
    /// Sets of ranks in the order in which plans brought them, the same on all ranks: that is their tag.
    sets: BTreeMap<Vec<u32>, u32>,
    groups: BTreeMap<Vec<u32>, Common<dyn ExchangeGroup>>,
    senders: BTreeMap<u32, Common<dyn Sender>>,
    receivers: BTreeMap<u32, Common<dyn Receiver>>,
}

fn lock_mutex<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedEnds {
    pub(super) fn new(members: GroupMembers) -> Self {
        Self { members, known: Mutex::default() }
    }

    /// Learns which sets of ranks a plan joins. All ranks see the same plans in the same order.
    pub(super) fn learn_plan(&self, plan: &Plan) {
        let mut known = lock_mutex(&self.known);
        for set in list_rank_sets(plan) {
            let next = known.sets.len() as u32;
            known.sets.entry(set).or_insert(next);
        }
    }

    /// Returns the tag of a set's group.
    fn group_tag(&self, known: &KnownEnds, ranks: &[u32]) -> Result<u32, TransportError> {
        let set = known.sets.get(ranks).copied().filter(|&set| set < MOST_SETS);
        let tag = set.and_then(|set| self.members.tag.checked_mul(MOST_SETS)?.checked_add(set));
        tag.ok_or_else(|| TransportError::Mismatch {
            rank: self.members.rank(),
            peer: self.members.rank(),
            what: format!("the group of {ranks:?}: at most {MOST_SETS} sets of ranks have one"),
        })
    }

    fn in_job(&self, ranks: &[u32]) -> Vec<u32> {
        ranks.iter().map(|&rank| self.members.ranks[rank as usize]).collect()
    }
}

/// Lists the sets of ranks that collectives of a plan join.
fn list_rank_sets(plan: &Plan) -> Vec<Vec<u32>> {
    let mut sets = Vec::new();
    for program in &plan.programs {
        for actor in &program.actors {
            let Action::Collective { axis, .. } = actor.action else { continue };
            let layout = program.registers[actor.inputs[0].index()].layout;
            let layout = &plan.layouts[layout.index()];
            sets.extend(layout.ranks.iter().filter_map(|&rank| layout.axis_group(rank, axis)));
        }
    }
    sets
}

impl Transport for SharedEnds {
    fn rank(&self) -> u32 {
        self.members.me as u32
    }

    fn is_direct(&self, ranks: &[u32]) -> bool {
        self.members.transport.is_direct(&self.in_job(ranks))
    }

    fn offer_memory(&self, bytes: u64) -> Result<Option<Offered>, TransportError> {
        self.members.transport.offer_memory(bytes)
    }

    fn join_group(
        &self,
        _tag: u32,
        ranks: &[u32],
    ) -> Result<Box<dyn ExchangeGroup>, TransportError> {
        let mut known = lock_mutex(&self.known);
        let made = match known.groups.get(ranks) {
            Some(group) => Arc::clone(group),
            None => {
                let tag = self.group_tag(&known, ranks)?;
                let group = self.members.transport.join_group(tag, &self.in_job(ranks))?;
                let group = Arc::new(Mutex::new(group));
                known.groups.insert(ranks.to_vec(), Arc::clone(&group));
                group
            }
        };
        let lends = lock_mutex(&made).as_lending().is_some();
        Ok(Box::new(SharedGroup { group: made, lends }))
    }

    fn open_sender(
        &self,
        _tag: u32,
        to: u32,
        _slots: usize,
    ) -> Result<Box<dyn Sender>, TransportError> {
        let mut known = lock_mutex(&self.known);
        let made = match known.senders.get(&to) {
            Some(sender) => Arc::clone(sender),
            None => {
                let sender = self.members.open_sender(GroupLane::Pair, to as usize)?;
                let sender = Arc::new(Mutex::new(sender));
                known.senders.insert(to, Arc::clone(&sender));
                sender
            }
        };
        Ok(Box::new(RoutineSender(made)))
    }

    fn open_receiver(
        &self,
        _tag: u32,
        from: u32,
        _slots: usize,
    ) -> Result<Box<dyn Receiver>, TransportError> {
        let mut known = lock_mutex(&self.known);
        let made = match known.receivers.get(&from) {
            Some(receiver) => Arc::clone(receiver),
            None => {
                let receiver = self.members.open_receiver(GroupLane::Pair, from as usize)?;
                let receiver = Arc::new(Mutex::new(receiver));
                known.receivers.insert(from, Arc::clone(&receiver));
                receiver
            }
        };
        Ok(Box::new(RoutineReceiver(made)))
    }

    fn wait_until(
        &self,
        peer: u32,
        what: &str,
        ready: &dyn Fn() -> bool,
    ) -> Result<(), TransportError> {
        self.members.transport.wait_until(self.members.ranks[peer as usize], what, ready)
    }

    fn wake_waiters(&self) {
        self.members.transport.wake_waiters();
    }

    fn end_job(&self, reason: JobEnd) {
        self.members.transport.end_job(reason);
    }

    fn end_reason(&self) -> Option<JobEnd> {
        self.members.transport.end_reason()
    }
}

struct SharedGroup {
    group: Common<dyn ExchangeGroup>,
    lends: bool,
}

impl ExchangeGroup for SharedGroup {
    fn exchange(
        &mut self,
        pieces: &[&[u8]],
        offers: &[Offer],
        takes: &[usize],
        read: &mut dyn FnMut(usize, &[&[u8]]),
    ) -> Result<Duration, TransportError> {
        lock_mutex(&self.group).exchange(pieces, offers, takes, read)
    }

    fn as_lending(&mut self) -> Option<&mut dyn Lending> {
        if self.lends { Some(self) } else { None }
    }
}

impl Lending for SharedGroup {
    fn lend(&mut self, own: &[Lent<'_>], work: &mut Work<'_>) -> Result<Duration, TransportError> {
        let mut group = lock_mutex(&self.group);
        group.as_lending().expect("it lent when it was made").lend(own, work)
    }
}

struct RoutineSender(Common<dyn Sender>);

impl Sender for RoutineSender {
    fn is_ready(&self) -> bool {
        lock_mutex(&self.0).is_ready()
    }

    fn send(
        &mut self,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Duration, TransportError> {
        lock_mutex(&self.0).send(bytes, fill)
    }
}

struct RoutineReceiver(Common<dyn Receiver>);

impl Receiver for RoutineReceiver {
    fn is_ready(&self) -> bool {
        lock_mutex(&self.0).is_ready()
    }

    fn receive(&mut self, read: &mut dyn FnMut(&[u8])) -> Result<Duration, TransportError> {
        lock_mutex(&self.0).receive(read)
    }
}
