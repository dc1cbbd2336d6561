//! Fits the plan of a choice into the memory, with other layouts if the first do not fit once they are lowered.
//!
//! The planner counts bytes without the gaps between registers, and without what lives longer on two streams. A plan may
//! therefore not fit once it is lowered. Or it fits with one stream alone and a step takes 2 % longer by that. Then it is
//! planned again in less memory. While no plan fits, some limits between the counted bytes and the memory are tried as
//! well, because another limit gives another plan.
//!
//! On the other hand the planner counts memory of its own for each tensor, which tensors of the plan may share. Of a small
//! graph, limits above are tried while plans leave memory that the planner has counted.

use super::choice::{Choice, CompileRequest};
use super::forms::{Form, FormPlan, best_in_memory, form_decisions, lower_reported_bound};
use super::limits;
use super::once::{Draft, Header, assemble_draft, choose_better};
use crate::error::CompileError;
use crate::planner::{Planned, Purpose};

/// The outcome of a plan.
pub(super) struct PlanAttempt {
    /// The bytes of its busiest rank, as the planner counts them.
    pub counted: u64,
    /// The plan after lowering.
    pub found: Result<Draft, CompileError>,
}

impl CompileRequest<'_> {
    /// Makes the plan of the chosen form, with other layouts if it does not fit ([`CompileRequest::fit_after_lowering`]).
    pub(super) fn fit_chosen(
        &self,
        forms: &[Form<()>],
        choice: &Choice,
        chosen: FormPlan,
    ) -> Result<Draft, CompileError> {
        let bound = chosen.planned.report.bound_seconds;
        let attempt = |chosen: &FormPlan| {
            let counted = chosen.planned.memory.iter().copied().max().unwrap_or(0);
            PlanAttempt { counted, found: self.assemble_chosen(forms, chosen) }
        };
        let first = attempt(&chosen);
        let mut short = chosen.regathered;
        self.fit_after_lowering(choice, first, |less| {
            let (forms, known) = (form_decisions(forms), short.clone());
            let replanned =
                best_in_memory(&forms, &self.resolve(less), self.cluster, known, Purpose::Plan);
            let mut replanned = replanned.ok()?;
            // What is proven with less memory is not proven with all of it.
            lower_reported_bound(&mut replanned.planned.report, bound);
            let found = attempt(&replanned);
            short = replanned.regathered;
            Some(found)
        })
    }

    /// Makes a plan again with less memory for the planner, if the first does not fit after lowering, or fits only with one stream and loses time by
    /// that. The planner counts neither gaps between registers nor the longer lives of tensors on two streams.
    pub(super) fn fit_after_lowering(
        &self,
        choice: &Choice,
        first: PlanAttempt,
        mut replan: impl FnMut(&Choice) -> Option<PlanAttempt>,
    ) -> Result<Draft, CompileError> {
        let mut memory = self.memory_limit(choice);
        // Above the memory itself several limits are tried already.
        let between = if memory > self.memory() { 0 } else { limits::OTHER_MEMORY };
        let (mut best, mut left, mut between, mut attempt) =
            (None, limits::LESS_MEMORY, between, first);
        loop {
            let PlanAttempt { counted, found } = attempt;
            let short = too_short(&found);
            let known = choose_better(best, found);
            let Some(short) = short else {
                let known = PlanAttempt { counted, found: known };
                return self.plan_with_more_memory(choice, memory, known, replan);
            };
            let counted = memory.min(counted);
            let mut at_limit = |memory| replan(&choice.with_memory(memory));
            let mut next = plan_with_less_memory(counted, short, &mut left, &mut at_limit);
            if next.is_none() && known.is_err() {
                next = plan_at_other_limit(counted, memory, &mut between, at_limit);
            }
            match next {
                Some((next, less)) => (attempt, best, memory) = (next, Some(known), less),
                None => return known,
            }
        }
    }

    /// Plans a small graph again with more memory for the planner, if it has counted all of the limit and the plan needs less. Returns the fastest
    /// plan that fits.
    fn plan_with_more_memory(
        &self,
        choice: &Choice,
        limit: u64,
        known: PlanAttempt,
        mut replan: impl FnMut(&Choice) -> Option<PlanAttempt>,
    ) -> Result<Draft, CompileError> {
        let PlanAttempt { counted, found } = known;
        let mut best = found?;
        let is_short = counted as f64 >= limits::COUNTED_SHARE * limit as f64;
        if !self.is_tiny()
            || best.plan.planner.variables > limits::MORE_MEMORY_VARIABLES
            || !is_short
        {
            return Ok(best);
        }
        let objective = |draft: &Draft| draft.plan.planner.objective_seconds;
        let left = |best: &Draft| self.memory().saturating_sub(best.peak_bytes());
        let (mut memory, mut more) = (counted, left(&best));
        for _ in 0..limits::MORE_MEMORY {
            if memory + more <= limit {
                break;
            }
            match replan(&choice.with_memory(memory + more)) {
                Some(PlanAttempt { counted, found: Ok(found) }) => {
                    memory = counted;
                    more = left(&found);
                    if objective(&found) <= objective(&best) {
                        best = best.faster(found);
                    }
                }
                // It does not fit: with half as much.
                _ => more /= 2,
            }
        }
        Ok(best)
    }

    /// Lowers the plan of the chosen form, whether or not there is memory for a second stream.
    pub(super) fn assemble_chosen(
        &self,
        forms: &[Form<()>],
        chosen: &FormPlan,
    ) -> Result<Draft, CompileError> {
        let FormPlan { at, planned, regathered } = chosen;
        let Form { decisions, cross_entropy, .. } = &forms[*at];
        let Planned { sharding, report: planner, .. } = planned.clone();
        if !planner.objective_seconds.is_finite() {
            return Err(CompileError::NotFinite { seconds: planner.objective_seconds });
        }
        let (graph, options, cluster) = (self.graph, self.options, self.cluster);
        let header = Header { graph, options, cluster, weights: self.weights.clone(), planner };
        let regathered = regathered[*at].as_ref();
        let decisions = regathered.unwrap_or(decisions).clone();
        let mut draft = assemble_draft(header, decisions, sharding)?;
        draft.plan.regathered = regathered.is_some();
        draft.plan.cross_entropy = *cross_entropy;
        Ok(draft)
    }
}

/// Plans with less than `most` bytes, and returns the limit. It has as many bytes less as the last plan lacked, so that the plan is another one. If
/// that is too little for any plan, half as many less are tried, as long as attempts are left.
fn plan_with_less_memory<T>(
    most: u64,
    mut lacked: u64,
    left: &mut usize,
    mut plan: impl FnMut(u64) -> Option<T>,
) -> Option<(T, u64)> {
    while *left > 0 {
        *left -= 1;
        let memory = most.saturating_sub(lacked);
        if let Some(found) = plan(memory) {
            return Some((found, memory));
        }
        lacked /= 2;
    }
    None
}

/// Plans with a limit between `counted` and `memory` bytes, and returns the limit, as long as attempts are left. The greatest limit comes first.
fn plan_at_other_limit<T>(
    counted: u64,
    memory: u64,
    left: &mut usize,
    mut plan: impl FnMut(u64) -> Option<T>,
) -> Option<(T, u64)> {
    while *left > 0 && memory - counted >= memory / limits::OTHER_MEMORY_PARTS {
        let limit = counted + (memory - counted) * *left as u64 / (limits::OTHER_MEMORY as u64 + 1);
        *left -= 1;
        if let Some(found) = plan(limit) {
            return Some((found, limit));
        }
    }
    None
}

/// Returns the bytes by which a plan is too large for the memory, or for the second stream without which it [`loses_time`].
fn too_short(found: &Result<Draft, CompileError>) -> Option<u64> {
    match found {
        Ok(draft) => draft.short.filter(|_| loses_time(draft)),
        Err(CompileError::Memory { needed, limit, .. }) => Some(needed - limit),
        Err(_) => None,
    }
}

/// Whether a step takes longer by [`limits::LOST_SHARE`] than the planner says, without the time that stages wait for others.
pub(super) fn loses_time(draft: &Draft) -> bool {
    let (plan, simulation) = (&draft.plan, &draft.simulation);
    let busy = simulation.step_seconds * (1.0 - simulation.bubble_fraction);
    busy > plan.planner.objective_seconds / plan.stages as f64 * (1.0 + limits::LOST_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_little_for_any_plan_is_tried_by_half() {
        let least = |least: u64| move |memory: u64| (memory >= least).then_some(());
        let mut left = 3;
        assert_eq!(plan_with_less_memory(100, 40, &mut left, least(50)), Some(((), 60)));
        assert_eq!(plan_with_less_memory(60, 40, &mut left, least(35)), Some(((), 40)));
        assert_eq!((left, plan_with_less_memory(40, 1, &mut left, least(1))), (0, None));
        assert_eq!(plan_with_less_memory(10, 40, &mut 2, least(50)), None);
    }

    #[test]
    fn limits_between_are_tried_from_above() {
        let mut tried = Vec::new();
        let found = plan_at_other_limit(100, 140, &mut 3, |memory| {
            tried.push(memory);
            (memory < 120).then_some(())
        });
        assert_eq!((found, tried), (Some(((), 110)), vec![130, 120, 110]));
        assert_eq!(plan_at_other_limit(100, 140, &mut 0, Some), None);
        // Too near each other for another plan.
        assert_eq!(plan_at_other_limit(319, 323, &mut 3, Some), None);
    }
}
