//! Elementwise functions of two operands, broadcast as NumPy does.

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::float8::{E4M3, E5M2, Float8Format};
use crate::operation::{
    EvalContext, InPlace, OpError, Operand, Operation, Region, check_arity, dtype_error,
};
use crate::ops::broadcast::{broadcast_rule, fit_to_dtype, map_broadcast, same_dtype};
use crate::rule::Rule;
use crate::sbp::ReduceKind;
use crate::types::{DType, TensorType};

/// An elementwise function of two operands of one element type. Shapes align at the right; a dim of extent 1 repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Binary {
    /// The function.
    pub function: BinaryFunction,
}

/// The functions of [`Binary`]. Comparisons and logic give bool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BinaryFunction {
    /// a + b
    Add,
    /// a - b
    Sub,
    /// a * b
    Mul,
    /// a / b; of integers truncated, and an error where b is 0
    Div,
    /// a ^ b
    Pow,
    /// The greater; NaN where one of them is NaN
    Max,
    /// The lesser; NaN where one of them is NaN
    Min,
    /// a == b
    Equal,
    /// a != b
    NotEqual,
    /// a < b
    Less,
    /// a <= b
    LessEqual,
    /// a > b
    Greater,
    /// a >= b
    GreaterEqual,
    /// Logical and, of bool
    And,
    /// Logical or, of bool
    Or,
    /// Bitwise and, of integers: the bits that both have
    BitAnd,
    /// Bitwise or, of integers: the bits that either has
    BitOr,
    /// Bitwise exclusive or, of integers: the bits that one of them has
    BitXor,
    /// The number of f8e4m3 nearest to a times the power of two that brings b, the greatest size among such a, within that type
    /// ([`Float8Format::scale_for`])
    RoundFloat8,
    /// The number of f8e5m2 nearest to a times the power of two that brings b, the greatest size among such a, within that type
    RoundFloat8E5m2,
}

/// The class of a function by the types of its operands and result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FunctionClass {
    Arithmetic,
    Comparison,
    Logic,
    Bits,
    /// Rounding to numbers of 8 bits of this type.
    Rounding(DType),
}

impl BinaryFunction {
    /// Returns whether the result is bool whatever the operands are.
    pub fn gives_bool(self) -> bool {
        matches!(self.function_class(), FunctionClass::Comparison | FunctionClass::Logic)
    }

    /// Returns the element type of the result for operands of this type.
    pub fn result_dtype(self, dtype: DType) -> DType {
        match self.function_class() {
            FunctionClass::Comparison | FunctionClass::Logic => DType::Bool,
            FunctionClass::Arithmetic | FunctionClass::Bits => dtype,
            FunctionClass::Rounding(dtype) => dtype,
        }
    }

    /// Computes the function of two elements of this type.
    pub fn apply(self, dtype: DType, a: f64, b: f64) -> f64 {
        let truth = |holds: bool| f64::from(u8::from(holds));
        match self {
            Self::Add => fit_to_dtype(dtype, a + b),
            Self::Sub => fit_to_dtype(dtype, a - b),
            Self::Mul => fit_to_dtype(dtype, a * b),
            Self::Div if !dtype.is_float() && b == 0.0 => 0.0,
            Self::Div => fit_to_dtype(dtype, a / b),
            Self::Pow => fit_to_dtype(dtype, a.powf(b)),
            Self::Max => ReduceKind::Max.combine(a, b),
            Self::Min => ReduceKind::Min.combine(a, b),
            Self::Equal => truth(a == b),
            Self::NotEqual => truth(a != b),
            Self::Less => truth(a < b),
            Self::LessEqual => truth(a <= b),
            Self::Greater => truth(a > b),
            Self::GreaterEqual => truth(a >= b),
            Self::And => truth(a != 0.0 && b != 0.0),
            Self::Or => truth(a != 0.0 || b != 0.0),
            Self::BitAnd => (a as i64 & b as i64) as f64,
            Self::BitOr => (a as i64 | b as i64) as f64,
            Self::BitXor => (a as i64 ^ b as i64) as f64,
            Self::RoundFloat8 => round_float8(E4M3, a, b),
            Self::RoundFloat8E5m2 => round_float8(E5M2, a, b),
        }
    }

    /// Returns whether numbers are rounded to 8 bits.
    pub fn rounds_float8(self) -> bool {
        matches!(self.function_class(), FunctionClass::Rounding(_))
    }

    pub(crate) fn function_class(self) -> FunctionClass {
        match self {
            Self::Add | Self::Sub | Self::Mul | Self::Div | Self::Pow | Self::Max | Self::Min => {
                FunctionClass::Arithmetic
            }
            Self::Equal
            | Self::NotEqual
            | Self::Less
            | Self::LessEqual
            | Self::Greater
            | Self::GreaterEqual => FunctionClass::Comparison,
            Self::And | Self::Or => FunctionClass::Logic,
            Self::BitAnd | Self::BitOr | Self::BitXor => FunctionClass::Bits,
            Self::RoundFloat8 => FunctionClass::Rounding(DType::F8E4M3),
            Self::RoundFloat8E5m2 => FunctionClass::Rounding(DType::F8E5M2),
        }
    }

    /// Returns the groups of operands for [`Rule::linear`]. A quotient is not linear in its numerator: 7 / 0 is infinite, but 7 / 0 + 0 / 0 no
    /// number.
    fn linear_groups(self) -> Vec<Vec<usize>> {
        match self {
            Self::Add | Self::Sub => vec![vec![0, 1]],
            Self::Mul => vec![vec![0], vec![1]],
            _ => Vec::new(),
        }
    }
}

impl Operation for Binary {
    fn name(&self) -> &'static str {
        "binary"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 2, "2 operands")?;
        let dtype = same_dtype(self.name(), operands)?;
        let needs = match self.function.function_class() {
            FunctionClass::Arithmetic => (dtype != DType::Bool, "numeric"),
            FunctionClass::Comparison => (true, "any"),
            FunctionClass::Logic => (dtype == DType::Bool, "bool"),
            FunctionClass::Bits => (!dtype.is_float() && dtype != DType::Bool, "integer"),
            FunctionClass::Rounding(_) => (dtype.is_float(), "floating-point"),
        };
        if !needs.0 {
            let reason = format!("{:?} needs {} elements", self.function, needs.1);
            return Err(dtype_error(self.name(), operands, reason));
        }
        Ok(vec![self.function.result_dtype(dtype)])
    }

    fn in_place(&self) -> Vec<InPlace> {
        vec![InPlace::new(0, 0), InPlace::new(0, 1)]
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        broadcast_rule(self.name(), operands, self.function.linear_groups())
    }

    fn flops_per_point(&self) -> f64 {
        match self.function {
            BinaryFunction::Pow => 10.0,
            BinaryFunction::Div => 4.0,
            _ => 1.0,
        }
    }

    fn is_light(&self) -> bool {
        matches!(self.function, BinaryFunction::Add | BinaryFunction::Sub | BinaryFunction::Mul)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let dtype = operands[0].region.dtype;
        let arrays = [operands[0].array, operands[1].array];
        let whole = self.function == BinaryFunction::Div && !dtype.is_float();
        if whole && arrays[1].data.contains(&0.0) {
            return Err(OpError::DivisionByZero { op: self.name() });
        }
        Ok(vec![map_broadcast(&results[0], arrays, |[a, b]| self.function.apply(dtype, a, b))])
    }
}

/// Rounds a number to one of 8 bits, times the scale for the greatest size.
fn round_float8(format: Float8Format, number: f64, greatest: f64) -> f64 {
    let scaled = number * f64::from(format.scale_for(greatest as f32));
    format.decode(format.encode(scaled as f32)).into()
}
