//! Collects the figures at the top of a page.

use graphc_compiler::cost::model_flops_utilization;
use graphc_compiler::decisions::Decisions;
use graphc_compiler::null_device::Simulation;
use graphc_ir::op::Op;
use graphc_plan::{PipelineReport, Plan, PlannerReport, RecomputedOps, WeightsSource};
use serde::Serialize;
use serde_json::Value;

/// The figures.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Ranks of the job.
    pub ranks: usize,
    /// Extents of the mesh.
    pub mesh: Vec<usize>,
    /// Number of stages.
    pub stages: usize,
    /// Parts of a batch.
    pub microbatches: usize,
    /// Samples of a step; `None` where no input counts them.
    pub samples: Option<usize>,
    /// The order of microbatches.
    pub schedule: String,
    /// The strategy by which layouts were chosen.
    pub strategy: Value,
    /// Whether it trains.
    pub training: bool,
    /// The machines.
    pub cluster: String,
    /// The framework that the prediction is of.
    pub framework: String,
    /// Seconds of a step.
    pub step_seconds: f64,
    /// Share of rank time that ranks wait for stages.
    pub bubble_fraction: f64,
    /// Shares of rank time: kernels, communication beside none, waiting.
    pub shares: [f64; 3],
    /// The share of communication that runs under kernels.
    pub overlap: f64,
    /// The share of the machines' peak that the model's own FLOPs take.
    pub mfu: Option<f64>,
    /// Bytes of the largest arena.
    pub peak_memory_bytes: u64,
    /// Bytes that a device has, or the limit that was asked for.
    pub memory_bytes: u64,
    /// The report of the planner.
    pub planner: PlannerReport,
    /// The report on the choice of stages.
    pub pipeline: Option<PipelineReport>,
    /// Whether what the backward pass reads was kept or gathered again as was best.
    pub regathered: bool,
    /// The ops that are computed again, where that was the compiler's choice.
    pub recomputed: Vec<RecomputedOps>,
    /// The source of weights.
    pub weights: Option<WeightsSource>,
    /// The options of the compilation.
    pub options: Value,
}

/// The figures of a plan.
pub(super) fn summarise_plan(
    plan: &Plan,
    decisions: &Decisions,
    simulation: &Simulation,
) -> Summary {
    let shares = &simulation.shares;
    let plain = "options have string keys only";
    Summary {
        ranks: plan.world_size,
        mesh: plan.mesh.clone(),
        stages: plan.stages,
        microbatches: plan.microbatches,
        samples: samples_per_step(decisions),
        schedule: plan.options.schedule.to_string(),
        strategy: serde_json::to_value(plan.options.strategy).expect(plain),
        training: plan.training,
        cluster: plan.cluster.name.clone(),
        framework: plan.cluster.framework.name.clone(),
        step_seconds: simulation.step_seconds,
        bubble_fraction: simulation.bubble_fraction,
        shares: [shares.compute, shares.communication, shares.waiting],
        overlap: shares.overlap,
        mfu: model_flops_utilization(plan, decisions, simulation.step_seconds),
        peak_memory_bytes: plan.predicted.peak_memory_bytes.iter().copied().max().unwrap_or(0),
        memory_bytes: plan.options.memory.unwrap_or(plan.cluster.device.memory),
        planner: plan.planner.clone(),
        pipeline: plan.pipeline.clone(),
        regathered: plan.regathered,
        recomputed: plan.recomputed.clone(),
        weights: plan.weights.clone(),
        options: serde_json::to_value(&plan.options).expect(plain),
    }
}

fn samples_per_step(decisions: &Decisions) -> Option<usize> {
    decisions.graph().nodes.iter().find_map(|node| match &node.op {
        Op::Input(input) => input.batch_size(),
        _ => None,
    })
}
