//! LLaMA's architecture at any size (Touvron et al., arXiv 2302.13971; of LLaMA 3 arXiv 2407.21783). Weights are named as
//! in Meta's checkpoints.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::ops::Init;
use graphc_ir::scalar::Scalar;

use super::attention::{STD, three_dims};
use super::{Embedding, Linear, Module, RmsNorm, declare_module};

/// Sizes of a [`Llama`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Transformer blocks.
    pub layers: usize,
    /// Width.
    pub width: usize,
    /// Heads of queries; they divide the width.
    pub heads: usize,
    /// Heads of keys and values; they divide the heads of queries.
    pub shared: usize,
    /// Width of the feed-forward layers.
    pub hidden: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Base of the rotary embedding.
    pub base: f64,
}

impl LlamaConfig {
    /// LLaMA 3 8B (arXiv 2407.21783, table 3): 8,030,261,248 parameters.
    pub fn llama3_8b() -> Self {
        Self {
            layers: 32,
            width: 4096,
            heads: 32,
            shared: 8,
            hidden: 14336,
            vocabulary: 128_256,
            base: 500_000.0,
        }
    }

    /// Llama 3 70B, of 70.55 billion parameters (Dubey et al., arXiv 2407.21783, table 3).
    pub fn llama3_70b() -> Self {
        Self { layers: 80, width: 8192, heads: 64, hidden: 28672, ..Self::llama3_8b() }
    }

    /// Llama 3.1 405B, of 405.9 billion parameters (the same).
    pub fn llama3_405b() -> Self {
        Self { layers: 126, width: 16384, heads: 128, hidden: 53248, ..Self::llama3_8b() }
    }
}

/// Causal self-attention over `[batch, time, width]` in which groups of heads share keys and values (Ainslie et al.,
/// arXiv 2305.13245), with rotary embedding of positions.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{GroupedQueryAttention, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let attention = GroupedQueryAttention::new(&g, "attention", 16, [4, 2], 1e4);
/// let y = attention.forward(&g.input("x", DType::F32, [2, 8, 16]));
/// assert_eq!((y.shape(), attention.wk.weight.shape()), (vec![2, 8, 16], vec![8, 16]));
/// ```
pub struct GroupedQueryAttention {
    /// `width -> width`.
    pub wq: Linear,
    /// `width -> shared * head width`.
    pub wk: Linear,
    /// `width -> shared * head width`.
    pub wv: Linear,
    /// `width -> width`.
    pub wo: Linear,
    /// Heads of queries, and of keys and values.
    pub heads: [usize; 2],
    /// Base of the rotary embedding.
    pub base: f64,
}

impl GroupedQueryAttention {
    /// The heads of queries must divide `width`, those of keys those of queries, else the builder keeps an error.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, width: usize, heads: [usize; 2], base: f64) -> Self {
        Self::with_std(g, name, width, heads, base, STD)
    }

    #[track_caller]
    fn with_std(
        g: &GraphBuilder,
        name: &str,
        width: usize,
        heads: [usize; 2],
        base: f64,
        proj: f64,
    ) -> Self {
        let [own, shared] = heads;
        if own == 0 || shared == 0 || !width.is_multiple_of(own) || !own.is_multiple_of(shared) {
            g.fail(format!("{shared} heads of keys, {own} heads and a width of {width}: each must divide the next"));
        }
        let heads = heads.map(|heads| heads.max(1));
        let keys = width / heads[0] * heads[1];
        declare_module(g, name, || Self {
            wq: declare_linear(g, "wq", [width, width], STD),
            wk: declare_linear(g, "wk", [width, keys], STD),
            wv: declare_linear(g, "wv", [width, keys], STD),
            wo: declare_linear(g, "wo", [width, width], proj),
            heads,
            base,
        })
    }
}

impl Module for GroupedQueryAttention {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let Some([batch, time, width]) = three_dims(x) else { return x.clone() };
        let each = width / self.heads[0];
        let part = |linear: &Linear, heads| linear.forward(x).reshape(&[batch, time, heads, each]);
        let [own, shared] = self.heads;
        let query = part(&self.wq, own).rotary(self.base, true);
        let key = part(&self.wk, shared).rotary(self.base, true);
        let mixed = query.attention(&key, &part(&self.wv, shared), true);
        self.wo.forward(&mixed.reshape(&[batch, time, width]))
    }

    fn parameters(&self) -> Vec<Tensor> {
        [&self.wq, &self.wk, &self.wv, &self.wo].into_iter().flat_map(Module::parameters).collect()
    }
}

/// w2(silu(w1 x) * w3 x): a gated perceptron (Shazeer, arXiv 2002.05202).
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Module, SwiGlu};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let mlp = SwiGlu::new(&g, "feed_forward", 16, 40);
/// assert_eq!(mlp.forward(&g.input("x", DType::F32, [2, 8, 16])).shape(), [2, 8, 16]);
/// ```
pub struct SwiGlu {
    /// The gate, `width -> hidden`.
    pub w1: Linear,
    /// `hidden -> width`.
    pub w2: Linear,
    /// `width -> hidden`.
    pub w3: Linear,
}

impl SwiGlu {
    /// Makes the layers from `width` to `hidden` and back.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, width: usize, hidden: usize) -> Self {
        Self::with_std(g, name, width, hidden, STD)
    }

    #[track_caller]
    fn with_std(g: &GraphBuilder, name: &str, width: usize, hidden: usize, proj: f64) -> Self {
        declare_module(g, name, || Self {
            w1: declare_linear(g, "w1", [width, hidden], STD),
            w2: declare_linear(g, "w2", [hidden, width], proj),
            w3: declare_linear(g, "w3", [width, hidden], STD),
        })
    }
}

impl Module for SwiGlu {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.w2.forward(&self.w1.forward(x).silu().mul(&self.w3.forward(x)))
    }

    fn parameters(&self) -> Vec<Tensor> {
        [&self.w1, &self.w2, &self.w3].into_iter().flat_map(Module::parameters).collect()
    }
}

/// x + attention(norm(x)), then x + feed_forward(norm(x)).
pub struct LlamaBlock {
    /// The normalization before attention.
    pub attention_norm: RmsNorm,
    /// Attention.
    pub attention: GroupedQueryAttention,
    /// The normalization before the perceptron.
    pub ffn_norm: RmsNorm,
    /// The perceptron.
    pub feed_forward: SwiGlu,
}

impl LlamaBlock {
    /// A block of these sizes; what adds to the residual begins smaller with depth.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, config: &LlamaConfig) -> Self {
        let &LlamaConfig { layers, width, heads, shared, hidden, base, .. } = config;
        let proj = STD / (2.0 * layers.max(1) as f64).sqrt();
        let heads = [heads, shared];
        declare_module(g, name, || Self {
            attention_norm: declare_norm(g, "attention_norm", width),
            attention: GroupedQueryAttention::with_std(g, "attention", width, heads, base, proj),
            ffn_norm: declare_norm(g, "ffn_norm", width),
            feed_forward: SwiGlu::with_std(g, "feed_forward", width, hidden, proj),
        })
    }
}

impl Module for LlamaBlock {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let x = x.add(&self.attention.forward(&self.attention_norm.forward(x)));
        x.add(&self.feed_forward.forward(&self.ffn_norm.forward(&x)))
    }

    fn parameters(&self) -> Vec<Tensor> {
        let norms = [self.attention_norm.parameters(), self.ffn_norm.parameters()].concat();
        [norms, self.attention.parameters(), self.feed_forward.parameters()].concat()
    }
}

/// Tokens (i64) `[batch, time]` to logits `[batch, time, vocabulary]`.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Llama, LlamaConfig, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("llama");
/// let sizes = LlamaConfig { layers: 2, width: 16, heads: 4, shared: 2, hidden: 40, vocabulary: 50, base: 1e4 };
/// let llama = Llama::new(&g, &sizes);
/// let logits = llama.forward(&g.input("tokens", DType::I64, [2, 8]));
/// assert_eq!(logits.shape(), [2, 8, 50]);
/// assert!(g.finish()?.find("layers.1.attention.wq.weight").is_some());
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
pub struct Llama {
    /// The embedding of tokens.
    pub tok_embeddings: Embedding,
    /// The blocks.
    pub layers: Vec<LlamaBlock>,
    /// The normalization after the last block.
    pub norm: RmsNorm,
    /// The projection to logits.
    pub output: Linear,
}

impl Llama {
    /// Weights begin normal, of deviation 0.02.
    #[track_caller]
    pub fn new(g: &GraphBuilder, config: &LlamaConfig) -> Self {
        let &LlamaConfig { layers, width, vocabulary, .. } = config;
        g.with_location(|| Self {
            tok_embeddings: Embedding::with_init(
                g,
                "tok_embeddings",
                vocabulary,
                width,
                normal_init(STD),
            ),
            layers: (0..layers)
                .map(|layer| LlamaBlock::new(g, &format!("layers.{layer}"), config))
                .collect(),
            norm: declare_norm(g, "norm", width),
            output: declare_linear(g, "output", [width, vocabulary], STD),
        })
    }
}

impl Module for Llama {
    #[track_caller]
    fn forward(&self, tokens: &Tensor) -> Tensor {
        tokens.builder().with_location(|| {
            let x = self.tok_embeddings.forward(tokens);
            let x = self.layers.iter().fold(x, |x, layer| layer.forward(&x));
            self.output.forward(&self.norm.forward(&x))
        })
    }

    fn parameters(&self) -> Vec<Tensor> {
        let mut parameters = self.tok_embeddings.parameters();
        parameters.extend(self.layers.iter().flat_map(Module::parameters));
        parameters.extend([self.norm.parameters(), self.output.parameters()].concat());
        parameters
    }
}

fn normal_init(std: f64) -> Init {
    Init::Normal { mean: Scalar(0.0), std: Scalar(std) }
}

#[track_caller]
fn declare_linear(g: &GraphBuilder, name: &str, sizes: [usize; 2], std: f64) -> Linear {
    Linear::with_init(g, name, sizes, normal_init(std), None)
}

/// RMS normalization with LLaMA's epsilon.
#[track_caller]
fn declare_norm(g: &GraphBuilder, name: &str, width: usize) -> RmsNorm {
    RmsNorm { epsilon: 1e-5, ..RmsNorm::new(g, name, width) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graphc_ir::types::DType;

    #[test]
    fn llama3_has_its_parameters() {
        let count = |config: LlamaConfig| -> usize {
            let g = GraphBuilder::new("llama3");
            let parameters = Llama::new(&g, &config).parameters();
            parameters.iter().map(|parameter| parameter.ty().elements()).sum()
        };
        assert_eq!(count(LlamaConfig::llama3_8b()), 8_030_261_248);
        assert_eq!(count(LlamaConfig::llama3_70b()), 70_553_706_496);
        assert_eq!(count(LlamaConfig::llama3_405b()), 405_853_388_800);
    }

    #[test]
    fn heads_that_do_not_divide_are_an_error() {
        let g = GraphBuilder::new("wrong");
        let attention = GroupedQueryAttention::new(&g, "attention", 16, [4, 3], 1e4);
        let _ = attention.forward(&g.input("x", DType::F32, [2, 8, 16]));
        let errors = g.finish().expect_err("3 does not divide 4").to_string();
        assert!(errors.contains("3 heads of keys, 4 heads and a width of 16"), "{errors}");
    }
}
