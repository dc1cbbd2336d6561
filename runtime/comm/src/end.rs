//! The reason why a job has ended.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::error::TransportError;

/// The reason why a job has ended, as a rank is told it.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JobEnd {
    /// Some rank has failed, died or fallen silent.
    #[error("{report}")]
    Job {
        /// The account: who, where, why, and what each rank was doing.
        report: String,
    },
    /// The ranks differ in something that all must have alike.
    #[error("the ranks differ in what must be the same on all ({what}):\n{fields}")]
    Differ {
        /// The subject of the agreement.
        what: String,
        /// A line for each field: its values, and which ranks have them.
        fields: String,
    },
    /// The program that runs this rank cannot go on.
    #[error("{reason}")]
    Program {
        /// The reason.
        reason: String,
    },
    /// An error of who uses the transport, found on this rank.
    #[error("{0}")]
    Own(OwnError),
    /// A connection with a peer broke.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The session was dropped before the step was done.
    #[error("the session was shut down before the step was done")]
    ShutDown,
}

graphc_ir::readable_debug!(JobEnd);

impl JobEnd {
    /// Returns the end by an error whose text does not say on which rank it was found.
    pub fn from_error(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Own(OwnError { error: Arc::new(error), says_rank: false })
    }

    /// Returns the end by an error whose text says on which rank it was found.
    pub fn from_error_of_rank(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Own(OwnError { error: Arc::new(error), says_rank: true })
    }

    /// Returns the text for the other ranks, which says who has ended the job.
    pub(crate) fn text_of_rank(&self, rank: u32) -> String {
        match self {
            Self::Own(OwnError { error, says_rank: true }) => error.to_string(),
            end => format!("rank {rank}: {end}"),
        }
    }
}

/// An error of who uses a transport, whose type comes back to him on the rank where it was found.
#[derive(Clone)]
pub struct OwnError {
    error: Arc<dyn Error + Send + Sync>,
    says_rank: bool,
}

impl OwnError {
    /// Returns the error where it is of this type.
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.error.downcast_ref()
    }
}

impl fmt::Display for OwnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl PartialEq for OwnError {
    /// Whether both say the same.
    fn eq(&self, other: &Self) -> bool {
        self.error.to_string() == other.error.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_for_others_says_the_rank_once() {
        let error = TransportError::Memory { rank: 3 };
        let text = error.to_string();
        assert_eq!(JobEnd::from_error_of_rank(error.clone()).text_of_rank(3), text);
        let own = JobEnd::from_error(error.clone());
        assert_eq!(own.text_of_rank(1), format!("rank 1: {text}"));
        let JobEnd::Own(own) = own else { panic!("it is an error of its user") };
        assert_eq!(own.downcast_ref::<TransportError>(), Some(&error));
    }
}
