//! Planning within a memory limit: multipliers price the positions at which memory is short (Geoffrion, "Lagrangean
//! relaxation for integer programming", 1974); branch and bound closes what they leave open, or the gap is reported.

use std::collections::BTreeMap;

use graphc_ir::plan::Strategy;

use super::bound::bound;
use super::candidates::Candidate;
use super::error::PlanError;
use super::memory::{items, largest, peaks, profiles};
use super::minimise::{Effort, FULL, Minimum, STEP, TOLERANCE, minimise};
use super::network::{Multipliers, Network, network};
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

/// Prices of memory by (domain, position).
type Rows = BTreeMap<(usize, usize), f64>;

/// Multiplier steps at the root, of small graphs and of large ones.
const STEPS: [usize; 2] = [24, 8];
/// The number of nodes from which a graph is large.
const LARGE: usize = 100;
/// How fast positions gain weight.
const WEIGHING: f64 = 8.0;
/// Weight of seconds where memory counts: the free plan's as this share of the limit.
const SECONDS: f64 = 1e-3;
/// Subproblems of branch and bound, divided by the number of variables.
const SUBPROBLEMS: usize = 200_000;

/// The plan of fewest seconds that fits the memory, or the best that is found with a bound.
///
/// # Errors
/// Where nothing fits.
pub fn solve(problem: &mut Problem<'_>) -> Result<Solution, PlanError> {
    let data = strategy::assign(problem, Strategy::Data);
    // A plan that is known to be sensible: what is found is at least as good.
    let free = at(problem, 1.0, &Rows::new(), None, Some(&data), FULL);
    let nodes = problem.candidates.len();
    let assignment = free.labels[..nodes].to_vec();
    if overload(problem, &assignment).is_none() {
        return Ok(Solution { assignment, seconds: free.value, bound: free.bound });
    }
    let mut search =
        Search { problem, bound: free.bound, best: None, leanest: None, rows: Rows::new() };
    search.offer(&assignment);
    if let Some(weights) = search.find_room() {
        if search.nodes() < LARGE {
            search.price_memory();
            search.branch();
        } else if search.best.is_some() {
            search.scale_prices(&weights);
        }
    }
    let (bound, leanest) = (search.bound, search.leanest.take());
    match search.best.take() {
        Some((seconds, assignment)) => {
            Ok(Solution { assignment, seconds, bound: bound.min(seconds) })
        }
        None => Err(too_large(problem, &leanest.map_or(assignment, |(_, leanest)| leanest))),
    }
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
        Some(_) => Err(too_large(problem, assignment)),
    }
}

/// The minimum at given prices of memory, among `allowed` candidates.
fn at(
    problem: &mut Problem<'_>,
    seconds: f64,
    rows: &Rows,
    allowed: Option<&[Vec<usize>]>,
    start: Option<&[usize]>,
    effort: Effort,
) -> Minimum {
    let multipliers = Multipliers::new(problem, seconds, rows);
    let whole = network(problem, &multipliers);
    let start = start.map(|assignment| extended(&whole, assignment));
    let Some(allowed) = allowed else { return minimise(&whole, start.as_deref(), effort) };
    let boxed = (allowed.len()..whole.unary.len()).map(|_| vec![0, 1]);
    let kept: Vec<Vec<usize>> = allowed.iter().cloned().chain(boxed).collect();
    let mut found = minimise(&whole.restricted(&kept), None, effort);
    for (label, kept) in found.labels.iter_mut().zip(&kept) {
        *label = kept[*label];
    }
    found
}

/// The labels of all variables that follow from those of the nodes: boxed where a reader asks for it.
fn extended(network: &Network, assignment: &[usize]) -> Vec<usize> {
    let mut kept: Vec<Vec<usize>> = assignment.iter().map(|&label| vec![label]).collect();
    kept.resize(network.unary.len(), vec![0, 1]);
    let folded = network.restricted(&kept);
    let best = |costs: &Vec<f64>| usize::from(costs.len() > 1 && costs[1] < costs[0]);
    let boxed = folded.unary[assignment.len()..].iter().map(best);
    assignment.iter().copied().chain(boxed).collect()
}

/// The domain whose peak exceeds the limit most, with the peak's position and bytes.
fn overload(problem: &mut Problem<'_>, assignment: &[usize]) -> Option<(usize, usize, u64)> {
    let items = items(problem, assignment);
    let peaks = peaks(problem, &items);
    let over = peaks.iter().enumerate().filter(|(_, peak)| peak.bytes > problem.limit);
    over.map(|(domain, peak)| (domain, peak.position, peak.bytes))
        .max_by_key(|&(domain, _, bytes)| (bytes, std::cmp::Reverse(domain)))
}

fn too_large(problem: &mut Problem<'_>, assignment: &[usize]) -> PlanError {
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
        largest: largest(problem, &items, domain, peaks[domain].position),
    }
}

struct Search<'a, 'b> {
    problem: &'a mut Problem<'b>,
    bound: f64,
    /// The best plan that fits.
    best: Option<(f64, Vec<usize>)>,
    /// The plan that needs the least memory, with its bytes.
    leanest: Option<(u64, Vec<usize>)>,
    /// The best multipliers.
    rows: Rows,
}

impl Search<'_, '_> {
    /// Keeps an assignment if it fits and is better, or if it is leaner; says where its memory is short.
    fn offer(&mut self, assignment: &[usize]) -> Option<(usize, usize, u64)> {
        let over = overload(self.problem, assignment);
        match over {
            Some((_, _, bytes)) => {
                if self.leanest.as_ref().is_none_or(|(known, _)| bytes < *known) {
                    self.leanest = Some((bytes, assignment.to_vec()));
                }
            }
            None => {
                let seconds = seconds(self.problem, assignment);
                if self.best.as_ref().is_none_or(|(known, _)| seconds < *known) {
                    self.best = Some((seconds, assignment.to_vec()));
                }
            }
        }
        over
    }

    fn steps(&self) -> usize {
        STEPS[usize::from(self.nodes() >= LARGE)]
    }

    fn nodes(&self) -> usize {
        self.problem.candidates.len()
    }

    /// Looks for any plan that fits: little memory on the weighted average of all positions, of which those that need
    /// most gain weight each time (Arora, Hazan and Kale, "The multiplicative weights update method", 2012). The last
    /// weights, whose sum is 1; `None` where even the average is above the limit, so that nothing fits.
    fn find_room(&mut self) -> Option<Rows> {
        let mut weights = Rows::new();
        let mut latest = self.leanest.as_ref().map(|(_, plan)| plan.clone()).unwrap_or_default();
        for _ in 0..self.steps() {
            weights = self.weighed(&latest, &weights);
            if self.best.is_some() {
                break;
            }
            let limit = self.problem.limit as f64;
            let share = if self.nodes() < LARGE { 0.0 } else { SECONDS };
            let seconds = share * limit / self.bound.max(f64::MIN_POSITIVE);
            let found = at(self.problem, seconds, &weights, None, None, STEP);
            latest = found.labels[..self.nodes()].to_vec();
            self.offer(&latest);
            if share == 0.0 && found.bound > limit * (1.0 + 1e-9) {
                return None;
            }
        }
        Some(weights)
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

    /// Raises the bound by prices in the proportion of `weights`; looks for the least that make a plan fit.
    fn scale_prices(&mut self, weights: &Rows) {
        let limit = self.problem.limit as f64;
        let (mut low, mut high) = (0.0, f64::INFINITY);
        let mut scale = self.bound / limit;
        for _ in 0..self.steps() {
            let rows: Rows = weights.iter().map(|(&row, weight)| (row, weight * scale)).collect();
            let start = self.best.as_ref().map(|(_, assignment)| assignment.clone());
            let found = at(self.problem, 1.0, &rows, None, start.as_deref(), STEP);
            self.bound = self.bound.max(found.bound - scale * limit);
            match self.offer(&found.labels[..self.nodes()]) {
                Some(_) => low = scale,
                None => high = scale,
            }
            if self.closed() {
                return;
            }
            scale = if high.is_finite() { (low + high) / 2.0 } else { scale * 3.0 };
        }
    }

    /// Raises the bound by prices of memory, by subgradient steps of Polyak's length; what fits on the way is kept.
    fn price_memory(&mut self) {
        let mut rows = Rows::new();
        let mut value = self.bound;
        let mut step_share = 1.0;
        let limit = self.problem.limit as f64;
        let mut latest = self.leanest_start();
        for _ in 0..self.steps() {
            let used = self.usage(&latest, &mut rows);
            let slack: BTreeMap<(usize, usize), f64> = rows
                .iter()
                .map(|(&row, &price)| (row, used[&row] - limit, price))
                .filter(|&(_, excess, price)| excess > 0.0 || price > 0.0)
                .map(|(row, excess, _)| (row, excess))
                .collect();
            let length: f64 = slack.values().map(|excess| excess * excess).sum();
            if length == 0.0 {
                return;
            }
            let target = self.best.as_ref().map_or(value.abs() * 1.1 + 1e-9, |(best, _)| *best);
            let step = step_share * (target - value).max(target.abs() * 1e-6) / length;
            for (row, excess) in slack {
                let price = rows.entry(row).or_insert(0.0);
                *price = (*price + step * excess).max(0.0);
            }
            let start = self.best.as_ref().map(|(_, assignment)| assignment.clone());
            let found = at(self.problem, 1.0, &rows, None, start.as_deref(), STEP);
            let paid: f64 = rows.values().sum::<f64>() * limit;
            value = found.bound - paid;
            latest = found.labels[..self.nodes()].to_vec();
            self.offer(&latest);
            if value > self.bound {
                (self.bound, self.rows) = (value, rows.clone());
            } else {
                step_share *= 0.7;
            }
            if self.closed() {
                return;
            }
        }
    }

    fn leanest_start(&mut self) -> Vec<usize> {
        at(self.problem, 1.0, &Rows::new(), None, None, STEP).labels[..self.nodes()].to_vec()
    }

    /// Bytes at each priced row and at the peaks that are too high, which become rows.
    fn usage(&mut self, assignment: &[usize], rows: &mut Rows) -> BTreeMap<(usize, usize), f64> {
        let items = items(self.problem, assignment);
        for (domain, peak) in peaks(self.problem, &items).iter().enumerate() {
            if peak.bytes > self.problem.limit {
                rows.entry((domain, peak.position)).or_insert(0.0);
            }
        }
        let looped = self.problem.lifetimes.looped;
        let placements = self.problem.layouts.placements();
        let reach: Vec<Vec<usize>> = placements
            .iter()
            .map(|placement| self.problem.lifetimes.domains_of(placement))
            .collect();
        let used = |&(domain, position): &(usize, usize)| -> f64 {
            let here =
                items.iter().filter(|item| reach[item.placement.0 as usize].contains(&domain));
            here.map(|item| {
                let alive = (item.span.start..=item.span.end).contains(&position);
                let in_loop =
                    looped.is_some_and(|(first, last)| (first..=last).contains(&position));
                let others = if in_loop { item.span.others } else { 0 };
                (usize::from(alive) + others) as f64 * item.bytes as f64
            })
            .sum()
        };
        rows.keys().map(|row| (*row, used(row))).collect()
    }

    fn closed(&self) -> bool {
        self.best.as_ref().is_some_and(|(best, _)| self.bound >= best * (1.0 - TOLERANCE))
    }

    /// Branch and bound over the candidates of one node after another, with the bounds of no prices and of the best
    /// prices. Ends with a proof, or when its share of subproblems is used up.
    fn branch(&mut self) {
        if self.closed() {
            return;
        }
        let all: Vec<Vec<usize>> =
            self.problem.candidates.iter().map(|all| (0..all.len()).collect()).collect();
        let mut left = SUBPROBLEMS / self.nodes().max(1).pow(2);
        let mut open = vec![(self.bound, all)];
        let mut proven = f64::INFINITY;
        while let Some((bound, allowed)) = open.pop() {
            if left == 0 || self.worse(bound) {
                proven = proven.min(bound);
                continue;
            }
            left -= 1;
            let Some((bound, guide)) = self.evaluate(&allowed) else { continue };
            if self.worse(bound) {
                continue;
            }
            let Some(node) = self.choose(&allowed) else { continue };
            let mut labels = allowed[node].clone();
            labels.sort_by_key(|&label| label == guide[node]);
            for label in labels {
                let mut child = allowed.clone();
                child[node] = vec![label];
                open.push((bound, child));
            }
        }
        let best = self.best.as_ref().map_or(f64::INFINITY, |(best, _)| *best);
        self.bound = self.bound.max(proven.min(best));
    }

    fn worse(&self, bound: f64) -> bool {
        self.best.as_ref().is_some_and(|(best, _)| bound >= best * (1.0 - TOLERANCE))
    }

    /// The bound of a subproblem and the labels that the prices favour; `None` where nothing in it fits or its best
    /// plan is known.
    fn evaluate(&mut self, allowed: &[Vec<usize>]) -> Option<(f64, Vec<usize>)> {
        let nodes = self.nodes();
        let free = at(self.problem, 1.0, &Rows::new(), Some(allowed), None, STEP);
        let assignment = free.labels[..nodes].to_vec();
        let (domain, position, _) = self.offer(&assignment)?;
        let row = Rows::from([((domain, position), 1.0)]);
        let lean = at(self.problem, 0.0, &row, Some(allowed), None, STEP);
        self.offer(&lean.labels[..nodes]);
        if lean.bound > self.problem.limit as f64 * (1.0 + 1e-9) {
            return None;
        }
        if self.rows.is_empty() {
            return Some((free.bound, assignment));
        }
        let rows = self.rows.clone();
        let priced = at(self.problem, 1.0, &rows, Some(allowed), None, STEP);
        let guide = priced.labels[..nodes].to_vec();
        self.offer(&guide);
        let paid = rows.values().sum::<f64>() * self.problem.limit as f64;
        Some((free.bound.max(priced.bound - paid), guide))
    }

    /// The open node whose candidates differ most in the bytes of what they make.
    fn choose(&mut self, allowed: &[Vec<usize>]) -> Option<usize> {
        let made = &self.problem.made;
        let layouts = &mut self.problem.layouts;
        let mut spread = vec![0u64; allowed.len()];
        for made in made {
            let labels = &allowed[made.producer];
            let candidates = &self.problem.candidates[made.producer];
            let mut bytes =
                |&label: &usize| layouts.bytes(made.class, candidates[label].results[made.index]);
            let most = labels.iter().map(&mut bytes).max().unwrap_or(0);
            let least = labels.iter().map(&mut bytes).min().unwrap_or(0);
            spread[made.producer] += most - least;
        }
        let open = (0..allowed.len()).filter(|&node| allowed[node].len() > 1);
        open.max_by_key(|&node| (spread[node], std::cmp::Reverse(node)))
    }
}
