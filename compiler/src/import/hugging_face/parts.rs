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
}

impl HuggingFaceParts<'_> {
    /// The weight of this name.
    pub(super) fn add_weight(&self, name: &str, shape: &[usize]) -> Tensor {
        let dtype = self.tensors.get(name).map_or(self.dtype, |tensor| tensor.dtype);
        self.g.variable(name, dtype, shape, Init::Weights)
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
        x.rms_norm(&self.add_weight(&format!("{name}.weight"), &[width]), epsilon)
    }

    /// Layer normalization over the last dim.
    pub(super) fn layer_norm(&self, x: &Tensor, name: &str, epsilon: f64) -> Tensor {
        let width = x.shape().last().copied().unwrap_or(0);
        let [weight, bias] =
            ["weight", "bias"].map(|part| self.add_weight(&format!("{name}.{part}"), &[width]));
        x.layer_norm(&weight, &bias, epsilon)
    }
}

/// Zeros, in training, with this probability.
pub(super) fn apply_dropout(x: Tensor, probability: f64) -> Tensor {
    if probability > 0.0 { x.dropout(probability) } else { x }
}
