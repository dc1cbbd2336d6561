//! Errors of jobs that cannot begin.

/// The reason why a process cannot join its job.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The environment or the options make no sense.
    #[error("{reason}")]
    Environment {
        /// The fault.
        reason: String,
    },
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen at {address}: {reason}")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        reason: String,
    },
    /// Rank 0 was not reached.
    #[error("rank {rank} could not reach rank 0 at {address} within {seconds:.0} s: {reason}")]
    Unreachable {
        /// The rank that tried.
        rank: u32,
        /// The address.
        address: String,
        /// The seconds that it tried.
        seconds: f64,
        /// The system's last error.
        reason: String,
    },
    /// Rank 0 did not say who takes part.
    #[error("rank {rank} has waited {seconds:.0} s for rank 0 to begin the job")]
    Late {
        /// The rank that waited.
        rank: u32,
        /// The seconds that it waited.
        seconds: f64,
    },
    /// The job ended before it began.
    #[error("{report}")]
    Ended {
        /// The account: who, where, why.
        report: String,
    },
    /// MPI does not join the processes.
    #[cfg(feature = "mpi")]
    #[error("MPI: {reason}")]
    Mpi {
        /// The reason that it gives.
        reason: String,
    },
    /// The system refused something: a socket, memory, a thread.
    #[error("rank {rank} cannot {what}: {reason}")]
    System {
        /// The rank.
        rank: u32,
        /// The call that was tried.
        what: String,
        /// The system's error.
        reason: String,
    },
}

graphc_ir::readable_debug!(JobError);
