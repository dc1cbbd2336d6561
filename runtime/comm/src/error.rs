//! Errors of waits for other ranks.

/// A wait that ended without what was waited for.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// Another rank has failed, or the session was dropped: [`Transport::end_reason`](crate::transport::Transport::end_reason) says which.
    #[error("the job has ended on another rank")]
    Ended,
    /// A peer did not answer in time.
    #[error("rank {rank} has waited {seconds:.1} s for rank {peer} {what}")]
    Timeout {
        /// The rank that waits.
        rank: u32,
        /// The rank for which it waits.
        peer: u32,
        /// The thing for which it waits.
        what: String,
        /// The seconds of waiting.
        seconds: f64,
    },
    /// The two ends of a connection do not fit each other: the ranks run different plans.
    #[error("ranks {rank} and {peer} do not agree on {what}")]
    Mismatch {
        /// One end.
        rank: u32,
        /// The other.
        peer: u32,
        /// The difference.
        what: String,
    },
    /// A peer has left the job in order, and is still waited for.
    #[error("rank {rank} waits for rank {peer} {what}, but that has left the job")]
    Left {
        /// The rank that waits.
        rank: u32,
        /// The rank for which it waits.
        peer: u32,
        /// The thing for which it waits.
        what: String,
    },
    /// A connection broke.
    #[error("rank {rank} has lost its connection with rank {peer}: {reason}")]
    Broken {
        /// One end.
        rank: u32,
        /// The other.
        peer: u32,
        /// The system's error.
        reason: String,
    },
    /// The shared memory of a process is used up.
    #[error("rank {rank} has no shared memory left for messages; GRAPHC_TRANSPORT=tcp needs none")]
    Memory {
        /// The rank.
        rank: u32,
    },
}

graphc_ir::readable_debug!(TransportError);
