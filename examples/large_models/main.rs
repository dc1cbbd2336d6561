//! Writes models of real size as texts without weights: `cargo run --example large_models -- DIR` (`examples/models` has two of
//! them: Llama 3 8B and GPT-3 175B; Llama 3 70B and Llama 3.1 405B, Llama 3 8B over sequences of 131,072 tokens, MPT-70B,
//! Mixtral 8x7B, Qwen3-235B-A22B and DeepSeek-V3 are written besides).
//! With a number after DIR: models of that many layers, for measurements, named with it.
//!
//! Weights are bfloat16 and begin by distributions that the text names; the batch is a symbol. Then, for example:
//! `graphc compile examples/models/llama3_8b.gir --batch 16 --loss cross_entropy --optimizer adamw --lr 3e-4
//! --recompute full --cluster dgx-h100 --mesh 8`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use graphc::ir::text::print_for_any_batch;
use graphc::prelude::*;
use nn::{Gpt, GptConfig, Llama, LlamaConfig, Module};

use mixture::{MixtureModel, MixtureModelConfig};
use mpt::{Mpt, MptConfig};

mod mixture;
#[path = "../mixture_block.rs"]
mod mixture_block;
mod mpt;

/// A model of bfloat16 weights from tokens `[batch, sequence]` to logits.
fn model<M: Module>(
    name: &str,
    sequence: usize,
    build: impl Fn(&GraphBuilder) -> M,
) -> Result<String> {
    let text = print_for_any_batch("batch", |batch| {
        let g = GraphBuilder::new(name);
        let model = g.with_dtype(DType::BF16, || build(&g));
        let tokens = g.input("tokens", DType::I64, [batch, sequence]);
        g.output("logits", &model.forward(&tokens));
        g.finish()
    })?;
    text.with_context(|| format!("{name} depends on the batch in a way that a text cannot say"))
}

/// Writes models of real size as texts without weights.
#[derive(Parser)]
struct Args {
    /// Folder that the models are written into; made where it is missing
    #[arg(default_value = "examples/models")]
    directory: PathBuf,
    /// Layers of each model; default those that it has
    layers: Option<usize>,
}

fn main() -> Result<()> {
    let Args { directory, layers } = Args::parse();
    let (mut llama, mut gpt) = (LlamaConfig::llama3_8b(), GptConfig::gpt3_175b());
    llama.layers = layers.unwrap_or(llama.layers);
    gpt.layers = layers.unwrap_or(gpt.layers);
    let larger =
        |config: LlamaConfig| LlamaConfig { layers: layers.unwrap_or(config.layers), ..config };
    let llama_70b = larger(LlamaConfig::llama3_70b());
    let llama_405b = larger(LlamaConfig::llama3_405b());
    let mut mpt = MptConfig::mpt_70b();
    mpt.layers = layers.unwrap_or(mpt.layers);
    let mixture = |name: &str, config: MixtureModelConfig| {
        let layers = layers.unwrap_or(config.layers);
        let config = MixtureModelConfig { layers, ..config };
        model(name, 4096, |g| MixtureModel::new(g, &config))
    };
    let models = [
        ("llama3_8b", model("llama3_8b", 8192, |g| Llama::new(g, &llama))?),
        ("llama3_70b", model("llama3_70b", 8192, |g| Llama::new(g, &llama_70b))?),
        ("llama3_405b", model("llama3_405b", 8192, |g| Llama::new(g, &llama_405b))?),
        ("llama3_8b_131072_tokens", model("llama3_8b", 131_072, |g| Llama::new(g, &llama))?),
        ("mpt_70b", model("mpt_70b", mpt.sequence, |g| Mpt::new(g, &mpt))?),
        ("mixtral_8x7b", mixture("mixtral_8x7b", MixtureModelConfig::mixtral_8x7b())?),
        ("qwen3_235b_a22b", mixture("qwen3_235b_a22b", MixtureModelConfig::qwen3_235b_a22b())?),
        ("deepseek_v3", mixture("deepseek_v3", MixtureModelConfig::deepseek_v3())?),
        ("gpt3_175b", model("gpt3_175b", 2048, |g| Gpt::new(g, &gpt))?),
    ];
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("making {}", directory.display()))?;
    for (name, text) in models {
        let name = layers.map_or(name.to_owned(), |layers| format!("{name}_{layers}_layers"));
        let path = directory.join(name).with_extension("gir");
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}
