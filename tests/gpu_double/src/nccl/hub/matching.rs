//! The calls of all ranks of a communicator, matched: collectives by their number, sends and receives by pair.

use std::collections::{BTreeMap, VecDeque};

use super::combine::combine;
use crate::nccl::call::{Call, Verb};

/// The operations that wait, and those that are done.
#[derive(Debug, Default)]
pub struct Matching {
    ranks: usize,
    /// Collectives that some ranks have called and others not; the first has number `passed`.
    rounds: VecDeque<Vec<Option<Slot>>>,
    passed: u64,
    /// Collectives that each rank has called.
    called: Vec<u64>,
    pairs: BTreeMap<(usize, usize), Pair>,
    /// Operations by rank and number.
    pending: BTreeMap<(usize, u64), Pending>,
}

/// One call of one operation, with what it gives.
#[derive(Clone, Debug)]
struct Slot {
    operation: u64,
    place: usize,
    call: Call,
    given: Vec<u8>,
}

/// Sends and receives from one rank to another that wait for each other.
#[derive(Debug, Default)]
struct Pair {
    sends: VecDeque<Slot>,
    receives: VecDeque<Slot>,
}

/// An operation whose calls are not all done: what each gets.
#[derive(Debug)]
struct Pending {
    calls: Vec<Call>,
    gets: Vec<Option<Vec<u8>>>,
}

/// An operation that is done.
#[derive(Debug)]
pub struct Finished {
    /// The rank that called it.
    pub rank: usize,
    /// Its number.
    pub operation: u64,
    /// The bytes that its calls get, one after another.
    pub bytes: Vec<u8>,
}

impl Matching {
    /// No operations yet, of so many ranks.
    pub fn new(ranks: usize) -> Matching {
        Matching { ranks, called: vec![0; ranks], ..Matching::default() }
    }

    /// Takes an operation of a rank with what its calls give; gives the operations that are done by that.
    ///
    /// # Errors
    /// Ranks call what does not fit together: a sentence that names both.
    pub fn post(
        &mut self,
        rank: usize,
        operation: u64,
        calls: Vec<Call>,
        mut bytes: &[u8],
    ) -> Result<Vec<Finished>, String> {
        let pending = Pending { gets: vec![None; calls.len()], calls: calls.clone() };
        self.pending.insert((rank, operation), pending);
        for (place, call) in calls.into_iter().enumerate() {
            let (given, rest) = bytes
                .split_at_checked(call.gives(rank, self.ranks) as usize)
                .ok_or("a message of a rank is too short")?;
            bytes = rest;
            let slot = Slot { operation, place, call, given: given.to_vec() };
            match call.verb {
                Verb::Send { peer } => {
                    self.pair((rank, peer), |pair| pair.sends.push_back(slot))?
                }
                Verb::Receive { peer } => {
                    self.pair((peer, rank), |pair| pair.receives.push_back(slot))?;
                }
                _ => self.join(rank, slot)?,
            }
        }
        Ok(self.finished())
    }

    /// A rank comes to its next collective.
    fn join(&mut self, rank: usize, slot: Slot) -> Result<(), String> {
        let number = self.called[rank];
        self.called[rank] += 1;
        let place = (number - self.passed) as usize;
        while self.rounds.len() <= place {
            self.rounds.push_back(vec![None; self.ranks]);
        }
        let round = &mut self.rounds[place];
        let others =
            round.iter().enumerate().filter_map(|(rank, slot)| Some((rank, slot.as_ref()?)));
        if let Some((other, met)) = others.into_iter().find(|(_, met)| met.call != slot.call) {
            return Err(format!(
                "collective {number} is {} on rank {other}, but {} on rank {rank}",
                met.call, slot.call
            ));
        }
        round[rank] = Some(slot);
        while self.rounds.front().is_some_and(|round| round.iter().all(Option::is_some)) {
            let round = self.rounds.pop_front().expect("it is there");
            self.passed += 1;
            self.close(round.into_iter().flatten().collect());
        }
        Ok(())
    }

    /// Closes a round: all ranks have called a collective.
    fn close(&mut self, mut round: Vec<Slot>) {
        let given: Vec<_> = round.iter_mut().map(|slot| std::mem::take(&mut slot.given)).collect();
        let gets = combine(&round[0].call, &given);
        for (rank, (slot, bytes)) in round.iter().zip(gets).enumerate() {
            self.fill(rank, slot, bytes);
        }
    }

    /// A rank sends to another, or receives from it.
    fn pair(
        &mut self,
        (from, to): (usize, usize),
        add: impl FnOnce(&mut Pair),
    ) -> Result<(), String> {
        let pair = self.pairs.entry((from, to)).or_default();
        add(pair);
        if pair.sends.is_empty() || pair.receives.is_empty() {
            return Ok(());
        }
        let send = pair.sends.pop_front().expect("it is there");
        let receive = pair.receives.pop_front().expect("it is there");
        if (send.call.count, send.call.element) != (receive.call.count, receive.call.element) {
            let (send, receive) = (send.call, receive.call);
            return Err(format!("rank {from} calls {send}, but rank {to} calls {receive}"));
        }
        self.fill(from, &send, Vec::new());
        self.fill(to, &receive, send.given.clone());
        Ok(())
    }

    fn fill(&mut self, rank: usize, slot: &Slot, bytes: Vec<u8>) {
        let pending = self.pending.get_mut(&(rank, slot.operation)).expect("it was posted");
        pending.gets[slot.place] = Some(bytes);
    }

    /// Takes the operations that are done. Those of rank 0 come last: it may leave with the hub after them.
    fn finished(&mut self) -> Vec<Finished> {
        let (done, pending) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|(_, pending): &(_, Pending)| pending.gets.iter().all(Option::is_some));
        self.pending = pending;
        let done: BTreeMap<(usize, u64), Pending> = done;
        let mut finished: Vec<Finished> = done
            .into_iter()
            .map(|((rank, operation), pending)| Finished {
                rank,
                operation,
                bytes: pending.gets.into_iter().flatten().flatten().collect(),
            })
            .collect();
        let of_rank_0 = finished.iter().take_while(|done| done.rank == 0).count();
        finished.rotate_left(of_rank_0);
        finished
    }

    /// Describes who waits for whom: a sentence for each operation that is not done, or none if all are.
    pub fn waits(&self) -> Vec<String> {
        let waits = self.pending.iter().map(|((rank, _), pending)| {
            let open = pending.calls.iter().zip(&pending.gets).filter(|(_, gets)| gets.is_none());
            let calls: Vec<String> = open.map(|(call, _)| self.wait(*rank, call)).collect();
            format!("rank {rank} waits in {}", calls.join(" and "))
        });
        waits.collect()
    }

    fn wait(&self, rank: usize, call: &Call) -> String {
        match call.verb {
            Verb::Send { peer } => format!("{call} for rank {peer} to receive"),
            Verb::Receive { peer } => format!("{call} for rank {peer} to send"),
            _ => {
                let number = self.next_of(rank, call);
                let late = (0..self.ranks).filter(|other| self.called[*other] <= number);
                let late: Vec<String> = late.map(|other| other.to_string()).collect();
                format!("{call}, collective {number}, for ranks {}", late.join(", "))
            }
        }
    }

    /// The number of the first open collective of a rank that is such a call.
    fn next_of(&self, rank: usize, call: &Call) -> u64 {
        let open = (self.passed..).zip(&self.rounds);
        let mine = |round: &Vec<Option<Slot>>| round[rank].as_ref().map(|slot| slot.call);
        open.into_iter()
            .find(|(_, round)| mine(round) == Some(*call))
            .map_or(self.passed, |(number, _)| number)
    }

    /// Collectives that a rank has called.
    pub fn called(&self, rank: usize) -> u64 {
        self.called[rank]
    }

    /// Whether a rank has an operation here that is not done.
    pub fn is_waiting(&self, rank: usize) -> bool {
        self.pending.range((rank, 0)..=(rank, u64::MAX)).next().is_some()
    }
}
