//! `graphc verify`: every invariant of a plan; with the model, that it computes the same. What holds may be sealed.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use graphc::report::number_of;
use graphc_compiler::compile::compile;
use graphc_compiler::passes::loss::loss_first;
use graphc_compiler::planner::UNLIMITED;
use graphc_import::weights::Weights;
use graphc_import::{ImportOptions, Imported, document_path, load_model};
use graphc_ir::graph::Graph;
use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_ir::random::RandomStream;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{CompileOptions, Schedule, Strategy};
use graphc_runtime::{HostTensor, Session, SessionOptions};
use serde_json::json;

use super::args::{Format, VerifyArgs};
use super::data_files::session_weights;
use super::output::print_escaped;
use super::plans;
use super::plans::load_valid_plan;

/// The distance that an output may have from that of one rank, as a share of the output's largest element. float32 sums may run in another
/// order. Where the plan computes in half precision, numbers may be rounded otherwise: 8 times its relative rounding error.
pub(super) fn output_tolerance(plan: &VerifiedPlan) -> f64 {
    let has = |dtype: DType| plan.layouts.iter().any(|layout| layout.dtype == dtype);
    match (has(DType::BF16), has(DType::F16)) {
        (true, _) => 8.0 * 2f64.powi(-8),
        (false, true) => 8.0 * 2f64.powi(-11),
        (false, false) => 1e-4,
    }
}

/// Runs the command.
pub(super) fn run_verify(args: &VerifyArgs) -> Result<()> {
    let plan = load_valid_plan(&args.plan)?;
    let difference = args.model.as_deref().map(|model| compare_step(&plan, model)).transpose()?;
    if args.seal {
        graphc_runtime::data::write_file(&args.plan, plan.write_sealed().as_bytes())?;
    }
    match args.format {
        Format::Text => print_escaped(&(render_line(args, &plan, difference) + "\n")),
        Format::Json => {
            let found = json!({
                "valid": true,
                "ranks": plan.world_size,
                "programs": plan.programs.len(),
                "difference": difference,
                "sealed": args.seal,
            });
            print_escaped(&(serde_json::to_string_pretty(&found)? + "\n"))
        }
    }
}

/// Describes the findings in a line for people.
fn render_line(args: &VerifyArgs, plan: &VerifiedPlan, difference: Option<f64>) -> String {
    let ranks = number_of(plan.world_size, "rank", "ranks");
    let programs = number_of(plan.programs.len(), "program", "programs");
    let mut line = format!("{}: valid, {ranks}, {programs}", args.plan.display());
    if let (Some(model), Some(difference)) = (&args.model, difference) {
        line += &format!("; computes what {} does (to {difference:.0e})", model.display());
    }
    if args.seal {
        line += "; sealed";
    }
    line
}

/// The factor by which an output may differ from one rank's as a multiple of what rounding its inputs changes, where that is more than the
/// tolerance: a batch norm over few samples, say, makes much of little.
const ROUNDINGS: f64 = 8.0;

/// The change by rounding inputs above which an output says nothing.
const MOST_ROUNDING: f64 = 1e-2;

/// The model's graph with the output first that a plan trains on, where the model computes its loss itself.
fn with_loss_of(plan: &VerifiedPlan, graph: Graph) -> Result<Graph> {
    if plan.options.loss.is_some() || !plan.options.differentiates_loss() {
        return Ok(graph);
    }
    let own = graphc_ir::text::parse_graph(&plan.graph.join("\n"))
        .context("the plan's graph cannot be read")?;
    match own.outputs.first() {
        Some(output) => Ok(loss_first(graph, &output.name)?),
        None => Ok(graph),
    }
}

/// One step of the plan beside one step of the model on one rank, on the same random inputs: the largest difference
/// of an output, as a share of its largest element.
fn compare_step(plan: &VerifiedPlan, model: &Path) -> Result<f64> {
    if let Some(source) = &plan.weights {
        let found = plans::hash_file(&document_path(model))?;
        ensure!(
            found == source.sha256,
            "{} is not the file that the plan was made from (SHA-256 {found}, the plan has {})",
            model.display(),
            source.sha256
        );
    }
    let Imported { graph, weights, .. } =
        load_model(model, &plan.options.dims, ImportOptions::default())?;
    let graph = with_loss_of(plan, graph)?;
    let alone = CompileOptions {
        mesh: vec![1],
        stages: 1,
        microbatches: count_statistics(&graph, plan),
        auto_stages: false,
        auto_microbatches: false,
        schedule: Schedule::OneForwardOneBackward,
        strategy: Strategy::Auto,
        pins: Vec::new(),
        memory: None,
        ..plan.options.clone()
    };
    let mut cluster = plan.cluster.clone();
    cluster.device.memory = UNLIMITED;
    let reference = compile(graph, &alone, &cluster, None)
        .with_context(|| format!("cannot plan {} for one rank", model.display()))?
        .plan;
    let expected = run_step(&reference, weights.clone(), StepInputs::Drawn)?;
    let tolerance = output_tolerance(plan);
    let found = run_step(plan, weights.clone(), StepInputs::Drawn)?;
    let (mut worst, mut rounded) = (0.0f64, None);
    for (name, expected) in &expected {
        let found = found.get(name).with_context(|| format!("the plan has no output `{name}`"))?;
        let difference = tensor_difference(found, expected);
        worst = worst.max(difference);
        if difference <= tolerance {
            continue;
        }
        if rounded.is_none() {
            rounded = Some(run_step(&reference, weights.clone(), StepInputs::Rounded)?);
        }
        let rounded = rounded.as_ref().and_then(|rounded| rounded.get(name));
        let rounding = rounded.map_or(0.0, |rounded| tensor_difference(rounded, expected));
        ensure!(
            rounding <= MOST_ROUNDING,
            "output `{name}` cannot be compared: rounding its inputs alone changes it by {rounding:.1e} of its largest element"
        );
        ensure!(
            difference <= ROUNDINGS * rounding,
            "output `{name}` differs from the model's by {difference:.1e} of its largest element"
        );
    }
    Ok(worst)
}

/// Returns the number of parts of the batch that have statistics of their own: a plan cannot be compared with one rank that takes them
/// otherwise.
fn count_statistics(graph: &Graph, plan: &VerifiedPlan) -> usize {
    let normalizes = graph.nodes.iter().any(|node| matches!(node.op, Op::BatchNorm(_)));
    if normalizes && plan.training { plan.microbatches } else { 1 }
}

/// The inputs of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StepInputs {
    /// Random numbers.
    Drawn,
    /// The same random numbers, each off by a unit in its last place.
    Rounded,
}

/// The outputs of the first step on random inputs.
fn run_step(
    plan: &VerifiedPlan,
    weights: Weights,
    inputs: StepInputs,
) -> Result<BTreeMap<String, HostTensor>> {
    let weights = session_weights(plan, weights)?;
    let options = SessionOptions {
        // What it computes is the same on all devices.
        device: Some(DeviceKind::Cpu),
        ..SessionOptions::default()
    };
    let mut session = Session::new(plan, &weights, options)?;
    let feed =
        |(name, ty): (&String, &TensorType)| Ok((name.clone(), random_input(name, ty, inputs)?));
    let feeds = session.inputs().iter().map(feed).collect::<Result<_>>()?;
    Ok(session.step(feeds)?.wait()?)
}

/// Normal numbers; of integers 0 and 1, which every table and every loss has.
fn random_input(name: &str, ty: &TensorType, inputs: StepInputs) -> Result<HostTensor> {
    let stream = RandomStream { seed: 0, key: graphc_ir::random::key_of(name), step: 0 };
    let element = |i: usize| match ty.dtype.is_float() {
        true if inputs == StepInputs::Rounded => {
            let sign = if stream.words(i as u64)[0] & 1 == 0 { 1.0 } else { -1.0 };
            f64::from(stream.normal(i as u64)) * (1.0 + sign * last_place(ty.dtype))
        }
        true => f64::from(stream.normal(i as u64)),
        false => f64::from(stream.words(i as u64)[0] & 1),
    };
    let data: Vec<f64> = (0..ty.elements()).map(element).collect();
    Ok(HostTensor::from_f64(ty.dtype, ty.shape.clone(), &data)?)
}

/// A unit in the last place of 1.
fn last_place(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2f64.powi(-7),
        DType::F16 => 2f64.powi(-10),
        _ => 2f64.powi(-23),
    }
}

fn tensor_difference(found: &HostTensor, expected: &HostTensor) -> f64 {
    greatest_difference(&found.to_f64(), &expected.to_f64())
}

/// The greatest difference of two elements, as a share of the largest.
fn greatest_difference(found: &[f64], expected: &[f64]) -> f64 {
    let scale = expected.iter().fold(f64::MIN_POSITIVE, |scale, x| scale.max(x.abs()));
    found.iter().zip(expected).map(|(f, e)| number_distance(*f, *e) / scale).fold(0.0, f64::max)
}

/// Returns the distance of two numbers. Two NaNs are equal; one beside a number is a difference beyond any tolerance.
pub(super) fn number_distance(found: f64, expected: f64) -> f64 {
    match (found.is_nan(), expected.is_nan()) {
        (true, true) => 0.0,
        (false, false) if found == expected => 0.0,
        (false, false) => (found - expected).abs(),
        _ => f64::INFINITY,
    }
}
