//! Solves the master problem of memory prices: the costs and bytes of known plans tell which prices to try next (Kelley, "The cutting-plane method
//! for solving convex programs", 1960).
//!
//! The bound at given prices is concave in them, and each plan is a plane above it. The prices at which the lowest
//! plane is highest are tried next. Memory has a price at the positions at which some plan kept too much. microlp
//! always solves this linear programme, whatever solver the reference uses.

use std::collections::{BTreeMap, BTreeSet};

use good_lp::{
    Expression, ProblemVariables, Solution as _, SolverModel, Variable, constraint, microlp,
    variable,
};

/// Prices of memory by (domain, position): seconds per byte.
pub type MemoryPrices = BTreeMap<(usize, usize), f64>;

/// The highest price of all memory together, as a multiple of what the free plan costs: without one the programme has
/// no optimum while no known plan fits. Half or twice as much changes nothing.
const DEAREST: f64 = 1e3;

/// The most positions that one plan may give a price in each domain, and their least distance, as a part of all positions. With half as many, or
/// twice as far apart, no plan is found for four products on 2x2 in 22.4 KiB; with half as many they cost 27 % more in 25.6 KiB. Twice as many, or
/// half as far apart, change nothing.
const PEAKS: usize = 6;
const APART: usize = 50;

/// Known plans with their memory.
pub struct CuttingPlanes {
    /// The bytes that a rank may use.
    limit: f64,
    /// The unit of seconds.
    unit: f64,
    /// The domains and positions at which memory has a price.
    priced: BTreeSet<(usize, usize)>,
    /// The seconds of each plan, and its bytes by domain and position.
    plans: Vec<(f64, Vec<Vec<u64>>)>,
}

impl CuttingPlanes {
    /// Begins without plans. `unit` is the approximate cost of a plan.
    pub fn new(limit: u64, unit: f64) -> Self {
        let unit = if unit > 0.0 { unit } else { 1.0 };
        Self { limit: limit as f64, unit, priced: BTreeSet::new(), plans: Vec::new() }
    }

    /// Sets another limit.
    pub fn limit_to(&mut self, limit: u64) {
        self.limit = limit as f64;
    }

    /// Adds a plan. From now on memory has a price at the position where a domain keeps most, and at others where it keeps much, if that is above the
    /// limit.
    pub fn add_plan(&mut self, seconds: f64, profiles: Vec<Vec<u64>>) {
        for (domain, profile) in profiles.iter().enumerate() {
            let apart = (profile.len() / APART).max(1);
            let mut peaks: Vec<usize> =
                (0..profile.len()).filter(|&p| profile[p] as f64 > self.limit).collect();
            peaks.sort_by_key(|&p| (std::cmp::Reverse(profile[p]), p));
            for _ in 0..PEAKS {
                let Some(&peak) = peaks.first() else { break };
                self.priced.insert((domain, peak));
                peaks.retain(|p| p.abs_diff(peak) > apart);
            }
        }
        self.plans.push((seconds, profiles));
    }

    /// Finds weights of these positions, with sum 1, under which the least memory of all plans is greatest.
    pub fn find_weights(&self) -> Option<MemoryPrices> {
        let (_, weights) = self.solve_dual(false)?;
        let sum: f64 = weights.values().sum();
        Some(weights.into_iter().map(|(at, weight)| (at, weight / sum)).collect())
    }

    /// Finds the prices under which the cheapest plan costs most, and that cost. By the known plans, no other prices give more.
    pub fn find_prices(&self) -> Option<(f64, MemoryPrices)> {
        let (ceiling, prices) = self.solve_dual(true)?;
        let scale = self.unit / self.limit;
        let prices = prices.into_iter().map(|(at, price)| (at, price * scale)).collect();
        Some((ceiling * self.unit, prices))
    }

    /// Finds weights of the plans, with sum 1, whose mixture costs least and keeps no more than the limit anywhere, or little more if none does. This
    /// programme is the one whose dual [`CuttingPlanes::find_prices`] solves.
    pub fn find_mixture(&self) -> Option<Vec<f64>> {
        let mut variables = ProblemVariables::new();
        let weights: Vec<Variable> =
            self.plans.iter().map(|_| variables.add(variable().min(0.0))).collect();
        let over = variables.add(variable().min(0.0));
        let plans = || self.plans.iter().zip(&weights);
        let mut cost = Expression::from(0.0);
        plans().for_each(|((seconds, _), &weight)| cost.add_mul(seconds / self.unit, weight));
        cost.add_mul(DEAREST, over);
        let mut model = variables.minimise(cost).using(microlp);
        let all: Expression = weights.iter().sum();
        model.add_constraint(constraint!(all == 1.0));
        for &(domain, position) in &self.priced {
            let mut kept = Expression::from(0.0);
            for ((_, profiles), &weight) in plans() {
                kept.add_mul(profiles[domain][position] as f64 / self.limit, weight);
            }
            kept.add_mul(-1.0, over);
            model.add_constraint(constraint!(kept <= 1.0));
        }
        let solution = model.solve().ok()?;
        Some(weights.iter().map(|&weight| solution.value(weight).max(0.0)).collect())
    }

    fn solve_dual(&self, with_seconds: bool) -> Option<(f64, MemoryPrices)> {
        if self.priced.is_empty() {
            return None;
        }
        let mut variables = ProblemVariables::new();
        let height = variables.add(variable());
        let prices: Vec<Variable> =
            self.priced.iter().map(|_| variables.add(variable().min(0.0))).collect();
        let mut model = variables.maximise(height).using(microlp);
        let all: Expression = prices.iter().sum();
        model.add_constraint(match with_seconds {
            true => constraint!(all <= DEAREST),
            false => constraint!(all == 1.0),
        });
        for (seconds, profiles) in &self.plans {
            let mut plane = Expression::from(if with_seconds { seconds / self.unit } else { 0.0 });
            for (&(domain, position), &price) in self.priced.iter().zip(&prices) {
                let share = profiles[domain][position] as f64 / self.limit;
                plane.add_mul(if with_seconds { share - 1.0 } else { share }, price);
            }
            model.add_constraint(constraint!(height <= plane));
        }
        let solution = model.solve().ok()?;
        let value = |price: &Variable| solution.value(*price).max(0.0);
        let prices = self.priced.iter().copied().zip(prices.iter().map(value));
        let prices: MemoryPrices = prices.filter(|&(_, price)| price > 0.0).collect();
        (!prices.is_empty()).then_some((solution.value(height), prices))
    }
}

/// Interpolates between two sets of prices.
pub fn interpolate_prices(a: &MemoryPrices, b: &MemoryPrices, share: f64) -> MemoryPrices {
    let mut between = MemoryPrices::new();
    for (prices, weight) in [(a, 1.0 - share), (b, share)] {
        for (&at, price) in prices {
            *between.entry(at).or_insert(0.0) += weight * price;
        }
    }
    between.retain(|_, price| *price > 0.0);
    between
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_make_a_lean_plan_as_cheap_as_a_fast_one() {
        let mut planes = CuttingPlanes::new(10, 2.0);
        planes.add_plan(2.0, vec![vec![14, 16]]);
        assert_eq!(planes.find_prices().expect("one price").1.len(), 1, "the peak alone");
        planes.add_plan(5.0, vec![vec![9, 8]]);
        let (ceiling, prices) = planes.find_prices().expect("one price");
        assert!((prices[&(0, 1)] - 3.0 / 8.0).abs() < 1e-9, "3 seconds for 8 bytes: {prices:?}");
        assert!((ceiling - (2.0 + 6.0 * 3.0 / 8.0)).abs() < 1e-9);
        assert_eq!(planes.find_weights().expect("one price"), MemoryPrices::from([((0, 1), 1.0)]));
        // Of both as much as keeps 10 bytes.
        let mixture = planes.find_mixture().expect("there are plans");
        assert!((mixture[0] - 0.25).abs() < 1e-9 && (mixture[1] - 0.75).abs() < 1e-9);
    }
}
