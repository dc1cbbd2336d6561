//! `graphc compile`: a model becomes a plan. Also what `run` and `train` do first.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use graphc::report;
use graphc::report::page::{PageOptions, page_without_plan};
use graphc_compiler::check::verify_plan;
use graphc_compiler::compile::{Milestone, compile_observed, emit_after};
use graphc_compiler::error::CompileError;
use graphc_compiler::import::weights::Weights;
use graphc_compiler::import::{ImportOptions, Imported, document_path, load_model};
use graphc_compiler::lower::collective_counts;
use graphc_ir::check::{Seal, VerifiedPlan};
use graphc_ir::plan::{Plan, WeightsSource, read_plan};
use serde_json::json;

use super::args::{CompileArgs, DeviceName, Format, OnNan, SharedArgs};
use super::data::{Types, read_text};
use super::options;
use super::output::{Named, check_distinct, print_escaped, print_message};
use super::{pages, start};

/// Seconds of the parts of a compilation.
#[derive(Default)]
pub struct Timing {
    /// Reading the model.
    pub parse: f64,
    /// From graph to plan.
    pub plan: f64,
    /// Of that, choosing signatures.
    pub solve: f64,
}

/// A plan with the weights of its model.
pub struct PlannedModel {
    /// The plan.
    pub plan: VerifiedPlan,
    /// The weights that the model file holds.
    pub weights: Weights,
    /// How long it took.
    pub timing: Timing,
}

/// Runs the command.
pub fn run_compile(args: &CompileArgs) -> Result<()> {
    let output = args.output.as_deref();
    let page = args.report.as_deref();
    check_distinct(
        &compile_inputs(&args.model, &args.shared),
        &[("--output", output), ("--report", page)],
    )?;
    if let Some(OnNan::Stop | OnNan::Ignore) = args.shared.training.on_nan {
        bail!("of --on-nan only skip makes another plan: stop and ignore are said to train");
    }
    if let Some(pass) = &args.emit {
        return emit_graph(args, pass);
    }
    if !args.compare.is_empty() {
        return super::compare::run_compare(args);
    }
    let training = args.shared.optimizer.is_some();
    let planned = plan_model(&args.model, (&args.shared, None), None, training);
    let planned = planned.inspect_err(|error| show_why(args, error))?;
    if let Some(path) = &args.output {
        graphc_runtime::data::write_file(path, planned.plan.write_sealed().as_bytes())?;
    }
    if let Some(path) = page {
        let name = pages::page_name(output.unwrap_or(&args.model));
        let options = PageOptions { within: Some(pages::WHY_WITHIN), ..PageOptions::default() };
        pages::write_plans_page(path, &[(name, &planned.plan)], &options)?;
    }
    match args.shared.format {
        Format::Text => print_escaped(&report::summary(&planned.plan)),
        Format::Json => {
            print_escaped(&(serde_json::to_string_pretty(&report_json(&planned))? + "\n"))
        }
    }
}

/// Where a page was asked for and there is no plan: the page that shows why. That it cannot be written is said beside the error.
fn show_why(args: &CompileArgs, error: &anyhow::Error) {
    let (Some(path), Some(error)) = (&args.report, error.downcast_ref::<CompileError>()) else {
        return;
    };
    match write_why(args, path, error) {
        Ok(()) => print_message("note", &format!("{} shows why there is no plan", path.display())),
        Err(error) => {
            print_message("warning", &format!("no page of why there is no plan: {error:#}"))
        }
    }
}

fn write_why(args: &CompileArgs, path: &Path, error: &CompileError) -> Result<()> {
    let (imported, dims) = options::read_model(&args.model, &args.shared, None)?;
    let options = options::compile_options(&args.shared, dims)?;
    let cluster = options::shared_cluster(&args.shared, None)?;
    let name = pages::page_name(&args.model);
    let page = page_without_plan((&name, &imported.graph), &options, &cluster, error);
    pages::write_page(path, &page)
}

/// What a compilation reads.
pub fn compile_inputs<'a>(model: &'a Path, args: &'a SharedArgs) -> [Named<'a>; 3] {
    let cluster = args.cluster.as_deref().map(Path::new).filter(|path| path.is_file());
    let config = args.config.as_deref();
    [("the model", Some(model)), ("the cluster file", cluster), ("the run file", config)]
}

fn report_json(planned: &PlannedModel) -> serde_json::Value {
    let (plan, timing) = (&planned.plan, &planned.timing);
    let counts: serde_json::Map<String, serde_json::Value> = collective_counts(plan)
        .into_iter()
        .map(|(kind, count)| (kind.name().into(), count.into()))
        .collect();
    json!({
        "planner": plan.planner,
        "predicted": plan.predicted,
        "seconds": {
            "parse": timing.parse,
            "plan": timing.plan,
            "solve": timing.solve,
            "total": timing.parse + timing.plan,
        },
        "collectives": counts,
    })
}

fn emit_graph(args: &CompileArgs, pass: &str) -> Result<()> {
    let (imported, dims) = options::read_model(&args.model, &args.shared, None)?;
    let options = options::compile_options(&args.shared, dims)?;
    let cluster = options::shared_cluster(&args.shared, None)?;
    let graph = emit_after(imported.graph, &options, &cluster, pass)?;
    print_escaped(&graphc_ir::text::print_graph(&graph))
}

/// Reads and plans a model, for a device where the command line names one. The samples of `data` are the batch where the
/// command line gives none; `training` asks for a loss and an optimizer.
pub fn plan_model(
    path: &Path,
    (args, device): (&SharedArgs, Option<DeviceName>),
    data: Option<&Types>,
    training: bool,
) -> Result<PlannedModel> {
    if training {
        ensure!(
            args.optimizer.is_some(),
            "training needs --optimizer sgd, adam, adamw, lamb or rmsprop"
        );
    }
    if let (Some(optimizer), None) = (args.optimizer, args.lr) {
        print_message("note", &options::default_rate(optimizer));
    }
    let start = Instant::now();
    let (imported, dims) = options::read_model(path, args, data)?;
    let Imported { graph, weights, warnings, .. } = imported;
    for warning in warnings {
        print_message("warning", &warning);
    }
    check_static_batch(&graph, args.batch)?;
    let trained = start::trained_weights(&graph);
    let options = options::compile_options(args, dims)?;
    let cluster = options::shared_cluster(args, device)?;
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

/// The model file by path and content.
pub fn weights_source(path: &Path) -> Result<WeightsSource> {
    Ok(WeightsSource {
        path: path.display().to_string(),
        sha256: options::hash_file(&document_path(path))?,
    })
}

/// Whether a path names a plan.
pub fn is_plan(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// Reads a plan, and checks by planning again that its graph compiles to it.
pub fn load_valid_plan(path: &Path) -> Result<VerifiedPlan> {
    verify_plan(&load_plan(path)?).with_context(|| format!("{} is not valid", path.display()))
}

/// Reads a plan and checks all that can be checked without planning again: enough to show, to simulate and to execute it.
pub fn load_sound_plan(path: &Path) -> Result<VerifiedPlan> {
    VerifiedPlan::check(load_plan(path)?)
        .with_context(|| format!("{} is not valid", path.display()))
}

/// Bytes of the longest plan: that of the largest model on the most ranks has a hundredth.
const LONGEST_PLAN: u64 = 1 << 32;

/// Refuses a model where a plan is asked for: it is no text, or another one.
fn check_is_no_model(path: &Path) -> Result<()> {
    let is_model = path.extension().is_some_and(|ending| ending == "onnx" || ending == "gir");
    let path = path.display();
    ensure!(
        !is_model,
        "{path} is a model and no plan: make one with `graphc compile {path} -o plan.json`"
    );
    Ok(())
}

/// Reads a plan. It needs no seal, as all of it is checked; that one is broken is told.
pub fn load_plan(path: &Path) -> Result<Plan> {
    check_is_no_model(path)?;
    let text = read_text(path, LONGEST_PLAN, "plan ")?;
    let mut plan = read_plan(&text).with_context(|| format!("{} is no plan", path.display()))?;
    find_model_beside(path, &mut plan);
    if Seal::from_text(&text) == Seal::Broken {
        let path = path.display();
        let advice = format!("compile again, or look at it with `graphc verify --seal {path}`");
        print_message("warning", &format!("{path} was changed after it was sealed: {advice}"));
    }
    Ok(plan)
}

/// A plan that was carried to another machine takes its weights from the model that lies beside it, where there is none at its old place.
fn find_model_beside(plan_path: &Path, plan: &mut Plan) {
    let Some(source) = &mut plan.weights else { return };
    let old = Path::new(&source.path);
    let Some(name) = old.file_name().filter(|_| !old.exists()) else { return };
    let beside = plan_path.with_file_name(name);
    if beside.is_file() {
        source.path = beside.display().to_string();
    }
}

/// The model's weights that a plan names; an error where the file has changed since.
pub fn plan_weights(plan: &Plan) -> Result<Weights> {
    let Some(source) = &plan.weights else { return Ok(Weights::default()) };
    let path = Path::new(&source.path);
    let found = options::hash_file(&document_path(path)).with_context(|| {
        format!(
            "the plan takes its weights from {}: put that file there, or beside the plan",
            source.path
        )
    })?;
    ensure!(
        found == source.sha256,
        "{} has changed since the plan was made (SHA-256 {found}, the plan has {}): compile again",
        source.path,
        source.sha256
    );
    Ok(load_model(path, &plan.options.dims, ImportOptions::default())?.weights)
}
