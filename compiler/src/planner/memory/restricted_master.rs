//! The restricted master problem, in which plans and prices are searched among the labels of known plans alone.
//!
//! A search that takes seconds on the whole problem takes a fraction of that there. At the prices found, the whole problem gives a bound and more
//! labels (column generation: Dantzig and Wolfe, "Decomposition principle for linear programs", 1960). Bounds of the known labels alone are dropped.

use graphc_solver::minimise::STEP;

use super::search::MemorySearch;
use crate::planner::encoding::warm_start::free_network;

/// The number of times that the whole problem is asked for more labels. With half as many four products on 2x2 in 25.6 KiB cost 4.2 % more; twice as
/// many change no plan.
const ROUNDS: usize = 4;
/// The share by which the whole problem must know something cheaper for more labels to be searched. Half or twice as much changes no plan.
const CLOSE: f64 = 2e-4;
/// The gap above which plans for less memory are searched, and the share of the memory that is left then. Without them four products on 2x2 in 27 KiB
/// cost 2.7 % more.
const FAR: f64 = 3e-2;
const LESS: [f64; 2] = [0.95, 0.88];

impl MemorySearch<'_> {
    /// Finds prices, plans and a bound.
    pub(super) fn search_by_prices(&mut self) {
        self.in_restricted_master(Self::lower_prices);
        self.exchange_labels();
        if self.is_dear() {
            return;
        }
        for share in LESS {
            if !self.is_within_gap(FAR) {
                self.search_with_less_memory(share);
            }
        }
    }

    /// Finds prices and plans among the known labels, and more labels as long as these make a difference.
    fn exchange_labels(&mut self) {
        let mut asked = None;
        for _ in 0..ROUNDS {
            let (inner, prices) = self.in_restricted_master(|search| {
                search.price_memory();
                (search.bound, search.prices.clone())
            });
            // Prices that were asked for already lead to the same labels.
            if prices.is_empty() || self.is_closed() || asked.as_ref() == Some(&prices) {
                break;
            }
            let found = self.bound_at_prices(&prices, STEP);
            self.prices.clone_from(&prices);
            if found.bound > self.bound {
                self.record_proof(found.bound, prices.clone());
            }
            asked = Some(prices);
            if found.value >= inner * (1.0 - CLOSE) {
                break;
            }
        }
        if self.is_dear() {
            return;
        }
        self.in_restricted_master(|search| {
            search.price_memory();
            search.vary_prices();
        });
    }

    /// Searches for plans as if there were less memory. Plans that prices lead to may leave much of the memory unused, or not fit. A plan between
    /// these may be the cheapest of a lower limit.
    fn search_with_less_memory(&mut self, share: f64) {
        let (limit, bound, prices) = (self.limit, self.bound, self.prices.clone());
        let proven = self.proven.clone();
        self.limit_to((limit as f64 * share) as u64);
        self.exchange_labels();
        self.limit_to(limit);
        (self.bound, self.prices, self.proven) = (bound, prices, proven);
    }

    fn limit_to(&mut self, limit: u64) {
        self.limit = limit;
        self.planes.limit_to(limit);
    }

    /// Adds the labels of this plan to those that are searched.
    pub(super) fn learn_labels(&mut self, assignment: &[usize]) {
        if self.kept.is_none() {
            for (known, &label) in self.known.iter_mut().zip(assignment) {
                known.insert(label);
            }
        }
    }

    /// Runs `body` while each node has only the labels of known plans. What it finds is kept, except for bounds.
    pub(super) fn in_restricted_master<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        self.search_among(self.known_labels(), body)
    }

    /// Returns the labels of known plans, by node and in order.
    pub(super) fn known_labels(&self) -> Vec<Vec<usize>> {
        self.known.iter().map(|labels| labels.iter().copied().collect()).collect()
    }

    /// Runs `body` while each node has only these labels, in order, which include those of the best plan. What it finds is kept, except for bounds.
    pub(super) fn search_among<T>(
        &mut self,
        kept: Vec<Vec<usize>>,
        body: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let restricted = self.problem.candidates.iter().zip(&kept);
        let restricted = restricted
            .map(|(all, kept)| kept.iter().map(|&label| all[label].clone()).collect())
            .collect();
        let restricted = self.problem.with_candidates(restricted);
        let free = std::mem::replace(&mut self.unpriced_network, free_network(&restricted));
        let whole = std::mem::replace(&mut self.problem, restricted);
        let (bound, least) = (self.bound, self.least);
        let is_kept = |plan: &[usize]| {
            plan.iter().zip(&kept).all(|(label, kept)| kept.binary_search(label).is_ok())
        };
        let aside = self.leanest.take_if(|(_, plan)| !is_kept(plan));
        self.rename_labels(|node, label| {
            kept[node].binary_search(&label).expect("the labels of plans are kept")
        });
        self.kept = Some(kept);
        let result = body(self);
        let kept = self.kept.take().unwrap_or_default();
        self.rename_labels(|node, label| kept[node][label]);
        if let Some(aside) = aside
            && self.leanest.as_ref().is_none_or(|(bytes, _)| aside.0 <= *bytes)
        {
            self.leanest = Some(aside);
        }
        (self.bound, self.least) = (bound, least);
        (self.problem, self.unpriced_network) = (whole, free);
        result
    }

    /// Renumbers the labels of the plans that are kept.
    fn rename_labels(&mut self, name: impl Fn(usize, usize) -> usize) {
        let best = self.best.iter_mut().map(|(_, plan)| plan);
        let leanest = self.leanest.iter_mut().map(|(_, plan)| plan);
        for plan in best.chain(leanest) {
            plan.iter_mut().enumerate().for_each(|(node, label)| *label = name(node, *label));
        }
    }
}
