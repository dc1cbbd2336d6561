//! Chooses the values that selective recomputation computes again: those that take much memory and little computing
//! (Korthikanti et al., arXiv 2205.05198, section 5).
//!
//! Products with weights (linear layers, convolutions, recurrent cells) and the result of fused attention are never
//! computed again. All else is cheap: scores of attention and the products with them, softmax, dropout, norms,
//! activations.
//!
//! Some cheap values must be kept, so that cheap ops can make everything else that the backward pass reads. The pass
//! keeps the set of fewest bytes that suffices. It is a minimum cut between the values that are there anyway and the
//! values that are read, as in the partitioner of PyTorch's AOTAutograd. Dinic's algorithm finds it. Of several least
//! cuts the pass takes the one nearest to the readers, so that the least is computed again.

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_solver::cut::smallest_side;
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};

use crate::decisions::{Phase, TrainingGraph};

/// Returns, for each candidate, whether it is computed again where the backward pass reads it.
pub(super) fn choose_selective(training: &TrainingGraph, candidates: &[bool]) -> Vec<bool> {
    let graph = &training.graph;
    let samples = of_samples(graph);
    let cheap = |value: usize| {
        let node = graph.node(graph.values[value].producer);
        candidates[value] && !multiplies_weights(node, &samples)
    };
    let cheap: Vec<bool> = (0..graph.values.len()).map(cheap).collect();
    RecomputeNetwork::new(training, &cheap, &samples).behind_the_cut()
}

/// Returns, for each value, whether it depends on an input.
fn of_samples(graph: &Graph) -> Vec<bool> {
    let mut samples = vec![false; graph.values.len()];
    for (_, node) in graph.iter() {
        let fed = matches!(node.op, Op::Input(_));
        let depends = fed || node.operands.iter().any(|operand| samples[operand.index()]);
        node.results.iter().for_each(|result| samples[result.index()] = depends);
    }
    samples
}

/// Whether an op multiplies samples with weights, or is attention as a whole, which keeps no scores.
fn multiplies_weights(node: &Node, samples: &[bool]) -> bool {
    let product = node.op.operation().multiplies_matrices();
    let plain = matches!(node.op, Op::MatMul(_));
    product && (!plain || node.operands.iter().any(|operand| !samples[operand.index()]))
}

/// A capacity that exceeds the bytes of every cut.
const UNCUT: u64 = 1 << 60;

/// The network of the minimum cut. Each value that may be kept or made again is an edge with as many units as it has bytes.
struct RecomputeNetwork {
    graph: DiGraph<(), u64>,
    source: NodeIndex,
    sink: NodeIndex,
    /// The two ends of each value's edge.
    ends: Vec<Option<[NodeIndex; 2]>>,
    cheap: Vec<bool>,
}

impl RecomputeNetwork {
    fn new(training: &TrainingGraph, cheap: &[bool], samples: &[bool]) -> Self {
        let mut graph = DiGraph::new();
        let (source, sink) = (graph.add_node(()), graph.add_node(()));
        let ends = vec![None; cheap.len()];
        let mut network = Self { graph, source, sink, ends, cheap: cheap.to_vec() };
        let read = read_backward(training);
        for value in (0..cheap.len()).filter(|&value| cheap[value]) {
            let value = ValueId::new(value);
            let [made, known] = network.edge_ends(training, value);
            if read[value.index()] {
                network.graph.add_edge(known, network.sink, UNCUT);
            }
            for &operand in &training.graph.producer(value).operands {
                if let Some(operand) = network.operand_node(training, operand, (&read, samples)) {
                    network.graph.add_edge(operand, made, UNCUT);
                }
            }
        }
        network
    }

    fn edge_ends(&mut self, training: &TrainingGraph, value: ValueId) -> [NodeIndex; 2] {
        let graph = &mut self.graph;
        *self.ends[value.index()].get_or_insert_with(|| {
            let ends = [graph.add_node(()), graph.add_node(())];
            let bytes = training.graph.value(value).ty.bytes() as u64;
            graph.add_edge(ends[0], ends[1], bytes);
            ends
        })
    }

    /// Returns the node of the network at which an operand is known. `None` if the operand is there at no cost, so that nothing has to flow to it: it
    /// is not cheap, and it depends on no sample or is kept for the backward pass in any case.
    fn operand_node(
        &mut self,
        training: &TrainingGraph,
        value: ValueId,
        (read, samples): (&[bool], &[bool]),
    ) -> Option<NodeIndex> {
        let index = value.index();
        if !self.cheap[index] && (read[index] || !samples[index]) {
            return None;
        }
        let is_new = self.ends[index].is_none();
        let [made, known] = self.edge_ends(training, value);
        if is_new && !self.cheap[index] {
            self.graph.add_edge(self.source, made, UNCUT);
        }
        Some(known)
    }

    /// Returns, for each cheap value, whether it lies between the cut and its readers.
    fn behind_the_cut(&self) -> Vec<bool> {
        let ends = (self.source, self.sink);
        let reaches = smallest_side(&self.graph, ends, Direction::Incoming);
        let behind = |value: usize| {
            let made = self.ends[value].map(|[made, _]| made);
            self.cheap[value] && made.is_some_and(|made| reaches[made.index()])
        };
        (0..self.cheap.len()).map(behind).collect()
    }
}

/// Returns, for each value, whether the backward pass reads it.
fn read_backward(training: &TrainingGraph) -> Vec<bool> {
    let mut read = vec![false; training.graph.values.len()];
    for (index, node) in training.graph.nodes.iter().enumerate() {
        if training.phases[index] == Phase::Backward {
            node.operands.iter().for_each(|operand| read[operand.index()] = true);
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use graphc_ir::builder::{GraphBuilder, Tensor};
    use graphc_ir::ops::Init;
    use graphc_ir::types::DType;
    use graphc_plan::TensorKind;

    use super::*;
    use crate::draw::Draw;

    /// Products with a weight, elementwise ops and sums of `[4, 4]` and `[4, 1]`, of which the backward pass reads
    /// some; and which values may be given up.
    fn training(draw: &mut Draw) -> (TrainingGraph, Vec<bool>) {
        let g = GraphBuilder::new("random");
        let weight =
            |rows: usize| g.variable(&format!("w{rows}"), DType::F32, [rows, 4], Init::Weights);
        let weights = [weight(4), weight(1)];
        let mut made: Vec<Tensor> = vec![g.input("x", DType::F32, [4, 4])];
        for _ in 0..8 {
            let one = made[draw.below(made.len())].clone();
            let other = made[draw.below(made.len())].clone();
            made.push(match draw.below(6) {
                0 => one.matmul(&weights[usize::from(one.shape() == [4, 1])]),
                1 | 2 => one.add(&other),
                3 => one.sum(&[1], true),
                _ => one.tanh(),
            });
        }
        let last = made.last().and_then(Tensor::id).expect("fits");
        for tensor in &made {
            if draw.below(3) == 0 {
                g.output(&format!("y{}", draw.below(1 << 30)), &tensor.exp());
            }
        }
        let graph = g.finish().expect("fits");
        let forward = graph.value(last).producer.index() + 1;
        let phase = |node| if node < forward { Phase::Forward } else { Phase::Backward };
        let candidate = |value: usize| {
            let node = graph.values[value].producer;
            node.index() < forward && !matches!(graph.node(node).op, Op::Input(_) | Op::Variable(_))
        };
        let candidates = (0..graph.values.len()).map(candidate).collect();
        let training = TrainingGraph {
            phases: (0..graph.nodes.len()).map(phase).collect(),
            kinds: vec![TensorKind::Activation; graph.values.len()],
            loss: None,
            gradients: Vec::new(),
            graph,
        };
        (training, candidates)
    }

    /// Bytes that are kept for these values to be made again and all others to be there; `None` where one of these is a product
    /// with weights. What depends on no input, and what the backward pass reads itself and is not cheap, is there anyway.
    fn kept(
        training: &TrainingGraph,
        candidates: &[bool],
        again: &dyn Fn(usize) -> bool,
    ) -> Option<usize> {
        let graph = &training.graph;
        let (samples, read) = (of_samples(graph), read_backward(training));
        let cheap = |value: usize| {
            candidates[value]
                && !multiplies_weights(graph.node(graph.values[value].producer), &samples)
        };
        let mut needed = read.clone();
        let mut bytes = 0;
        for value in (0..graph.values.len()).rev().filter(|&value| samples[value]) {
            let made_again = again(value);
            if made_again && !cheap(value) {
                return None;
            }
            if !needed[value] {
                continue;
            }
            match made_again {
                true => {
                    let node = graph.node(graph.values[value].producer);
                    node.operands.iter().for_each(|operand| needed[operand.index()] = true);
                }
                false if read[value] && !cheap(value) => {}
                false => bytes += graph.values[value].ty.bytes(),
            }
        }
        Some(bytes)
    }

    #[test]
    fn no_other_choice_keeps_fewer_bytes() {
        let mut draw = Draw(7);
        let (mut fewer, mut products) = (0, 0);
        for _ in 0..200 {
            let (training, candidates) = training(&mut draw);
            let dropped = choose_selective(&training, &candidates);
            let values: Vec<usize> = (0..candidates.len()).filter(|&v| candidates[v]).collect();
            let found = kept(&training, &candidates, &|value| dropped[value]).expect("cheap ones");
            let all = kept(&training, &candidates, &|_| false).expect("nothing again");
            let least = (0..1usize << values.len()).filter_map(|set| {
                let again = |value: usize| {
                    values.iter().position(|&v| v == value).is_some_and(|at| set >> at & 1 == 1)
                };
                kept(&training, &candidates, &again)
            });
            assert_eq!(Some(found), least.min(), "{:?}", training.graph);
            fewer += usize::from(found < all);
            let product = |node: &Node| matches!(node.op, Op::MatMul(_));
            products += training.graph.nodes.iter().filter(|node| product(node)).count();
        }
        assert!(fewer > 50 && products > 50, "{fewer} {products}");
    }
}
