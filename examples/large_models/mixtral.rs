//! Mixtral 8x7B (Jiang et al., arXiv 2401.04088): Llama's blocks, with eight gated perceptrons of which each token takes two.

use graphc::prelude::*;
use graphc_ir::op::Op;
use graphc_ir::ops::{Init, TopK};
use graphc_ir::scalar::Scalar;
use nn::{Embedding, GroupedQueryAttention, Linear, Module, RmsNorm};

/// Sizes of the model, table 1 of the paper.
#[derive(Clone, Copy)]
pub struct MixtralConfig {
    /// Blocks.
    pub layers: usize,
    /// Width.
    pub width: usize,
    /// Heads of queries, and of keys and values.
    pub heads: [usize; 2],
    /// Width inside an expert.
    pub hidden: usize,
    /// Experts of a block.
    pub experts: usize,
    /// Experts that a token takes.
    pub chosen: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
}

impl MixtralConfig {
    /// 46.7 billion parameters.
    pub fn mixtral_8x7b() -> Self {
        Self {
            layers: 32,
            width: 4096,
            heads: [32, 8],
            hidden: 14336,
            experts: 8,
            chosen: 2,
            vocabulary: 32000,
        }
    }
}

/// Places of an expert for each sequence, over what an even distribution needs: the usual factor of GShard and Switch. The
/// paper's own training drops no token; a static graph needs a capacity.
const CAPACITY: f64 = 1.25;

/// The base of the rotary embedding.
const BASE: f64 = 1e6;

/// The model from tokens `[batch, time]` to logits.
pub struct Mixtral {
    config: MixtralConfig,
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    output: Linear,
}

struct Block {
    attention_norm: RmsNorm,
    attention: GroupedQueryAttention,
    ffn_norm: RmsNorm,
    gate: Linear,
    /// w1, w3 `[experts, width, hidden]` and w2 `[experts, hidden, width]`.
    experts: [Tensor; 3],
}

impl Mixtral {
    /// A model of these sizes.
    pub fn new(g: &GraphBuilder, config: &MixtralConfig) -> Self {
        let &MixtralConfig { layers, width, vocabulary, .. } = config;
        Self {
            config: *config,
            embedding: Embedding::new(g, "tok_embeddings", vocabulary, width),
            blocks: (0..layers)
                .map(|layer| g.scope(&format!("layers.{layer}"), || Block::new(g, config)))
                .collect(),
            norm: RmsNorm::new(g, "norm", width),
            output: Linear::without_bias(g, "output", width, vocabulary),
        }
    }
}

impl Block {
    fn new(g: &GraphBuilder, config: &MixtralConfig) -> Self {
        let &MixtralConfig { width, heads, hidden, experts, .. } = config;
        let normal = || Init::Normal { mean: Scalar(0.0), std: Scalar(0.02) };
        let weight = |name: &str, rows, columns| {
            g.variable(name, g.dtype(), [experts, rows, columns], normal())
        };
        Self {
            attention_norm: RmsNorm::new(g, "attention_norm", width),
            attention: GroupedQueryAttention::new(g, "attention", width, heads, BASE),
            ffn_norm: RmsNorm::new(g, "ffn_norm", width),
            gate: Linear::without_bias(g, "gate", width, experts),
            experts: [
                weight("experts.w1.weight", width, hidden),
                weight("experts.w3.weight", width, hidden),
                weight("experts.w2.weight", hidden, width),
            ],
        }
    }

    fn forward(&self, config: &MixtralConfig, x: &Tensor) -> Tensor {
        let x = x.add(&self.attention.forward(&self.attention_norm.forward(x)));
        x.add(&self.mixed(config, &self.ffn_norm.forward(&x)))
    }

    /// Sums for each token the results of the experts that it takes, weighed by a softmax over their scores.
    fn mixed(&self, config: &MixtralConfig, x: &Tensor) -> Tensor {
        let &MixtralConfig { experts, chosen: count, .. } = config;
        let shape = x.shape();
        let [batch, time, width] = shape[..] else { return x.clone() };
        let scores = self.gate.forward(x).cast(DType::F32);
        let top = x.builder().apply_all(Op::TopK(TopK { count, greatest: true }), &[&scores]);
        let [best, chosen] = &top[..] else { return x.clone() };
        let weights = best.softmax(2).cast(x.ty().dtype);
        let even = (count * time) as f64 / experts as f64;
        let places = ((CAPACITY * even).ceil() as usize).clamp(1, time);
        let taken = x.dispatch(chosen, experts, places).reshape(&[experts, batch * places, width]);
        let [w1, w3, w2] = &self.experts;
        let y = taken.matmul(w1).silu().mul(&taken.matmul(w3)).matmul(w2);
        y.reshape(&[experts, batch, places, width]).combine(chosen, Some(&weights))
    }
}

impl Module for Mixtral {
    fn forward(&self, tokens: &Tensor) -> Tensor {
        let x = self.embedding.forward(tokens);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(&self.config, &x));
        self.output.forward(&self.norm.forward(&x))
    }

    fn parameters(&self) -> Vec<Tensor> {
        let of_block = |block: &Block| {
            let norms = [block.attention_norm.parameters(), block.ffn_norm.parameters()].concat();
            let products = [block.attention.parameters(), block.gate.parameters()].concat();
            [norms, products, block.experts.to_vec()].concat()
        };
        let mut parameters = self.embedding.parameters();
        parameters.extend(self.blocks.iter().flat_map(of_block));
        parameters.extend([self.norm.parameters(), self.output.parameters()].concat());
        parameters
    }
}
