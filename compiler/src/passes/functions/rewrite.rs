//! The graph with one op for each place that was found.

use std::collections::BTreeMap;

use graphc_ir::graph::{Graph, Node, Output};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{Cast, Unary, UnaryFunction};

use super::{FoundFunction, FunctionInParts};
use crate::passes::joined::{push_reshape, still_needed};

/// The graph anew. What only parts of functions have read is left out with them.
pub(super) fn rewrite_functions(old: &Graph, places: &[FunctionInParts]) -> Result<Graph, OpError> {
    let found: BTreeMap<NodeId, &FoundFunction> =
        places.iter().map(|place| (place.last, &place.found)).collect();
    let roots = found.iter().map(|(&last, found)| (last, found.operands.clone())).collect();
    let needed = still_needed(old, &roots);
    let mut graph = old.clone_empty();
    let mut values: Vec<Option<ValueId>> = vec![None; old.values.len()];
    for (id, node) in old.iter().filter(|(id, _)| needed[id.index()]) {
        let made = |value: &ValueId| values[value.index()].expect("operands stand before readers");
        let results = match found.get(&id) {
            Some(function) => {
                let operands = function.operands.iter().map(made).collect();
                vec![push_function(&mut graph, &function.op, operands, node, old)?]
            }
            None => {
                let operands = node.operands.iter().map(made).collect();
                graph.push_like(node.op.clone(), operands, node)?
            }
        };
        for (&from, &to) in node.results.iter().zip(&results) {
            let (old, new) = (old.value(from), &mut graph.values[to.index()]);
            new.name.clone_from(&old.name);
            new.pin.clone_from(&old.pin);
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

/// Appends what stands for a function that ended in a node.
fn push_function(
    graph: &mut Graph,
    op: &Op,
    operands: Vec<ValueId>,
    last: &Node,
    old: &Graph,
) -> Result<ValueId, OpError> {
    match op {
        Op::CrossEntropy(_) => push_label(graph, op, operands, last, old),
        op => Ok(graph.push_like(op.clone(), operands, last)?[0]),
    }
}

/// The logarithm of a label's probability, which is a cross entropy negated, in the type that it is written in.
fn push_label(
    graph: &mut Graph,
    op: &Op,
    mut operands: Vec<ValueId>,
    last: &Node,
    old: &Graph,
) -> Result<ValueId, OpError> {
    let ty = &old.value(last.results[0]).ty;
    let shape = &graph.value(operands[0]).ty.shape;
    let rows = shape[..shape.len() - 1].to_vec();
    operands[1] = push_reshape(graph, operands[1], &rows, last)?;
    let loss = graph.push_like(op.clone(), operands, last)?[0];
    let negated = Op::Unary(Unary { function: UnaryFunction::Neg });
    let mut value = graph.push_like(negated, vec![loss], last)?[0];
    if graph.value(value).ty.dtype != ty.dtype {
        let cast = Op::Cast(Cast { dtype: ty.dtype });
        value = graph.push_like(cast, vec![value], last)?[0];
    }
    push_reshape(graph, value, &ty.shape, last)
}
