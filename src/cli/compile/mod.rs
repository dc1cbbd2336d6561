//! `graphc compile`: a model becomes a plan.

mod compare;

use std::path::Path;

use anyhow::{Result, bail};
use graphc::report;
use graphc::report::page::{PageOptions, page_without_plan};
use graphc_compiler::compile::emit_after;
use graphc_compiler::error::CompileError;
use graphc_compiler::lower::collective_counts;
use graphc_import::weights::{WeightData, WeightTensor, Weights};
use serde_json::json;

use super::args::{CompileArgs, Format, OnNan, compile_options};
use super::clusters::shared_cluster;
use super::models::read_model;
use super::output::{check_distinct, check_places, print_escaped, print_message};
use super::pages;
use super::planning::{PlannedModel, compile_inputs, plan_model};

/// Runs the command.
pub(super) fn run_compile(args: &CompileArgs) -> Result<()> {
    let output = args.output.as_deref();
    let page = args.report.as_deref();
    let outputs = [("--output", output), ("--report", page)];
    check_distinct(&compile_inputs(&args.model, &args.shared), &outputs)?;
    check_places(&outputs)?;
    if let Some(OnNan::Stop | OnNan::Ignore) = args.shared.hyperparameters.on_nan {
        bail!("of --on-nan only skip makes another plan: stop and ignore are said to train");
    }
    if let Some(pass) = &args.emit {
        return emit_graph(args, pass);
    }
    if !args.compare.is_empty() {
        return compare::run_compare(args);
    }
    let training = args.shared.optimizer.is_some();
    let planned = plan_model(&args.model, (&args.shared, None), None, training);
    let planned = planned.inspect_err(|error| show_why(args, error))?;
    note_missing_file(&planned.weights);
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

/// Says which file of weights is not there: a plan needs none, and who runs it does.
fn note_missing_file(weights: &Weights) {
    let file = |tensor: &WeightTensor| match &tensor.data {
        WeightData::File { path, .. } if !path.exists() => Some(path.clone()),
        _ => None,
    };
    if let Some(path) = weights.tensors.values().find_map(file) {
        let path = path.display();
        print_message(
            "note",
            &format!("{path}, which holds weights, is not there: a plan needs it when it runs"),
        );
    }
}

/// Writes the page that shows why there is no plan, where a page was asked for. If it cannot be written, that is said beside the error.
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
    let (imported, dims) = read_model(&args.model, &args.shared, None)?;
    let options = compile_options(&args.shared, dims)?;
    let cluster = shared_cluster(&args.shared, None)?;
    let name = pages::page_name(&args.model);
    let page = page_without_plan((&name, &imported.graph), &options, &cluster, error);
    pages::write_page(path, &page)
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
    let (imported, dims) = read_model(&args.model, &args.shared, None)?;
    let options = compile_options(&args.shared, dims)?;
    let cluster = shared_cluster(&args.shared, None)?;
    let graph = emit_after(imported.graph, &options, &cluster, pass)?;
    print_escaped(&graphc_ir::text::print_graph(&graph))
}
