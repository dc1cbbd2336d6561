//! The gradient of an op of a program's own: another such op.

use super::{Differentiable, GradientNode};
use crate::builder::Tensor;
use crate::ops::Custom;
use crate::types::TensorType;

impl Differentiable for Custom {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let types: Vec<TensorType> = node.operands.iter().map(Tensor::ty).collect();
        if !self.differentiable || !types.iter().any(|ty| ty.dtype.is_float()) {
            return vec![None; node.operands.len()];
        }
        let gradient = |(gradient, result): (&Option<Tensor>, &Tensor)| {
            gradient.clone().unwrap_or_else(|| result.full_like(0.0))
        };
        let gradients: Vec<Tensor> =
            node.gradients.iter().zip(node.results).map(gradient).collect();
        let all: Vec<&Tensor> =
            node.operands.iter().chain(node.results).chain(&gradients).collect();
        let builder = node.operands[0].builder();
        let mut found = builder.custom(&self.backward_op(&types), &all).into_iter();
        types.iter().map(|ty| ty.dtype.is_float().then(|| found.next()).flatten()).collect()
    }
}
