//! A model becomes a plan, as the options say: what `compile`, `run` and `train` do first.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use graphc::report;
use graphc_compiler::compile::{Milestone, compile_observed};
use graphc_import::Imported;
use graphc_import::weights::Weights;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{Cluster, Plan};

use super::args::{DeviceName, SharedArgs, compile_options, default_rate};
use super::clusters::shared_cluster;
use super::data_files::DataExtents;
use super::models::read_model;
use super::output::{Named, print_message};
use super::plans::weights_source;
use super::start;

/// Seconds of the parts of a compilation.
#[derive(Default)]
pub(super) struct Timing {
    /// Reading the model.
    pub parse: f64,
    /// The seconds from graph to plan.
    pub plan: f64,
    /// The part of that in which signatures were chosen.
    pub solve: f64,
}

/// A plan with the weights of its model.
pub(super) struct PlannedModel {
    /// The plan.
    pub plan: VerifiedPlan,
    /// The weights that the model file holds.
    pub weights: Weights,
    /// The seconds that it took.
    pub timing: Timing,
}

/// Returns the files that a compilation reads.
pub(super) fn compile_inputs<'a>(model: &'a Path, args: &'a SharedArgs) -> [Named<'a>; 3] {
    let cluster = args.cluster.as_deref().map(Path::new).filter(|path| path.is_file());
    let config = args.config.as_deref();
    [("the model", Some(model)), ("the cluster file", cluster), ("the run file", config)]
}

/// Reads and plans a model, for a device where the command line names one. The samples of `data` are the batch where the
/// command line gives none; `training` asks for a loss and an optimizer.
pub(super) fn plan_model(
    path: &Path,
    (args, device): (&SharedArgs, Option<DeviceName>),
    data: Option<DataExtents<'_>>,
    training: bool,
) -> Result<PlannedModel> {
    if training {
        ensure!(
            args.optimizer.is_some(),
            "training needs --optimizer sgd, adam, adamw, lamb, rmsprop, muon, adagrad, adadelta, adamax, nadam, radam, lion or adafactor"
        );
    }
    if let (Some(optimizer), None) = (args.optimizer, args.lr) {
        print_message("note", &default_rate(optimizer));
    }
    let start = Instant::now();
    let (imported, dims) = read_model(path, args, data)?;
    let Imported { graph, weights, warnings, training_warnings, .. } = imported;
    let of_training = training_warnings.iter().filter(|_| args.optimizer.is_some());
    warnings.iter().chain(of_training).for_each(|warning| print_message("warning", warning));
    check_static_batch(&graph, args.batch)?;
    let trained = start::trained_weights(&graph);
    let options = compile_options(args, dims)?;
    let cluster = shared_cluster(args, device)?;
    if let Some(text) = describe_sharing(&cluster, options.mesh.iter().product()) {
        print_message("note", &text);
    }
    let source = Some(weights_source(path)?);
    let parse = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let mut marks = Vec::new();
    let mut mark = |_: Milestone| marks.push(start.elapsed().as_secs_f64());
    let plan = compile_observed(graph, &options, &cluster, source, &mut mark)
        .with_context(|| format!("cannot plan {}", path.display()))?
        .plan;
    let plan_seconds = start.elapsed().as_secs_f64();
    if training {
        note_untrained(&trained, &plan);
    }
    if let Some(said) = report::half_weights(&plan) {
        print_message("note", &format!("of the weights {said}"));
    }
    let solve = marks.windows(2).map(|pair| pair[1] - pair[0]).sum();
    Ok(PlannedModel { plan, weights, timing: Timing { parse, plan: plan_seconds, solve } })
}

/// Says that ranks take turns on the machine, where they are more than the cluster's figures are of.
fn describe_sharing(cluster: &Cluster, world_size: usize) -> Option<String> {
    let measured = cluster.device.shared_by?;
    let shared = cluster.divide_among(world_size).device.shared_by?;
    (shared > measured).then(|| {
        format!(
            "the figures of `{}` are of {measured} ranks at once, and {shared} share a machine here: each is given {measured}/{shared} of its speed and memory",
            cluster.name
        )
    })
}

/// Says which weights stay as they are because the loss does not depend on them, as those of a second head.
fn note_untrained(trained: &BTreeSet<String>, plan: &Plan) {
    let updated = plan.updated_variables();
    let left = trained.iter().map(String::as_str).filter(|name| !updated.contains(name));
    let left: Vec<&str> = left.collect();
    if !left.is_empty() {
        let named = start::list_names(&left);
        print_message("note", &format!("the loss does not depend on {named}: not trained"));
    }
}

/// Samples that the model counts itself must be as many as `--batch` says.
fn check_static_batch(graph: &graphc_ir::graph::Graph, batch: Option<usize>) -> Result<()> {
    let Some(batch) = batch else { return Ok(()) };
    for node in &graph.nodes {
        if let graphc_ir::op::Op::Input(input) = &node.op
            && let Some(dim) = input.samples_dim()
            && input.ty.shape[dim] != batch
        {
            bail!(
                "--batch {batch} does not fit input `{}` of {}: its dim {dim}, which counts samples, is static",
                input.name,
                input.ty
            );
        }
    }
    Ok(())
}
