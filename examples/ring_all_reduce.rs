//! An all-reduce written by hand: parts go around a ring, once to be summed and once to be handed out (Patarasuk and Yuan,
//! "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
//!
//!     cargo run --release --example ring_all_reduce
//!     graphc launch --standalone --nproc-per-node 4 -- target/release/examples/ring_all_reduce

use graphc::dist::{self, DistError, Group, ReduceOp};

fn main() -> Result<(), DistError> {
    for line in dist::run(4, work)? {
        println!("{line}");
    }
    Ok(())
}

fn work(group: Group) -> Result<String, DistError> {
    let rank = group.rank();
    let mut values: Vec<f32> = (0..1_000_000).map(|i| ((i + rank) % 17) as f32).collect();
    let mut expected = values.clone();
    ring_all_reduce(&group, &mut values)?;
    group.all_reduce(&mut expected, ReduceOp::Sum)?;
    assert_eq!(values, expected);
    Ok(format!("rank {rank} has the sums: {:?}...", &values[..3]))
}

fn ring_all_reduce(group: &Group, values: &mut [f32]) -> Result<(), DistError> {
    let (n, rank) = (group.world_size(), group.rank());
    let each = values.len().div_ceil(n).max(1);
    let bounds =
        |part: usize| (part * each).min(values.len())..((part + 1) * each).min(values.len());
    let bounds: Vec<_> = (0..n).map(bounds).collect();
    // In the first n - 1 rounds a part is summed by everyone whom it passes, in the rest it is what all take over.
    for round in 0..2 * (n - 1) {
        let out = bounds[(rank + 2 * n - round) % n].clone();
        let into = bounds[(rank + 2 * n - round - 1) % n].clone();
        let sent = group.isend(values[out].to_vec(), (rank + 1) % n)?;
        let received = group.irecv(vec![0.0; into.len()], (rank + n - 1) % n)?.wait()?;
        for (value, theirs) in values[into].iter_mut().zip(received) {
            *value = if round < n - 1 { *value + theirs } else { theirs };
        }
        sent.wait()?;
    }
    Ok(())
}
