//! Rows of a table that are looked up by a product with vectors of which one element is 1: that reads the whole table for each row, and keeps a
//! vector as long as the table for it.

use std::collections::BTreeSet;

use graphc_ir::graph::{Graph, Node, Value};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::Op;
use graphc_ir::ops::{ArgMax, Binary, BinaryFunction, EmbeddingOp, Iota, MatMul};
use graphc_ir::types::DType;

use super::{FoundFunction, FunctionFinder};

impl FunctionFinder<'_> {
    /// The look-up that ends in a product.
    pub(super) fn find_row_lookup(&mut self, last: NodeId) -> Option<FoundFunction> {
        let node = self.graph.node(last);
        let Op::MatMul(MatMul { transpose_a: false, transpose_b: false }) = node.op else {
            return None;
        };
        let &[vectors, table] = &node.operands[..] else { return None };
        let shape = |value: ValueId| &self.graph.value(value).ty.shape;
        let &[rows, _] = &shape(table)[..] else { return None };
        // Of known vectors the product is computed as it stands.
        if self.constants.contains(vectors) || shape(vectors).len() < 2 {
            return None;
        }
        let mut inside = BTreeSet::new();
        let places = self.match_one_hot(vectors, rows, &mut inside)?;
        let operands = vec![table, places];
        Some(FoundFunction {
            name: "embedding",
            op: Op::Embedding(EmbeddingOp {}),
            operands,
            inside,
        })
    }

    /// The places `[.., 1]` at which vectors `[.., rows]` are 1, where they are 0 elsewhere.
    fn match_one_hot(
        &mut self,
        vectors: ValueId,
        rows: usize,
        inside: &mut BTreeSet<NodeId>,
    ) -> Option<ValueId> {
        let (graph, mut value) = (self.graph, vectors);
        loop {
            let id = graph.value(value).producer;
            let node = graph.node(id);
            inside.insert(id);
            value = match &node.op {
                Op::Cast(_) => node.operands[0],
                Op::Reshape(_) if keeps_last(graph.value(node.operands[0]), graph.value(value)) => {
                    node.operands[0]
                }
                Op::Where(_) if self.are_one_and_zero(node) => node.operands[0],
                Op::Binary(Binary { function: BinaryFunction::Equal }) => {
                    let places = self.match_places(node, rows)?;
                    return Some(self.unwrap_places(places, rows));
                }
                _ => return None,
            };
        }
    }

    /// Whether a choice gives 1 where its condition holds, and else 0.
    fn are_one_and_zero(&mut self, node: &Node) -> bool {
        self.constants.number(node.operands[1]) == Some(1.0)
            && self.constants.number(node.operands[2]) == Some(0.0)
    }

    /// The operand of a comparison `[.., 1]` whose other operand counts the last dim from 0.
    fn match_places(&self, node: &Node, rows: usize) -> Option<ValueId> {
        let &[a, b] = &node.operands[..] else { return None };
        let result = &self.graph.value(node.results[0]).ty.shape;
        [(a, b), (b, a)].into_iter().find_map(|(places, count)| {
            let ty = &self.graph.value(places).ty;
            let is_column = ty.shape.len() == result.len()
                && ty.shape.last() == Some(&1)
                && ty.shape[..ty.shape.len() - 1] == result[..result.len() - 1];
            let is_whole = matches!(ty.dtype, DType::I64 | DType::I32);
            (is_column && is_whole && self.counts_last_dim(count, rows)).then_some(places)
        })
    }

    /// The value from which places are counted from the end where they are negative, if it is known to have rows alone; else the places.
    fn unwrap_places(&mut self, places: ValueId, rows: usize) -> ValueId {
        let node = self.graph.producer(places);
        let (Op::Where(_), &[condition, _, own]) = (&node.op, &node.operands[..]) else {
            return places;
        };
        let less = self.graph.producer(condition);
        let is_negative = less.op == Op::Binary(Binary { function: BinaryFunction::Less })
            && less.operands[0] == own
            && self.constants.number(less.operands[1]) == Some(0.0);
        if is_negative && are_rows(self.graph, own, rows) { own } else { places }
    }

    /// Whether a value is 0, 1, 2 and so on along its last dim, and has no other.
    fn counts_last_dim(&self, value: ValueId, rows: usize) -> bool {
        let shape = &self.graph.value(value).ty.shape;
        if shape.last() != Some(&rows) || self.graph.value(value).ty.elements() != rows {
            return false;
        }
        if let Op::Iota(Iota { dim, .. }) = self.graph.producer(value).op {
            return dim + 1 == shape.len();
        }
        let elements = self.constants.contains(value).then(|| self.constants.elements(value));
        elements.flatten().is_some_and(|elements| {
            elements.data.len() == rows
                && elements.data.iter().enumerate().all(|(at, &x)| x == at as f64)
        })
    }
}

/// Whether a reshape keeps the last dim as it is.
fn keeps_last(from: &Value, to: &Value) -> bool {
    from.ty.shape.last() == to.ty.shape.last()
}

/// Whether places are known to be rows, as those of the greatest of so many elements are.
pub(super) fn are_rows(graph: &Graph, places: ValueId, rows: usize) -> bool {
    let node = graph.producer(places);
    let extent = |dim: usize| graph.value(node.operands[0]).ty.shape[dim];
    match &node.op {
        Op::Reshape(_) | Op::Cast(_) => are_rows(graph, node.operands[0], rows),
        Op::ArgMax(ArgMax { axis, .. }) => extent(*axis) <= rows,
        Op::TopK(_) => {
            graph.value(places).index == 1 && {
                let rank = graph.value(places).ty.shape.len();
                extent(rank - 1) <= rows
            }
        }
        _ => false,
    }
}
