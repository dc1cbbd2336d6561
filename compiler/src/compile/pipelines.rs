//! Makes whole plans of several choices of stages and microbatches, and takes the one whose step is the fastest on the
//! null device.
//!
//! Layers are priced on their own; what the whole takes the null device knows. So of a small graph whole plans are made of
//! several choices. Of a large one they are made of what is better by its layers than the whole plans before it.

use std::collections::BTreeSet;

use graphc_plan::PipelineReport;

use super::Milestone;
use super::choice::{Choice, CompileRequest};
use super::limits;
use super::once::Draft;
use super::stages::{Chooser, may_pay};
use crate::error::CompileError;

impl CompileRequest<'_> {
    /// Finds the best plan of all numbers of stages and microbatches.
    pub(super) fn find_best_pipeline(
        &self,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<Draft, CompileError> {
        let mut plans = PipelinePlans::new(self);
        let chooser = Chooser::with_whole_plan(self.graph, self.options, self.cluster, |report| {
            let draft = self.draft_if_memory_suffices(&Choice::of_report(report), reached)?;
            let seconds = draft.plan.planner.objective_seconds;
            plans.ready = Some((size_of(report), draft));
            Some(seconds)
        })?;
        // One stage comes first: its plan is made in the time in which the layers of other choices are priced again with less memory, and leaves few
        // of them worth that.
        plans.try_reports(&chooser.in_one_stage(), true, reached)?;
        match chooser.find_choices(plans.best_seconds()) {
            Ok(mut choices) => {
                plans.failed = choices.none.take().or(plans.failed);
                plans.try_reports(choices.choices_to_plan(self.options), false, reached)?;
            }
            Err(error) => plans.failed = Some(error),
        }
        plans.into_best()
    }
}

/// The whole plans that were made so far.
struct PipelinePlans<'a> {
    request: &'a CompileRequest<'a>,
    best: Option<Draft>,
    /// A plan that was made before its choice was priced, with the numbers of stages and microbatches.
    ready: Option<((usize, usize), Draft)>,
    /// The reason why there is no plan, if there is none.
    failed: Option<CompileError>,
    planned: BTreeSet<(usize, usize)>,
}

impl<'a> PipelinePlans<'a> {
    fn new(request: &'a CompileRequest<'a>) -> Self {
        Self { request, best: None, ready: None, failed: None, planned: BTreeSet::new() }
    }

    /// Returns the seconds of a step of the best plan so far.
    fn best_seconds(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |best| best.simulation.step_seconds)
    }

    /// Whether the whole plan of a choice may be better than the best so far.
    fn is_worth_planning(&self, report: &PipelineReport) -> bool {
        if !self.request.is_small() {
            return may_pay(report.seconds, self.best_seconds());
        }
        let best = self.best.as_ref().and_then(|best| best.plan.pipeline.as_ref());
        best.is_none_or(|best| report.seconds < limits::MOST_BEHIND * best.seconds)
    }

    /// Makes the plans of the choices that may be better than the best before them.
    fn try_reports<'b>(
        &mut self,
        reports: impl IntoIterator<Item = &'b PipelineReport>,
        memory_is_short: bool,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<(), CompileError> {
        for report in reports {
            let size = size_of(report);
            if self.is_worth_planning(report) && self.planned.insert(size) {
                let choice = Choice { memory_is_short, ..Choice::of_report(report) };
                let found = match self.ready.take_if(|(of, _)| *of == size) {
                    Some((_, draft)) => Ok(draft),
                    None => self.request.draft(&choice, reached),
                };
                self.offer(report, found)?;
            }
        }
        Ok(())
    }

    fn offer(
        &mut self,
        report: &PipelineReport,
        found: Result<Draft, CompileError>,
    ) -> Result<(), CompileError> {
        match found {
            Ok(mut draft) => {
                draft.plan.pipeline = Some(report.clone());
                self.best = Some(match self.best.take() {
                    Some(known) => known.faster(draft),
                    None => draft,
                });
            }
            Err(error) if error.is_memory() => {
                self.failed = Some(error.or_leaner(self.failed.take()));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn into_best(self) -> Result<Draft, CompileError> {
        match (self.best, self.failed) {
            (Some(best), _) => Ok(best),
            (None, Some(error)) => Err(error),
            (None, None) => unreachable!("without a choice there is an error"),
        }
    }
}

/// Returns the numbers of stages and microbatches of a choice.
fn size_of(report: &PipelineReport) -> (usize, usize) {
    (report.stages, report.microbatches)
}
