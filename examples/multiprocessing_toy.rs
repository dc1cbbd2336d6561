//! The toy of PyTorch's tutorials on DistributedDataParallel and multiprocessing: a perceptron, wrapped on every rank, steps of
//! SGD on random numbers of the rank's own. The ranks begin with different weights, and have the same ever after.
//!
//!     cargo run --release --example multiprocessing_toy
//!     graphc launch --standalone --nproc-per-node 4 -- target/release/examples/multiprocessing_toy

use graphc::dist;
use graphc::nn::{Linear, Module};
use graphc::prelude::*;

type Failure = Box<dyn std::error::Error>;

const STEPS: usize = 200;

fn main() -> Result<(), Failure> {
    dist::run(2, |group| demo_basic(&group).map_err(|error| error.to_string()))?;
    Ok(())
}

/// 10 numbers to 10, a rectifier, 10 to 5.
fn toy_model() -> Result<Graph, Failure> {
    let g = GraphBuilder::new("toy");
    let x = g.input("x", DType::F32, [20, 10]);
    let hidden = Linear::new(&g, "net1", 10, 10).forward(&x).relu();
    g.output("y", &Linear::new(&g, "net2", 10, 5).forward(&hidden));
    Ok(g.finish()?)
}

/// Numbers in [-1, 1) that are the rank's own.
fn random(shape: [usize; 2], rank: usize) -> Result<HostTensor, Failure> {
    let number = |at: usize| {
        let word = (at * 31 + rank + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as usize);
        (word >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let all: Vec<f32> = (0..shape[0] * shape[1]).map(number).collect();
    Ok(HostTensor::from_f32(shape, &all)?)
}

fn demo_basic(group: &Group) -> Result<(), Failure> {
    let (rank, ranks) = (group.rank(), group.world_size());
    println!("running the basic example of data parallelism on rank {rank} of {ranks}");
    let training = CompileOptions {
        loss: Some(Loss::Mse),
        optimizer: Some(Optimizer::Sgd {
            lr: 0.1,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
        }),
        ..CompileOptions::default()
    };
    let options = DataParallelOptions { training, ..DataParallelOptions::default() };
    let mut model = DataParallel::new(group, toy_model()?, &BTreeMap::new(), &options)?;
    let feeds = BTreeMap::from([
        ("x".to_owned(), random([20, 10], rank)?),
        ("target".to_owned(), random([20, 5], rank)?),
    ]);
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        losses.push(model.train_step(feeds.clone())?["loss"].to_f32()?[0]);
    }
    println!(
        "rank {rank}: loss {:.4} in the first step, {:.4} in the last",
        losses[0],
        losses[STEPS - 1]
    );
    for weights in group.all_gather(&model.variable("net2.weight")?.to_f32()?)? {
        assert_eq!(weights, model.variable("net2.weight")?.to_f32()?, "all ranks have the same");
    }
    Ok(())
}
