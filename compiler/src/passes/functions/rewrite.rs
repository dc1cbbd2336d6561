//! The graph with one op for each place that was found.

use std::collections::BTreeMap;

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{Binary, BinaryFunction, Cast, Full, Unary, UnaryFunction, Where};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

use super::rows::are_rows;
use super::{FoundFunction, FunctionInParts};
use crate::passes::joined::{NewValues, push_reshape, replace_nodes};

/// The graph anew. What only parts of functions have read is left out with them.
pub(super) fn rewrite_functions(old: &Graph, places: &[FunctionInParts]) -> Result<Graph, OpError> {
    let found: BTreeMap<NodeId, &FoundFunction> =
        places.iter().map(|place| (place.last, &place.found)).collect();
    let roots = found.iter().map(|(&last, found)| (last, found.operands.clone())).collect();
    let push = |graph: &mut Graph, id: NodeId, made: &NewValues<'_>| {
        let function = found[&id];
        let operands = function.operands.iter().map(made).collect();
        push_function(graph, &function.op, operands, old.node(id), old)
    };
    replace_nodes(old, &roots, &push)
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
        Op::Embedding(_) => push_rows(graph, op, &operands, last, old),
        op => Ok(graph.push_like(op.clone(), operands, last)?[0]),
    }
}

/// The rows of a table at places `[.., 1]`. A vector that is 0 everywhere stands for no row and gives zeros, unless all places are known to be rows.
fn push_rows(
    graph: &mut Graph,
    op: &Op,
    operands: &[ValueId],
    last: &Node,
    old: &Graph,
) -> Result<ValueId, OpError> {
    let (table, shape) = (operands[0], &old.value(last.results[0]).ty.shape);
    let (of_places, rows) = (&shape[..shape.len() - 1], graph.value(table).ty.shape[0]);
    let mut places = push_reshape(graph, operands[1], of_places, last)?;
    if graph.value(places).ty.dtype != DType::I64 {
        let cast = Op::Cast(Cast { dtype: DType::I64 });
        places = graph.push_like(cast, vec![places], last)?[0];
    }
    if are_rows(graph, places, rows) {
        return Ok(graph.push_like(op.clone(), vec![table, places], last)?[0]);
    }
    let clip = UnaryFunction::Clip { low: Scalar(0.0), high: Scalar(rows as f64 - 1.0) };
    let clip = Op::Unary(Unary { function: clip });
    let bounded = graph.push_like(clip, vec![places], last)?[0];
    let equal = Op::Binary(Binary { function: BinaryFunction::Equal });
    let is_row = graph.push_like(equal, vec![bounded, places], last)?[0];
    let is_row = push_reshape(graph, is_row, &[of_places, &[1]].concat(), last)?;
    let found = graph.push_like(op.clone(), vec![table, bounded], last)?[0];
    let ty = TensorType::new(graph.value(found).ty.dtype, []);
    let zero = graph.push_like(Op::Full(Full { ty, value: Scalar(0.0) }), vec![], last)?[0];
    Ok(graph.push_like(Op::Where(Where {}), vec![is_row, found, zero], last)?[0])
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
