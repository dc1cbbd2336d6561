//! Elementwise functions of one operand.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::math::{erf, normal_cdf, sigmoid};
use crate::operation::{
    EvalContext, InPlace, OpError, Operand, Operation, Region, check_arity, dtype_error,
};
use crate::ops::broadcast::{broadcast_rule, fit_to_dtype, map_broadcast};
use crate::rule::Rule;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// An elementwise function of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Unary {
    /// The function.
    pub function: UnaryFunction,
}

/// The functions of [`Unary`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnaryFunction {
    /// max(x, 0)
    Relu,
    /// x Phi(x), with the error function
    Gelu,
    /// The tanh approximation of GELU (Hendrycks and Gimpel, arXiv 1606.08415, section 2)
    GeluTanh,
    /// 1 / (1 + exp(-x))
    Sigmoid,
    /// Hyperbolic tangent
    Tanh,
    /// x sigmoid(x)
    Silu,
    /// e^x
    Exp,
    /// Natural logarithm
    Log,
    /// Square root
    Sqrt,
    /// 1 / sqrt(x)
    Rsqrt,
    /// Absolute value
    Abs,
    /// -x
    Neg,
    /// -1, 0 or 1
    Sign,
    /// The error function
    Erf,
    /// Sine, of radians
    Sin,
    /// Cosine, of radians
    Cos,
    /// The greatest integer that is not greater
    Floor,
    /// The least integer that is not less
    Ceil,
    /// The nearest integer, of two the even one
    Round,
    /// 1 / x
    Reciprocal,
    /// The operand itself, of which nothing is learned: its gradient is 0
    Detach,
    /// Logical negation, of bool
    Not,
    /// x * value
    Scale(Scalar),
    /// x + value
    Offset(Scalar),
    /// x ^ value
    PowScalar(Scalar),
    /// min(max(x, low), high)
    Clip {
        /// The least result.
        low: Scalar,
        /// The greatest result.
        high: Scalar,
    },
}

/// sqrt(2 / pi) and the cubic coefficient of the tanh approximation of GELU.
pub(crate) const GELU_TANH: (f64, f64) = (FRAC_2_SQRT_PI * FRAC_1_SQRT_2, 0.044_715);

impl UnaryFunction {
    /// Computes the function of one number.
    pub fn apply(self, x: f64) -> f64 {
        match self {
            Self::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            Self::Gelu => x * normal_cdf(x),
            Self::GeluTanh => {
                0.5 * x * (1.0 + (GELU_TANH.0 * (x + GELU_TANH.1 * x * x * x)).tanh())
            }
            Self::Sigmoid => sigmoid(x),
            Self::Tanh => x.tanh(),
            Self::Silu => x * sigmoid(x),
            Self::Exp => x.exp(),
            Self::Log => x.ln(),
            Self::Sqrt => x.sqrt(),
            Self::Rsqrt => 1.0 / x.sqrt(),
            Self::Abs => x.abs(),
            Self::Neg => -x,
            Self::Sign => f64::from(i8::from(x > 0.0) - i8::from(x < 0.0)),
            Self::Erf => erf(x),
            Self::Sin => x.sin(),
            Self::Cos => x.cos(),
            Self::Floor => x.floor(),
            Self::Ceil => x.ceil(),
            Self::Round => x.round_ties_even(),
            Self::Reciprocal => 1.0 / x,
            Self::Detach => x,
            Self::Not => f64::from(u8::from(x == 0.0)),
            Self::Scale(value) => x * value.0,
            Self::Offset(value) => x + value.0,
            Self::PowScalar(value) => x.powf(value.0),
            Self::Clip { low, high } => {
                if x < low.0 {
                    low.0
                } else if x > high.0 {
                    high.0
                } else {
                    x
                }
            }
        }
    }

    /// Returns whether the function takes integers too; their payload must be whole numbers.
    fn takes_integers(self) -> bool {
        match self {
            Self::Relu | Self::Abs | Self::Neg | Self::Sign => true,
            Self::Scale(value) | Self::Offset(value) => value.0.fract() == 0.0,
            Self::Clip { low, high } => !(low.0.fract() != 0.0 || high.0.fract() != 0.0),
            _ => false,
        }
    }

    /// Returns whether the function is linear. Scaling by a number that is not finite is not: it makes no number of a summand 0.
    fn is_linear(self) -> bool {
        match self {
            Self::Neg | Self::Detach => true,
            Self::Scale(factor) => factor.0.is_finite(),
            _ => false,
        }
    }

    /// Returns whether anything is learned of the operand: not of one through which no gradient goes, nor of a function that is the same number
    /// almost everywhere near a place.
    pub fn has_gradient(self) -> bool {
        use UnaryFunction::*;
        !matches!(self, Sign | Detach | Not | Floor | Ceil | Round)
    }
}

impl Operation for Unary {
    fn name(&self) -> &'static str {
        "unary"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1 operand")?;
        let dtype = operands[0].dtype;
        let needs = match self.function {
            UnaryFunction::Not => (dtype == DType::Bool, "bool"),
            f if f.takes_integers() => (dtype != DType::Bool, "numeric"),
            _ => (dtype.is_float(), "floating-point"),
        };
        if !needs.0 {
            let reason = format!("{:?} needs {} elements", self.function, needs.1);
            return Err(dtype_error(self.name(), operands, reason));
        }
        Ok(vec![dtype])
    }

    fn in_place(&self) -> Vec<InPlace> {
        vec![InPlace::new(0, 0)]
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let linear = if self.function.is_linear() { vec![vec![0]] } else { Vec::new() };
        broadcast_rule(self.name(), operands, linear)
    }

    fn flops_per_point(&self) -> f64 {
        use UnaryFunction::*;
        match self.function {
            Relu
            | Abs
            | Neg
            | Sign
            | Detach
            | Not
            | Floor
            | Ceil
            | Round
            | Scale(_)
            | Offset(_)
            | Clip { .. } => 1.0,
            Sqrt | Rsqrt | Reciprocal => 4.0,
            Gelu | GeluTanh | Sigmoid | Tanh | Silu | Exp | Log | Erf | Sin | Cos
            | PowScalar(_) => 10.0,
        }
    }

    fn is_light(&self) -> bool {
        use UnaryFunction::*;
        matches!(self.function, Scale(_) | Offset(_) | Neg | Detach | Relu | Clip { .. })
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let dtype = results[0].dtype;
        let function = |[x]: [f64; 1]| fit_to_dtype(dtype, self.function.apply(x));
        Ok(vec![map_broadcast(&results[0], [operands[0].array], function)])
    }
}
