//! GPT as Megatron-LM trains it, and how a row lays it out.

use anyhow::Result;
use graphc::prelude::*;
use graphc_ir::builder::BuildErrors;
use graphc_plan::{Accumulation, Recompute};
use nn::{Embedding, LayerNorm, Linear, Module};

use crate::row::{Megatron, Row};

/// Megatron-LM's default probability of dropout.
const DROPOUT: f64 = 0.1;

/// The whole model over the whole batch, in half precision, each block in its stage.
pub fn graph(row: &Row, layout: &Megatron) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("gpt");
    g.with_dtype(DType::F16, || {
        let &Row { hidden, vocabulary, sequence, .. } = row;
        let words = staged(&g, layout, 0, || Embedding::new(&g, "wte", vocabulary, hidden));
        let mut x = staged(&g, layout, 0, || {
            let tokens = g.input("tokens", DType::I64, [row.global_batch, sequence]);
            let places = Embedding::new(&g, "wpe", sequence, hidden);
            words.forward(&tokens).add(&places.weight).dropout(DROPOUT)
        });
        for layer in 0..row.layers {
            x = staged(&g, layout, chunk(row, layout, layer), || block(&g, row, layer, &x));
        }
        staged(&g, layout, chunk(row, layout, row.layers - 1), || {
            let x = LayerNorm::new(&g, "ln_f", hidden).forward(&x);
            let logits = if layout.tied {
                x.matmul_transposed(&words.weight, false, true)
            } else {
                Linear::without_bias(&g, "head", hidden, vocabulary).forward(&x)
            };
            g.output("logits", &logits);
        });
    });
    g.finish()
}

/// The part of the model that a layer is in: layers are cut into equal parts, or nearly, as many as stages and virtual
/// stages.
fn chunk(row: &Row, layout: &Megatron, layer: usize) -> usize {
    layer * layout.pipeline_parallel * layout.virtual_stages / row.layers
}

/// Runs `body` in a stage; with virtual stages in one of their chunks, which go round the stages.
fn staged<T>(g: &GraphBuilder, layout: &Megatron, stage: usize, body: impl FnOnce() -> T) -> T {
    if layout.pipeline_parallel == 1 { body() } else { g.in_stage(stage, body) }
}

/// Builds one block. Megatron's kernel that scales, masks and normalizes scores goes over them once: so does softmax alone here.
fn block(g: &GraphBuilder, row: &Row, layer: usize, x: &Tensor) -> Tensor {
    let Row { hidden, heads, .. } = *row;
    let [batch, time] = [row.global_batch, row.sequence];
    let each = hidden / heads;
    g.scope(&format!("blocks.{layer}"), || {
        let linear = |name: &str, inputs, outputs| Linear::new(g, name, inputs, outputs);
        let normed = LayerNorm::new(g, "ln1", hidden).forward(x);
        let qkv = linear("qkv", hidden, 3 * hidden).forward(&normed);
        let parts = qkv.reshape(&[batch, time, heads, 3, each]).transpose(&[0, 2, 3, 1, 4]);
        let parts = parts.split(2, &[1, 1, 1]);
        let part = |index: usize| parts[index].reshape(&[batch, heads, time, each]);
        let scores = part(0).matmul_transposed(&part(1), false, true);
        let mixed = scores.softmax(3).dropout(DROPOUT).matmul(&part(2));
        let mixed = mixed.transpose(&[0, 2, 1, 3]).reshape(&[batch, time, hidden]);
        let x = x.add(&linear("proj", hidden, hidden).forward(&mixed).dropout(DROPOUT));
        let normed = LayerNorm::new(g, "ln2", hidden).forward(&x);
        let wide = linear("fc", hidden, 4 * hidden).forward(&normed).gelu_tanh();
        x.add(&linear("out", 4 * hidden, hidden).forward(&wide).dropout(DROPOUT))
    })
}

/// Returns the options by which a row lays the model out: stages over the slowest links, the ranks that share blocks over the fastest.
pub fn options(row: &Row, layout: &Megatron) -> CompileOptions {
    let adam = AdamOptions { lr: 1e-4, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    CompileOptions {
        mesh: vec![layout.pipeline_parallel, layout.data_parallel, layout.tensor_parallel],
        stages: layout.pipeline_parallel,
        microbatches: row.global_batch / (row.micro_batch * layout.data_parallel),
        schedule: match layout.virtual_stages {
            1 => Schedule::OneForwardOneBackward,
            chunks => Schedule::Interleaved { chunks },
        },
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::Adam(adam)),
        strategy: Strategy::Megatron,
        recompute: Recompute::Full,
        // As those trainings did: Megatron sums gradients of fp16 in fp16.
        accumulation: Accumulation::Half,
        // Their scores of attention were in memory.
        keep_attention: true,
        ..CompileOptions::default()
    }
}
