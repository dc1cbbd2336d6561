//! Collectives between processes: one JSON line per op and size, from rank 0. `collectives.py` starts it by `graphc launch`
//! and puts gloo and MPI beside it.
//!
//!     graphc launch --standalone --nproc-per-node 2 -- target/release/examples/bench_collectives

use std::time::Instant;

use anyhow::{Result, bail};
use clap::Parser;
use graphc::dist::{self, DistError, Group, ReduceOp};
use serde_json::json;

/// Measures collectives on f32.
#[derive(Parser)]
struct Args {
    /// Ops, all unless given: all_reduce, broadcast, reduce, all_gather, gather, scatter, reduce_scatter, all_to_all,
    /// send_recv, barrier
    #[arg(long, value_delimiter = ',')]
    ops: Vec<String>,
    /// Bytes of a rank's buffer
    #[arg(long, value_delimiter = ',', default_values_t = [4 << 10, 1 << 20, 64 << 20])]
    sizes: Vec<usize>,
    /// Seconds to measure each
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
}

const OPS: [&str; 10] = [
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
    "barrier",
];

fn main() -> Result<()> {
    let args = Args::parse();
    let group = dist::init()?;
    let all: Vec<String> = OPS.map(str::to_owned).to_vec();
    for op in if args.ops.is_empty() { &all } else { &args.ops } {
        let sizes = if op == "barrier" { &[0][..] } else { &args.sizes };
        for &bytes in sizes {
            let seconds = measure(&group, op, bytes, args.seconds)?;
            if group.rank() == 0 {
                let (procs, framework) = (group.world_size(), "graphc");
                println!(
                    "{}",
                    json!({"framework": framework, "op": op, "bytes": bytes, "procs": procs, "seconds": seconds})
                );
            }
        }
    }
    group.barrier()?;
    Ok(())
}

/// The median over rounds of what a call takes.
fn measure(group: &Group, op: &str, bytes: usize, seconds: f64) -> Result<f64> {
    let n = group.world_size();
    let elements = (bytes / 4 / n * n).max(n);
    let mut small = vec![1.0_f32; elements];
    let mut large = match op {
        "all_gather" | "gather" | "scatter" => vec![1.0_f32; elements * n],
        _ => vec![1.0_f32; elements],
    };
    let mut call = || run(group, op, &mut small, &mut large);
    for _ in 0..3 {
        call()?;
    }
    let begun = Instant::now();
    for _ in 0..3 {
        call()?;
    }
    // All ranks make as many calls as rank 0 thinks right.
    let each = begun.elapsed().as_secs_f64() / 3.0;
    let mut calls = [((seconds / 5.0 / each) as i64).clamp(1, 10_000)];
    group.broadcast(&mut calls[..], 0)?;
    let mut rounds = Vec::new();
    for _ in 0..5 {
        group.barrier()?;
        let begun = Instant::now();
        for _ in 0..calls[0] {
            call()?;
        }
        rounds.push(begun.elapsed().as_secs_f64() / calls[0] as f64);
    }
    rounds.sort_by(f64::total_cmp);
    // There and back are two.
    Ok(if op == "send_recv" { rounds[2] / 2.0 } else { rounds[2] })
}

fn run(group: &Group, op: &str, small: &mut [f32], large: &mut [f32]) -> Result<()> {
    match op {
        "all_reduce" => group.all_reduce(small, ReduceOp::Max)?,
        "reduce" => group.reduce(small, 0, ReduceOp::Max)?,
        "broadcast" => group.broadcast(small, 0)?,
        "all_gather" => group.all_gather_into(&*small, large, None)?,
        "gather" => group.gather_into(&*small, Some(large), 0)?,
        "scatter" => group.scatter_into(Some(&*large), small, 0)?,
        "reduce_scatter" => {
            group.reduce_scatter_in_place(small, None, ReduceOp::Max)?;
        }
        "all_to_all" => group.all_to_all_into(&*small, large, None)?,
        "send_recv" => ping(group, small, large)?,
        "barrier" => group.barrier()?,
        other => bail!("no op `{other}`: {OPS:?}"),
    }
    Ok(())
}

/// Sends messages from rank 0 to the last and back.
fn ping(group: &Group, small: &[f32], large: &mut [f32]) -> Result<(), DistError> {
    let (rank, last) = (group.rank(), group.world_size() - 1);
    if rank == 0 && last > 0 {
        group.send(small, last)?;
        group.recv(large, last)?;
    } else if rank == last && last > 0 {
        group.recv(large, 0)?;
        group.send(small, 0)?;
    }
    Ok(())
}
