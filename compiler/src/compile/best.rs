//! Finds the best plan among all choices that the options leave open.
//!
//! Choices are stages and microbatches, the form of cross entropy, padding, and what is computed and gathered again.
//! Each choice is a graph of its own, of which [`once`](super::once) makes one plan.
//!
//! Memory decides in three places:
//!
//! - The planner counts bytes without the gaps between registers, and without what lives longer on two streams. A
//!   plan may therefore not fit once it is lowered. Or it fits with one stream alone and a step takes 2 % longer by
//!   that. Then it is planned again in less memory.
//! - While no plan fits, some limits between the counted bytes and the memory are tried as well, because another
//!   limit gives another plan.
//! - Of a small graph, a few limits above the memory are tried as well, while no plan fits, and while plans leave
//!   memory that the planner has counted. It counts memory of its own for each tensor, which tensors of the plan may
//!   share.
//!
//! Several choices of stages are compiled and compared by the null device, as `stages` says. Plans of one choice are
//! not ranked again that way. On some small models, fixed strategies that cost up to 5 % more were predicted 1 to 3 %
//! faster. But then the objective of the emitted plan would no longer be the least one, which the report says is
//! proven.

use std::collections::BTreeSet;

use graphc_ir::graph::Graph;
use graphc_ir::plan::{
    Cluster, CompileOptions, PipelineReport, Recompute, Strategy, WeightsSource,
};

use super::forms::{
    Form, InMemory, all_regathered, best_if_memory_suffices, best_in_memory, form_decisions,
    lower_reported_bound, prepare_variants,
};
use super::once::{Draft, Header, assemble_draft};
use super::stages::{Chooser, MOST_BEHIND, apply_choice, is_small, may_pay};
use super::{Compiled, Milestone};
use crate::error::CompileError;
use crate::planner::{Care, Planned};

/// The number of times that a plan is made again, each time with less memory for the planner.
const TIMES_WITH_LESS: usize = 2;

/// The number of limits between the planner's count and the memory that are tried while no plan fits, because the planner finds another plan at
/// another limit. (Four products on 2x2 in 22.4 KiB have a plan at the first of them, and none in less than is counted.)
const BETWEEN: usize = 3;

/// Such limits are tried where at least this part of the memory, one of so many, lies above what the planner counts: nearer to each other they lead to
/// the same plan. (One layer on four ranks counts 319 of 323 bytes.)
const PARTS_BETWEEN: u64 = 64;

/// The most nodes of the user's graph times ranks for which limits above the memory are tried if nothing is found in it.
const MOST_BEYOND: usize = 5_000;

/// The number of such limits that are tried. (A GPT of two layers on four ranks in 280 KiB has a plan at the first that is tried.)
const BEYOND: usize = 3;

/// The number of times that a plan which leaves memory is made again with more memory for the planner.
const MORE: usize = 3;

/// The most variables of the planner's problem for that: larger ones take seconds to plan.
const MOST_MORE: usize = 2_000;

/// The least share of the memory that the planner must count for more of it to make another plan.
const BOUND: f64 = 0.9;

/// The least share by which a step must take longer than the planner says for another plan to be tried: with more memory for a second stream, or with
/// everything recomputed.
const LOST: f64 = 0.02;

/// Whether memory is known to be short for the plan of fewest seconds, which is then not searched for.
#[derive(Clone, Copy)]
enum MemoryShortage {
    Short,
    Unknown,
}

/// A compilation: the graph and the options that the user gave.
pub(super) struct CompileJob<'a> {
    pub graph: &'a Graph,
    pub options: &'a CompileOptions,
    pub cluster: &'a Cluster,
    /// The source of weights.
    pub weights: Option<WeightsSource>,
}

impl CompileJob<'_> {
    /// Compiles with the best choice of everything that the options leave open.
    pub(super) fn compile_best(
        &self,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<Compiled, CompileError> {
        self.or_beyond(self.compile_within(reached))
    }

    /// Compiles with the best choice, with plans for which the planner counts no more memory than there is.
    pub(super) fn compile_within(
        &self,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<Compiled, CompileError> {
        let Self { graph, options, cluster, .. } = self;
        if !options.auto_stages && !options.auto_microbatches {
            return self
                .compile_staged((*graph).clone(), options, MemoryShortage::Unknown, reached)?
                .check_plan();
        }
        // Layers are priced on their own; what the whole takes the null device knows. So of a small graph whole plans
        // are made of several choices, and of a large one of what is better by its layers than the whole plans before
        // it: one stage first, as its plan is made in the time in which the layers of other choices are priced again
        // with less memory, and leaves few of them worth that.
        let mut ready = None;
        let chooser = Chooser::with_whole_plan(graph, options, cluster, |choice| {
            let draft = self.plan_choice_if_memory_suffices(choice, reached)?;
            let seconds = draft.plan.planner.objective_seconds;
            ready = Some(((choice.stages, choice.microbatches), draft));
            Some(seconds)
        })?;
        let mut tried = ChoicePlans { ready, ..ChoicePlans::default() };
        tried.try_choices(self, &chooser.in_one_stage(), MemoryShortage::Short, reached)?;
        match chooser.find_choices(tried.best_seconds()) {
            Ok(mut choices) => {
                tried.failed = choices.none.take().or(tried.failed);
                tried.try_choices(
                    self,
                    choices.choices_to_plan(options),
                    MemoryShortage::Unknown,
                    reached,
                )?;
            }
            Err(error) => tried.failed = Some(error),
        }
        tried.into_best()?.check_plan()
    }

    /// Compiles with one choice of stages and microbatches.
    pub(super) fn compile_choice(&self, choice: &PipelineReport) -> Result<Compiled, CompileError> {
        let (staged, resolved) = apply_choice(self.graph, self.options, choice)?;
        let mut draft =
            self.compile_staged(staged, &resolved, MemoryShortage::Unknown, &mut |_| ())?;
        draft.plan.pipeline = Some(choice.clone());
        draft.check_plan()
    }

    /// Returns the plan that was found. If none was, it tries plans that need more memory by the planner's count, because the planner counts memory
    /// of its own for each tensor, which tensors of the plan may share, and at last ZeRO-3. If none fits, the error is that of the leanest of them all.
    fn or_beyond(&self, found: Result<Compiled, CompileError>) -> Result<Compiled, CompileError> {
        let open = self.options.auto_stages || self.options.auto_microbatches;
        let mut failed = match found {
            Err(error) if error.is_memory() && !open && self.is_tiny() => error,
            other => return other,
        };
        let limit = self.memory_limit(self.options);
        // In less than is proven to be needed the planner finds nothing.
        let proven = failed.memory_proven().unwrap_or(limit);
        let larger = larger_limits(limit).filter(|&memory| memory >= proven).take(BEYOND);
        let larger =
            larger.map(|memory| CompileOptions { memory: Some(memory), ..self.options.clone() });
        // At last the layouts of ZeRO-3, which are no search's.
        let memory = Some(limit.saturating_mul(2));
        let sharded = CompileOptions { strategy: Strategy::Zero3, memory, ..self.options.clone() };
        let sharded = Some(sharded).filter(|_| self.options.strategy == Strategy::Auto);
        for options in larger.chain(sharded) {
            match self.compile_staged(
                self.graph.clone(),
                &options,
                MemoryShortage::Unknown,
                &mut |_| (),
            ) {
                Ok(draft) => return draft.check_plan(),
                Err(error) => failed = failed.leaner(error),
            }
        }
        Err(failed.cap_limit(limit))
    }

    /// Whether a plan is quickly made.
    fn is_tiny(&self) -> bool {
        self.graph.nodes.len() * self.options.mesh.iter().product::<usize>() <= MOST_BEYOND
    }

    /// Compiles a graph whose stages are decided, with options that leave nothing open.
    fn compile_staged(
        &self,
        staged: Graph,
        options: &CompileOptions,
        memory: MemoryShortage,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<Draft, CompileError> {
        let plan = |forms: &[Form<()>]| Ok(Some(self.plan_best_form(forms, options, memory)));
        let best = self.best_variant(&staged, options, plan, reached)?;
        best.expect("every variant is planned")
    }

    /// Makes the plan of a choice like [`CompileJob::compile_staged`]. `None` if there is none, or if memory is short for the plan of fewest seconds.
    fn plan_choice_if_memory_suffices(
        &self,
        choice: &PipelineReport,
        reached: &mut dyn FnMut(Milestone),
    ) -> Option<Draft> {
        let (staged, options) = apply_choice(self.graph, self.options, choice).ok()?;
        let plan = |forms: &[Form<()>]| {
            let chosen = best_if_memory_suffices(&form_decisions(forms), &options, self.cluster)?;
            Ok(chosen.map(|chosen| self.fit_chosen(forms, &options, chosen)))
        };
        self.best_variant(&staged, &options, plan, reached).ok()??.ok()
    }

    /// Makes the best plan of all variants of a graph. `plan` makes that of the forms of one. If it returns `None`, there is no plan.
    fn best_variant(
        &self,
        staged: &Graph,
        options: &CompileOptions,
        plan: impl Fn(&[Form<()>]) -> Result<Option<Result<Draft, CompileError>>, CompileError>,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<Option<Result<Draft, CompileError>>, CompileError> {
        let prepared = prepare_variants(staged, options, self.cluster)?;
        reached(Milestone::Prepared);
        let mut best = None;
        for variant in &prepared {
            let Some(draft) = plan(&variant.forms)? else { return Ok(None) };
            let draft = draft.map(|mut draft| {
                draft.plan.padded = variant.padded;
                draft
            });
            best = Some(choose_better(best, draft));
        }
        reached(Milestone::Planned);
        Ok(best)
    }

    /// Makes the best plan of these forms.
    fn plan_best_form(
        &self,
        prepared: &[Form<()>],
        options: &CompileOptions,
        memory: MemoryShortage,
    ) -> Result<Draft, CompileError> {
        match options.recompute {
            Recompute::Auto => self.plan_least_recompute(prepared, options),
            Recompute::None | Recompute::Selective | Recompute::Full => {
                let short = match memory {
                    MemoryShortage::Short => all_regathered(&form_decisions(prepared), options)?,
                    MemoryShortage::Unknown => Vec::new(),
                };
                best_in_memory(&form_decisions(prepared), options, self.cluster, short, Care::Plan)
                    .and_then(|chosen| self.fit_chosen(prepared, options, chosen))
            }
        }
    }

    /// Makes the plan of the chosen form, with other layouts if it does not fit ([`CompileJob::fit_after_lowering`]).
    pub(super) fn fit_chosen(
        &self,
        forms: &[Form<()>],
        options: &CompileOptions,
        chosen: InMemory,
    ) -> Result<Draft, CompileError> {
        let bound = chosen.planned.report.bound_seconds;
        let attempt = |chosen: &InMemory| {
            let counted = chosen.planned.memory.iter().copied().max().unwrap_or(0);
            PlanAttempt { counted, found: self.assemble_chosen(forms, chosen) }
        };
        let first = attempt(&chosen);
        let mut short = chosen.regathered;
        self.fit_after_lowering(options, first, |less| {
            let (forms, known) = (form_decisions(forms), short.clone());
            let again = best_in_memory(&forms, less, self.cluster, known, Care::Plan);
            let mut again = again.ok()?;
            // What is proven with less memory is not proven with all of it.
            lower_reported_bound(&mut again.planned.report, bound);
            let found = attempt(&again);
            short = again.regathered;
            Some(found)
        })
    }

    /// Makes a plan again with less memory for the planner, if the first does not fit after lowering, or fits only with one stream and loses time by
    /// that. The planner counts neither gaps between registers nor the longer lives of tensors on two streams.
    pub(super) fn fit_after_lowering(
        &self,
        options: &CompileOptions,
        first: PlanAttempt,
        mut again: impl FnMut(&CompileOptions) -> Option<PlanAttempt>,
    ) -> Result<Draft, CompileError> {
        let mut memory = self.memory_limit(options);
        // Above the memory itself several limits are tried already.
        let between = if memory > self.memory_limit(self.options) { 0 } else { BETWEEN };
        let (mut best, mut left, mut between, mut attempt) =
            (None, TIMES_WITH_LESS, between, first);
        loop {
            let PlanAttempt { counted, found } = attempt;
            let short = too_short(&found);
            let known = choose_better(best, found);
            let Some(short) = short else {
                let known = PlanAttempt { counted, found: known };
                return self.plan_with_more_memory(options, memory, known, again);
            };
            let counted = memory.min(counted);
            let mut again =
                |memory| again(&CompileOptions { memory: Some(memory), ..options.clone() });
            let mut next = plan_with_less_memory(counted, short, &mut left, &mut again);
            if next.is_none() && known.is_err() {
                next = plan_at_other_limit(counted, memory, &mut between, again);
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
        options: &CompileOptions,
        limit: u64,
        known: PlanAttempt,
        mut again: impl FnMut(&CompileOptions) -> Option<PlanAttempt>,
    ) -> Result<Draft, CompileError> {
        let PlanAttempt { counted, found } = known;
        let mut best = found?;
        let is_short = counted as f64 >= BOUND * limit as f64;
        if !self.is_tiny() || best.plan.planner.variables > MOST_MORE || !is_short {
            return Ok(best);
        }
        let objective = |draft: &Draft| draft.plan.planner.objective_seconds;
        let left = |best: &Draft| self.memory_limit(self.options).saturating_sub(best.peak_bytes());
        let (mut memory, mut more) = (counted, left(&best));
        for _ in 0..MORE {
            if memory + more <= limit {
                break;
            }
            match again(&CompileOptions { memory: Some(memory + more), ..options.clone() }) {
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

    /// Returns the bytes of each rank.
    pub(super) fn memory_limit(&self, options: &CompileOptions) -> u64 {
        options.memory.unwrap_or(self.cluster.device.memory)
    }

    /// Lowers the plan of the chosen form, whether or not there is memory for a second stream.
    pub(super) fn assemble_chosen(
        &self,
        forms: &[Form<()>],
        chosen: &InMemory,
    ) -> Result<Draft, CompileError> {
        let InMemory { at, planned, regathered } = chosen;
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

/// The outcome of a plan.
pub(super) struct PlanAttempt {
    /// The bytes of its busiest rank, as the planner counts them.
    pub counted: u64,
    /// The plan after lowering.
    pub found: Result<Draft, CompileError>,
}

/// Whole plans of choices of stages and microbatches.
#[derive(Default)]
struct ChoicePlans {
    best: Option<Draft>,
    /// A plan that was made before its choice was priced, with the numbers of stages and microbatches.
    ready: Option<((usize, usize), Draft)>,
    /// The reason why there is none, if there is none.
    failed: Option<CompileError>,
    planned: BTreeSet<(usize, usize)>,
}

impl ChoicePlans {
    /// Returns the seconds of a step of the best plan so far.
    fn best_seconds(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |best| best.simulation.step_seconds)
    }

    /// Returns the seconds of layers from which on no whole plan of a small graph is made.
    fn most_seconds(&self) -> f64 {
        let choice = self.best.as_ref().and_then(|best| best.plan.pipeline.as_ref());
        choice.map_or(f64::INFINITY, |choice| MOST_BEHIND * choice.seconds)
    }

    /// Makes the plans of the choices that may be better than the best before them.
    fn try_choices<'a>(
        &mut self,
        job: &CompileJob<'_>,
        choices: impl IntoIterator<Item = &'a PipelineReport>,
        memory: MemoryShortage,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<(), CompileError> {
        let is_small = is_small(job.graph, job.options);
        for choice in choices {
            let pays = match is_small {
                true => choice.seconds < self.most_seconds(),
                false => may_pay(choice.seconds, self.best_seconds()),
            };
            let size = (choice.stages, choice.microbatches);
            if pays && self.planned.insert(size) {
                let found = match self.ready.take_if(|(of, _)| *of == size) {
                    Some((_, draft)) => Ok(draft),
                    None => {
                        let (staged, resolved) = apply_choice(job.graph, job.options, choice)?;
                        job.compile_staged(staged, &resolved, memory, reached)
                    }
                };
                self.offer(choice, found)?;
            }
        }
        Ok(())
    }

    fn offer(
        &mut self,
        choice: &PipelineReport,
        found: Result<Draft, CompileError>,
    ) -> Result<(), CompileError> {
        match found {
            Ok(mut draft) => {
                draft.plan.pipeline = Some(choice.clone());
                self.best = Some(match self.best.take() {
                    Some(known) => Draft::faster(known, draft),
                    None => draft,
                });
            }
            Err(error) if error.is_memory() => {
                self.failed = Some(match self.failed.take() {
                    Some(known) => known.leaner(error),
                    None => error,
                });
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
    while *left > 0 && memory - counted >= memory / PARTS_BETWEEN {
        let limit = counted + (memory - counted) * *left as u64 / (BETWEEN as u64 + 1);
        *left -= 1;
        if let Some(found) = plan(limit) {
            return Some((found, limit));
        }
    }
    None
}

/// Returns the limits above one that are tried if nothing is found in it, from the least, up to twice as much. They are powers of two and fifteen
/// values between them, whatever the limit, so that limits near each other have the same plans.
fn larger_limits(limit: u64) -> impl Iterator<Item = u64> {
    let parts = (0..60).flat_map(|power| (16..32).map(move |part| (part << power) / 16));
    parts.filter(move |&memory| memory > limit && memory <= limit.saturating_mul(2))
}

/// Returns the faster of two plans. If neither is one, it returns the error of the one that needs less memory.
pub(super) fn choose_better(
    known: Option<Result<Draft, CompileError>>,
    found: Result<Draft, CompileError>,
) -> Result<Draft, CompileError> {
    match (known, found) {
        (Some(Ok(known)), Ok(found)) => Ok(known.faster(found)),
        (Some(Err(known)), Err(found)) => Err(known.leaner(found)),
        (Some(known), Err(_)) => known,
        (_, found) => found,
    }
}

/// Returns the bytes by which a plan is too large for the memory, or for the second stream without which it [`loses_time`].
fn too_short(found: &Result<Draft, CompileError>) -> Option<u64> {
    match found {
        Ok(draft) => draft.short.filter(|_| loses_time(draft)),
        Err(CompileError::Memory { needed, limit, .. }) => Some(needed - limit),
        Err(_) => None,
    }
}

/// Whether a step takes longer by [`LOST`] than the planner says, without the time that stages wait for others.
pub(super) fn loses_time(draft: &Draft) -> bool {
    let (plan, simulation) = (&draft.plan, &draft.simulation);
    let busy = simulation.step_seconds * (1.0 - simulation.bubble_fraction);
    busy > plan.planner.objective_seconds / plan.stages as f64 * (1.0 + LOST)
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
    fn limits_beyond_are_the_same_for_limits_nearby() {
        let beyond = |limit| larger_limits(limit).collect::<Vec<u64>>();
        assert_eq!(beyond(1000)[..4], [1024, 1088, 1152, 1216]);
        assert_eq!(beyond(1100)[..4], [1152, 1216, 1280, 1344]);
        assert_eq!(beyond(1100).last(), Some(&2176));
        assert!(beyond(u64::MAX).is_empty());
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
