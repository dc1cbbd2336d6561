//! Prices of memory, which turn its limit into costs.

use graphc_ir::ids::ValueId;
use graphc_solver::cutting_planes::MemoryPrices;

use crate::planner::problem::Problem;
use crate::planner::problem::layouts::PlacementId;
use crate::planner::problem::lifetimes::Span;

/// Prices of memory: seconds per byte at positions, by domain, and the weight of seconds themselves.
#[derive(Clone, Debug)]
pub(crate) struct Multipliers {
    /// The weight of seconds: 1, or 0 if only memory counts.
    pub seconds: f64,
    /// The sums of seconds per byte before each position, by domain; empty if memory is free.
    sums: Vec<Vec<f64>>,
    /// The domains of each placement.
    domains: Vec<Vec<usize>>,
    looped: Option<(usize, usize)>,
    /// The factor of each value's price; empty if all pay the same.
    factors: Vec<f64>,
}

impl Multipliers {
    /// Takes these prices of memory.
    pub(crate) fn new(problem: &Problem<'_>, seconds: f64, prices: &MemoryPrices) -> Self {
        let lifetimes = &problem.lifetimes;
        let sum = |domain: usize| {
            let mut total = 0.0;
            let mut sums = vec![0.0];
            for position in 0..lifetimes.len() {
                total += prices.get(&(domain, position)).copied().unwrap_or(0.0);
                sums.push(total);
            }
            sums
        };
        let used = !prices.is_empty();
        let sums = (0..if used { lifetimes.domains.len() } else { 0 }).map(sum).collect();
        let placements = problem.layouts.placements().iter();
        let domains = placements.map(|placement| lifetimes.domains_of(placement)).collect();
        Self { seconds, sums, domains, looped: lifetimes.looped, factors: Vec::new() }
    }

    /// Changes each tensor's price at random by up to this share, up or down. Each `draw` gives other prices, and the same ones every time. With
    /// them, layers that are alike are not all decided alike, so they find plans. They bound nothing.
    pub(crate) fn with_shaken_prices(
        mut self,
        problem: &Problem<'_>,
        share: f64,
        draw: u64,
    ) -> Self {
        let chance = |value: usize| {
            // SplitMix64 (Steele, Lea and Flood, 2014): one step from a seed of its own for each value.
            let mut z = (draw << 32 | value as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            (z >> 11) as f64 / (1u64 << 53) as f64
        };
        let values = problem.decisions.graph().values.len();
        self.factors = (0..values).map(|v| 1.0 + share * (2.0 * chance(v) - 1.0)).collect();
        self
    }

    /// Whether memory costs nothing.
    pub(crate) fn are_free(&self) -> bool {
        self.sums.is_empty()
    }

    /// Whether values that are kept alike pay the same.
    pub(crate) fn are_equal(&self) -> bool {
        self.factors.is_empty()
    }

    /// Returns the seconds per byte of a value that is kept on a placement for a span.
    pub(crate) fn seconds_per_byte(
        &self,
        value: ValueId,
        placement: PlacementId,
        span: Span,
    ) -> f64 {
        if self.sums.is_empty() {
            return 0.0;
        }
        let of = |domain: usize| {
            let between =
                |start: usize, end: usize| self.sums[domain][end + 1] - self.sums[domain][start];
            let others = self.looped.map_or(0.0, |(first, last)| between(first, last));
            between(span.start, span.end) + span.others as f64 * others
        };
        let domains = self.domains[placement.0 as usize].iter();
        let sum: f64 = domains.map(|&domain| of(domain)).sum();
        sum * self.factors.get(value.index()).copied().unwrap_or(1.0)
    }
}
