//! The mixture of experts of Mixtral (arXiv 2401.04088, section 2.1). Each token goes through the experts for which its router scores most, and takes
//! the sum of what they give, by weights that sum to 1.
//!
//! No token is dropped. Every expert is computed for every token, and what a token did not choose has the weight 0. So shapes are known before a step,
//! and a step computes as many products as there are experts, whatever tokens choose.

use graphc_ir::builder::Tensor;
use graphc_ir::types::DType;

use super::super::ImportError;
use super::config::{HuggingFaceConfig, PerceptronActivation};
use super::parts::HuggingFaceParts;

/// The most experts of a layer, as each has nodes of its own.
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
        let width = x.shape().last().copied().unwrap_or(0);
        let shares = self.build_shares(parts, x, &format!("{name}.gate"), width);
        let weighted = |expert: usize| {
            let linear = |part: &str, x: &Tensor, sizes: [usize; 2]| {
                parts.linear(x, &format!("{name}.experts.{expert}.{part}"), sizes, false)
            };
            let gate = activation.apply(&linear("w1", x, [width, hidden]));
            let both = gate.mul(&linear("w3", x, [width, hidden]));
            let result = linear("w2", &both, [hidden, width]);
            let share = shares.slice(2, expert..expert + 1);
            result.cast(DType::F32).mul(&share).cast(x.ty().dtype)
        };
        let first = weighted(0);
        (1..self.count).fold(first, |sum, expert| sum.add(&weighted(expert)))
    }

    /// Computes the share that each expert has of each token's result, `[batch, time, experts]` of f32. Those of a token sum to 1.
    fn build_shares(
        &self,
        parts: &HuggingFaceParts<'_>,
        x: &Tensor,
        name: &str,
        width: usize,
    ) -> Tensor {
        let scores = parts.linear(x, name, [width, self.count], false);
        let (best, places) = scores.cast(DType::F32).softmax(2).top_k(self.chosen, 2);
        let best = best.div(&best.sum(&[2], true));
        let each = x.builder().iota(DType::I64, [self.count], 0);
        let is_chosen = places.unsqueeze(3).equal(&each).cast(DType::F32);
        is_chosen.mul(&best.unsqueeze(3)).sum(&[2], false)
    }
}
