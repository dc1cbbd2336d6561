//! Decoders with experts: Mixtral (Jiang et al., arXiv 2401.04088), Qwen3-235B-A22B (arXiv 2505.09388) and DeepSeek-V3 (arXiv 2412.19437), the
//! latter without its prediction of further tokens.

use graphc::prelude::*;
use graphc_ir::op::Op;
use graphc_ir::ops::Attention;
use graphc_ir::scalar::Scalar;
use nn::{Embedding, Linear, MixtureConfig, MixtureFeedForward, Module, RmsNorm, Routing, SwiGlu};

/// Sizes of a model.
#[derive(Clone, Copy)]
pub struct MixtureModelConfig {
    /// Blocks.
    pub layers: usize,
    /// The first blocks, which have a perceptron of that width inside instead of experts.
    pub dense: (usize, usize),
    /// Heads of queries.
    pub heads: usize,
    /// How keys and values are made.
    pub keys: Keys,
    /// Experts of a block; the width of the model is that of a token.
    pub experts: MixtureConfig,
    /// Width inside the perceptron that every token takes beside its experts, 0 without.
    pub shared: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// The base of the rotary embedding.
    pub base: f64,
}

/// How a model makes keys and values.
#[derive(Clone, Copy)]
pub enum Keys {
    /// So many heads, of such a width, that groups of heads of queries share; with norms of queries and keys or without.
    Grouped { heads: usize, width: usize, normal: bool },
    /// From latent vectors, with one rotary part for all heads (section 2.1.1 of DeepSeek-V3).
    Latent { queries: usize, keys: usize, width: usize, rotary: usize },
}

/// Places of a block over what an even distribution needs. A static plan needs a bound, and places that nobody has cost memory and no products.
const CAPACITY: Option<f64> = Some(2.0);

impl MixtureModelConfig {
    /// 46.7 billion parameters; table 1 of the paper.
    pub fn mixtral_8x7b() -> Self {
        let routing = Routing::Softmax;
        let (width, hidden) = (4096, 14336);
        Self {
            layers: 32,
            dense: (0, 0),
            heads: 32,
            keys: Keys::Grouped { heads: 8, width: 128, normal: false },
            experts: sizes([width, hidden], [8, 2, 8], routing),
            shared: 0,
            vocabulary: 32000,
            base: 1e6,
        }
    }

    /// 235 billion parameters, 22 billion of a token; table 2 of the paper and the published configuration.
    pub fn qwen3_235b_a22b() -> Self {
        let routing = Routing::Softmax;
        let (width, hidden) = (4096, 1536);
        Self {
            layers: 94,
            dense: (0, 0),
            heads: 64,
            keys: Keys::Grouped { heads: 4, width: 128, normal: true },
            experts: sizes([width, hidden], [128, 8, 32], routing),
            shared: 0,
            vocabulary: 151_936,
            base: 1e6,
        }
    }

    /// 671 billion parameters, 37 billion of a token; section 4.2 of the paper.
    pub fn deepseek_v3() -> Self {
        let routing = Routing::Sigmoid { scale: 2.5 };
        let (width, hidden) = (7168, 2048);
        Self {
            layers: 61,
            dense: (3, 18432),
            heads: 128,
            keys: Keys::Latent { queries: 1536, keys: 512, width: 128, rotary: 64 },
            experts: sizes([width, hidden], [256, 8, 64], routing),
            shared: hidden,
            vocabulary: 129_280,
            base: 1e4,
        }
    }
}

fn sizes(
    [width, hidden]: [usize; 2],
    [experts, chosen, blocks]: [usize; 3],
    routing: Routing,
) -> MixtureConfig {
    MixtureConfig { width, hidden, experts, chosen, routing, blocks, capacity: CAPACITY }
}

/// The model from tokens `[batch, time]` to logits.
pub struct MixtureModel {
    config: MixtureModelConfig,
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    output: Linear,
}

struct Block {
    attention_norm: RmsNorm,
    attention: Projections,
    ffn_norm: RmsNorm,
    mixture: Option<MixtureFeedForward>,
    perceptron: Option<SwiGlu>,
}

/// The weights of attention.
struct Projections {
    queries: Vec<Linear>,
    keys: Vec<Linear>,
    norms: Vec<RmsNorm>,
    output: Linear,
}

impl MixtureModel {
    /// A model of these sizes.
    pub fn new(g: &GraphBuilder, config: &MixtureModelConfig) -> Self {
        let &MixtureModelConfig { layers, vocabulary, .. } = config;
        let width = config.experts.width;
        Self {
            config: *config,
            embedding: Embedding::new(g, "tok_embeddings", vocabulary, width),
            blocks: (0..layers)
                .map(|layer| g.scope(&format!("layers.{layer}"), || Block::new(g, config, layer)))
                .collect(),
            norm: RmsNorm::new(g, "norm", width),
            output: Linear::without_bias(g, "output", width, vocabulary),
        }
    }
}

impl Block {
    fn new(g: &GraphBuilder, config: &MixtureModelConfig, layer: usize) -> Self {
        let width = config.experts.width;
        let is_dense = layer < config.dense.0;
        let hidden = if is_dense { config.dense.1 } else { config.shared };
        Self {
            attention_norm: RmsNorm::new(g, "attention_norm", width),
            attention: Projections::new(g, config),
            ffn_norm: RmsNorm::new(g, "ffn_norm", width),
            mixture: (!is_dense).then(|| MixtureFeedForward::new(g, "mixture", &config.experts)),
            perceptron: (hidden > 0).then(|| SwiGlu::new(g, "perceptron", width, hidden)),
        }
    }

    fn forward(&self, config: &MixtureModelConfig, x: &Tensor) -> Tensor {
        let x = x.add(&self.attention.attend(config, &self.attention_norm.forward(x)));
        let normal = self.ffn_norm.forward(&x);
        let x = self.mixture.iter().fold(x, |x, mixture| x.add(&mixture.forward(&normal)));
        self.perceptron.iter().fold(x, |x, shared| x.add(&shared.forward(&normal)))
    }

    fn parameters(&self) -> Vec<Tensor> {
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
    fn new(g: &GraphBuilder, config: &MixtureModelConfig) -> Self {
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

    fn attend(&self, config: &MixtureModelConfig, x: &Tensor) -> Tensor {
        let [batch, time, _] = x.shape()[..] else { return x.clone() };
        let heads = config.heads;
        let split = |x: &Tensor, heads: usize| {
            let width = x.shape()[2] / heads;
            x.reshape(&[batch, time, heads, width])
        };
        let y = match config.keys {
            Keys::Grouped { heads: shared, .. } => {
                let normal = |index: usize, x: Tensor| match self.norms.get(index) {
                    Some(norm) => norm.forward(&x),
                    None => x,
                };
                let turned = |x: &Tensor| x.rotary(config.base, false);
                let q = normal(0, split(&self.queries[0].forward(x), heads));
                let k = normal(1, split(&self.keys[0].forward(x), shared));
                let v = split(&self.keys[1].forward(x), shared);
                turned(&q).attention(&turned(&k), &v, true)
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
                let op = Op::Attention(Attention::new(true, scale));
                x.builder().apply(op, &[&q, &k, &v]).slice(3, 0..width)
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

impl Module for MixtureModel {
    fn forward(&self, tokens: &Tensor) -> Tensor {
        let x = self.embedding.forward(tokens);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(&self.config, &x));
        self.output.forward(&self.norm.forward(&x))
    }

    fn parameters(&self) -> Vec<Tensor> {
        let blocks = self.blocks.iter().flat_map(Block::parameters);
        let ends = [self.norm.parameters(), self.output.parameters()].concat();
        self.embedding.parameters().into_iter().chain(blocks).chain(ends).collect()
    }
}
