//! The null device: executes a plan on all ranks with modelled time, through the state machine that the runtime
//! drives too. It finds what a step takes, how much of it pipeline stages wait, and plans that would hang.

use graphc_ir::plan::Plan;

/// What the null device measured over one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// Seconds from the step's start until every rank has finished it.
    pub step_seconds: f64,
    /// Share of rank time that ranks wait for others, over ranks that have work; 0 with one stage.
    pub bubble_fraction: f64,
    /// By stage.
    pub stages: Vec<StageReport>,
    /// What ran when, by rank, stream and start, where it was asked for.
    pub trace: Vec<TraceEvent>,
}

/// What the null device measured of one stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StageReport {
    /// The stage.
    pub stage: usize,
    /// The greatest number of contents of one microbatch-rate register that existed at once.
    pub high_water: u64,
    /// The largest arena of its ranks, in bytes.
    pub peak_memory_bytes: u64,
    /// Seconds that its busiest rank works.
    pub busy_seconds: f64,
}

/// One action of the trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceEvent {
    /// The rank.
    pub rank: u32,
    /// The stream.
    pub stream: usize,
    /// The actor's name.
    pub actor: String,
    /// The step.
    pub step: u64,
    /// The microbatch.
    pub microbatch: u32,
    /// Seconds from the beginning.
    pub start: f64,
    /// Seconds from the beginning.
    pub end: f64,
}

/// Why a plan cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NullDeviceError {
    /// No stream can go on.
    #[error("the plan hangs:\n  {}", .waits.join("\n  "))]
    Hang {
        /// Who waits for whom, rank by rank.
        waits: Vec<String>,
    },
}

/// Executes one step.
///
/// # Errors
/// Where the plan hangs.
pub fn simulate(_plan: &Plan) -> Result<Simulation, NullDeviceError> {
    todo!()
}

/// Executes `steps` steps and keeps the trace.
///
/// # Errors
/// Where the plan hangs.
pub fn trace(_plan: &Plan, _steps: u64) -> Result<Simulation, NullDeviceError> {
    todo!()
}
