//! `graphc run`: inference.

use anyhow::{Context, Result, bail, ensure};
use graphc_runtime::data::save_safetensors;
use graphc_runtime::{Session, SessionOptions};

use super::args::{RunArgs, RuntimeArgs};
use super::compile::{Planned, is_plan, load_plan, plan_model, plan_weights};
use super::data::{Samples, inputs, session_weights};

/// Runs the command: one step on the rows of the inputs file.
pub fn run(args: &RunArgs) -> Result<()> {
    let samples = Samples::load(&args.inputs)?;
    let (plan, weights) = if is_plan(&args.model) {
        let plan = load_plan(&args.model)?;
        let weights = plan_weights(&plan)?;
        (plan, weights)
    } else {
        if args.shared.loss.is_some() || args.shared.optimizer.is_some() {
            bail!("run does inference: --loss and --optimizer belong to train");
        }
        let Planned { plan, weights, .. } =
            plan_model(&args.model, &args.shared, Some(samples.rows()), false)?;
        (plan, weights)
    };
    let inputs = inputs(&plan);
    samples.check(&inputs)?;
    for (name, ty) in &inputs {
        ensure!(
            ty.shape.first() == Some(&samples.rows()),
            "input `{name}` is {ty}, and the file has {} samples: give as many, or compile with --batch {}",
            samples.rows(),
            samples.rows()
        );
    }
    let session = Session::new(&plan, &session_weights(&plan, &weights)?, session_options(&args.runtime)?)?;
    let outputs = session.step(samples.batch(&inputs, 0)?)?.wait()?;
    save_safetensors(&args.outputs, &outputs)
        .with_context(|| format!("cannot write {}", args.outputs.display()))?;
    Ok(())
}

/// The options of a session.
pub fn session_options(args: &RuntimeArgs) -> Result<SessionOptions> {
    ensure!(
        args.timeout > 0.0 && args.timeout < 1e9,
        "--timeout is a number of seconds above 0, not {}",
        args.timeout
    );
    ensure!(args.threads != Some(0), "--threads is at least 1");
    Ok(SessionOptions {
        seed: args.seed,
        threads_per_rank: args.threads,
        timeout: std::time::Duration::from_secs_f64(args.timeout),
        ..SessionOptions::default()
    })
}
