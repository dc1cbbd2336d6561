//! The planner, which chooses one signature for each node, so that a step takes the fewest seconds and fits the memory.
//!
//! A signature says in which layout a node takes each operand and gives each result. Boxing brings a tensor from one
//! layout to another. The choice is an integer programme, with a one-hot choice per node and one boxing per tensor
//! and layout:
//!
//! - (a) `x[n,c] in {0,1}`: node `n` has signature `c`. Forbidden signatures are absent.
//! - (b) `sum_c x[n,c] = 1`.
//! - (c) `b[v,L] >= sum of x[r,c] over signatures c of reader r that take v in layout L`, for each reader `r`: tensor
//!   `v` is boxed to `L`, once however many readers take it so.
//! - (d) `sum_S z[v,S,L] = b[v,L]` and `z[v,S,L] <= sum of x[p,c] over signatures c of the producer p that make v in
//!   S`: it is boxed from the layout in which it is made.
//! - (e) `w[u,S,L]` likewise for each update `u`: its result goes back to the layout of its variable.
//! - (f) `memory(d,t) <= limit` for ranks `d` at each position `t` of their order, linear in `x`, `z` and `w`.
//! - (g) minimise `sum seconds[n,c] x[n,c] + sum seconds[v,S,L] z[v,S,L] + sum seconds[u,S,L] w[u,S,L]`, where what
//!   happens once per microbatch counts as often.
//!
//! The planner solves the same problem as a *cost-function network*: variables with labels, and costs of labels and
//! of pairs of labels. A variable stands for a node, and a label for a candidate, that is a signature which the node
//! may have. Each of these modules uses only those before it:
//!
//! - [`problem`]: signatures, prices of boxing, lifetimes and sizes, and the memory that an assignment takes.
//! - [`graphc_solver`]: a crate of its own, minimises cost-function networks by message passing and exact elimination; knows nothing of graphs.
//! - [`encoding`]: the problem as such a network, where memory has a price.
//! - [`strategies`]: fixed plans, such as data parallelism.
//! - [`memory`]: the prices of memory that keep (f), cutting planes, and branch and bound where memory is short.
//! - [`mod@reference`]: the integer programme for a solver, and the cost of a finished sharding from the graph alone.
//!   Tests hold plan, exhaustive search, this cost and the integer programme to the same number.
//! - `waiting`: for `graphc explain`, the ways in which a tensor can wait for the backward pass.
//!
//! The objective sums the seconds of all stages of a pipeline. No bound is known for the slowest of them.
//!
//! All layers are planned by themselves: nothing that is proven depends on layers being alike. `Planned::work` counts
//! the work: entries of tables that are made or looked at, and routes that are priced. `compiler/tests/planning/growth.rs`
//! holds that it grows at most in proportion to layers, and not with ranks.
//!
//! Nothing here inserts boxing or orders actors. Start reading with [`plan_signatures`].

mod asked;
mod encoding;
mod error;
mod memory;
pub mod problem;
pub mod reference;
mod strategies;
mod waiting;

use graphc_ir::enter_span;
use graphc_ir::ids::ValueId;
use graphc_ir::mesh::Placement;
use graphc_ir::sbp::NdSbp;
use graphc_plan::{Cluster, CompileOptions, PlannerReport, PlannerStatus, Strategy};

use crate::decisions::{Decisions, NodeSharding, Sharding};

pub use error::PlannerError;
pub(crate) use reference::account_by_node;
pub use reference::{RepricedSharding, reprice_sharding};

pub use encoding::warm_start::PriorKnowledge;
pub(crate) use encoding::warm_start::WarmStart;
pub use memory::Purpose;
pub(crate) use memory::Rival;
pub use waiting::{Reading, Waiting, WaitingWay, Waits, price_waiting};

use memory::Solution;
use problem::candidates::{Candidate, CandidateList};
use problem::layouts::SbpId;
use problem::size::programme_size;
use problem::usage::{self, check_memory};
use problem::{Problem, compute_bound};

/// A plan of signatures.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The signature of each node.
    pub sharding: Sharding,
    /// The quality of the plan.
    pub report: PlannerReport,
    /// The seconds of the plan of fewest seconds that was found without a memory limit.
    pub relaxed: f64,
    /// Bytes at the peak of the busiest rank of each stage, by the planner's model.
    pub memory: Vec<u64>,
    /// The values with which another form of the same model may be compared, or `None` if memory is not short.
    pub(crate) rival: Option<Rival>,
    /// The warm start for the search for another form, or `None` if it would not help that search.
    pub(crate) warm_start: Option<WarmStart>,
    /// The work of planning: entries of cost tables that were made or looked at, and routes that were priced. It is the same on every machine.
    pub work: u64,
}

/// Plans the best signatures for all nodes.
///
/// # Errors
/// Returns an error if a pin cannot be fulfilled, or if the memory does not suffice.
pub fn plan_signatures(
    decisions: &Decisions,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<Planned, PlannerError> {
    plan_below(decisions, options, cluster, PriorKnowledge::NOTHING, Purpose::Plan)
}

/// Plans the best signatures, if they cost less than the ceiling that is known before. If no plan does, it returns any plan that costs as much or
/// more.
///
/// # Errors
/// Returns an error if a pin cannot be fulfilled, or if the memory does not suffice.
pub fn plan_below(
    decisions: &Decisions,
    options: &CompileOptions,
    cluster: &Cluster,
    before: PriorKnowledge<'_>,
    purpose: Purpose,
) -> Result<Planned, PlannerError> {
    let _span = enter_span!("choose_signatures");
    let problem = Problem::new(decisions, options, cluster)?;
    if options.strategy.is_planned() {
        let (solution, warm_start) = memory::solve_in_memory(&problem, before, purpose)?;
        return Ok(Planned { warm_start, ..build_planned(&problem, options, solution) });
    }
    let (alone, solution) = plan_strategy(&problem, options.strategy)?;
    Ok(build_planned(&alone, options, solution))
}

impl Planned {
    /// Returns what is known before the search for another form, if this one was planned first. That search only has to find whether the other is
    /// better.
    pub(crate) fn prior_knowledge(&self) -> PriorKnowledge<'_> {
        PriorKnowledge {
            ceiling: self.report.objective_seconds,
            warm_start: self.warm_start.as_ref(),
        }
    }
}

/// Plans like [`plan_below`] if the best plan without a memory limit fits the memory; `None` if memory is short. `before` gives what is known before
/// the search. It is called when all other work is done. If it returns `None`, there is no search, and the result is `None` as well.
///
/// # Errors
/// Returns an error if a pin cannot be fulfilled, or if the memory does not suffice for a fixed strategy.
pub(crate) fn plan_if_memory_suffices<'a>(
    decisions: &Decisions,
    options: &CompileOptions,
    cluster: &Cluster,
    before: impl FnOnce() -> Option<PriorKnowledge<'a>>,
) -> Result<Option<Planned>, PlannerError> {
    if !options.strategy.is_planned() {
        let Some(before) = before() else { return Ok(None) };
        return plan_below(decisions, options, cluster, before, Purpose::Plan).map(Some);
    }
    let _span = enter_span!("choose_signatures");
    let problem = Problem::new(decisions, options, cluster)?;
    let found = memory::plan_unlimited(&problem, Purpose::Plan, before)?;
    let Some(found) = found.filter(|found| found.fits) else { return Ok(None) };
    let (solution, warm_start) = found.into_solution();
    Ok(Some(Planned { warm_start, ..build_planned(&problem, options, solution) }))
}

/// Returns the bound of a form that need not be planned, because a form that was already planned (the rival) is no worse. `None` if it is to be
/// planned. `rival` is called when all other work is done.
///
/// # Errors
/// Returns an error if a pin cannot be fulfilled.
pub(crate) fn outbid_form(
    decisions: &Decisions,
    options: &CompileOptions,
    cluster: &Cluster,
    rival: impl FnOnce() -> Option<Rival>,
) -> Result<Option<f64>, PlannerError> {
    let problem = Problem::new(decisions, options, cluster)?;
    problem.price_boxing();
    Ok(rival().and_then(|rival| rival.outbids(&problem)))
}

/// Makes the planner's result from a solution.
fn build_planned(problem: &Problem<'_>, options: &CompileOptions, solution: Solution) -> Planned {
    let (variables, constraints) = programme_size(problem);
    let solution = match &problem.tied {
        Some(tied) => Solution { bound: tied.bound.min(solution.bound), ..solution },
        None => solution,
    };
    let share = (solution.seconds - solution.bound) / solution.seconds.max(f64::MIN_POSITIVE);
    // Of a cost that is no number nothing is known.
    let gap = if solution.seconds.is_finite() { share.max(0.0) } else { 1.0 };
    let optimal = options.strategy.is_planned() && gap <= 1e-6;
    let report = PlannerReport {
        status: if optimal { PlannerStatus::Optimal } else { PlannerStatus::Gap },
        gap: if optimal { 0.0 } else { gap },
        objective_seconds: solution.seconds,
        bound_seconds: solution.bound,
        variables,
        constraints,
        tied_axes: problem.tied.as_ref().map_or(Vec::new(), |tied| tied.axes.clone()),
    };
    let memory = stage_memory(problem, &solution.assignment);
    let Solution { assignment, seconds, bound, relaxed, prices } = &solution;
    let rival = prices.as_ref().and_then(|p| Rival::new(problem, *seconds, *bound, p));
    let (sharding, work) = (build_sharding(problem, assignment), problem.meter.entries());
    Planned { sharding, report, relaxed: *relaxed, memory, rival, warm_start: None, work }
}

/// The limit of memory if there is none. No plan reaches it.
pub const UNLIMITED: u64 = u64::MAX >> 8;

/// Checks that [`plan_signatures`] would find a plan. No time is spent on finding a good one.
///
/// # Errors
/// Returns an error if a pin cannot be fulfilled, or if the memory does not suffice.
pub(crate) fn check_feasible(
    decisions: &Decisions,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<(), PlannerError> {
    let problem = Problem::new(decisions, options, cluster)?;
    match options.strategy {
        strategy if strategy.is_planned() && problem.limit >= UNLIMITED => Ok(()),
        strategy if strategy.is_planned() => memory::check_feasible(&problem),
        strategy => {
            let chosen = strategies::assign_strategy(&problem, strategy)?;
            check_memory(&problem, &chosen)
        }
    }
}

/// Returns a lower bound of the problem without its memory limit.
///
/// # Errors
/// Returns an error if a pin cannot be fulfilled.
pub(crate) fn relaxed_bound(
    decisions: &Decisions,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<f64, PlannerError> {
    let problem = Problem::new(decisions, options, cluster)?;
    match &problem.tied {
        Some(tied) => Ok(tied.bound),
        None => Ok(encoding::relaxed_bound(&problem)),
    }
}

/// The most ranks for which the bound of a fixed strategy is that of the free problem.
const BOUNDED_RANKS: usize = 16;

/// Plans with a strategy, and returns the problem that has only its signatures. The bound is that of the free problem without its memory limit; on
/// several mesh axes or many ranks, where that takes long, it is the bound of computing alone.
fn plan_strategy<'a>(
    problem: &Problem<'a>,
    strategy: Strategy,
) -> Result<(Problem<'a>, Solution), PlannerError> {
    let small =
        |place: &Placement| place.hierarchy.len() == 1 && place.ranks.len() <= BOUNDED_RANKS;
    let bound = if problem.layouts.placements().iter().all(small) {
        encoding::relaxed_bound(problem)
    } else {
        compute_bound(problem)
    };
    let chosen = strategies::assign_strategy(problem, strategy)?;
    let all = problem.candidates.iter().zip(chosen);
    let alone = all.map(|(all, chosen)| CandidateList::from([all[chosen].clone()])).collect();
    let problem = problem.with_candidates(alone);
    let assignment = vec![0; problem.candidates.len()];
    let seconds = encoding::assignment_seconds(&problem, &assignment);
    check_memory(&problem, &assignment)?;
    let bound = bound.min(seconds);
    Ok((problem, Solution { assignment, seconds, bound, relaxed: seconds, prices: None }))
}

fn build_sharding(problem: &Problem<'_>, assignment: &[usize]) -> Sharding {
    let sbps = |ids: &[SbpId]| -> Vec<NdSbp> {
        ids.iter().map(|&id| NdSbp::clone(&problem.layouts.sbp(id))).collect()
    };
    let node = |candidate: &Candidate| NodeSharding {
        choices: candidate.choices.clone(),
        operands: sbps(&candidate.operands),
        results: sbps(&candidate.results),
    };
    Sharding { nodes: problem.chosen_candidates(assignment).into_iter().map(node).collect() }
}

fn stage_memory(problem: &Problem<'_>, assignment: &[usize]) -> Vec<u64> {
    let items = usage::list_items(problem, assignment);
    let peaks = usage::find_peaks(problem, &items);
    let mut stages = vec![0; problem.decisions.staging.stages];
    for (domain, peak) in problem.lifetimes.domains.iter().zip(peaks) {
        stages[domain.stage] = stages[domain.stage].max(peak.bytes);
    }
    stages
}

/// Lists the layouts that a tensor's producer can make it in, in order.
///
/// # Errors
/// Returns an error if a pin cannot be fulfilled.
pub fn layouts_of(
    decisions: &Decisions,
    options: &CompileOptions,
    cluster: &Cluster,
    tensor: ValueId,
) -> Result<Vec<NdSbp>, PlannerError> {
    let problem = Problem::new(decisions, options, cluster)?;
    let value = decisions.graph().value(tensor);
    let mut layouts: Vec<NdSbp> = problem
        .candidates_of(value.producer)
        .iter()
        .map(|candidate| NdSbp::clone(&problem.layouts.sbp(candidate.results[value.index])))
        .collect();
    layouts.sort();
    layouts.dedup();
    Ok(layouts)
}

/// Plans with one tensor in a given layout. The planner chooses all the rest anew, whatever a fixed strategy says.
///
/// # Errors
/// Returns an error if there is no such plan.
pub fn plan_with_layout(
    decisions: &Decisions,
    options: &CompileOptions,
    cluster: &Cluster,
    (tensor, layout): (ValueId, &NdSbp),
) -> Result<Planned, PlannerError> {
    let planned = Some(options.strategy).filter(|strategy| strategy.is_planned());
    let strategy = planned.unwrap_or(Strategy::Auto);
    let options = CompileOptions { strategy, ..options.clone() };
    let mut held = decisions.clone();
    held.training.graph.values[tensor.index()].pin = Some(layout.clone());
    plan_signatures(&held, &options, cluster)
}
