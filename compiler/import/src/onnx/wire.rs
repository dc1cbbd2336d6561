//! A first pass over the bytes of a model. It checks every length against what encloses it, bounds nesting, and collects the metadata. The decoder of
//! rten-onnx, which trusts lengths and skips metadata, is safe to call after it.
//!
//! The encoding is that of <https://protobuf.dev/programming-guides/encoding/>, the messages those of onnx.proto.

use std::collections::{BTreeMap, BTreeSet};

use crate::ImportError;

/// The messages of onnx.proto that are decoded, and those within them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum OnnxMessage {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    ValueInfo,
    Type,
    TensorType,
    Sequence,
    Shape,
    Dimension,
    Entry,
    OperatorSet,
}

/// The kind of a field's content, which says how its bytes are read.
enum OnnxFieldContent {
    Message(&'static str, OnnxMessage),
    /// Repeated numbers in one run of bytes, each of so many bytes or a varint.
    Fixed(usize),
    Varints,
    Opaque,
}

impl OnnxMessage {
    fn field_content(self, field: u64) -> OnnxFieldContent {
        use OnnxMessage::*;
        let (name, message) = match (self, field) {
            (Model, 7) => ("graph", Graph),
            (Model, 8) => ("opset_import", OperatorSet),
            (Model, 14) => ("metadata_props", Entry),
            (Graph, 1) => ("node", Node),
            (Graph, 5) => ("initializer", Tensor),
            (Graph, 11) => ("input", ValueInfo),
            (Graph, 12) => ("output", ValueInfo),
            (Graph, 13) => ("value_info", ValueInfo),
            (Node, 5) => ("attribute", Attribute),
            (Attribute, 5) => ("t", Tensor),
            (Attribute, 6) => ("g", Graph),
            (Tensor, 13) => ("external_data", Entry),
            (Graph, 16) | (Tensor, 16) | (ValueInfo, 4) | (Node, 9) => ("metadata_props", Entry),
            (ValueInfo, 2) => ("type", Type),
            (Type, 1) => ("tensor_type", TensorType),
            (Type, 4) => ("sequence_type", Sequence),
            (Sequence, 1) => ("elem_type", Type),
            (TensorType, 2) => ("shape", Shape),
            (Shape, 1) => ("dim", Dimension),
            (Tensor, 4) => return OnnxFieldContent::Fixed(4),
            (Tensor, 10) => return OnnxFieldContent::Fixed(8),
            (Tensor, 5 | 7 | 11) => return OnnxFieldContent::Varints,
            _ => return OnnxFieldContent::Opaque,
        };
        OnnxFieldContent::Message(name, message)
    }
}

/// The roles of tensors by the exporter's metadata: the value of the key that ends in `InputSpec.kind`, by the tensor's name.
pub(super) type Kinds = BTreeMap<String, String>;

/// The metadata that the exporter has added to a model.
#[derive(Default)]
pub(super) struct Metadata {
    pub kinds: Kinds,
    /// The kinds of all parameters and buffers that the program had, by name, whether the file has them or not.
    pub signature: Kinds,
    /// The names that the program's functions call parameters by, each with the parameter's own.
    pub placeholders: BTreeMap<String, String>,
    /// Weights that the file has under the name of another, each with that name.
    pub merged: BTreeMap<String, String>,
    /// The tensors of which the exporter's optimizer has computed a tensor, by name, in no order.
    pub folded: BTreeMap<String, Vec<String>>,
    /// The names of buffers that PyTorch does not save, because the model computes them.
    pub computed: BTreeSet<String>,
    /// The functions of PyTorch that nodes stand for, by the node's first result, where the ONNX op does not say it.
    pub origins: BTreeMap<String, Origin>,
    /// The results of look-ups in tables of which one row learns nothing (`padding_idx`), with that row.
    pub padded: BTreeMap<String, i64>,
    /// The module of the author's program for each node, by the node's title: its path, and its class if that is known.
    pub modules: BTreeMap<String, String>,
}

/// A function of PyTorch whose gradient is not that of the ONNX op which stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// `Tensor.detach`: an identity that ends gradients.
    Detach,
    /// `torch.clamp`: bounds at which the bounded tensor learns.
    Clamp,
    /// `torch.nn.functional.hardtanh` and `relu6`: bounds at which nothing is learned.
    Hardtanh,
}

/// Checks the encoding of a model and collects its metadata.
///
/// # Errors
/// Returns an error if a length or a number does not fit, with its byte and the message that holds it.
pub(super) fn check_encoding(bytes: &[u8]) -> Result<Metadata, ImportError> {
    let mut walk = EncodingWalk { path: Vec::new(), found: Metadata::default() };
    walk.walk_message(OnnxMessage::Model, bytes, 0)?;
    Ok(walk.found)
}

/// The deepest nesting of messages. The deepest model that is read has a third of it.
const DEEPEST: usize = 40;

struct EncodingWalk {
    /// The field names and indices from the model down.
    path: Vec<(&'static str, usize)>,
    found: Metadata,
}

/// The parts of a message that describe itself.
#[derive(Default)]
struct OnnxMessageInfo {
    name: Option<String>,
    kind: Option<String>,
    is_computed: bool,
    folded: Option<Vec<String>>,
    origin: Option<Origin>,
    padding: Option<i64>,
    /// A node's own name. The field `name` is that of its first result.
    title: Option<String>,
    /// The path of the module within which a node stands, and its class.
    scope: Option<String>,
    class: Option<String>,
}

impl OnnxMessageInfo {
    /// Returns a node's title and its module. Of the older exporter, the module is a part of the node's name, `/layers.0/norm/Add`.
    fn module(&self) -> Option<(String, String)> {
        let title = self.title.as_ref().filter(|title| !title.is_empty()).or(self.name.as_ref())?;
        let of_name = || {
            let (path, _) = title.strip_prefix('/')?.rsplit_once('/')?;
            Some(path.replace('/', "."))
        };
        let path = self.scope.clone().or_else(of_name).filter(|path| !path.is_empty())?;
        let class = self.class.as_ref().and_then(|class| class.rsplit('.').next());
        let module = class.map_or(format!("`{path}`"), |class| format!("`{path}` ({class})"));
        Some((title.clone(), module))
    }
}

impl EncodingWalk {
    fn corrupt_at<T>(&self, byte: usize, reason: impl Into<String>) -> Result<T, ImportError> {
        let path: Vec<String> = self.path.iter().map(|(name, i)| format!("{name}[{i}]")).collect();
        let within = if path.is_empty() { "the model".into() } else { path.join(".") };
        Err(ImportError::Corrupt {
            place: format!("byte {byte}, in {within}"),
            reason: reason.into(),
        })
    }

    /// Checks a message whose first byte is byte `base` of the file.
    fn walk_message(
        &mut self,
        message: OnnxMessage,
        bytes: &[u8],
        base: usize,
    ) -> Result<(), ImportError> {
        if self.path.len() > DEEPEST {
            return self.corrupt_at(base, "messages are nested too deeply");
        }
        let mut at = 0;
        let mut counts = BTreeMap::new();
        let mut named = OnnxMessageInfo::default();
        while at < bytes.len() {
            let start = at;
            let tag = self.read_varint(bytes, &mut at, base)?;
            let field = tag >> 3;
            let length = match tag & 7 {
                0 => {
                    self.read_varint(bytes, &mut at, base)?;
                    continue;
                }
                1 => 8,
                2 => self.read_varint(bytes, &mut at, base)?,
                5 => 4,
                _ => {
                    return self
                        .corrupt_at(base + start, format!("{} is no kind of field", tag & 7));
                }
            };
            let left = bytes.len() - at;
            let Some(length) = usize::try_from(length).ok().filter(|&length| length <= left) else {
                let reason = format!("field {field} has {length} bytes, and {left} are left");
                return self.corrupt_at(base + start, reason);
            };
            let (content, from) = (&bytes[at..at + length], base + at);
            at += length;
            if tag & 7 == 2 {
                let index = counts.entry(field).or_insert(0);
                self.walk_field(message, field, *index, content, from, &mut named)?;
                *index += 1;
            }
        }
        if message == OnnxMessage::Node
            && let Some((title, module)) = named.module()
        {
            self.found.modules.insert(title, module);
        }
        match named {
            OnnxMessageInfo { name: Some(name), origin: Some(origin), .. } => {
                self.found.origins.insert(name, origin);
            }
            OnnxMessageInfo { name: Some(name), padding: Some(row), .. } => {
                self.found.padded.insert(name, row);
            }
            OnnxMessageInfo { name: Some(name), kind: Some(kind), is_computed, .. } => {
                if is_computed {
                    self.found.computed.insert(name.clone());
                }
                self.found.kinds.insert(name, kind);
            }
            OnnxMessageInfo { name: Some(name), folded: Some(parts), .. } => {
                self.found.folded.insert(name, parts);
            }
            OnnxMessageInfo { .. } => {}
        }
        Ok(())
    }

    fn walk_field(
        &mut self,
        message: OnnxMessage,
        field: u64,
        index: usize,
        content: &[u8],
        from: usize,
        named: &mut OnnxMessageInfo,
    ) -> Result<(), ImportError> {
        match message.field_content(field) {
            OnnxFieldContent::Message(name, inner) => {
                self.path.push((name, index));
                self.walk_message(inner, content, from)?;
                self.path.pop();
                if inner == OnnxMessage::Entry
                    && matches!(message, OnnxMessage::Tensor | OnnxMessage::ValueInfo)
                {
                    named.kind = entry_kind(content).or(named.kind.take());
                    named.is_computed |= is_computed(content);
                    named.folded = folded_parts(content).or(named.folded.take());
                }
                if inner == OnnxMessage::Entry && message == OnnxMessage::Graph {
                    self.found.add_signature(content);
                }
                if inner == OnnxMessage::Entry && message == OnnxMessage::Node {
                    named.origin = node_origin(content).or(named.origin);
                    named.padding = padding_row(content).or(named.padding);
                    named.scope = scope(content, "name_scopes").or(named.scope.take());
                    named.class = scope(content, "class_hierarchy").or(named.class.take());
                }
            }
            OnnxFieldContent::Fixed(size) if !content.len().is_multiple_of(size) => {
                return self
                    .corrupt_at(from, format!("{} bytes of numbers of {size}", content.len()));
            }
            OnnxFieldContent::Varints => {
                let mut at = 0;
                while at < content.len() {
                    self.read_varint(content, &mut at, from)?;
                }
            }
            OnnxFieldContent::Fixed(_) | OnnxFieldContent::Opaque => {}
        }
        let names = [(OnnxMessage::Tensor, 8), (OnnxMessage::ValueInfo, 1), (OnnxMessage::Node, 2)];
        // Of the results of a node the first.
        if names.contains(&(message, field)) && (message != OnnxMessage::Node || index == 0) {
            named.name = String::from_utf8(content.to_vec()).ok();
        }
        if (message, field) == (OnnxMessage::Node, 3) {
            named.title = String::from_utf8(content.to_vec()).ok();
        }
        Ok(())
    }

    fn read_varint(&self, bytes: &[u8], at: &mut usize, base: usize) -> Result<u64, ImportError> {
        let start = *at;
        match decode_varint(bytes, at) {
            Some(value) => Ok(value),
            None => self.corrupt_at(base + start, "a number has no end"),
        }
    }
}

pub(super) fn decode_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Some(value);
        }
    }
    None
}

/// A field of a message. The content of a number is its encoding; that of any other field is its bytes.
pub(super) struct OnnxField<'a> {
    pub number: u64,
    pub content: &'a [u8],
    /// The field's bytes with its tag and length.
    pub whole: &'a [u8],
}

/// Decodes the fields of a message that has been checked. The first field that is not complete ends them.
pub(super) fn decode_fields(message: &[u8]) -> impl Iterator<Item = OnnxField<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at;
        let tag = decode_varint(message, &mut at)?;
        let mut from = at;
        match tag & 7 {
            0 => _ = decode_varint(message, &mut at)?,
            1 => at += 8,
            5 => at += 4,
            _ => {
                let length = usize::try_from(decode_varint(message, &mut at)?).ok()?;
                from = at;
                at = at.checked_add(length)?;
            }
        }
        let (content, whole) = (message.get(from..at)?, message.get(start..at)?);
        Some(OnnxField { number: tag >> 3, content, whole })
    })
}

/// Returns the value of an entry if its key is the one that tells parameters from buffers.
fn entry_kind(entry: &[u8]) -> Option<String> {
    let (key, value) = entry_pair(entry)?;
    key.ends_with("InputSpec.kind").then(|| value.to_string())
}

/// Returns the tensors of which the exporter's optimizer has computed one, if an entry of a tensor lists them, as a Python list.
fn folded_parts(entry: &[u8]) -> Option<Vec<String>> {
    let (_, value) = entry_pair(entry).filter(|(key, _)| key.ends_with("optimizer.folded_from"))?;
    let names = value.strip_prefix('[')?.strip_suffix(']')?.split(", ");
    Some(names.map(|name| name.trim_matches(['\'', '"']).to_owned()).collect())
}

impl Metadata {
    /// Adds the parameters and buffers, if an entry of a graph is the signature of the program: `p_w: PARAMETER target='w'` in a line each, or in
    /// the older form `InputSpec(kind=<InputKind.PARAMETER: 2>, arg=TensorArgument(name='p_w'), target='w', ..)`. Of a name that is listed twice, as
    /// a buffer that the program changes is, the first counts.
    fn add_signature(&mut self, entry: &[u8]) {
        let pair =
            entry_pair(entry).filter(|(key, _)| key.ends_with("ExportedProgram.graph_signature"));
        let mut rest = pair.map_or("", |(_, value)| value);
        while let Some((before, after)) = rest.split_once("target='") {
            let Some((name, behind)) = after.split_once('\'') else { break };
            let kind = ["PARAMETER", "BUFFER"].into_iter().find(|kind| before.contains(kind));
            if let Some(kind) = kind {
                self.signature.entry(name.to_owned()).or_insert_with(|| kind.to_owned());
            }
            if kind == Some("PARAMETER")
                && let Some(placeholder) = placeholder_of(before)
            {
                self.placeholders.insert(placeholder.to_owned(), name.to_owned());
            }
            rest = behind;
        }
    }
}

/// Returns the name that a program calls an input by, of the text of a signature before the input's target.
fn placeholder_of(before: &str) -> Option<&str> {
    match before.rsplit_once("name='") {
        Some((_, name)) => name.split('\'').next(),
        None => before.lines().next_back()?.split(':').next().map(str::trim),
    }
}

/// A function of PyTorch that a node stands for, and the names of its operands that are tensors.
#[derive(Debug, PartialEq)]
pub(super) struct FunctionCall {
    /// Its name without its overload: `linear`.
    pub function: String,
    /// The operands in order.
    pub operands: Vec<String>,
}

/// Returns the function that an entry of a node says it stands for:
/// `%y : [num_users=1] = call_function[target=torch.ops.aten.linear.default](args = (%x, %p_w, %p_b), kwargs = {})`.
pub(super) fn called_function(entry: &[u8]) -> Option<FunctionCall> {
    let (_, value) = entry_pair(entry).filter(|(key, _)| key.ends_with("fx_node"))?;
    let (_, call) = value.split_once("target=torch.ops.aten.")?;
    let (target, operands) = call.split_once("](")?;
    let name = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let operands = operands.split('%').skip(1).map(name).collect();
    Some(FunctionCall { function: name(target), operands })
}

/// Whether an entry says that PyTorch does not save a buffer.
fn is_computed(entry: &[u8]) -> bool {
    let said = entry_pair(entry).filter(|(key, _)| key.ends_with("InputSpec.persistent"));
    said.is_some_and(|(_, value)| value == "False")
}

/// Returns the function of PyTorch that an entry of a node says it stands for: `target=torch.ops.aten.clamp.default`.
fn node_origin(entry: &[u8]) -> Option<Origin> {
    let (_, value) = entry_pair(entry).filter(|(key, _)| key.ends_with("fx_node"))?;
    let (_, target) = value.split_once("target=torch.ops.aten.")?;
    Some(match target.split('.').next()? {
        "detach" => Origin::Detach,
        "clamp" | "clamp_min" | "clamp_max" => Origin::Clamp,
        "hardtanh" | "relu6" => Origin::Hardtanh,
        _ => return None,
    })
}

/// Returns the path of the innermost module, if an entry of a node lists scopes. They go from the model down to the node, written as a Python list:
/// `['', 'layers', 'layers.0', 'linear']`.
pub(super) fn scope(entry: &[u8], kind: &str) -> Option<String> {
    let (_, value) = entry_pair(entry).filter(|(key, _)| key.ends_with(kind))?;
    let mut names = value.strip_prefix('[')?.strip_suffix(']')?.rsplit(", ");
    names.nth(1).map(|name| name.trim_matches(['\'', '"']).to_owned())
}

/// Returns the row of a table that learns nothing, if an entry of a node is a look-up with such a row: `torch.ops.aten.embedding.default](args =
/// (%table, %rows, 0), ..`. A row of -1 is none.
fn padding_row(entry: &[u8]) -> Option<i64> {
    let (_, value) = entry_pair(entry).filter(|(key, _)| key.ends_with("fx_node"))?;
    let (_, call) = value.split_once("target=torch.ops.aten.embedding.default](args = (")?;
    let row = call.split([')', ']']).next()?.split(',').nth(2)?;
    row.trim().parse().ok().filter(|&row: &i64| row >= 0)
}

/// Returns the key and the value of an entry.
fn entry_pair(entry: &[u8]) -> Option<(&str, &str)> {
    let text = |number| {
        let field = decode_fields(entry).filter(|field| field.number == number).last();
        field.map_or(Some(""), |field| std::str::from_utf8(field.content).ok())
    };
    Some((text(1)?, text(2)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a key and a value as an entry.
    fn entry(key: &str, value: &str) -> Vec<u8> {
        let field = |number: u8, text: &str| {
            let mut bytes = vec![number << 3 | 2];
            let length = text.len();
            if length > 127 {
                bytes.push(length as u8 & 127 | 128);
            }
            bytes.push(if length > 127 { (length >> 7) as u8 } else { length as u8 });
            bytes.extend_from_slice(text.as_bytes());
            bytes
        };
        [field(1, key), field(2, value)].concat()
    }

    #[test]
    fn both_forms_of_signatures_name_parameters() {
        let new = "\n# inputs\np_w: PARAMETER target='a.w'\nb_c: BUFFER target='c' persistent=True\nx: USER_INPUT\n";
        let old = "InputSpec(kind=<InputKind.PARAMETER: 2>, arg=TensorArgument(name='p_w'), target='a.w', persistent=None), \
                   InputSpec(kind=<InputKind.BUFFER: 3>, arg=TensorArgument(name='b_c'), target='c', persistent=True)";
        for signature in [new, old] {
            let mut found = Metadata::default();
            found.add_signature(&entry(
                "pkg.torch.export.ExportedProgram.graph_signature",
                signature,
            ));
            let placeholders: Vec<_> = found.placeholders.into_iter().collect();
            assert_eq!(placeholders, [("p_w".to_owned(), "a.w".to_owned())]);
            assert_eq!(
                (found.signature["a.w"].as_str(), found.signature["c"].as_str()),
                ("PARAMETER", "BUFFER")
            );
        }
    }

    #[test]
    fn a_node_names_its_function_and_that_functions_tensors() {
        let call = "%y : [num_users=1] = call_function[target=torch.ops.aten.linear.default](args = (%x, %p_w, %p_b), kwargs = {})";
        let found = called_function(&entry("pkg.torch.onnx.fx_node", call)).expect("a call");
        assert_eq!(found.function, "linear");
        assert_eq!(found.operands, ["x", "p_w", "p_b"]);
        assert_eq!(called_function(&entry("fx_node", "%x : placeholder")), None);
    }
}
