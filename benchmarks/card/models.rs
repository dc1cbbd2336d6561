//! Writes the models of the kit of cards as texts: GPT-2 124M with its own and with a padded vocabulary, ResNet-50, a LLaMA of 1.1
//! billion weights. Each ends in its loss.
//!
//!     cargo run --release --example card_models -- DIR
//!
//! Beside each a small one of the same kind is written, for rehearsals without a card.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use graphc::models::{Gpt2Config, ResNet, ResNetConfig, gpt2, resnet50};
use graphc::nn::{Llama, LlamaConfig, Module};
use graphc::prelude::*;
use graphc_ir::text::print;

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).context("say a folder")?;
    std::fs::create_dir_all(&folder)?;
    for (name, graph) in models()? {
        write(&folder, name, &graph)?;
    }
    Ok(())
}

fn write(folder: &Path, name: &str, graph: &Graph) -> Result<()> {
    let path = folder.join(name).with_extension("gir");
    std::fs::write(&path, print(graph)).with_context(|| path.display().to_string())
}

fn models() -> Result<Vec<(&'static str, Graph)>> {
    let small = Gpt2Config { dropout: 0.0, ..Gpt2Config::small() };
    let padded = Gpt2Config { vocabulary: 50304, ..small };
    let tiny =
        Gpt2Config { layers: 2, width: 64, heads: 2, sequence: 64, vocabulary: 257, dropout: 0.0 };
    Ok(vec![
        ("gpt2", transformer([8, 1024], small)?),
        ("gpt2-50304", transformer([8, 1024], padded)?),
        ("gpt2-small", transformer([2, 64], tiny)?),
        ("gpt2-50304-small", transformer([2, 64], Gpt2Config { vocabulary: 264, ..tiny })?),
        ("resnet50", images(64, 224, |g| resnet50(g, 1000))?),
        ("resnet50-small", images(2, 32, few_blocks)?),
        ("llama", llama([4, 2048], &billion())?),
        ("llama-small", llama([2, 64], &little())?),
    ])
}

/// TinyLlama's sizes (Zhang et al., arXiv 2401.02385, table 1): 1.1 billion weights.
fn billion() -> LlamaConfig {
    LlamaConfig {
        layers: 22,
        width: 2048,
        heads: 32,
        shared: 4,
        hidden: 5632,
        vocabulary: 32_000,
        base: 10_000.0,
    }
}

fn little() -> LlamaConfig {
    let (layers, width, heads, shared, hidden) = (1, 64, 4, 2, 96);
    LlamaConfig { layers, width, heads, shared, hidden, vocabulary: 257, ..billion() }
}

fn few_blocks(g: &GraphBuilder) -> ResNet {
    let config = ResNetConfig {
        bottleneck: true,
        blocks: [1, 1, 1, 1],
        width: 8,
        classes: 1000,
        cifar_stem: false,
    };
    ResNet::new(g, &config)
}

fn transformer(tokens: [usize; 2], config: Gpt2Config) -> Result<Graph> {
    let g = GraphBuilder::new("gpt2");
    let logits = gpt2(&g, &config).forward(&g.input("tokens", DType::I64, tokens));
    ending_in_loss(g, &logits, &tokens)
}

fn llama(tokens: [usize; 2], config: &LlamaConfig) -> Result<Graph> {
    let g = GraphBuilder::new("llama");
    let logits = Llama::new(&g, config).forward(&g.input("tokens", DType::I64, tokens));
    ending_in_loss(g, &logits, &tokens)
}

fn images(count: usize, side: usize, model: impl Fn(&GraphBuilder) -> ResNet) -> Result<Graph> {
    let g = GraphBuilder::new("resnet50");
    let logits = model(&g).forward(&g.input("x", DType::F32, [count, 3, side, side]));
    ending_in_loss(g, &logits, &[count])
}

fn ending_in_loss(g: GraphBuilder, logits: &Tensor, labels: &[usize]) -> Result<Graph> {
    let labels = g.input("labels", DType::I64, labels.to_vec());
    g.output("loss", &logits.cross_entropy(&labels));
    Ok(g.finish()?)
}
