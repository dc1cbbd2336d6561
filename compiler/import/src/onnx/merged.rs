//! Weights that the exporter's optimizer has written once because they began with the same numbers, and biases that it has left out because they began
//! as zeros. In PyTorch each of them learns for itself.
//!
//! A node says which function of PyTorch it stands for, and how that function's operands are called. So the weight that it reads is known even
//! where the file gives it another of the same content: a weight that the model truly has twice is called the same by all functions. Such a file is
//! brought into the form of the older exporter, in which a weight that is written once has its own name by an Identity of the other. A bias that was
//! left out is written as zeros.

use std::collections::{BTreeMap, BTreeSet};

use rten_onnx::onnx::DataType;

use super::fields::{
    self, GRAPH, INITIALIZER, INPUT, NODE, OP_TYPE, OUTPUT, RAW_DATA, TENSOR_METADATA, TensorHead,
    put_entry, put_field,
};
use super::folded::{function_of, lost_parameters};
use super::wire::{self, FunctionCall, Metadata, called_function, decode_fields};

/// Fields of a node and of its attributes.
const ATTRIBUTE: u64 = 5;
const ATTRIBUTE_NUMBER: u64 = 3;
const ATTRIBUTE_NAME: u64 = 1;
const METADATA: u64 = 9;
/// The field of a graph that describes an input.
const GRAPH_INPUT: u64 = 11;
/// The place of the bias among the inputs of a product or a convolution.
const BIAS: usize = 2;

/// Gives each weight of a checked model its own name again. It is `None` if all have theirs.
pub(super) fn with_own_weights(model: &[u8], metadata: &mut Metadata) -> Option<Vec<u8>> {
    if metadata.placeholders.is_empty() {
        return None;
    }
    let graph = decode_fields(model).filter(|field| field.number == GRAPH).last()?;
    let program = CallingGraph::of_graph(graph.content, metadata);
    if program.lost.is_empty() {
        return None;
    }
    let mut own = OwnWeights::default();
    for (index, node) in program.nodes.iter().enumerate() {
        own.find_copies(&program, index, node);
    }
    for (index, node) in program.nodes.iter().enumerate() {
        own.find_bias(&program, index, node);
    }
    if own.reads.is_empty() {
        return None;
    }
    let written = own.write_graph(graph.content);
    own.describe(metadata);
    let mut bytes = Vec::with_capacity(model.len() + written.len() - graph.content.len());
    for field in decode_fields(model) {
        match field.number {
            GRAPH => put_field(&mut bytes, GRAPH, &written),
            _ => bytes.extend_from_slice(field.whole),
        }
    }
    Some(bytes)
}

/// A node as the file has it.
struct CallingNode {
    inputs: Vec<String>,
    op_type: String,
    /// The function that it stands for.
    call: Option<FunctionCall>,
    /// The path of the module within which it stands.
    scope: String,
    /// Its attributes that are numbers.
    numbers: BTreeMap<String, i64>,
}

impl CallingNode {
    fn of_bytes(bytes: &[u8]) -> Self {
        let mut node = Self {
            inputs: Vec::new(),
            op_type: String::new(),
            call: None,
            scope: String::new(),
            numbers: BTreeMap::new(),
        };
        for field in decode_fields(bytes) {
            match field.number {
                INPUT => node.inputs.push(text(field.content)),
                OP_TYPE => node.op_type = text(field.content),
                METADATA => {
                    node.call = called_function(field.content).or(node.call);
                    node.scope = wire::scope(field.content, "name_scopes").unwrap_or(node.scope);
                }
                ATTRIBUTE => node.numbers.extend(number_attribute(field.content)),
                _ => {}
            }
        }
        node
    }

    fn is_turned(&self) -> bool {
        self.numbers.get("transB").is_some_and(|&turned| turned != 0)
    }
}

fn text(content: &[u8]) -> String {
    String::from_utf8_lossy(content).into_owned()
}

fn number_attribute(bytes: &[u8]) -> Option<(String, i64)> {
    let find = |number| decode_fields(bytes).find(|field| field.number == number);
    let number = fields::last_number(find(ATTRIBUTE_NUMBER)?.content);
    Some((text(find(ATTRIBUTE_NAME)?.content), number))
}

/// The nodes of a file, and the calls of the program that it was made of.
struct CallingGraph<'a> {
    metadata: &'a Metadata,
    nodes: Vec<CallingNode>,
    /// The initializers.
    heads: BTreeMap<String, TensorHead>,
    /// The names of inputs and of results.
    values: BTreeSet<String>,
    /// The parameters that no tensor of the file is, or is computed of.
    lost: BTreeSet<String>,
}

impl<'a> CallingGraph<'a> {
    fn of_graph(graph: &[u8], metadata: &'a Metadata) -> Self {
        let (mut nodes, mut heads) = (Vec::new(), BTreeMap::new());
        let mut values = BTreeSet::new();
        for field in decode_fields(graph) {
            match field.number {
                NODE => {
                    nodes.push(CallingNode::of_bytes(field.content));
                    let results = decode_fields(field.content).filter(|f| f.number == OUTPUT);
                    values.extend(results.map(|result| text(result.content)));
                }
                INITIALIZER => {
                    let head = TensorHead::from_tensor(field.content);
                    heads.insert(head.name.clone(), head);
                }
                GRAPH_INPUT => {
                    let name = decode_fields(field.content).find(|f| f.number == 1);
                    values.extend(name.map(|name| text(name.content)));
                }
                _ => {}
            }
        }
        let lost = lost_parameters(metadata, heads.keys()).into_iter().collect();
        Self { metadata, nodes, heads, values, lost }
    }

    /// Returns the parameters that an initializer is, or is computed of.
    fn sources(&self, name: &str) -> Vec<String> {
        let is_parameter = |name: &String| {
            self.metadata.signature.get(name).is_some_and(|kind| kind == "PARAMETER")
        };
        if is_parameter(&name.to_owned()) {
            return vec![name.to_owned()];
        }
        let parts = self.metadata.folded.get(name).into_iter().flatten();
        parts.filter(|part| is_parameter(part)).cloned().collect()
    }

    /// Returns the parameters among a function's operands, in order.
    fn parameters(&self, call: &FunctionCall) -> Vec<&'a str> {
        let names = call.operands.iter().filter_map(|name| self.metadata.placeholders.get(name));
        names.map(String::as_str).collect()
    }

    /// Returns the parameters of a module that are lost.
    fn lost_of_module(&self, path: &str) -> Vec<&str> {
        let is_own = |name: &&str| match name.rsplit_once('.') {
            Some((module, _)) => module == path,
            None => path.is_empty(),
        };
        self.lost.iter().map(String::as_str).filter(is_own).collect()
    }

    /// Whether the file has nothing of this name.
    fn is_absent(&self, name: &str) -> bool {
        !self.values.contains(name)
            && !self.heads.contains_key(name)
            && !self.metadata.placeholders.contains_key(name)
    }
}

/// An input of a node that is a weight which the node's function does not call.
struct Stranger<'a> {
    /// Its place among the inputs.
    at: usize,
    name: &'a str,
    /// The parameters that it is computed of.
    sources: Vec<String>,
}

/// The weights that get their names again.
#[derive(Default)]
struct OwnWeights {
    /// The weights whose content another one has in the file, each with that one's name.
    copies: BTreeMap<String, String>,
    /// Of those that are computed of a parameter, all that they are computed of.
    folded: BTreeMap<String, Vec<String>>,
    /// Biases of zeros.
    biases: BTreeMap<String, TensorHead>,
    /// The elements of all of them.
    zeros: i64,
    /// The values that nodes read, by the node's index and the input's.
    reads: BTreeMap<usize, BTreeMap<usize, String>>,
}

impl OwnWeights {
    /// Finds the inputs of a node that its function calls otherwise than the file.
    fn find_copies(&mut self, program: &CallingGraph<'_>, index: usize, node: &CallingNode) {
        let Some(call) = &node.call else { return };
        let called = program.parameters(call);
        let is_called = |source: &String| called.contains(&source.as_str());
        let strangers: Vec<Stranger<'_>> = node
            .inputs
            .iter()
            .enumerate()
            .filter(|(_, name)| program.heads.contains_key(*name) && !call.operands.contains(name))
            .map(|(at, name)| Stranger { at, name, sources: program.sources(name) })
            .filter(|stranger| {
                !stranger.sources.is_empty() && !stranger.sources.iter().any(is_called)
            })
            .collect();
        let missing: Vec<&str> =
            called.iter().copied().filter(|name| program.lost.contains(*name)).collect();
        for stranger in &strangers {
            let is_alone = strangers.len() == 1;
            let own = self.computed_name(program, node, call, (stranger, is_alone)).or_else(|| {
                let [source] = &stranger.sources[..] else { return None };
                let parameter = choose_parameter(source, &missing, is_alone)?;
                Some(self.name_of(program, stranger, parameter))
            });
            let Some(own) = own else { continue };
            self.copies.insert(own.clone(), stranger.name.to_owned());
            self.reads.entry(index).or_default().insert(stranger.at, own);
        }
    }

    /// Returns the operand that an input stands for and that was computed of parameters of the node's module.
    fn computed_name(
        &mut self,
        program: &CallingGraph<'_>,
        node: &CallingNode,
        call: &FunctionCall,
        (stranger, is_alone): (&Stranger<'_>, bool),
    ) -> Option<String> {
        let mut absent = call.operands.iter().filter(|name| program.is_absent(name));
        let name = absent.next().filter(|_| absent.next().is_none())?;
        let lost = program.lost_of_module(&node.scope);
        let is_alike = function_of(name) == function_of(stranger.name);
        let parts = match (is_alike, &lost[..]) {
            (true, _) => fold_like(program, stranger, |source| match &lost[..] {
                [only] => Some(only),
                _ => lost.iter().copied().find(|name| leaf(name) == leaf(source)),
            })?,
            (false, [only]) if is_alone => vec![(*only).to_owned()],
            _ => return None,
        };
        self.folded.insert(name.clone(), parts);
        Some(name.clone())
    }

    /// Returns the name of the copy that stands for a parameter: its own, or that of a tensor that is computed of it.
    fn name_of(
        &mut self,
        program: &CallingGraph<'_>,
        stranger: &Stranger<'_>,
        parameter: &str,
    ) -> String {
        let Some(parts) = fold_like(program, stranger, |_| Some(parameter)) else {
            return parameter.to_owned();
        };
        let is_known = |(name, of): &(&String, &String)| {
            *of == stranger.name && self.folded.get(*name) == Some(&parts)
        };
        if let Some((name, _)) = self.copies.iter().find(is_known) {
            return name.clone();
        }
        let function = function_of(stranger.name);
        let is_free = |name: &String| program.is_absent(name) && !self.copies.contains_key(name);
        let name = (program.nodes.len()..).map(|n| format!("{function}_{n}")).find(is_free);
        let name = name.unwrap_or_default();
        self.folded.insert(name.clone(), parts);
        name
    }

    /// Finds the bias that a node's function has and the node has not.
    fn find_bias(&mut self, program: &CallingGraph<'_>, index: usize, node: &CallingNode) {
        let has_bias = node.inputs.get(BIAS).is_some_and(|input| !input.is_empty());
        let (Some(call), false) = (&node.call, has_bias) else { return };
        let operand = match call.function.as_str() {
            "linear" | "convolution" | "conv1d" | "conv2d" | "conv3d" => call.operands.get(BIAS),
            "addmm" => call.operands.first(),
            _ => None,
        };
        let parameter = operand.and_then(|name| program.metadata.placeholders.get(name));
        let Some(name) = parameter.filter(|name| program.lost.contains(*name)) else { return };
        let is_read = self.folded.values().flatten().any(|part| part == name);
        if self.copies.contains_key(name) || is_read {
            return;
        }
        let weight = node.inputs.get(1).and_then(|input| program.heads.get(input));
        let Some(head) = weight.and_then(|weight| zero_bias(name, node, weight)) else { return };
        let width: i64 = head.dims.iter().product();
        let fits = match self.biases.get(name) {
            Some(known) => known.dims == head.dims,
            None => self.zeros + width <= MOST_ZEROS,
        };
        if fits {
            self.zeros += if self.biases.contains_key(name) { 0 } else { width };
            self.biases.insert(name.clone(), head);
            self.reads.entry(index).or_default().insert(BIAS, name.clone());
        }
    }

    fn write_graph(&self, graph: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(graph.len());
        let mut index = 0;
        for field in decode_fields(graph) {
            if field.number != NODE {
                bytes.extend_from_slice(field.whole);
                continue;
            }
            if index == 0 {
                self.write_copies(&mut bytes);
            }
            match self.reads.get(&index) {
                Some(reads) => put_field(&mut bytes, NODE, &with_inputs(field.content, reads)),
                None => bytes.extend_from_slice(field.whole),
            }
            index += 1;
        }
        for head in self.biases.values() {
            let mut tensor = zeros(head);
            put_entry(&mut tensor, TENSOR_METADATA, (KIND, "PARAMETER"));
            put_field(&mut bytes, INITIALIZER, &tensor);
        }
        bytes
    }

    fn write_copies(&self, bytes: &mut Vec<u8>) {
        for (name, source) in &self.copies {
            let mut node = Vec::new();
            put_field(&mut node, INPUT, source.as_bytes());
            put_field(&mut node, OUTPUT, name.as_bytes());
            put_field(&mut node, OP_TYPE, b"Identity");
            put_field(bytes, NODE, &node);
        }
    }

    /// Says of the weights what the exporter says of those that it has written.
    fn describe(self, metadata: &mut Metadata) {
        let parameters =
            self.copies.keys().chain(self.biases.keys()).filter(|n| !self.folded.contains_key(*n));
        let kinds = parameters.map(|name| (name.clone(), "PARAMETER".to_owned()));
        metadata.kinds.extend(kinds);
        metadata.folded.extend(self.folded);
        metadata.merged = self.copies;
    }
}

/// The keys by which the exporter says of a tensor that it is a parameter, and what its optimizer has computed it of.
const KIND: &str = "pkg.torch.export.graph_signature.InputSpec.kind";
const FOLDED: &str = "pkg.onnxscript.optimizer.folded_from";

/// Appends what the metadata says of a weight to its tensor, as the exporter writes it.
pub(super) fn put_marks(tensor: &mut Vec<u8>, name: &str, metadata: &Metadata) {
    if let Some(kind) = metadata.kinds.get(name) {
        put_entry(tensor, TENSOR_METADATA, (KIND, kind));
    }
    if let Some(parts) = metadata.folded.get(name) {
        let parts: Vec<String> = parts.iter().map(|part| format!("'{part}'")).collect();
        put_entry(tensor, TENSOR_METADATA, (FOLDED, &format!("[{}]", parts.join(", "))));
    }
}

/// Returns what a tensor is computed of that is computed as another, of other parameters. There is nothing if the other is a parameter, or one of
/// its own has no counterpart.
fn fold_like<'p>(
    program: &CallingGraph<'_>,
    like: &Stranger<'_>,
    counterpart: impl Fn(&str) -> Option<&'p str>,
) -> Option<Vec<String>> {
    let own = |part: &String| match like.sources.contains(part) {
        true => counterpart(part).map(str::to_owned),
        false => Some(part.clone()),
    };
    program.metadata.folded.get(like.name)?.iter().map(own).collect()
}

/// Returns the last part of a parameter's name.
fn leaf(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or_default()
}

/// Chooses the parameter that a node reads in the form of another one, of those that its function calls and the file has not.
fn choose_parameter<'a>(source: &str, missing: &[&'a str], is_alone: bool) -> Option<&'a str> {
    let kind = |name: &str| ["weight", "bias"].into_iter().find(|kind| leaf(name).contains(kind));
    let only = |fits: &dyn Fn(&str) -> bool| {
        let mut found = missing.iter().filter(|name| fits(name));
        found.next().copied().filter(|_| found.next().is_none())
    };
    only(&|name| leaf(name) == leaf(source))
        .or_else(|| only(&|name| kind(name) == kind(source)))
        .or_else(|| {
            // A weight never stands for a bias.
            let only = only(&|_| true).filter(|_| is_alone)?;
            (kind(only).is_none() || kind(source).is_none()).then_some(only)
        })
}

/// Returns the head of a node's bias, by that of its weight.
fn zero_bias(name: &str, node: &CallingNode, weight: &TensorHead) -> Option<TensorHead> {
    let known = [DataType::FLOAT, DataType::FLOAT16, DataType::BFLOAT16];
    let groups = node.numbers.get("group").copied().unwrap_or(1);
    let width = match node.op_type.as_str() {
        "Gemm" => weight.dims.get(usize::from(!node.is_turned()))?.to_owned(),
        "Conv" => weight.dims.first()?.to_owned(),
        "ConvTranspose" => weight.dims.get(1)?.checked_mul(groups)?,
        _ => return None,
    };
    let fits = (1..=MOST_ZEROS).contains(&width) && known.contains(&weight.data_type);
    fits.then(|| TensorHead::new(name, vec![width], weight.data_type))
}

/// More elements than the biases of a model have, so that a damaged file cannot ask for more memory than there is.
const MOST_ZEROS: i64 = 1 << 24;

/// Returns an initializer of zeros.
fn zeros(head: &TensorHead) -> Vec<u8> {
    let size = if head.data_type == DataType::FLOAT { 4 } else { 2 };
    let width: i64 = head.dims.iter().product();
    let mut bytes = head.write();
    put_field(&mut bytes, RAW_DATA, &vec![0; width as usize * size]);
    bytes
}

/// Returns a node that reads other inputs.
fn with_inputs(node: &[u8], reads: &BTreeMap<usize, String>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(node.len());
    let inputs = decode_fields(node).filter(|field| field.number == INPUT);
    let mut inputs: Vec<Vec<u8>> = inputs.map(|input| input.content.to_vec()).collect();
    for (&at, name) in reads {
        if inputs.len() <= at {
            inputs.resize(at + 1, Vec::new());
        }
        inputs[at] = name.clone().into_bytes();
    }
    inputs.iter().for_each(|input| put_field(&mut bytes, INPUT, input));
    let others = decode_fields(node).filter(|field| field.number != INPUT);
    others.for_each(|field| bytes.extend_from_slice(field.whole));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_chosen_by_its_own_name() {
        let missing = ["layers.1.norm.weight", "layers.1.norm.bias"];
        let choose = |source, is_alone| choose_parameter(source, &missing, is_alone);
        assert_eq!(choose("layers.0.norm.bias", false), Some("layers.1.norm.bias"));
        assert_eq!(choose("attention.in_proj_bias", false), Some("layers.1.norm.bias"));
        assert_eq!(choose("token", true), None, "it may be either");
        assert_eq!(choose_parameter("token", &missing[..1], true), Some("layers.1.norm.weight"));
        assert_eq!(choose_parameter("token", &missing[..1], false), None);
        assert_eq!(choose_parameter("layers.0.norm.bias", &missing[..1], true), None);
    }
}
