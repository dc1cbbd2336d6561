//! Gradients of elementwise functions of one operand.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use super::{Differentiable, GradientNode};
use crate::builder::Tensor;
use crate::ops::{GELU_TANH, Unary, UnaryFunction};

impl Differentiable for Unary {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let (x, y) = (&node.operands[0], &node.results[0]);
        let gradient = node.gradients[0].as_ref().filter(|_| x.ty().dtype.is_float());
        vec![gradient.and_then(|g| self.function.write_gradient(x, y, g))]
    }
}

impl UnaryFunction {
    /// Returns the gradient of the operand x from that of the result y; `None` where it is zero everywhere.
    fn write_gradient(self, x: &Tensor, y: &Tensor, g: &Tensor) -> Option<Tensor> {
        Some(match self {
            Self::Relu => y.greater(&y.scalar_like(0.0)).select(g, &g.scalar_like(0.0)),
            Self::Gelu => {
                let density = (x * x).scale(-0.5).exp().scale(0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
                let cdf = x.scale(FRAC_1_SQRT_2).erf().offset(1.0).scale(0.5);
                g * (cdf + x * density)
            }
            Self::GeluTanh => {
                let t = (x + (x * x * x).scale(GELU_TANH.1)).scale(GELU_TANH.0).tanh();
                let inner = (x * x).scale(3.0 * GELU_TANH.1).offset(1.0).scale(GELU_TANH.0);
                let slope = (&t * &t).neg().offset(1.0) * inner * x;
                g * (t.offset(1.0) + slope).scale(0.5)
            }
            Self::Sigmoid => g * y * y.neg().offset(1.0),
            Self::Tanh => g * (y * y).neg().offset(1.0),
            Self::Silu => {
                let s = x.sigmoid();
                let slope = (x * s.neg().offset(1.0)).offset(1.0);
                g * s * slope
            }
            Self::Exp => g * y,
            Self::Log => g / x,
            Self::Sqrt => g.scale(0.5) / y,
            Self::Rsqrt => g.scale(-0.5) * y * y * y,
            Self::Abs => g * x.sign(),
            Self::Neg => g.neg(),
            Self::Erf => g * (x * x).neg().exp().scale(FRAC_2_SQRT_PI),
            Self::Sin => g * x.cos(),
            Self::Cos => g.neg() * x.sin(),
            Self::Reciprocal => g.neg() * y * y,
            Self::Scale(value) => g.scale(value.0),
            Self::Offset(_) => g.clone(),
            Self::PowScalar(value) if value.0 == 2.0 => g * x.scale(2.0),
            Self::PowScalar(value) if value.0 != 0.0 => {
                g * x.pow_scalar(value.0 - 1.0).scale(value.0)
            }
            Self::Clip { low, high } => {
                let above = x.greater_equal(&x.scalar_like(low.0));
                let below = x.less_equal(&x.scalar_like(high.0));
                above.and(&below).select(g, &g.scalar_like(0.0))
            }
            Self::PowScalar(_)
            | Self::Sign
            | Self::Detach
            | Self::Not
            | Self::Floor
            | Self::Ceil
            | Self::Round => {
                return None;
            }
        })
    }
}
