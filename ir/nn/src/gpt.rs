//! GPT-2's architecture at any size.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::ops::Init;
use graphc_ir::scalar::Scalar;

use super::attention::STD;
use super::{Embedding, LayerNorm, Linear, Module, TransformerBlock};

/// Sizes of a [`Gpt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GptConfig {
    /// Transformer blocks.
    pub layers: usize,
    /// Width.
    pub width: usize,
    /// Attention heads; they divide the width.
    pub heads: usize,
    /// The longest sequence, in tokens.
    pub sequence: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
}

impl GptConfig {
    /// GPT-3 175B (Brown et al., arXiv 2005.14165, table 2.1), with the vocabulary of Megatron-LM (Narayanan et al.,
    /// arXiv 2104.04473, section 5.1), which is padded to a multiple of 1024. The head has weights of its own.
    pub fn gpt3_175b() -> Self {
        Self { layers: 96, width: 12288, heads: 96, sequence: 2048, vocabulary: 51200 }
    }
}

/// A decoder-only transformer: tokens (i64) `[batch, time]` to logits `[batch, time, vocabulary]`.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Gpt, GptConfig, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("gpt");
/// let config = GptConfig { layers: 2, width: 16, heads: 4, sequence: 8, vocabulary: 50 };
/// let gpt = Gpt::new(&g, &config);
/// let logits = gpt.forward(&g.input("tokens", DType::I64, [2, 8]));
/// assert_eq!(logits.shape(), [2, 8, 50]);
/// g.output("loss", &logits.cross_entropy(&g.input("labels", DType::I64, [2, 8])));
/// assert!(g.finish()?.find("blocks.1.mlp.fc.bias").is_some());
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
pub struct Gpt {
    /// The embedding of tokens.
    pub wte: Embedding,
    /// The embedding of positions.
    pub wpe: Embedding,
    /// The blocks.
    pub blocks: Vec<TransformerBlock>,
    /// The normalization after the last block.
    pub ln_f: LayerNorm,
    /// The projection to logits, without bias.
    pub head: Linear,
}

impl Gpt {
    /// Weights begin as GPT-2's: normal of deviation 0.02, those that add to the residual less with depth.
    #[track_caller]
    pub fn new(g: &GraphBuilder, config: &GptConfig) -> Self {
        let GptConfig { layers, width, heads, sequence, vocabulary } = *config;
        let proj = STD / (2.0 * layers.max(1) as f64).sqrt();
        let block = |i| TransformerBlock::with_std(g, &format!("blocks.{i}"), width, heads, proj);
        g.with_location(|| Self {
            wte: Embedding::with_init(g, "wte", vocabulary, width, normal_init()),
            wpe: Embedding::with_init(g, "wpe", sequence, width, normal_init()),
            blocks: (0..layers).map(block).collect(),
            ln_f: LayerNorm::new(g, "ln_f", width),
            head: Linear::with_init(g, "head", [width, vocabulary], normal_init(), None),
        })
    }

    /// The sum of the embeddings of tokens and of their positions.
    #[track_caller]
    pub fn embed(&self, tokens: &Tensor) -> Tensor {
        let longest = self.wpe.weight.shape().first().copied().unwrap_or(0);
        let time = tokens.shape().last().copied().unwrap_or(0);
        match time == longest {
            true => self.wte.forward(tokens).add(&self.wpe.weight),
            false => self.wte.forward(tokens).add(&self.wpe.weight.slice(0, 0..time)),
        }
    }
}

fn normal_init() -> Init {
    Init::Normal { mean: Scalar(0.0), std: Scalar(STD) }
}

impl Module for Gpt {
    #[track_caller]
    fn forward(&self, tokens: &Tensor) -> Tensor {
        let blocks = || self.blocks.iter().fold(self.embed(tokens), |x, block| block.forward(&x));
        let x = tokens.builder().with_location(blocks);
        self.head.forward(&self.ln_f.forward(&x))
    }

    fn parameters(&self) -> Vec<Tensor> {
        let mut parameters = [self.wte.parameters(), self.wpe.parameters()].concat();
        parameters.extend(self.blocks.iter().flat_map(Module::parameters));
        parameters.extend([self.ln_f.parameters(), self.head.parameters()].concat());
        parameters
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use graphc_ir::array::Array;
    use graphc_ir::evaluate::evaluate_outputs;
    use graphc_ir::types::DType;

    fn logits(tokens: [f64; 4]) -> Vec<f64> {
        let g = GraphBuilder::new("gpt");
        let config = GptConfig { layers: 1, width: 8, heads: 2, sequence: 6, vocabulary: 5 };
        let tokens_in = g.input("tokens", DType::I64, [1, 4]);
        g.output("logits", &Gpt::new(&g, &config).forward(&tokens_in));
        let feeds = BTreeMap::from([("tokens".into(), Array::new([1, 4], tokens.to_vec()))]);
        let graph = g.finish().expect("fits");
        evaluate_outputs(&graph, &feeds, &Default::default()).expect("all is fed")["logits"]
            .data
            .clone()
    }

    #[test]
    fn a_token_changes_itself_and_what_follows_alone() {
        let (a, b) = (logits([1., 2., 3., 4.]), logits([1., 2., 0., 4.]));
        let same: Vec<bool> = a.chunks(5).zip(b.chunks(5)).map(|(a, b)| a == b).collect();
        assert_eq!(same, [true, true, false, false]);
        assert!(a.iter().all(|x| x.is_finite()));
    }
}
