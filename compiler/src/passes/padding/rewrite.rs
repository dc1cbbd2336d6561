//! Rewrites the graph with padded weights and logits, and with what follows from these.

use std::collections::BTreeMap;

use graphc_ir::graph::{Graph, Node, Output};
use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{CrossEntropy, LabelRank, Pad, Pick, Reshape, Slice};
use graphc_plan::CompileOptions;

use super::{LogitProduct, PADDED, Role, reader_role};
use crate::passes::pins::pin_of;

/// Pads these products, which are given by their results.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(super) fn pad_products(
    old: &Graph,
    products: &BTreeMap<ValueId, LogitProduct>,
    options: &CompileOptions,
) -> Result<Graph, OpError> {
    let mut padder = Padder {
        old,
        options,
        new: old.clone_empty(),
        values: vec![None; old.values.len()],
        padded: BTreeMap::new(),
        weights: BTreeMap::new(),
    };
    for node in &old.nodes {
        match products.get(&node.results[0]) {
            Some(product) => padder.pad_product(node, product)?,
            None => padder.visit_node(node)?,
        }
    }
    for output in &old.outputs {
        let value = padder.strip_padding(output.value)?;
        padder.new.outputs.push(Output { name: output.name.clone(), value });
    }
    Ok(padder.new)
}

struct Padder<'a> {
    old: &'a Graph,
    options: &'a CompileOptions,
    new: Graph,
    /// The new value of each old one without padding, if it is there.
    values: Vec<Option<ValueId>>,
    /// The padded value of each old one that has one, and how many of its last dim are not padding.
    padded: BTreeMap<ValueId, (ValueId, usize)>,
    /// The padded value of each weight, by its dim that is padded and the padded extent.
    weights: BTreeMap<(ValueId, usize, usize), ValueId>,
}

impl Padder<'_> {
    fn pad_product(&mut self, node: &Node, product: &LogitProduct) -> Result<(), OpError> {
        let x = self.strip_padding(node.operands[0])?;
        let weight = self.pad_weight(node, node.operands[1], product.dim, product.padded)?;
        self.push_padded(node, node.op.clone(), vec![x, weight], product.sizes[1])
    }

    /// Pads a weight with zeros behind a dim. Views of it are views of the padded one, so that products still see how it lies.
    fn pad_weight(
        &mut self,
        product: &Node,
        weight: ValueId,
        dim: usize,
        extent: usize,
    ) -> Result<ValueId, OpError> {
        if let Some(&known) = self.weights.get(&(weight, dim, extent)) {
            return Ok(known);
        }
        let producer = self.old.producer(weight);
        let padded = match &producer.op {
            Op::Transpose(op) => {
                let base =
                    self.pad_weight(product, producer.operands[0], op.permutation[dim], extent)?;
                self.push_value(producer.op.clone(), vec![base], product)?
            }
            _ => {
                let bare = self.strip_padding(weight)?;
                let pad = Pad::to_extent(&self.new.value(bare).ty.shape, dim, extent);
                let padded = self.push_value(Op::Pad(pad), vec![bare], product)?;
                self.name_padded(variable_of(self.old, weight), padded);
                padded
            }
        };
        self.weights.insert((weight, dim, extent), padded);
        Ok(padded)
    }

    /// Copies a node. It is padded if it follows from padded logits, or gets the number of classes if it can be told.
    fn visit_node(&mut self, node: &Node) -> Result<(), OpError> {
        let first = node.operands.first().and_then(|first| self.padded.get(first));
        let Some(&(logits, classes)) = first else { return self.copy_node(node, node.op.clone()) };
        match reader_role(self.old, node.operands[0], &node.op, &node.operands) {
            Role::ReadsAll => self.copy_node(node, node.op.clone()),
            Role::ReadsClasses => {
                let mut operands = self.strip_paddings(&node.operands[1..])?;
                operands.insert(0, logits);
                self.copy_with_operands(node, of_classes(&node.op, classes), operands)
            }
            Role::Follows => {
                let extent = self.new.value(logits).ty.shape.last().copied().unwrap_or(0);
                let mut operands = vec![logits];
                for &vector in &node.operands[1..] {
                    operands.push(self.pad_weight(node, vector, 0, extent)?);
                }
                self.push_padded(node, of_extent(&node.op, extent), operands, classes)
            }
        }
    }

    fn copy_node(&mut self, node: &Node, op: Op) -> Result<(), OpError> {
        let operands = self.strip_paddings(&node.operands)?;
        self.copy_with_operands(node, op, operands)
    }

    fn copy_with_operands(
        &mut self,
        node: &Node,
        op: Op,
        operands: Vec<ValueId>,
    ) -> Result<(), OpError> {
        let results = self.new.push_like(op, operands, node)?;
        for (&old, new) in node.results.iter().zip(results) {
            self.values[old.index()] = Some(new);
            let (from, to) = (self.old.value(old), &mut self.new.values[new.index()]);
            to.name.clone_from(&from.name);
            to.pin.clone_from(&from.pin);
        }
        Ok(())
    }

    fn push_padded(
        &mut self,
        node: &Node,
        op: Op,
        operands: Vec<ValueId>,
        classes: usize,
    ) -> Result<(), OpError> {
        let (old, padded) = (node.results[0], self.push_value(op, operands, node)?);
        self.padded.insert(old, (padded, classes));
        self.name_padded(old, padded);
        // A layout that is asked for is one of the same dims.
        self.new.values[padded.index()].pin = pin_of(self.old, old, self.options);
        Ok(())
    }

    /// Names a padded value after the one that it replaces.
    fn name_padded(&mut self, old: ValueId, padded: ValueId) {
        let name = self.old.value(old).name.as_ref().map(|name| format!("{name}{PADDED}"));
        let is_free =
            |name: &String| self.old.find(name).is_none() && self.new.find(name).is_none();
        self.new.values[padded.index()].name = name.filter(is_free);
    }

    /// Returns the new value of an old one without padding.
    fn strip_padding(&mut self, old: ValueId) -> Result<ValueId, OpError> {
        if let Some(known) = self.values[old.index()] {
            return Ok(known);
        }
        let (padded, classes) = self.padded[&old];
        let ends = self.old.value(old).ty.shape.clone();
        debug_assert_eq!(ends.last(), Some(&classes), "what is padded is cut to what it was");
        let slice = Slice { starts: vec![0; ends.len()], steps: vec![1; ends.len()], ends };
        let bare = self.push_value(Op::Slice(slice), vec![padded], self.old.producer(old))?;
        // A pin is that of the padded value.
        if pin_of(self.old, old, self.options).is_none() {
            self.new.values[bare.index()].name.clone_from(&self.old.value(old).name);
        }
        self.values[old.index()] = Some(bare);
        Ok(bare)
    }

    fn strip_paddings(&mut self, values: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        values.iter().map(|&value| self.strip_padding(value)).collect()
    }

    /// Appends a node of one result where another one stands.
    fn push_value(
        &mut self,
        op: Op,
        operands: Vec<ValueId>,
        like: &Node,
    ) -> Result<ValueId, OpError> {
        Ok(self.new.push_like(op, operands, like)?[0])
    }
}

/// Returns the variable of which a weight is a cast, or the weight itself.
fn variable_of(graph: &Graph, weight: ValueId) -> ValueId {
    let node = graph.producer(weight);
    if matches!(node.op, Op::Cast(_)) { variable_of(graph, node.operands[0]) } else { weight }
}

/// Returns an op that is told how many scores are those of classes.
fn of_classes(op: &Op, count: usize) -> Op {
    let classes = |known: Option<usize>| Some(known.unwrap_or(count));
    match op {
        Op::CrossEntropy(op) => {
            Op::CrossEntropy(CrossEntropy { classes: classes(op.classes), ..*op })
        }
        Op::Pick(op) => Op::Pick(Pick { classes: classes(op.classes) }),
        Op::LabelRank(op) => Op::LabelRank(LabelRank { classes: classes(op.classes) }),
        other => other.clone(),
    }
}

/// Returns an op that follows from logits that are padded to an extent.
fn of_extent(op: &Op, extent: usize) -> Op {
    match op {
        Op::Reshape(reshape) => {
            let mut shape = reshape.shape.clone();
            shape.pop();
            Op::Reshape(Reshape { shape: [shape, vec![extent]].concat() })
        }
        other => other.clone(),
    }
}
