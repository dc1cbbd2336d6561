//! What a worker measures.

use std::time::Duration;

/// What one worker has measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) actions: u64,
    pub(crate) kernels: Duration,
    pub(crate) communication: Duration,
    pub(crate) waiting: Duration,
    pub(crate) steps: Duration,
    /// Per register of the program.
    pub(crate) high_water: Vec<u64>,
}
