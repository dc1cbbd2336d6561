//! Synchronous SGD written by hand on a data set that is split over the ranks: each takes its own samples, gradients are
//! averaged. The samples lie on y = 2 a + 3 b.
//!
//!     cargo run --release --example synchronous_sgd
//!     graphc launch --standalone --nproc-per-node 2 -- target/release/examples/synchronous_sgd

use graphc::dist::{self, DistError, DistributedSampler, Group, ReduceOp, Remainder};

const SAMPLES: usize = 512;
const BATCH: usize = 16;

fn main() -> Result<(), DistError> {
    for weights in dist::run(2, train)? {
        println!("weights {weights:.3?}");
        assert!((weights[0] - 2.0).abs() < 1e-2 && (weights[1] - 3.0).abs() < 1e-2);
    }
    Ok(())
}

fn sample(index: usize) -> ([f32; 2], f32) {
    let x = [(index % 13) as f32 / 13.0, (index % 7) as f32 / 7.0];
    (x, 2.0 * x[0] + 3.0 * x[1])
}

fn train(group: Group) -> Result<[f32; 2], DistError> {
    let (n, rank) = (group.world_size(), group.rank());
    let sampler = DistributedSampler::new(SAMPLES, n, rank, Remainder::Wrap).shuffled(7);
    let mut weights = [rank as f32, 0.5];
    group.broadcast(&mut weights[..], 0)?;
    for epoch in 0..60 {
        for batch in sampler.epoch(epoch).chunks(BATCH / n.min(BATCH)) {
            let mut gradient = [0.0_f32; 2];
            for (x, y) in batch.iter().map(|&index| sample(index)) {
                let error = weights[0] * x[0] + weights[1] * x[1] - y;
                gradient[0] += 2.0 * error * x[0] / batch.len() as f32;
                gradient[1] += 2.0 * error * x[1] / batch.len() as f32;
            }
            group.all_reduce(&mut gradient[..], ReduceOp::Avg)?;
            weights.iter_mut().zip(gradient).for_each(|(weight, slope)| *weight -= 0.2 * slope);
        }
    }
    Ok(weights)
}
