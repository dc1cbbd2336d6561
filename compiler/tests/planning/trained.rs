//! The models that tests train, by AdamW on cross entropy: a small GPT, and decoders of any size.

use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::types::DType;
use graphc_nn::{Gpt, GptConfig, Llama, LlamaConfig, Module};
use graphc_plan::{AdamOptions, CompileOptions, Loss, Optimizer};

pub const ADAM: AdamOptions =
    AdamOptions { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };

/// Training by AdamW on cross entropy.
pub fn options(mesh: &[usize], stages: usize, microbatches: usize) -> CompileOptions {
    CompileOptions {
        mesh: mesh.to_vec(),
        stages,
        microbatches,
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(ADAM)),
        ..CompileOptions::default()
    }
}

/// A decoder with rotary embeddings and gated perceptrons, over tokens `[batch, sequence]`.
pub fn llama(config: &LlamaConfig, tokens: [usize; 2]) -> Graph {
    let g = GraphBuilder::new("llama");
    let tokens = g.input("tokens", DType::I64, tokens);
    g.output("logits", &Llama::new(&g, config).forward(&tokens));
    g.finish().expect("fits")
}

/// Two layers over characters.
pub fn gpt() -> Graph {
    let g = GraphBuilder::new("gpt");
    let config = GptConfig { layers: 2, width: 32, heads: 4, sequence: 16, vocabulary: 65 };
    let tokens = g.input("tokens", DType::I64, [8, 16]);
    g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
    g.finish().expect("fits")
}
