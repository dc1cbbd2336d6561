//! The reductions of collectives.

use std::fmt;

use graphc_comm::transport::Body;
use graphc_ir::types::DType;
use graphc_kernels::{narrow_to_halves, widen_halves};

use super::element::write_elements;
use crate::rectangles::{
    FoldOp, divide_elements, fold_elements, fold_wide, is_half, scale_elements,
};

/// The op that combines the contributions of the ranks. They are combined in the order of the ranks, element by element,
/// whatever the algorithm and the transport: the result is the same bits always, and on all ranks. Sums and products of
/// 16-bit numbers are kept as `f32` until all ranks have contributed, and rounded once. Integers wrap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReduceOp {
    /// The sum; of truth values: whether any is true.
    Sum,
    /// The product; of truth values: whether all are true.
    Product,
    /// The greatest; a NaN wins.
    Max,
    /// The least; a NaN wins.
    Min,
    /// The sum, divided by the number of ranks (integers: towards zero). Not of truth values.
    Avg,
    /// Bits that are set in all; of integers and truth values.
    And,
    /// Bits that are set in any.
    Or,
    /// Bits that are set in an odd number.
    Xor,
    /// The sum of contributions that are multiplied before. Each rank brings its own factor, for integers a whole number.
    PremulSum(f64),
}

impl ReduceOp {
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Sum => 1,
            Self::Product => 2,
            Self::Max => 3,
            Self::Min => 4,
            Self::Avg => 5,
            Self::And => 6,
            Self::Or => 7,
            Self::Xor => 8,
            Self::PremulSum(_) => 9,
        }
    }

    pub(super) fn name_of(code: u8) -> &'static str {
        let names = ["", "sum", "product", "max", "min", "avg", "and", "or", "xor", "premul_sum"];
        names.get(code as usize).copied().unwrap_or("unknown")
    }

    fn to_fold_op(self) -> FoldOp {
        match self {
            Self::Sum | Self::Avg | Self::PremulSum(_) => FoldOp::Sum,
            Self::Product => FoldOp::Product,
            Self::Max => FoldOp::Max,
            Self::Min => FoldOp::Min,
            Self::And => FoldOp::And,
            Self::Or => FoldOp::Or,
            Self::Xor => FoldOp::Xor,
        }
    }

    /// Returns the reason why elements of this type cannot be reduced so, if they cannot.
    pub(super) fn refusal(self, dtype: DType) -> Option<String> {
        let whole = |factor: f64| factor.fract() == 0.0 && factor.abs() < 9e18;
        match self {
            _ if dtype.is_float8() => {
                Some(format!("{dtype} is not reduced: cast it to a wider type"))
            }
            Self::PremulSum(factor) if !dtype.is_float() && !whole(factor) => {
                Some(format!("{dtype} cannot be multiplied by {factor}: not a whole number"))
            }
            Self::Avg | Self::PremulSum(_) if dtype == DType::Bool => {
                Some(format!("{self} is not defined for truth values"))
            }
            _ if !self.to_fold_op().supports(dtype) => {
                Some(format!("{self} is of bits, and {dtype} is a floating-point number"))
            }
            _ => None,
        }
    }

    /// Prepares a rank's own contribution, before others are combined with it.
    pub(super) fn prepare_own(self, dtype: DType, own: &mut [u8]) {
        if let Self::PremulSum(factor) = self {
            scale_elements(dtype, factor, own);
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::name_of(self.code()))
    }
}

/// One rank's place in a reduction: contributions come in the order of the ranks, this rank's own is in place.
pub(super) struct RankReduction {
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
    pub(super) ranks: usize,
    pub(super) me: usize,
    /// The own contribution, put aside until its turn.
    pub(super) own: Vec<u8>,
    /// The combined contributions so far, of 16-bit numbers.
    pub(super) wide: Vec<f32>,
}

impl RankReduction {
    /// Whether contributions are kept as `f32`: then the own one stays in place until all have contributed.
    fn keeps_wide(&self) -> bool {
        is_half(self.dtype) && matches!(self.op.to_fold_op(), FoldOp::Sum | FoldOp::Product)
    }

    /// Takes a contribution where they are kept as `f32`.
    fn take_wide(&mut self, from: &[u8]) {
        if self.wide.is_empty() {
            self.wide.resize(from.len() / 2, 0.0);
            return widen_halves(self.dtype, from, &mut self.wide);
        }
        fold_wide(self.dtype, self.op.to_fold_op(), &mut self.wide, from);
    }

    /// Takes the contribution of `peer` to `into`, which holds the own one when rank 0's comes. `own_turn` is called at
    /// this rank's place.
    pub(super) fn take_contribution(&mut self, peer: usize, into: &mut [u8], from: &[u8]) {
        let (dtype, op) = (self.dtype, self.op.to_fold_op());
        if self.keeps_wide() {
            return self.take_wide(from);
        }
        if peer == 0 && self.me > 1 {
            self.own.clear();
            self.own.extend_from_slice(into);
            return write_elements(dtype, into, Body::Here(from), from.len());
        }
        fold_elements(dtype, op, peer == 0, into, from);
    }

    /// Combines the own contribution, at its turn.
    pub(super) fn own_turn(&mut self, into: &mut [u8]) {
        if self.keeps_wide() {
            return self.take_wide(into);
        }
        if self.me > 1 {
            fold_elements(self.dtype, self.op.to_fold_op(), false, into, &self.own);
        }
    }

    /// Finishes the reduction, after all have contributed.
    pub(super) fn finish(&mut self, into: &mut [u8]) {
        if self.keeps_wide() {
            if self.op == ReduceOp::Avg {
                let ranks = self.ranks as f32;
                self.wide.iter_mut().for_each(|value| *value /= ranks);
            }
            narrow_to_halves(self.dtype, &self.wide, into);
            return self.wide.clear();
        }
        if self.op == ReduceOp::Avg {
            divide_elements(self.dtype, self.ranks as u32, into);
        }
    }
}
