//! Splits the sums of [`super::recompute`] by node: what each node of a finished sharding costs and keeps.

/// Seconds and bytes by node. Of a job whose ranks all do the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// Seconds of a step: of computing, and of boxing what the node makes.
    pub seconds: Vec<f64>,
    /// Bytes of what the node makes that are kept for the whole step: variables, gradients of variables, what
    /// microbatches share.
    pub resident: Vec<u64>,
    /// Bytes of what the node makes that are kept from the forward to the backward pass, of one microbatch.
    pub stashed: Vec<u64>,
    /// Bytes that are kept besides while the node acts.
    pub transient: Vec<u64>,
}

/// The time for which bytes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// For the whole step.
    Resident,
    /// From the forward to the backward pass.
    Stashed,
    /// Shorter.
    Transient,
}

/// The account while it is written.
pub(super) struct Ledger {
    seconds: Vec<f64>,
    resident: Vec<u64>,
    stashed: Vec<u64>,
    /// Bytes by position that are kept shorter than the others.
    passing: Vec<u64>,
}

impl Ledger {
    pub fn new(nodes: usize) -> Self {
        Self {
            seconds: vec![0.0; nodes],
            resident: vec![0; nodes],
            stashed: vec![0; nodes],
            passing: vec![0; nodes],
        }
    }

    pub fn spend(&mut self, node: usize, seconds: f64) {
        self.seconds[node] += seconds;
    }

    /// Bytes that a node has made, kept from one position to another.
    pub fn keep(&mut self, node: usize, kept: Kept, bytes: u64, (start, end): (usize, usize)) {
        match kept {
            Kept::Resident => self.resident[node] += bytes,
            Kept::Stashed => self.stashed[node] += bytes,
            Kept::Transient => self.passing[start..=end].iter_mut().for_each(|sum| *sum += bytes),
        }
    }

    /// The account, given the position of each node.
    pub fn close(self, position: &[usize]) -> Account {
        let transient = position.iter().map(|&at| self.passing[at]).collect();
        let Self { seconds, resident, stashed, .. } = self;
        Account { seconds, resident, stashed, transient }
    }
}
