//! LLaMA (arXiv 2302.13971), Mistral (arXiv 2310.06825), Mixtral (arXiv 2401.04088), Qwen 2 (arXiv 2407.10671) and Qwen 3 (arXiv 2505.09388):
//! decoders that differ in biases, norms and experts.

use graphc_ir::builder::Tensor;

use super::super::ImportError;
use super::config::{GREATEST, HuggingFaceConfig, PerceptronActivation};
use super::experts::Experts;
use super::parts::{HuggingFaceParts, apply_attention};
use super::rotary::Rotation;

/// A decoder such as LLaMA, as a configuration describes it.
pub(super) struct Decoder {
    layers: usize,
    width: usize,
    hidden: usize,
    vocabulary: usize,
    padding: Option<usize>,
    /// The numbers of heads of queries, and of keys and values.
    heads: [usize; 2],
    /// The elements of a head.
    each: usize,
    epsilon: f64,
    activation: PerceptronActivation,
    rotation: Rotation,
    biases: Biases,
    /// Whether queries and keys are normalized, head by head.
    norms: bool,
    tied: bool,
    /// The experts in the place of each perceptron, if the model has them.
    experts: Option<Experts>,
    /// Tokens that a token sees; `None`: all before it.
    window: Option<usize>,
    /// The share of the weights of attention that are dropped in training.
    dropout: f64,
}

/// The linear layers that have a bias.
struct Biases {
    /// Whether the layers of queries, keys and values have one.
    inputs: bool,
    /// Whether the layer behind attention has one.
    output: bool,
    /// Whether the layers of the perceptron have one.
    perceptron: bool,
}

impl Decoder {
    /// # Errors
    /// Returns an error if the configuration is not complete, or asks for something that is not supported.
    pub(super) fn from_config(
        config: &HuggingFaceConfig,
        class: &str,
    ) -> Result<Self, ImportError> {
        let width = config.required_size("hidden_size")?;
        let vocabulary = config.required_size("vocab_size")?;
        let heads = config.required_size("num_attention_heads")?;
        let shared = config.optional_size("num_key_value_heads")?.unwrap_or(heads);
        if !heads.is_multiple_of(shared) {
            let reason = format!("{shared} heads of keys do not divide {heads} heads of queries");
            return Err(config.config_error(reason));
        }
        let usual = if class == "Qwen3ForCausalLM" { 128 } else { width / heads };
        let each = config.optional_size("head_dim")?.unwrap_or(usual);
        if !each.is_multiple_of(2) || each == 0 {
            return Err(
                config.config_error(format!("a head of {each} elements has no pairs to turn"))
            );
        }
        if heads.saturating_mul(each) as u64 > GREATEST {
            return Err(
                config.config_error(format!("{heads} heads of {each} elements are too many"))
            );
        }
        Ok(Self {
            layers: config.layer_count("num_hidden_layers")?,
            width,
            hidden: config.required_size("intermediate_size")?,
            vocabulary,
            padding: config.padding_token(vocabulary, None)?,
            heads: [heads, shared],
            each,
            epsilon: config.number_or("rms_norm_eps", 1e-6)?,
            activation: config.activation_or("hidden_act", "silu")?,
            rotation: Rotation::from_config(config)?,
            biases: Biases::from_config(config, class)?,
            norms: class == "Qwen3ForCausalLM",
            tied: config.flag_or("tie_word_embeddings", false)?,
            experts: (class == "MixtralForCausalLM")
                .then(|| Experts::from_config(config))
                .transpose()?,
            window: read_sliding_window(config, class)?,
            dropout: config.probability_or("attention_dropout", 0.0)?,
        })
    }

    pub(super) fn is_tied(&self) -> bool {
        self.tied
    }

    /// # Errors
    /// Returns an error if the sequences are longer than the window of attention, so that a token would not see all tokens before it.
    pub(super) fn check_time(
        &self,
        config: &HuggingFaceConfig,
        time: usize,
    ) -> Result<(), ImportError> {
        match self.window.filter(|&window| time > window) {
            None => Ok(()),
            Some(window) => Err(config.config_error(format!(
                "a token sees {window} tokens (`sliding_window`), and attention over parts of a sequence is not known: give sequences of at \
                 most {window} tokens, not {time}"
            ))),
        }
    }

    /// Computes the logits of tokens.
    pub(super) fn build_logits(&self, parts: &HuggingFaceParts<'_>, tokens: &Tensor) -> Tensor {
        let table = parts.add_weight("model.embed_tokens.weight", &[self.vocabulary, self.width]);
        let mut x = parts.embedding(&table, tokens, self.padding);
        for layer in 0..self.layers {
            x = self.build_layer(parts, &x, &format!("model.layers.{layer}"));
        }
        let x = parts.rms_norm(&x, "model.norm", self.epsilon);
        match self.tied {
            true => x.matmul_transposed(&table, false, true),
            false => parts.linear(&x, "lm_head", [self.width, self.vocabulary], false),
        }
    }

    fn build_layer(&self, parts: &HuggingFaceParts<'_>, x: &Tensor, name: &str) -> Tensor {
        let normal = parts.rms_norm(x, &format!("{name}.input_layernorm"), self.epsilon);
        let x = x.add(&self.build_attention(parts, &normal, &format!("{name}.self_attn")));
        let after = format!("{name}.post_attention_layernorm");
        let normal = parts.rms_norm(&x, &after, self.epsilon);
        x.add(&match &self.experts {
            Some(experts) => {
                let name = format!("{name}.block_sparse_moe");
                experts.build(parts, &normal, &name, (self.hidden, &self.activation))
            }
            None => self.build_perceptron(parts, &normal, &format!("{name}.mlp")),
        })
    }

    fn build_attention(&self, parts: &HuggingFaceParts<'_>, x: &Tensor, name: &str) -> Tensor {
        let [own, shared] = self.heads;
        let [batch, time, width] = x.shape()[..] else { return x.clone() };
        let part = |part: &str, heads: usize| {
            let (name, sizes) = (format!("{name}.{part}_proj"), [width, heads * self.each]);
            let y = parts.linear(x, &name, sizes, self.biases.inputs);
            y.reshape(&[batch, time, heads, self.each])
        };
        let turned = |which: &str, heads: usize| {
            let y = part(which, heads);
            let normal = match self.norms {
                true => parts.rms_norm(&y, &format!("{name}.{which}_norm"), self.epsilon),
                false => y,
            };
            self.rotation.turn(&normal)
        };
        let (query, key, value) = (turned("q", own), turned("k", shared), part("v", shared));
        let mixed = apply_attention([&query, &key, &value], true, self.dropout);
        let mixed = mixed.reshape(&[batch, time, own * self.each]);
        let sizes = [own * self.each, width];
        parts.linear(&mixed, &format!("{name}.o_proj"), sizes, self.biases.output)
    }

    fn build_perceptron(&self, parts: &HuggingFaceParts<'_>, x: &Tensor, name: &str) -> Tensor {
        let (up, down) = ([self.width, self.hidden], [self.hidden, self.width]);
        let bias = self.biases.perceptron;
        let gate = parts.linear(x, &format!("{name}.gate_proj"), up, bias);
        let values = parts.linear(x, &format!("{name}.up_proj"), up, bias);
        let both = self.activation.apply(&gate).mul(&values);
        parts.linear(&both, &format!("{name}.down_proj"), down, bias)
    }
}

impl Biases {
    fn from_config(config: &HuggingFaceConfig, class: &str) -> Result<Self, ImportError> {
        let said = config.flag_or("attention_bias", false)?;
        let perceptron = config.flag_or("mlp_bias", false)?;
        Ok(match class {
            "Qwen2ForCausalLM" => Self { inputs: true, output: false, perceptron: false },
            "MistralForCausalLM" | "MixtralForCausalLM" => {
                Self { inputs: false, output: false, perceptron: false }
            }
            "Qwen3ForCausalLM" => Self { inputs: said, output: said, perceptron: false },
            _ => Self { inputs: said, output: said, perceptron },
        })
    }
}

fn read_sliding_window(
    config: &HuggingFaceConfig,
    class: &str,
) -> Result<Option<usize>, ImportError> {
    let has = match class {
        "MistralForCausalLM" | "MixtralForCausalLM" => true,
        "LlamaForCausalLM" => false,
        _ => config.flag_or("use_sliding_window", false)?,
    };
    if has { config.optional_size("sliding_window") } else { Ok(None) }
}
