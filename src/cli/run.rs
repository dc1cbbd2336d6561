//! `graphc run`: inference.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use graphc::profile::measure_session;
use graphc_compiler::passes::LOSS;
use graphc_import::weights::Weights;
use graphc_ir::types::TensorType;
use graphc_plan::check::VerifiedPlan;
use graphc_runtime::data::{Batches, Pieces, save_safetensors};
use graphc_runtime::{HostTensor, Session};

use super::args::RunArgs;
use super::contradictions::check_options;
use super::data_files::{DataExtents, Types, read_tensors};
use super::output::{check_distinct, check_places};
use super::planning::{PlannedModel, compile_inputs, plan_model};
use super::plans::{is_plan, load_sound_plan, plan_weights, warn_of_mixing};
use super::profiling::{self, device_kind};
use super::ranks::Ranks;
use super::start::{self, session_options};

/// Runs the command: as many steps as the rows of the inputs file make batches.
pub(super) fn run_inference(args: &RunArgs) -> Result<()> {
    Ranks::run_on_all(|ranks| infer_batches(args, ranks))
}

fn infer_batches(args: &RunArgs, ranks: &Ranks) -> Result<()> {
    let options = session_options(&args.runtime);
    check_files(args, ranks)?;
    let (tensors, types) = read_tensors(&args.inputs)?;
    let data = Some((args.inputs.as_path(), &types));
    ranks.agree(Some(options.seed), data, args.weights_from.as_deref())?;
    let (plan, weights) = ranks.plan(|| load_plan(args, &types))?;
    ranks.note_turns(&plan, device_kind(&args.runtime, &plan));
    let mut session =
        start::open_inference(&plan, weights, (ranks, options), args.weights_from.as_deref())?;
    let batches = Batches::new(tensors, session.inputs(), session.samples())
        .with_context(|| format!("in {}", args.inputs.display()))?;
    ensure!(
        args.shared.gradients_of.is_empty()
            || batches.samples().is_multiple_of(batches.batch_size().max(1)),
        "--gradients-of: {} has {} samples, and the loss is that of a batch of {}, which must not be filled up: take a --batch that \
         divides them",
        args.inputs.display(),
        batches.samples(),
        batches.batch_size()
    );
    if ranks.leads() && batches.samples() != batches.batch_size() {
        warn_of_mixing(&plan, batches.batch_size());
    }
    let outputs = all_batches(args, &mut session, &batches)?;
    if ranks.leads() {
        save_safetensors(&args.outputs, &outputs)?;
    }
    if let Some(path) = &args.profile {
        let times = measure_session(&mut session, &batches.feeds(0), || ranks.barrier())?;
        profiling::write_times(path, times, ranks, (&plan, device_kind(&args.runtime, &plan)))?;
    }
    Ok(())
}

fn check_files(args: &RunArgs, ranks: &Ranks) -> Result<()> {
    let [model, cluster, config] = compile_inputs(&args.model, &args.shared);
    let inputs = ("--inputs", Some(args.inputs.as_path()));
    let read = [model, cluster, config, inputs, ("--weights-from", args.weights_from.as_deref())];
    let written =
        [("--outputs", Some(args.outputs.as_path())), ("--profile", args.profile.as_deref())];
    check_distinct(&read, &written)?;
    if ranks.leads() { check_places(&written) } else { Ok(()) }
}

/// The outputs for all samples of the file, a batch a step. The last batch is filled up with samples from the beginning, whose
/// rows are cut off.
fn all_batches(
    args: &RunArgs,
    session: &mut Session,
    batches: &Batches,
) -> Result<BTreeMap<String, HostTensor>> {
    let samples = batches.samples();
    let batch = Some(batches.batch_size()).filter(|_| samples > 0);
    let Some(batch) = batch.filter(|&batch| batch > 0 && batch != samples) else {
        return Ok(session.step(batches.feeds(0))?.wait()?);
    };
    let outputs = session.outputs().clone();
    let mut whole: BTreeMap<String, WholeOutput> = BTreeMap::new();
    // The loss of a batch says nothing of the whole.
    let of_samples =
        outputs.iter().filter(|(name, _)| args.shared.gradients_of.is_empty() || *name != LOSS);
    for (name, ty) in of_samples {
        let dim = session.output_samples()[name].dim(ty.shape.len());
        let output = dim.and_then(|dim| WholeOutput::with_samples(ty, dim, (batch, samples)));
        let output = output.with_context(|| {
            format!(
                "{} has {samples} samples and the batch is {batch}, but output `{name}` is {ty}: it has no row for each sample, so \
                 batches cannot be put together; compile with --batch {samples}, name other outputs with --fetch, or let `graphc eval` \
                 find the mean of a loss",
                args.inputs.display(),
            )
        })?;
        whole.insert(name.clone(), output);
    }
    for step in 0..samples.div_ceil(batch) {
        let (first, kept) = (step * batch, batch.min(samples - step * batch));
        for (name, output) in session.step(batches.feeds(step as u64))?.wait()? {
            let Some(whole) = whole.get_mut(&name) else { continue };
            let into = (whole.tensor.bytes_mut(), samples, first);
            whole.pieces.copy_samples((output.bytes(), batch, 0), into, kept);
        }
    }
    Ok(whole.into_iter().map(|(name, whole)| (name, whole.tensor)).collect())
}

/// An output for all samples, put together batch by batch.
struct WholeOutput {
    pieces: Pieces,
    tensor: HostTensor,
}

impl WholeOutput {
    /// Makes place for `samples` samples of an output, of which a batch has `batch` along `dim`, each with as many rows as come out even. It is
    /// `None` where the dim does not count samples.
    fn with_samples(ty: &TensorType, dim: usize, (batch, samples): (usize, usize)) -> Option<Self> {
        let rows = ty.shape[dim] / batch;
        if rows == 0 || !ty.shape[dim].is_multiple_of(batch) {
            return None;
        }
        let of_row = Pieces::along_dim(ty, dim);
        let pieces = Pieces { bytes: of_row.bytes * rows, ..of_row };
        let mut shape = ty.shape.clone();
        shape[dim] = samples * rows;
        Some(Self { pieces, tensor: HostTensor::zeros(ty.dtype, shape) })
    }
}

/// The plan and the weights of its model.
fn load_plan(args: &RunArgs, data: &Types) -> Result<(VerifiedPlan, Weights)> {
    if is_plan(&args.model) {
        let plan = load_sound_plan(&args.model)?;
        check_options(&args.model, &plan, &args.shared)?;
        ensure!(
            plan.options.optimizer.is_none(),
            "run does inference, and {} is a plan of training: `graphc eval` finds its loss over a data set, and inference takes the model \
             itself (with --weights-from CHECKPOINT) or a plan that was compiled without --optimizer",
            args.model.display()
        );
        let weights = plan_weights(&plan)?;
        return Ok((plan, weights));
    }
    if args.shared.optimizer.is_some() {
        bail!("run does inference: --optimizer belongs to train");
    }
    ensure!(
        args.shared.loss.is_none() || !args.shared.gradients_of.is_empty(),
        "run does inference: --loss belongs to train, or to --gradients-of NAME, which gives the gradient of the loss by an input"
    );
    let shared = args.shared.with_weights_from(args.weights_from.as_deref());
    let PlannedModel { plan, weights, .. } = plan_model(
        &args.model,
        (&shared, args.runtime.device),
        Some(DataExtents::of_batch(data)),
        false,
    )?;
    Ok((plan, weights))
}
