//! Errors of communications.

use crate::error::RuntimeError;
use crate::job::JobError;
use crate::transport::TransportError;

/// Why a communication has failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DistError {
    /// The ranks have not alike what all must have.
    #[error("the ranks differ in what must be the same on all ({what}):\n{fields}")]
    Differ {
        /// What they were to agree on.
        what: String,
        /// A line for each field: its values, and which ranks of the group have them.
        fields: String,
    },
    /// The job cannot begin.
    #[error(transparent)]
    Job(#[from] JobError),
    /// Arguments that make no sense; nothing was communicated.
    #[error("rank {rank}: {op}: {reason}")]
    Usage {
        /// Whose.
        rank: u32,
        /// What was called.
        op: String,
        /// What is wrong.
        reason: String,
    },
    /// Two ranks do not do the same, or disagree about sizes or types. The job ends on all ranks.
    #[error("rank {rank} {mine}, but rank {peer} {theirs}")]
    Mismatch {
        /// Who has noticed.
        rank: u32,
        /// What it does.
        mine: String,
        /// The other.
        peer: u32,
        /// What that does.
        theirs: String,
    },
    /// A peer did not answer.
    #[error("{op} with rank {peer}: {source}")]
    Transport {
        /// What was called.
        op: String,
        /// The peer.
        peer: u32,
        /// What has happened.
        source: TransportError,
    },
    /// The job has ended: who, where, why.
    #[error("{op}: the job has ended: {reason}")]
    Ended {
        /// What was called.
        op: String,
        /// The account.
        reason: RuntimeError,
    },
    /// The thread that communicates has ended before its work: a fault of graphc, not of the user.
    #[error("{op} was given up: its thread has ended")]
    Abandoned {
        /// What was called.
        op: String,
    },
    /// The system gave no thread.
    #[error("cannot start a thread: {reason}")]
    Thread {
        /// What the system says.
        reason: String,
    },
    /// A rank of [`super::spawn`] has failed or panicked.
    #[error("rank {rank}: {reason}")]
    Rank {
        /// The first that failed.
        rank: u32,
        /// Why.
        reason: String,
    },
}

impl DistError {
    pub(super) fn thread(error: std::io::Error) -> Self {
        Self::Thread { reason: error.to_string() }
    }
}
