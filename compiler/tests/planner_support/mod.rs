//! Support that the planner's tests share: decisions made by hand, random graphs, and a search through all plans.

use std::collections::{BTreeMap, BTreeSet};

use graphc_compiler::boxing::{Router, fetched};
use graphc_compiler::decisions::{
    Decisions, NodeSharding, Phase, Rates, Sharding, Staging, TrainingGraph, ValueRate,
};
use graphc_compiler::planner::problem::Problem;
use graphc_compiler::planner::problem::candidates::Candidate;
use graphc_compiler::planner::reprice_sharding;
use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::ValueId;
use graphc_ir::mesh::Placement;
use graphc_ir::op::Op;
use graphc_ir::ops::Init;
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::DType;
use graphc_plan::{Cluster, CompileOptions, Layout, TensorKind};

/// Decisions about a forward graph: one stage on one mesh, everything once per step.
pub fn decisions(graph: Graph, mesh: &[usize]) -> Decisions {
    let (nodes, values) = (graph.nodes.len(), graph.values.len());
    let placement = Placement::mesh(mesh).expect("a mesh");
    let kind = |value: usize| match graph.producer(ValueId::new(value)).op {
        Op::Variable(_) => TensorKind::Parameter,
        Op::Input(_) => TensorKind::Input,
        _ => TensorKind::Activation,
    };
    let kinds = (0..values).map(kind).collect();
    let phases = vec![Phase::Forward; nodes];
    Decisions {
        training: TrainingGraph { graph, phases, kinds, loss: None, gradients: Vec::new() },
        staging: Staging {
            stages: 1,
            stage: vec![0; nodes],
            chunk: vec![0; nodes],
            placement: vec![placement; nodes],
        },
        rates: Rates {
            microbatches: 1,
            values: vec![ValueRate::Step; values],
            nodes: vec![None; nodes],
        },
        recomputed: vec![None; nodes],
    }
}

/// Numbers from a seed, the same every time.
pub struct Numbers(pub u64);

impl Numbers {
    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }

    /// One of these.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// A graph of up to `most` ops on matrices. Values are read again and again, so that readers share boxing.
pub fn random_graph(numbers: &mut Numbers, most: usize) -> Graph {
    let g = GraphBuilder::new("random");
    let extents = [96, 250, 384];
    let shape = [*numbers.of(&extents), *numbers.of(&extents)];
    let mut values: Vec<Tensor> = vec![g.input("x", DType::F32, shape)];
    let ops = 1 + numbers.below(most);
    for op in 0..ops {
        let a = values[numbers.below(values.len())].clone();
        let shape = a.shape();
        let result = match numbers.below(7) {
            0 if shape.len() == 2 => {
                let to = *numbers.of(&extents);
                let zero = Init::Fill(0.0.into());
                a.matmul(&g.variable(&format!("w{op}"), DType::F32, [shape[1], to], zero))
            }
            1 => {
                let same = |tensor: &&Tensor| tensor.shape() == shape;
                let like: Vec<Tensor> = values.iter().filter(same).cloned().collect();
                a.add(numbers.of(&like))
            }
            2 => a.relu(),
            3 if shape.len() == 2 => a.sum(&[numbers.below(2)], true),
            4 if shape.len() == 2 => a.transpose(&[1, 0]),
            5 if shape.len() == 2 && shape[0].is_multiple_of(2) => {
                a.reshape(&[2, shape[0] / 2, shape[1]])
            }
            5 if shape.len() == 3 => a.reshape(&[shape[0] * shape[1], shape[2]]),
            _ => a.softmax(shape.len() - 1),
        };
        values.push(result);
    }
    let last = values.last().expect("there is an input");
    g.output("out", last);
    if numbers.below(2) == 0 {
        g.output("also", &values[values.len() / 2]);
    }
    g.finish().expect("the graph is right")
}

/// The sharding of these candidates.
pub fn sharding(problem: &Problem<'_>, assignment: &[usize]) -> Sharding {
    let names = |ids: &[_]| ids.iter().map(|&id| NdSbp::clone(&problem.layouts.sbp(id))).collect();
    let node = |candidate: &Candidate| NodeSharding {
        choices: candidate.choices.clone(),
        operands: names(&candidate.operands),
        results: names(&candidate.results),
    };
    Sharding { nodes: problem.chosen_candidates(assignment).into_iter().map(node).collect() }
}

/// A search through all plans, node by node, that leaves a branch only where what is paid already and
/// what the other nodes compute at least is too much.
pub struct Everything<'a> {
    problem: &'a Problem<'a>,
    decisions: &'a Decisions,
    options: &'a CompileOptions,
    cluster: &'a Cluster,
    router: Router<'a>,
    prices: BTreeMap<(ValueId, NdSbp, NdSbp), f64>,
    /// For each node, the least seconds of it and all nodes behind it.
    rest: Vec<f64>,
    /// The least seconds of a plan that fits, and the plan.
    pub best: Option<(f64, Vec<usize>)>,
    /// The seconds above which plans are not looked at.
    pub ceiling: f64,
}

impl<'a> Everything<'a> {
    /// A search below `ceiling` seconds.
    pub fn new(
        problem: &'a Problem<'a>,
        decisions: &'a Decisions,
        options: &'a CompileOptions,
        cluster: &'a Cluster,
        ceiling: f64,
    ) -> Self {
        let router = Router::new(cluster, decisions.rates.microbatches);
        let (prices, best) = (BTreeMap::new(), None);
        let mut rest = vec![0.0];
        for candidates in problem.candidates.iter().rev() {
            let least = candidates.iter().map(|c| c.seconds).fold(f64::INFINITY, f64::min);
            rest.push(rest[rest.len() - 1] + least);
        }
        rest.reverse();
        Self { problem, decisions, options, cluster, router, prices, rest, best, ceiling }
    }

    /// Searches.
    pub fn run(&mut self) {
        let mut boxed = BTreeSet::new();
        self.from(&mut Vec::new(), &mut boxed, 0.0);
    }

    fn from(&mut self, chosen: &mut Vec<usize>, boxed: &mut BTreeSet<(ValueId, NdSbp)>, paid: f64) {
        let graph = self.decisions.graph();
        let node = chosen.len();
        if node == graph.nodes.len() {
            self.offer(chosen);
            return;
        }
        for (label, candidate) in self.problem.candidates[node].iter().enumerate() {
            let mut seconds = paid + candidate.seconds;
            chosen.push(label);
            let mut added = Vec::new();
            let operands = graph.nodes[node].operands.iter().zip(&candidate.operands);
            let wanted = operands
                .map(|(&value, &sbp)| (value, NdSbp::clone(&self.problem.layouts.sbp(sbp))));
            let outputs = graph.nodes[node].results.iter().zip(&candidate.results);
            let is_output = |value: ValueId| graph.outputs.iter().any(|o| o.value == value);
            let given = outputs
                .filter(|(value, _)| is_output(**value))
                .map(|(&value, &sbp)| (value, fetched(&self.problem.layouts.sbp(sbp))));
            for (value, target) in wanted.chain(given).collect::<Vec<_>>() {
                if boxed.insert((value, target.clone())) {
                    seconds += self.price(value, chosen, &target);
                    added.push((value, target));
                }
            }
            if seconds + self.rest[node + 1] <= self.ceiling {
                self.from(chosen, boxed, seconds);
            }
            added.iter().for_each(|key| assert!(boxed.remove(key)));
            chosen.pop();
        }
    }

    /// Whether boxing of a value may cost less than by itself: variables and gradients may hide under computing, and
    /// travel together.
    fn may_hide(&self, value: ValueId) -> bool {
        let graph = self.decisions.graph();
        let late = |(node, reader): (usize, &Node)| {
            let accumulates = matches!(reader.op, Op::Accumulate(_));
            let updates = self.decisions.training.phases[node] == Phase::Update;
            (updates || accumulates) && reader.operands.contains(&value)
        };
        matches!(graph.producer(value).op, Op::Variable(_) | Op::Regather(_))
            || graph.nodes.iter().enumerate().any(late)
    }

    /// Returns a lower bound of the seconds of boxing.
    fn price(&mut self, value: ValueId, chosen: &[usize], target: &NdSbp) -> f64 {
        if self.cluster.device.overlap && self.may_hide(value) {
            return 0.0;
        }
        let graph = self.decisions.graph();
        let (producer, index) = (graph.value(value).producer.index(), graph.value(value).index);
        let source = self.problem.candidates[producer][chosen[producer]].results[index];
        let source = NdSbp::clone(&self.problem.layouts.sbp(source));
        let key = (value, source.clone(), target.clone());
        if let Some(&price) = self.prices.get(&key) {
            return price;
        }
        let placement = &self.decisions.staging.placement[producer];
        let from = self.decisions.layout(value, placement, &source);
        let to = Layout { sbp: target.clone(), ..from.clone() };
        let price = self.router.find_route(&from, &to).seconds;
        self.prices.insert(key, price);
        price
    }

    fn offer(&mut self, chosen: &[usize]) {
        let sharding = sharding(self.problem, chosen);
        let plan = reprice_sharding(self.decisions, &sharding, self.cluster, self.options);
        let limit = self.options.memory.unwrap_or(self.cluster.device.memory);
        let better = self.best.as_ref().is_none_or(|(best, _)| plan.objective_seconds < *best);
        if better && plan.memory.iter().all(|&bytes| bytes <= limit) {
            self.ceiling = plan.objective_seconds * (1.0 - 1e-9);
            self.best = Some((plan.objective_seconds, chosen.to_vec()));
        }
    }
}
