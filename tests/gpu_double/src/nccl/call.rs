//! Calls of a communicator, as data that ranks compare.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::types::{Element, Reduction};

/// One call of a collective, a send or a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The call itself.
    pub verb: Verb,
    /// The number of elements, as the function of C counts them.
    pub count: u64,
    /// The type of the elements.
    pub element: Element,
}

/// A call, with what all ranks must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Verb {
    AllReduce(Reduction),
    ReduceScatter(Reduction),
    AllGather,
    Broadcast { root: usize },
    Reduce { reduction: Reduction, root: usize },
    AllToAll,
    Gather { root: usize },
    Scatter { root: usize },
    Send { peer: usize },
    Receive { peer: usize },
}

impl Verb {
    /// The reduction by which its elements become one, if they do.
    pub fn reduction(self) -> Option<Reduction> {
        match self {
            Verb::AllReduce(reduction) | Verb::ReduceScatter(reduction) => Some(reduction),
            Verb::Reduce { reduction, .. } => Some(reduction),
            _ => None,
        }
    }

    /// The rank that it names as root or peer, if any.
    pub fn names(self) -> Option<usize> {
        match self {
            Verb::Broadcast { root } | Verb::Gather { root } | Verb::Scatter { root } => Some(root),
            Verb::Reduce { root, .. } => Some(root),
            Verb::Send { peer } | Verb::Receive { peer } => Some(peer),
            Verb::AllReduce(_) | Verb::ReduceScatter(_) | Verb::AllGather | Verb::AllToAll => None,
        }
    }
}

impl Call {
    /// Bytes that `rank` of `ranks` gives.
    pub fn gives(&self, rank: usize, ranks: usize) -> u64 {
        self.bytes(match self.verb {
            Verb::AllReduce(_) | Verb::AllGather | Verb::Reduce { .. } | Verb::Gather { .. } => 1,
            Verb::ReduceScatter(_) | Verb::AllToAll => ranks as u64,
            Verb::Broadcast { root } => u64::from(rank == root),
            Verb::Scatter { root } => ranks as u64 * u64::from(rank == root),
            Verb::Send { .. } => 1,
            Verb::Receive { .. } => 0,
        })
    }

    /// Bytes that `rank` of `ranks` gets.
    pub fn gets(&self, rank: usize, ranks: usize) -> u64 {
        self.bytes(match self.verb {
            Verb::AllReduce(_) | Verb::ReduceScatter(_) | Verb::Broadcast { .. } => 1,
            Verb::AllGather | Verb::AllToAll => ranks as u64,
            Verb::Reduce { root, .. } => u64::from(rank == root),
            Verb::Gather { root } => ranks as u64 * u64::from(rank == root),
            Verb::Scatter { .. } | Verb::Receive { .. } => 1,
            Verb::Send { .. } => 0,
        })
    }

    /// Bytes of so many times the count.
    fn bytes(&self, times: u64) -> u64 {
        times * self.count * self.element.bytes()
    }

    /// Returns the position in bytes, in the buffer that is received, at which the buffer that is sent must begin if both are one; `None`
    /// where they may not share a byte.
    pub fn in_place(&self, rank: usize) -> Option<i64> {
        let block = self.bytes(rank as u64) as i64;
        match self.verb {
            Verb::AllReduce(_) | Verb::Broadcast { .. } | Verb::Reduce { .. } => Some(0),
            Verb::AllGather | Verb::Gather { .. } => Some(block),
            Verb::ReduceScatter(_) | Verb::Scatter { .. } => Some(-block),
            Verb::AllToAll | Verb::Send { .. } | Verb::Receive { .. } => None,
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { verb, count, element } = self;
        match verb {
            Verb::AllReduce(reduction) => write!(f, "AllReduce({reduction:?})")?,
            Verb::ReduceScatter(reduction) => write!(f, "ReduceScatter({reduction:?})")?,
            Verb::Reduce { reduction, root } => write!(f, "Reduce({reduction:?}) to {root}")?,
            Verb::Broadcast { root } => write!(f, "Broadcast from {root}")?,
            Verb::Gather { root } => write!(f, "Gather to {root}")?,
            Verb::Scatter { root } => write!(f, "Scatter from {root}")?,
            Verb::Send { peer } => write!(f, "Send to {peer}")?,
            Verb::Receive { peer } => write!(f, "Recv from {peer}")?,
            Verb::AllGather => write!(f, "AllGather")?,
            Verb::AllToAll => write!(f, "AlltoAll")?,
        }
        write!(f, " of {count} x {element:?}")
    }
}
