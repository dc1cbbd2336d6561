//! MPT as llm-foundry trains it with PyTorch FSDP: every weight, gradient and state in as many shards as there are ranks.

use anyhow::Result;
use graphc::prelude::*;
use graphc_ir::builder::BuildErrors;
use graphc_ir::ops::Init;
use graphc_ir::scalar::Scalar;
use graphc_plan::Recompute;

use crate::row::{Fsdp, Row};

/// Added to variances.
const EPSILON: f64 = 1e-5;

/// The whole model over the whole batch. FSDP's mixed precision casts every shard to bf16 before it is gathered, so that
/// blocks see nothing else: so do casts of the variables here, which are f32. Of pure bf16 variables are bf16, and the optimizer's states f32, as graphc
/// has them in any case: there the rows had bf16. Gradients are not clipped.
pub fn graph(row: &Row, fsdp: &Fsdp) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("mpt");
    let model = Model { g: &g, row, weights: if fsdp.mixed { DType::F32 } else { DType::BF16 } };
    let &Row { hidden, vocabulary, sequence, .. } = row;
    let tokens = g.input("tokens", DType::I64, [row.global_batch, sequence]);
    let words = model.weight("wte", &[vocabulary, hidden]);
    let places = model.weight("wpe", &[sequence, hidden]);
    let mut x = words.embedding(&tokens).add(&places);
    for layer in 0..row.layers {
        x = g.scope(&format!("blocks.{layer}"), || model.block(&x));
    }
    // The head is the embedding.
    g.output("logits", &model.norm("ln_f", &x).matmul_transposed(&words, false, true));
    g.finish()
}

struct Model<'a> {
    g: &'a GraphBuilder,
    row: &'a Row,
    weights: DType,
}

impl Model<'_> {
    fn weight(&self, name: &str, shape: &[usize]) -> Tensor {
        let init = Init::Normal { mean: Scalar(0.0), std: Scalar(0.02) };
        self.g.variable(name, self.weights, shape, init).cast(DType::BF16)
    }

    fn linear(&self, name: &str, x: &Tensor, outputs: usize) -> Tensor {
        let inputs = x.shape().last().copied().unwrap_or(1);
        x.matmul(&self.weight(name, &[inputs, outputs]))
    }

    /// Layer normalization without a shift.
    fn norm(&self, name: &str, x: &Tensor) -> Tensor {
        x.normalize(true, EPSILON).mul(&self.weight(name, &[self.row.hidden]))
    }

    fn block(&self, x: &Tensor) -> Tensor {
        let Row { hidden, heads, .. } = *self.row;
        let [batch, time, each] = [self.row.global_batch, self.row.sequence, hidden / heads];
        let qkv = self.linear("qkv", &self.norm("ln1", x), 3 * hidden);
        let parts = qkv.reshape(&[batch, time, heads, 3, each]).split(3, &[1, 1, 1]);
        let part = |index: usize| parts[index].reshape(&[batch, time, heads, each]);
        let mixed = part(0).attention(&part(1), &part(2), true).reshape(&[batch, time, hidden]);
        let x = x.add(&self.linear("proj", &mixed, hidden));
        let wide = self.linear("fc", &self.norm("ln2", &x), 4 * hidden).gelu();
        x.add(&self.linear("out", &wide, hidden))
    }
}

/// Returns the options with which a row is trained: one mesh axis of all ranks.
pub fn options(row: &Row, fsdp: &Fsdp) -> CompileOptions {
    let adam = AdamOptions { lr: 1e-4, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    CompileOptions {
        mesh: vec![row.gpus],
        microbatches: fsdp.accumulation,
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(adam)),
        strategy: Strategy::Zero3,
        recompute: if fsdp.recompute { Recompute::Full } else { Recompute::None },
        ..CompileOptions::default()
    }
}
