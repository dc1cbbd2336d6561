//! ResNet-18 on CIFAR-10, as people train it: shuffled and augmented images, SGD with momentum and weight decay, a cosine
//! schedule with warm-up, evaluation after each epoch, the best and the last weights on disk, a log of JSON lines.
//!
//!     cargo run --release --example resnet18_cifar10 -- --data DIR --epochs 10 --batch 128 --lr 0.1 --mesh 4
//!     graphc launch --standalone --nproc-per-node 4 -- target/release/examples/resnet18_cifar10 --data DIR
//!
//! DIR holds the binary version of CIFAR-10; `graphc data synth cifar10 DIR` writes a set in its place. Each rank reads its own
//! samples alone, and batches are the same on every mesh. `--save DIR` keeps checkpoints, `--resume DIR` goes on from the last,
//! on whatever mesh.
//!
//! `--ddp` is the same with a plan for each rank instead of one for all: `DataParallel` and `DistributedSampler`. Checkpoints of
//! either are resumed by the other.

mod cifar;
#[path = "cifar/ddp.rs"]
mod ddp;

use anyhow::Result;
use cifar::{Options, Recipe, sbp};
use clap::Parser;
use graphc::nn::Module;
use graphc::nn::models::{ResNet, ResNetConfig};
use graphc::prelude::*;

/// Trains ResNet-18 on CIFAR-10.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    options: Options,
    /// Channels of the first layer
    #[arg(long, default_value_t = 64)]
    width: usize,
    /// Data parallelism with a plan for each rank
    #[arg(long)]
    ddp: bool,
}

fn main() -> Result<()> {
    let Args { options, width, ddp } = Args::parse();
    let network = |batch: usize, _axes: usize| -> Result<Graph> {
        let g = GraphBuilder::new("resnet18");
        let config = ResNetConfig { width, ..ResNetConfig::resnet18(10).cifar() };
        let images = g.input("x", DType::F32, [batch, 3, 32, 32]);
        g.output("scores", &ResNet::new(&g, &config).forward(&images));
        Ok(g.finish()?)
    };
    // Norms and biases do not decay.
    let no_decay = &["*bn*", "*downsample.1*", "*bias"];
    let recipe = Recipe { network: &network, weight_decay: 5e-4, no_decay };
    if ddp { ddp::train(&options, &recipe) } else { sbp::train(&options, &recipe) }
}
