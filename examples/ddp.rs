//! Data parallelism with a graph and a session per rank: two ranks with two samples each, 500 steps of SGD. The weights
//! become [[2], [3]].
//!
//!     cargo run --release --example ddp
//!     graphc launch --standalone --nproc-per-node 2 -- target/release/examples/ddp

use graphc::dist;
use graphc::prelude::*;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    for weights in dist::run(2, train)? {
        println!("500 steps, w = {weights:?}");
        assert!((weights[0] - 2.0).abs() < 1e-3 && (weights[1] - 3.0).abs() < 1e-3);
    }
    Ok(())
}

fn train(group: Group) -> Result<Vec<f32>, Failure> {
    let g = GraphBuilder::new("toy");
    let (x, y) = (g.input("x", DType::F32, [2, 2]), g.input("y", DType::F32, [2, 1]));
    let w = g.variable("w", DType::F32, [2, 1], Init::Fill(0.0.into()));
    let error = x.matmul(&w) - y;
    g.output("loss", &(&error * &error).sum(&[0, 1], false));

    let options = DataParallelOptions::default();
    let mut ddp = DataParallel::new(&group, g.finish()?, &BTreeMap::new(), &options)?;
    let (xs, ys) = [([1., 2., 2., 3.], [8., 13.]), ([4., 6., 3., 1.], [26., 9.])][group.rank() % 2];
    let feeds = BTreeMap::from([
        ("x".to_owned(), HostTensor::from_f32([2, 2], &xs)?),
        ("y".to_owned(), HostTensor::from_f32([2, 1], &ys)?),
    ]);
    for _ in 0..500 {
        let step = ddp.step(feeds.clone())?;
        ddp.update(&step.gradients, |_, weight, gradient| sgd(weight, gradient, 0.01))?;
    }
    Ok(ddp.variable("w")?.to_f32()?)
}

fn sgd(weight: &mut HostTensor, gradient: &HostTensor, rate: f64) {
    let new: Vec<f64> =
        weight.to_f64().iter().zip(gradient.to_f64()).map(|(w, g)| w - rate * g).collect();
    *weight =
        HostTensor::from_f64(weight.dtype(), weight.shape(), &new).expect("as many as before");
}
