//! The table of published trainings: each row in graphc's words, what it is predicted to take, and how far that is from what was
//! measured, source by source.

mod axes;
mod experts;
mod judge;
mod layout;
mod machines;
mod model;
mod row;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use anyhow::{Context, Result, ensure};
use graphc::prelude::*;
use graphc_compiler::cluster::find_framework;
use graphc_compiler::compile::predict_step_seconds;
use graphc_compiler::planner::UNLIMITED;
use graphc_plan::{Cluster, Plan, write_plan};

use layout::Said;
pub use row::{Published, is_published};

/// The result of a row.
pub struct Outcome {
    /// The row.
    pub row: Published,
    /// Seconds of a step and what was left out; or why it cannot be said.
    pub predicted: Result<Predicted, String>,
    /// The greatest peak of a rank, and what the card has; where memory was asked for.
    pub memory: Option<(u64, u64)>,
}

/// The prediction for a row.
pub struct Predicted {
    /// Seconds of a step.
    pub seconds: f64,
    /// The features of the row that the prediction leaves out.
    pub left_out: Vec<&'static str>,
}

/// Settings of the table.
pub struct Settings<'a> {
    /// Whether plans are placed in memory, too.
    pub memory: bool,
    /// Whether each row is printed.
    pub rows: bool,
    /// A word that a row's source, model or framework must have.
    pub only: Option<&'a str>,
    /// The profile of all rows instead of their own.
    pub framework: Option<&'a str>,
    /// A folder for the plan of each row.
    pub plans: Option<&'a Path>,
}

/// Predicts all rows of a table, and prints how they compare.
///
/// # Errors
/// Returns an error if the table cannot be read.
pub fn run(text: &str, settings: &Settings<'_>) -> Result<()> {
    let mut rows = row::read(text)?;
    rows.retain(|row| settings.only.is_none_or(|only| row.names(only)));
    if let Some(only) = settings.only {
        ensure!(!rows.is_empty(), "no row has `{only}` in its source, model or framework");
    }
    if let Some(folder) = settings.plans {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let outcomes = side_by_side(&rows, settings);
    print!("{}", judge::summary(&outcomes));
    Ok(())
}

/// Rows on all processors. Each is printed as soon as those before it are done.
fn side_by_side(rows: &[Published], settings: &Settings<'_>) -> Vec<Outcome> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, (sender, receiver)) = (AtomicUsize::new(0), mpsc::channel());
    let mut done: BTreeMap<usize, Outcome> = BTreeMap::new();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (next, sender) = (&next, sender.clone());
            scope.spawn(move || {
                while let Some((at, row)) = take(next, rows) {
                    // Who receives waits for all of them.
                    let _ = sender.send((at, outcome(row.clone(), settings)));
                }
            });
        }
        drop(sender);
        let mut shown = 0;
        for (at, outcome) in receiver {
            done.insert(at, outcome);
            while let Some(outcome) = done.get(&shown).filter(|_| settings.rows) {
                println!("{}", line(outcome));
                shown += 1;
            }
        }
    });
    done.into_values().collect()
}

/// The next row that nobody has taken, and its place.
fn take<'a>(next: &AtomicUsize, rows: &'a [Published]) -> Option<(usize, &'a Published)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    Some((at, rows.get(at)?))
}

fn outcome(row: Published, settings: &Settings<'_>) -> Outcome {
    let predicted = best(&row, settings)
        .and_then(|best| write_row_plan(&row, &best, settings).map(|()| best))
        .map_err(|error| format!("{error:#}"));
    let memory = match &predicted {
        Ok((_, said, cluster)) if settings.memory => peak(said, cluster).ok(),
        _ => None,
    };
    let predicted =
        predicted.map(|(seconds, said, _)| Predicted { seconds, left_out: said.left_out });
    Outcome { row, predicted, memory }
}

/// The fastest of the ways that a row leaves open.
fn best(row: &Published, settings: &Settings<'_>) -> Result<(f64, Said, Cluster)> {
    let mut best: Option<(f64, Said, Cluster)> = None;
    for said in layout::say(row)? {
        let name = settings.framework.unwrap_or(said.profile);
        let framework = find_framework(name).with_context(|| format!("no framework `{name}`"))?;
        let cluster = machines::machines(row, framework)?;
        let (graph, options) = training(&said)?;
        let seconds = predict_step_seconds(graph, &options, &cluster)?;
        if best.as_ref().is_none_or(|known| seconds < known.0) {
            best = Some((seconds, said, cluster));
        }
    }
    best.context("there is no way")
}

/// Writes the plan of a row, where there is a folder for them, under the row's number and model.
fn write_row_plan(
    row: &Published,
    (_, said, cluster): &(f64, Said, Cluster),
    settings: &Settings<'_>,
) -> Result<()> {
    let Some(folder) = settings.plans else { return Ok(()) };
    let plan = whole_plan(said, cluster)?;
    let path = folder.join(format!("{}-{}.json", row.index, row.model));
    std::fs::write(&path, write_plan(&plan))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the graph of a row, and the options of its training.
fn training(said: &Said) -> Result<(Graph, CompileOptions)> {
    let (graph, pins) = said.model.graph()?;
    let pins = [pins, said.options.pins.clone()].concat();
    Ok((graph, CompileOptions { pins, ..said.options.clone() }))
}

/// The peak of a plan that keeps no limit, and what the device has.
fn peak(said: &Said, cluster: &Cluster) -> Result<(u64, u64)> {
    let plan = whole_plan(said, cluster)?;
    let peak = plan.predicted.peak_memory_bytes.iter().max().copied().unwrap_or(0);
    Ok((peak, cluster.device.memory))
}

/// Returns the plan of a row with everything placed in memory, of which there is enough.
fn whole_plan(said: &Said, cluster: &Cluster) -> Result<Plan> {
    let (graph, options) = training(said)?;
    let options = CompileOptions { memory: Some(UNLIMITED), ..options };
    Ok(compile(graph, &options, cluster, None)?.plan.into_plan())
}

fn line(outcome: &Outcome) -> String {
    let Outcome { row, predicted, memory } = outcome;
    let Published { index, model, gpus, tensor, stages, context, experts, data, .. } = row;
    let layout = format!("t{tensor} p{stages} c{context} e{experts} d{data}");
    let micro = row.micro_batch.unwrap_or(0);
    let name = format!(
        "{index:3} {model} on {gpus}: {layout} {} v{} batch {micro}/{} {} {}",
        row.sharding,
        row.virtual_stages.unwrap_or(0),
        row.global_batch,
        row.precision,
        row.recompute
    );
    let seconds = match (predicted, row.step) {
        (Ok(predicted), Some(step)) => format!(
            "{:9.4} s, measured {step:9.4} s, {:+6.1} %",
            predicted.seconds,
            100.0 * (predicted.seconds / step - 1.0)
        ),
        (Ok(predicted), None) => format!("{:9.4} s", predicted.seconds),
        (Err(why), _) => format!("not said: {why}"),
    };
    let gib = |bytes: &u64| *bytes as f64 / f64::from(1 << 30);
    let memory = memory.as_ref().map_or(String::new(), |(peak, has)| {
        let too_large = if row.too_large { ", did not fit" } else { "" };
        format!(", {:.1} of {:.0} GiB{too_large}", gib(peak), gib(has))
    });
    format!("{name:<78} {seconds}{memory}")
}
