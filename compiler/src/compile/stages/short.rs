//! Shortens a model to two of each run of equal layers, whose costs tell those of the whole model, layer by layer.

use graphc_ir::graph::{Graph, Output};
use graphc_ir::ids::{LayerId, ValueId};
use graphc_ir::op::OpError;

use crate::passes::layers::Layers;

/// The number of layers that are kept of a run of equal ones: two, because the first reads something else than the others.
const KEPT: usize = 2;

/// A model with fewer layers.
pub(super) struct Short {
    /// The graph.
    pub graph: Graph,
    /// The layer of each of its nodes, by the numbering of the short model.
    pub layer_of: Vec<Option<LayerId>>,
    /// The layer of the short model that stands for each layer of the whole one.
    pub stands: Vec<usize>,
}

/// Shortens a model. If its layers cannot be told apart, it stays as it is.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(super) fn shorten_model(graph: &Graph, layers: &Layers) -> Result<Short, OpError> {
    let kept = layers.repeated.start + KEPT.min(layers.repeated.len());
    let dropped = kept..layers.repeated.end;
    match (!dropped.is_empty()).then(|| find_replacements(graph, layers, &dropped)).flatten() {
        Some(replaced) => drop_layers(graph, layers, dropped, &replaced),
        None => Ok(Short {
            graph: graph.clone(),
            layer_of: layers.of.clone(),
            stands: (0..layers.count).collect(),
        }),
    }
}

/// Finds the value of the last kept layer that replaces each value of a dropped one. `None` if the layers differ.
fn find_replacements(
    graph: &Graph,
    layers: &Layers,
    dropped: &std::ops::Range<usize>,
) -> Option<Vec<Option<ValueId>>> {
    let mut nodes: Vec<Vec<usize>> = vec![Vec::new(); layers.count];
    for (node, layer) in layers.of.iter().enumerate() {
        if let Some(layer) = layer {
            nodes[layer.index()].push(node);
        }
    }
    let like = &nodes[dropped.start - 1];
    let mut replaced = vec![None; graph.values.len()];
    for layer in dropped.clone() {
        if nodes[layer].len() != like.len() {
            return None;
        }
        for (&node, &like) in nodes[layer].iter().zip(like) {
            let (node, like) = (&graph.nodes[node], &graph.nodes[like]);
            if node.op.name() != like.op.name()
                || node.results.len() != like.results.len()
                || node.autocast != like.autocast
            {
                return None;
            }
            for (&value, &stands) in node.results.iter().zip(&like.results) {
                if graph.value(value).ty != graph.value(stands).ty {
                    return None;
                }
                replaced[value.index()] = Some(stands);
            }
        }
    }
    Some(replaced)
}

fn drop_layers(
    graph: &Graph,
    layers: &Layers,
    dropped: std::ops::Range<usize>,
    replaced: &[Option<ValueId>],
) -> Result<Short, OpError> {
    let of = |value: ValueId| replaced[value.index()].unwrap_or(value);
    let live = find_live_nodes(graph, layers, &dropped, of);
    let mut result = Graph::new(graph.name.clone());
    let mut values: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    let mut layer_of = Vec::new();
    let stands = |layer: usize| match layer {
        layer if dropped.contains(&layer) => dropped.start - 1,
        layer if layer >= dropped.end => layer - dropped.len(),
        layer => layer,
    };
    let new = |values: &[Option<ValueId>], value: ValueId| {
        values[of(value).index()].expect("operands stand before their readers")
    };
    for (index, node) in graph.nodes.iter().enumerate().filter(|(index, _)| live[*index]) {
        let operands = node.operands.iter().map(|&v| new(&values, v)).collect();
        let id = result.push(node.op.clone(), operands, node.source.clone())?;
        result.nodes[id.index()].autocast = node.autocast;
        for (&old, &made) in node.results.iter().zip(&result.nodes[id.index()].results) {
            values[old.index()] = Some(made);
            let value = &mut result.values[made.index()];
            value.name.clone_from(&graph.value(old).name);
            value.pin.clone_from(&graph.value(old).pin);
        }
        layer_of.push(layers.of[index].map(|layer| LayerId::new(stands(layer.index()))));
    }
    let output =
        |output: &Output| Output { name: output.name.clone(), value: new(&values, output.value) };
    result.outputs = graph.outputs.iter().map(output).collect();
    Ok(Short { graph: result, layer_of, stands: (0..layers.count).map(stands).collect() })
}

/// Finds the nodes that are kept: those that outputs need, without dropped layers.
fn find_live_nodes(
    graph: &Graph,
    layers: &Layers,
    dropped: &std::ops::Range<usize>,
    of: impl Fn(ValueId) -> ValueId,
) -> Vec<bool> {
    let mut live = vec![false; graph.nodes.len()];
    for output in &graph.outputs {
        live[graph.value(of(output.value)).producer.index()] = true;
    }
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        if layers.of[index].is_some_and(|layer| dropped.contains(&layer.index())) {
            live[index] = false;
        }
        if live[index] {
            for &operand in &node.operands {
                live[graph.value(of(operand)).producer.index()] = true;
            }
        }
    }
    live
}
