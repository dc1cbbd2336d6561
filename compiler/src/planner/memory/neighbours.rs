//! Plans beside the best one, as long as work lasts: one node decides otherwise, or two of which one reads what the other makes. Prices lead
//! to plans that are cheapest at some prices, and where memory is short the best plan is often none of these.

use super::search::MemorySearch;
use crate::planner::problem::usage::overload;
use crate::planner::solver::minimise::TOLERANCE;

impl MemorySearch<'_, '_> {
    /// Goes from the best plan to one beside it that is better and fits, as long as there is one.
    pub fn improve(&mut self) {
        while !self.closed() && self.step() {}
    }

    fn step(&mut self) -> bool {
        let Some((seconds, plan)) = self.best.clone() else { return false };
        for places in self.places() {
            for labels in self.others(&plan, &places) {
                if !self.has_work() {
                    return false;
                }
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

#[cfg(test)]
mod tests {
    use graphc_ir::builder::GraphBuilder;
    use graphc_ir::mesh::Placement;
    use graphc_ir::op::Op;
    use graphc_ir::ops::Init;
    use graphc_ir::plan::{CompileOptions, TensorKind};
    use graphc_ir::types::DType;

    use super::*;
    use crate::cluster::preset;
    use crate::decisions::{Decisions, Phase, Rates, Staging, TrainingGraph, ValueRate};
    use crate::planner::encoding::at;
    use crate::planner::encoding::multipliers::MemoryPrices;
    use crate::planner::problem::Problem;
    use crate::planner::problem::usage::{items, peaks};
    use crate::planner::solver::minimise::STEP;

    /// Three products on four ranks, with nothing decided but where they are.
    fn products() -> Decisions {
        let g = GraphBuilder::new("products");
        let weight = |name: &str| g.variable(name, DType::F32, [32, 32], Init::Fill(0.0.into()));
        let x = g.input("x", DType::F32, [32, 32]);
        let y = ["a", "b", "c"].iter().fold(x, |x, name| x.matmul(&weight(name)).relu());
        g.output("y", &y);
        let graph = g.finish().expect("fits");
        let (nodes, values) = (graph.nodes.len(), graph.values.len());
        let kinds = graph.values.iter().map(|value| match graph.node(value.producer).op {
            Op::Variable(_) => TensorKind::Parameter,
            Op::Input(_) => TensorKind::Input,
            _ => TensorKind::Activation,
        });
        let kinds = kinds.collect();
        let phases = vec![Phase::Forward; nodes];
        let placement = vec![Placement::mesh(&[4]).expect("a mesh"); nodes];
        Decisions {
            training: TrainingGraph { graph, phases, kinds, loss: None, gradients: Vec::new() },
            staging: Staging { stages: 1, stage: vec![0; nodes], chunk: vec![0; nodes], placement },
            rates: Rates {
                microbatches: 1,
                values: vec![ValueRate::Step; values],
                nodes: vec![None; nodes],
            },
            recomputed: vec![None; nodes],
        }
    }

    #[test]
    fn nothing_beside_the_plan_that_is_reached_is_better_and_fits() {
        let (decisions, cluster) = (products(), preset("cpu").expect("a preset"));
        let options = CompileOptions { mesh: vec![4], ..CompileOptions::default() };
        let mut problem = Problem::new(&decisions, &options, &cluster).expect("it can be planned");
        let free = at(&mut problem, 1.0, &MemoryPrices::new(), None, None, STEP);
        let first: Vec<usize> = problem.candidates.iter().map(|all| all.len() - 1).collect();
        let kept = items(&mut problem, &first);
        problem.limit = peaks(&problem, &kept)[0].bytes;
        let mut search = MemorySearch::new(&mut problem, &free);
        assert_eq!(search.offer(&first), None, "it fits what it needs");
        let before = search.best.clone().expect("the first plan").0;
        search.improve();
        let (after, plan) = search.best.clone().expect("there was one");
        assert!(after < before * 0.99, "{after} {before}");
        assert_eq!(search.seconds(&plan), after);
        for places in search.places() {
            for labels in search.others(&plan, &places) {
                let mut next = plan.clone();
                places.iter().zip(labels).for_each(|(&node, label)| next[node] = label);
                let is_better = search.seconds(&next) < after * (1.0 - TOLERANCE);
                assert!(!is_better || overload(search.problem, &next).is_some(), "{next:?}");
            }
        }
    }
}
