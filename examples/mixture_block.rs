//! Blocks of decoders with experts, as Mixtral (Jiang et al., arXiv 2401.04088), Qwen3 (arXiv 2505.09388), gpt-oss (arXiv 2508.10925) and DeepSeek-V3
//! (arXiv 2412.19437) have them.

use std::num::NonZeroU32;

use graphc::prelude::*;
use graphc_ir::op::Op;
use graphc_ir::ops::Attention;
use graphc_ir::scalar::Scalar;
use nn::{Linear, MixtureConfig, MixtureFeedForward, Module, RmsNorm, SwiGlu};

/// Sizes of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockConfig {
    /// The number of first blocks of a model that have a perceptron of that width inside instead of experts.
    pub dense: (usize, usize),
    /// Heads of queries.
    pub heads: usize,
    /// The way in which keys and values are made.
    pub keys: Keys,
    /// The number of keys that each query sees in blocks of even index, where not all before it.
    pub window: Option<NonZeroU32>,
    /// Experts of a block; the width of the model is that of a token.
    pub experts: MixtureConfig,
    /// Width inside the perceptron that every token takes beside its experts, 0 without.
    pub shared: usize,
    /// The base of the rotary embedding.
    pub base: f64,
}

/// The ways in which models make keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keys {
    /// So many heads, of such a width, that groups of heads of queries share; with norms of queries and keys or without.
    Grouped { heads: usize, width: usize, normal: bool },
    /// From latent vectors, with one rotary part for all heads (section 2.1.1 of DeepSeek-V3).
    Latent { queries: usize, keys: usize, width: usize, rotary: usize },
}

impl Keys {
    /// Those of DeepSeek-V3 (its section 4.2).
    pub const DEEPSEEK_V3: Self = Self::Latent { queries: 1536, keys: 512, width: 128, rotary: 64 };
}

/// A block.
pub struct Block {
    attention_norm: RmsNorm,
    attention: Projections,
    ffn_norm: RmsNorm,
    mixture: Option<MixtureFeedForward>,
    perceptron: Option<SwiGlu>,
    /// The number of keys that each query sees, where not all before it.
    window: Option<NonZeroU32>,
}

/// The weights of attention.
struct Projections {
    queries: Vec<Linear>,
    keys: Vec<Linear>,
    norms: Vec<RmsNorm>,
    output: Linear,
}

impl Block {
    /// The block of a layer of these sizes.
    pub fn new(g: &GraphBuilder, config: &BlockConfig, layer: usize) -> Self {
        let width = config.experts.width;
        let is_dense = layer < config.dense.0;
        let hidden = if is_dense { config.dense.1 } else { config.shared };
        Self {
            attention_norm: RmsNorm::new(g, "attention_norm", width),
            attention: Projections::new(g, config),
            ffn_norm: RmsNorm::new(g, "ffn_norm", width),
            mixture: (!is_dense).then(|| MixtureFeedForward::new(g, "mixture", &config.experts)),
            perceptron: (hidden > 0).then(|| SwiGlu::new(g, "perceptron", width, hidden)),
            window: config.window.filter(|_| layer.is_multiple_of(2)),
        }
    }

    /// The block of `[batch, time, width]`.
    pub fn forward(&self, config: &BlockConfig, x: &Tensor) -> Tensor {
        let x = x.add(&self.attention.attend(config, self.window, &self.attention_norm.forward(x)));
        let normal = self.ffn_norm.forward(&x);
        let x = self.mixture.iter().fold(x, |x, mixture| x.add(&mixture.forward(&normal)));
        self.perceptron.iter().fold(x, |x, shared| x.add(&shared.forward(&normal)))
    }

    /// The weights.
    pub fn parameters(&self) -> Vec<Tensor> {
        let norms = [self.attention_norm.parameters(), self.ffn_norm.parameters()].concat();
        let mixture = self.mixture.iter().flat_map(Module::parameters);
        let perceptron = self.perceptron.iter().flat_map(Module::parameters);
        norms
            .into_iter()
            .chain(self.attention.parameters())
            .chain(mixture)
            .chain(perceptron)
            .collect()
    }
}

impl Projections {
    fn new(g: &GraphBuilder, config: &BlockConfig) -> Self {
        let (of_token, heads) = (config.experts.width, config.heads);
        let linear = |name: &str, from, to| Linear::without_bias(g, name, from, to);
        g.scope("attention", || match config.keys {
            Keys::Grouped { heads: shared, width, normal } => Self {
                queries: vec![linear("wq", of_token, heads * width)],
                keys: ["wk", "wv"].map(|name| linear(name, of_token, shared * width)).into(),
                norms: ["q_norm", "k_norm"]
                    .into_iter()
                    .filter(|_| normal)
                    .map(|name| RmsNorm::new(g, name, width))
                    .collect(),
                output: linear("wo", heads * width, of_token),
            },
            Keys::Latent { queries, keys, width, rotary } => Self {
                queries: vec![
                    linear("wq_a", of_token, queries),
                    linear("wq_b", queries, heads * (width + rotary)),
                ],
                keys: vec![
                    linear("wkv_a", of_token, keys + rotary),
                    linear("wkv_b", keys, heads * 2 * width),
                ],
                norms: vec![RmsNorm::new(g, "q_norm", queries), RmsNorm::new(g, "kv_norm", keys)],
                output: linear("wo", heads * width, of_token),
            },
        })
    }

    fn attend(&self, config: &BlockConfig, window: Option<NonZeroU32>, x: &Tensor) -> Tensor {
        let [batch, time, _] = x.shape()[..] else { return x.clone() };
        let heads = config.heads;
        let attention = |scale| Op::Attention(Attention { window, ..Attention::new(true, scale) });
        let split = |x: &Tensor, heads: usize| {
            let width = x.shape()[2] / heads;
            x.reshape(&[batch, time, heads, width])
        };
        let y = match config.keys {
            Keys::Grouped { heads: shared, width, .. } => {
                let normal = |index: usize, x: Tensor| match self.norms.get(index) {
                    Some(norm) => norm.forward(&x),
                    None => x,
                };
                let turned = |x: &Tensor| x.rotary(config.base, false);
                let q = normal(0, split(&self.queries[0].forward(x), heads));
                let k = normal(1, split(&self.keys[0].forward(x), shared));
                let v = split(&self.keys[1].forward(x), shared);
                let op = attention(Scalar(1.0 / (width as f64).sqrt()));
                x.builder().apply(op, &[&turned(&q), &turned(&k), &v])
            }
            Keys::Latent { keys, width, rotary, .. } => {
                let latent = self.norms[0].forward(&self.queries[0].forward(x));
                let q = split(&self.queries[1].forward(&latent), heads);
                let latent = self.keys[0].forward(x);
                let both = self.norms[1].forward(&latent.slice(2, 0..keys));
                let both = split(&self.keys[1].forward(&both), heads);
                let one = split(&latent.slice(2, keys..keys + rotary), 1);
                let one = one.rotary(config.base, true).expand(&[batch, time, heads, rotary]);
                let join = |parts: [Tensor; 2]| x.builder().concat(&parts, 3);
                let turned = q.slice(3, width..width + rotary).rotary(config.base, true);
                let q = join([q.slice(3, 0..width), turned]);
                let k = join([both.slice(3, 0..width), one]);
                // Attention has values as wide as keys: zeros, whose results nobody takes.
                let v = both.slice(3, width..2 * width).pad(&[0; 4], &[0, 0, 0, rotary], 0.0);
                let scale = Scalar(1.0 / ((width + rotary) as f64).sqrt());
                x.builder().apply(attention(scale), &[&q, &k, &v]).slice(3, 0..width)
            }
        };
        let width = y.shape()[3];
        self.output.forward(&y.reshape(&[batch, time, heads * width]))
    }

    fn parameters(&self) -> Vec<Tensor> {
        let linear = self.queries.iter().chain(&self.keys).chain([&self.output]);
        let norms = self.norms.iter().flat_map(Module::parameters);
        linear.flat_map(Module::parameters).chain(norms).collect()
    }
}
