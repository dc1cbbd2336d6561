//! MobileNetV2 on CIFAR-10 by SBP alone: images are cut along the batch, S(0), the model lies whole on every rank, B. Nothing
//! else is said of parallelism; gradients are then partial sums, and the compiler makes them whole.
//!
//!     cargo run --release --example mobilenetv2_cifar10 -- --data DIR --epochs 10 --mesh 2
//!     graphc launch --standalone --nproc-per-node 2 -- target/release/examples/mobilenetv2_cifar10 --data DIR
//!
//! DIR is as for `resnet18_cifar10`, and so are the options.

mod cifar;

use anyhow::Result;
use cifar::{Options, Recipe, sbp};
use clap::Parser;
use graphc::nn::Module;
use graphc::nn::models::{MobileNetConfig, MobileNetV2};
use graphc::prelude::*;

/// Trains MobileNetV2 on CIFAR-10.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    options: Options,
    /// Channels are multiplied by it
    #[arg(long, default_value_t = 1.0)]
    width: f64,
}

fn main() -> Result<()> {
    let Args { options, width } = Args::parse();
    let network = |batch: usize, axes: usize| -> Result<Graph> {
        let [whole, by_samples] = [Sbp::Broadcast, Sbp::Split(0)].map(|sbp| NdSbp(vec![sbp; axes]));
        let g = GraphBuilder::new("mobilenet_v2");
        let model =
            MobileNetV2::new(&g, &MobileNetConfig { width, ..MobileNetConfig::new(10).cifar() });
        for tensor in model.parameters().into_iter().chain(model.buffers()) {
            tensor.pin(whole.clone());
        }
        let images = g.input("x", DType::F32, [batch, 3, 32, 32]).pin(by_samples);
        g.output("scores", &model.forward(&images));
        Ok(g.finish()?)
    };
    let recipe = Recipe { network: &network, weight_decay: 4e-5, no_decay: &["*bias"] };
    sbp::train(&options, &recipe)
}
