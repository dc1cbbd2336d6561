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
    /// Per actor of the program, without waiting; zero for actors of other workers.
    pub(crate) actors: Vec<Duration>,
    /// Per register of the program.
    pub(crate) high_water: Vec<u64>,
}

impl Report {
    /// Before anything was measured of a program of so many actors.
    pub(crate) fn of(actors: usize) -> Self {
        Self { actors: vec![Duration::ZERO; actors], ..Self::default() }
    }
}
