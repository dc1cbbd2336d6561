//! Errors of communications.

use graphc_comm::job::JobError;
use graphc_comm::{JobEnd, TransportError};

/// The reason why a communication has failed.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DistError {
    /// The ranks differ in something that all must have alike.
    #[error("the ranks differ in what must be the same on all ({what}):\n{fields}")]
    Differ {
        /// The subject of the agreement.
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
        /// The rank whose call it is.
        rank: u32,
        /// The call.
        op: String,
        /// The fault.
        reason: String,
    },
    /// Two ranks do not do the same, or disagree about sizes or types. The job ends on all ranks.
    #[error("rank {rank} {mine}, but rank {peer} {theirs}")]
    Mismatch {
        /// The rank that has noticed.
        rank: u32,
        /// Its own call.
        mine: String,
        /// The other.
        peer: u32,
        /// The peer's call.
        theirs: String,
    },
    /// A peer did not answer.
    #[error("{op} with rank {peer}: {source}")]
    Transport {
        /// The call.
        op: String,
        /// The peer.
        peer: u32,
        /// The error of the transport.
        source: TransportError,
    },
    /// The job has ended: who, where, why.
    #[error("{op}: the job has ended: {reason}")]
    Ended {
        /// The call.
        op: String,
        /// The account.
        reason: JobEnd,
    },
    /// The thread that communicates has ended before its work: a fault of graphc, not of the user.
    #[error("{op} was given up: its thread has ended")]
    Abandoned {
        /// The call.
        op: String,
    },
    /// The system gave no thread.
    #[error("cannot start a thread: {reason}")]
    Thread {
        /// The system's error.
        reason: String,
    },
    /// A rank of [`super::spawn`] has failed or panicked.
    #[error("rank {rank}: {reason}")]
    Rank {
        /// The first that failed.
        rank: u32,
        /// The reason.
        reason: String,
    },
}

graphc_ir::readable_debug!(DistError);

impl DistError {
    pub(super) fn from_thread_error(error: std::io::Error) -> Self {
        Self::Thread { reason: error.to_string() }
    }
}
