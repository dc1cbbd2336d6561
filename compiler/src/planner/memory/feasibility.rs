//! Searches for any plan that fits the memory.

use graphc_solver::cutting_planes::MemoryPrices;
use graphc_solver::minimise::{Effort, STEP};

use super::search::MemorySearch;
use crate::planner::encoding::minimise_at_prices;
use crate::planner::problem::usage::{find_overloads, list_items, memory_profiles};

/// The rate at which positions gain weight. Half as fast four products on 2x2 in 22.4 KiB cost 18 % less, twice as
/// fast no plan is found for them.
const WEIGHING: f64 = 8.0;
/// The weight of seconds when memory counts: the free plan's seconds weigh as much as this share of the limit. Half or twice as much changes no plan
/// and no bound.
const SECONDS: f64 = 1e-3;

/// The number of times that the whole problem is searched for a plan that fits, and the number of times that its known labels are searched each time.
/// With half as many of the latter four products on 2x2 in 22.4 KiB cost 5.8 % more, and with twice as many no plan is found for them.
const ROUNDS: usize = 2;
const INNER: usize = 6;
/// The number of weights in a row that are tried to prove that nothing fits. Half or twice as many change no plan.
const WEIGHTS: usize = 8;
/// The first price of the memory of a group of ranks that is short of it, as a multiple of the cost of the free plan; the factor by which it rises
/// each time that it does not suffice; and the number of times that it does. If it rises half as fast four products on 2x2 in 24 KiB cost 3.5 % more,
/// and either way they cost 13 to 24 % more in 25.6 KiB. From half of the first price they cost 5.8 % more in 22.4 KiB, from twice of it 12 % less
/// there and 11 % more in 25.6 KiB. With half as many rises they cost 5.8 and 5.2 % more, and with twice as many none is found in 22.4 KiB.
const FIRST: f64 = 1e-3;
const RISE: f64 = 8.0;
const STEPS_UP: usize = 6;
/// The effort at such prices, which should lead to a plan and need not prove much. With half or twice the rounds GPT on 2x4 in 200 KiB costs 0.3 %
/// less; with half or twice the work Llama 3 8B on 8x8 in 3.05 GiB has the same plan.
const UPWARDS: Effort = Effort { rounds: 2, work: 200_000_000, ..STEP };
/// The prices of all memory of a plan that just fits, as multiples of the cost of the free plan. At half of all of them MLP on 2x2 in 30 KiB costs
/// 0.1 % less, at twice of them four products on 2x2 in 22.4 KiB 5.7 % more.
const SCALES: [f64; 6] = [0.05, 0.2, 0.8, 3.2, 12.8, 51.2];

/// The weights of all positions, and the plan for which they were last changed.
struct PositionWeights {
    latest: Vec<usize>,
    spread: MemoryPrices,
}

impl MemorySearch<'_> {
    /// Raises the price of each group of ranks whose memory does not suffice until it does. The other groups, such as those of later stages, which
    /// keep fewer microbatches, have no price. With one price for all Llama 3 405B in 16 stages costs 1.8 % more, and planning it takes more than
    /// twice the time. Returns `false` if the memory of some group does not suffice at any price.
    pub(super) fn raise_group_prices(&mut self) -> bool {
        let unit = self.bound / self.limit as f64;
        let mut prices = MemoryPrices::new();
        let mut plan = self.unlimited_labels.clone();
        for _ in 0..STEPS_UP {
            for (domain, position, _) in find_overloads(&self.problem, &plan, self.limit) {
                let known = prices.iter().filter(|((of, _), _)| *of == domain);
                let paid: f64 = known.map(|(_, price)| price).sum();
                prices.insert((domain, position), (paid * RISE).max(FIRST * unit));
            }
            let found = self.bound_at_prices(&prices, UPWARDS);
            if found.bound > self.bound {
                self.record_proof(found.bound, prices.clone());
            }
            if self.best.is_some() {
                self.fitting = prices;
                return true;
            }
            plan = found.plan;
        }
        false
    }

    /// Raises the price of all memory until a plan fits, and returns `false` if none does. Without it four products on 2x2 in 22.4 KiB cost 5.8 %
    /// more.
    pub(super) fn raise_all_prices(&mut self) -> bool {
        let unit = self.bound / self.limit as f64;
        for scale in SCALES {
            let Some(weights) = self.planes.find_weights() else { return self.best.is_some() };
            let prices = weights.into_iter().map(|(at, weight)| (at, weight * scale * unit));
            let prices: MemoryPrices = prices.collect();
            let bound = self.bound_at_prices(&prices, STEP).bound;
            if bound > self.bound {
                self.record_proof(bound, prices);
            }
            if self.best.is_some() {
                return true;
            }
        }
        false
    }

    /// Searches for a plan that fits among the labels of known plans, and if there is none, for more labels. Returns `false` if nothing fits. Without
    /// it there is no plan for four products on 4 in 23.4 KiB.
    pub(super) fn find_feasible(&mut self) -> bool {
        for _ in 0..ROUNDS {
            if self
                .in_restricted_master(|search| search.weigh_memory(INNER) && search.best.is_some())
            {
                return true;
            }
            if !(0..WEIGHTS).all(|_| self.least_average() != Some(false)) || !self.weigh_memory(1) {
                return false;
            }
        }
        self.best.is_some()
    }

    /// Searches for any plan that fits, by plans of little memory on a weighted average of positions. Two sets of weights are used in turn. One is of
    /// few positions, and raises the bound. The other is of all positions, of which those that need most gain weight each time (Arora, Hazan and
    /// Kale, "The multiplicative weights update method", 2012), and finds plans. Returns `false` if even an average is above the limit, so that
    /// nothing fits.
    pub(super) fn weigh_memory(&mut self, steps: usize) -> bool {
        let mut weighing = self.begin_weighing();
        for _ in 0..steps {
            match self.least_average() {
                None => return true,
                Some(false) => return false,
                Some(true) => {}
            }
            self.weigh_and_plan(&mut weighing);
            if self.best.is_some() {
                return true;
            }
        }
        true
    }

    fn begin_weighing(&self) -> PositionWeights {
        let latest = self.leanest.as_ref().map(|(_, plan)| plan.clone());
        PositionWeights { latest: latest.unwrap_or_default(), spread: MemoryPrices::new() }
    }

    /// Updates the weights and plans with them, twice.
    fn weigh_and_plan(&mut self, weighing: &mut PositionWeights) {
        let limit = self.limit as f64;
        let seconds = SECONDS * limit / self.bound.max(f64::MIN_POSITIVE);
        for _ in 0..2 {
            weighing.spread = self.update_weights(&weighing.latest, &weighing.spread);
            let found =
                minimise_at_prices(&self.problem, seconds, &weighing.spread, None, None, STEP);
            weighing.latest = found.labels[..self.count_nodes()].to_vec();
            self.offer(&weighing.latest);
        }
    }

    /// Whether a plan may fit, as far as one average of memory tells.
    pub(super) fn has_average(&mut self) -> bool {
        self.least_average() != Some(false)
    }

    /// Finds the least memory on the average of the positions that known plans need most. Returns whether that is below the limit, or `None` if no
    /// plan is above it.
    fn least_average(&mut self) -> Option<bool> {
        let weights = self.planes.find_weights()?;
        let found = minimise_at_prices(&self.problem, 0.0, &weights, None, None, STEP);
        self.least = self.least.max(found.bound);
        self.offer(&found.labels[..self.count_nodes()]);
        Some(self.least <= self.limit as f64 * (1.0 + 1e-9))
    }

    /// Returns the weights of all positions after one more plan.
    fn update_weights(&mut self, assignment: &[usize], weights: &MemoryPrices) -> MemoryPrices {
        let items = list_items(&self.problem, assignment);
        let profiles = memory_profiles(&self.problem, &items);
        let most = profiles.iter().flatten().copied().max().unwrap_or(1).max(1) as f64;
        let mut next = MemoryPrices::new();
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
}
