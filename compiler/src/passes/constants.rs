//! Finds the values of a graph that depend on no input and no weight, and computes their elements.

use std::collections::BTreeMap;

use graphc_ir::array::Array;
use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::ValueId;
use graphc_ir::op::{EvalContext, Op, Operand, Region};
use graphc_ir::ops::Init;
use graphc_ir::types::TensorType;

/// The most elements of a value that are computed.
const MOST_ELEMENTS: usize = 1 << 24;

/// The most elements that are computed in all for one value.
const MOST_WORK: usize = 1 << 27;

/// The constants of a graph.
pub(super) struct Constants<'a> {
    graph: &'a Graph,
    /// Whether each value is a constant.
    constant: Vec<bool>,
    numbers: BTreeMap<ValueId, Option<f64>>,
}

impl<'a> Constants<'a> {
    /// Finds the constants of a graph.
    pub(super) fn new(graph: &'a Graph) -> Self {
        let mut constant = vec![false; graph.values.len()];
        for node in &graph.nodes {
            let known = makes_constants(node)
                && node.operands.iter().all(|operand| constant[operand.index()]);
            node.results.iter().for_each(|result| constant[result.index()] = known);
        }
        Self { graph, constant, numbers: BTreeMap::new() }
    }

    /// Whether a value is a constant.
    pub(super) fn contains(&self, value: ValueId) -> bool {
        self.constant[value.index()]
    }

    /// Returns the number that a value is everywhere, if it is one.
    pub(super) fn number(&mut self, value: ValueId) -> Option<f64> {
        if !self.contains(value) {
            return None;
        }
        if let Some(&known) = self.numbers.get(&value) {
            return known;
        }
        let array = self.elements(value);
        let number = array.and_then(|array| {
            let first = *array.data.first()?;
            array.data.iter().all(|&x| x == first).then_some(first)
        });
        self.numbers.insert(value, number);
        number
    }

    /// Returns the elements of a constant, without the dims along which it is expanded last. `None` if they are too many to be computed, or cannot
    /// be.
    pub(super) fn elements(&self, value: ValueId) -> Option<Array> {
        let mut value = value;
        while let Op::Expand(_) = self.graph.producer(value).op {
            value = self.graph.producer(value).operands[0];
        }
        let wanted = self.ancestors(value)?;
        let mut known: BTreeMap<ValueId, Array> = BTreeMap::new();
        for node in wanted.into_iter().map(|node| &self.graph.nodes[node]) {
            let results = compute_results(self.graph, node, &known)?;
            known.extend(node.results.iter().copied().zip(results));
        }
        known.remove(&value)
    }

    /// Returns the nodes that compute a constant, in order; `None` if that is too much work.
    fn ancestors(&self, value: ValueId) -> Option<Vec<usize>> {
        let (mut found, mut open) = (std::collections::BTreeSet::new(), vec![value]);
        let mut work = 0usize;
        while let Some(value) = open.pop() {
            let producer = self.graph.value(value).producer;
            if !self.contains(value) || !found.insert(producer.index()) {
                continue;
            }
            let node = self.graph.node(producer);
            for &result in &node.results {
                let elements = self.graph.value(result).ty.elements();
                work = work.saturating_add(elements);
                if elements > MOST_ELEMENTS || work > MOST_WORK {
                    return None;
                }
            }
            open.extend(&node.operands);
        }
        Some(found.into_iter().collect())
    }
}

/// Whether a node gives constants if its operands are constants.
fn makes_constants(node: &Node) -> bool {
    match &node.op {
        Op::Variable(variable) => !variable.trainable && matches!(variable.init, Init::Table(_)),
        Op::Random(_) | Op::Dropout(_) => false,
        op => op.operation().is_function() && !op.is_given(),
    }
}

/// Computes the results of a node. Elementwise ops take operands of one shape, which is many times faster than to look each element up.
fn compute_results(
    graph: &Graph,
    node: &Node,
    known: &BTreeMap<ValueId, Array>,
) -> Option<Vec<Array>> {
    let shape = &graph.value(*node.results.first()?).ty.shape;
    let repeats = node.op.operation().is_elementwise();
    if let Op::Expand(_) = node.op {
        return Some(vec![repeat_array(known.get(&node.operands[0])?, shape)]);
    }
    let mut operands: Vec<(Array, Region)> = Vec::new();
    for operand in &node.operands {
        let (array, dtype) = (known.get(operand)?, graph.value(*operand).ty.dtype);
        let array = if repeats { repeat_array(array, shape) } else { array.clone() };
        let region = Region::whole(&TensorType::new(dtype, &array.shape[..]));
        operands.push((array, region));
    }
    let operands: Vec<Operand<'_>> =
        operands.iter().map(|(array, region)| Operand { array, region }).collect();
    let results: Vec<Region> =
        node.results.iter().map(|&result| Region::whole(&graph.value(result).ty)).collect();
    node.op.operation().evaluate(&operands, &results, &EvalContext::default()).ok()
}

/// Repeats an array to a shape along dims of extent 1, and along leading dims that it lacks.
pub(super) fn repeat_array(array: &Array, shape: &[usize]) -> Array {
    if array.shape == shape {
        return array.clone();
    }
    let missing = shape.len() - array.shape.len();
    let extents = [&vec![1; missing][..], &array.shape[..]].concat();
    let mut data = array.data.clone();
    // From the last dim to the first: all behind it is repeated already.
    let mut inner = 1;
    for (&have, &want) in extents.iter().zip(shape).rev() {
        if have == 1 && want != 1 {
            data = data.chunks(inner.max(1)).flat_map(|part| part.repeat(want)).collect();
        }
        inner *= want;
    }
    Array::new(shape, data)
}
