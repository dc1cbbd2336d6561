//! Planning within a memory limit: prices of memory turn it into costs (Geoffrion, "Lagrangean relaxation for integer
//! programming", 1974). Prices are found by cutting planes ([`planes`](super::planes)); branch and bound closes what
//! they leave open on small graphs, or the gap is reported.

use graphc_ir::plan::Strategy;

use super::bound::bound;
use super::branch;
use super::candidates::Candidate;
use super::error::PlanError;
use super::memory::{items, largest, peaks, profiles};
use super::minimise::{Effort, FULL, Minimum, STEP, TOLERANCE, minimise};
use super::multipliers::{Multipliers, Rows};
use super::network::{Network, network};
use super::planes::{Planes, between};
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

/// Prices tried, of small graphs and of large ones, and at least of the largest.
const STEPS: [usize; 3] = [40, 20, 8];
/// Signatures of all nodes, times the prices tried, beyond which a graph is among the largest.
const WORK: usize = 1_000_000;
/// The number of nodes from which a graph is large.
const LARGE: usize = 100;
/// How fast positions gain weight.
const WEIGHING: f64 = 8.0;
/// Weight of seconds where memory counts: the free plan's as this share of the limit.
const SECONDS: f64 = 1e-3;
/// How far to go from the best prices to those that the planes propose.
const TRUST: f64 = 0.6;
/// Prices are not refined where the bound is this close to the most that they may reach, as a share of it.
const CLOSE: f64 = 1e-4;
/// Prices in a row that do not raise the bound after which it is left.
const IDLE: usize = 3;
/// How much more the first layers pay than the last where plans are looked for, or the other way round.
const TILTS: [f64; 4] = [0.3, -0.3, 0.08, -0.08];
/// The gap below which the graph of a large model is left at that.
const NEAR: f64 = 5e-3;
/// What is done to raise the bound at the best prices.
const LAST: Effort = Effort { rounds: 8, work: 1_000_000_000, look: 3, division: 0 };
/// By how much prices differ by chance.
const SHAKE: f64 = 0.4;
/// How often they do: up to the second number, times the number of nodes up to the first.
const DRAWS: [usize; 2] = [8000, 16];
/// Prices tried with each of them, at most.
const PATIENCE: usize = 6;

/// The plan of fewest seconds that fits the memory, or the best that is found with a bound.
///
/// # Errors
/// Where nothing fits.
pub fn solve(problem: &mut Problem<'_>) -> Result<Solution, PlanError> {
    let data = strategy::assign(problem, Strategy::Data)?;
    // A plan that is known to be sensible: what is found is at least as good.
    let free = at(problem, 1.0, &Rows::new(), None, Some(&data), FULL);
    let nodes = problem.candidates.len();
    let assignment = free.labels[..nodes].to_vec();
    if overload(problem, &assignment).is_none() {
        return Ok(Solution { assignment, seconds: free.value, bound: free.bound });
    }
    let mut search = Search::new(problem, &free);
    if search.find_room() {
        search.price_memory();
        search.vary_prices();
        search.branch_if_small();
    }
    search.found()
}

/// Whether anything fits the memory, as [`solve`] finds out, up to the first plan that does.
///
/// # Errors
/// Where nothing is found that fits.
pub fn room(problem: &mut Problem<'_>) -> Result<(), PlanError> {
    let free = at(problem, 1.0, &Rows::new(), None, None, STEP);
    let mut search = Search::new(problem, &free);
    if search.best.is_none() && search.find_room() {
        search.price_memory();
        if search.best.is_none() {
            search.vary_prices();
        }
        if search.best.is_none() {
            search.branch_if_small();
        }
    }
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
    priced(problem, &multipliers, allowed, start, effort)
}

fn priced(
    problem: &mut Problem<'_>,
    multipliers: &Multipliers,
    allowed: Option<&[Vec<usize>]>,
    start: Option<&[usize]>,
    effort: Effort,
) -> Minimum {
    let whole = network(problem, multipliers);
    let start = start.map(|assignment| extended(&whole, assignment));
    let Some(allowed) = allowed else { return minimise(&whole, start.as_deref(), effort) };
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
    free: Network,
    /// Seconds that no plan which fits goes below.
    pub bound: f64,
    /// The best plan that fits.
    pub best: Option<(f64, Vec<usize>)>,
    /// The plan that needs the least memory, with its bytes.
    leanest: Option<(u64, Vec<usize>)>,
    /// Bytes that no plan goes below.
    least: f64,
    /// The best prices.
    pub rows: Rows,
    planes: Planes,
}

impl<'a, 'b> Search<'a, 'b> {
    /// A search that knows the plan of a network in which memory is free.
    fn new(problem: &'a mut Problem<'b>, free: &Minimum) -> Self {
        let unpriced = Multipliers::new(problem, 1.0, &Rows::new());
        let mut search = Search {
            free: network(problem, &unpriced),
            bound: free.bound,
            best: None,
            leanest: None,
            least: 0.0,
            rows: Rows::new(),
            planes: Planes::new(problem.limit, free.value),
            problem,
        };
        let nodes = search.nodes();
        search.offer(&free.labels[..nodes]);
        search
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
                let least = Some(least).filter(|&least| least > problem.limit);
                Err(too_large(problem, &leanest, least))
            }
        }
    }

    fn branch_if_small(&mut self) {
        if self.nodes() < LARGE {
            branch::search(self);
        }
    }

    /// Keeps an assignment if it fits and is better, or if it is leaner; says where its memory is short.
    pub fn offer(&mut self, assignment: &[usize]) -> Option<(usize, usize, u64)> {
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
    fn seconds(&self, assignment: &[usize]) -> f64 {
        self.free.cost(&extended(&self.free, assignment))
    }

    fn steps(&self) -> usize {
        let labels: usize = self.problem.candidates.iter().map(Vec::len).sum();
        match self.nodes() >= LARGE {
            true => (WORK / labels).clamp(STEPS[2], STEPS[1]),
            false => STEPS[0],
        }
    }

    /// Nodes of the graph.
    pub fn nodes(&self) -> usize {
        self.problem.candidates.len()
    }

    /// Looks for any plan that fits: little memory on a weighted average of positions. Of two sets of weights in turn
    /// one is of few positions, and raises the bound; the other is of all, of which those that need most gain weight
    /// each time (Arora, Hazan and Kale, "The multiplicative weights update method", 2012), and finds plans. False
    /// where even an average is above the limit, so that nothing fits.
    fn find_room(&mut self) -> bool {
        let limit = self.problem.limit as f64;
        let seconds = SECONDS * limit / self.bound.max(f64::MIN_POSITIVE);
        let mut latest = self.leanest.as_ref().map(|(_, plan)| plan.clone()).unwrap_or_default();
        let mut spread = Rows::new();
        for _ in 0..self.steps() {
            let Some(weights) = self.planes.weights() else { return true };
            let found = at(self.problem, 0.0, &weights, None, None, STEP);
            self.least = self.least.max(found.bound);
            if self.least > limit * (1.0 + 1e-9) {
                return false;
            }
            self.offer(&found.labels[..self.nodes()]);
            for _ in 0..2 {
                spread = self.weighed(&latest, &spread);
                let found = at(self.problem, seconds, &spread, None, None, STEP);
                latest = found.labels[..self.nodes()].to_vec();
                self.offer(&latest);
            }
            if self.best.is_some() {
                return true;
            }
        }
        true
    }

    /// Weights of all positions after one more plan.
    fn weighed(&mut self, assignment: &[usize], weights: &Rows) -> Rows {
        let items = items(self.problem, assignment);
        let profiles = profiles(self.problem, &items);
        let most = profiles.iter().flatten().copied().max().unwrap_or(1).max(1) as f64;
        let mut next = Rows::new();
        for (domain, profile) in profiles.iter().enumerate() {
            for (position, &bytes) in profile.iter().enumerate() {
                let before = weights.get(&(domain, position)).copied().unwrap_or(1.0);
                let gain = (WEIGHING * (bytes as f64 / most - 1.0)).exp();
                next.insert((domain, position), before * gain);
            }
        }
        let sum: f64 = next.values().sum();
        next.values_mut().for_each(|weight| *weight /= sum);
        next
    }

    /// Raises the bound by prices of memory; what fits on the way is kept.
    fn price_memory(&mut self) {
        let mut trust = TRUST;
        let mut idle = 0;
        for _ in 0..self.steps() {
            let Some((ceiling, proposed)) = self.planes.prices() else { return };
            if self.closed() || ceiling - self.bound <= CLOSE * ceiling.abs() || idle == IDLE {
                break;
            }
            let rows = between(&self.rows, &proposed, trust);
            let value = self.raise(&rows, STEP);
            idle = if value > self.bound + CLOSE * ceiling.abs() { 0 } else { idle + 1 };
            // Prices that are no better are too high, unless the planes do not know it yet.
            if value > self.bound {
                (self.bound, self.rows, trust) = (value, rows, TRUST);
            } else {
                trust = if trust < 1.0 { 1.0 } else { TRUST / 2.0 };
            }
        }
        if !self.closed() && !self.rows.is_empty() {
            let rows = self.rows.clone();
            self.bound = self.raise(&rows, LAST).max(self.bound);
        }
    }

    /// The bound at these prices; the plan found on the way is kept if it fits.
    fn raise(&mut self, rows: &Rows, effort: Effort) -> f64 {
        let start = self.best.as_ref().map(|(_, assignment)| assignment.clone());
        let found = at(self.problem, 1.0, rows, None, start.as_deref(), effort);
        self.offer(&found.labels[..self.nodes()]);
        found.bound - rows.values().sum::<f64>() * self.problem.limit as f64
    }

    /// At the best prices plans that fit and plans that do not cost the same. Layers that are alike go from one to
    /// the other together, unless their prices differ a little; they go one by one as prices rise.
    fn vary_prices(&mut self) {
        let most = if self.steps() < STEPS[1] { TILTS.len() / 2 } else { TILTS.len() };
        for tilt in TILTS.into_iter().take(most) {
            let vary = |problem: &Problem<'_>, prices: Multipliers| prices.tilted(problem, tilt);
            self.raise_prices(1.0, tilt.abs() / 8.0, vary);
        }
        let mut scale = 1.0;
        for draw in 0..(DRAWS[0] / self.nodes()).min(DRAWS[1]) {
            let vary = |problem: &Problem<'_>, prices: Multipliers| {
                prices.shaken(problem, SHAKE, draw as u64)
            };
            scale = (self.raise_prices(scale, SHAKE / 8.0, vary) - SHAKE / 8.0).max(1.0);
        }
    }

    /// Raises prices that differ from the best as `vary` says until a plan fits, or costs more than one that does. The
    /// last scale tried.
    fn raise_prices(
        &mut self,
        from: f64,
        step: f64,
        vary: impl Fn(&Problem<'_>, Multipliers) -> Multipliers,
    ) -> f64 {
        let mut scale = from;
        for _ in 0..PATIENCE {
            let near = self.within(if self.nodes() >= LARGE { NEAR } else { TOLERANCE });
            let Some((_, rows)) = self.planes.prices().filter(|_| !near) else { break };
            let rows = rows.into_iter().map(|(row, price)| (row, price * scale)).collect();
            let multipliers = vary(self.problem, Multipliers::new(self.problem, 1.0, &rows));
            let found = priced(self.problem, &multipliers, None, None, STEP);
            let over = self.offer(&found.labels[..self.nodes()]);
            let seconds = self.seconds(&found.labels[..self.nodes()]);
            if over.is_none() || self.best.as_ref().is_some_and(|(best, _)| seconds >= *best) {
                break;
            }
            scale += step;
        }
        scale
    }

    /// Whether the bound meets the best plan.
    pub fn closed(&self) -> bool {
        self.within(TOLERANCE)
    }

    /// Whether at most this share of the best plan is not proven.
    fn within(&self, share: f64) -> bool {
        self.best.as_ref().is_some_and(|(best, _)| self.bound >= best * (1.0 - share))
    }
}
