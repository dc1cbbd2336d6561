//! Predicts what training steps of GPT take, row by row of a table of layouts, and compares with what was measured:
//!
//!     cargo run --release --example megatron_table -- ROWS.csv --cluster dgx-a100 --csv
//!
//! Columns: hidden, layers, heads, gpus, tensor_parallel, pipeline_parallel, global_batch, micro_batch; where given also
//! sequence (else 2048), vocabulary (51200), virtual_stages (1), data_parallel (the ranks that are left). Activations are
//! recomputed in full. With `--csv` the rows are printed as they are with one column more, `predicted_s`; without it a
//! table, and how far the predictions are from `iteration_ms`, `iteration_s` or `full_recompute_s`.

mod judge;
mod model;
mod row;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use graphc::prelude::*;
use graphc_compiler::cluster::parse_cluster;
use graphc_compiler::compile::predict as predict_step;
use graphc_ir::plan::Cluster;

use row::Row;

/// Predicts what training steps of GPT take.
#[derive(Parser)]
struct Args {
    /// The table
    rows: PathBuf,
    /// The machines: a preset or a TOML file
    #[arg(long)]
    cluster: String,
    /// Print the rows with a column `predicted_s`
    #[arg(long)]
    csv: bool,
}

/// Seconds in which the host issues a kernel or a collective of a framework that runs op by op from Python. Megatron-LM's
/// small models are bound by it; it is no property of the machines, whose presets have none.
const EAGER_DISPATCH: f64 = 30.3e-6;

/// Megatron-LM reduces the gradient of a layer's input while it computes that of its weight, so of the six all-reduces of a
/// block (two forward, two again in recomputation, two backward) four are waited for. Here all are waited for: links inside
/// nodes count for so many times their bandwidth.
const REDUCED_UNDER_PRODUCTS: f64 = 6.0 / 4.0;

fn main() -> Result<()> {
    let args = Args::parse();
    let text = std::fs::read_to_string(&args.rows)
        .with_context(|| format!("cannot read {}", args.rows.display()))?;
    let table = row::read(&text).with_context(|| format!("in {}", args.rows.display()))?;
    let mut cluster = cluster(&args.cluster)?;
    // What was measured reduced all gradients after the last backward pass.
    cluster.device.overlap = false;
    if cluster.device.dispatch == 0.0 {
        cluster.device.dispatch = EAGER_DISPATCH;
    }
    if let Some(inside) = cluster.levels.first_mut() {
        inside.bandwidth *= REDUCED_UNDER_PRODUCTS;
    }
    let mut predicted = Vec::new();
    for (index, row) in table.rows.iter().enumerate() {
        let seconds = predict(row, &cluster).with_context(|| format!("row {}", index + 1))?;
        predicted.push(seconds);
    }
    if args.csv {
        println!("{},predicted_s", table.columns.join(","));
        for (cells, seconds) in table.cells.iter().zip(&predicted) {
            println!("{},{seconds:.4}", cells.join(","));
        }
    } else {
        for (row, &seconds) in table.rows.iter().zip(&predicted) {
            println!("{}", line(row, seconds));
        }
        print!("{}", judge::summary(&table.rows, &predicted));
    }
    Ok(())
}

/// Seconds of a step.
fn predict(row: &Row, cluster: &Cluster) -> Result<f64> {
    Ok(predict_step(model::graph(row)?, &model::options(row), cluster)?)
}

fn line(row: &Row, seconds: f64) -> String {
    let Row { tensor_parallel: t, data_parallel: d, pipeline_parallel: p, .. } = *row;
    let name = format!(
        "{}x{} on {}: t{t} d{d} p{p}x{} batch {}/{}",
        row.hidden, row.layers, row.gpus, row.virtual_stages, row.micro_batch, row.global_batch
    );
    match row.measured {
        Some(measured) => {
            let error = 100.0 * (seconds / measured - 1.0);
            format!("{name:<52} {seconds:8.3} s, measured {measured:8.3} s, {error:+6.1} %")
        }
        None => format!("{name:<52} {seconds:8.3} s"),
    }
}

/// The machines of a preset's name or a file.
fn cluster(name: &str) -> Result<Cluster> {
    if let Some(cluster) = preset(name) {
        return Ok(cluster);
    }
    let text = std::fs::read_to_string(name)
        .with_context(|| format!("`{name}` is no preset and cannot be read"))?;
    Ok(parse_cluster(&text)?)
}
