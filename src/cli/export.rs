//! `graphc export`: a checkpoint becomes one file of weights, or the ONNX model that was trained with the weights in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use graphc_compiler::passes::averages::AVERAGE;
use graphc_import::model_with_weights;
use graphc_import::weights::{WeightData, WeightTensor, Weights};
use graphc_plan::TensorKind;
use graphc_runtime::data::{load_safetensors, save_safetensors, write_file};
use graphc_runtime::{Checkpoint, HostTensor, is_table};

use super::args::ExportArgs;

/// Runs the command.
pub(super) fn run_export(args: &ExportArgs) -> Result<()> {
    let tensors = if args.checkpoint.is_file() {
        ensure!(
            !args.ema && !args.all,
            "--ema and --all are for checkpoints, not for files of weights"
        );
        load_safetensors(&args.checkpoint)?
    } else {
        of_checkpoint(args)?
    };
    match &args.model {
        Some(model) => write_model(model, tensors, &args.output),
        None => Ok(save_safetensors(&args.output, &tensors)?),
    }
}

fn of_checkpoint(args: &ExportArgs) -> Result<BTreeMap<String, HostTensor>> {
    let checkpoint = Checkpoint::open(&args.checkpoint)?;
    let inside = std::path::absolute(&args.output)?.starts_with(checkpoint.path().canonicalize()?);
    ensure!(!inside, "{} lies in the checkpoint: choose another file", args.output.display());
    let variables = checkpoint.variables().iter();
    let wanted = variables.filter(|(_, found)| args.all || found.kind == TensorKind::Parameter);
    let names: BTreeSet<&str> = wanted.map(|(name, _)| name.as_str()).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let mut tensors = checkpoint.read(&names)?;
    if args.ema {
        take_averages(&checkpoint, &mut tensors)?;
    }
    Ok(tensors)
}

/// Writes the model with these weights in the place of its own.
fn write_model(model: &Path, tensors: BTreeMap<String, HostTensor>, output: &Path) -> Result<()> {
    let onnx = |path: &Path| path.extension().is_some_and(|extension| extension == "onnx");
    ensure!(
        onnx(model) && onnx(output),
        "--model takes an ONNX model and writes one: both names must end in .onnx"
    );
    let weight = |(name, tensor): (String, HostTensor)| {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        (name, WeightTensor { dtype, shape, data: WeightData::Bytes(tensor.bytes().into()) })
    };
    // Tables were saved once; they are computed.
    let tensors = tensors.into_iter().filter(|(name, _)| !is_table(name));
    let weights = Weights { tensors: tensors.map(weight).collect(), ..Weights::default() };
    let changed = model_with_weights(model, &weights)
        .with_context(|| format!("the weights do not go into {}", model.display()))?;
    if let Some(tensor) = changed.external.first() {
        ensure!(
            canonical_folder(model)? == canonical_folder(output)?,
            "`{tensor}` of {} is no weight and lies in a file beside it: write {} into the same folder",
            model.display(),
            output.display()
        );
    }
    Ok(write_file(output, &changed.bytes)?)
}

fn canonical_folder(path: &Path) -> Result<std::path::PathBuf> {
    let path = std::path::absolute(path)?;
    let folder = path.parent().unwrap_or(&path);
    folder.canonicalize().with_context(|| format!("cannot find the folder {}", folder.display()))
}

/// Puts the moving averages of weights in the weights' place, in their element types.
fn take_averages(
    checkpoint: &Checkpoint,
    tensors: &mut BTreeMap<String, HostTensor>,
) -> Result<()> {
    let averaged = |name: &str| format!("{AVERAGE}{name}");
    let own: Vec<String> = tensors
        .keys()
        .map(|name| averaged(name))
        .filter(|name| checkpoint.variables().contains_key(name))
        .collect();
    ensure!(
        !own.is_empty(),
        "{} holds no moving averages: train with --ema",
        checkpoint.path().display()
    );
    for (name, average) in checkpoint.read(&own.iter().map(String::as_str).collect::<Vec<_>>())? {
        let weight = name.strip_prefix(AVERAGE).and_then(|name| tensors.get_mut(name));
        if let Some(weight) = weight {
            let (dtype, shape) = (weight.dtype(), weight.shape().to_vec());
            *weight = HostTensor::from_f64(dtype, shape, &average.to_f64())?;
        }
    }
    Ok(())
}
