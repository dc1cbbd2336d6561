//! Writes the models of the kit of cards as texts: GPT-2 124M with its own and with a padded vocabulary, ResNet-50, a LLaMA of 1.1
//! billion weights. Each ends in its loss.
//!
//!     cargo run --release --example card_models -- DIR
//!
//! Beside each a small one of the same kind is written, for rehearsals without a card, and in `models.json` what others must know of
//! them to train the same: sizes, the batch, options of the optimizer, whose data they take.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use graphc::models::{Gpt2Config, ResNet, ResNetConfig, gpt2};
use graphc::nn::{Llama, LlamaConfig, Module};
use graphc::prelude::*;
use graphc_ir::op::Op;
use graphc_ir::text::print_graph;
use serde_json::{Map, Value, json};

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).context("say a folder")?;
    std::fs::create_dir_all(&folder)?;
    let mut all = Map::new();
    for Model { name, data, graph, mut sizes } in models()? {
        write(&folder.join(name).with_extension("gir"), &print_graph(&graph))?;
        sizes["data"] = json!(data);
        sizes["parameters"] = json!(parameters(&graph));
        all.insert(name.to_owned(), sizes);
    }
    write(&folder.join("models.json"), &format!("{:#}\n", Value::Object(all)))
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

/// A model of the kit.
struct Model {
    name: &'static str,
    /// The model whose data it takes.
    data: &'static str,
    graph: Graph,
    /// The sizes that other programs of the kit must know.
    sizes: Value,
}

const ADAMW: [&str; 6] = ["--optimizer", "adamw", "--lr", "0.0003", "--weight-decay", "0.01"];
const SGD: [&str; 6] = ["--optimizer", "sgd", "--lr", "0.001", "--momentum", "0.9"];

fn models() -> Result<Vec<Model>> {
    let small = Gpt2Config { dropout: 0.0, ..Gpt2Config::small() };
    let padded = Gpt2Config { vocabulary: 50304, ..small };
    let tiny =
        Gpt2Config { layers: 2, width: 64, heads: 2, sequence: 64, vocabulary: 257, dropout: 0.0 };
    Ok(vec![
        transformer("gpt2", [8, 1024], small)?,
        transformer("gpt2-50304", [8, 1024], padded)?,
        transformer("gpt2-small", [2, 64], tiny)?,
        transformer("gpt2-50304-small", [2, 64], Gpt2Config { vocabulary: 264, ..tiny })?,
        images("resnet50", [64, 224], &ResNetConfig::resnet50(1000))?,
        images("resnet50-small", [2, 32], &few_blocks())?,
        llama("llama", [4, 2048], &billion())?,
        llama("llama-small", [2, 64], &little())?,
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

fn few_blocks() -> ResNetConfig {
    ResNetConfig { blocks: [1; 4], width: 8, ..ResNetConfig::resnet50(1000) }
}

fn transformer(name: &'static str, tokens: [usize; 2], config: Gpt2Config) -> Result<Model> {
    let g = GraphBuilder::new("gpt2");
    let logits = gpt2(&g, &config).forward(&g.input("tokens", DType::I64, tokens));
    let graph = ending_in_loss(g, &logits, &tokens)?;
    let Gpt2Config { layers, width, heads, sequence: _, vocabulary, dropout: _ } = config;
    let sizes = json!({
        "kind": "gpt2", "optimizer": ADAMW, "batch": tokens[0], "time": tokens[1],
        "layers": layers, "width": width, "heads": heads, "vocabulary": vocabulary,
    });
    Ok(Model { name, data: "gpt2", graph, sizes })
}

fn llama(name: &'static str, tokens: [usize; 2], config: &LlamaConfig) -> Result<Model> {
    let g = GraphBuilder::new("llama");
    let logits = Llama::new(&g, config).forward(&g.input("tokens", DType::I64, tokens));
    let graph = ending_in_loss(g, &logits, &tokens)?;
    let LlamaConfig { layers, width, heads, shared, hidden, vocabulary, base } = *config;
    let sizes = json!({
        "kind": "llama", "optimizer": ADAMW, "batch": tokens[0], "time": tokens[1],
        "layers": layers, "width": width, "heads": heads, "shared": shared, "hidden": hidden,
        "vocabulary": vocabulary, "base": base,
    });
    Ok(Model { name, data: "llama", graph, sizes })
}

fn images(name: &'static str, [count, side]: [usize; 2], config: &ResNetConfig) -> Result<Model> {
    let g = GraphBuilder::new("resnet50");
    let logits = ResNet::new(&g, config).forward(&g.input("x", DType::F32, [count, 3, side, side]));
    let graph = ending_in_loss(g, &logits, &[count])?;
    let &ResNetConfig { bottleneck: _, blocks, width, classes, cifar_stem: _ } = config;
    let sizes = json!({
        "kind": "resnet", "optimizer": SGD, "batch": count, "side": side,
        "classes": classes, "blocks": blocks, "width": width,
    });
    Ok(Model { name, data: "resnet50", graph, sizes })
}

fn ending_in_loss(g: GraphBuilder, logits: &Tensor, labels: &[usize]) -> Result<Graph> {
    let labels = g.input("labels", DType::I64, labels.to_vec());
    g.output("loss", &logits.cross_entropy(&labels));
    Ok(g.finish()?)
}

/// Returns the number of trained parameters.
fn parameters(graph: &Graph) -> usize {
    let trained = graph.iter().filter_map(|(_, node)| match &node.op {
        Op::Variable(variable) if variable.trainable => Some(variable.ty.elements()),
        _ => None,
    });
    trained.sum()
}
