//! The uses of initializers, for a model that does not mark its parameters.
//!
//! A value that is computed from initializers alone is traced back to them. An initializer that meets data as a weight, a bias, a scale or a table is
//! a parameter. One that meets data in any other way, or holds the numbers of a mask or of sines, is a buffer.

use std::collections::{BTreeMap, BTreeSet};

use rten_onnx::onnx::{GraphProto, NodeProto};

use super::model::{inner_order, op_type};
use crate::weights::WeightTensor;

/// The ops at which initializers meet data, by the names of the initializers.
pub(super) struct InitializerUses<'a> {
    /// For each initializer, the first op that takes it as a parameter.
    parameters: BTreeMap<&'a str, &'a str>,
    /// For each initializer, the first op that takes it as anything else.
    others: BTreeMap<&'a str, &'a str>,
}

/// Returns the names of the running means and variances of batch norms.
pub(super) fn running_statistics(graph: &GraphProto) -> BTreeSet<&str> {
    let norms = graph.node.iter().filter(|node| op_type(node) == "BatchNormalization");
    norms.flat_map(|node| node.input.iter().skip(3).take(2)).map(String::as_str).collect()
}

impl<'a> InitializerUses<'a> {
    /// Collects the uses in a graph whose nodes are in this order. The results of nodes that only copy an initializer are initializers, too.
    pub(super) fn new(
        graph: &'a GraphProto,
        order: &[usize],
        tensors: &'a BTreeMap<String, WeightTensor>,
        copies: &'a BTreeMap<String, String>,
    ) -> Self {
        let fed = graph.input.iter().filter_map(|info| info.name.as_deref());
        let fed: BTreeSet<&str> = fed.filter(|name| !tensors.contains_key(*name)).collect();
        let roots = tensors.keys().map(|name| (name.as_str(), BTreeSet::from([name.as_str()])));
        let mut walk = DataWalk { data: fed.clone(), fed, roots: roots.collect() };
        let mut uses = Self { parameters: BTreeMap::new(), others: BTreeMap::new() };
        for node in order.iter().map(|&index| &graph.node[index]) {
            let is_copy = node.output.first().is_some_and(|name| copies.contains_key(name));
            if !is_copy {
                uses.record_uses(&walk, node);
                walk.trace_node(node);
                uses.visit_graphs(&mut walk, node);
            }
        }
        uses
    }

    /// Collects the uses in the graphs within a node. A value that a loop carries may depend on data from its second turn on.
    fn visit_graphs(&mut self, walk: &mut DataWalk<'a>, node: &'a NodeProto) {
        let graphs = node.attribute.iter().filter_map(|attribute| attribute.g.as_ref());
        for graph in graphs {
            let Ok(order) = inner_order(graph) else { continue };
            walk.enter_graph(node, graph);
            for turn in 0..2 {
                for inner in order.iter().map(|&index| &graph.node[index]) {
                    if turn == 1 {
                        self.record_uses(walk, inner);
                    }
                    walk.trace_node(inner);
                    if turn == 1 {
                        self.visit_graphs(walk, inner);
                    }
                }
                walk.carry_results(node, graph);
            }
        }
    }

    fn record_uses(&mut self, walk: &DataWalk<'a>, node: &'a NodeProto) {
        let operands = operands_of_numbers(node);
        let meets_data = operands.iter().any(|input| walk.data.contains(input.as_str()));
        for (position, input) in operands.iter().enumerate().filter(|_| meets_data) {
            let table = if walk.is_parameter(node, position) {
                &mut self.parameters
            } else {
                &mut self.others
            };
            for root in walk.roots.get(input.as_str()).into_iter().flatten() {
                table.entry(root).or_insert(op_type(node));
            }
        }
    }

    /// Returns an error if an initializer is no parameter, with the reason if it is used at all.
    pub(super) fn check_parameter(
        &self,
        name: &str,
        tensor: &WeightTensor,
    ) -> Result<(), Option<String>> {
        let other = self.others.get(name).map(|op| format!("read by {op}"));
        let Some(&op) = self.parameters.get(name) else { return Err(other) };
        // Only what is added or multiplied may as well be no parameter.
        if !matches!(op, "Add" | "Mul" | "Gather" | "Concat") {
            return Ok(());
        }
        match tensor.elements(name) {
            Ok(elements) if elements.iter().any(|&x| x <= -1e4) => Err(Some("a mask".into())),
            Ok(elements) if are_waves(&elements, &tensor.shape) => {
                Err(Some("sines and cosines".into()))
            }
            _ => Ok(()),
        }
    }
}

/// Whether these are sines and cosines of positions. Those of position 0 are all 0 or 1, which is never so of weights with a random start.
fn are_waves(elements: &[f64], shape: &[usize]) -> bool {
    let &[.., positions, width] = shape else { return false };
    let first = elements.get(..width).unwrap_or_default();
    let both = first.contains(&0.0) && first.contains(&1.0);
    let bounded = elements.iter().all(|x| x.abs() <= 1.0);
    positions > 1 && both && bounded && first.iter().all(|&x| x == 0.0 || x == 1.0)
}

/// Returns the operands of a node from whose numbers its results are computed. Of the second one of a cast only the type is read.
fn operands_of_numbers(node: &NodeProto) -> &[String] {
    let most = if op_type(node) == "CastLike" { 1 } else { node.input.len() };
    &node.input[..most.min(node.input.len())]
}

struct DataWalk<'a> {
    fed: BTreeSet<&'a str>,
    /// The names of values that depend on what is fed.
    data: BTreeSet<&'a str>,
    /// The initializers from which each other value is computed.
    roots: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> DataWalk<'a> {
    /// Traces the results of a node back to the data and the initializers of its operands. Shapes are no data.
    fn trace_node(&mut self, node: &'a NodeProto) {
        let shape = matches!(op_type(node), "Shape" | "Size");
        let operands = operands_of_numbers(node);
        let has_data = operands.iter().any(|input| self.data.contains(input.as_str()));
        let outputs = node.output.iter().map(String::as_str);
        if has_data && !shape {
            // What is fed is still so in another form.
            let fed = node.input.first().is_some_and(|input| self.fed.contains(input.as_str()));
            let form = matches!(op_type(node), "Cast" | "Identity" | "Unsqueeze" | "Reshape");
            self.data.extend(outputs.clone());
            if fed && form {
                self.fed.extend(outputs);
            }
        } else if !shape {
            // A scale of quantization is no weight.
            let quantizes = matches!(op_type(node), "QuantizeLinear" | "DequantizeLinear");
            let most = if quantizes { 1 } else { operands.len() };
            let roots: BTreeSet<&str> = operands
                .iter()
                .take(most)
                .filter_map(|input| self.roots.get(input.as_str()))
                .flatten()
                .copied()
                .collect();
            self.roots.extend(outputs.map(|output| (output, roots.clone())));
        }
    }

    /// Gives the inputs of a graph within a node what is known of the node's operands.
    fn enter_graph(&mut self, node: &'a NodeProto, graph: &'a GraphProto) {
        for (outer, inner) in node.input.iter().zip(&graph.input) {
            self.alias_value(outer, inner.name.as_deref());
        }
    }

    /// Gives what is known of the outputs of a graph within a node to the inputs of its next turn, and to the node's results.
    fn carry_results(&mut self, node: &'a NodeProto, graph: &'a GraphProto) {
        let made = |at: usize| graph.output.get(at).and_then(|output| output.name.as_deref());
        // A loop's body gives first whether it goes on, and takes the number of its turn before that.
        let (taken, given) = match op_type(node) {
            "Loop" => (2, 1),
            "Scan" => (0, 0),
            _ => (graph.input.len(), 0),
        };
        for (at, input) in graph.input.iter().enumerate().skip(taken) {
            if let Some(made) = made(at - taken + given) {
                self.alias_value(made, input.name.as_deref());
            }
        }
        for (at, output) in node.output.iter().enumerate() {
            if let Some(made) = made(at + given) {
                self.alias_value(made, Some(output));
            }
        }
    }

    /// Gives a name what is known of another one.
    fn alias_value(&mut self, from: &str, to: Option<&'a str>) {
        let Some(to) = to else { return };
        if self.data.contains(from) {
            self.data.insert(to);
        }
        if let Some(roots) = self.roots.get(from).cloned() {
            self.roots.entry(to).or_default().extend(roots);
        }
    }

    /// Whether a node that reads data takes this operand as a parameter.
    fn is_parameter(&self, node: &NodeProto, position: usize) -> bool {
        match op_type(node) {
            "MatMul" | "FusedMatMul" | "Einsum" | "Concat" => true,
            "Gemm" | "FusedGemm" | "Conv" | "FusedConv" | "ConvTranspose" => {
                matches!(position, 1 | 2)
            }
            "BatchNormalization"
            | "LayerNormalization"
            | "InstanceNormalization"
            | "GroupNormalization"
            | "RMSNormalization"
            | "SimplifiedLayerNormalization" => matches!(position, 1 | 2),
            "LSTM" | "GRU" | "RNN" => matches!(position, 1..=3 | 7),
            "PRelu" | "BiasGelu" | "FastGelu" => position == 1,
            "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => {
                matches!(position, 2..=4)
            }
            "EmbedLayerNormalization" => matches!(position, 2..=6),
            "Attention" if is_of_onnxruntime(node) => matches!(position, 1 | 2),
            "MultiHeadAttention" => position == 3,
            "QuantizeLinear" => position == 0,
            "Gather" | "GatherND" | "GatherElements" => position == 0,
            // What is done to what is fed itself prepares it.
            "Add" | "Mul" => !node.input.iter().any(|input| self.fed.contains(input.as_str())),
            _ => false,
        }
    }
}

fn is_of_onnxruntime(node: &NodeProto) -> bool {
    node.domain.as_deref() == Some("com.microsoft")
}
