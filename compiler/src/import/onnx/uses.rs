//! The uses of initializers, for a model that does not mark its parameters.
//!
//! What is computed of initializers alone is traced back to them. What meets data as a weight, a bias, a scale or a table is a
//! parameter. What does so in any other way, or has the numbers of a mask or of sines, is a buffer.

use std::collections::{BTreeMap, BTreeSet};

use rten_onnx::onnx::{GraphProto, NodeProto};

use super::model::op_type;
use crate::import::weights::WeightTensor;

/// Which names have data in them, and where initializers meet data.
pub(super) struct Uses<'a> {
    /// The ops that take an initializer as a parameter.
    parameters: BTreeMap<&'a str, &'a str>,
    /// The ops that take it as something else.
    others: BTreeMap<&'a str, &'a str>,
}

/// Running means and variances of batch norm.
pub(super) fn statistics(graph: &GraphProto) -> BTreeSet<&str> {
    let norms = graph.node.iter().filter(|node| op_type(node) == "BatchNormalization");
    norms.flat_map(|node| node.input.iter().skip(3).take(2)).map(String::as_str).collect()
}

impl<'a> Uses<'a> {
    /// The uses in a graph whose nodes come in this order. Copies are made by nodes, and are initializers all the same.
    pub fn new(
        graph: &'a GraphProto,
        order: &[usize],
        tensors: &'a BTreeMap<String, WeightTensor>,
        copies: &'a BTreeMap<String, String>,
    ) -> Self {
        let fed = graph.input.iter().filter_map(|info| info.name.as_deref());
        let fed: BTreeSet<&str> = fed.filter(|name| !tensors.contains_key(*name)).collect();
        let roots = tensors.keys().map(|name| (name.as_str(), BTreeSet::from([name.as_str()])));
        let mut walk = Walk { data: fed.clone(), fed, roots: roots.collect() };
        let mut uses = Self { parameters: BTreeMap::new(), others: BTreeMap::new() };
        for node in order.iter().map(|&index| &graph.node[index]) {
            let is_copy = node.output.first().is_some_and(|name| copies.contains_key(name));
            if !is_copy {
                uses.note(&walk, node);
                walk.pass(node);
            }
        }
        uses
    }

    fn note(&mut self, walk: &Walk<'a>, node: &'a NodeProto) {
        let meets_data = node.input.iter().any(|input| walk.data.contains(input.as_str()));
        for (position, input) in node.input.iter().enumerate().filter(|_| meets_data) {
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

    /// Whether an initializer is a parameter, and if it is none although it is used, why.
    pub fn role(&self, name: &str, tensor: &WeightTensor) -> Result<(), Option<String>> {
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

/// Whether these are sines and cosines of positions: those of position 0 are 0 and 1, which no weights are that begin at random.
fn are_waves(elements: &[f64], shape: &[usize]) -> bool {
    let &[.., positions, width] = shape else { return false };
    let first = elements.get(..width).unwrap_or_default();
    let both = first.contains(&0.0) && first.contains(&1.0);
    let bounded = elements.iter().all(|x| x.abs() <= 1.0);
    positions > 1 && both && bounded && first.iter().all(|&x| x == 0.0 || x == 1.0)
}

struct Walk<'a> {
    fed: BTreeSet<&'a str>,
    /// Names whose values depend on what is fed.
    data: BTreeSet<&'a str>,
    /// The initializers of which all else is computed.
    roots: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Walk<'a> {
    /// Traces the results of a node back to what they are made of. Shapes are no data.
    fn pass(&mut self, node: &'a NodeProto) {
        let shape = matches!(op_type(node), "Shape" | "Size");
        let has_data = node.input.iter().any(|input| self.data.contains(input.as_str()));
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
            let roots: BTreeSet<&str> = node
                .input
                .iter()
                .filter_map(|input| self.roots.get(input.as_str()))
                .flatten()
                .copied()
                .collect();
            self.roots.extend(outputs.map(|output| (output, roots.clone())));
        }
    }

    /// Whether a node that reads data takes this operand as a parameter.
    fn is_parameter(&self, node: &NodeProto, position: usize) -> bool {
        match op_type(node) {
            "MatMul" | "Einsum" | "Concat" => true,
            "Gemm" | "Conv" | "ConvTranspose" => position > 0,
            "BatchNormalization"
            | "LayerNormalization"
            | "InstanceNormalization"
            | "GroupNormalization"
            | "RMSNormalization"
            | "SimplifiedLayerNormalization" => matches!(position, 1 | 2),
            "LSTM" | "GRU" | "RNN" => matches!(position, 1..=3 | 7),
            "PRelu" | "BiasGelu" => position == 1,
            "Gather" | "GatherND" | "GatherElements" => position == 0,
            // What is done to what is fed itself prepares it.
            "Add" | "Mul" => !node.input.iter().any(|input| self.fed.contains(input.as_str())),
            _ => false,
        }
    }
}
