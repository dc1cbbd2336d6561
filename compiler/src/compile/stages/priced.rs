//! Keeps the prices of choices of stages and microbatches, and ranks them.

use graphc_plan::{CompileOptions, PipelineReport};

use crate::compile::limits;
use crate::error::CompileError;

/// The prices of the layers with one choice of stages and microbatches.
#[derive(Clone)]
pub(super) struct PricedPipeline {
    /// The options with these numbers and this recomputation.
    pub options: CompileOptions,
    /// The best cut, whatever the memory.
    pub free: PipelineReport,
    /// The bytes at the peak of the short model's plan.
    pub peak: u64,
    /// The bytes that the layers of a stage keep all the time, on average.
    pub resident: u64,
    /// The best cut that fits the memory.
    pub choice: Option<PipelineReport>,
    /// Whether layers had to be priced with less memory to find that cut.
    pub short: bool,
}

impl PricedPipeline {
    /// Whether the best cut fits the memory.
    pub(super) fn fits_memory(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.seconds <= self.free.seconds)
    }

    /// Returns a copy whose choice is the best cut whatever the memory.
    pub(super) fn with_unlimited_memory(&self) -> Self {
        Self { choice: Some(self.free.clone()), short: false, ..self.clone() }
    }

    /// Returns the seconds by which the choice is compared with others.
    pub(super) fn compared_seconds(&self) -> f64 {
        let margin = if self.short { 1.0 + limits::SHORT_MEMORY_MARGIN } else { 1.0 };
        self.choice.as_ref().map_or(f64::INFINITY, |choice| choice.seconds * margin)
    }
}

/// The prices of a number of stages and microbatches, by the ways of recomputation that were priced.
#[derive(Default)]
pub(super) struct PricedWays {
    pub priced: Vec<PricedPipeline>,
    /// The first error.
    pub error: Option<CompileError>,
}

impl PricedWays {
    /// Returns the seconds of the best cut of any way, whatever the memory.
    pub(super) fn least_seconds(&self) -> f64 {
        self.priced.iter().map(|priced| priced.free.seconds).fold(f64::INFINITY, f64::min)
    }
}

/// Reports the choices of all priced pipelines, best first.
pub(super) fn sort_choices(mut all: Vec<PricedPipeline>, bound: f64) -> Vec<PipelineReport> {
    all.sort_by(|a, b| {
        let size = |priced: &PricedPipeline| (priced.options.stages, priced.options.microbatches);
        a.compared_seconds().total_cmp(&b.compared_seconds()).then_with(|| size(a).cmp(&size(b)))
    });
    let bounded = |choice: PipelineReport| PipelineReport {
        bound_seconds: bound.min(choice.seconds),
        ..choice
    };
    all.into_iter().filter_map(|priced| priced.choice).map(bounded).collect()
}
