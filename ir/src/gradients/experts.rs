//! Gradients of dispatch and combine, which are each other but for the weights.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{Combine, CombineWeightsGrad, Dispatch, ExpertPlaces};

impl Differentiable for Dispatch {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let Some(g) = first_gradient(node) else { return vec![None; node.operands.len()] };
        let (x, chosen) = (&node.operands[0], &node.operands[1]);
        let back = Op::Combine(Combine::from_places(self.places()));
        weighted_gradients((back, self.places()), node, g, [g, chosen, x])
    }
}

impl Differentiable for Combine {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let Some(g) = first_gradient(node) else { return vec![None; node.operands.len()] };
        let (y, chosen) = (&node.operands[0], &node.operands[1]);
        let places = ExpertPlaces::of_shape(&y.shape(), self.experts);
        let back = Op::Dispatch(Dispatch::to_places(places));
        weighted_gradients((back, places), node, g, [y, chosen, g])
    }
}

impl Differentiable for CombineWeightsGrad {
    /// Returns the gradients of y and of x; the op is linear in both.
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let [y, chosen, x] = node.operands else { return Vec::new() };
        let Some(g) = first_gradient(node) else { return vec![None; 3] };
        let places = ExpertPlaces::of_shape(&y.shape(), self.experts);
        let dispatch = Op::Dispatch(Dispatch::to_places(places));
        let combine = Op::Combine(Combine::from_places(places));
        let of_y = g.builder().apply(dispatch, &[x, chosen, g]);
        let of_x = g.builder().apply(combine, &[y, chosen, g]);
        vec![Some(of_y), None, Some(of_x)]
    }
}

/// Returns the gradients of dispatch or combine: `op` takes the gradient back, and the weights' is that of [`CombineWeightsGrad`].
fn weighted_gradients(
    (op, places): (Op, ExpertPlaces),
    node: &GradientNode<'_>,
    g: &Tensor,
    of_weights: [&Tensor; 3],
) -> Vec<Option<Tensor>> {
    let back: Vec<&Tensor> = std::iter::once(g).chain(&node.operands[1..]).collect();
    let mut gradients = vec![Some(g.builder().apply(op, &back)), None];
    if node.operands.len() == 3 {
        let op = Op::CombineWeightsGrad(CombineWeightsGrad::of_places(places));
        gradients.push(Some(g.builder().apply(op, &of_weights)));
    }
    gradients
}
