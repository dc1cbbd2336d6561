//! Finds prices of memory: those that prove most, and others that lead to plans which fit.

use std::collections::{BTreeMap, BTreeSet};

use graphc_solver::cutting_planes::{MemoryPrices, interpolate_prices};
use graphc_solver::minimise::{Effort, STEP};

use super::search::MemorySearch;
use crate::planner::encoding::minimise_from_messages;
use crate::planner::encoding::multipliers::Multipliers;
use crate::planner::problem::usage::find_overloads;

/// The most prices that are tried. Half or twice as many change no plan of benchmarks/README.md.
const STEPS: usize = 40;
/// The share of the way from the best prices to those that the planes propose. At 0.9 the bound of four products on
/// 2x2 in 25.6 KiB is 0.5 % lower, at 0.3 it is 0.2 % higher; GPT on 2x4 in 200 KiB costs 0.3 % less at either.
const TRUST: f64 = 0.6;
/// The share of the most that the bound may reach within which prices are not refined further. With half of it GPT on 2x4 in 200 KiB costs 0.3 %
/// less; with twice as much bounds are 0.01 % lower.
const CLOSE: f64 = 1e-4;
/// The number of prices in a row that may fail to raise the bound. With half as many the bound of four products on 2x2 in 24 KiB is 0.5 % lower;
/// twice as many change nothing.
const IDLE: usize = 6;
/// The share by which prices differ at random. Without it Llama 3 8B on 8x8 in 3.05 GiB costs 1.0 % more; with half or twice as much 0.13 or 0.15 %.
const SHAKE: f64 = 0.4;
/// The number of random draws of prices, times the number of nodes, and the most draws. Without them GPT on 4 in 320 KiB costs 1.8 % more.
const DRAWS: usize = 8000;
const MOST_DRAWS: usize = 16;
/// The number of entries of tables after which no other draw begins: if nodes have many known labels, a minimum among them reads 100 million. ResNet
/// on 2x4 in 114 KiB finds its plan after 1.1 billion; with eight times as many experts on 2x4 in 19.5 KiB have the same plan after 57 s instead of
/// 38.
const DRAWN: u64 = 1_500_000_000;
/// The number of times that the interval of prices is halved for each draw. Half or twice as many change no plan, in 15 % less or more time.
const HALVINGS: usize = 5;

/// The number of times that the intervals of prices that fit are halved. Prices of which an eighth does not suffice are known to the 16th part of
/// that. With half as often the bound of four products on 2x2 in 25.6 KiB is 0.2 % lower; twice as often changes nothing.
const FALLS: usize = 7;

/// The result at some prices: the least sum of seconds and of the cost of memory beyond the limit.
#[derive(Clone, Debug)]
pub(super) struct Priced {
    /// A lower bound of the seconds of every plan that fits.
    pub bound: f64,
    /// The cost of the cheapest plan that was found.
    pub value: f64,
    /// The cheapest plan that was found.
    pub plan: Vec<usize>,
}

impl MemorySearch<'_> {
    /// Raises the bound by prices of memory, among known labels. Plans that fit and are found on the way are kept.
    pub(super) fn price_memory(&mut self) {
        let mut trust = TRUST;
        let mut idle = 0;
        for _ in 0..STEPS {
            let Some((ceiling, proposed)) = self.planes.find_prices() else { return };
            let is_close = self.is_closed() || ceiling - self.bound <= CLOSE * ceiling.abs();
            if is_close || idle == IDLE {
                break;
            }
            let prices = interpolate_prices(&self.prices, &proposed, trust);
            let value = self.bound_at_prices(&prices, STEP).bound;
            idle = if value > self.bound + CLOSE * ceiling.abs() { 0 } else { idle + 1 };
            // Prices that are no better are too high, unless the planes do not know it yet.
            if value > self.bound {
                trust = TRUST;
                self.record_proof(value, prices);
            } else {
                trust = if trust < 1.0 { 1.0 } else { TRUST / 2.0 };
            }
        }
    }

    /// Computes the bound at these prices. The plan found on the way is kept if it fits.
    pub(super) fn bound_at_prices(&mut self, prices: &MemoryPrices, effort: Effort) -> Priced {
        let start = self.best.as_ref().map(|(_, assignment)| assignment.clone());
        let multipliers = Multipliers::new(&self.problem, 1.0, prices);
        let messages = self.kept.is_none().then_some(&mut self.messages);
        let found =
            minimise_from_messages(&self.problem, &multipliers, start.as_deref(), effort, messages);
        let mut plan = found.labels;
        plan.truncate(self.count_nodes());
        self.offer(&plan);
        let paid = prices.values().sum::<f64>() * self.limit as f64;
        Priced { bound: found.bound - paid, value: found.value - paid, plan }
    }

    /// Keeps the best prices, and the bound at them.
    pub(super) fn record_proof(&mut self, bound: f64, prices: MemoryPrices) {
        if self.kept.is_none() {
            self.proven.clone_from(&prices);
        }
        (self.bound, self.prices) = (bound, prices);
    }

    /// Searches for plans at prices that differ at random from tensor to tensor. At the best prices, plans that fit and plans that do not fit cost
    /// the same. Layers that are alike go from one to the other together, unless their prices differ a little; then they go one by one as prices
    /// rise. The search ends when the gap of the best plan is small enough.
    pub(super) fn vary_prices(&mut self) {
        let options = self.problem.options;
        let most = self.problem.meter.entries() + options.within_effort(DRAWN);
        let draws = options.within_effort(MOST_DRAWS as u64) as usize;
        for draw in 0..(DRAWS / self.count_nodes()).min(draws) {
            if self.problem.meter.entries() >= most {
                break;
            }
            self.halve_scale(draw as u64);
        }
    }

    /// Lowers the prices at which a plan fits, for each group of ranks as far as its own memory suffices. Then few tensors are kept for a shorter
    /// time than they could be. Tensors pay more or less at random, so that layers that are alike go from one way to the other one by one.
    pub(super) fn lower_prices(&mut self) {
        let domains: BTreeSet<usize> = self.fitting.keys().map(|&(domain, _)| domain).collect();
        let start = domains.into_iter().map(|domain| (domain, (0.0, 1.0)));
        let mut scales: BTreeMap<usize, (f64, f64)> = start.collect();
        for step in 0..=FALLS {
            if self.is_within_gap(self.purpose.tolerated_gap()) {
                return;
            }
            // At last those at which each group was seen to fit.
            let last = step == FALLS;
            let scale = |(low, high)| if last { high } else { f64::midpoint(low, high) };
            let scaled = |(at, price): (&(usize, usize), &f64)| (*at, price * scale(scales[&at.0]));
            let prices = self.fitting.iter().map(scaled).collect();
            let plan = self.shaken_plan(&prices, 0);
            self.offer(&plan);
            let over = find_overloads(&self.problem, &plan, self.limit);
            for (domain, (low, high)) in &mut scales {
                let middle = f64::midpoint(*low, *high);
                let is_over = over.iter().any(|(of, ..)| of == domain);
                *(if is_over { low } else { high }) = middle;
            }
        }
    }

    /// Finds the cheapest plan if these prices differ at random, in one of many draws.
    fn shaken_plan(&mut self, prices: &MemoryPrices, draw: u64) -> Vec<usize> {
        let multipliers = Multipliers::new(&self.problem, 1.0, prices);
        let multipliers = multipliers.with_shaken_prices(&self.problem, SHAKE, draw);
        let mut plan = minimise_from_messages(&self.problem, &multipliers, None, STEP, None).labels;
        plan.truncate(self.count_nodes());
        plan
    }

    /// Halves the interval of the scale of the best prices at which a plan fits, if they differ at random, in one of many draws.
    fn halve_scale(&mut self, draw: u64) {
        let (mut low, mut high) = (1.0 - SHAKE, 1.0 + SHAKE);
        for _ in 0..HALVINGS {
            if self.is_within_gap(self.purpose.tolerated_gap()) {
                return;
            }
            let scale = f64::midpoint(low, high);
            let prices = self.prices.iter().map(|(&at, &price)| (at, price * scale)).collect();
            let assignment = self.shaken_plan(&prices, draw);
            let seconds = self.assignment_seconds(&assignment);
            let better = self.best.as_ref().is_none_or(|(best, _)| seconds < *best);
            match self.offer(&assignment) {
                None => high = scale,
                Some(_) if better => low = scale,
                Some(_) => return,
            }
        }
    }
}
