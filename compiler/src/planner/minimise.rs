//! The minimum of a network: elimination where the network is narrow enough; otherwise a bound by shifted costs and
//! an incumbent by elimination around it, and labels that cannot be part of anything better are dropped until what is
//! left is narrow, or the remaining gap is reported.

use std::collections::BTreeSet;

use super::dual::Dual;
use super::eliminate::{Elimination, LIMITS, Limits, minimum};
use super::network::Network;

/// Labels, what they cost, and what no labels go below.
#[derive(Clone, Debug, PartialEq)]
pub struct Minimum {
    /// The cost of `labels`.
    pub value: f64,
    /// A proven bound.
    pub bound: f64,
    /// By variable.
    pub labels: Vec<usize>,
}

/// What counts as equal: a plan is optimal where the bound is within this share of it.
pub const TOLERANCE: f64 = 1e-7;

const ROUNDS: usize = 6;
const SWEEPS: usize = 8;
const NEARBY: Limits = Limits { table: 262_144.0, work: 1e7 };

/// The minimum, or the best that is found with a bound. `start` is an assignment to begin with, if one is known.
pub fn minimise(network: &Network, start: Option<&[usize]>) -> Minimum {
    if let Some((value, labels)) = minimum(network, LIMITS) {
        return Minimum { value, bound: value, labels };
    }
    let mut elimination = Elimination::new(network);
    elimination.eliminate_narrow();
    let (core, variables) = elimination.residual(&network.origin);
    let start = start.map(|labels| variables.iter().map(|&v| labels[v]).collect());
    let found = Search::new(&core, start).run();
    let mut labels = vec![0; network.unary.len()];
    for (&variable, &label) in variables.iter().zip(&found.labels) {
        labels[variable] = label;
    }
    elimination.complete(&mut labels);
    let value = network.cost(&labels);
    Minimum { value, bound: found.bound.min(value), labels }
}

struct Search<'a> {
    core: &'a Network,
    dual: Dual,
    /// Labels that may be part of something better than the best.
    kept: Vec<Vec<usize>>,
    best: Vec<usize>,
    value: f64,
}

impl<'a> Search<'a> {
    fn new(core: &'a Network, start: Option<Vec<usize>>) -> Self {
        let dual = Dual::new(core);
        let kept = core.unary.iter().map(|costs| (0..costs.len()).collect()).collect();
        let best = start.unwrap_or_else(|| dual.decode());
        let value = core.cost(&best);
        Self { core, dual, kept, best, value }
    }

    fn run(mut self) -> Minimum {
        let mut bound = f64::NEG_INFINITY;
        for round in 0..ROUNDS {
            (0..SWEEPS).for_each(|_| self.dual.sweep());
            bound = bound.max(self.dual.bound());
            let decoded = self.dual.decode();
            let decoded = decoded.iter().zip(&self.kept).map(|(&at, kept)| kept[at]).collect();
            self.offer(decoded);
            if round < 3 {
                self.look_nearby();
            }
            if !self.drop_labels() {
                bound = self.value * (1.0 - TOLERANCE);
                break;
            }
            if let Some((value, at)) = minimum(&self.core.restricted(&self.kept), LIMITS) {
                let labels = at.iter().zip(&self.kept).map(|(&at, kept)| kept[at]).collect();
                self.offer(labels);
                bound = value.min(self.value * (1.0 - TOLERANCE));
                break;
            }
        }
        Minimum { value: self.value, bound: bound.min(self.value), labels: self.best }
    }

    fn offer(&mut self, labels: Vec<usize>) {
        let value = self.core.cost(&labels);
        if value < self.value {
            (self.best, self.value) = (labels, value);
        }
    }

    /// Holds a few variables as they are and minimises over all others, which are held in turn.
    fn look_nearby(&mut self) {
        let mut spared = BTreeSet::new();
        for _ in 0..4 {
            let mut around: Vec<Vec<usize>> = self.kept.clone();
            let held = Elimination::new(&self.core.restricted(&around)).cutset(NEARBY, &spared);
            for (variable, kept) in around.iter_mut().enumerate() {
                if !kept.contains(&self.best[variable]) {
                    kept.push(self.best[variable]);
                }
            }
            for &variable in &held {
                around[variable] = vec![self.best[variable]];
            }
            let Some((value, at)) = minimum(&self.core.restricted(&around), LIMITS) else { return };
            let better = value < self.value * (1.0 - TOLERANCE);
            self.offer(at.iter().zip(&around).map(|(&at, kept)| kept[at]).collect());
            if !better && !spared.is_empty() {
                return;
            }
            spared = held.into_iter().collect();
        }
    }

    /// Drops labels whose bound is no better than the best. False where a variable has none left: nothing is better.
    fn drop_labels(&mut self) -> bool {
        let limit = self.value * (1.0 - TOLERANCE);
        let bounds = self.dual.bounds();
        let keep = |bounds: &Vec<f64>| (0..bounds.len()).filter(|&l| bounds[l] < limit).collect();
        let kept: Vec<Vec<usize>> = bounds.iter().map(keep).collect();
        if kept.iter().any(Vec::is_empty) {
            return false;
        }
        self.dual.restrict(&kept);
        for (known, kept) in self.kept.iter_mut().zip(kept) {
            *known = kept.into_iter().map(|at| known[at]).collect();
        }
        true
    }
}
