//! Splits the sums of [`super::reprice`] by node: the seconds and the bytes of each node of a finished sharding.

use graphc_ir::ids::NodeId;

/// Seconds and bytes by node, for a job whose ranks all do the same.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Account {
    /// The seconds of a step, of computing and of boxing what the node makes.
    pub seconds: Vec<f64>,
    /// The bytes of results of the node that are kept for the whole step: variables, gradients of variables, and values that microbatches share.
    pub resident: Vec<u64>,
    /// The bytes of results of the node that are kept from the forward to the backward pass, for one microbatch.
    pub stashed: Vec<u64>,
    /// The other bytes that are kept while the node acts.
    pub transient: Vec<u64>,
}

/// The time for which bytes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeepDuration {
    /// For the whole step.
    Resident,
    /// From the forward to the backward pass.
    Stashed,
    /// Shorter.
    Transient,
}

/// The account while it is made.
pub(super) struct Ledger {
    seconds: Vec<f64>,
    resident: Vec<u64>,
    stashed: Vec<u64>,
    /// The bytes by position that are kept for a shorter time.
    passing: Spans,
}

/// Sums of bytes by position, where each item is kept from one position to another. They store what begins at each position, and what ends before it,
/// so adding a span takes the same time however long it is.
pub(super) struct Spans {
    begun: Vec<u64>,
    ended: Vec<u64>,
}

impl Spans {
    /// Makes sums for this many positions, at which no bytes are kept yet.
    pub(super) fn new(positions: usize) -> Self {
        Self { begun: vec![0; positions + 1], ended: vec![0; positions + 1] }
    }

    /// Adds bytes from a position to another, both included.
    pub(super) fn add(&mut self, bytes: u64, (start, end): (usize, usize)) {
        self.begun[start] += bytes;
        self.ended[end + 1] += bytes;
    }

    /// Returns the bytes by position.
    pub(super) fn sums(&self) -> impl Iterator<Item = u64> {
        self.begun.iter().zip(&self.ended).scan(0u64, |sum, (begun, ended)| {
            *sum = *sum + begun - ended;
            Some(*sum)
        })
    }
}

impl Ledger {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            seconds: vec![0.0; nodes],
            resident: vec![0; nodes],
            stashed: vec![0; nodes],
            passing: Spans::new(nodes),
        }
    }

    pub(super) fn spend(&mut self, node: NodeId, seconds: f64) {
        self.seconds[node.index()] += seconds;
    }

    /// Adds bytes of a node's results, which are kept from one position to another.
    pub(super) fn keep(
        &mut self,
        node: NodeId,
        kept: KeepDuration,
        bytes: u64,
        (start, end): (usize, usize),
    ) {
        match kept {
            KeepDuration::Resident => self.resident[node.index()] += bytes,
            KeepDuration::Stashed => self.stashed[node.index()] += bytes,
            KeepDuration::Transient => self.passing.add(bytes, (start, end)),
        }
    }

    /// Makes the account, given the position of each node.
    pub(super) fn close(self, position: &[usize]) -> Account {
        let passing: Vec<u64> = self.passing.sums().collect();
        let transient = position.iter().map(|&at| passing[at]).collect();
        let Self { seconds, resident, stashed, .. } = self;
        Account { seconds, resident, stashed, transient }
    }
}
