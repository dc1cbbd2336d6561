//! ONNX models. The way: `wire` checks the bytes, rten-onnx decodes them, `model` orders the nodes, and `lower` makes of
//! each node the ops that mean the same, by the table in `ops`. What is known is computed on the way (`known`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use graphc_ir::graph::{Graph, Node, Output, Source};
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::ops::Init;
use graphc_ir::verify::verify_graph;
use rten_onnx::onnx::{GraphProto, ModelProto};

use super::refused::{MOST_REFUSED, Refused};
use super::trained::TrainedPatterns;
use super::unsupported::{UnsupportedOp, UnsupportedOps};
use super::weights::{WeightTensor, Weights};
use super::{ImportError, ImportOptions, Imported, Symbols};

mod activations;
mod attention;
mod attributes;
mod border;
mod control;
mod double;
mod einsum;
mod element_types;
mod elementwise;
mod fields;
mod folded;
mod fourier;
mod fused;
mod gather;
mod grid;
mod heads;
mod image;
mod inputs;
mod integers;
mod inverse;
mod known;
mod linear;
mod literal;
mod losses;
mod lower;
mod matrices;
mod merged;
mod model;
mod movement;
mod node;
mod normalize;
mod of_data;
mod ops;
mod places;
mod quantize;
mod random;
mod recurrent;
mod reduce;
mod repeated;
mod resize;
mod rewrite;
mod roles;
mod scatter;
mod sequence;
mod shared;
mod stand_in;
mod tensor;
mod turned;
mod uses;
mod volumes;
mod wire;

use folded::FoldedWeights;
use inputs::{add_inputs, collect_described_types, collect_symbols, fixed_batch};
use lower::{Initializers, Lowering, Val};

/// The names of initializers that are copies, and of what.
type Copies = BTreeMap<String, String>;
pub use rewrite::{Rewritten, onnx_with_weights};

/// Imports an ONNX model. Files of weights are looked for in `base_dir`, and read only when their bytes are needed. `dims` gives the values of
/// symbolic extents. Its value for `batch` is that of the symbol that counts samples, whatever the name of that symbol.
///
/// # Errors
/// Returns an error if the bytes are no ONNX model, the model has an op or a form of an op that graphc lacks, or it does not fit.
pub fn import_onnx(
    bytes: &[u8],
    base_dir: &Path,
    dims: &BTreeMap<String, usize>,
    options: ImportOptions,
) -> Result<Imported, ImportError> {
    Decoded::new(bytes)?.import(base_dir, dims, options)
}

/// A decoded ONNX model.
pub(super) struct Decoded {
    model: ModelProto,
    metadata: wire::Metadata,
}

impl Decoded {
    /// Checks and decodes the bytes of a model.
    ///
    /// # Errors
    /// Returns an error if they are no ONNX model.
    pub(super) fn new(bytes: &[u8]) -> Result<Self, ImportError> {
        let mut metadata = wire::check_encoding(bytes)?;
        let own = merged::with_own_weights(bytes, &mut metadata);
        let model = ModelProto::parse_buf(own.as_deref().unwrap_or(bytes)).map_err(|error| {
            ImportError::Corrupt {
                place: error
                    .context()
                    .map_or("the model", |name| name.rsplit("::").next().unwrap_or(name))
                    .into(),
                reason: format!("field {}: {}", error.field().unwrap_or(0), error.kind()),
            }
        })?;
        Ok(Self { model, metadata })
    }

    /// Returns the symbolic extents of the model's inputs.
    ///
    /// # Errors
    /// Returns an error if the model holds no graph.
    pub(super) fn symbols(&self) -> Result<Symbols, ImportError> {
        let graph = find_graph(&self.model)?;
        let names = graph.initializer.iter().filter_map(|proto| proto.name.clone());
        let initializers: BTreeMap<String, ()> = names.map(|name| (name, ())).collect();
        Ok(collect_symbols(graph, &initializers))
    }

    /// Reads the initializers. The names that copies of initializers have are among them, each with the tensor of its source; the second result lists
    /// these copies.
    fn read_initializers(
        &self,
        graph: &GraphProto,
        base_dir: &Path,
    ) -> Result<(BTreeMap<String, WeightTensor>, Copies), ImportError> {
        let mut tensors = BTreeMap::new();
        for proto in &graph.initializer {
            let name = proto.name.clone().unwrap_or_default();
            tensors.insert(name, tensor::read_tensor(proto, base_dir)?);
        }
        let mut copies = roles::find_copies(graph, &self.metadata.kinds, &tensors);
        copies.extend(self.metadata.merged.clone());
        for (name, source) in &copies {
            let tensor = tensors[source].clone();
            tensors.insert(name.clone(), tensor);
        }
        Ok((tensors, copies))
    }

    /// Returns all initializers, and those that are copies of others.
    ///
    /// # Errors
    /// Returns an error if the model's tensors are damaged.
    pub(super) fn read_tensors(
        &self,
        base_dir: &Path,
    ) -> Result<BTreeMap<String, WeightTensor>, ImportError> {
        Ok(self.read_initializers(find_graph(&self.model)?, base_dir)?.0)
    }

    /// Finds the roles of initializers, and what the exporter's optimizer has made of parameters. Parameters that it has turned are added to the
    /// initializers.
    fn find_roles(
        &self,
        graph: &GraphProto,
        order: &[usize],
        tensors: &mut BTreeMap<String, WeightTensor>,
        copies: &Copies,
    ) -> (roles::Roles, FoldedWeights) {
        let batch = fixed_batch(graph, tensors);
        let folded = FoldedWeights::of_model(graph, &self.metadata, tensors, batch);
        folded.add_absent(tensors);
        let marks = (&self.metadata.kinds, &folded);
        let is_pytorch = is_pytorch(&self.model);
        (roles::find_trained(graph, order, marks, tensors, copies, is_pytorch), folded)
    }

    /// Brings weights into the form that the file has them in: adds what the exporter has made of one of them, in the place of that one where the file
    /// does not have it, and repeats what it has repeated. The second result are the weights that are trained by default, as far as nodes or outputs
    /// read them, and that are missing.
    ///
    /// # Errors
    /// Returns an error if the model's structure or its tensors are damaged, or a weight cannot be read.
    pub(super) fn write_as_exported(
        &self,
        base_dir: &Path,
        weights: &Weights,
    ) -> Result<(Weights, Vec<String>), ImportError> {
        let graph = find_graph(&self.model)?;
        let order = model::order_nodes(graph)?;
        let (mut tensors, copies) = self.read_initializers(graph, base_dir)?;
        let (roles, folded) = self.find_roles(graph, &order, &mut tensors, &copies);
        let missing = list_read_parameters(graph, &roles, &folded)
            .filter(|name| !weights.tensors.contains_key(*name));
        let missing = missing.cloned().collect();
        let mut weights = weights.clone();
        for (copy, source) in &roles.tied {
            let weight = weights.tensors.get(source).filter(|weight| weight.shape.len() == 2);
            if let (Some(weight), false) = (weight, weights.tensors.contains_key(copy)) {
                let turned = weight.turn();
                weights.tensors.insert(copy.clone(), turned);
            }
        }
        folded.write_as_exported(&mut weights)?;
        Ok((weights, missing))
    }

    /// Imports the model; see [`import_onnx`].
    pub(super) fn import(
        &self,
        base_dir: &Path,
        dims: &BTreeMap<String, usize>,
        options: ImportOptions,
    ) -> Result<Imported, ImportError> {
        let graph = find_graph(&self.model)?;
        let ops = list_unsupported_ops(graph);
        let begun = self.begin_import(base_dir, dims, options);
        // Ops that there are not come before all else that may be wrong.
        let begun = if ops.0.is_empty() {
            begun
        } else {
            begun.map_err(|_| ImportError::Unsupported { ops: ops.clone() })
        };
        let Begun { mut lowering, symbols, order, copies, authored, training_warnings } = begun?;
        let mut refused = Refused { ops, nodes: Vec::new() };
        for index in order {
            let copied =
                graph.node[index].output.first().is_some_and(|name| copies.contains_key(name));
            if !copied && refused.nodes.len() < MOST_REFUSED {
                refused.nodes.extend(lowering.node_or_stand_in(&graph.node[index])?);
            }
        }
        refused.check()?;
        for output in &graph.output {
            let name = output.name.clone().unwrap_or_default();
            let value = lowering.lower_output(&name)?;
            lowering.graph.outputs.push(Output { name, value });
        }
        let graph = without_dead_nodes(&lowering.graph)?;
        verify_graph(&graph)?;
        let weights = collect_weights(&graph, lowering, &authored);
        let modules = self.metadata.modules.clone();
        let (warnings, symbols) = (Vec::new(), symbols.all);
        Ok(Imported { graph, weights, warnings, training_warnings, symbols, modules })
    }

    /// Collects all that is known before the first node is lowered.
    fn begin_import(
        &self,
        base_dir: &Path,
        dims: &BTreeMap<String, usize>,
        options: ImportOptions,
    ) -> Result<Begun, ImportError> {
        let Self { model, metadata } = self;
        let wire::Metadata { kinds, computed, origins, padded, .. } = metadata;
        let graph = find_graph(model)?;
        let order = model::order_nodes(graph)?;
        let (mut tensors, copies) = self.read_initializers(graph, base_dir)?;
        let symbols = collect_symbols(graph, &tensors);
        let (mut roles, folded) = self.find_roles(graph, &order, &mut tensors, &copies);
        let mut authored = roles::find_authored(kinds, &tensors, is_pytorch(model));
        authored.extend(folded.absent.iter().cloned());
        for (name, repetition) in &folded.repeated {
            let rows = repetition.different_rows(name, &tensors[name])?;
            tensors.insert(name.clone(), rows);
        }
        let mut patterns = TrainedPatterns::new(&options);
        let mut trained = BTreeSet::new();
        for (name, tensor) in &tensors {
            let is_tied = roles.tied.contains_key(name);
            let default = is_tied || roles.trained.contains(name);
            let parts = folded.moved.get(name).map_or(&[][..], |parts| parts);
            match patterns.is_trained((name, parts), &tensor.ty(), default)? {
                true if is_tied => {}
                true => _ = trained.insert(name.clone()),
                // A copy that is frozen by its own name is a weight of its own.
                false => _ = roles.tied.remove(name),
            }
        }
        let floats = tensors.iter().filter(|(_, tensor)| tensor.dtype.is_float());
        patterns.check_matched(floats.map(|(name, _)| name.as_str()))?;
        // What PyTorch does not save is computed with, as the model does.
        let saved = authored.difference(computed);
        let floats = saved.filter(|name| tensors[*name].dtype.is_float());
        let kept = floats.chain(&roles.trained).cloned().collect();
        let initializers = Initializers { tensors, trained, kept };
        let mut lowering =
            Lowering::new(ops::supported_ops, read_opset(model)?, base_dir, initializers);
        lowering.origins.clone_from(origins);
        lowering.padded.clone_from(padded);
        lowering.wanted = model::list_graph_reads(graph);
        lowering.element_types = element_types::element_types(graph);
        lowering.described = collect_described_types(graph, dims, &symbols);
        for (copy, source) in &roles.tied {
            lowering.tie_weights(copy, source)?;
        }
        for (made, exponential) in &folded.exponentials {
            lowering.raise_weight(made, exponential)?;
        }
        for (name, zeros) in &folded.zeros {
            lowering.zero_part_of_weight(name, zeros)?;
        }
        for (name, repetition) in &folded.repeated {
            lowering.repeat_weight(name, repetition)?;
        }
        register_doubles(&mut lowering, graph, base_dir)?;
        register_folded(&mut lowering);
        add_inputs(&mut lowering, graph, dims, &symbols)?;
        let training_warnings = roles.warnings;
        Ok(Begun { lowering, symbols, order, copies, authored, training_warnings })
    }
}

/// Lists the weights that are trained by default, as far as nodes or outputs read them, or what the exporter has made of them.
fn list_read_parameters<'a>(
    graph: &GraphProto,
    roles: &'a roles::Roles,
    folded: &FoldedWeights,
) -> impl Iterator<Item = &'a String> {
    let outputs = graph.output.iter().filter_map(|output| output.name.as_deref());
    let mut read: BTreeSet<String> = graph
        .node
        .iter()
        .flat_map(model::list_node_reads)
        .chain(outputs)
        .map(str::to_owned)
        .collect();
    let raised = folded.exponentials.iter().map(|(made, of)| (made, &of.parameter));
    let made = roles.tied.iter().chain(raised).filter(|(made, _)| read.contains(*made));
    let sources: Vec<String> = made.map(|(_, source)| source.clone()).collect();
    read.extend(sources);
    roles.trained.iter().filter(move |name| read.contains(*name))
}

/// An import before its first node.
struct Begun {
    lowering: Lowering,
    symbols: Symbols,
    order: Vec<usize>,
    copies: Copies,
    authored: BTreeSet<String>,
    training_warnings: Vec<String>,
}

fn is_pytorch(model: &ModelProto) -> bool {
    model.producer_name.as_deref() == Some("pytorch")
}

fn find_graph(model: &ModelProto) -> Result<&GraphProto, ImportError> {
    let (place, reason) = ("the model".into(), "it holds no graph".into());
    model.graph.as_ref().ok_or(ImportError::Corrupt { place, reason })
}

/// The ops that are not in the table.
fn list_unsupported_ops(graph: &GraphProto) -> UnsupportedOps {
    let mut missing = UnsupportedOps(Vec::new());
    for node in &graph.node {
        let (domain, op_type) = (node.domain.as_deref().unwrap_or(""), model::op_type(node));
        let supported: Vec<&str> =
            ops::supported_ops(domain).iter().map(|(name, _)| *name).collect();
        if !supported.contains(&op_type) {
            missing.add(UnsupportedOp::new(model::node_title(node), domain, op_type, &supported));
        }
    }
    missing
}

/// The versions of the standard operators that are read: the first in which ops broadcast as they do today, and the last there is.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=28;

/// The version of the standard operators.
fn read_opset(model: &ModelProto) -> Result<i64, ImportError> {
    let standard =
        |domain: &Option<String>| matches!(domain.as_deref(), None | Some("" | "ai.onnx"));
    let versions = model.opset_import.iter().filter(|set| standard(&set.domain));
    let found = match versions.filter_map(|set| set.version).max() {
        Some(version) if OPSETS.contains(&version) => return Ok(version),
        Some(version) => format!("its operators are of version {version}"),
        None => "it does not say of which version its operators are (opset_import)".into(),
    };
    let (first, last) = (OPSETS.start(), OPSETS.end());
    let reason = format!("{found}; graphc reads versions {first} to {last}");
    Err(ImportError::Structure { reason })
}

/// Initializers of DOUBLE: those that ops may be computed with on import are known as they are.
fn register_doubles(
    lowering: &mut Lowering,
    graph: &GraphProto,
    base_dir: &Path,
) -> Result<(), ImportError> {
    for proto in &graph.initializer {
        let name = proto.name.clone().unwrap_or_default();
        let Some(elements) = tensor::read_doubles(proto, base_dir)? else { continue };
        if !lowering.is_kept(&name) && elements.len() <= known::MOST_FOLDED {
            let shape = lowering.tensors()[&name].shape.clone();
            lowering.mark_read(&name);
            lowering
                .values
                .insert(name, Val::Known(known::KnownValue::from_doubles(&shape, elements)));
        } else {
            lowering.doubles.insert(name);
        }
    }
    Ok(())
}

/// Registers what the exporter's optimizer has computed and repeats along a dim, such as the positions of a batch, or has two
/// numbers alone, as a mask has. Of these the import knows that samples are alike, and which keys a mask hides.
fn register_folded(lowering: &mut Lowering) {
    let floats = lowering.tensors().iter().filter(|(_, tensor)| tensor.dtype.is_float());
    let several = floats.filter(|(_, tensor)| tensor.ty().elements() > 1);
    let names: Vec<String> = several.map(|(name, _)| name.clone()).collect();
    for name in names {
        let is_weight = matches!(lowering.values.get(&name), Some(Val::Weight(_)));
        if !is_weight || lowering.is_kept(&name) || lowering.doubles.contains(&name) {
            continue;
        }
        let tensor = &lowering.tensors()[&name];
        // One that cannot be read is an error where a node reads it.
        let Ok(elements) = tensor.elements(&name) else { continue };
        let value = known::KnownValue::new(tensor.ty(), elements);
        let kept = value.kept_elements().data.len();
        let is_known = kept <= known::MOST_FOLDED
            && (kept < tensor.ty().elements() || value.has_two_numbers());
        if is_known {
            lowering.mark_read(&name);
            lowering.values.insert(name, Val::Known(value));
        }
    }
}

/// The graph of what reaches an output, and of all inputs.
fn without_dead_nodes(graph: &Graph) -> Result<Graph, ImportError> {
    let mut live = vec![false; graph.nodes.len()];
    graph.outputs.iter().for_each(|output| live[graph.value(output.value).producer.index()] = true);
    for (id, node) in graph.iter().rev() {
        live[id.index()] |= matches!(node.op, Op::Input(_));
        if live[id.index()] {
            node.operands.iter().for_each(|&v| live[graph.value(v).producer.index()] = true);
        }
    }
    let mut kept = Graph::new(graph.name.clone());
    let mut moved: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for (_, node) in graph.iter().filter(|(id, _)| live[id.index()]) {
        let operands = node.operands.iter().map(|operand| moved[operand]).collect();
        let again = kept.push(node.op.clone(), operands, node.source.clone());
        let id = again.map_err(|error| ImportError::Structure { reason: error.to_string() })?;
        for (&old, new) in node.results.iter().zip(kept.node(id).results.clone()) {
            kept.values[new.index()].name.clone_from(&graph.value(old).name);
            moved.insert(old, new);
        }
    }
    let output =
        |output: &Output| Output { name: output.name.clone(), value: moved[&output.value] };
    kept.outputs = graph.outputs.iter().map(output).collect();
    Ok(kept)
}

/// The weights of the variables that there are, and what else is the author's.
fn collect_weights(graph: &Graph, lowering: Lowering, authored: &BTreeSet<String>) -> Weights {
    let of_file = |node: &Node| match &node.op {
        Op::Variable(variable) if variable.init == Init::Weights => Some(variable.name.clone()),
        _ => None,
    };
    let read: BTreeSet<String> = graph.nodes.iter().filter_map(of_file).collect();
    let (all, fixed) = lowering.into_initializers();
    let (tensors, mut others): (BTreeMap<_, _>, BTreeMap<_, _>) =
        all.into_iter().partition(|(name, _)| read.contains(name));
    others.retain(|name, _| authored.contains(name));
    Weights { tensors, others, fixed }
}

/// The place of a node that has none of its own.
fn onnx_source(name: &str, op_type: &str) -> Source {
    Source::Onnx { name: name.into(), op_type: op_type.into() }
}
