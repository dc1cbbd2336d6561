//! Errors of jobs that cannot begin.

/// Why a process cannot join its job.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum JobError {
    /// The environment or the options make no sense.
    #[error("{reason}")]
    Environment {
        /// What is wrong.
        reason: String,
    },
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen at {address}: {reason}")]
    Listen {
        /// Where.
        address: String,
        /// What the system says.
        reason: String,
    },
    /// Rank 0 was not reached.
    #[error("rank {rank} could not reach rank 0 at {address} within {seconds:.0} s: {reason}")]
    Unreachable {
        /// Who tried.
        rank: u32,
        /// Where.
        address: String,
        /// For how long.
        seconds: f64,
        /// What the system said last.
        reason: String,
    },
    /// Rank 0 did not say who takes part.
    #[error("rank {rank} has waited {seconds:.0} s for rank 0 to begin the job")]
    Late {
        /// Who waited.
        rank: u32,
        /// For how long.
        seconds: f64,
    },
    /// The job ended before it began.
    #[error("{report}")]
    Ended {
        /// Who, where, why.
        report: String,
    },
    /// MPI does not join the processes.
    #[cfg(feature = "mpi")]
    #[error("MPI: {reason}")]
    Mpi {
        /// What it says.
        reason: String,
    },
    /// The system refused something: a socket, memory, a thread.
    #[error("rank {rank} cannot {what}: {reason}")]
    System {
        /// Who.
        rank: u32,
        /// What was tried.
        what: String,
        /// What the system says.
        reason: String,
    },
}
