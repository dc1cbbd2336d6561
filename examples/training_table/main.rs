//! Predicts what training steps take, row by row of a table, and compares with what was measured:
//!
//!     cargo run --release --example training_table -- ROWS.csv --cluster dgx-a100
//!
//! Rows of two kinds are known. Those of GPT as Megatron-LM trains it have columns hidden, layers, heads, gpus, tensor_parallel,
//! pipeline_parallel, global_batch, micro_batch; where given also sequence (else 2048), vocabulary (51200), virtual_stages
//! (1), data_parallel (the ranks that are left), tied (`yes` where the head reads the table of tokens; `no`); activations are recomputed in full. Those of MPT with PyTorch FSDP have
//! accumulation, precision (bf16 or amp_bf16) and recompute (none or full) instead of what says how the model is shared.
//! A column `cluster` names the machines of a row. With `--csv` the rows are printed as they are with one column more,
//! `predicted_s`; without it a table, and how far the predictions are from `iteration_ms`, `iteration_s` or `full_recompute_s`.
//! A table that begins with the columns `source,model` is one of published trainings (`published`): each row is laid out as its framework does it,
//! what is left out is said, and errors, bias and order are told by source and framework; `--only WORD` takes those of a source, model or framework.
//! With `--fit` constants of the machines and of the framework are fitted to the rows of even index: see `fit.rs`. Where the argument is a
//! folder, that is done with all its tables that `compiler/src/cluster/fitted.toml` names, and `--write`
//! writes that file anew.

mod date;
mod fit;
mod fsdp;
mod judge;
mod megatron;
#[path = "../mixture_block.rs"]
mod mixture_block;
mod published;
mod row;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use graphc::prelude::*;
use graphc_compiler::cluster::{
    FittedTable, find_framework, fitted_constants, parse_cluster, parse_fitted, write_fitted,
};
use graphc_compiler::compile::{predict_step_seconds as predict_step, sketch_plan};
use graphc_compiler::planner::UNLIMITED;
use graphc_plan::{Cluster, Plan};

use fit::Measured;
use row::{Layout, Row, Table};

/// Predicts what training steps take.
#[derive(Parser)]
struct Args {
    /// The table; with `--fit` a folder of tables too
    rows: PathBuf,
    /// The machines: a preset or a TOML file; default what the rows say
    #[arg(long)]
    cluster: Option<String>,
    /// What runs the steps: graphc, torch-eager, torch-compile, internevo, megatron, megatron-core or megatron-core-2025; default megatron for its rows, torch-eager for those of FSDP, of published trainings what each ran on
    #[arg(long)]
    framework: Option<String>,
    /// Of published trainings: a folder for the plan of each row, which `graphc simulate` and `graphc inspect` read
    #[arg(long)]
    plans: Option<PathBuf>,
    /// Print the rows with a column `predicted_s`
    #[arg(long)]
    csv: bool,
    /// Place the plans in memory too, and print the peak beside what the device has
    #[arg(long)]
    memory: bool,
    /// Of published trainings: those alone whose source, model or framework has this word
    #[arg(long)]
    only: Option<String>,
    /// Fit constants to the rows of even index, and print them
    #[arg(long)]
    fit: bool,
    /// Write what a folder of tables says of the constants of this file into it
    #[arg(long, requires = "fit")]
    write: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.fit {
        return fit(&args);
    }
    let rows = text(&args.rows)?;
    if published::is_published(&rows) {
        let settings = published::Settings {
            memory: args.memory,
            rows: !args.csv,
            only: args.only.as_deref(),
            framework: args.framework.as_deref(),
            plans: args.plans.as_deref(),
        };
        return published::run(&rows, &settings);
    }
    let table = read(&args.rows)?;
    let in_row = |index: usize| format!("row {}", index + 1);
    let mut predicted = Vec::new();
    for (index, row) in table.rows.iter().enumerate() {
        let cluster = machines(row, &args).with_context(|| in_row(index))?;
        let seconds = predict(row, &cluster).with_context(|| in_row(index))?;
        predicted.push(seconds);
        if !args.csv {
            let memory = if args.memory { memory(row, &cluster)? } else { String::new() };
            println!("{}{memory}", line(row, seconds));
        }
    }
    show(&table, &predicted, args.csv);
    Ok(())
}

fn read(path: &Path) -> Result<Table> {
    row::read(&text(path)?).with_context(|| format!("in {}", path.display()))
}

fn text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Fits to one table, or to those of a folder, which can be written.
fn fit(args: &Args) -> Result<()> {
    let mut constants = match &args.write {
        Some(path) => parse_fitted(&text(path)?)?,
        None => fitted_constants().clone(),
    };
    if !args.rows.is_dir() {
        ensure!(args.write.is_none(), "--write takes a folder of all tables, not one table");
        let file = args.rows.display().to_string();
        let table = Measured { file, rows: read(&args.rows)?.rows };
        return fit::run(&[table], &mut constants.constant, |row| machines(row, args));
    }
    let mut tables = Vec::new();
    for table in &mut constants.table {
        tables.push(measured(&args.rows, table)?);
    }
    fit::run(&tables, &mut constants.constant, |row| machines(row, args))?;
    if let Some(path) = &args.write {
        constants.written = date::today();
        std::fs::write(path, write_fitted(&constants))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// A table of a folder, its rows with their machines; it is noted how many there are.
fn measured(folder: &Path, table: &mut FittedTable) -> Result<Measured> {
    let mut rows = read(&folder.join(&table.file))?.rows;
    table.rows = rows.iter().filter(|row| row.measured.is_some()).count();
    for row in &mut rows {
        row.cluster = row.cluster.take().or_else(|| table.cluster.clone());
    }
    Ok(Measured { file: table.file.clone(), rows })
}

fn show(table: &Table, predicted: &[f64], csv: bool) {
    if !csv {
        print!("{}", judge::summary(&table.rows, predicted));
        return;
    }
    println!("{},predicted_s", table.columns.join(","));
    for (cells, seconds) in table.cells.iter().zip(predicted) {
        println!("{},{seconds:.4}", cells.join(","));
    }
}

/// The machines of a row, and what runs it there.
fn machines(row: &Row, args: &Args) -> Result<Cluster> {
    let name = args.cluster.as_ref().or(row.cluster.as_ref());
    let mut cluster = cluster(name.context("say --cluster: the table names no machines")?)?;
    let usual = match row.layout {
        Layout::Megatron(_) => "megatron",
        Layout::Fsdp(_) => "torch-eager",
    };
    if args.framework.is_some() || cluster.framework.is_graphc() {
        let name = args.framework.as_deref().unwrap_or(usual);
        cluster.framework =
            find_framework(name).with_context(|| format!("no framework `{name}`"))?;
    }
    Ok(cluster)
}

/// Seconds of a step.
fn predict(row: &Row, cluster: &Cluster) -> Result<f64> {
    let (graph, options) = training(row)?;
    Ok(predict_step(graph, &options, cluster)?)
}

/// The plan of a row, as far as its time goes.
fn plan(row: &Row, cluster: &Cluster) -> Result<Plan> {
    let (graph, options) = training(row)?;
    Ok(sketch_plan(graph, &options, cluster)?)
}

/// Returns the graph of a row, and the options of its training.
fn training(row: &Row) -> Result<(Graph, CompileOptions)> {
    Ok(match &row.layout {
        Layout::Megatron(layout) => (megatron::graph(row, layout)?, megatron::options(row, layout)),
        Layout::Fsdp(layout) => (fsdp::graph(row, layout)?, fsdp::options(row, layout)),
    })
}

/// The peak of a plan that keeps no limit, beside what the device has.
fn memory(row: &Row, cluster: &Cluster) -> Result<String> {
    let (graph, options) = training(row)?;
    let options = CompileOptions { memory: Some(UNLIMITED), ..options };
    let plan = compile(graph, &options, cluster, None)?.plan;
    let peak = plan.predicted.peak_memory_bytes.iter().max().copied().unwrap_or(0);
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    Ok(format!(", {:5.1} of {:.1} GiB", gib(peak), gib(cluster.device.memory)))
}

fn line(row: &Row, seconds: f64) -> String {
    let name = format!("{}x{} on {}: {}", row.hidden, row.layers, row.gpus, how(row));
    match row.measured {
        Some(measured) => {
            let error = 100.0 * (seconds / measured - 1.0);
            format!("{name:<52} {seconds:8.3} s, measured {measured:8.3} s, {error:+6.1} %")
        }
        None => format!("{name:<52} {seconds:8.3} s"),
    }
}

/// Describes the layout of a row in a few words.
fn how(row: &Row) -> String {
    let of_batch = format!("{}/{}", row.micro_batch, row.global_batch);
    match &row.layout {
        Layout::Megatron(layout) => format!(
            "t{} d{} p{}x{} batch {of_batch}",
            layout.tensor_parallel,
            layout.data_parallel,
            layout.pipeline_parallel,
            layout.virtual_stages
        ),
        Layout::Fsdp(fsdp) => {
            let cluster = row.cluster.as_deref().unwrap_or("");
            let again = if fsdp.recompute { " again" } else { "" };
            format!("{cluster} batch {of_batch} of {}{again}", row.sequence)
        }
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
