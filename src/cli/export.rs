//! `graphc export`: a checkpoint becomes one file of weights.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use graphc_compiler::passes::averages::AVERAGE;
use graphc_ir::plan::TensorKind;
use graphc_runtime::data::save_safetensors;
use graphc_runtime::{Checkpoint, HostTensor};

use super::args::ExportArgs;

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<()> {
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
    Ok(save_safetensors(&args.output, &tensors)?)
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
