//! Gradients of elementwise functions of two operands.

use super::{Differentiable, GradientNode, gradient_of};
use crate::builder::Tensor;
use crate::ops::{Binary, BinaryFunction, FunctionClass};

impl Differentiable for Binary {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let [a, b] = node.operands else { return Vec::new() };
        let (y, Some(g)) = (&node.results[0], &node.gradients[0]) else { return vec![None, None] };
        if self.function.function_class() != FunctionClass::Arithmetic {
            return vec![None, None];
        }
        let (of_a, of_b): (&dyn Fn() -> Tensor, &dyn Fn() -> Tensor) = match self.function {
            BinaryFunction::Add => (&|| g.clone(), &|| g.clone()),
            BinaryFunction::Sub => (&|| g.clone(), &|| g.neg()),
            BinaryFunction::Mul => (&|| g * b, &|| g * a),
            BinaryFunction::Div => (&|| g / b, &|| (g * y / b).neg()),
            BinaryFunction::Pow => (&|| power_base(a, b, g), &|| power_exponent(a, b, y, g)),
            BinaryFunction::Max => (&|| extremum_gradient(&a.greater(b), &a.equal(b), g), &|| {
                extremum_gradient(&b.greater(a), &a.equal(b), g)
            }),
            _ => (&|| extremum_gradient(&a.less(b), &a.equal(b), g), &|| {
                extremum_gradient(&b.less(a), &a.equal(b), g)
            }),
        };
        vec![gradient_of(a, of_a), gradient_of(b, of_b)]
    }
}

/// Computes the gradient of the base, g b a^(b - 1); 0 where b is 0, whatever a is.
fn power_base(a: &Tensor, b: &Tensor, g: &Tensor) -> Tensor {
    let slope = g * b * a.pow(&b.offset(-1.0));
    b.equal(&b.scalar_like(0.0)).select(&g.scalar_like(0.0), &slope)
}

/// Computes the gradient of the exponent, g y log(a); 0 where a is 0 and b is not negative.
fn power_exponent(a: &Tensor, b: &Tensor, y: &Tensor, g: &Tensor) -> Tensor {
    let flat = a.equal(&a.scalar_like(0.0)).and(&b.greater_equal(&b.scalar_like(0.0)));
    flat.select(&g.scalar_like(0.0), &(g * y * a.log()))
}

/// Computes the gradient of an operand of a maximum or minimum: all of it where this operand is taken, half of it where both are equal.
fn extremum_gradient(taken: &Tensor, equal: &Tensor, g: &Tensor) -> Tensor {
    let shared = equal.select(&g.scale(0.5), &g.scalar_like(0.0));
    taken.select(g, &shared)
}
