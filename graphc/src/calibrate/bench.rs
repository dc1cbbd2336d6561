//! Times a layer of a chain, and reads its work off the plans.

use std::collections::BTreeMap;
use std::time::Instant;

use graphc_compiler::cluster::preset;
use graphc_compiler::compile::compile;
use graphc_compiler::cost::ActorWork;
use graphc_ir::builder::{BuildErrors, GraphBuilder, Tensor};
use graphc_ir::graph::Graph;
use graphc_ir::ops::Init;
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::types::DType;
use graphc_plan::CompileOptions;
use graphc_plan::check::VerifiedPlan;
use graphc_runtime::{Session, SessionOptions};

use super::disturbance::Observer;
use super::{CalibrateError, CalibrationEffort};

/// Steps that are timed at the least.
const FEWEST_STEPS: usize = 5;

/// The number of times that a chain is measured at most.
const TRIES: usize = 8;
/// A longer chain takes at least so many times the seconds of the shorter one; less is chance.
const LEAST_GROWTH: f64 = 1.01;

/// A step's time and work, or that of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimedWork {
    /// Seconds.
    pub seconds: f64,
    /// Kernels of a rank.
    pub kernels: f64,
    /// FLOPs of a rank, as the cost model counts them.
    pub flops: f64,
    /// Bytes that a rank moves in memory, likewise.
    pub bytes: f64,
}

impl TimedWork {
    /// Seconds without those of launches. Of a layer that is next to nothing most is the launch: its own time is then
    /// not known well.
    pub(super) fn at_work(&self, launch: f64) -> f64 {
        (self.seconds - self.kernels * launch).max(self.seconds / 2.0)
    }
}

/// The way in which plans are measured.
#[derive(Clone, Copy)]
pub(super) struct Bench<'a> {
    /// The extent of the measurement.
    pub effort: CalibrationEffort,
    /// Whether steps are replayed where the device records launches.
    pub replay: bool,
    /// Is told the times of all steps.
    pub observer: &'a Observer,
}

impl Bench<'_> {
    /// A layer of a chain of so many: `layer` makes the next tensor from those that `begin` makes and the last, which
    /// is the first of them at first.
    pub(super) fn per_layer(
        &self,
        layers: usize,
        begin: &dyn Fn(&GraphBuilder) -> Vec<Tensor>,
        layer: &dyn Fn(&[Tensor], &Tensor) -> Tensor,
    ) -> Result<TimedWork, CalibrateError> {
        let graph = |layers: usize| -> Result<Graph, BuildErrors> {
            let g = GraphBuilder::new("calibrate");
            let tensors = begin(&g);
            let last = (0..layers).fold(tensors[0].clone(), |last, _| layer(&tensors, &last));
            let dims: Vec<usize> = (0..last.shape().len()).collect();
            g.output("out", &last.sum(&dims, false));
            g.finish()
        };
        self.time_more_layers(layers, &graph, &CompileOptions::default())
    }

    /// The time and work of so many more layers, for each of them, in a graph of any length.
    pub(super) fn time_more_layers(
        &self,
        layers: usize,
        graph: &dyn Fn(usize) -> Result<Graph, BuildErrors>,
        options: &CompileOptions,
    ) -> Result<TimedWork, CalibrateError> {
        let one = || self.time_step(graph(1)?, options);
        for _ in 0..TRIES {
            let before = one()?;
            let long = self.time_step(graph(1 + layers)?, options)?;
            let after = one()?;
            // What else a machine does lengthens the short step too, and would make layers look fast: it had its chance twice.
            let short = TimedWork { seconds: before.seconds.min(after.seconds), ..after };
            let of = |long: f64, short: f64| (long - short) / layers as f64;
            if long.seconds > short.seconds * LEAST_GROWTH {
                return Ok(TimedWork {
                    seconds: of(long.seconds, short.seconds),
                    kernels: of(long.kernels, short.kernels),
                    flops: of(long.flops, short.flops),
                    bytes: of(long.bytes, short.bytes),
                });
            }
        }
        Err(CalibrateError::Disturbed { layers })
    }

    /// Whether a chain of so many layers is to be measured, of which one is thought to take so many seconds: two steps
    /// before, and as many as are timed.
    pub(super) fn affords(&self, layers: usize, seconds: f64) -> bool {
        (2 + FEWEST_STEPS) as f64 * layers as f64 * seconds < self.effort.patience
    }

    fn time_step(
        &self,
        graph: Graph,
        options: &CompileOptions,
    ) -> Result<TimedWork, CalibrateError> {
        let options = CompileOptions { mesh: vec![self.effort.ranks], ..options.clone() };
        let cluster = preset("cpu").expect("it is a preset");
        let plan = compile(graph, &options, &cluster, None)?.plan;
        Ok(TimedWork { seconds: self.step_seconds(&plan)?, ..work_of_plan(&plan) })
    }

    /// The least time of a step: what else the machine does only adds to it.
    fn step_seconds(&self, plan: &VerifiedPlan) -> Result<f64, CalibrateError> {
        let (device, replay) = (Some(self.effort.device), self.replay);
        let options = SessionOptions { device, replay, ..SessionOptions::default() };
        let mut session = Session::new(plan, &BTreeMap::new(), options)?;
        // In the first two steps kernels are loaded, and launches recorded.
        for _ in 0..2 {
            session.step(BTreeMap::new())?.wait()?;
        }
        let mut steps = Vec::new();
        let begun = Instant::now();
        while steps.len() < FEWEST_STEPS
            || begun.elapsed().as_secs_f64() < self.effort.seconds / 2.0
        {
            let start = Instant::now();
            session.step(BTreeMap::new())?.wait()?;
            steps.push(start.elapsed().as_secs_f64());
        }
        self.observer.add_steps(&steps);
        Ok(steps.into_iter().fold(f64::INFINITY, f64::min))
    }
}

/// The work of the first rank in a step.
fn work_of_plan(plan: &VerifiedPlan) -> TimedWork {
    let program = plan.program_of(0);
    let mut sum = TimedWork { seconds: 0.0, kernels: 0.0, flops: 0.0, bytes: 0.0 };
    for actor in &program.actors {
        if ActorWork::from_actor(&plan.layouts, program, actor).is_some() && actor.bytes > 0.0 {
            sum.kernels += 1.0;
            sum.flops += actor.flops;
            sum.bytes += actor.bytes;
        }
    }
    sum
}

/// A tensor of which each rank has its rows.
pub(super) fn split_rows(g: &GraphBuilder, name: &str, dtype: DType, shape: &[usize]) -> Tensor {
    let init = Init::Normal { mean: 0.0.into(), std: 1.0.into() };
    g.variable(name, dtype, shape, init).pin(NdSbp(vec![Sbp::Split(0)]))
}

/// A matrix that all ranks have, by which a product keeps its size on the whole.
pub(super) fn broadcast_weight(g: &GraphBuilder, dtype: DType, size: usize) -> Tensor {
    let std = 1.0 / (size as f64).sqrt();
    let init = Init::Normal { mean: 0.0.into(), std: std.into() };
    g.variable("w", dtype, [size, size], init).pin(NdSbp(vec![Sbp::Broadcast]))
}
