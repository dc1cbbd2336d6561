//! Numbers of 8 bits and their products.

use super::Tensor;
use crate::op::Op;
use crate::ops::{BinaryFunction, MatMul};

impl Tensor {
    /// Returns the numbers of f8e4m3 nearest to these times the power of two that brings `greatest`, the greatest of their sizes, within that type
    /// ([`crate::float8::Float8Format::scale_for`]). Nothing is learned through it.
    #[track_caller]
    pub fn round_float8(&self, greatest: &Tensor) -> Tensor {
        self.binary(BinaryFunction::RoundFloat8, greatest)
    }

    /// Returns the numbers of f8e5m2, as [`Tensor::round_float8`] does those of f8e4m3.
    #[track_caller]
    pub fn round_float8_e5m2(&self, greatest: &Tensor) -> Tensor {
        self.binary(BinaryFunction::RoundFloat8E5m2, greatest)
    }

    /// The matrix product of numbers of 8 bits that were rounded by these greatest sizes of rows and of columns ([`MatMul`]).
    #[track_caller]
    pub fn matmul_float8(&self, other: &Tensor, sizes: [&Tensor; 2], transpose_b: bool) -> Tensor {
        let op = Op::MatMul(MatMul { transpose_a: false, transpose_b });
        self.builder.apply(op, &[self, other, sizes[0], sizes[1]])
    }
}
