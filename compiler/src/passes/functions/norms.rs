//! Normalization over the last dim, without scale and shift.
//!
//! A place is `x / sqrt(mean(x x) + epsilon)`, as a quotient or as a product with the inverse of the root. Where `x` is what is left of
//! another value without its mean it is layer normalization of that value, else root-mean-square normalization of `x`.

use std::collections::BTreeSet;

use graphc_ir::graph::Node;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::Op;
use graphc_ir::ops::{
    Binary, BinaryFunction, Normalize, Reduce, ReduceFunction, Unary, UnaryFunction,
};
use graphc_ir::scalar::Scalar;

use super::{FoundFunction, FunctionFinder};

impl<'a> FunctionFinder<'a> {
    /// The normalization that ends in a node.
    pub(super) fn find_norm(&mut self, last: NodeId) -> Option<FoundFunction> {
        let node = self.graph.node(last);
        let &[a, b] = &node.operands[..] else { return None };
        let mut found = match binary_function(node)? {
            BinaryFunction::Mul => self
                .match_normalization(a, b, Self::inverse_root)
                .or_else(|| self.match_normalization(b, a, Self::inverse_root)),
            BinaryFunction::Div => self.match_normalization(a, b, Self::match_root),
            _ => None,
        }?;
        found.inside.remove(&last);
        // A constant among the parts may have given the result more dims.
        let ty = |value: ValueId| &self.graph.value(value).ty;
        (ty(found.operands[0]) == ty(node.results[0])).then_some(found)
    }

    /// A value that is multiplied by what a root of its mean square gives.
    fn match_normalization(
        &mut self,
        x: ValueId,
        by: ValueId,
        root: fn(&mut Self, ValueId, &mut BTreeSet<NodeId>) -> Option<ValueId>,
    ) -> Option<FoundFunction> {
        let mut inside = BTreeSet::new();
        let variance = root(self, by, &mut inside)?;
        let (mean, epsilon) = self.without_epsilon(variance, &mut inside)?;
        let square = self.mean_of(mean, &mut inside)?;
        let base = self.match_square(square, &mut inside)?;
        let mut centered = BTreeSet::new();
        let whole = self.without_mean(base, &mut centered);
        let (name, center, operand) = match whole {
            Some(whole) if base == x || self.without_mean(x, &mut centered) == Some(whole) => {
                ("layer_norm", true, whole)
            }
            _ if base == x => ("rms_norm", false, x),
            _ => return None,
        };
        if center {
            inside.extend(centered);
        }
        let op = Op::Normalize(Normalize { center, epsilon: Scalar(epsilon) });
        Some(FoundFunction { name, op, operands: vec![operand], inside })
    }

    /// The value whose root an op takes.
    fn match_root(&mut self, value: ValueId, inside: &mut BTreeSet<NodeId>) -> Option<ValueId> {
        let node = self.take_producer(value, inside);
        let is_root = match &node.op {
            Op::Unary(Unary { function: UnaryFunction::Sqrt }) => true,
            Op::Unary(Unary { function: UnaryFunction::PowScalar(power) }) => power.0 == 0.5,
            _ => false,
        };
        is_root.then(|| node.operands[0])
    }

    /// The value of which something is 1 over the root.
    fn inverse_root(&mut self, value: ValueId, inside: &mut BTreeSet<NodeId>) -> Option<ValueId> {
        let node = self.take_producer(value, inside);
        match &node.op {
            Op::Unary(Unary { function: UnaryFunction::Rsqrt }) => Some(node.operands[0]),
            Op::Unary(Unary { function: UnaryFunction::PowScalar(power) }) if power.0 == -0.5 => {
                Some(node.operands[0])
            }
            Op::Unary(Unary {
                function: UnaryFunction::Reciprocal | UnaryFunction::PowScalar(Scalar(-1.0)),
            }) => self.match_root(node.operands[0], inside),
            Op::Binary(Binary { function: BinaryFunction::Div })
                if self.constants.number(node.operands[0]) == Some(1.0) =>
            {
                self.match_root(node.operands[1], inside)
            }
            _ => None,
        }
    }

    /// A value without the number that is added to it, and the number.
    fn without_epsilon(
        &mut self,
        value: ValueId,
        inside: &mut BTreeSet<NodeId>,
    ) -> Option<(ValueId, f64)> {
        let node = self.take_producer(value, inside);
        let (mean, epsilon) = match &node.op {
            Op::Unary(Unary { function: UnaryFunction::Offset(by) }) => (node.operands[0], by.0),
            Op::Binary(Binary { function: BinaryFunction::Add }) => {
                let &[a, b] = &node.operands[..] else { return None };
                match self.constants.number(b) {
                    Some(number) => (a, number),
                    None => (b, self.constants.number(a)?),
                }
            }
            _ => return None,
        };
        (epsilon.is_finite() && epsilon >= 0.0).then_some((mean, epsilon))
    }

    /// The value of which another is the mean over the last dim, which stays with extent 1.
    fn mean_of(&mut self, value: ValueId, inside: &mut BTreeSet<NodeId>) -> Option<ValueId> {
        let node = self.take_producer(value, inside);
        let over_last = |node: &Node, wanted: ReduceFunction| match &node.op {
            Op::Reduce(Reduce { function, axes, keep_dims: true }) => {
                let shape = &self.graph.value(node.operands[0]).ty.shape;
                (*function == wanted && !shape.is_empty() && axes[..] == [shape.len() - 1])
                    .then(|| (node.operands[0], shape[shape.len() - 1]))
            }
            _ => None,
        };
        if let Some((of, _)) = over_last(node, ReduceFunction::Mean) {
            return Some(of);
        }
        let Op::Unary(Unary { function: UnaryFunction::Scale(factor) }) = &node.op else {
            return None;
        };
        let sum = self.graph.producer(node.operands[0]);
        let (of, extent) = over_last(sum, ReduceFunction::Sum)?;
        inside.insert(self.graph.value(node.operands[0]).producer);
        ((factor.0 * extent as f64 - 1.0).abs() < 1e-7).then_some(of)
    }

    /// The value of which another is the square.
    fn match_square(&mut self, value: ValueId, inside: &mut BTreeSet<NodeId>) -> Option<ValueId> {
        let node = self.take_producer(value, inside);
        match &node.op {
            Op::Unary(Unary { function: UnaryFunction::PowScalar(power) }) if power.0 == 2.0 => {
                Some(node.operands[0])
            }
            Op::Binary(Binary { function }) => {
                let &[a, b] = &node.operands[..] else { return None };
                let is_square = match function {
                    BinaryFunction::Mul => a == b,
                    BinaryFunction::Pow => self.constants.number(b) == Some(2.0),
                    _ => false,
                };
                is_square.then_some(a)
            }
            _ => None,
        }
    }

    /// The value of which another is what is left without its mean.
    fn without_mean(&mut self, value: ValueId, inside: &mut BTreeSet<NodeId>) -> Option<ValueId> {
        let mut parts = BTreeSet::new();
        let node = self.take_producer(value, &mut parts);
        let &[whole, mean] = &node.operands[..] else { return None };
        let is_left = binary_function(node) == Some(BinaryFunction::Sub)
            && self.mean_of(mean, &mut parts) == Some(whole);
        if is_left {
            inside.extend(parts);
        }
        is_left.then_some(whole)
    }

    /// The node that makes a value, as one of those inside.
    fn take_producer(&self, value: ValueId, inside: &mut BTreeSet<NodeId>) -> &'a Node {
        let graph = self.graph;
        let id = graph.value(value).producer;
        inside.insert(id);
        graph.node(id)
    }
}

fn binary_function(node: &Node) -> Option<BinaryFunction> {
    match &node.op {
        Op::Binary(Binary { function }) => Some(*function),
        _ => None,
    }
}
