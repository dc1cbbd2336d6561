//! The common parts of passes that replace several ops by one.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::graph::{Graph, Node, Output};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{Init, Reshape};
use graphc_plan::CompileOptions;

use super::pins::pin_of;

/// A reason why one op cannot replace several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// A value between them is an output, or is read by others.
    Read,
    /// The user asks for a layout of a value between them.
    Pinned,
    /// They are on several stages or computed in several precisions.
    Apart,
}

impl Held {
    /// Returns the reason in the words of a report.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Read => "a value inside is read by others",
            Self::Pinned => "a layout is asked for inside",
            Self::Apart => "its ops are on several stages or in several precisions",
        }
    }
}

/// Checks that nothing but the last of some nodes needs the results of the others, so that one op may replace all.
///
/// # Errors
/// Returns the reason why one op cannot replace them.
pub(super) fn check_joined(
    graph: &Graph,
    options: &CompileOptions,
    consumers: &[Vec<NodeId>],
    (last, inside): (NodeId, &BTreeSet<NodeId>),
) -> Result<(), Held> {
    let like = graph.node(last);
    for &id in inside {
        let node = graph.node(id);
        let together = node.part == like.part
            && node.placement == like.placement
            && node.autocast == like.autocast;
        if !together {
            return Err(Held::Apart);
        }
        for &value in &node.results {
            let is_output = graph.outputs.iter().any(|output| output.value == value);
            let stranger = |reader: &NodeId| *reader != last && !inside.contains(reader);
            if is_output || consumers[value.index()].iter().any(stranger) {
                return Err(Held::Read);
            }
            if pin_of(graph, value, options).is_some() {
                return Err(Held::Pinned);
            }
        }
    }
    Ok(())
}

/// Returns, for each node, whether it is still needed if some nodes read other values than before. A node whose results nothing has read before
/// stays.
pub(super) fn still_needed(old: &Graph, roots: &BTreeMap<NodeId, Vec<ValueId>>) -> Vec<bool> {
    let mut read = vec![false; old.values.len()];
    let readers = old.nodes.iter().flat_map(|node| &node.operands);
    let outputs = old.outputs.iter().map(|output| &output.value);
    readers.chain(outputs).for_each(|value| read[value.index()] = true);
    let mut needed: Vec<bool> = vec![false; old.nodes.len()];
    for output in &old.outputs {
        needed[old.value(output.value).producer.index()] = true;
    }
    for (id, node) in old.iter().rev() {
        let stays = node.op.is_given() && !is_table(node)
            || !node.op.operation().updates().is_empty()
            || node.results.iter().all(|result| !read[result.index()]);
        needed[id.index()] |= stays;
        if needed[id.index()] {
            for value in roots.get(&id).unwrap_or(&node.operands) {
                needed[old.value(*value).producer.index()] = true;
            }
        }
    }
    needed
}

/// Gives the new value of an old one.
pub(super) type NewValues<'a> = dyn Fn(&ValueId) -> ValueId + 'a;

/// Returns the graph anew, where `push` appends what stands for the nodes of `roots`, of one result each, which then reads these values. What only such
/// nodes have read is left out.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(super) fn replace_nodes(
    old: &Graph,
    roots: &BTreeMap<NodeId, Vec<ValueId>>,
    push: &dyn Fn(&mut Graph, NodeId, &NewValues<'_>) -> Result<ValueId, OpError>,
) -> Result<Graph, OpError> {
    let needed = still_needed(old, roots);
    let mut graph = old.clone_empty();
    let mut values: Vec<Option<ValueId>> = vec![None; old.values.len()];
    for (id, node) in old.iter().filter(|(id, _)| needed[id.index()]) {
        let made = |value: &ValueId| values[value.index()].expect("operands stand before readers");
        let first = graph.values.len();
        let results = if roots.contains_key(&id) {
            vec![push(&mut graph, id, &made)?]
        } else {
            let operands = node.operands.iter().map(made).collect();
            graph.push_like(node.op.clone(), operands, node)?
        };
        for (&from, &to) in node.results.iter().zip(&results) {
            let (old, new) = (old.value(from), &mut graph.values[to.index()]);
            // What stands for a node may be a value that was there, which has a name of its own.
            if to.index() >= first {
                new.name.clone_from(&old.name);
                new.pin.clone_from(&old.pin);
            }
            values[from.index()] = Some(to);
        }
    }
    let output = |output: &Output| Output {
        name: output.name.clone(),
        value: values[output.value.index()].expect("outputs are needed"),
    };
    graph.outputs = old.outputs.iter().map(output).collect();
    Ok(graph)
}

/// Appends a reshape of a value.
pub(super) fn push_reshape(
    graph: &mut Graph,
    value: ValueId,
    shape: &[usize],
    like: &Node,
) -> Result<ValueId, OpError> {
    if graph.value(value).ty.shape == shape {
        return Ok(value);
    }
    Ok(graph.push_like(Op::Reshape(Reshape { shape: shape.to_vec() }), vec![value], like)?[0])
}

/// Whether a node is a table of an import, which is none of the model's own tensors.
fn is_table(node: &Node) -> bool {
    matches!(&node.op, Op::Variable(variable) if matches!(variable.init, Init::Table(_)))
}
