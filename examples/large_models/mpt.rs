//! MPT (MosaicML's llm-foundry): blocks without biases, queries, keys and values of one product, positions that are learned, and a
//! head that is the embedding.

use graphc::prelude::*;
use graphc_ir::ops::Init;
use graphc_ir::scalar::Scalar;
use nn::{Linear, Module};

/// Sizes of the model.
#[derive(Clone, Copy)]
pub struct MptConfig {
    /// Blocks.
    pub layers: usize,
    /// Width.
    pub width: usize,
    /// Heads.
    pub heads: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Tokens of a sequence.
    pub sequence: usize,
}

impl MptConfig {
    /// The 70B of llm-foundry's benchmark tables: 64.86 billion parameters.
    pub fn mpt_70b() -> Self {
        Self { layers: 80, width: 8192, heads: 64, vocabulary: 50368, sequence: 2048 }
    }
}

/// Added to variances.
const EPSILON: f64 = 1e-5;

/// The model from tokens `[batch, time]` to logits.
pub struct Mpt {
    config: MptConfig,
    words: Tensor,
    places: Tensor,
    blocks: Vec<Block>,
    norm: Tensor,
}

struct Block {
    norms: [Tensor; 2],
    qkv: Linear,
    proj: Linear,
    fc: Linear,
    out: Linear,
}

impl Mpt {
    /// A model of these sizes.
    pub fn new(g: &GraphBuilder, config: &MptConfig) -> Self {
        let &MptConfig { layers, width, vocabulary, sequence, .. } = config;
        let block = |layer: usize| {
            g.scope(&format!("blocks.{layer}"), || {
                let linear =
                    |name: &str, inputs, outputs| Linear::without_bias(g, name, inputs, outputs);
                Block {
                    norms: [scale(g, "norm_1", width), scale(g, "norm_2", width)],
                    qkv: linear("attn.qkv", width, 3 * width),
                    proj: linear("attn.proj", width, width),
                    fc: linear("ffn.up", width, 4 * width),
                    out: linear("ffn.down", 4 * width, width),
                }
            })
        };
        let normal = || Init::Normal { mean: Scalar(0.0), std: Scalar(0.02) };
        Self {
            config: *config,
            words: g.variable("wte", g.dtype(), [vocabulary, width], normal()),
            places: g.variable("wpe", g.dtype(), [sequence, width], normal()),
            blocks: (0..layers).map(block).collect(),
            norm: scale(g, "norm_f", width),
        }
    }
}

/// The factors of a layer normalization without a shift.
fn scale(g: &GraphBuilder, name: &str, width: usize) -> Tensor {
    g.variable(name, g.dtype(), [width], Init::Fill(Scalar(1.0)))
}

fn normed(x: &Tensor, scale: &Tensor) -> Tensor {
    x.normalize(true, EPSILON).mul(scale)
}

impl Block {
    fn forward(&self, config: &MptConfig, x: &Tensor) -> Tensor {
        let &MptConfig { width, heads, .. } = config;
        let shape = x.shape();
        let [batch, time, _] = shape[..] else { return x.clone() };
        let each = width / heads;
        let qkv = self.qkv.forward(&normed(x, &self.norms[0]));
        let parts = qkv.reshape(&[batch, time, heads, 3, each]).split(3, &[1, 1, 1]);
        let part = |index: usize| parts[index].reshape(&[batch, time, heads, each]);
        let mixed = part(0).attention(&part(1), &part(2), true).reshape(&[batch, time, width]);
        let x = x.add(&self.proj.forward(&mixed));
        let wide = self.fc.forward(&normed(&x, &self.norms[1])).gelu();
        x.add(&self.out.forward(&wide))
    }
}

impl Module for Mpt {
    fn forward(&self, tokens: &Tensor) -> Tensor {
        let x = self.words.embedding(tokens).add(&self.places);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(&self.config, &x));
        normed(&x, &self.norm).matmul_transposed(&self.words, false, true)
    }

    fn parameters(&self) -> Vec<Tensor> {
        let of_block = |block: &Block| {
            let products = [&block.qkv, &block.proj, &block.fc, &block.out];
            let products = products.into_iter().flat_map(Module::parameters);
            block.norms.iter().cloned().chain(products).collect::<Vec<_>>()
        };
        let mut parameters = vec![self.words.clone(), self.places.clone()];
        parameters.extend(self.blocks.iter().flat_map(of_block));
        parameters.push(self.norm.clone());
        parameters
    }
}
