//! Decoders with experts: Mixtral (Jiang et al., arXiv 2401.04088), Qwen3-235B-A22B (arXiv 2505.09388) and DeepSeek-V3 (arXiv 2412.19437), the
//! latter without its prediction of further tokens.

use graphc::prelude::*;
use nn::{Embedding, Linear, MixtureConfig, Module, RmsNorm, Routing};

use crate::mixture_block::{Block, BlockConfig, Keys};

/// Sizes of a model.
#[derive(Clone, Copy)]
pub struct MixtureModelConfig {
    /// Blocks.
    pub layers: usize,
    /// Sizes of a block.
    pub block: BlockConfig,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
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
            block: BlockConfig {
                dense: (0, 0),
                heads: 32,
                keys: Keys::Grouped { heads: 8, width: 128, normal: false },
                experts: sizes([width, hidden], [8, 2, 8], routing),
                shared: 0,
                window: None,
                base: 1e6,
            },
            vocabulary: 32000,
        }
    }

    /// 235 billion parameters, 22 billion of a token; table 2 of the paper and the published configuration.
    pub fn qwen3_235b_a22b() -> Self {
        let routing = Routing::Softmax;
        let (width, hidden) = (4096, 1536);
        Self {
            layers: 94,
            block: BlockConfig {
                dense: (0, 0),
                heads: 64,
                keys: Keys::Grouped { heads: 4, width: 128, normal: true },
                experts: sizes([width, hidden], [128, 8, 32], routing),
                shared: 0,
                window: None,
                base: 1e6,
            },
            vocabulary: 151_936,
        }
    }

    /// 671 billion parameters, 37 billion of a token; section 4.2 of the paper.
    pub fn deepseek_v3() -> Self {
        let routing = Routing::Sigmoid { scale: 2.5 };
        let (width, hidden) = (7168, 2048);
        Self {
            layers: 61,
            block: BlockConfig {
                dense: (3, 18432),
                heads: 128,
                keys: Keys::DEEPSEEK_V3,
                experts: sizes([width, hidden], [256, 8, 64], routing),
                shared: hidden,
                window: None,
                base: 1e4,
            },
            vocabulary: 129_280,
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

impl MixtureModel {
    /// A model of these sizes.
    pub fn new(g: &GraphBuilder, config: &MixtureModelConfig) -> Self {
        let &MixtureModelConfig { layers, vocabulary, .. } = config;
        let width = config.block.experts.width;
        Self {
            config: *config,
            embedding: Embedding::new(g, "tok_embeddings", vocabulary, width),
            blocks: (0..layers)
                .map(|layer| {
                    g.scope(&format!("layers.{layer}"), || Block::new(g, &config.block, layer))
                })
                .collect(),
            norm: RmsNorm::new(g, "norm", width),
            output: Linear::without_bias(g, "output", width, vocabulary),
        }
    }
}

impl Module for MixtureModel {
    fn forward(&self, tokens: &Tensor) -> Tensor {
        let x = self.embedding.forward(tokens);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(&self.config.block, &x));
        self.output.forward(&self.norm.forward(&x))
    }

    fn parameters(&self) -> Vec<Tensor> {
        let blocks = self.blocks.iter().flat_map(Block::parameters);
        let ends = [self.norm.parameters(), self.output.parameters()].concat();
        self.embedding.parameters().into_iter().chain(blocks).chain(ends).collect()
    }
}
