//! `graphc run`: inference.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use graphc_compiler::import::weights::Weights;
use graphc_ir::check::VerifiedPlan;
use graphc_runtime::data::{Batches, save_safetensors};
use graphc_runtime::{HostTensor, Session, SessionOptions};

use super::args::{RunArgs, RuntimeArgs};
use super::compile::{Planned, inputs, is_plan, load_sound_plan, plan_model, plan_weights};
use super::contradictions::check_options;
use super::data::{samples, session_weights};
use super::output::check_distinct;
use super::ranks::Ranks;
use super::start;

/// Runs the command: as many steps as the rows of the inputs file make batches.
pub fn run(args: &RunArgs) -> Result<()> {
    Ranks::run(|ranks| infer(args, ranks))
}

fn infer(args: &RunArgs, ranks: &Ranks) -> Result<()> {
    let options = session_options(&args.runtime)?;
    check_files(args)?;
    let (tensors, rows) = samples(&args.inputs)?;
    let types = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.ty())).collect();
    let data = Some((args.inputs.as_path(), &types));
    ranks.agree(Some(options.seed), data, args.weights_from.as_deref())?;
    let (plan, weights) = ranks.plan(|| planned(args, rows))?;
    let weights = session_weights(&plan, &weights)?;
    let mut session = ranks.session(&plan, &weights, options)?;
    if let Some(path) = &args.weights_from {
        start::load(path, &mut session)?;
    }
    let batches = Batches::new(tensors, session.inputs())
        .with_context(|| format!("in {}", args.inputs.display()))?;
    let outputs = all_batches(args, &mut session, &batches)?;
    if ranks.leads() {
        save_safetensors(&args.outputs, &outputs)?;
    }
    Ok(())
}

fn check_files(args: &RunArgs) -> Result<()> {
    let [model, cluster] = inputs(&args.model, &args.shared);
    let inputs = ("--inputs", Some(args.inputs.as_path()));
    let read = [model, cluster, inputs, ("--weights-from", args.weights_from.as_deref())];
    check_distinct(&read, &[("--outputs", Some(&args.outputs))])
}

/// The outputs for all samples of the file, a batch a step. The last batch is filled up with samples from the beginning, whose
/// rows are cut off.
fn all_batches(
    args: &RunArgs,
    session: &mut Session,
    batches: &Batches,
) -> Result<BTreeMap<String, HostTensor>> {
    let samples = batches.samples();
    let batch = Some(batches.batch()).filter(|_| samples > 0);
    let Some(batch) = batch.filter(|&batch| batch > 0 && batch != samples) else {
        return Ok(session.step(batches.feeds(0))?.wait()?);
    };
    for (name, ty) in session.outputs() {
        ensure!(
            ty.shape.first() == Some(&batch),
            "{} has {samples} samples and the batch is {batch}, but output `{name}` is {ty}: it has no row for each \
             sample, so batches cannot be put together; compile with --batch {samples}",
            args.inputs.display(),
        );
    }
    let mut rows: BTreeMap<String, (HostTensor, Vec<u8>)> = BTreeMap::new();
    for step in 0..samples.div_ceil(batch) {
        for (name, output) in session.step(batches.feeds(step as u64))?.wait()? {
            let kept = batch.min(samples - step * batch);
            let bytes = output.bytes().len() / batch * kept;
            let of_output = rows.entry(name).or_insert_with(|| (output.clone(), Vec::new()));
            of_output.1.extend_from_slice(&output.bytes()[..bytes]);
        }
    }
    let whole = |(name, (like, bytes)): (String, (HostTensor, Vec<u8>))| {
        let shape = [&[samples], &like.shape()[1..]].concat();
        Ok((name, HostTensor::new(like.dtype(), shape, bytes)?))
    };
    rows.into_iter().map(whole).collect()
}

/// The plan and the weights of its model.
fn planned(args: &RunArgs, rows: Option<usize>) -> Result<(VerifiedPlan, Weights)> {
    if is_plan(&args.model) {
        let plan = load_sound_plan(&args.model)?;
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
