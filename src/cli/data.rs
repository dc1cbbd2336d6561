//! What the CLI reads besides models: samples of a data file, weights for a session.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use graphc_compiler::import::weights::Weights;
use graphc_ir::ops::Init;
use graphc_ir::plan::{Plan, RegisterKind};
use graphc_runtime::HostTensor;
use graphc_runtime::data::load_safetensors;

/// The tensors of a data file, and how many samples they hold.
pub fn samples(path: &Path) -> Result<(BTreeMap<String, HostTensor>, usize)> {
    let tensors = load_safetensors(path)?;
    let Some((name, tensor)) = tensors.first_key_value() else {
        bail!("{} holds no tensors", path.display());
    };
    let count = tensor.shape().first().copied().with_context(|| {
        format!("tensor `{name}` of {} is a scalar: the first dim counts samples", path.display())
    })?;
    Ok((tensors, count))
}

/// The weights that variables of the plan take from the model's file.
pub fn session_weights(plan: &Plan, weights: &Weights) -> Result<BTreeMap<String, HostTensor>> {
    let mut tensors = BTreeMap::new();
    for register in plan.programs.iter().flat_map(|program| &program.registers) {
        let RegisterKind::Variable { name, init: Init::Weights, .. } = &register.kind else {
            continue;
        };
        if let (false, Some(tensor)) = (tensors.contains_key(name), weights.tensors.get(name)) {
            let bytes = weights.bytes(name)?.to_vec();
            let tensor = HostTensor::new(tensor.dtype, tensor.shape.clone(), bytes)?;
            tensors.insert(name.clone(), tensor);
        }
    }
    Ok(tensors)
}
