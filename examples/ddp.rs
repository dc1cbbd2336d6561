//! Data parallelism with a graph and a session per rank: four samples over the ranks, by default two, 500 steps of SGD. The
//! weights become [[2], [3]].
//!
//!     cargo run --release --example ddp
//!     graphc launch --standalone --nproc-per-node 2 -- target/release/examples/ddp

use graphc::dist;
use graphc::prelude::*;

type Failure = Box<dyn std::error::Error>;

/// Samples on the plane y = 2 a + 3 b.
const SAMPLES: [([f32; 2], f32); 4] =
    [([1.0, 2.0], 8.0), ([4.0, 6.0], 26.0), ([2.0, 3.0], 13.0), ([3.0, 1.0], 9.0)];

fn main() -> Result<(), Failure> {
    for weights in dist::run(2, train)? {
        println!("500 steps, w = {weights:?}");
        assert!((weights[0] - 2.0).abs() < 1e-3 && (weights[1] - 3.0).abs() < 1e-3);
    }
    Ok(())
}

fn train(group: Group) -> Result<Vec<f32>, Failure> {
    let (rank, ranks) = (group.rank(), group.world_size());
    // Every rank has a sample at least; ranks may have different graphs, and so different numbers of samples.
    let own: Vec<_> =
        (rank % SAMPLES.len()..SAMPLES.len()).step_by(ranks).map(|i| SAMPLES[i]).collect();
    let g = GraphBuilder::new("toy");
    let x = g.input("x", DType::F32, [own.len(), 2]);
    let y = g.input("y", DType::F32, [own.len(), 1]);
    let w = g.variable("w", DType::F32, [2, 1], Init::Fill(0.0.into()));
    let error = x.matmul(&w) - y;
    g.output("loss", &(&error * &error).sum(&[0, 1], false));

    // Gradients are averaged: with the ranks' number the step is that of their sum.
    let sgd = Optimizer::Sgd {
        lr: 0.005 * ranks.min(SAMPLES.len()) as f64,
        momentum: 0.0,
        nesterov: false,
        weight_decay: 0.0,
    };
    let training = CompileOptions { optimizer: Some(sgd), ..CompileOptions::default() };
    let options = DataParallelOptions { training, ..DataParallelOptions::default() };
    let mut ddp = DataParallel::new(&group, g.finish()?, &BTreeMap::new(), &options)?;
    let xs: Vec<f32> = own.iter().flat_map(|(x, _)| *x).collect();
    let ys: Vec<f32> = own.iter().map(|(_, y)| *y).collect();
    let feeds = BTreeMap::from([
        ("x".to_owned(), HostTensor::from_f32([own.len(), 2], &xs)?),
        ("y".to_owned(), HostTensor::from_f32([own.len(), 1], &ys)?),
    ]);
    for _ in 0..500 {
        ddp.train_step(feeds.clone())?;
    }
    Ok(ddp.variable("w")?.to_f32()?)
}
