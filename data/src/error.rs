//! Errors of data sets and loaders.

use graphc_host::data::HostFileError;
use graphc_ir::types::TensorType;

/// An error of data sets and loaders.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// A file of a set that does not exist.
    #[error("{path} is not there: {layout}")]
    Missing {
        /// The file.
        path: String,
        /// The files that must be in the folder, and their origin.
        layout: &'static str,
    },
    /// A file that is not of its format, or not whole.
    #[error("{path} is damaged or of another format: {reason}; {layout}")]
    Damaged {
        /// The file.
        path: String,
        /// The fault.
        reason: String,
        /// The files that must be in the folder, and their origin.
        layout: &'static str,
    },
    /// A file that cannot be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// A file that cannot be written, or must not be.
    #[error("cannot write {path}: {reason}")]
    Write {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// A text that names no data.
    #[error("`{text}` names no data: {reason}")]
    Name {
        /// The text that was given.
        text: String,
        /// The text to write instead.
        reason: String,
    },
    /// Data that a graph cannot be fed with.
    #[error("the graph's input `{input}` ({ty}, for a batch) cannot be fed from {set}: {reason}")]
    Input {
        /// The input.
        input: String,
        /// The type of the input, for a batch.
        ty: TensorType,
        /// The data set, and its fields.
        set: String,
        /// The reason.
        reason: String,
    },
    /// The error of a program's own data set. `?` makes it of an [`io::Error`](std::io::Error) and of a boxed error.
    #[error("{0}")]
    Custom(String),
    /// A request that a loader cannot meet.
    #[error("{0}")]
    Loader(String),
    /// A thread that was not started, or that was lost.
    #[error("a thread of the loader {0}")]
    Thread(String),
}

graphc_ir::readable_debug!(DatasetError);

impl DatasetError {
    /// Makes the error of a file that cannot be read.
    pub(crate) fn unreadable_file(path: &str, reason: impl ToString) -> Self {
        Self::Read { path: path.to_owned(), reason: reason.to_string() }
    }
}

impl From<std::io::Error> for DatasetError {
    fn from(error: std::io::Error) -> Self {
        Self::Custom(error.to_string())
    }
}

impl From<Box<dyn std::error::Error + Send + Sync>> for DatasetError {
    fn from(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        Self::Custom(error.to_string())
    }
}

impl From<HostFileError> for DatasetError {
    fn from(error: HostFileError) -> Self {
        match error {
            HostFileError::Read { path, reason } => Self::Read { path, reason },
            HostFileError::Write { path, reason } => Self::Write { path, reason },
            other => Self::Loader(other.to_string()),
        }
    }
}
