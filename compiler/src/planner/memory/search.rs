//! Runs the search for a plan that fits the memory. It holds what is known so far, and calls the modules beside it in order.

use std::collections::BTreeSet;

use graphc_solver::cutting_planes::{CuttingPlanes, MemoryPrices};
use graphc_solver::dual::Messages;
use graphc_solver::minimise::{Minimum, TOLERANCE};
use graphc_solver::network::Network;

use super::{Purpose, Solution};
use crate::planner::encoding::extend_labels;
use crate::planner::encoding::warm_start::free_network;
use crate::planner::error::PlannerError;
use crate::planner::problem::Problem;
use crate::planner::problem::usage::{list_items, memory_profiles, overload_of, too_large};

/// The entries of tables that may be looked at for plans near the best one, and as many again for parts of the problem, times the number of nodes
/// ([`FEWEST`] at least). Half or twice as many change no plan of benchmarks/README.md.
const WORK: u64 = 12_000_000_000;

/// The work of making a network, in entries for each node. Half as much changes no plan; with twice as much four
/// products on 2x2 in 22.4 KiB cost 0.02 % more.
const MADE: usize = 600;

/// The fewest nodes that count in both, because much of the work of making a network is the same for a few, and few nodes have few plans. Half as
/// many change no plan of benchmarks/README.md; by its own nodes alone one layer in 535 bytes is looked at six times as long before it is refused.
const FEWEST: usize = 40;

/// A plan with its cost and its memory.
pub(super) struct FoundPlan {
    /// The label of each node.
    pub labels: Vec<usize>,
    /// The seconds of a step.
    pub seconds: f64,
    /// The bytes by domain and position.
    pub profiles: Vec<Vec<u64>>,
}

/// A search for a plan that fits.
pub(super) struct MemorySearch<'a> {
    /// The purpose of the plan.
    pub purpose: Purpose,
    /// The problem that is searched now: the whole one, or its restricted master.
    pub problem: Problem<'a>,
    /// The network of the problem when memory costs nothing.
    pub unpriced_network: Network,
    /// The labels of each node in the whole problem that this problem keeps, if it has only some, as the restricted master does.
    pub kept: Option<Vec<Vec<usize>>>,
    /// The bytes that a rank may use in the plans that are searched now: the problem's limit, or less for a while.
    pub limit: u64,
    /// The plan of fewest seconds without a memory limit that was found.
    pub unlimited_labels: Vec<usize>,
    /// The seconds of that plan.
    unlimited_seconds: f64,
    /// A lower bound of the seconds of every plan that fits.
    pub bound: f64,
    /// The best plan that fits.
    pub best: Option<(f64, Vec<usize>)>,
    /// The plan that needs the least memory, with its bytes.
    pub leanest: Option<(u64, Vec<usize>)>,
    /// Bytes that every plan needs.
    pub least: f64,
    /// The best prices.
    pub prices: MemoryPrices,
    /// Prices of all groups of ranks that are short of memory at which a plan fits; empty if none are known.
    pub fitting: MemoryPrices,
    /// The prices that prove the bound of the whole problem; empty if it is the bound without prices.
    pub proven: MemoryPrices,
    /// The costs and bytes of plans that were found.
    pub planes: CuttingPlanes,
    /// The labels of each node in these plans.
    pub known: Vec<BTreeSet<usize>>,
    /// The plans that prices led to, as labels of the whole problem, with their costs.
    pub plans: Vec<(f64, Vec<usize>)>,
    /// The reading of the problem's meter up to which work may be done.
    pub until: u64,
    /// The messages from the last bound of the whole problem, which the next one starts from.
    pub messages: Messages,
}

impl<'a> MemorySearch<'a> {
    /// Begins a search with the free plan and its bound.
    pub(super) fn new(problem: &Problem<'a>, found: &Minimum) -> Self {
        Self {
            purpose: Purpose::Plan,
            problem: problem.clone(),
            unpriced_network: free_network(problem),
            kept: None,
            plans: Vec::new(),
            limit: problem.limit,
            unlimited_labels: found.labels[..problem.candidates.len()].to_vec(),
            unlimited_seconds: found.value,
            bound: found.bound,
            best: None,
            leanest: None,
            least: 0.0,
            prices: MemoryPrices::new(),
            fitting: MemoryPrices::new(),
            proven: MemoryPrices::new(),
            planes: CuttingPlanes::new(problem.limit, found.value),
            known: vec![BTreeSet::new(); problem.candidates.len()],
            until: u64::MAX,
            messages: Messages::default(),
        }
    }

    /// Runs the whole search.
    pub(super) fn run(&mut self) {
        if self.has_average()
            && (self.raise_group_prices() || self.raise_all_prices() || self.find_feasible())
        {
            self.search_by_prices();
            if !self.is_within_gap(self.purpose.tolerated_gap()) {
                self.within_work(Self::polish);
            }
            if self.is_dear()
                || self.purpose == Purpose::Prices
                    && self.is_within_gap(self.purpose.tolerated_gap())
            {
                return;
            }
            self.within_work(Self::search_branches);
        }
    }

    /// Searches for any plan that fits, if none is known.
    pub(super) fn find_any(&mut self) {
        if self.best.is_some() || !self.has_average() {
            return;
        }
        if !(self.raise_group_prices() || self.raise_all_prices() || self.find_feasible()) {
            self.within_work(Self::search_branches);
        }
    }

    /// Calls `body` with a limit of work, which is much for a graph of some dozen nodes and little for a large model.
    fn within_work(&mut self, body: impl FnOnce(&mut Self)) {
        self.until = self.problem.meter.entries() + self.share_of_work();
        body(self);
        self.until = u64::MAX;
    }

    /// Returns the number of entries of tables that may be looked at.
    pub(super) fn share_of_work(&self) -> u64 {
        self.problem.options.within_effort(WORK) / self.count_nodes().max(FEWEST) as u64
    }

    /// Counts one more minimum, and returns whether there is work left for it.
    pub(super) fn has_work(&mut self) -> bool {
        self.problem.meter.add(MADE * self.count_nodes().max(FEWEST));
        !self.is_spent()
    }

    /// Whether the work is used up.
    pub(super) fn is_spent(&self) -> bool {
        self.problem.meter.entries() >= self.until
    }

    /// Returns the result of the search.
    pub(super) fn into_solution(self) -> Result<Solution, PlannerError> {
        let (problem, prices) = (&self.problem, Some(self.proven));
        let (bound, least, unlimited) = (self.bound, self.least as u64, self.unlimited_seconds);
        match (self.best, self.leanest) {
            (Some((seconds, assignment)), _) => {
                let bound = bound.min(seconds);
                Ok(Solution { assignment, seconds, bound, relaxed: unlimited, prices })
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

    /// Keeps an assignment if it fits and is better, or if it is leaner. Returns the domain, position and bytes where its memory is short.
    pub(super) fn offer(&mut self, assignment: &[usize]) -> Option<(usize, usize, u64)> {
        let found = self.count_plan(assignment);
        let over = self.offer_counted(&found);
        self.keep_plan(found);
        over
    }

    /// Computes the cost and the memory of an assignment.
    pub(super) fn count_plan(&self, assignment: &[usize]) -> FoundPlan {
        let items = list_items(&self.problem, assignment);
        let profiles = memory_profiles(&self.problem, &items);
        FoundPlan {
            labels: assignment.to_vec(),
            seconds: self.assignment_seconds(assignment),
            profiles,
        }
    }

    /// Offers a plan like [`MemorySearch::offer`], but the plan is not kept for prices and combinations.
    pub(super) fn offer_counted(&mut self, found: &FoundPlan) -> Option<(usize, usize, u64)> {
        let FoundPlan { labels, seconds, profiles } = found;
        self.learn_labels(labels);
        let over = overload_of(profiles, self.limit);
        match over {
            Some((_, _, bytes)) => {
                if self.leanest.as_ref().is_none_or(|(known, _)| bytes < *known) {
                    self.leanest = Some((bytes, labels.clone()));
                }
            }
            None => {
                if self.best.as_ref().is_none_or(|(known, _)| seconds < known) {
                    self.best = Some((*seconds, labels.clone()));
                }
            }
        }
        over
    }

    /// Keeps a plan for prices and for combination with others, if prices led to it. Branch and bound, which runs with a limit of work, finds too
    /// many.
    fn keep_plan(&mut self, found: FoundPlan) {
        if self.until < u64::MAX {
            return;
        }
        let FoundPlan { labels, seconds, profiles } = found;
        self.planes.add_plan(seconds, profiles);
        let plan = match &self.kept {
            Some(kept) => labels.iter().zip(kept).map(|(&label, kept)| kept[label]).collect(),
            None => labels,
        };
        if !self.plans.iter().any(|(other, known)| *other == seconds && *known == plan) {
            self.plans.push((seconds, plan));
        }
    }

    /// Returns the cost of an assignment.
    pub(super) fn assignment_seconds(&self, assignment: &[usize]) -> f64 {
        self.unpriced_network.cost(&extend_labels(&self.unpriced_network, assignment))
    }

    /// Returns the number of nodes of the graph.
    pub(super) fn count_nodes(&self) -> usize {
        self.problem.candidates.len()
    }

    /// Whether the bound meets the best plan.
    pub(super) fn is_closed(&self) -> bool {
        self.is_within_gap(TOLERANCE)
    }

    /// Whether the best plan costs more than its purpose allows.
    pub(super) fn is_dear(&self) -> bool {
        self.best
            .as_ref()
            .is_some_and(|(best, _)| self.purpose.is_dear(self.unlimited_seconds, *best))
    }

    /// Whether the gap of the best plan is at most this share of it.
    pub(super) fn is_within_gap(&self, share: f64) -> bool {
        self.best.as_ref().is_some_and(|(best, _)| self.bound >= best * (1.0 - share))
    }
}
