//! What attention takes of a step.

use graphc_compiler::cluster::preset;
use graphc_compiler::compile::sketch;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::nn::{Gpt, GptConfig, Module};
use graphc_ir::op::Op;
use graphc_ir::plan::{Action, AdamOptions, Cluster, CompileOptions, Loss, Optimizer, Strategy};
use graphc_ir::types::DType;

/// The share of kernels' seconds that attention has, in a step of these many sequences of a length.
fn share(cluster: &Cluster, batch: usize, length: usize) -> f64 {
    let g = GraphBuilder::new("gpt");
    let config = GptConfig { layers: 2, width: 1024, heads: 8, sequence: length, vocabulary: 1024 };
    g.with_dtype(DType::BF16, || {
        let tokens = g.input("tokens", DType::I64, [batch, length]);
        g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
    });
    let adam = AdamOptions { lr: 1e-4, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    let options = CompileOptions {
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(adam)),
        strategy: Strategy::Data,
        ..CompileOptions::default()
    };
    let plan = sketch(g.finish().expect("fits"), &options, cluster).expect("a plan");
    let (mut attention, mut all) = (0.0, 0.0);
    for actor in &plan.programs[0].actors {
        all += actor.seconds;
        if let Action::Compute { op: Op::Attention(_) | Op::AttentionGrad(_), .. } = actor.action {
            attention += actor.seconds;
        }
    }
    attention / all
}

#[test]
fn attention_dominates_long_sequences_and_not_short_ones() {
    let cluster = preset("dgx-h100").expect("a preset");
    let (short, long) = (share(&cluster, 64, 1024), share(&cluster, 1, 65536));
    assert!(short < 0.25, "{short} of a step of short sequences");
    assert!(long > 0.8, "{long} of a step of long ones");
    let mut products = cluster.clone();
    products.device.attention = None;
    assert!(share(&products, 1, 65536) < long, "it is no matrix product of its FLOPs");
}
