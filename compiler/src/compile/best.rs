//! The best plan of what the options leave open: stages and microbatches, the form of cross entropy, what memory lets
//! recompute and gather again. Each choice is a graph of its own, of which one plan is made ([`once`](super::once)).

use std::collections::BTreeSet;

use graphc_ir::graph::Graph;
use graphc_ir::plan::{
    Cluster, CompileOptions, CrossEntropyForm, PipelineReport, Recompute, RecomputedOps,
    WeightsSource,
};

use super::amounts::{Costs, Depths, Full, Order, Row, least, with_names};
use super::forms::{Form, InMemory, all_forms, all_regathered, best_in_memory, bounded, decided};
use super::once::{Assembled, Draft, Header, assembled};
use super::stages::{Chooser, chosen, is_small, may_pay};
use super::{Compiled, Milestone};
use crate::decisions::Decisions;
use crate::error::CompileError;
use crate::passes::error::PassError;
use crate::passes::recompute::{Extent, OpPlace};
use crate::pipeline::recomputed;
use crate::planner::{Care, Planned, account};

/// Times that a plan is made again, each time with less memory for the planner.
const ROOMS: usize = 2;

/// How much longer than the planner says a step takes where one stream is not enough, as a share.
const LOST: f64 = 0.05;

/// Whether memory is known to be short for the plan of fewest seconds, which is not looked for then.
#[derive(Clone, Copy)]
enum Memory {
    Short,
    Unknown,
}

/// Blocks of a model for which what is cheap of the first of them is planned as well, where memory is short although everything is computed
/// again. Layouts are then other ones for each amount, and what is cheapest for its bytes in one plan is not so in the next: the GPT of the
/// references on 2x2 takes 2 to 3 % longer in 260 and 280 KiB without. More blocks take a time that nobody waits.
const FEW_BLOCKS: usize = 8;

/// What is compiled: the graph and the options as the user gave them.
pub(super) struct Job<'a> {
    pub graph: &'a Graph,
    pub options: &'a CompileOptions,
    pub cluster: &'a Cluster,
    /// Where weights come from.
    pub weights: Option<WeightsSource>,
}

impl Job<'_> {
    /// Compiles with the best choice of what the options leave open.
    pub fn compile_best(
        &self,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<Compiled, CompileError> {
        let Self { graph, options, cluster, .. } = self;
        if !options.auto_stages && !options.auto_microbatches {
            return self.compile((*graph).clone(), options, Memory::Unknown, reached)?.checked();
        }
        // Layers are priced on their own; what the whole takes the null device knows. So of a small graph whole plans are made of several
        // choices, and of a large one of what is better by its layers than the whole plans before it: one stage first, as its plan is made
        // in the time in which the layers of other choices are priced again with less memory, and leaves few of them worth that.
        let chooser = Chooser::new(graph, options, cluster)?;
        let mut tried = Tried::default();
        tried.all(self, &chooser.in_one_stage(), Memory::Short, reached)?;
        match chooser.choices(tried.seconds()) {
            Ok(mut choices) => {
                tried.failed = choices.none.take().or(tried.failed);
                tried.all(self, choices.tried(), Memory::Unknown, reached)?;
            }
            Err(error) => tried.failed = Some(error),
        }
        tried.best()?.checked()
    }

    /// Compiles a graph whose stages are decided, with options that leave nothing open.
    fn compile(
        &self,
        staged: Graph,
        options: &CompileOptions,
        memory: Memory,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<Draft, CompileError> {
        let prepared = all_forms(&staged, options)?;
        reached(Milestone::Prepared);
        let draft = match options.recompute {
            Recompute::Auto => self.least_again(&prepared, options),
            Recompute::None | Recompute::Selective | Recompute::Full => {
                let short = match memory {
                    Memory::Short => all_regathered(&decided(&prepared), options)?,
                    Memory::Unknown => Vec::new(),
                };
                best_in_memory(&decided(&prepared), options, self.cluster, short, Care::Plan)
                    .and_then(|chosen| self.with_room(&prepared, options, chosen))
            }
        };
        reached(Milestone::Planned);
        draft
    }

    /// The plan in which as little is computed again as the memory allows: nothing if memory is not short for that, else what is cheapest for
    /// the memory that it frees ([`Order`], [`least`]), unless what memory costs without is less.
    fn least_again(
        &self,
        prepared: &[Form<()>],
        options: &CompileOptions,
    ) -> Result<Draft, CompileError> {
        let nothing = self.chosen(prepared, options, Care::Plan);
        let has_room = nothing.as_ref().is_ok_and(|chosen| !costs_of(chosen).are_short());
        let nothing = nothing.and_then(|chosen| self.with_room(prepared, options, chosen));
        match nothing {
            Ok(_) if !has_room => {}
            Err(ref error) if error.is_memory() => {}
            other => return other,
        }
        let something = self.something_again(prepared, options);
        better(nothing.ok().map(Ok), something)
    }

    /// The same where something is computed again.
    fn something_again(
        &self,
        prepared: &[Form<()>],
        options: &CompileOptions,
    ) -> Result<Draft, CompileError> {
        let forms = with_again(prepared, options, Extent::Full)?;
        let chosen = self.chosen(&forms, options, Care::Plan)?;
        let (first, costs) = (&prepared[chosen.at].decisions, costs_of(&chosen));
        let order = self.order(first, &forms[chosen.at], &chosen, options)?;
        let (step, limit) = (costs.seconds, options.memory.unwrap_or(self.cluster.device.memory));
        let depths = Depths::new(first);
        let are_few = matches!(order, Order::Ops(_)) && depths.deepest() <= FEW_BLOCKS;
        let others = if costs.are_short() && are_few { depths.deepest() } else { 0 };
        let plan = |ops: BTreeSet<OpPlace>, care: Care| {
            let forms = with_again(prepared, options, Extent::Ops(&ops))?;
            let chosen = self.chosen(&forms, options, care)?;
            Ok((forms, ops, chosen))
        };
        let costs = |(_, _, chosen): &(_, _, InMemory)| costs_of(chosen);
        let assemble = |(forms, ops, chosen): (Vec<Form<()>>, _, _)| {
            let mut draft = self.with_room(&forms, options, chosen)?;
            draft.plan.recomputed = named(prepared, draft.plan.cross_entropy, &ops);
            Ok(draft)
        };
        let everything = (forms, order.everything(), chosen);
        let amount = |amount: usize, care: Care| plan(order.ops(amount), care);
        let best = least(&order.amounts(limit, step), everything, amount, costs, assemble);
        let others = (1..=others).map(|depth| assemble(plan(depths.ops(depth), Care::Plan)?));
        others.fold(best, |best, other| better(Some(best), other))
    }

    /// All that may be computed again, in order, by the plan of the form with everything.
    fn order(
        &self,
        nothing: &Decisions,
        everything: &Form<()>,
        chosen: &InMemory,
        options: &CompileOptions,
    ) -> Result<Order, PassError> {
        if nothing.staging.stages > 1 {
            return Ok(Order::Blocks(Depths::new(nothing)));
        }
        let decisions = chosen.regathered[chosen.at].as_ref().unwrap_or(&everything.decisions);
        let (planned, schedule) = (&chosen.planned, options.schedule);
        let seconds = account(decisions, &planned.sharding, self.cluster, options).seconds;
        Row::new(nothing, &Full { decisions, planned, seconds, schedule }).map(Order::Ops)
    }

    /// The best form.
    fn chosen(
        &self,
        forms: &[Form<()>],
        options: &CompileOptions,
        care: Care,
    ) -> Result<InMemory, CompileError> {
        best_in_memory(&decided(forms), options, self.cluster, Vec::new(), care)
    }

    /// The plan of the best form, made again with less memory for the planner where what it has chosen does not fit as it is lowered,
    /// or fits with one stream alone and loses by that: the planner counts neither gaps between registers nor what lives longer
    /// on two streams.
    fn with_room(
        &self,
        forms: &[Form<()>],
        options: &CompileOptions,
        mut chosen: InMemory,
    ) -> Result<Draft, CompileError> {
        let bound = chosen.planned.report.bound_seconds;
        let mut memory = options.memory.unwrap_or(self.cluster.device.memory);
        let (mut best, mut left) = (None, ROOMS);
        loop {
            // What is proven with less memory is not proven with all of it.
            bounded(&mut chosen.planned, bound);
            let counted = chosen.planned.memory.iter().copied().max().unwrap_or(memory);
            let found = self.assembled(forms, &chosen);
            let short = too_short(&found);
            let known = better(best, found.map(|found| found.draft));
            let Some(short) = short else { return known };
            let regathered = chosen.regathered;
            let again = with_less(memory.min(counted), short, &mut left, |memory| {
                let less = CompileOptions { memory: Some(memory), ..options.clone() };
                let short = regathered.clone();
                best_in_memory(&decided(forms), &less, self.cluster, short, Care::Plan).ok()
            });
            match again {
                Some((again, less)) => (chosen, best, memory) = (again, Some(known), less),
                None => return known,
            }
        }
    }

    /// The plan of what is chosen.
    fn assembled(&self, forms: &[Form<()>], chosen: &InMemory) -> Result<Assembled, CompileError> {
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
        let mut assembled = assembled(header, decisions, sharding)?;
        let plan = &mut assembled.draft.plan;
        plan.regathered = regathered.is_some();
        plan.cross_entropy = *cross_entropy;
        Ok(assembled)
    }
}

/// Whole plans of choices of stages and microbatches.
#[derive(Default)]
struct Tried {
    best: Option<Draft>,
    /// Why there is none, if there is none.
    failed: Option<CompileError>,
    planned: BTreeSet<(usize, usize)>,
}

impl Tried {
    /// Seconds of a step of the best so far.
    fn seconds(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |best| best.simulation.step_seconds)
    }

    /// Makes the plans of those that may be better than the best before them.
    fn all<'a>(
        &mut self,
        job: &Job<'_>,
        choices: impl IntoIterator<Item = &'a PipelineReport>,
        memory: Memory,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<(), CompileError> {
        let is_small = is_small(job.graph, job.options);
        for choice in choices {
            let pays = is_small || may_pay(choice.seconds, self.seconds());
            if pays && self.planned.insert((choice.stages, choice.microbatches)) {
                let (staged, resolved) = chosen(job.graph, job.options, choice)?;
                self.offer(choice, job.compile(staged, &resolved, memory, reached))?;
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
            Err(error) if error.is_memory() => self.failed = self.failed.take().or(Some(error)),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn best(self) -> Result<Draft, CompileError> {
        match (self.best, self.failed) {
            (Some(best), _) => Ok(best),
            (None, Some(error)) => Err(error),
            (None, None) => unreachable!("without a choice there is an error"),
        }
    }
}

/// What is planned below `most` bytes, and with how many: with as many less as a plan of so many lacked, so that it is another. Where that
/// is too little for any plan, with half as many less, as long as attempts are left.
fn with_less<T>(
    most: u64,
    mut lacked: u64,
    left: &mut usize,
    plan: impl Fn(u64) -> Option<T>,
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

/// The faster of two plans; without one the error that came first.
fn better(
    known: Option<Result<Draft, CompileError>>,
    found: Result<Draft, CompileError>,
) -> Result<Draft, CompileError> {
    match (known, found) {
        (Some(Ok(known)), Ok(found)) => Ok(known.faster(found)),
        (Some(known), Err(_)) => known,
        (_, found) => found,
    }
}

/// By how many bytes a plan is too large for the memory, or for two streams without which a step takes longer by [`LOST`].
fn too_short(found: &Result<Assembled, CompileError>) -> Option<u64> {
    match found {
        Ok(Assembled { draft, short }) => {
            let objective = draft.plan.planner.objective_seconds;
            short.filter(|_| draft.simulation.step_seconds > objective * (1.0 + LOST))
        }
        Err(CompileError::Memory { needed, limit, .. }) => Some(needed - limit),
        Err(_) => None,
    }
}

/// The forms with so much computed again.
fn with_again(
    prepared: &[Form<()>],
    options: &CompileOptions,
    extent: Extent<'_>,
) -> Result<Vec<Form<()>>, PassError> {
    let of = |form: &Form<()>| {
        let decisions = recomputed(&form.decisions, options, extent)?;
        Ok(Form { decisions, ..form.clone() })
    };
    prepared.iter().map(of).collect()
}

/// What a plan costs.
fn costs_of(chosen: &InMemory) -> Costs {
    let Planned { relaxed, report, .. } = &chosen.planned;
    Costs { relaxed: *relaxed, seconds: report.objective_seconds }
}

/// The ops that are computed again in a form, with their names.
fn named(
    prepared: &[Form<()>],
    cross_entropy: CrossEntropyForm,
    ops: &BTreeSet<OpPlace>,
) -> Vec<RecomputedOps> {
    let form = prepared.iter().find(|form| form.cross_entropy == cross_entropy);
    form.map_or_else(Vec::new, |form| with_names(&form.decisions, ops))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_little_for_any_plan_is_tried_by_half() {
        let least = |least: u64| move |memory: u64| (memory >= least).then_some(());
        let mut left = 3;
        assert_eq!(with_less(100, 40, &mut left, least(50)), Some(((), 60)));
        assert_eq!(with_less(60, 40, &mut left, least(35)), Some(((), 40)));
        assert_eq!((left, with_less(40, 1, &mut left, least(1))), (0, None));
        assert_eq!(with_less(10, 40, &mut 2, least(50)), None);
    }
}
