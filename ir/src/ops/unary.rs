//! Elementwise functions of one operand.

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::builder::Tensor;
use crate::op::{EvalContext, GradientNode, OpError, Operand, Operation, Region};
use crate::rule::Rule;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// An elementwise function of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unary {
    /// The function.
    pub function: UnaryFunction,
}

/// The functions of [`Unary`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
    /// 1 / x
    Reciprocal,
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

impl Operation for Unary {
    fn name(&self) -> &'static str {
        "unary"
    }

    fn dtypes(&self, _operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        todo!()
    }

    fn rule(&self, _operands: &[&TensorType]) -> Result<Rule, OpError> {
        todo!()
    }

    fn gradient(&self, _node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        todo!()
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        todo!()
    }
}
