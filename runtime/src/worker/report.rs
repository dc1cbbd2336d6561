//! Measurements of a worker.

use std::time::Duration;

use super::actor::PreparedWork;

/// The measurements of one worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) actions: u64,
    pub(crate) kernels: Duration,
    pub(crate) communication: Duration,
    pub(crate) waiting: Duration,
    pub(crate) steps: Duration,
    /// Per actor of the program, without waiting; zero for actors of other workers.
    pub(crate) actors: Vec<Duration>,
    /// Per actor of the program: each of its actions in steps that were taken apart.
    pub(crate) apart: Vec<Vec<Duration>>,
    /// Per actor of the program: the one whose launch does what it says.
    pub(crate) joined: Vec<Option<u32>>,
    /// Per register of the program.
    pub(crate) high_water: Vec<u64>,
}

impl Report {
    /// A report before anything was measured of a program's actors, of which those of other workers are none.
    pub(crate) fn from_actors(actors: &[Option<PreparedWork>]) -> Self {
        let joined = |work: &Option<PreparedWork>| match work {
            Some(PreparedWork::Joined(launched)) => Some(*launched),
            _ => None,
        };
        Self {
            actors: vec![Duration::ZERO; actors.len()],
            apart: vec![Vec::new(); actors.len()],
            joined: actors.iter().map(joined).collect(),
            ..Self::default()
        }
    }
}
