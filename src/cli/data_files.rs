//! Files that the CLI reads besides models: samples of a data file, weights for a session.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use graphc_import::Symbols;
use graphc_import::weights::Weights;
use graphc_ir::types::TensorType;
use graphc_plan::Plan;
use graphc_runtime::HostTensor;
use graphc_runtime::data::{TensorFile, load_safetensors, read_file};

/// The text of a file of at most so many bytes; `what` it is, for the error.
pub(super) fn read_text(path: &Path, most: u64, what: &str) -> Result<String> {
    let bytes = read_file(path, most).map_err(anyhow::Error::new);
    let text = bytes
        .and_then(|bytes| String::from_utf8(bytes).map_err(|_| anyhow!("it is no text in UTF-8")));
    text.with_context(|| format!("cannot read {what}{}", path.display()))
}

/// The types of the tensors of a data file, by name.
pub(super) type Types = BTreeMap<String, TensorType>;

/// A data file, which says what the symbolic extents of a model are.
#[derive(Clone, Copy)]
pub(super) struct DataExtents<'a> {
    /// The types of its tensors.
    pub types: &'a Types,
    /// Whether its samples are the batch, where none is given.
    pub are_batch: bool,
}

impl<'a> DataExtents<'a> {
    /// The extents of a file all of whose samples are a batch, where none is given.
    pub(super) fn of_batch(types: &'a Types) -> Self {
        Self { types, are_batch: true }
    }
}

/// The tensors of a data file, and their types.
pub(super) fn read_tensors(path: &Path) -> Result<(BTreeMap<String, HostTensor>, Types)> {
    let tensors = load_safetensors(path)?;
    if tensors.is_empty() {
        bail!("{} holds no tensors", path.display());
    }
    let types = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.ty())).collect();
    Ok((tensors, types))
}

/// The types of the tensors of a data file: its header alone is read.
pub(super) fn read_types(path: &Path) -> Result<Types> {
    let types = TensorFile::open(path)?.tensors().clone();
    if types.is_empty() {
        bail!("{} holds no tensors", path.display());
    }
    Ok(types)
}

/// Counts the samples that tensors hold. Tensors in which the model counts samples along its batch's symbol come first, then labels or
/// targets, then all tensors, if they are alike. A file may hold tensors that the model does not use. It is `None` where the count is not
/// clear: then the batch must be given.
pub(super) fn count_samples(tensors: &Types, symbols: &Symbols) -> Option<usize> {
    let of_model = |(name, dim): (&str, usize)| tensors.get(name)?.shape.get(dim).copied();
    let along: Vec<usize> = symbols.sampled_inputs().filter_map(of_model).collect();
    if let Some(&first) = along.first() {
        return along.iter().all(|&count| count == first).then_some(first);
    }
    let count = |ty: &TensorType| ty.shape.first().copied();
    let named = ["labels", "target"].iter().find_map(|&name| count(tensors.get(name)?));
    let mut counts: Vec<usize> = tensors.values().filter_map(count).collect();
    counts.dedup();
    let common = if let [count] = counts[..] { Some(count) } else { None };
    named.or(common)
}

/// The weights of a model in memory, each once.
#[derive(Default)]
pub(super) struct ModelWeights {
    /// The weights that variables of the plan begin with.
    pub own: BTreeMap<String, HostTensor>,
    /// The weights that the plan has no variables for: what it was made with, and what no output that is asked for depends on.
    pub aside: BTreeMap<String, HostTensor>,
    /// The weights that the plan was made with.
    pub fixed: BTreeMap<String, HostTensor>,
}

impl ModelWeights {
    /// Reads the weights of a plan's model.
    pub(super) fn read_of_plan(plan: &Plan, weights: Weights) -> Result<Self> {
        let mut read = Self::default();
        let variables: BTreeSet<&str> = plan.variable_names();
        for (name, tensor) in weights.tensors.into_iter().chain(weights.others) {
            let bytes = tensor.to_vec(&name)?;
            let tensor = HostTensor::new(tensor.dtype, tensor.shape, bytes)?;
            if weights.fixed.contains(&name) {
                read.fixed.insert(name.clone(), tensor.clone());
            }
            let into = match variables.contains(name.as_str()) {
                true => &mut read.own,
                false => &mut read.aside,
            };
            into.insert(name, tensor);
        }
        Ok(read)
    }
}

/// The weights that variables of the plan take from the model's file, each in memory once.
pub(super) fn session_weights(
    plan: &Plan,
    mut weights: Weights,
) -> Result<BTreeMap<String, HostTensor>> {
    let variables = plan.variable_names();
    weights.tensors.retain(|name, _| variables.contains(name.as_str()));
    weights.others.clear();
    Ok(ModelWeights::read_of_plan(plan, weights)?.own)
}
