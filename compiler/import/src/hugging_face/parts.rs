//! The parts that the architectures have in common. Their variables have the names and element types of the files' tensors.

use std::collections::BTreeMap;

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::ops::Init;
use graphc_ir::types::DType;

use super::super::weights::WeightTensor;

/// Makes the variables of a model.
pub(super) struct HuggingFaceParts<'a> {
    pub(super) g: &'a GraphBuilder,
    /// The files' tensors.
    pub(super) tensors: &'a BTreeMap<String, WeightTensor>,
    /// The element type of those that are in no file.
    pub(super) dtype: DType,
    /// The standard deviation of weights that are drawn at random, if they are. Scales of norms are then 1, and biases 0.
    pub(super) drawn: Option<f64>,
}

impl HuggingFaceParts<'_> {
    /// The weight or bias of this name.
    pub(super) fn add_weight(&self, name: &str, shape: &[usize]) -> Tensor {
        self.add_scaled_weight(name, shape, 1.0)
    }

    /// The weight of this name. If it is drawn, its standard deviation is `scale` times that of others.
    pub(super) fn add_scaled_weight(&self, name: &str, shape: &[usize], scale: f64) -> Tensor {
        let drawn = |std: f64| match name.ends_with("bias") {
            true => Init::Fill(0.0.into()),
            false => Init::Normal { mean: 0.0.into(), std: (std * scale).into() },
        };
        self.add_variable(name, shape, self.drawn.map(drawn))
    }

    /// The scale of a norm.
    fn add_scale(&self, name: &str, width: usize) -> Tensor {
        self.add_variable(name, &[width], self.drawn.map(|_| Init::Fill(1.0.into())))
    }

    fn add_variable(&self, name: &str, shape: &[usize], drawn: Option<Init>) -> Tensor {
        let dtype = self.tensors.get(name).map_or(self.dtype, |tensor| tensor.dtype);
        self.g.variable(name, dtype, shape, drawn.unwrap_or(Init::Weights))
    }

    /// Rows of a table of tokens. Through that of the token of padding nothing is learned.
    pub(super) fn embedding(
        &self,
        table: &Tensor,
        tokens: &Tensor,
        padding: Option<usize>,
    ) -> Tensor {
        let found = table.embedding(tokens);
        let Some(padding) = padding else { return found };
        let shape: Vec<usize> = tokens.shape().into_iter().chain([1]).collect();
        let learns = tokens.not_equal(&tokens.scalar_like(padding as f64)).reshape(&shape);
        learns.select(&found, &found.detach())
    }

    /// x W^T + b, with `NAME.weight [outputs, inputs]` and, if there is one, `NAME.bias`.
    pub(super) fn linear(
        &self,
        x: &Tensor,
        name: &str,
        [inputs, outputs]: [usize; 2],
        bias: bool,
    ) -> Tensor {
        let weight = self.add_weight(&format!("{name}.weight"), &[outputs, inputs]);
        let y = x.matmul_transposed(&weight, false, true);
        match bias {
            true => y.add(&self.add_weight(&format!("{name}.bias"), &[outputs])),
            false => y,
        }
    }

    /// Root-mean-square normalization over the last dim.
    pub(super) fn rms_norm(&self, x: &Tensor, name: &str, epsilon: f64) -> Tensor {
        let width = x.shape().last().copied().unwrap_or(0);
        x.rms_norm(&self.add_scale(&format!("{name}.weight"), width), epsilon)
    }

    /// Layer normalization over the last dim.
    pub(super) fn layer_norm(&self, x: &Tensor, name: &str, epsilon: f64) -> Tensor {
        let width = x.shape().last().copied().unwrap_or(0);
        let weight = self.add_scale(&format!("{name}.weight"), width);
        let bias = self.add_weight(&format!("{name}.bias"), &[width]);
        x.layer_norm(&weight, &bias, epsilon)
    }
}

/// Zeros, in training, with this probability.
pub(super) fn apply_dropout(x: Tensor, probability: f64) -> Tensor {
    if probability > 0.0 { x.dropout(probability) } else { x }
}

/// Attention with the usual scale, whose weights are dropped, in training, with this probability.
pub(super) fn apply_attention(
    [query, key, value]: [&Tensor; 3],
    causal: bool,
    probability: f64,
) -> Tensor {
    match probability > 0.0 {
        true => query.dropped_attention(key, value, causal, probability),
        false => query.attention(key, value, causal),
    }
}
