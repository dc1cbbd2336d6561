//! `.gir` models: the text, and weights from the safetensors file of the same stem where there is one.

use std::collections::BTreeMap;
use std::path::Path;

use graphc_ir::graph::Graph;
use graphc_ir::op::Op;
use graphc_ir::ops::{Init, Input};
use graphc_ir::text::Unresolved;
use graphc_ir::verify::verify_graph;

use super::trained::{choose_trained, variables_mut};
use super::weights::{WeightData, WeightTensor, Weights, WeightsError};
use super::{ImportError, ImportOptions, Imported, Symbols, safetensors};

/// The name that stands for the number of samples, whatever the model calls it.
const BATCH: &str = "batch";

pub(super) fn collect_symbols(model: &Unresolved<'_>) -> Symbols {
    Symbols::new(model.inputs(), model.symbols())
}

pub(super) fn import_gir(
    path: &Path,
    model: Unresolved<'_>,
    dims: &BTreeMap<String, usize>,
    options: &ImportOptions,
) -> Result<Imported, ImportError> {
    let symbols = collect_symbols(&model);
    let mut dims = dims.clone();
    if let (Some(name), Some(&batch)) = (&symbols.batch, dims.get(BATCH)) {
        dims.entry(name.clone()).or_insert(batch);
    }
    let mut graph =
        model.resolve(&dims).map_err(|errors| ImportError::Text { path: path.into(), errors })?;
    if graph.outputs.is_empty() {
        return Err(ImportError::NoOutputs { path: path.into() });
    }
    check_batch(&graph, &symbols, &dims)?;
    count_samples(&mut graph, &symbols);
    choose_trained(&mut graph, options)?;
    let weights = collect_weights(&mut graph, &path.with_extension("safetensors"))?;
    verify_graph(&graph)?;
    let (warnings, training_warnings, modules) = (Vec::new(), Vec::new(), BTreeMap::new());
    Ok(Imported { graph, weights, warnings, training_warnings, symbols: symbols.all, modules })
}

/// Inputs whose line does not say which dim counts samples do as the symbols say.
fn count_samples(graph: &mut Graph, symbols: &Symbols) {
    let mut inputs: Vec<&mut Input> = graph
        .nodes
        .iter_mut()
        .filter_map(|node| match &mut node.op {
            Op::Input(input) => Some(input),
            _ => None,
        })
        .collect();
    let shapes: Vec<Vec<usize>> = inputs.iter().map(|input| input.ty.shape.clone()).collect();
    for (input, samples) in inputs.iter_mut().zip(symbols.samples(&shapes)) {
        if input.samples.is_first() {
            input.samples = samples;
        }
    }
}

/// A static first extent, or the value of the symbol, is what `batch` says, where it says anything.
fn check_batch(
    graph: &Graph,
    symbols: &Symbols,
    dims: &BTreeMap<String, usize>,
) -> Result<(), ImportError> {
    let Some(&batch) = dims.get(BATCH) else { return Ok(()) };
    let (name, dim) =
        symbols.sampled_inputs().next().map_or((None, 0), |(name, dim)| (Some(name), dim));
    let input = graph.nodes.iter().find_map(|node| match &node.op {
        Op::Input(input) if name.is_none_or(|name| name == input.name) => Some(input),
        _ => None,
    });
    let extent = input.and_then(|input| input.ty.shape.get(dim).map(|&extent| (input, extent)));
    match extent {
        Some((input, extent)) if extent != batch && !symbols.all.iter().any(|s| s == BATCH) => {
            let reason = format!("the model has {extent}, and the batch is {batch}");
            Err(ImportError::Dim { input: input.name.clone(), dim, reason })
        }
        _ => Ok(()),
    }
}

/// Collects the initial values of the variables. Those that the safetensors file holds begin as the file says, the others as the text of the graph
/// says.
fn collect_weights(graph: &mut Graph, path: &Path) -> Result<Weights, ImportError> {
    let mut found = safetensors::read_tensors(path)?;
    let mut weights = Weights::default();
    for variable in variables_mut(graph) {
        let tensor = found.as_mut().and_then(|tensors| tensors.remove(&variable.name));
        let tensor = match tensor {
            Some(tensor) => tensor,
            None if variable.init != Init::Weights => continue,
            None if found.is_some() => {
                return Err(WeightsError::Missing { name: variable.name.clone() }.into());
            }
            // The file is absent, which is an error once its bytes are needed.
            None => {
                let data = WeightData::File { path: path.into(), offset: 0, folder: None };
                WeightTensor { dtype: variable.ty.dtype, shape: variable.ty.shape.clone(), data }
            }
        };
        if tensor.ty() != variable.ty {
            let (name, path, expected) = (variable.name.clone(), path.into(), variable.ty.clone());
            return Err(WeightsError::Type { name, path, found: tensor.ty(), expected }.into());
        }
        variable.init = Init::Weights;
        weights.tensors.insert(variable.name.clone(), tensor);
    }
    Ok(weights)
}
