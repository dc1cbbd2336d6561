//! The transformer block: attention and a perceptron, each behind a normalization and beside a residual.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::ops::Init;
use graphc_ir::scalar::Scalar;

use super::{LayerNorm, Linear, Module, declare_module};

/// Causal self-attention over `[batch, time, width]`.
///
/// Query, key and value come from one product, `qkv`. Its outputs are ordered by head first, then by query, key
/// and value, so that a split of the outputs gives each rank whole heads (Megatron-LM, arXiv 1909.08053).
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{CausalSelfAttention, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let attention = CausalSelfAttention::new(&g, "attn", 16, 4);
/// let y = attention.forward(&g.input("x", DType::F32, [2, 8, 16]));
/// assert_eq!(y.shape(), [2, 8, 16]);
/// ```
pub struct CausalSelfAttention {
    /// `width -> heads * 3 * head width`.
    pub qkv: Linear,
    /// `width -> width`.
    pub proj: Linear,
    /// Number of heads.
    pub heads: usize,
}

impl CausalSelfAttention {
    /// `heads` must divide `width`, else the builder keeps an error.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, width: usize, heads: usize) -> Self {
        Self::with_std(g, name, width, heads, STD)
    }

    #[track_caller]
    pub(super) fn with_std(
        g: &GraphBuilder,
        name: &str,
        width: usize,
        heads: usize,
        proj: f64,
    ) -> Self {
        if heads == 0 || !width.is_multiple_of(heads) {
            g.fail(format!("{heads} heads do not divide a width of {width}"));
        }
        declare_module(g, name, || Self {
            qkv: declare_linear(g, "qkv", [width, 3 * width], STD),
            proj: declare_linear(g, "proj", [width, width], proj),
            heads: heads.max(1),
        })
    }

    /// `[batch, time, width]` to query, key and value, each `[batch, time, heads, head width]`.
    fn heads_of(&self, x: &Tensor, [batch, time, width]: [usize; 3]) -> Vec<Tensor> {
        let (heads, each) = (self.heads, width / self.heads);
        let qkv = self.qkv.forward(x).reshape(&[batch, time, heads, 3, each]);
        let parts = qkv.split(3, &[1, 1, 1]);
        parts.iter().map(|part| part.reshape(&[batch, time, heads, each])).collect()
    }
}

impl Module for CausalSelfAttention {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let Some([batch, time, width]) = three_dims(x) else { return x.clone() };
        let parts = self.heads_of(x, [batch, time, width]);
        let [query, key, value] = &parts[..] else { return x.clone() };
        self.proj.forward(&query.attention(key, value, true).reshape(&[batch, time, width]))
    }

    fn parameters(&self) -> Vec<Tensor> {
        [self.qkv.parameters(), self.proj.parameters()].concat()
    }
}

/// Two linear layers with GELU between.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Mlp, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let mlp = Mlp::new(&g, "mlp", 16, 64);
/// assert_eq!(mlp.forward(&g.input("x", DType::F32, [2, 8, 16])).shape(), [2, 8, 16]);
/// ```
pub struct Mlp {
    /// `width -> hidden`.
    pub fc: Linear,
    /// `hidden -> width`.
    pub proj: Linear,
}

impl Mlp {
    /// Makes the layers from `width` to `hidden` and back.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, width: usize, hidden: usize) -> Self {
        Self::with_std(g, name, width, hidden, STD)
    }

    #[track_caller]
    fn with_std(g: &GraphBuilder, name: &str, width: usize, hidden: usize, proj: f64) -> Self {
        declare_module(g, name, || Self {
            fc: declare_linear(g, "fc", [width, hidden], STD),
            proj: declare_linear(g, "proj", [hidden, width], proj),
        })
    }
}

impl Module for Mlp {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.proj.forward(&self.fc.forward(x).gelu())
    }

    fn parameters(&self) -> Vec<Tensor> {
        [self.fc.parameters(), self.proj.parameters()].concat()
    }
}

/// x + attention(norm(x)), then x + mlp(norm(x)): the pre-normalized block of GPT-2.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Module, TransformerBlock};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let block = TransformerBlock::new(&g, "blocks.0", 16, 4);
/// assert_eq!(block.forward(&g.input("x", DType::F32, [2, 8, 16])).shape(), [2, 8, 16]);
/// assert!(g.finish()?.find("blocks.0.attn.qkv.weight").is_some());
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
pub struct TransformerBlock {
    /// The normalization before attention.
    pub ln1: LayerNorm,
    /// Attention.
    pub attn: CausalSelfAttention,
    /// The normalization before the perceptron.
    pub ln2: LayerNorm,
    /// The perceptron, four times as wide.
    pub mlp: Mlp,
}

impl TransformerBlock {
    /// A block of this width with this many heads.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, width: usize, heads: usize) -> Self {
        Self::with_std(g, name, width, heads, STD)
    }

    #[track_caller]
    pub(super) fn with_std(
        g: &GraphBuilder,
        name: &str,
        width: usize,
        heads: usize,
        proj: f64,
    ) -> Self {
        declare_module(g, name, || Self {
            ln1: LayerNorm::new(g, "ln1", width),
            attn: CausalSelfAttention::with_std(g, "attn", width, heads, proj),
            ln2: LayerNorm::new(g, "ln2", width),
            mlp: Mlp::with_std(g, "mlp", width, 4 * width, proj),
        })
    }
}

impl Module for TransformerBlock {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let x = x.add(&self.attn.forward(&self.ln1.forward(x)));
        x.add(&self.mlp.forward(&self.ln2.forward(&x)))
    }

    fn parameters(&self) -> Vec<Tensor> {
        let norms = [self.ln1.parameters(), self.ln2.parameters()].concat();
        [norms, self.attn.parameters(), self.mlp.parameters()].concat()
    }
}

/// The standard deviation of first weights in GPT-2.
pub(super) const STD: f64 = 0.02;

/// A linear layer as GPT-2 begins it: normal weights, no bias at first.
#[track_caller]
pub(super) fn declare_linear(g: &GraphBuilder, name: &str, sizes: [usize; 2], std: f64) -> Linear {
    let weight = Init::Normal { mean: Scalar(0.0), std: Scalar(std) };
    Linear::with_init(g, name, sizes, weight, Some(Init::Fill(Scalar(0.0))))
}

/// The extents of `[batch, time, width]`; else the builder keeps an error, once.
#[track_caller]
pub(super) fn three_dims(x: &Tensor) -> Option<[usize; 3]> {
    let dims = x.shape().try_into().ok();
    if dims.is_none() && x.id().is_some() {
        x.builder().fail(format!("attention takes [batch, time, width], not {}", x.ty()));
    }
    dims
}
