//! Plans beside the best one, for small graphs: one node decides otherwise, or two of which one reads what the other makes. Prices lead
//! to plans that are cheapest at some prices, and where memory is short the best plan is often none of these.

use super::search::Search;
use crate::planner::problem::usage::overload;
use crate::planner::solver::minimise::TOLERANCE;

/// Plans that are looked at.
const LOOKS: usize = 4000;

impl Search<'_, '_> {
    /// Goes from the best plan to one beside it that is better and fits, as long as there is one.
    pub fn improve(&mut self) {
        let mut looks = LOOKS;
        while !self.closed() && self.step(&mut looks) {}
    }

    fn step(&mut self, looks: &mut usize) -> bool {
        let Some((seconds, plan)) = self.best.clone() else { return false };
        for places in self.places() {
            for labels in self.others(&plan, &places) {
                if *looks == 0 {
                    return false;
                }
                *looks -= 1;
                let mut next = plan.clone();
                places.iter().zip(labels).for_each(|(&node, label)| next[node] = label);
                let is_better = self.seconds(&next) < seconds * (1.0 - TOLERANCE);
                if is_better && overload(self.problem, &next).is_none() {
                    self.offer(&next);
                    return true;
                }
            }
        }
        false
    }

    /// Nodes that decide anew: each alone, then each with one that reads what it makes.
    fn places(&self) -> Vec<Vec<usize>> {
        let alone = (0..self.nodes()).map(|node| vec![node]);
        let readers = self.problem.demands.iter().flat_map(|demand| {
            let others = demand.readers.iter().map(|(reader, _)| *reader);
            others.map(|reader| vec![demand.producer, reader])
        });
        alone.chain(readers).collect()
    }

    /// What these nodes may decide, of two both otherwise than now.
    fn others(&self, plan: &[usize], places: &[usize]) -> Vec<Vec<usize>> {
        let mut all = vec![Vec::new()];
        for &node in places {
            let labels = (0..self.problem.candidates[node].len()).filter(|&l| l != plan[node]);
            let labels: Vec<usize> = labels.collect();
            let with = |known: &Vec<usize>| -> Vec<Vec<usize>> {
                labels.iter().map(|&label| [known.as_slice(), &[label]].concat()).collect()
            };
            all = all.iter().flat_map(with).collect();
        }
        all
    }
}
