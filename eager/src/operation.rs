//! The operations of eager tensors.

use std::fmt;

use graphc_ir::builder::Tensor;
use graphc_ir::mesh::Placement;
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::DType;

/// An operation on one or two operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EagerOperation {
    Add,
    Sub,
    Mul,
    Div,
    MatMul,
    Neg,
    Relu,
    Exp,
    Sum(Axes),
    Mean(Axes),
    Transpose(Vec<usize>),
    Reshape(Vec<usize>),
    Cast(DType),
    ToGlobal(Placement, NdSbp),
}

/// The dims over which a reduction goes, and whether they stay with extent 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Axes {
    pub(crate) axes: Vec<usize>,
    pub(crate) keep_dims: bool,
}

impl EagerOperation {
    /// Appends the operation's node to the graph of the operands.
    pub(crate) fn append_node(&self, operands: &[Tensor]) -> Tensor {
        let x = &operands[0];
        match self {
            Self::Add => x.add(&operands[1]),
            Self::Sub => x.sub(&operands[1]),
            Self::Mul => x.mul(&operands[1]),
            Self::Div => x.div(&operands[1]),
            Self::MatMul => x.matmul(&operands[1]),
            Self::Neg => x.neg(),
            Self::Relu => x.relu(),
            Self::Exp => x.exp(),
            Self::Sum(Axes { axes, keep_dims }) => x.sum(axes, *keep_dims),
            Self::Mean(Axes { axes, keep_dims }) => x.mean(axes, *keep_dims),
            Self::Transpose(permutation) => x.transpose(permutation),
            Self::Reshape(shape) => x.reshape(shape),
            Self::Cast(dtype) => x.cast(*dtype),
            Self::ToGlobal(placement, sbp) => x.to_global(placement, sbp.clone()),
        }
    }
}

impl fmt::Display for EagerOperation {
    /// Writes text such as `sum [0], keeping dims`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add => f.write_str("add"),
            Self::Sub => f.write_str("sub"),
            Self::Mul => f.write_str("mul"),
            Self::Div => f.write_str("div"),
            Self::MatMul => f.write_str("matmul"),
            Self::Neg => f.write_str("neg"),
            Self::Relu => f.write_str("relu"),
            Self::Exp => f.write_str("exp"),
            Self::Sum(axes) => write!(f, "sum {axes}"),
            Self::Mean(axes) => write!(f, "mean {axes}"),
            Self::Transpose(permutation) => write!(f, "transpose {permutation:?}"),
            Self::Reshape(shape) => write!(f, "reshape {shape:?}"),
            Self::Cast(dtype) => write!(f, "cast {dtype}"),
            Self::ToGlobal(placement, sbp) => write!(f, "to_global {sbp} on {placement}"),
        }
    }
}

impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { axes, keep_dims } = self;
        write!(f, "{axes:?}{}", if *keep_dims { ", keeping dims" } else { "" })
    }
}
