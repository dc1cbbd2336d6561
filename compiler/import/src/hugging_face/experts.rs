//! The mixture of experts of Mixtral (arXiv 2401.04088, section 2.1). Each token goes through the experts for which its router scores most, and takes
//! the sum of what they give, by weights that sum to 1.
//!
//! No token is dropped: there are as many places as choices, and the tokens of each expert are behind those of the one before. A product with an
//! expert's matrix takes as many rows as tokens chose it ([`Tensor::grouped_matmul`]). In files each expert has matrices of its own, which a step
//! joins first.

use graphc_ir::builder::Tensor;
use graphc_ir::ops::ExpertPlaces;
use graphc_ir::types::DType;

use super::super::ImportError;
use super::config::{HuggingFaceConfig, PerceptronActivation};
use super::parts::HuggingFaceParts;

/// The most experts of a layer, as each has variables of its own.
const MOST_EXPERTS: usize = 256;

/// A layer of experts, as a configuration describes it.
pub(super) struct Experts {
    count: usize,
    /// The experts that a token goes through.
    chosen: usize,
}

impl Experts {
    /// # Errors
    /// Returns an error if the configuration is not complete, or asks for something that is not supported.
    pub(super) fn from_config(config: &HuggingFaceConfig) -> Result<Self, ImportError> {
        let count = config.required_size("num_local_experts")?;
        let chosen = config.required_size("num_experts_per_tok")?;
        if chosen > count || count > MOST_EXPERTS {
            let reason = format!(
                "a token goes through {chosen} of {count} experts, of which there are at most {MOST_EXPERTS}"
            );
            return Err(config.config_error(reason));
        }
        if config.number_or("router_jitter_noise", 0.0)? != 0.0 {
            let reason = "noise of the router (`router_jitter_noise`) is not known: it is 0";
            return Err(config.config_error(reason.into()));
        }
        Ok(Self { count, chosen })
    }

    /// Computes the layer for `x` of `[batch, time, width]`.
    pub(super) fn build(
        &self,
        parts: &HuggingFaceParts<'_>,
        x: &Tensor,
        name: &str,
        (hidden, activation): (usize, &PerceptronActivation),
    ) -> Tensor {
        let [_, time, width] = x.shape()[..] else { return x.clone() };
        let (chosen, weights) = self.choose(parts, x, &format!("{name}.gate"), width);
        let [gate, up, down] = self.join_matrices(parts, name, [width, hidden]);
        let capacity = time * self.chosen;
        let places = ExpertPlaces { experts: self.count, blocks: 1, capacity };
        let taken = x.dispatch_to(&chosen, places);
        let product = |x: &Tensor, matrices| x.grouped_matmul(matrices, &chosen, true);
        let both = activation.apply(&product(&taken, &gate)).mul(&product(&taken, &up));
        let weights = weights.cast(x.ty().dtype);
        product(&both, &down).combine_from(&chosen, places, Some(&weights))
    }

    /// Returns the matrices w1, w3 and w2 of all experts, `[experts, outputs, inputs]`.
    fn join_matrices(
        &self,
        parts: &HuggingFaceParts<'_>,
        name: &str,
        [width, hidden]: [usize; 2],
    ) -> [Tensor; 3] {
        let kinds = [("w1", [hidden, width]), ("w3", [hidden, width]), ("w2", [width, hidden])];
        let mut matrices: [Vec<Tensor>; 3] = Default::default();
        for expert in 0..self.count {
            for ((kind, shape), matrices) in kinds.iter().zip(&mut matrices) {
                let name = format!("{name}.experts.{expert}.{kind}.weight");
                matrices.push(parts.add_weight(&name, shape).unsqueeze(0));
            }
        }
        matrices.map(|matrices| matrices[0].builder().concat(&matrices, 0))
    }

    /// Returns the experts that each token goes through, and what it takes of each, both `[batch, time, chosen]`. The shares of a token sum to 1.
    fn choose(
        &self,
        parts: &HuggingFaceParts<'_>,
        x: &Tensor,
        name: &str,
        width: usize,
    ) -> (Tensor, Tensor) {
        let scores = parts.linear(x, name, [width, self.count], false);
        let (best, chosen) = scores.cast(DType::F32).softmax(2).top_k(self.chosen, 2);
        let sum = best.sum(&[2], true);
        (chosen, best.div(&sum))
    }
}
