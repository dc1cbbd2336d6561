//! Finds the best plan among all choices that the request leaves open. Read it from top to bottom: each function decides
//! one thing, and asks the next for the best plan with that decision.
//!
//! 1. Numbers of stages and microbatches (`pipelines`, by the prices of [`stages`](super::stages)).
//! 2. Classes with or without padding, each a variant of the graph.
//! 3. The ops that are computed again ([`recompute_choice`](super::recompute_choice)).
//! 4. The form of cross entropy, and what is gathered again (`forms`). Here the planner chooses layouts.
//! 5. Less memory for the planner if the plan does not fit once it is lowered ([`fit`](super::fit)). Of what is decided then,
//!    [`once`](super::once) makes one plan.
//!
//! Of a small graph, a few limits above the memory are tried at last if no plan fits: the planner counts memory of its own
//! for each tensor, which tensors of the plan may share.
//!
//! Several choices of stages are compiled and compared by the null device. Plans of one choice are not ranked again that
//! way. On some small models, fixed strategies that cost up to 5 % more were predicted 1 to 3 % faster. But then the
//! objective of the emitted plan would no longer be the least one, which the report says is proven.

use graphc_plan::{CompileOptions, PipelineReport, Recompute, Strategy};

use super::choice::{Choice, CompileRequest};
use super::forms::{
    Form, Variant, all_regathered, best_if_memory_suffices, best_in_memory, form_decisions,
    prepare_variants,
};
use super::limits;
use super::once::{Draft, choose_better};
use super::{Compiled, Milestone};
use crate::error::CompileError;
use crate::planner::Purpose;

impl CompileRequest<'_> {
    /// Finds the best plan of all choices.
    pub(super) fn find_best_plan(
        &self,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<Compiled, CompileError> {
        let may_go_beyond = !self.leaves_pipeline_open() && self.is_tiny();
        match self.find_plan_within_memory(reached) {
            Err(error) if error.is_memory() && may_go_beyond => self.plan_beyond_memory(error),
            found => found,
        }?
        .check_plan()
    }

    /// Finds the best plan for which the planner counts no more memory than there is.
    pub(super) fn find_plan_within_memory(
        &self,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<Draft, CompileError> {
        match self.leaves_pipeline_open() {
            true => self.find_best_pipeline(reached),
            false => self.draft(&Choice::default(), reached),
        }
    }

    /// Compiles with the stages and microbatches that a report names.
    pub(super) fn compile_pipeline(
        &self,
        report: &PipelineReport,
    ) -> Result<Compiled, CompileError> {
        let mut draft = self.draft(&Choice::of_report(report), &mut |_| ())?;
        draft.plan.pipeline = Some(report.clone());
        draft.check_plan()
    }

    /// Finds a plan that needs more memory by the planner's count, and fits all the same. The last that is tried is ZeRO-3. If none fits, the error is
    /// that of the leanest of them all.
    fn plan_beyond_memory(&self, mut failed: CompileError) -> Result<Draft, CompileError> {
        let memory = self.memory();
        // In less than is proven to be needed the planner finds nothing.
        let proven = failed.memory_proven().unwrap_or(memory);
        let larger = larger_limits(memory).filter(|&limit| limit >= proven);
        let larger = larger.take(limits::BEYOND_MEMORY).map(Choice::of_memory);
        // At last the layouts of ZeRO-3, which are no search's.
        let strategy = Some(Strategy::Zero3);
        let sharded = Choice { strategy, ..Choice::of_memory(memory.saturating_mul(2)) };
        let sharded = Some(sharded).filter(|_| self.options.strategy == Strategy::Auto);
        for choice in larger.chain(sharded) {
            match self.draft(&choice, &mut |_| ()) {
                Ok(draft) => return Ok(draft),
                Err(error) => failed = failed.leaner(error),
            }
        }
        Err(failed.cap_limit(memory))
    }

    /// Makes the best plan of a choice that decides stages and microbatches.
    pub(super) fn draft(
        &self,
        choice: &Choice,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<Draft, CompileError> {
        let options = self.resolve(choice);
        let mut best = None;
        for variant in self.prepare_choice(choice, &options, reached)? {
            let draft = self.plan_forms(&variant.forms, choice, &options);
            best = Some(choose_better(best, variant.name_padding(draft)));
        }
        reached(Milestone::Planned);
        best.expect("there is a variant")
    }

    /// Makes the plan of a choice like [`CompileRequest::draft`]. `None` if there is none, or if memory is short for the plan of fewest seconds.
    pub(super) fn draft_if_memory_suffices(
        &self,
        choice: &Choice,
        reached: &mut dyn FnMut(Milestone),
    ) -> Option<Draft> {
        let options = self.resolve(choice);
        let mut best = None;
        for variant in self.prepare_choice(choice, &options, reached).ok()? {
            let forms = form_decisions(&variant.forms);
            let chosen = best_if_memory_suffices(&forms, &options, self.cluster).ok()??;
            let draft = self.fit_chosen(&variant.forms, choice, chosen);
            best = Some(choose_better(best, variant.name_padding(draft)));
        }
        reached(Milestone::Planned);
        best?.ok()
    }

    /// Prepares the graph of a choice, with and without padded classes if both are to be planned.
    fn prepare_choice(
        &self,
        choice: &Choice,
        options: &CompileOptions,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<Vec<Variant>, CompileError> {
        let graph = choice.cut_graph(self.graph, self.options)?;
        let variants = prepare_variants(&graph, options, self.cluster)?;
        reached(Milestone::Prepared);
        Ok(variants)
    }

    /// Makes the best plan of these forms.
    fn plan_forms(
        &self,
        forms: &[Form<()>],
        choice: &Choice,
        options: &CompileOptions,
    ) -> Result<Draft, CompileError> {
        if options.recompute == Recompute::Auto {
            return self.plan_least_recompute(forms, choice);
        }
        let decided = form_decisions(forms);
        let short = match choice.memory_is_short {
            true => all_regathered(&decided, options)?,
            false => Vec::new(),
        };
        let chosen = best_in_memory(&decided, options, self.cluster, short, Purpose::Plan)?;
        self.fit_chosen(forms, choice, chosen)
    }
}

/// Returns the limits above one that are tried if nothing is found in it, from the least, up to twice as much. They are powers of two and fifteen
/// values between them, whatever the limit, so that limits near each other have the same plans.
fn larger_limits(limit: u64) -> impl Iterator<Item = u64> {
    let parts = (0..60).flat_map(|power| (16..32).map(move |part| (part << power) / 16));
    parts.filter(move |&memory| memory > limit && memory <= limit.saturating_mul(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_beyond_are_the_same_for_limits_nearby() {
        let beyond = |limit| larger_limits(limit).collect::<Vec<u64>>();
        assert_eq!(beyond(1000)[..4], [1024, 1088, 1152, 1216]);
        assert_eq!(beyond(1100)[..4], [1152, 1216, 1280, 1344]);
        assert_eq!(beyond(1100).last(), Some(&2176));
        assert!(beyond(u64::MAX).is_empty());
    }
}
