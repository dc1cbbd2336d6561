//! The reductions of collectives.

use std::fmt;

use graphc_ir::types::DType;

use super::element::put;
use crate::rectangles::{Fold, divide, fold, scale};
use crate::transport::Body;

/// How the contributions of the ranks become one. They are combined in the order of the ranks, element by element, each
/// step rounded to the element type, whatever the algorithm and the transport: the result is the same bits always, and on
/// all ranks. Integers wrap.
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

    fn fold(self) -> Fold {
        match self {
            Self::Sum | Self::Avg | Self::PremulSum(_) => Fold::Sum,
            Self::Product => Fold::Product,
            Self::Max => Fold::Max,
            Self::Min => Fold::Min,
            Self::And => Fold::And,
            Self::Or => Fold::Or,
            Self::Xor => Fold::Xor,
        }
    }

    /// Why elements of this type cannot be reduced so, if they cannot.
    pub(super) fn refusal(self, dtype: DType) -> Option<String> {
        let whole = |factor: f64| factor.fract() == 0.0 && factor.abs() < 9e18;
        match self {
            Self::PremulSum(factor) if !dtype.is_float() && !whole(factor) => {
                Some(format!("{dtype} cannot be multiplied by {factor}: not a whole number"))
            }
            Self::Avg | Self::PremulSum(_) if dtype == DType::Bool => {
                Some(format!("{self} is not defined for truth values"))
            }
            _ if !self.fold().fits(dtype) => {
                Some(format!("{self} is of bits, and {dtype} is a floating-point number"))
            }
            _ => None,
        }
    }

    /// To be applied to a rank's own contribution first.
    pub(super) fn prepare(self, dtype: DType, own: &mut [u8]) {
        if let Self::PremulSum(factor) = self {
            scale(dtype, factor, own);
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::name_of(self.code()))
    }
}

/// One rank's place in a reduction: contributions come in the order of the ranks, this rank's own is in place.
pub(super) struct Reduction {
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
    pub(super) ranks: usize,
    pub(super) me: usize,
    /// The own contribution, put aside until its turn.
    pub(super) own: Vec<u8>,
}

impl Reduction {
    /// Takes the contribution of `peer` to `into`, which holds the own one when rank 0's comes. `own_turn` is called at
    /// this rank's place.
    pub(super) fn take(&mut self, peer: usize, into: &mut [u8], from: &[u8]) {
        let (dtype, op) = (self.dtype, self.op.fold());
        if peer == 0 && self.me > 1 {
            self.own.clear();
            self.own.extend_from_slice(into);
            return put(dtype, into, Body::Here(from), from.len());
        }
        fold(dtype, op, peer == 0, into, from);
    }

    /// The own contribution's turn.
    pub(super) fn own_turn(&mut self, into: &mut [u8]) {
        if self.me > 1 {
            fold(self.dtype, self.op.fold(), false, into, &self.own);
        }
    }

    /// All have contributed.
    pub(super) fn finish(&self, into: &mut [u8]) {
        if self.op == ReduceOp::Avg {
            divide(self.dtype, self.ranks as u32, into);
        }
    }
}
