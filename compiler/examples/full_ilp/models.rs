//! Models of many kinds, small enough that a general solver closes them.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use graphc_import::{ImportOptions, load_model};
use graphc_ir::builder::{BuildErrors, GraphBuilder, Tensor};
use graphc_ir::graph::Graph;
use graphc_ir::ops::{Init, Window};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;
use graphc_nn::{
    Gpt, GptConfig, GroupedQueryAttention, LayerNorm, Linear, Llama, LlamaConfig, Mlp, Module,
    RmsNorm, SwiGlu, SwitchConfig, SwitchFeedForward,
};

/// A model as PyTorch exports it, from tests/refs.
pub fn reference(name: &str, batch: usize) -> Result<Graph, Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/refs").join(name);
    let dims = BTreeMap::from([("batch".to_string(), batch)]);
    Ok(load_model(&folder.join("model.onnx"), &dims, ImportOptions::default())?.graph)
}

/// Layers of one width with ReLU between them.
pub fn mlp(layers: usize, batch: usize, width: usize) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("mlp");
    let mut x = g.input("x", DType::F32, [batch, width]);
    for layer in 0..layers {
        x = Linear::new(&g, &format!("layers.{layer}"), width, width).forward(&x);
        if layer + 1 < layers {
            x = x.relu();
        }
    }
    g.output("y", &x);
    g.finish()
}

/// GPT-2's architecture. A tied head is the embedding of tokens, transposed.
pub fn gpt(layers: usize, batch: usize, width: usize, tied: bool) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("gpt");
    let config = GptConfig { layers, width, heads: 4, sequence: 32, vocabulary: 256 };
    let tokens = g.input("tokens", DType::I64, [batch, 32]);
    let gpt = Gpt::new(&g, &config);
    let logits = if tied {
        let x = gpt.blocks.iter().fold(gpt.embed(&tokens), |x, block| block.forward(&x));
        gpt.ln_f.forward(&x).matmul_transposed(&gpt.wte.weight, false, true)
    } else {
        gpt.forward(&tokens)
    };
    g.output("logits", &logits);
    g.finish()
}

/// Attention over all positions, its scores in parts.
fn attention(g: &GraphBuilder, name: &str, x: &Tensor, heads: usize) -> Tensor {
    let shape = x.shape();
    let [batch, time, width] = shape[..] else { return x.clone() };
    let linear = |part: &str| Linear::new(g, &format!("{name}.{part}"), width, width);
    let split =
        |x: &Tensor| x.reshape(&[batch, time, heads, width / heads]).transpose(&[0, 2, 1, 3]);
    let [q, k, v] = ["query", "key", "value"].map(|part| split(&linear(part).forward(x)));
    let scale = 1.0 / ((width / heads) as f64).sqrt();
    let mixed = q.matmul_transposed(&k, false, true).scale(scale).softmax(3).matmul(&v);
    linear("output").forward(&mixed.transpose(&[0, 2, 1, 3]).reshape(&[batch, time, width]))
}

/// An encoder layer as BERT's: attention and a feed-forward part, each added and normalized.
fn encoder(g: &GraphBuilder, name: &str, x: &Tensor, heads: usize) -> Tensor {
    let width = x.shape()[2];
    let norm = |part: &str| LayerNorm::new(g, &format!("{name}.{part}"), width);
    let x = norm("attention_norm").forward(&attention(g, name, x, heads).add(x));
    let fed = Mlp::new(g, &format!("{name}.mlp"), width, 4 * width).forward(&x);
    norm("norm").forward(&fed.add(&x))
}

/// BERT's encoder on embedded tokens.
pub fn bert(layers: usize, [batch, time, width]: [usize; 3]) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("bert");
    let x = g.input("x", DType::F32, [batch, time, width]);
    let layer = |x: Tensor, layer: usize| encoder(&g, &format!("layers.{layer}"), &x, 8);
    g.output("y", &(0..layers).fold(x, layer));
    g.finish()
}

/// A vision transformer (Dosovitskiy et al., arXiv 2010.11929) with the mean of its patches before the head.
pub fn vit(layers: usize, batch: usize, width: usize) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("vit");
    let images = g.input("images", DType::F32, [batch, 3, 32, 32]);
    let normal = || Init::Normal { mean: Scalar(0.0), std: Scalar(0.02) };
    let kernels = g.variable("patches.weight", DType::F32, [width, 3, 8, 8], normal());
    let places = g.variable("places", DType::F32, [16, width], normal());
    let patches = images.convolution(&kernels, Window { strides: [8; 2], ..Window::PLAIN }, 1);
    let x = patches.reshape(&[batch, width, 16]).transpose(&[0, 2, 1]).add(&places);
    let layer = |x: Tensor, layer: usize| encoder(&g, &format!("layers.{layer}"), &x, 4);
    let x = (0..layers).fold(x, layer).mean(&[1], false);
    g.output("logits", &Linear::new(&g, "head", width, 10).forward(&x));
    g.finish()
}

/// LLaMA's architecture with two heads of queries for each of keys.
pub fn llama(layers: usize, batch: usize, width: usize) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("llama");
    let config = LlamaConfig {
        layers,
        width,
        heads: 8,
        shared: 4,
        hidden: 3 * width,
        vocabulary: 256,
        base: 1e4,
    };
    let tokens = g.input("tokens", DType::I64, [batch, 32]);
    g.output("logits", &Llama::new(&g, &config).forward(&tokens));
    g.finish()
}

/// Gated perceptrons beside their residuals.
pub fn swiglu(layers: usize, batch: usize, width: usize) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("swiglu");
    let mut x = g.input("x", DType::F32, [batch, 16, width]);
    for layer in 0..layers {
        let y = RmsNorm::new(&g, &format!("{layer}.norm"), width).forward(&x);
        x = SwiGlu::new(&g, &format!("{layer}.mlp"), width, 4 * width).forward(&y).add(&x);
    }
    g.output("y", &x);
    g.finish()
}

/// Attention whose heads of queries share few of keys and values.
pub fn grouped_heads(batch: usize, width: usize) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("grouped_heads");
    let mut x = g.input("x", DType::F32, [batch, 32, width]);
    for layer in 0..2 {
        let name = format!("layers.{layer}");
        x = GroupedQueryAttention::new(&g, &name, width, [8, 2], 1e4).forward(&x).add(&x);
    }
    g.output("y", &x);
    g.finish()
}

/// Convolutions with batch norm, one of them beside a residual, and a head.
pub fn convolutions(batch: usize, channels: usize) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("convolutions");
    let images = g.input("images", DType::F32, [batch, 3, 16, 16]);
    let normal = |g: &GraphBuilder, name: &str, shape: [usize; 4]| {
        g.variable(name, DType::F32, shape, Init::Normal { mean: Scalar(0.0), std: Scalar(0.05) })
    };
    let same = Window { pads: [1; 4], ..Window::PLAIN };
    let block = |name: &str, x: &Tensor| {
        let from = x.shape()[1];
        let kernels = normal(&g, &format!("{name}.weight"), [channels, from, 3, 3]);
        let [scale, bias] = [("scale", 1.0), ("bias", 0.0)].map(|(part, value)| {
            let init = Init::Fill(Scalar(value));
            g.variable(&format!("{name}.{part}"), DType::F32, [channels], init)
        });
        let [mean, variance] = [0.0, 1.0].map(|value| g.full(DType::F32, [channels], value));
        x.convolution(&kernels, same, 1).batch_norm(&scale, &bias, [&mean, &variance], 1e-5).relu()
    };
    let x = block("stem", &images);
    let x = block("residual", &x).add(&x);
    let x = block("last", &x.max_pool([2, 2], Window { strides: [2; 2], ..Window::PLAIN }));
    g.output("logits", &Linear::new(&g, "head", channels, 10).forward(&x.mean(&[2, 3], false)));
    g.finish()
}

/// A mixture of experts beside its residual.
pub fn experts(batch: usize, width: usize) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("experts");
    let x = g.input("x", DType::F32, [batch, 16, width]);
    let sizes = SwitchConfig { width, hidden: 4 * width, experts: 8, capacity: 1.25 };
    let y = SwitchFeedForward::new(&g, "switch", &sizes).forward(&x).add(&x);
    g.output("y", &Linear::new(&g, "head", width, width).forward(&y));
    g.finish()
}
