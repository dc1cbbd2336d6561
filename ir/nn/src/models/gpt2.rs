//! GPT-2 (Radford et al., 2019), with the names of OpenAI's weights, so that these fit. [`crate::Gpt`] is the same
//! architecture laid out for tensor parallelism.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::ops::Init;
use graphc_ir::scalar::Scalar;

use super::collect_parameters;
use crate::{Dropout, Embedding, LayerNorm, Module, ModuleList};

/// Sizes of a [`Gpt2`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpt2Config {
    /// Blocks.
    pub layers: usize,
    /// Width.
    pub width: usize,
    /// Attention heads; they divide the width.
    pub heads: usize,
    /// The longest sequence, in tokens.
    pub sequence: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Zeros, in training, in embeddings and in what is added to the residual.
    pub dropout: f64,
}

impl Gpt2Config {
    /// The smallest of those that were published, of 124 million weights.
    pub fn small() -> Self {
        let (layers, width, heads, sequence, vocabulary) = (12, 768, 12, 1024, 50257);
        Self { layers, width, heads, sequence, vocabulary, dropout: 0.1 }
    }
}

/// GPT-2 of these sizes.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::models::{Gpt2Config, gpt2};
/// use graphc_nn::Module;
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("gpt2");
/// let model = gpt2(&g, &Gpt2Config::small());
/// let logits = model.forward(&g.input("tokens", DType::I64, [2, 64]));
/// assert_eq!((logits.shape(), model.parameters().len()), (vec![2, 64, 50257], 148));
/// assert!(g.finish()?.find("h.11.attn.c_attn.weight").is_some());
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
#[track_caller]
pub fn gpt2(g: &GraphBuilder, config: &Gpt2Config) -> Gpt2 {
    Gpt2::new(g, config)
}

/// A decoder-only transformer whose head is its table of tokens: tokens (i64) `[batch, time]` to logits
/// `[batch, time, vocabulary]`.
pub struct Gpt2 {
    /// The embedding of tokens; also the head.
    pub wte: Embedding,
    /// The embedding of positions.
    pub wpe: Embedding,
    /// The blocks.
    pub h: ModuleList<Gpt2Block>,
    /// The normalization behind the last block.
    pub ln_f: LayerNorm,
    dropout: Dropout,
}

impl Gpt2 {
    /// Makes the model with OpenAI's first contents: normal of deviation 0.02, those that add to the residual less with depth.
    #[track_caller]
    pub fn new(g: &GraphBuilder, config: &Gpt2Config) -> Self {
        let Gpt2Config { layers, width, sequence, vocabulary, .. } = *config;
        g.with_location(|| Self {
            wte: Embedding::with_init(g, "wte", vocabulary, width, normal_init(0.02)),
            wpe: Embedding::with_init(g, "wpe", sequence, width, normal_init(0.02)),
            h: ModuleList::new(g, "h", layers, |name| Gpt2Block::new(g, name, config)),
            ln_f: LayerNorm::new(g, "ln_f", width),
            dropout: Dropout(config.dropout),
        })
    }
}

impl Module for Gpt2 {
    #[track_caller]
    fn forward(&self, tokens: &Tensor) -> Tensor {
        tokens.builder().with_location(|| {
            let time = tokens.shape().last().copied().unwrap_or(0);
            let places = self.wpe.weight.slice(0, 0..time);
            let x = self.dropout.forward(&self.wte.forward(tokens).add(&places));
            let x = self.h.iter().fold(x, |x, block| block.forward(&x));
            self.ln_f.forward(&x).matmul_transposed(&self.wte.weight, false, true)
        })
    }

    fn parameters(&self) -> Vec<Tensor> {
        let tables = collect_parameters(&[&self.wte, &self.wpe]);
        [tables, self.h.parameters(), self.ln_f.parameters()].concat()
    }
}

/// Attention and a perceptron, each behind a normalization and beside a residual.
pub struct Gpt2Block {
    /// The normalization before attention.
    pub ln_1: LayerNorm,
    /// The projection to queries, keys and values.
    pub c_attn: Product,
    /// The projection of what is seen.
    pub c_proj: Product,
    /// The normalization before the perceptron.
    pub ln_2: LayerNorm,
    /// `mlp.c_fc` and `mlp.c_proj`.
    pub mlp: [Product; 2],
    heads: usize,
    dropout: Dropout,
}

impl Gpt2Block {
    #[track_caller]
    fn new(g: &GraphBuilder, name: &str, config: &Gpt2Config) -> Self {
        let Gpt2Config { layers, width, heads, .. } = *config;
        if heads == 0 || !width.is_multiple_of(heads) {
            g.fail(format!("{heads} heads do not divide a width of {width}"));
        }
        let back = 0.02 / (2.0 * layers.max(1) as f64).sqrt();
        g.scope(name, || Self {
            ln_1: LayerNorm::new(g, "ln_1", width),
            c_attn: Product::new(g, "attn.c_attn", [width, 3 * width], 0.02),
            c_proj: Product::new(g, "attn.c_proj", [width, width], back),
            ln_2: LayerNorm::new(g, "ln_2", width),
            mlp: [
                Product::new(g, "mlp.c_fc", [width, 4 * width], 0.02),
                Product::new(g, "mlp.c_proj", [4 * width, width], back),
            ],
            heads: heads.max(1),
            dropout: Dropout(config.dropout),
        })
    }

    fn apply_attention(&self, x: &Tensor) -> Tensor {
        let [batch, time, width] = x.shape()[..] else { return x.clone() };
        let parts = self.c_attn.forward(x).split(2, &[width; 3]);
        let by_head = |x: &Tensor| x.reshape(&[batch, time, self.heads, width / self.heads]);
        let [query, key, value] = [0, 1, 2].map(|at| by_head(&parts[at]));
        let seen = query.attention(&key, &value, true).reshape(&[batch, time, width]);
        self.c_proj.forward(&seen)
    }
}

impl Module for Gpt2Block {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let x = x.add(&self.dropout.forward(&self.apply_attention(&self.ln_1.forward(x))));
        let [wide, narrow] = &self.mlp;
        let inside = wide.forward(&self.ln_2.forward(&x)).gelu_tanh();
        x.add(&self.dropout.forward(&narrow.forward(&inside)))
    }

    fn parameters(&self) -> Vec<Tensor> {
        let [wide, narrow] = &self.mlp;
        collect_parameters(&[&self.ln_1, &self.c_attn, &self.c_proj, &self.ln_2, wide, narrow])
    }
}

/// x W + b: W is `[inputs, outputs]`, as OpenAI has it.
pub struct Product {
    /// `[inputs, outputs]`.
    pub weight: Tensor,
    /// `[outputs]`.
    pub bias: Tensor,
}

impl Product {
    #[track_caller]
    fn new(g: &GraphBuilder, name: &str, sizes: [usize; 2], std: f64) -> Self {
        let zero = Init::Fill(Scalar(0.0));
        g.scope(name, || Self {
            weight: g.variable("weight", g.dtype(), sizes, normal_init(std)),
            bias: g.variable("bias", g.dtype(), [sizes[1]], zero),
        })
    }
}

impl Module for Product {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.matmul(&self.weight).add(&self.bias)
    }

    fn parameters(&self) -> Vec<Tensor> {
        vec![self.weight.clone(), self.bias.clone()]
    }
}

fn normal_init(std: f64) -> Init {
    Init::Normal { mean: Scalar(0.0), std: Scalar(std) }
}
