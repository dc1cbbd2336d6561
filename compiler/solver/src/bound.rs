//! Bounds the free problem for the report of a fixed strategy.
//!
//! The plan that would reach the bound is not needed, so no work is spent on finding it.

use super::dual::Dual;
use super::eliminate::{Elimination, Limits};
use super::network::Network;

/// The size up to which the bound is the minimum itself. Half or twice of either changes no bound of ZeRO on one axis (DenseNet-121 on 4, Llama 3 8B
/// and Mixtral on 8).
const NARROW: Limits = Limits { table: 65_536.0, work: 1e6 };
/// The approximate number of entries that shifting costs reads in all sweeps. Half or twice as many change none of these bounds.
const WORK: usize = 3_000_000;
/// The share by which a sweep must raise the bound not to be the last. Half or twice as much changes none of these bounds.
const STALE: f64 = 1e-4;

/// Returns a proven bound: the minimum if the network is narrow, and otherwise the bound of shifted costs.
pub fn prove_bound(network: &Network) -> f64 {
    let mut elimination = Elimination::new(network);
    elimination.eliminate_narrow();
    if let Some(order) = elimination.find_order(NARROW) {
        return elimination.eliminate_all(order).0;
    }
    let (core, _) = elimination.residual(network);
    let mut dual = Dual::new(&core);
    let mut best = dual.bound();
    for _ in 0..(WORK / dual.sweep_size().max(1)).max(2) {
        dual.sweep();
        let now = dual.bound();
        let stale = now < best + best.abs() * STALE;
        best = best.max(now);
        if stale {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eliminate::{LIMITS, find_minimum};

    /// Makes a network in which every pair of variables has costs.
    fn complete(variables: usize, labels: usize) -> Network {
        let mut network = Network::default();
        for variable in 0..variables {
            network.add_variable(labels, variable);
        }
        let cost = |a: usize, b: usize, i: usize, j: usize| {
            ((a * 7 + b * 3 + i * 5 + j * 11 + i * j) % 13) as f64
        };
        for (a, b) in (0..variables).flat_map(|b| (0..b).map(move |a| (a, b))) {
            network.add_pair(a, b, |i, j| cost(a, b, i, j));
        }
        network
    }

    #[test]
    fn the_bound_is_the_minimum_of_narrow_networks_and_below_that_of_wide_ones() {
        let narrow = complete(4, 5);
        let (value, _) = find_minimum(&narrow, LIMITS).expect("it is small");
        assert_eq!(prove_bound(&narrow), value);
        let wide = complete(9, 5);
        assert_eq!(Elimination::new(&wide).find_order(NARROW), None);
        let (value, _) = find_minimum(&wide, LIMITS).expect("it is small enough");
        let found = prove_bound(&wide);
        assert!(found <= value && found >= Dual::new(&wide).bound(), "{found} of {value}");
    }
}
