//! `graphc run`: inference.

use anyhow::{Context, Result, bail, ensure};
use graphc_compiler::import::weights::Weights;
use graphc_ir::check::VerifiedPlan;
use graphc_runtime::SessionOptions;
use graphc_runtime::data::{Batches, save_safetensors};

use super::args::{RunArgs, RuntimeArgs};
use super::compile::{Planned, inputs, is_plan, load_valid_plan, plan_model, plan_weights};
use super::contradictions::check_options;
use super::data::{samples, session_weights};
use super::output::check_distinct;
use super::ranks::Ranks;

/// Runs the command: one step on the rows of the inputs file.
pub fn run(args: &RunArgs) -> Result<()> {
    Ranks::run(|ranks| infer(args, ranks))
}

fn infer(args: &RunArgs, ranks: &Ranks) -> Result<()> {
    let options = session_options(&args.runtime)?;
    let [model, cluster] = inputs(&args.model, &args.shared);
    let read = [model, cluster, ("--inputs", Some(args.inputs.as_path()))];
    check_distinct(&read, &[("--outputs", Some(&args.outputs))])?;
    let (tensors, rows) = samples(&args.inputs)?;
    ranks.agree(Some(options.seed), (&args.inputs, &tensors))?;
    let (plan, weights) = ranks.plan(|| planned(args, rows))?;
    let weights = session_weights(&plan, &weights)?;
    let mut session = ranks.session(&plan, &weights, options)?;
    let batches = Batches::new(tensors, session.inputs())
        .with_context(|| format!("in {}", args.inputs.display()))?;
    for (name, ty) in session.inputs() {
        ensure!(
            ty.shape.first() == Some(&batches.samples()),
            "input `{name}` is {ty}, and the file has {} samples: compile with --batch {}",
            batches.samples(),
            batches.samples()
        );
    }
    let outputs = session.step(batches.feeds(0))?.wait()?;
    if ranks.leads() {
        save_safetensors(&args.outputs, &outputs)?;
    }
    Ok(())
}

/// The plan and the weights of its model.
fn planned(args: &RunArgs, rows: Option<usize>) -> Result<(VerifiedPlan, Weights)> {
    if is_plan(&args.model) {
        let plan = load_valid_plan(&args.model)?;
        check_options(&args.model, &plan, &args.shared)?;
        let weights = plan_weights(&plan)?;
        return Ok((plan, weights));
    }
    if args.shared.loss.is_some() || args.shared.optimizer.is_some() {
        bail!("run does inference: --loss and --optimizer belong to train");
    }
    let Planned { plan, weights, .. } = plan_model(&args.model, &args.shared, rows, false)?;
    Ok((plan, weights))
}

/// More threads than any machine has cores; their number is that of each rank.
const MOST_THREADS: usize = 1024;

/// The options of a session.
pub fn session_options(args: &RuntimeArgs) -> Result<SessionOptions> {
    ensure!(
        args.timeout > 0.0 && args.timeout < 1e9,
        "--timeout is a number of seconds above 0, not {}",
        args.timeout
    );
    let threads = args.threads.unwrap_or(1);
    ensure!(
        (1..=MOST_THREADS).contains(&threads),
        "--threads is 1 to {MOST_THREADS}, not {threads}"
    );
    Ok(SessionOptions {
        seed: args.seed.unwrap_or(0),
        device: args.device.map(Into::into),
        threads_per_rank: args.threads,
        timeout: std::time::Duration::from_secs_f64(args.timeout),
        ..SessionOptions::default()
    })
}
