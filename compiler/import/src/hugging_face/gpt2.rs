//! GPT-2 (Radford et al., 2019) as transformers has it: its products are `Conv1D`, whose weights are `[inputs, outputs]`.

use graphc_ir::builder::Tensor;

use super::super::ImportError;
use super::config::{HuggingFaceConfig, PerceptronActivation};
use super::parts::{HuggingFaceParts, apply_attention, apply_dropout};

/// A GPT-2 model, as a configuration describes it.
pub(super) struct HuggingFaceGpt2 {
    layers: usize,
    width: usize,
    heads: usize,
    hidden: usize,
    positions: usize,
    vocabulary: usize,
    epsilon: f64,
    activation: PerceptronActivation,
    /// The shares of zeros that dropout makes in training: of embeddings, of summands of the residual, and of weights of attention.
    dropout: [f64; 3],
}

impl HuggingFaceGpt2 {
    /// # Errors
    /// Returns an error if the configuration is not complete, or asks for something that is not supported.
    pub(super) fn from_config(config: &HuggingFaceConfig) -> Result<Self, ImportError> {
        config.expect_flag("scale_attn_weights", true)?;
        config.expect_flag("scale_attn_by_inverse_layer_idx", false)?;
        config.expect_flag("add_cross_attention", false)?;
        config.expect_flag("tie_word_embeddings", true)?;
        let (width, heads) = (config.required_size("n_embd")?, config.required_size("n_head")?);
        if !width.is_multiple_of(heads) {
            return Err(
                config.config_error(format!("{heads} heads do not divide a width of {width}"))
            );
        }
        Ok(Self {
            layers: config.layer_count("n_layer")?,
            width,
            heads,
            hidden: config.optional_size("n_inner")?.unwrap_or(4 * width),
            positions: config.required_size("n_positions")?,
            vocabulary: config.required_size("vocab_size")?,
            epsilon: config.number_or("layer_norm_epsilon", 1e-5)?,
            activation: config.activation_or("activation_function", "gelu_new")?,
            dropout: [
                config.probability_or("embd_pdrop", 0.1)?,
                config.probability_or("resid_pdrop", 0.1)?,
                config.probability_or("attn_pdrop", 0.1)?,
            ],
        })
    }

    /// # Errors
    /// Returns an error if there are more tokens than positions.
    pub(super) fn check_time(
        &self,
        config: &HuggingFaceConfig,
        time: usize,
    ) -> Result<(), ImportError> {
        config.check_positions("n_positions", self.positions, time)
    }

    /// Computes the logits of tokens.
    pub(super) fn build_logits(&self, parts: &HuggingFaceParts<'_>, tokens: &Tensor) -> Tensor {
        // Files of the first release have no prefix.
        let prefix = match parts.tensors.contains_key("wte.weight") {
            true => "",
            false => "transformer.",
        };
        let time = tokens.shape().last().copied().unwrap_or(0);
        let table =
            parts.add_weight(&format!("{prefix}wte.weight"), &[self.vocabulary, self.width]);
        let places =
            parts.add_weight(&format!("{prefix}wpe.weight"), &[self.positions, self.width]);
        let x = table.embedding(tokens).add(&places.slice(0, 0..time));
        let mut x = apply_dropout(x, self.dropout[0]);
        for layer in 0..self.layers {
            x = self.build_block(parts, &x, &format!("{prefix}h.{layer}"));
        }
        let x = parts.layer_norm(&x, &format!("{prefix}ln_f"), self.epsilon);
        x.matmul_transposed(&table, false, true)
    }

    fn build_block(&self, parts: &HuggingFaceParts<'_>, x: &Tensor, name: &str) -> Tensor {
        let normal = parts.layer_norm(x, &format!("{name}.ln_1"), self.epsilon);
        let x = x.add(&self.build_attention(parts, &normal, &format!("{name}.attn")));
        let normal = parts.layer_norm(&x, &format!("{name}.ln_2"), self.epsilon);
        let up = apply_projection(
            parts,
            &normal,
            (&format!("{name}.mlp.c_fc"), 1.0),
            [self.width, self.hidden],
        );
        let up = self.activation.apply(&up);
        let down = (&*format!("{name}.mlp.c_proj"), self.residual_scale());
        let down = apply_projection(parts, &up, down, [self.hidden, self.width]);
        x.add(&apply_dropout(down, self.dropout[1]))
    }

    fn build_attention(&self, parts: &HuggingFaceParts<'_>, x: &Tensor, name: &str) -> Tensor {
        let [batch, time, width] = x.shape()[..] else { return x.clone() };
        let (heads, each) = (self.heads, width / self.heads);
        let all = (&*format!("{name}.c_attn"), 1.0);
        let all = apply_projection(parts, x, all, [width, 3 * width]);
        let of_heads = |part: &Tensor| part.reshape(&[batch, time, heads, each]);
        let all: Vec<Tensor> = all.split(2, &[width; 3]).iter().map(of_heads).collect();
        let [query, key, value] = &all[..] else { return x.clone() };
        let mixed = apply_attention([query, key, value], true, self.dropout[2]);
        let mixed = mixed.reshape(&[batch, time, width]);
        let out = (&*format!("{name}.c_proj"), self.residual_scale());
        apply_dropout(apply_projection(parts, &mixed, out, [width, width]), self.dropout[1])
    }

    /// The factor of what is added to the residual stream twice a layer, when weights are drawn (Radford et al., "Language Models are Unsupervised
    /// Multitask Learners", section 2.3).
    fn residual_scale(&self) -> f64 {
        (2.0 * self.layers as f64).sqrt().recip()
    }
}

/// x W + b, with `NAME.weight [inputs, outputs]`, which is drawn with `scale` times the standard deviation of others if it is drawn.
fn apply_projection(
    parts: &HuggingFaceParts<'_>,
    x: &Tensor,
    (name, scale): (&str, f64),
    [inputs, outputs]: [usize; 2],
) -> Tensor {
    let weight = parts.add_scaled_weight(&format!("{name}.weight"), &[inputs, outputs], scale);
    x.matmul(&weight).add(&parts.add_weight(&format!("{name}.bias"), &[outputs]))
}
