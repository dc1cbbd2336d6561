//! `graphc eval`: loss and metrics over a data set, in inference form.

mod scores;

use anyhow::{Result, bail, ensure};
use graphc_data::Kind;
use graphc_import::Imported;
use graphc_import::weights::Weights;
use graphc_plan::check::VerifiedPlan;
use serde_json::Value;

use crate::cli::args::{EvalArgs, Format, compile_options};
use crate::cli::clusters::shared_cluster;
use crate::cli::contradictions::check_options;
use crate::cli::data_files::{DataExtents, read_types};
use crate::cli::models::read_model;
use crate::cli::output::{print_escaped, print_message};
use crate::cli::plans::{is_plan, load_sound_plan, plan_weights, weights_source};
use crate::cli::ranks::Ranks;
use crate::cli::start::{self, session_options};

use scores::plan_evaluation;
pub(super) use scores::{Evaluation, plan_of};

/// Runs the command.
pub(super) fn run_eval(args: &EvalArgs) -> Result<()> {
    Ranks::run_on_all(|ranks| evaluate_model(args, ranks))
}

fn evaluate_model(args: &EvalArgs, ranks: &Ranks) -> Result<()> {
    let options = session_options(&args.runtime);
    ranks.agree(Some(options.seed), None, args.weights_from.as_deref())?;
    let (plan, weights) = ranks.plan(|| load_plan(args))?;
    let session =
        start::open_inference(&plan, weights, (ranks, options), args.weights_from.as_deref())?;
    let mut evaluation = Evaluation::new(session, &plan, &args.data)?;
    let scores = evaluation.run()?;
    ranks.barrier()?;
    // Outputs, and so scores, are those of the process that leads.
    if ranks.leads() {
        ensure!(
            scores["samples"] != 0,
            "no label of {} counts: all are ignored, so there is no loss to print",
            args.data.path.display()
        );
        ensure!(
            !scores["loss"].is_null(),
            "the loss is not finite: weights or samples are not, or the model overflows with them"
        );
        print_escaped(&render_scores(&scores, args.shared.format)?)?;
    }
    Ok(())
}

/// The plan and the weights of its model.
fn load_plan(args: &EvalArgs) -> Result<(VerifiedPlan, Weights)> {
    if args.shared.optimizer.is_some() {
        bail!("eval trains nothing: --optimizer belongs to train");
    }
    if let Some(pattern) = args.shared.fetch.first() {
        bail!("eval prints numbers alone: --fetch {pattern} belongs to compile, run and train");
    }
    if is_plan(&args.model) {
        let plan = load_sound_plan(&args.model)?;
        check_options(&args.model, &plan, &args.shared)?;
        return Ok((plan_of(&plan)?, plan_weights(&plan)?));
    }
    args.data.check_kind()?;
    let types = match args.data.kind {
        Kind::Tensors => Some(read_types(&args.data.path)?),
        _ => None,
    };
    let shared = args.shared.with_weights_from(args.weights_from.as_deref());
    let (imported, dims) =
        read_model(&args.model, &shared, types.as_ref().map(DataExtents::of_batch))?;
    let Imported { graph, weights, warnings, .. } = imported;
    for warning in warnings {
        print_message("warning", &warning);
    }
    let options = compile_options(&args.shared, dims)?;
    let cluster = shared_cluster(&args.shared, args.runtime.device)?;
    let source = Some(weights_source(&args.model)?);
    Ok((plan_evaluation(graph, &options, &cluster, source)?, weights))
}

fn render_scores(scores: &Value, format: Format) -> Result<String> {
    if let Format::Json = format {
        return Ok(serde_json::to_string_pretty(scores)? + "\n");
    }
    let fields = scores.as_object().into_iter().flatten();
    Ok(fields.map(|(name, value)| format!("{name:<10} {value}\n")).collect())
}
