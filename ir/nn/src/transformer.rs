//! Attention and the layers of Vaswani et al., arXiv 1706.03762, as torch has them with `batch_first`.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::ops::Init;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;

use super::attention::three_dims;
use super::{Dropout, LayerNorm, Linear, Module, declare_module};

/// A mask that says which keys a query sees.
#[derive(Clone, Copy, Default)]
pub enum Mask<'a> {
    /// All.
    #[default]
    None,
    /// Itself and those before it.
    Causal,
    /// A mask that broadcasts to `[batch, heads, queries, keys]`, as torch has it: truth values, of those that are *not* seen, or numbers
    /// that are added to the scores.
    Of(&'a Tensor),
}

/// Attention with several heads: of a sequence to itself, or to another.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Mask, Module, MultiheadAttention};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let attention = MultiheadAttention::new(&g, "attn", 16, 4);
/// let x = g.input("x", DType::F32, [2, 8, 16]);
/// assert_eq!(attention.forward(&x).shape(), [2, 8, 16]);
/// let memory = g.input("memory", DType::F32, [2, 5, 16]);
/// // True of keys that are padding.
/// let padding = g.input("padding", DType::Bool, [2, 1, 1, 5]);
/// let y = attention.attend(&x, &memory, &memory, Mask::Of(&padding));
/// assert_eq!(y.shape(), [2, 8, 16]);
/// ```
pub struct MultiheadAttention {
    /// The projection of queries, keys and values, one below the other: `[3 width, width]`.
    pub in_proj_weight: Tensor,
    /// `[3 width]`.
    pub in_proj_bias: Tensor,
    /// `width -> width`.
    pub out_proj: Linear,
    /// Number of heads.
    pub heads: usize,
    /// Zeros in what each query takes of the keys, in training.
    pub dropout: f64,
}

impl MultiheadAttention {
    /// Makes the layer with torch's first contents: Xavier's uniform for the projection of what goes in, no bias at first. `heads` must
    /// divide `width`, else the builder keeps an error.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, width: usize, heads: usize) -> Self {
        if heads == 0 || !width.is_multiple_of(heads) {
            g.fail(format!("{heads} heads do not divide a width of {width}"));
        }
        let zero = Init::Fill(Scalar(0.0));
        let (own, out) = (uniform_init((6.0 / (4 * width.max(1)) as f64).sqrt()), by_inputs(width));
        declare_module(g, name, || Self {
            in_proj_weight: g.variable("in_proj_weight", g.dtype(), [3 * width, width], own),
            in_proj_bias: g.variable("in_proj_bias", g.dtype(), [3 * width], zero.clone()),
            out_proj: Linear::with_init(g, "out_proj", [width, width], out, Some(zero)),
            heads: heads.max(1),
            dropout: 0.0,
        })
    }

    /// Computes attention of queries `[batch, queries, width]` to keys and values `[batch, keys, width]`.
    #[track_caller]
    pub fn attend(&self, query: &Tensor, key: &Tensor, value: &Tensor, mask: Mask<'_>) -> Tensor {
        query.builder().with_location(|| {
            let Some([batch, time, width]) = three_dims(query) else { return query.clone() };
            let projected = self.project_heads([query, key, value], width);
            let [query, key, value] = &projected[..] else { return query.clone() };
            let seen = match mask {
                Mask::Of(mask) => self.weigh_values([query, key, value], Some(mask)),
                Mask::None if self.dropout > 0.0 => self.weigh_values([query, key, value], None),
                Mask::Causal if self.dropout > 0.0 => {
                    let later = mask_later_keys(query, key);
                    self.weigh_values([query, key, value], Some(&later))
                }
                Mask::None => query.attention(key, value, false),
                Mask::Causal => query.attention(key, value, true),
            };
            self.out_proj.forward(&seen.reshape(&[batch, time, width]))
        })
    }

    /// Queries, keys and values, each `[batch, time, heads, head width]`: one product where they come from one sequence.
    fn project_heads(&self, given: [&Tensor; 3], width: usize) -> Vec<Tensor> {
        let heads = |x: &Tensor| match x.shape()[..] {
            [batch, time, _] => x.reshape(&[batch, time, self.heads, width / self.heads]),
            _ => x.clone(),
        };
        let product = |x: &Tensor, weight: &Tensor, bias: &Tensor| {
            x.matmul_transposed(weight, false, true).add(bias)
        };
        let [query, key, value] = given;
        if query.id() == key.id() && key.id() == value.id() {
            let all = product(query, &self.in_proj_weight, &self.in_proj_bias);
            return all.split(2, &[width; 3]).iter().map(heads).collect();
        }
        let weights = self.in_proj_weight.split(0, &[width; 3]);
        let biases = self.in_proj_bias.split(0, &[width; 3]);
        let parts = given.into_iter().zip(weights.iter().zip(&biases));
        parts.map(|(x, (weight, bias))| heads(&product(x, weight, bias))).collect()
    }

    /// Attention with all scores at hand.
    fn weigh_values(&self, [query, key, value]: [&Tensor; 3], mask: Option<&Tensor>) -> Tensor {
        let by_head = |x: &Tensor| x.transpose(&[0, 2, 1, 3]);
        let width = query.shape().last().copied().unwrap_or(1).max(1);
        let scale = 1.0 / (width as f64).sqrt();
        let query = by_head(query).scale(scale);
        let mut scores = query.matmul_transposed(&by_head(key), false, true);
        if let Some(mask) = mask {
            scores = match mask.ty().dtype {
                DType::Bool => mask.select(&scores.scalar_like(f64::NEG_INFINITY), &scores),
                _ => scores.add(mask),
            };
        }
        let shares = Dropout(self.dropout).forward(&scores.softmax(3));
        by_head(&shares.matmul(&by_head(value)))
    }
}

/// True of keys behind a query, `[queries, keys]`.
fn mask_later_keys(query: &Tensor, key: &Tensor) -> Tensor {
    let extent = |x: &Tensor| x.shape().get(1).copied().unwrap_or(1);
    let shape = [extent(query), extent(key)];
    let [row, column] = [0, 1].map(|dim| query.builder().iota(DType::I64, shape, dim));
    column.greater(&row)
}

fn uniform_init(bound: f64) -> Init {
    Init::Uniform { low: Scalar(-bound), high: Scalar(bound) }
}

fn by_inputs(inputs: usize) -> Init {
    uniform_init(1.0 / (inputs.max(1) as f64).sqrt())
}

/// Attention of a sequence to itself, each element to all.
impl Module for MultiheadAttention {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.attend(x, x, x, Mask::None)
    }

    fn parameters(&self) -> Vec<Tensor> {
        let own = vec![self.in_proj_weight.clone(), self.in_proj_bias.clone()];
        [own, self.out_proj.parameters()].concat()
    }
}

/// Sizes of transformer layers; what torch has by default is there at first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerConfig {
    /// Width.
    pub width: usize,
    /// Attention heads; they divide the width.
    pub heads: usize,
    /// Width inside the perceptron.
    pub hidden: usize,
    /// Zeros, in training, in what attention takes of keys and in all that is added.
    pub dropout: f64,
    /// Whether normalization comes before what is added, instead of behind the sum.
    pub norm_first: bool,
    /// Whether the perceptron has GELU instead of ReLU.
    pub gelu: bool,
}

impl TransformerConfig {
    /// A perceptron of 2048, a dropout of 0.1, normalization behind sums, ReLU.
    pub fn new(width: usize, heads: usize) -> Self {
        let (hidden, dropout, norm_first, gelu) = (2048, 0.1, false, false);
        Self { width, heads, hidden, dropout, norm_first, gelu }
    }

    fn declare_attention(&self, g: &GraphBuilder, name: &str) -> MultiheadAttention {
        let plain = MultiheadAttention::new(g, name, self.width, self.heads);
        MultiheadAttention { dropout: self.dropout, ..plain }
    }

    /// Adds the result of a layer, with dropout, to x. The normalization stands before or behind the layer.
    fn add_residual(
        &self,
        x: &Tensor,
        norm: &LayerNorm,
        what: impl FnOnce(&Tensor) -> Tensor,
    ) -> Tensor {
        let drop = Dropout(self.dropout);
        match self.norm_first {
            true => x.add(&drop.forward(&what(&norm.forward(x)))),
            false => norm.forward(&x.add(&drop.forward(&what(x)))),
        }
    }
}

/// The two linear layers of a transformer's perceptron.
struct Perceptron {
    linear1: Linear,
    linear2: Linear,
    config: TransformerConfig,
}

impl Perceptron {
    #[track_caller]
    fn new(g: &GraphBuilder, config: TransformerConfig) -> Self {
        let linear1 = Linear::new(g, "linear1", config.width, config.hidden);
        Self { linear1, linear2: Linear::new(g, "linear2", config.hidden, config.width), config }
    }

    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let x = self.linear1.forward(x);
        let x = if self.config.gelu { x.gelu() } else { x.relu() };
        self.linear2.forward(&Dropout(self.config.dropout).forward(&x))
    }

    fn parameters(&self) -> Vec<Tensor> {
        [self.linear1.parameters(), self.linear2.parameters()].concat()
    }
}

/// Attention of a sequence to itself, and a perceptron.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Module, TransformerConfig, TransformerEncoderLayer};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let config = TransformerConfig { hidden: 64, ..TransformerConfig::new(16, 4) };
/// let layer = TransformerEncoderLayer::new(&g, "layers.0", config);
/// assert_eq!(layer.forward(&g.input("x", DType::F32, [2, 8, 16])).shape(), [2, 8, 16]);
/// assert!(g.finish()?.find("layers.0.self_attn.out_proj.weight").is_some());
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
pub struct TransformerEncoderLayer {
    /// The attention of the sequence to itself.
    pub self_attn: MultiheadAttention,
    /// The normalization of attention.
    pub norm1: LayerNorm,
    /// The normalization of the perceptron.
    pub norm2: LayerNorm,
    mlp: Perceptron,
}

impl TransformerEncoderLayer {
    /// Makes the layer with torch's first contents.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, config: TransformerConfig) -> Self {
        declare_module(g, name, || Self {
            self_attn: config.declare_attention(g, "self_attn"),
            mlp: Perceptron::new(g, config),
            norm1: LayerNorm::new(g, "norm1", config.width),
            norm2: LayerNorm::new(g, "norm2", config.width),
        })
    }

    /// Like [`Module::forward`], with a mask of the keys that a query sees.
    #[track_caller]
    pub fn forward_masked(&self, x: &Tensor, mask: Mask<'_>) -> Tensor {
        x.builder().with_location(|| {
            let config = &self.mlp.config;
            let attend = |x: &Tensor| self.self_attn.attend(x, x, x, mask);
            let x = config.add_residual(x, &self.norm1, attend);
            config.add_residual(&x, &self.norm2, |x| self.mlp.forward(x))
        })
    }
}

impl Module for TransformerEncoderLayer {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.forward_masked(x, Mask::None)
    }

    fn parameters(&self) -> Vec<Tensor> {
        let norms = [self.norm1.parameters(), self.norm2.parameters()].concat();
        [self.self_attn.parameters(), self.mlp.parameters(), norms].concat()
    }
}

/// Attention of a sequence to itself, to another one, the memory, and a perceptron.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Mask, TransformerConfig, TransformerDecoderLayer};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let config = TransformerConfig { hidden: 64, ..TransformerConfig::new(16, 4) };
/// let layer = TransformerDecoderLayer::new(&g, "layers.0", config);
/// let [x, memory] = [("x", 8), ("memory", 5)].map(|(name, time)| g.input(name, DType::F32, [2, time, 16]));
/// let y = layer.forward_with(&x, &memory, [Mask::Causal, Mask::None]);
/// assert_eq!((y.shape(), layer.parameters().len()), (vec![2, 8, 16], 18));
/// ```
pub struct TransformerDecoderLayer {
    /// The attention of the sequence to itself.
    pub self_attn: MultiheadAttention,
    /// The attention of the sequence to the memory.
    pub multihead_attn: MultiheadAttention,
    /// The normalization of the attention to itself.
    pub norm1: LayerNorm,
    /// The normalization of the attention to the memory.
    pub norm2: LayerNorm,
    /// The normalization of the perceptron.
    pub norm3: LayerNorm,
    mlp: Perceptron,
}

impl TransformerDecoderLayer {
    /// Makes the layer with torch's first contents.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, config: TransformerConfig) -> Self {
        declare_module(g, name, || Self {
            self_attn: config.declare_attention(g, "self_attn"),
            multihead_attn: config.declare_attention(g, "multihead_attn"),
            mlp: Perceptron::new(g, config),
            norm1: LayerNorm::new(g, "norm1", config.width),
            norm2: LayerNorm::new(g, "norm2", config.width),
            norm3: LayerNorm::new(g, "norm3", config.width),
        })
    }

    /// Computes the layer for a sequence and a memory, with a mask of each.
    #[track_caller]
    pub fn forward_with(&self, x: &Tensor, memory: &Tensor, masks: [Mask<'_>; 2]) -> Tensor {
        x.builder().with_location(|| {
            let (config, [own, of_memory]) = (&self.mlp.config, masks);
            let attend = |x: &Tensor| self.self_attn.attend(x, x, x, own);
            let x = config.add_residual(x, &self.norm1, attend);
            let attend = |x: &Tensor| self.multihead_attn.attend(x, memory, memory, of_memory);
            let x = config.add_residual(&x, &self.norm2, attend);
            config.add_residual(&x, &self.norm3, |x| self.mlp.forward(x))
        })
    }

    /// Returns its weights.
    pub fn parameters(&self) -> Vec<Tensor> {
        let attention = [self.self_attn.parameters(), self.multihead_attn.parameters()].concat();
        let norms = [&self.norm1, &self.norm2, &self.norm3].map(Module::parameters).concat();
        [attention, self.mlp.parameters(), norms].concat()
    }
}
