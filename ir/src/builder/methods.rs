//! One method of [`Tensor`] for each op.

use super::Tensor;
use crate::op::Op;
use crate::ops::{MatMul, Unary, UnaryFunction};

impl Tensor {
    /// `[.., i, k] x [.., k, j] -> [.., i, j]`; leading dims broadcast.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Tensor {
        let op = Op::MatMul(MatMul { transpose_a: false, transpose_b: false });
        self.builder.apply(op, &[self, other])
    }

    /// An elementwise function.
    #[track_caller]
    pub fn unary(&self, function: UnaryFunction) -> Tensor {
        self.builder.apply(Op::Unary(Unary { function }), &[self])
    }

    /// max(x, 0)
    #[track_caller]
    pub fn relu(&self) -> Tensor {
        self.unary(UnaryFunction::Relu)
    }
}
