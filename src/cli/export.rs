//! `graphc export`: a checkpoint becomes one file of weights.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use graphc_ir::plan::TensorKind;
use graphc_runtime::Checkpoint;
use graphc_runtime::data::save_safetensors;

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
    Ok(save_safetensors(&args.output, &checkpoint.read(&names)?)?)
}
