//! Planning within a memory limit: prices of memory turn it into costs (Geoffrion, "Lagrangean relaxation for integer
//! programming", 1974). Prices are found by cutting planes ([`planes`](super::planes)); branch and bound closes what
//! they leave open on small graphs, or the gap is reported.

use std::collections::BTreeSet;

use graphc_ir::plan::Strategy;

use super::bound::bound;
use super::branch;
use super::candidates::Candidate;
use super::dual::Messages;
use super::error::PlanError;
use super::memory::{items, largest, peaks, profiles};
use super::minimise::{Effort, FULL, Minimum, STEP, TOLERANCE, minimise, minimise_on};
use super::multipliers::{Multipliers, Rows};
use super::network::{Network, network};
use super::planes::Planes;
use super::problem::Problem;
use super::strategy;

/// A plan as indices into the candidates, what it costs and what no plan goes below.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// By node.
    pub assignment: Vec<usize>,
    /// What it costs.
    pub seconds: f64,
    /// A proven bound.
    pub bound: f64,
}

/// Prices tried.
pub(super) const STEPS: usize = 40;
/// The number of nodes from which a graph is large: it is searched among the labels of known plans.
const LARGE: usize = 100;

/// The plan of fewest seconds that fits the memory, or the best that is found with a bound. Where nothing costs less than
/// `ceiling` it is any plan that costs as much, and the bound is no higher.
///
/// # Errors
/// Where nothing fits.
pub fn solve(problem: &mut Problem<'_>, ceiling: f64) -> Result<Solution, PlanError> {
    let Unlimited { fits, assignment, data, free } = unlimited(problem, ceiling)?;
    if fits {
        return Ok(Solution { assignment, seconds: free.value, bound: free.bound });
    }
    let mut search = Search::new(problem, &free);
    search.learn(&data);
    search.offer(&assignment);
    search.run();
    search.found()
}

/// The plan of fewest seconds, without regard to the memory.
pub(super) struct Unlimited {
    /// Whether it fits the memory, or costs no less than the ceiling.
    fits: bool,
    assignment: Vec<usize>,
    /// Data parallelism.
    data: Vec<usize>,
    free: Minimum,
}

impl Unlimited {
    /// The plan, if it fits.
    pub fn fitting(self) -> Option<Solution> {
        let Self { fits, assignment, free, .. } = self;
        let Minimum { value: seconds, bound, .. } = free;
        fits.then_some(Solution { assignment, seconds, bound })
    }
}

/// # Errors
/// Where the model does not fit data parallelism.
pub(super) fn unlimited(problem: &mut Problem<'_>, ceiling: f64) -> Result<Unlimited, PlanError> {
    let data = strategy::assign(problem, Strategy::Data)?;
    // A plan that is known to be sensible: what is found is at least as good.
    let free = at(problem, 1.0, &Rows::new(), None, Some(&data), Effort { ceiling, ..FULL });
    let nodes = problem.candidates.len();
    let assignment = free.labels[..nodes].to_vec();
    let is_dear = free.value >= ceiling && free.bound >= ceiling * (1.0 - TOLERANCE);
    let fits = is_dear || overload(problem, &assignment).is_none();
    Ok(Unlimited { fits, assignment, data, free })
}

/// Whether anything fits the memory, as [`solve`] finds out, up to the first plan that does.
///
/// # Errors
/// Where nothing is found that fits.
pub fn room(problem: &mut Problem<'_>) -> Result<(), PlanError> {
    let free = at(problem, 1.0, &Rows::new(), None, None, STEP);
    let nodes = problem.candidates.len();
    let mut search = Search::new(problem, &free);
    search.offer(&free.labels[..nodes]);
    search.any();
    search.found().map(drop)
}

/// What an assignment costs without regard to memory.
pub fn seconds(problem: &mut Problem<'_>, assignment: &[usize]) -> f64 {
    let free = Multipliers::new(problem, 1.0, &Rows::new());
    let network = network(problem, &free);
    network.cost(&extended(&network, assignment))
}

/// A bound of the problem without its memory limit.
pub fn relaxed_bound(problem: &mut Problem<'_>) -> f64 {
    let free = Multipliers::new(problem, 1.0, &Rows::new());
    bound(&network(problem, &free))
}

/// A bound of the same, at once: what the nodes compute at least.
pub fn compute_bound(problem: &Problem<'_>) -> f64 {
    let least = |all: &Vec<Candidate>| {
        all.iter().map(|candidate| candidate.seconds).fold(f64::INFINITY, f64::min)
    };
    problem.candidates.iter().map(least).sum()
}

/// # Errors
/// Where an assignment does not fit the memory.
pub fn check_memory(problem: &mut Problem<'_>, assignment: &[usize]) -> Result<(), PlanError> {
    match overload(problem, assignment) {
        None => Ok(()),
        Some(_) => Err(too_large(problem, assignment, None)),
    }
}

/// The minimum at given prices of memory, among `allowed` candidates.
pub(super) fn at(
    problem: &mut Problem<'_>,
    seconds: f64,
    rows: &Rows,
    allowed: Option<&[Vec<usize>]>,
    start: Option<&[usize]>,
    effort: Effort,
) -> Minimum {
    let multipliers = Multipliers::new(problem, seconds, rows);
    let Some(allowed) = allowed else {
        return priced(problem, &multipliers, start, effort, None);
    };
    let whole = network(problem, &multipliers);
    let start = start.map(|assignment| extended(&whole, assignment));
    let others = (allowed.len()..whole.unary.len()).map(|v| (0..whole.labels(v)).collect());
    let kept: Vec<Vec<usize>> = allowed.iter().cloned().chain(others).collect();
    let within = |start: Vec<usize>| -> Option<Vec<usize>> {
        let labels = start.iter().zip(&kept);
        labels.map(|(label, kept)| kept.iter().position(|known| known == label)).collect()
    };
    let start = start.and_then(within);
    let mut found = minimise(&whole.restricted(&kept), start.as_deref(), effort);
    for (label, kept) in found.labels.iter_mut().zip(&kept) {
        *label = kept[*label];
    }
    found
}

/// The minimum at given prices of memory, where costs are shifted on from `messages`.
pub(super) fn priced(
    problem: &mut Problem<'_>,
    multipliers: &Multipliers,
    start: Option<&[usize]>,
    effort: Effort,
    messages: Option<&mut Messages>,
) -> Minimum {
    let whole = network(problem, multipliers);
    let start = start.map(|assignment| extended(&whole, assignment));
    minimise_on(&whole, start.as_deref(), effort, messages)
}

/// The labels of all variables that follow from those of the nodes: boxed where a reader asks for it.
fn extended(network: &Network, assignment: &[usize]) -> Vec<usize> {
    let nodes = assignment.len();
    let mut kept: Vec<Vec<usize>> = assignment.iter().map(|&label| vec![label]).collect();
    kept.extend((nodes..network.unary.len()).map(|v| (0..network.labels(v)).collect()));
    let folded = network.restricted(&kept);
    let best = |costs: &Vec<f64>| {
        let better = |best, label| if costs[label] < costs[best] { label } else { best };
        (0..costs.len()).fold(0, better)
    };
    assignment.iter().copied().chain(folded.unary[nodes..].iter().map(best)).collect()
}

/// The domain whose peak exceeds the limit most, with the peak's position and bytes.
fn overload(problem: &mut Problem<'_>, assignment: &[usize]) -> Option<(usize, usize, u64)> {
    let items = items(problem, assignment);
    let peaks = peaks(problem, &items);
    let over = peaks.iter().enumerate().filter(|(_, peak)| peak.bytes > problem.limit);
    over.map(|(domain, peak)| (domain, peak.position, peak.bytes))
        .max_by_key(|&(domain, _, bytes)| (bytes, std::cmp::Reverse(domain)))
}

fn too_large(problem: &mut Problem<'_>, assignment: &[usize], least: Option<u64>) -> PlanError {
    let items = items(problem, assignment);
    let peaks = peaks(problem, &items);
    let worst = (0..peaks.len()).max_by_key(|&d| (peaks[d].bytes, std::cmp::Reverse(d)));
    let domain = worst.unwrap_or(0);
    let place = &problem.lifetimes.domains[domain];
    PlanError::Memory {
        rank: place.ranks[0],
        stage: place.stage,
        needed: peaks[domain].bytes,
        limit: problem.limit,
        least,
        largest: largest(problem, &items, domain, peaks[domain].position),
    }
}

/// A search for a plan that fits.
pub(super) struct Search<'a, 'b> {
    /// What is planned.
    pub problem: &'a mut Problem<'b>,
    /// The same where memory costs nothing.
    pub free: Network,
    /// Seconds that no plan which fits goes below.
    pub bound: f64,
    /// The best plan that fits.
    pub best: Option<(f64, Vec<usize>)>,
    /// The plan that needs the least memory, with its bytes.
    pub leanest: Option<(u64, Vec<usize>)>,
    /// Bytes that no plan goes below.
    pub least: f64,
    /// The best prices.
    pub rows: Rows,
    /// What is cheapest at these prices, as far as it is known.
    pub guide: Option<Vec<usize>>,
    /// What plans that were found cost and keep.
    pub planes: Planes,
    /// By node: the labels that these plans have.
    pub known: Vec<BTreeSet<usize>>,
    /// Whether each node has these labels alone for now.
    pub is_narrow: bool,
    /// From one bound of the whole problem to the next.
    pub messages: Messages,
}

impl<'a, 'b> Search<'a, 'b> {
    /// Of the free plan nothing but its bound is known.
    fn new(problem: &'a mut Problem<'b>, free: &Minimum) -> Self {
        let unpriced = Multipliers::new(problem, 1.0, &Rows::new());
        Self {
            free: network(problem, &unpriced),
            bound: free.bound,
            best: None,
            leanest: None,
            least: 0.0,
            rows: Rows::new(),
            guide: None,
            planes: Planes::new(problem.limit, free.value),
            known: vec![BTreeSet::new(); problem.candidates.len()],
            is_narrow: false,
            messages: Messages::default(),
            problem,
        }
    }

    fn run(&mut self) {
        if self.nodes() >= LARGE {
            if self.escalate() || self.make_room() {
                self.alternate();
            }
        } else if self.find_room(STEPS) {
            self.price_memory();
            self.vary_prices(0.0);
            branch::search(self);
        }
    }

    /// Looks for any plan that fits, where none is known.
    fn any(&mut self) {
        if self.best.is_some() {
            return;
        }
        if self.nodes() >= LARGE {
            let _ = self.escalate() || self.make_room();
            return;
        }
        if !self.find_room(STEPS) || self.best.is_some() {
            return;
        }
        self.price_memory();
        if self.best.is_none() {
            self.vary_prices(0.0);
        }
        if self.best.is_none() {
            branch::search(self);
        }
    }

    /// What the search has ended with.
    fn found(self) -> Result<Solution, PlanError> {
        let (problem, bound, least) = (self.problem, self.bound, self.least as u64);
        match (self.best, self.leanest) {
            (Some((seconds, assignment)), _) => {
                Ok(Solution { assignment, seconds, bound: bound.min(seconds) })
            }
            (None, leanest) => {
                let leanest = leanest.map(|(_, leanest)| leanest).unwrap_or_default();
                // Where axes are tied the leanest plan may be another.
                let least = Some(least).filter(|&least| least > problem.limit);
                let least = least.filter(|_| problem.tied.is_none());
                Err(too_large(problem, &leanest, least))
            }
        }
    }

    /// Keeps an assignment if it fits and is better, or if it is leaner; says where its memory is short.
    pub fn offer(&mut self, assignment: &[usize]) -> Option<(usize, usize, u64)> {
        self.learn(assignment);
        let over = overload(self.problem, assignment);
        let seconds = self.seconds(assignment);
        let items = items(self.problem, assignment);
        self.planes.add(seconds, profiles(self.problem, &items));
        match over {
            Some((_, _, bytes)) => {
                if self.leanest.as_ref().is_none_or(|(known, _)| bytes < *known) {
                    self.leanest = Some((bytes, assignment.to_vec()));
                }
            }
            None => {
                if self.best.as_ref().is_none_or(|(known, _)| seconds < *known) {
                    self.best = Some((seconds, assignment.to_vec()));
                }
            }
        }
        over
    }

    /// What an assignment costs.
    pub fn seconds(&self, assignment: &[usize]) -> f64 {
        self.free.cost(&extended(&self.free, assignment))
    }

    /// Nodes of the graph.
    pub fn nodes(&self) -> usize {
        self.problem.candidates.len()
    }

    /// Whether the bound meets the best plan.
    pub fn closed(&self) -> bool {
        self.within(TOLERANCE)
    }

    /// Whether at most this share of the best plan is not proven.
    pub fn within(&self, share: f64) -> bool {
        self.best.as_ref().is_some_and(|(best, _)| self.bound >= best * (1.0 - share))
    }
}
