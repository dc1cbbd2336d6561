//! Branch and bound within a memory limit, over parts of the labels with prices of their own (Barnhart et al., "Branch-and-price: column generation
//! for solving huge integer programs", Operations Research, 1998).
//!
//! The prices that prove most about all plans prove little about a part. A part is divided by one label, which the cheapest mixture of the part's
//! plans within the limit has most nearly half. Prices cannot tell the plans of this mixture apart.
//!
//! This closes what prices leave open on graphs of some dozen nodes. Their gap is 6.3 % without it and 4.3 % with it on average
//! (benchmarks/README.md). Of large graphs it sees only a part or two.

use std::rc::Rc;

use graphc_solver::branch_and_bound::{Division, branch_and_bound};
use graphc_solver::cutting_planes::{CuttingPlanes, MemoryPrices, interpolate_prices};
use graphc_solver::minimise::{STEP, TOLERANCE};

use super::search::{FoundPlan, MemorySearch};
use crate::planner::encoding::minimise_at_prices;

/// The most times that the prices of a part are changed. Half or twice as many change no plan of benchmarks/README.md.
const STEPS: usize = 6;
/// The share of the way from the best prices of a part to those that its planes propose. Half as far, or all the way,
/// changes no plan and no bound.
const TRUST: f64 = 0.7;
/// The share of the most that the bound may reach within which prices are not changed further. Half or twice as much changes no plan.
const CLOSE: f64 = 1e-3;
/// The most plans of a part from which its prices follow: the latest that are known. Half or twice as many change no plan.
const MOST_PLANES: usize = 30;
/// The weight of plans below which a label counts as decided, because less is rounding. A thousandth and a thousand times of it change no plan.
const DECIDED: f64 = 1e-6;

/// The labels that each node may have, and the known plans with these.
struct BranchPart {
    bound: f64,
    allowed: Vec<Vec<usize>>,
    prices: MemoryPrices,
    /// All plans that were found with these labels, the latest last. A plan that is found in another part has another label, unless that part
    /// contains this one.
    plans: Vec<Rc<FoundPlan>>,
}

impl BranchPart {
    /// Returns the part of this one in which a node has one of these labels.
    fn restrict_node(&self, node: usize, labels: Vec<usize>) -> Self {
        let is_within = |plan: &&Rc<FoundPlan>| labels.contains(&plan.labels[node]);
        let plans = self.plans.iter().filter(is_within).cloned().collect();
        let mut allowed = self.allowed.clone();
        allowed[node] = labels;
        Self { bound: self.bound, allowed, prices: self.prices.clone(), plans }
    }
}

/// A search whose labels are divided.
struct Branching<'s, 'a> {
    search: &'s mut MemorySearch<'a>,
}

impl Division for Branching<'_, '_> {
    type Part = BranchPart;

    fn part_bound(part: &BranchPart) -> f64 {
        part.bound
    }

    fn has_work(&mut self) -> bool {
        self.search.has_work()
    }

    fn divide(&mut self, part: &mut BranchPart) -> Option<[BranchPart; 2]> {
        if self.search.is_worse(part.bound) || !self.raise_bound(part) {
            return None;
        }
        let (node, label) = self.open_label(part)?;
        let others = part.allowed[node].iter().copied().filter(|&other| other != label);
        Some([part.restrict_node(node, others.collect()), part.restrict_node(node, vec![label])])
    }
}

impl MemorySearch<'_> {
    /// Divides the labels into two parts, and these again, until no part may have a better plan or its share of the work is done.
    pub(super) fn search_branches(&mut self) {
        if self.is_closed() {
            return;
        }
        let allowed = self.problem.candidates.iter().map(|all| (0..all.len()).collect()).collect();
        let prices = self.prices.clone();
        let all = BranchPart { bound: self.bound, allowed, prices, plans: Vec::new() };
        let mut branching = Branching { search: self };
        let least = branch_and_bound(&mut branching, vec![all]);
        let best = self.best.as_ref().map_or(f64::INFINITY, |(best, _)| *best);
        self.bound = self.bound.max(least.min(best));
    }

    fn is_worse(&self, bound: f64) -> bool {
        self.best.as_ref().is_some_and(|(best, _)| bound >= best * (1.0 - TOLERANCE))
    }
}

impl Branching<'_, '_> {
    /// Raises the bound of a part. Returns `false` if nothing in it is better than the best plan.
    fn raise_bound(&mut self, part: &mut BranchPart) -> bool {
        let mut tried = part.prices.clone();
        for step in 0..STEPS {
            if step > 0 && self.search.is_spent() {
                break;
            }
            self.try_prices(part, &tried);
            if self.search.is_worse(part.bound) {
                return false;
            }
            match self.planes_of(part).0.find_prices() {
                Some((ceiling, prices)) if ceiling - part.bound > CLOSE * ceiling.abs() => {
                    tried = interpolate_prices(&part.prices, &prices, TRUST);
                }
                // As far as its plans show, a part has memory enough.
                None if !tried.is_empty() => tried.clear(),
                _ => break,
            }
        }
        true
    }

    /// Computes the bound of a part at some prices, which are kept if it is higher.
    fn try_prices(&mut self, part: &mut BranchPart, prices: &MemoryPrices) {
        let search = &mut *self.search;
        let minimum =
            minimise_at_prices(&search.problem, 1.0, prices, Some(&part.allowed), None, STEP);
        let found = search.count_plan(&minimum.labels[..search.count_nodes()]);
        search.offer_counted(&found);
        part.plans.push(Rc::new(found));
        let paid = prices.values().sum::<f64>() * search.limit as f64;
        if minimum.bound - paid > part.bound {
            part.bound = minimum.bound - paid;
            part.prices.clone_from(prices);
        }
    }

    /// Returns the latest plans of a part.
    fn planes_of<'p>(&self, part: &'p BranchPart) -> (CuttingPlanes, Vec<&'p FoundPlan>) {
        let mut planes = CuttingPlanes::new(self.search.limit, self.search.bound);
        let latest = part.plans.iter().rev().take(MOST_PLANES);
        let plans: Vec<&FoundPlan> = latest.map(Rc::as_ref).collect();
        plans.iter().for_each(|plan| planes.add_plan(plan.seconds, plan.profiles.clone()));
        (planes, plans)
    }

    /// Returns the label about which the cheapest mixture of plans within the limit is least decided. If the mixture is one plan, it is the best
    /// label, at these prices, of the node whose labels differ most in the bytes of their results.
    fn open_label(&self, part: &BranchPart) -> Option<(usize, usize)> {
        let (planes, plans) = self.planes_of(part);
        let weights = planes.find_mixture().unwrap_or_default();
        let mut best: Option<(f64, usize, usize)> = None;
        for (node, allowed) in part.allowed.iter().enumerate().filter(|(_, all)| all.len() > 1) {
            for &label in allowed {
                let has = plans.iter().zip(&weights).filter(|(plan, _)| plan.labels[node] == label);
                let weight: f64 = has.map(|(_, weight)| weight).sum();
                let open = weight.min(1.0 - weight);
                if open > best.map_or(DECIDED, |(most, ..)| most) {
                    best = Some((open, node, label));
                }
            }
        }
        if let Some((_, node, label)) = best {
            return Some((node, label));
        }
        let latest = plans.first().map(|plan| plan.labels.clone());
        let node = self.search.widest_node(&part.allowed)?;
        let latest = latest.map(|labels| labels[node]);
        Some((node, latest.unwrap_or(part.allowed[node][0])))
    }
}

impl MemorySearch<'_> {
    /// Returns the node with several labels whose candidates differ most in the bytes of their results.
    fn widest_node(&self, allowed: &[Vec<usize>]) -> Option<usize> {
        let problem = &self.problem;
        let mut spread = vec![0u64; allowed.len()];
        for made in problem.made.iter() {
            let labels = &allowed[made.producer.index()];
            let candidates = problem.candidates_of(made.producer);
            let sbp = |label: usize| candidates[label].results[made.index];
            let bytes = |&label: &usize| problem.layouts.bytes(made.class, sbp(label));
            let most = labels.iter().map(bytes).max().unwrap_or(0);
            let least = labels.iter().map(bytes).min().unwrap_or(0);
            spread[made.producer.index()] += most - least;
        }
        let open = (0..allowed.len()).filter(|&node| allowed[node].len() > 1);
        open.max_by_key(|&node| (spread[node], std::cmp::Reverse(node)))
    }
}
