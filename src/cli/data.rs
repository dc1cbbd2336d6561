//! What the CLI reads besides models: samples of a data file, weights for a session.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use graphc_compiler::import::weights::Weights;
use graphc_ir::ops::Init;
use graphc_ir::plan::{Plan, RegisterKind};
use graphc_ir::types::TensorType;
use graphc_runtime::HostTensor;
use graphc_runtime::data::{TensorFile, load_safetensors, read_file};

/// The text of a file of at most so many bytes; `what` it is, for the error.
pub fn read_text(path: &Path, most: u64, what: &str) -> Result<String> {
    let bytes = read_file(path, most).map_err(anyhow::Error::new);
    let text = bytes.and_then(|bytes| Ok(String::from_utf8(bytes)?));
    text.with_context(|| format!("cannot read {what}{}", path.display()))
}

/// The tensors of a data file, and how many samples they hold: what labels or targets say, or all tensors alike. A file
/// may hold tensors that the model does not use; where it is not clear which count, the batch must be given.
pub fn samples(path: &Path) -> Result<(BTreeMap<String, HostTensor>, Option<usize>)> {
    let tensors = load_safetensors(path)?;
    if tensors.is_empty() {
        bail!("{} holds no tensors", path.display());
    }
    let types = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.ty())).collect();
    let rows = rows(&types);
    Ok((tensors, rows))
}

/// The types of the tensors of a data file, and how many samples they hold, as [`samples`] says it: its header alone is read.
pub fn header(path: &Path) -> Result<(BTreeMap<String, TensorType>, Option<usize>)> {
    let types = TensorFile::open(path)?.tensors().clone();
    if types.is_empty() {
        bail!("{} holds no tensors", path.display());
    }
    let rows = rows(&types);
    Ok((types, rows))
}

fn rows(tensors: &BTreeMap<String, TensorType>) -> Option<usize> {
    let count = |ty: &TensorType| ty.shape.first().copied();
    let named = ["labels", "target"].iter().find_map(|&name| count(tensors.get(name)?));
    let mut counts: Vec<usize> = tensors.values().filter_map(count).collect();
    counts.dedup();
    let common = if let [count] = counts[..] { Some(count) } else { None };
    named.or(common)
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
