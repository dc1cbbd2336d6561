//! The gradient of the matrix product: two matrix products.

use super::{Differentiable, GradientNode, gradient_of};
use crate::builder::Tensor;
use crate::ops::MatMul;

impl Differentiable for MatMul {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        // Nothing is learned through numbers of 8 bits.
        let [a, b] = node.operands else { return vec![None; node.operands.len()] };
        let Some(g) = &node.gradients[0] else { return vec![None, None] };
        let of_a = gradient_of(a, || self.gradient_a(b, g));
        let of_b = gradient_of(b, || match self.flatten_batch(a, b, g) {
            Some((a, g)) => self.gradient_b(&a, &g),
            None => self.gradient_b(a, g),
        });
        vec![of_a, of_b]
    }
}

impl MatMul {
    /// Computes the gradient of the first operand: g op(b)^T, or its transpose.
    fn gradient_a(&self, b: &Tensor, g: &Tensor) -> Tensor {
        if self.transpose_a {
            b.matmul_transposed(g, self.transpose_b, true)
        } else {
            g.matmul_transposed(b, false, !self.transpose_b)
        }
    }

    /// Computes the gradient of the second operand: op(a)^T g, or its transpose.
    fn gradient_b(&self, a: &Tensor, g: &Tensor) -> Tensor {
        if self.transpose_b {
            g.matmul_transposed(a, true, self.transpose_a)
        } else {
            a.matmul_transposed(g, !self.transpose_a, false)
        }
    }

    /// Flattens a and g to one matrix each if b is a weight without leading dims, which meets all rows of a batch: its gradient is one product over
    /// all of them, not a product for each batch element that is summed afterwards.
    fn flatten_batch(&self, a: &Tensor, b: &Tensor, g: &Tensor) -> Option<(Tensor, Tensor)> {
        let (rows, columns) = (a.shape(), g.shape());
        if b.shape().len() > 2 || rows.len() <= 2 || self.transpose_a {
            return None;
        }
        let flat = |tensor: &Tensor, shape: &[usize]| {
            let (leading, last) = shape.split_at(shape.len() - 1);
            tensor.reshape(&[leading.iter().product(), last[0]])
        };
        Some((flat(a, &rows), flat(g, &columns)))
    }
}
