//! Options that say how a plan is run.

use std::time::Duration;

use crate::worker::OutputsAt;
use graphc_ir::mesh::DeviceKind;
use graphc_kernels::CustomKernels;

/// Options of a session: how a plan is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Seed of initial parameters and dropout.
    pub seed: u64,
    /// The device of ranks; `None`: devices of the kind that the plan was made for. A plan for other devices runs on the
    /// processor too, with the same numbers, if that is asked for.
    pub device: Option<DeviceKind>,
    /// Threads of each rank's kernels; `None`: the cores divided among the ranks, at least 1.
    pub threads_per_rank: Option<usize>,
    /// The time that a rank waits for a peer before the job fails.
    pub timeout: Duration,
    /// The number of steps that may be under way.
    pub queue: usize,
    /// The number of the first step: not 0 where a training is resumed.
    pub first_step: u64,
    /// The ranks that get a step's outputs, where ranks are processes.
    pub outputs_at: OutputsAt,
    /// The seed of a random delay before each action, for tests.
    pub shuffle_delays: Option<u64>,
    /// Whether steps after the first are replayed, on devices that record launches.
    pub replay: bool,
    /// Kernels of the plan's custom ops. Where ranks are processes, all have the same.
    pub custom: CustomKernels,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            device: None,
            threads_per_rank: None,
            timeout: Duration::from_secs(300),
            queue: 64,
            first_step: 0,
            outputs_at: OutputsAt::AllRanks,
            shuffle_delays: None,
            replay: true,
            custom: CustomKernels::default(),
        }
    }
}
