//! Searches for better plans that differ from the best one in one node, as long as work lasts.
//!
//! Prices lead to plans that are cheapest at some prices. Where memory is short, the best plan is often none of
//! these: without this search four products on 2x2 in 22.4 KiB cost 12 % more. Pairs of nodes, of which one reads the
//! other's result, made no plan of benchmarks/README.md better.

use graphc_solver::minimise::TOLERANCE;

use super::search::MemorySearch;
use crate::planner::problem::candidates::CandidateList;
use crate::planner::problem::usage::find_overload;

impl MemorySearch<'_> {
    /// Goes from the best plan to a neighbour that is better and fits, as long as there is one.
    pub(super) fn improve(&mut self) {
        while !self.is_closed() && self.step_to_neighbour() {}
    }

    fn step_to_neighbour(&mut self) -> bool {
        let Some((seconds, plan)) = self.best.clone() else { return false };
        for (node, label) in self.other_labels(&plan) {
            if !self.has_work() {
                return false;
            }
            let mut next = plan.clone();
            next[node] = label;
            let is_better = self.assignment_seconds(&next) < seconds * (1.0 - TOLERANCE);
            if is_better && find_overload(&self.problem, &next, self.limit).is_none() {
                self.offer(&next);
                return true;
            }
        }
        false
    }

    /// Lists the nodes with each label that they do not have.
    fn other_labels(&self, plan: &[usize]) -> Vec<(usize, usize)> {
        let of = |(node, all): (usize, &CandidateList)| {
            let others = (0..all.len()).filter(|&label| label != plan[node]);
            others.map(|label| (node, label)).collect::<Vec<_>>()
        };
        self.problem.candidates.iter().enumerate().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use graphc_ir::builder::GraphBuilder;
    use graphc_ir::mesh::Placement;
    use graphc_ir::op::Op;
    use graphc_ir::ops::Init;
    use graphc_ir::types::DType;
    use graphc_plan::{CompileOptions, TensorKind};

    use super::*;
    use crate::cluster::preset;
    use crate::decisions::{Decisions, Phase, Rates, Staging, TrainingGraph, ValueRate};
    use crate::planner::encoding::minimise_at_prices;
    use crate::planner::problem::Problem;
    use crate::planner::problem::usage::{find_peaks, list_items};
    use graphc_solver::cutting_planes::MemoryPrices;
    use graphc_solver::minimise::STEP;

    /// Makes three products on four ranks, of which only the placement is decided.
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
        let problem = Problem::new(&decisions, &options, &cluster).expect("it can be planned");
        let free = minimise_at_prices(&problem, 1.0, &MemoryPrices::new(), None, None, STEP);
        let first: Vec<usize> = problem.candidates.iter().map(|all| all.len() - 1).collect();
        let needed = find_peaks(&problem, &list_items(&problem, &first))[0].bytes;
        let options = CompileOptions { memory: Some(needed), ..options };
        let problem = Problem::new(&decisions, &options, &cluster).expect("it can be planned");
        let mut search = MemorySearch::new(&problem, &free);
        assert_eq!(search.offer(&first), None, "it fits what it needs");
        let before = search.best.clone().expect("the first plan").0;
        search.improve();
        let (after, plan) = search.best.clone().expect("there was one");
        assert!(after < before * 0.99, "{after} {before}");
        assert_eq!(search.assignment_seconds(&plan), after);
        for (node, label) in search.other_labels(&plan) {
            let mut next = plan.clone();
            next[node] = label;
            let is_better = search.assignment_seconds(&next) < after * (1.0 - TOLERANCE);
            assert!(
                !is_better || find_overload(&search.problem, &next, search.limit).is_some(),
                "{next:?}"
            );
        }
    }
}
