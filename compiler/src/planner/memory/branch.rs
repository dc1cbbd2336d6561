//! Branch and bound within a memory limit, for small graphs.

use super::search::Search;
use crate::planner::encoding::at;
use crate::planner::encoding::multipliers::MemoryPrices;
use crate::planner::solver::minimise::{STEP, TOLERANCE};

impl Search<'_, '_> {
    /// Branch and bound over the candidates of one node after another, with the bounds of no prices and of the best
    /// prices. Ends with a proof, or when its share of the work is done.
    pub fn branch(&mut self) {
        if self.closed() {
            return;
        }
        let all: Vec<Vec<usize>> =
            self.problem.candidates.iter().map(|all| (0..all.len()).collect()).collect();
        let mut open = vec![(self.bound, all)];
        let mut proven = f64::INFINITY;
        while let Some((bound, allowed)) = open.pop() {
            if self.worse(bound) || !self.has_work() {
                proven = proven.min(bound);
                continue;
            }
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
        let free = at(self.problem, 1.0, &MemoryPrices::new(), Some(allowed), None, STEP);
        let assignment = free.labels[..nodes].to_vec();
        let (domain, position, _) = self.offer(&assignment)?;
        let row = MemoryPrices::from([((domain, position), 1.0)]);
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
