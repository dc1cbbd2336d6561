//! Prices communication that runs beside kernels (`Device::overlap`) by the part that is not hidden under them.
//!
//! Two kinds of boxing may go on while something else is computed: that of a variable's gradients for its update or
//! for an accumulation, and that of a variable from its layout at rest. Such boxing is charged `max(0, t - h)` each
//! time. Here `t` is its seconds, and `h` the seconds for which matrix products keep the rank busy meanwhile. These
//! are products of a neighbouring layer, which is taken to be like the variable's own:
//!
//! - For a gradient, the products of the backward pass that read the variable (those of recomputation too), and the
//!   one that makes the gradient. The latter has as many FLOPs as the variable's product in the forward pass.
//! - For the variable itself, or for its cast to half precision, the products of the forward pass that read it.
//! - For a variable that is gathered again for the backward pass, those under which its gradient hides. Both have as many bytes, so they are assumed
//!   to last equally long. Gathering is charged with what is not hidden of both, less what is not hidden of the gradient.
//!
//! Products are those of one microbatch, split evenly over the mesh, at the rate that the device reaches for their
//! size. So `h` is a constant of graph, mesh and machines, whatever the plan, and the objective stays a sum. A
//! gradient that is boxed once a step hides under the last microbatch alone. One that is boxed for each microbatch
//! hides under each.
//!
//! Boxing of variables that no product reads (embeddings, norms) is not hidden. Neither is that of a variable that no backward product reads, because
//! nothing is computed after its gradient. Write-backs are charged in full.
//!
//! The rule leaves two things out: hidden communication of different variables shares one link and one stream, and nothing hides the last bucket. The
//! null device models both. The planner, the integer programme and the check use this one rule.

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Movement, Op};
use graphc_plan::Cluster;

use crate::cost::{matmul_efficiency, peak_flops};
use crate::decisions::{Decisions, Phase};

/// The seconds of computing under which boxing of each value may hide.
#[derive(Clone, Debug)]
pub(crate) struct Hidden {
    /// The seconds by value: of variables, their gradients, and the values that are accumulated to these.
    seconds: Vec<f64>,
}

/// Seconds of the products that read a variable.
#[derive(Clone, Copy, Default)]
struct ProductSeconds {
    forward: f64,
    backward: f64,
}

impl Hidden {
    /// Finds the seconds of a graph on these machines.
    pub(crate) fn from_decisions(decisions: &Decisions, cluster: &Cluster) -> Self {
        let graph = decisions.graph();
        let mut seconds = vec![0.0; graph.values.len()];
        if !cluster.overlaps() {
            return Self { seconds };
        }
        let VariableProducts { products, variable_of } = find_variable_products(decisions, cluster);
        for (id, node) in graph.iter() {
            if matches!(node.op, Op::Variable(_)) {
                seconds[node.results[0].index()] = products[id.index()].forward;
            }
            if let Some(variable) = cast_variable(graph, node) {
                seconds[node.results[0].index()] = products[variable.index()].forward;
            }
            let result = node.results[0];
            if let (Op::Regather(_), Some(variable)) = (&node.op, variable_of[result.index()]) {
                let of = products[variable.index()];
                seconds[result.index()] = match decisions.training.phases[id.index()] {
                    Phase::Forward => of.forward,
                    Phase::Backward | Phase::Update => of.forward + of.backward,
                };
            }
        }
        for &(variable, gradient) in &decisions.training.gradients {
            let of = products[graph.value(variable).producer.index()];
            let hides = if of.backward > 0.0 { of.forward + of.backward } else { 0.0 };
            if gradient != variable {
                seconds[gradient.index()] = hides;
            }
            // What it is made of by summing microbatches and by a cast from half precision.
            let mut maker = graph.node(graph.value(gradient).producer);
            while matches!(maker.op, Op::Accumulate(_) | Op::Cast(_)) {
                seconds[maker.operands[0].index()] = hides;
                maker = graph.producer(maker.operands[0]);
            }
        }
        Self { seconds }
    }

    /// Returns the products under which boxing of a value for these readers hides, if it stays on its mesh.
    pub(crate) fn find_window(
        &self,
        decisions: &Decisions,
        value: ValueId,
        readers: &[NodeId],
    ) -> HidingWindow {
        let producer = decisions.graph().value(value).producer;
        let is_again = matches!(decisions.graph().node(producer).op, Op::Regather(_));
        HidingWindow {
            seconds: self.seconds_under(decisions, value, readers),
            shared: is_again && decisions.training.phases[producer.index()] == Phase::Backward,
        }
    }

    fn seconds_under(&self, decisions: &Decisions, value: ValueId, readers: &[NodeId]) -> f64 {
        let graph = decisions.graph();
        let updates = |&node: &NodeId| decisions.training.phases[node.index()] == Phase::Update;
        let leads = |&node: &NodeId| {
            let node = graph.node(node);
            // A cast of a gradient hides what it makes too.
            let casts =
                matches!(node.op, Op::Cast(_)) && self.seconds[node.results[0].index()] > 0.0;
            matches!(node.op, Op::Accumulate(_)) || casts
        };
        let producer = graph.node(graph.value(value).producer);
        let hides = match producer.op {
            Op::Variable(_) => !readers.iter().all(updates),
            Op::Regather(_) => true,
            _ if cast_variable(graph, producer).is_some() => true,
            _ => readers.iter().all(|node| updates(node) || leads(node)),
        };
        if hides && !readers.is_empty() { self.seconds[value.index()] } else { 0.0 }
    }
}

/// Returns the node of the variable that a node casts, if it casts one.
fn cast_variable(graph: &Graph, node: &Node) -> Option<NodeId> {
    let Op::Cast(_) = node.op else { return None };
    let producer = graph.value(node.operands[0]).producer;
    matches!(graph.node(producer).op, Op::Variable(_)).then_some(producer)
}

/// The products under which boxing hides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct HidingWindow {
    /// Their seconds.
    seconds: f64,
    /// Whether other boxing that lasts as long, and is charged for itself, hides under them first.
    shared: bool,
}

impl HidingWindow {
    /// Returns bits that are equal only for equal windows.
    pub(crate) fn bits(self) -> (u64, bool) {
        (self.seconds.to_bits(), self.shared)
    }
}

/// Returns the seconds of boxing that are not hidden under such products.
pub(crate) fn unhidden_seconds(seconds: f64, under: HidingWindow) -> f64 {
    let of = |seconds: f64| (seconds - under.seconds).max(0.0);
    if under.shared { of(2.0 * seconds) - of(seconds) } else { of(seconds) }
}

/// The products that read each variable, and the values that stand for each variable, in any type and shape.
struct VariableProducts {
    /// The seconds of products, by the node of the variable that they read.
    products: Vec<ProductSeconds>,
    /// The node of the variable that a value stands for, by value.
    variable_of: Vec<Option<NodeId>>,
}

fn find_variable_products(decisions: &Decisions, cluster: &Cluster) -> VariableProducts {
    let graph = decisions.graph();
    let mut variable_of: Vec<Option<NodeId>> = vec![None; graph.values.len()];
    let mut products = vec![ProductSeconds::default(); graph.nodes.len()];
    for (id, node) in graph.iter() {
        if matches!(node.op, Op::Variable(_)) {
            variable_of[node.results[0].index()] = Some(id);
        }
        if node.op.operation().movement() == Some(Movement::Rearranged)
            || matches!(node.op, Op::Cast(_) | Op::Pad(_) | Op::Regather(_))
        {
            variable_of[node.results[0].index()] = variable_of[node.operands[0].index()];
        }
        if !node.op.operation().multiplies_matrices() {
            continue;
        }
        let mut read: Vec<NodeId> =
            node.operands.iter().filter_map(|operand| variable_of[operand.index()]).collect();
        read.dedup();
        let seconds =
            if read.is_empty() { 0.0 } else { product_seconds(decisions, cluster, id, node) };
        for variable in read {
            match decisions.training.phases[id.index()] {
                Phase::Forward => products[variable.index()].forward += seconds,
                Phase::Backward => products[variable.index()].backward += seconds,
                Phase::Update => {}
            }
        }
    }
    VariableProducts { products, variable_of }
}

/// Returns the seconds of a product of one microbatch that is split evenly over its mesh.
fn product_seconds(decisions: &Decisions, cluster: &Cluster, id: NodeId, node: &Node) -> f64 {
    let graph = decisions.graph();
    let operands = graph.operand_types(node);
    let Ok(rule) = node.op.operation().rule(&operands) else { return 0.0 };
    let repeats = decisions.rates.nodes[id.index()].is_some();
    let parts = if repeats { decisions.rates.microbatches } else { 1 };
    let ranks = decisions.staging.placement[id.index()].ranks.len();
    let flops = node.op.operation().flops(&rule) / (parts * ranks) as f64;
    let precision = node.op.compute_dtype(&operands, &[]);
    flops / (peak_flops(cluster, precision) * matmul_efficiency(cluster, precision, flops))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_all_hides() {
        let window = |seconds| HidingWindow { seconds, shared: false };
        assert_eq!(
            [0.0, 2.0, 5.0].map(|under| unhidden_seconds(3.0, window(under))),
            [3.0, 1.0, 0.0]
        );
        let shared = |seconds| HidingWindow { seconds, shared: true };
        assert_eq!(
            [0.0, 2.0, 4.0, 8.0].map(|under| unhidden_seconds(3.0, shared(under))),
            [3.0, 3.0, 2.0, 0.0]
        );
    }
}
