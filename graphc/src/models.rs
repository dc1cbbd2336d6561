//! Models by name, and models that transformers has saved.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use graphc_import::weights::{WeightTensor, WeightsError};
use graphc_import::{ImportError, ImportOptions, load_model};
use graphc_ir::graph::{Graph, Node};
use graphc_ir::op::Op;
pub use graphc_nn::models::*;
use graphc_runtime::{HostTensor, TensorError};

/// A model with its weights.
#[derive(Clone, Debug)]
pub struct Pretrained {
    /// The graph, with the file's names of inputs, variables and outputs; of a model that transformers has saved from `input_ids` (i64)
    /// `[batch, time]` to `logits`.
    pub graph: Graph,
    /// The weights, by the same names.
    pub weights: BTreeMap<String, HostTensor>,
    /// The parts of a configuration that are left out, and the weights that are trained otherwise than in PyTorch, a sentence each.
    pub warnings: Vec<String>,
}

/// The reason that a file or a folder is no model.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PretrainedError {
    /// The configuration or a file of weights cannot be used.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A weight cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A weight is not what its type says.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

graphc_ir::readable_debug!(PretrainedError);

/// The model in a folder as `save_pretrained` of transformers writes it, for so many samples of so many tokens: a language model of
/// the architectures LLaMA, Mistral, Qwen 2, Qwen 3, GPT-2 or BERT (or BERT with a head for classes). What a session has trained goes back under the same names.
///
/// ```no_run
/// use graphc::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = models::from_hf("Qwen3-0.6B", 4, 128)?;
/// let options = CompileOptions {
///     mesh: vec![2],
///     loss: Some(Loss::CrossEntropy),
///     optimizer: Some(Optimizer::adamw(1e-5)),
///     ..CompileOptions::default()
/// };
/// let plan = compile(model.graph, &options, &preset("cpu").expect("a preset"), None)?.plan;
/// let mut session = Session::new(&plan, &model.weights, SessionOptions::default())?;
/// // .. steps ..
/// save_safetensors("trained/model.safetensors".as_ref(), &session.weights()?)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns an error if the folder has no configuration, or one of an unknown model, or if its weights do not fit.
pub fn from_hf(
    folder: impl AsRef<Path>,
    batch: usize,
    time: usize,
) -> Result<Pretrained, PretrainedError> {
    let path = format!("hf:{}", folder.as_ref().display());
    load(path, &[("batch", batch), ("time", time)])
}

/// The model in a file, ONNX or graphc's text form, or in a folder `hf:DIR`, with its weights. `dims` gives symbolic extents their values; that of
/// `batch` is the number of samples, whatever the model calls it.
///
/// ```no_run
/// use graphc::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = models::load("net.onnx", &[("batch", 32)])?;
/// let options = CompileOptions {
///     mesh: vec![2],
///     loss: Some(Loss::CrossEntropy),
///     optimizer: Some(Optimizer::adamw(1e-3)),
///     ..CompileOptions::default()
/// };
/// let plan = compile(model.graph, &options, &preset("cpu").expect("a preset"), None)?.plan;
/// let mut session = Session::new(&plan, &model.weights, SessionOptions::default())?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns an error if the file cannot be read or is no model, if an extent has no value, or if the weights are missing.
pub fn load(path: impl AsRef<Path>, dims: &[(&str, usize)]) -> Result<Pretrained, PretrainedError> {
    let dims = dims.iter().map(|&(name, extent)| (name.to_owned(), extent)).collect();
    let options = ImportOptions { draws_missing: true, ..ImportOptions::default() };
    let imported = load_model(path.as_ref(), &dims, options)?;
    let read = |(name, tensor): (&String, &WeightTensor)| {
        let bytes = tensor.to_vec(name)?;
        let tensor = HostTensor::new(tensor.dtype, tensor.shape.clone(), bytes)?;
        Ok::<_, PretrainedError>((name.clone(), tensor))
    };
    let name = |node: &Node| match &node.op {
        Op::Variable(variable) => Some(variable.name.clone()),
        _ => None,
    };
    let variables: BTreeSet<String> = imported.graph.nodes.iter().filter_map(name).collect();
    let tensors = imported.weights.tensors.iter();
    // A file may have more than the graph reads.
    let weights = tensors.filter(|(name, _)| variables.contains(*name)).map(read);
    let weights = weights.collect::<Result<_, _>>()?;
    let warnings = [imported.warnings, imported.training_warnings].concat();
    Ok(Pretrained { graph: imported.graph, weights, warnings })
}
