//! Rewrites the graph with one op for each place that was found.

use std::collections::BTreeMap;

use graphc_ir::graph::{Graph, Node, Output};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::Transpose;
use graphc_plan::CompileOptions;

use super::find::FoundAttention;
use super::head_scale::push_head_scale;
use super::heads::push_transpose;
use super::terms::push_sum;
use super::widths::{push_narrowed, push_widened};
use crate::passes::joined::{push_reshape, still_needed};
use crate::passes::pins::pin_of;

/// Rewrites the graph, without the nodes that only the replaced parts of attention have read.
pub(super) fn rewrite_attention(
    old: &Graph,
    options: &CompileOptions,
    found: &[FoundAttention],
) -> Result<Graph, OpError> {
    let found: BTreeMap<NodeId, &FoundAttention> =
        found.iter().map(|found| (found.product, found)).collect();
    let roots = found.iter().map(|(&product, found)| (product, found.roots().collect())).collect();
    let needed = still_needed(old, &roots);
    let values = vec![None; old.values.len()];
    let mut rewriter = AttentionRewriter { old, options, graph: old.clone_empty(), values };
    for (id, node) in old.iter().filter(|(id, _)| needed[id.index()]) {
        match found.get(&id) {
            Some(found) => rewriter.push_attention(found, node)?,
            None => rewriter.copy_node(node)?,
        }
    }
    for Output { name, value } in &old.outputs {
        let value = rewriter.restore_value(*value)?;
        rewriter.graph.outputs.push(Output { name: name.clone(), value });
    }
    Ok(rewriter.graph)
}

/// The new graph's form of a value of the old graph.
#[derive(Clone)]
enum New {
    Made(ValueId),
    /// A result of attention. Its dims are permuted and reshaped only where a reader needs them so.
    Attended {
        output: ValueId,
        split: Vec<usize>,
        order: Vec<usize>,
    },
}

struct AttentionRewriter<'a> {
    old: &'a Graph,
    options: &'a CompileOptions,
    graph: Graph,
    values: Vec<Option<New>>,
}

impl AttentionRewriter<'_> {
    fn copy_node(&mut self, node: &Node) -> Result<(), OpError> {
        if self.moves_attended(node) {
            return Ok(());
        }
        let operands = node.operands.iter().map(|&operand| self.restore_value(operand));
        let operands = operands.collect::<Result<Vec<_>, _>>()?;
        let results = self.graph.push_like(node.op.clone(), operands, node)?;
        for (&old, new) in node.results.iter().zip(results) {
            self.replace_value(old, new);
        }
        Ok(())
    }

    /// Whether a node transposes a result of attention. Such permutations are joined, and applied later all at once.
    fn moves_attended(&mut self, node: &Node) -> bool {
        let Op::Transpose(Transpose { permutation }) = &node.op else { return false };
        let (operand, result) = (node.operands[0], node.results[0]);
        let Some(New::Attended { output, split, order }) = &self.values[operand.index()] else {
            return false;
        };
        if pin_of(self.old, result, self.options).is_some() || order.len() != permutation.len() {
            return false;
        }
        let order = permutation.iter().map(|&dim| order[dim]).collect();
        let (output, split) = (*output, split.clone());
        self.values[result.index()] = Some(New::Attended { output, split, order });
        true
    }

    /// Appends the op in the place of a product.
    fn push_attention(&mut self, found: &FoundAttention, node: &Node) -> Result<(), OpError> {
        let mut operands = Vec::new();
        for heads in &found.operands {
            let root = self.restore_value(heads.root)?;
            let operand = heads.push_operand(&mut self.graph, root, node)?;
            operands.push(push_widened(&mut self.graph, operand, found.width(), node)?);
        }
        operands.extend(self.push_bias(found, operands[0], node)?);
        if let Some(scale) = found.head_scale {
            let scale = self.restore_value(scale)?;
            operands[0] = push_head_scale(&mut self.graph, operands[0], scale, node)?;
        }
        let results = self.graph.push_like(Op::Attention(found.op), operands, node)?;
        let result = node.results[0];
        let shape = &self.old.value(result).ty.shape;
        let [outer, inner @ .., time, width] = &shape[..] else {
            unreachable!("products of attention have a batch")
        };
        let output = push_narrowed(&mut self.graph, results[0], *width, node)?;
        // Of the op: batch, time, the other dims of the batch, width.
        let split = [&[*outer, *time], inner, &[*width]].concat();
        let last = inner.len() + 2;
        let order = [0].into_iter().chain(2..last).chain([1, last]).collect();
        self.values[result.index()] = Some(New::Attended { output, split, order });
        if pin_of(self.old, result, self.options).is_some() {
            self.restore_value(result)?;
        }
        Ok(())
    }

    /// Appends the sum of the summands of these queries' scores; `None` if there are none.
    fn push_bias(
        &mut self,
        found: &FoundAttention,
        queries: ValueId,
        node: &Node,
    ) -> Result<Option<ValueId>, OpError> {
        let dtype = self.graph.value(queries).ty.dtype;
        let mut terms = Vec::new();
        for (term, form) in &found.terms {
            let root = self.restore_value(term.root())?;
            terms.push(term.push_term(&mut self.graph, root, form, node, dtype)?);
        }
        push_sum(&mut self.graph, terms, node)
    }

    /// Returns the new value of an old one, with its name and layout.
    fn restore_value(&mut self, value: ValueId) -> Result<ValueId, OpError> {
        let new = self.values[value.index()].clone();
        match new.expect("operands stand before their readers") {
            New::Made(value) => Ok(value),
            New::Attended { output, split, order } => {
                let like = self.old.producer(value);
                let split = push_reshape(&mut self.graph, output, &split, like)?;
                let made = push_transpose(&mut self.graph, split, &order, like)?;
                self.replace_value(value, made);
                Ok(made)
            }
        }
    }

    fn replace_value(&mut self, old: ValueId, new: ValueId) {
        let (from, to) = (self.old.value(old), &mut self.graph.values[new.index()]);
        if to.name.is_none() {
            to.name.clone_from(&from.name);
        }
        if to.pin.is_none() {
            to.pin.clone_from(&from.pin);
        }
        self.values[old.index()] = Some(New::Made(new));
    }
}
