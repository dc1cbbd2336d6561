//! Plans within a memory limit: prices of memory turn the limit into costs (Geoffrion, "Lagrangean relaxation for
//! integer programming", 1974).
//!
//! Bytes have a price at the positions where memory is short. Whatever these prices, the least of seconds and paid
//! bytes, less the price of the limit, is a lower bound. Cutting planes find the prices that raise it most
//! ([`graphc_solver::cutting_planes`]). The same without seconds decides whether anything fits. Where the least weighted average of
//! memory is above the limit, nothing does, and the error says how much every plan needs.
//!
//! All graphs go the same way ([`search`]):
//!
//! 1. Prices rise from low to high until a plan fits ([`feasibility`]). Each group of ranks whose memory is alike has
//!    its own price, as long as it is short of memory. Where that leads nowhere, one price rises for all positions at
//!    which plans were short.
//! 2. The labels of all plans found on the way are the *known* ones, a few for each node. The problem with these
//!    labels alone is the *restricted master* ([`restricted_master`]). In it the prices of each group are lowered
//!    again, by halving, as far as its memory suffices.
//! 3. Cutting planes run to their end in the restricted master, where a minimum takes a fraction of the time. At the
//!    prices found, the whole problem gives a bound, and more labels if it knows something cheaper. Then both are
//!    done again. A bound of the known labels alone is never reported.
//! 4. Plans that fit are those that prices lead to ([`pricing`]). Layers that are alike change sides together, so
//!    prices differ by chance from tensor to tensor. The interval of their scale is halved until as many layers
//!    change as must.
//! 5. Where the gap stays above 3 %, the same is done for less memory. The best for a lower limit may lie between
//!    plans that any price leads to.
//! 6. Where more than 0.2 % is open then, better plans are looked for near the best one ([`polish`], [`neighbours`]).
//! 7. Branch and bound searches all labels last ([`branch`]).
//!
//! Steps 6 and 7 last as long as a share of the work does. Messages of the whole problem are kept from price to
//! price: any messages are right for any costs, and prices nearby need few sweeps. The gap that is left is reported.
//! On `llama3_8b`, 8x8, 0.2 to 0.5 percentage points of it were plans not found. The rest is what messages cannot
//! prove, nearly all of it in the terms of weights that products of both passes and the update read.
//!
//! benchmarks/README.md has what each step costs where it is left out. `compiler/examples/memory_limits.rs` measures
//! gap and time from plenty of memory to too little. Constants here that name four products were measured before
//! known plans were combined ([`polish`]), which makes up for a part of it.

use graphc_plan::{CompileOptions, Strategy};
use graphc_solver::cutting_planes::MemoryPrices;
use graphc_solver::minimise::{Effort, FULL, Minimum, ROUGHLY, Reduced, STEP, TOLERANCE};

use super::encoding::minimise_at_prices;
use super::encoding::warm_start::{
    PriorKnowledge, WarmStart, free_network, minimise_cold, minimise_warm,
};
use super::error::PlannerError;
use super::problem::Problem;
use super::problem::usage::find_overload;
use super::strategies;
pub(crate) use rival::Rival;
use search::MemorySearch;

mod branch;
mod feasibility;
mod neighbours;
mod polish;
mod pricing;
mod restricted_master;
mod rival;
mod search;

/// A plan as indices into the candidates, with its cost and bounds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Solution {
    /// The candidate of each node.
    pub assignment: Vec<usize>,
    /// The seconds of a step.
    pub seconds: f64,
    /// A proven bound.
    pub bound: f64,
    /// The seconds of the plan of fewest seconds that was found without a memory limit.
    pub relaxed: f64,
    /// The prices of memory that prove the bound, or `None` if there is enough memory.
    pub prices: Option<MemoryPrices>,
}

/// The purpose of a plan, which decides how much work is done for it if memory is short.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Purpose {
    /// The plan is executed.
    Plan,
    /// The plan gives the costs of layers. The search ends at a gap that is much smaller than the differences between choices of stages.
    Prices,
    /// The plan is executed. It is one for several graphs in a row, each of which keeps less than the one before it and computes more. A plan of the
    /// last graph, `steps` steps away, takes `seconds`. A plan that is clearly more expensive than the next one in the row is not searched for any
    /// further.
    Against {
        /// The seconds of the last one.
        seconds: f64,
        /// The number of steps to it.
        steps: usize,
    },
}

impl Purpose {
    /// Whether a plan costs more than the next graph in the row would. Each step is assumed to cost an equal part of the way from this graph without
    /// a memory limit to the last one.
    pub(crate) fn is_dear(self, relaxed: f64, found: f64) -> bool {
        match self {
            Self::Plan | Self::Prices => false,
            Self::Against { seconds, steps } => {
                found > relaxed + (seconds - relaxed) / steps.max(1) as f64
            }
        }
    }

    /// The effort for the plan of fewest seconds, within that of the options.
    fn effort(self, options: &CompileOptions) -> Effort {
        let most = match self {
            Self::Plan | Self::Against { .. } => FULL,
            Self::Prices => ROUGHLY,
        };
        let within = |work: usize| options.within_effort(work as u64) as usize;
        Effort { work: within(most.work), division: within(most.division), ..most }
    }

    /// Returns the gap that is good enough.
    fn tolerated_gap(self) -> f64 {
        match self {
            Self::Plan | Self::Against { .. } => NEAR,
            Self::Prices => ROUGH,
        }
    }
}

/// The gap below which the graph of a large model is left at that. Half of it changes no plan; with twice of it GPT on
/// 4 in 320 KiB costs 0.2 %, and Llama 3 8B on 8x8 in 3.05 GiB 0.3 % more.
const NEAR: f64 = 2e-3;
/// The gap that is good enough for prices of layers. Half or twice as much changes no choice of stages: GPT-3 on
/// 128x8, MPT-70B on 128 and Llama 3 70B on 16x8 within 40 GiB take the same time, eight products on 2x2 in 48 KiB
/// 5.2 or 3.1 s instead of 4.4.
const ROUGH: f64 = 2e-2;

/// Finds the plan of fewest seconds that fits the memory, or the best plan found, with a bound. If no plan costs less than the ceiling that is known
/// before, it returns any plan that costs as much or more, and the bound is at most the ceiling. If memory is not short, it also returns the warm start for
/// the search for another form.
///
/// # Errors
/// Returns an error if no plan fits.
pub(super) fn solve_in_memory(
    problem: &Problem<'_>,
    before: PriorKnowledge<'_>,
    purpose: Purpose,
) -> Result<(Solution, Option<WarmStart>), PlannerError> {
    let found = plan_unlimited(problem, purpose, || Some(before))?.expect("all is known before");
    if found.fits {
        return Ok(found.into_solution());
    }
    let Unlimited { data, free, .. } = found;
    let nodes = problem.candidates.len();
    let mut search = MemorySearch::new(problem, &free);
    search.learn_labels(&data);
    search.offer(&free.labels[..nodes]);
    search.purpose = purpose;
    search.run();
    Ok((search.into_solution()?, None))
}

/// The plan of fewest seconds without a memory limit.
pub(super) struct Unlimited {
    /// Whether it fits the memory, or costs no less than the ceiling.
    pub(super) fits: bool,
    assignment: Vec<usize>,
    /// The assignment of data parallelism.
    data: Vec<usize>,
    free: Minimum,
    /// The warm start for the search for another form.
    warm_start: Option<WarmStart>,
}

impl Unlimited {
    /// Returns the plan with its warm start for the search for another form.
    pub(super) fn into_solution(self) -> (Solution, Option<WarmStart>) {
        let Self { assignment, free, warm_start, .. } = self;
        let Minimum { value: seconds, bound, .. } = free;
        let relaxed = seconds;
        (Solution { assignment, seconds, bound, relaxed, prices: None }, warm_start)
    }
}

/// Finds the plan of fewest seconds, whatever the memory. `None` if `before`, which gives what is known before the search, returns `None`. It is
/// called when all other work is done.
///
/// # Errors
/// Returns an error if the model does not fit data parallelism.
pub(super) fn plan_unlimited<'a>(
    problem: &Problem<'_>,
    purpose: Purpose,
    before: impl FnOnce() -> Option<PriorKnowledge<'a>>,
) -> Result<Option<Unlimited>, PlannerError> {
    let data = strategies::assign_strategy(problem, Strategy::Data)?;
    let network = free_network(problem);
    let reduced = Reduced::new(&network);
    let Some(PriorKnowledge { ceiling, warm_start }) = before() else { return Ok(None) };
    // A plan that is known to be sensible: what is found is at least as good.
    let effort = purpose.effort(problem.options);
    let (free, warm_start) = match warm_start.filter(|_| problem.tied.is_none()) {
        Some(first) => (minimise_warm(problem, reduced, (&data, ceiling), first, effort), None),
        None => minimise_cold(problem, reduced, (&data, ceiling), effort),
    };
    let nodes = problem.candidates.len();
    let assignment = free.labels[..nodes].to_vec();
    let is_dear = free.value >= ceiling && free.bound >= ceiling * (1.0 - TOLERANCE);
    let fits = is_dear || find_overload(problem, &assignment, problem.limit).is_none();
    Ok(Some(Unlimited { fits, assignment, data, free, warm_start }))
}

/// Checks that a plan fits the memory, with the search of [`solve_in_memory`] up to the first plan that does.
///
/// # Errors
/// Returns an error if no plan is found that fits.
pub(super) fn check_feasible(problem: &Problem<'_>) -> Result<(), PlannerError> {
    let free = minimise_at_prices(problem, 1.0, &MemoryPrices::new(), None, None, STEP);
    let nodes = problem.candidates.len();
    let mut search = MemorySearch::new(problem, &free);
    search.offer(&free.labels[..nodes]);
    search.find_any();
    search.into_solution().map(drop)
}
