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
    /// The time of each actor of the program, without waiting; zero for actors of other workers.
    pub(crate) actors: Vec<Duration>,
    /// The times of each actor's actions, in steps that were taken apart.
    pub(crate) apart: Vec<Vec<Duration>>,
    /// The actor whose launch does an actor's work, per actor of the program.
    pub(crate) joined: Vec<Option<u32>>,
    /// The high water of each register of the program.
    pub(crate) high_water: Vec<u64>,
}

impl Report {
    /// Makes an empty report of a program's actors, of which those of other workers are none.
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
