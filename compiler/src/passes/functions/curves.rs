//! Functions of single elements, known by their values at some points.
//!
//! From a node all ops on elements above it are followed, the last first, until one value is left of which all of them are computed:
//! numbers aside, the node is then a function of that value alone. What the ops make of some points is compared with what the known
//! functions are there, so neither the order of factors nor the way in which a power is written matters.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::graph::Node;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::Op;
use graphc_ir::ops::{Binary, BinaryFunction, Unary, UnaryFunction};
use graphc_ir::types::DType;

use super::{FoundFunction, FunctionFinder};

/// The functions that are looked for.
const KNOWN: [(&str, UnaryFunction); 3] = [
    ("gelu", UnaryFunction::Gelu),
    ("gelu_tanh", UnaryFunction::GeluTanh),
    ("silu", UnaryFunction::Silu),
];

/// The most ops that may be parts of one function.
const MOST_PARTS: usize = 16;

/// The points at which functions are compared: on steep and flat parts of each, and far outside.
const POINTS: [f64; 19] = [
    -80.0, -11.0, -5.0, -3.1, -2.2, -1.5, -0.9, -0.45, -0.1, 0.0, 0.03, 0.3, 0.75, 1.2, 1.8, 2.6,
    4.3, 9.0, 70.0,
];

/// The tolerance for the rounding of numbers to f32, as a multiple of the size of a point, or of 1 for smaller points.
const NEAR: f64 = 2e-7;

impl FunctionFinder<'_> {
    /// Returns the function of one value's elements that ends in a node.
    pub(super) fn find_curve(&mut self, last: NodeId) -> Option<FoundFunction> {
        let graph = self.graph;
        let node = graph.node(last);
        if !may_end(&node.op) {
            return None;
        }
        let ty = &graph.value(node.results[0]).ty;
        let (mut inside, mut open) = (BTreeSet::new(), BTreeSet::from([node.results[0]]));
        let mut bends = false;
        while inside.len() < MOST_PARTS {
            // Values are numbered in the order of the graph, so all readers of the greatest have been seen.
            let value = open.pop_last()?;
            let id = graph.value(value).producer;
            let part = graph.node(id);
            bends |= is_bent(&part.op);
            inside.insert(id);
            for operand in self.computed_operands(part)? {
                let of = &graph.value(operand).ty;
                if of.shape != ty.shape || ![DType::F32, ty.dtype].contains(&of.dtype) {
                    return None;
                }
                open.insert(operand);
            }
            let Some((&root, true)) = open.first().map(|root| (root, open.len() == 1 && bends))
            else {
                continue;
            };
            if graph.value(root).ty.dtype == ty.dtype
                && let Some((name, function)) = self.find_known_function(root, last, &inside)
            {
                inside.remove(&last);
                let op = Op::Unary(Unary { function });
                return Some(FoundFunction { name, op, operands: vec![root], inside });
            }
        }
        None
    }

    /// Returns the operands of a part that are no numbers; `None` if it is no elementwise op.
    fn computed_operands(&mut self, part: &Node) -> Option<Vec<ValueId>> {
        let is_part = match &part.op {
            Op::Unary(_) | Op::Cast(_) => true,
            Op::Binary(Binary { function }) => is_arithmetic(*function),
            _ => false,
        };
        let mut computed = part.operands.clone();
        computed.retain(|&operand| self.constants.number(operand).is_none());
        is_part.then_some(computed)
    }

    /// Returns the known function that some nodes compute from a value.
    fn find_known_function(
        &mut self,
        root: ValueId,
        last: NodeId,
        inside: &BTreeSet<NodeId>,
    ) -> Option<(&'static str, UnaryFunction)> {
        let mut values = BTreeMap::from([(root, POINTS.to_vec())]);
        for &id in inside {
            let node = self.graph.node(id);
            let results = self.at_points(node, &values)?;
            values.insert(node.results[0], results);
        }
        let found = values.get(&self.graph.node(last).results[0])?;
        let is = |function: UnaryFunction| {
            let near =
                |(&x, &y): (&f64, &f64)| (function.apply(x) - y).abs() <= NEAR * x.abs().max(1.0);
            POINTS.iter().zip(found).all(near)
        };
        KNOWN.into_iter().find(|&(_, function)| is(function))
    }

    /// Computes an elementwise op at each point.
    fn at_points(&mut self, node: &Node, values: &BTreeMap<ValueId, Vec<f64>>) -> Option<Vec<f64>> {
        let mut operand = |place: usize| -> Option<Vec<f64>> {
            let operand = *node.operands.get(place)?;
            let known = values.get(&operand).cloned();
            known.or_else(|| Some(vec![self.constants.number(operand)?; POINTS.len()]))
        };
        let a = operand(0)?;
        Some(match &node.op {
            Op::Unary(Unary { function }) => a.into_iter().map(|x| function.apply(x)).collect(),
            Op::Binary(Binary { function }) => {
                let pairs = a.into_iter().zip(operand(1)?);
                pairs.map(|(a, b)| function.apply(DType::F32, a, b)).collect()
            }
            Op::Cast(_) => a,
            _ => return None,
        })
    }
}

/// Whether one of the functions may end in an op.
fn may_end(op: &Op) -> bool {
    matches!(
        op,
        Op::Binary(Binary { function: BinaryFunction::Mul | BinaryFunction::Div })
            | Op::Unary(Unary { function: UnaryFunction::Scale(_) })
            | Op::Cast(_)
    )
}

/// Whether an op is one that each of the functions has in its parts.
fn is_bent(op: &Op) -> bool {
    use UnaryFunction::{Erf, Exp, Sigmoid, Tanh};
    matches!(op, Op::Unary(Unary { function: Tanh | Erf | Sigmoid | Exp }))
}

fn is_arithmetic(function: BinaryFunction) -> bool {
    use BinaryFunction::{Add, Div, Mul, Pow, Sub};
    matches!(function, Add | Sub | Mul | Div | Pow)
}
