//! The roles of initializers: which are trained, by what the model says and how it uses them.

use std::collections::{BTreeMap, BTreeSet};

use rten_onnx::onnx::{GraphProto, NodeProto};

use super::folded::FoldedWeights;
use super::model::op_type;
use super::shared;
use super::uses::{InitializerUses, running_statistics};
use super::wire::Kinds;
use crate::weights::WeightTensor;

/// The most names that a sentence lists.
const MOST_NAMES: usize = 6;

/// The roles of a model's initializers.
pub(super) struct Roles {
    /// The names of those that are trained by default.
    pub trained: BTreeSet<String>,
    /// Matrices that the exporter has made by turning a trained one, each with the name of that one. They are the same weight.
    pub tied: BTreeMap<String, String>,
    /// Warnings about them for the user.
    pub warnings: Vec<String>,
}

/// Finds the initializers that are trained.
///
/// With metadata, they are those that it marks PARAMETER, what the exporter's optimizer has only moved of one, and other unmarked floats that a
/// matmul, convolution or gather takes as its weight, because the optimizer folds and renames weights. Without metadata, they are all that are used
/// as parameters.
pub(super) fn find_trained(
    graph: &GraphProto,
    order: &[usize],
    (kinds, folded): (&Kinds, &FoldedWeights),
    tensors: &BTreeMap<String, WeightTensor>,
    copies: &BTreeMap<String, String>,
    is_pytorch: bool,
) -> Roles {
    if has_marks(kinds, tensors) || *folded != FoldedWeights::default() {
        return by_marks(graph, (kinds, folded), tensors);
    }
    by_use(
        &InitializerUses::new(graph, order, tensors, copies),
        running_statistics(graph),
        tensors,
        copies,
        is_pytorch,
    )
}

/// Initializers of a file without marks that were written once because they begin with the same numbers: the copies, and
/// what each is one of. A weight that is used twice has one name. Names that the exporter makes up say nothing: what they
/// name begins as one number everywhere, or there is a copy that does not, as where layers begin as copies of each other.
pub(super) fn find_copies(
    graph: &GraphProto,
    kinds: &Kinds,
    tensors: &BTreeMap<String, WeightTensor>,
) -> BTreeMap<String, String> {
    if has_marks(kinds, tensors) {
        return BTreeMap::new();
    }
    let copies = graph.node.iter().filter(|node| op_type(node) == "Identity").filter_map(copy_pair);
    let float = |tensor: &WeightTensor| tensor.dtype.is_float() && !tensor.shape.is_empty();
    let copies: Vec<(&str, &str)> =
        copies.filter(|(_, source)| tensors.get(*source).is_some_and(float)).collect();
    let named = |name: &str| !name.starts_with("onnx::");
    let is_one = |source: &str| is_one_number(source, &tensors[source]);
    let layers = copies.iter().any(|(name, source)| named(name) && !is_one(source));
    copies
        .into_iter()
        .filter(|(name, source)| layers || named(name) || is_one(source))
        .map(|(name, source)| (name.to_string(), source.to_string()))
        .collect()
}

/// Floating-point initializers that are no numbers of the exporter's: parameters, whether they are trained or not, and buffers.
/// Without metadata those that have a name of the author's; one number alone is a setting, unless PyTorch has named it.
pub(super) fn find_authored(
    kinds: &Kinds,
    tensors: &BTreeMap<String, WeightTensor>,
    is_pytorch: bool,
) -> BTreeSet<String> {
    let has_marks = has_marks(kinds, tensors);
    let authored = |(name, tensor): &(&String, &WeightTensor)| match has_marks {
        true => {
            kinds.get(*name).is_some_and(|kind| matches!(kind.as_str(), "PARAMETER" | "BUFFER"))
        }
        false => !name.starts_with("onnx::") && (is_pytorch || tensor.ty().elements() > 1),
    };
    tensors.iter().filter(authored).map(|(name, _)| name.clone()).collect()
}

fn copy_pair(node: &NodeProto) -> Option<(&str, &str)> {
    Some((node.output.first()?.as_str(), node.input.first()?.as_str()))
}

fn is_one_number(name: &str, tensor: &WeightTensor) -> bool {
    tensor.elements(name).is_ok_and(|elements| elements.windows(2).all(|w| w[0] == w[1]))
}

fn has_marks(kinds: &Kinds, tensors: &BTreeMap<String, WeightTensor>) -> bool {
    tensors.keys().any(|name| kinds.contains_key(name))
}

fn by_marks(
    graph: &GraphProto,
    (kinds, folded): (&Kinds, &FoldedWeights),
    tensors: &BTreeMap<String, WeightTensor>,
) -> Roles {
    let used = map_weights_to_ops(graph);
    let (mut trained, mut guessed) = (BTreeSet::new(), BTreeMap::new());
    for (name, tensor) in tensors.iter().filter(|(_, tensor)| tensor.dtype.is_float()) {
        if folded.constants.contains(name) || folded.is_made(name) {
            continue;
        }
        let is_known = folded.moved.contains_key(name) || folded.absent.contains(name);
        let kind = kinds.get(name).map(String::as_str);
        let is_marked = is_known || kind.is_some();
        let op = used.get(name.as_str()).filter(|_| !is_marked && !tensor.shape.is_empty());
        guessed.extend(op.map(|op| (name, format!("`{name}` ({op})"))));
        if is_known || kind == Some("PARAMETER") || op.is_some() {
            trained.insert(name.clone());
        }
    }
    let is_made = |name: &str| !kinds.contains_key(name) && !folded.moved.contains_key(name);
    let mut tied = shared::find_made_copies(&trained, tensors, is_made, true);
    trained.retain(|name| !tied.contains_key(name));
    let guessed = guessed.into_iter().filter(|(name, _)| !tied.contains_key(*name));
    let guessed: Vec<String> = guessed.map(|(_, text)| text).collect();
    let untrained = folded.computed.keys().filter(|name| !trained.contains(*name));
    let untrained = untrained.filter(|name| !tied.contains_key(*name));
    let said = [
        describe_guessed(&guessed),
        describe_parameters(
            untrained.flat_map(|name| &folded.computed[name]),
            ["was computed with and is not trained", "were computed with and are not trained"],
        ),
        describe_parameters(
            folded.lost.iter(),
            [
                "is not in the file, as another name has the same weight, nothing uses it, or the optimizer left it out",
                "are not in the file, as another name has the same weight, nothing uses them, or the optimizer left them out",
            ],
        ),
    ];
    let said: Vec<String> = said.into_iter().flatten().collect();
    let shifted = folded.shifted.iter().filter_map(|name| folded.moved.get(name)).flatten();
    let shifted = describe_parameters(
        shifted,
        [
            "is trained with the number that the exporter added to it, to which weight decay applies too",
            "are trained with the number that the exporter added to them, to which weight decay applies too",
        ],
    );
    let mut warnings = Vec::from_iter((!said.is_empty()).then(|| {
        format!(
            "{}. Where this model is to be trained, export it with optimize=False: the exporter's optimizer joins, \
             folds and renames weights, so that fewer are trained than PyTorch would",
            said.join("; ")
        )
    }));
    warnings.extend(shifted);
    tied.extend(folded.turned.clone());
    Roles { trained, tied, warnings }
}

fn describe_guessed(guessed: &[String]) -> Option<String> {
    let said = count_of(
        guessed.len(),
        [
            "of the weights is not marked, and is trained because an op takes it as its weight",
            "of the weights are not marked, and are trained because an op takes them as its weight",
        ],
    );
    (!guessed.is_empty()).then(|| format!("{said}: {}", format_names(guessed)))
}

/// Describes parameters by what is said of one of them and of several.
fn describe_parameters<'a>(
    parameters: impl Iterator<Item = &'a String>,
    [of_one, of_several]: [&str; 2],
) -> Option<String> {
    let parameters: BTreeSet<&String> = parameters.collect();
    let names: Vec<String> = parameters.iter().map(|name| format!("`{name}`")).collect();
    let (count, listed) = (names.len(), format_names(&names));
    let of_one = format!("parameter {of_one}");
    let of_several = format!("parameters {of_several}");
    (count > 0).then(|| format!("{}: {listed}", count_of(count, [&of_one, &of_several])))
}

/// Returns a count, and what is said of one or of several.
fn count_of(count: usize, [of_one, of_several]: [&str; 2]) -> String {
    format!("{count} {}", if count == 1 { of_one } else { of_several })
}

fn by_use(
    uses: &InitializerUses<'_>,
    statistics: BTreeSet<&str>,
    tensors: &BTreeMap<String, WeightTensor>,
    copies: &BTreeMap<String, String>,
    is_pytorch: bool,
) -> Roles {
    let (mut trained, mut left) = (BTreeSet::new(), Vec::new());
    for (name, tensor) in tensors {
        if !tensor.dtype.is_float() || statistics.contains(name.as_str()) {
            continue;
        }
        // The exporter gives its own numbers names with such characters.
        let is_authored = !name.contains([':', '/']);
        if tensor.shape.is_empty() && !(is_authored && is_pytorch) {
            left.extend(is_authored.then(|| format!("`{name}` (it is one number)")));
            continue;
        }
        if is_buffer_of_transformers(name) {
            left.push(format!("`{name}` (a buffer of transformers)"));
            continue;
        }
        match uses.check_parameter(name, tensor) {
            Ok(()) => _ = trained.insert(name.clone()),
            Err(Some(reason)) => left.push(format!("`{name}` ({reason})")),
            Err(None) => {}
        }
    }
    if trained.is_empty() && left.is_empty() {
        return Roles { trained, tied: BTreeMap::new(), warnings: Vec::new() };
    }
    let is_made = |name: &str| name.starts_with("onnx::");
    let tied = shared::find_made_copies(&trained, tensors, is_made, true);
    trained.retain(|name| !tied.contains_key(name));
    let mut text = format!(
        "the model does not mark its parameters: by their use, {} trained",
        count_of(trained.len(), ["weight is", "weights are"])
    );
    if !left.is_empty() {
        let count = count_of(left.len(), ["is", "are"]);
        text += &format!(" and {count} not: {}", format_names(&left));
    }
    let unusual: Vec<String> =
        trained.iter().filter(|name| !is_usual(name)).map(|name| format!("`{name}`")).collect();
    if !unusual.is_empty() {
        let (count, names) = (count_of(unusual.len(), ["is", "are"]), format_names(&unusual));
        text +=
            &format!("; of these {count} called neither weight nor bias, as buffers are: {names}");
    }
    let of_pair = |(copy, source): (String, String)| format!("`{copy}` (`{source}`)");
    if !tied.is_empty() {
        let tied: Vec<String> = tied.clone().into_iter().map(of_pair).collect();
        let names = format_names(&tied);
        text += &format!("; trained as the weights that the exporter has made them of: {names}");
    }
    let shared = shared::find_made_copies(&trained, tensors, is_made, false);
    if !shared.is_empty() {
        let shared: Vec<String> = shared.into_iter().map(of_pair).collect();
        text += &format!(
            "; copies of others, which the exporter makes of weights that are shared, are trained apart: {}",
            format_names(&shared)
        );
    }
    if !copies.is_empty() {
        text += &format!(
            "; {} trained apart from it",
            count_of(
                copies.len(),
                [
                    "that begins with the same numbers as another is",
                    "that begin with the same numbers as another are",
                ],
            )
        );
    }
    text += "; --train and --freeze decide otherwise";
    Roles { trained, tied, warnings: vec![text] }
}

/// Whether a tensor is called as what models of transformers add to their scores and never train.
fn is_buffer_of_transformers(name: &str) -> bool {
    name.rsplit('.').next() == Some("final_logits_bias")
}

/// Whether a weight is called as PyTorch's modules call theirs, or as the exporter does what it has turned.
fn is_usual(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    name.starts_with("onnx::") || last.contains("weight") || last.contains("bias")
}

fn format_names(names: &[String]) -> String {
    let shown = names[..names.len().min(MOST_NAMES)].join(", ");
    match names.len().checked_sub(MOST_NAMES) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}

/// The operand that an op takes as its weight, directly or through a change of form, with the type of the op.
fn map_weights_to_ops(graph: &GraphProto) -> BTreeMap<&str, &str> {
    let mut sources: BTreeMap<&str, &str> = BTreeMap::new();
    for node in &graph.node {
        let forms = ["Transpose", "Identity", "Reshape", "Cast", "Squeeze", "Unsqueeze"];
        if forms.contains(&op_type(node))
            && let (Some(input), Some(output)) = (node.input.first(), node.output.first())
        {
            sources.insert(output, input);
        }
    }
    let mut weights = BTreeMap::new();
    for node in &graph.node {
        for mut name in weight_operands(node) {
            // A damaged file may go in circles.
            for _ in 0..16 {
                name = sources.get(name).copied().unwrap_or(name);
            }
            weights.entry(name).or_insert(op_type(node));
        }
    }
    weights
}

fn weight_operands(node: &NodeProto) -> impl Iterator<Item = &str> {
    let positions: &[usize] = match op_type(node) {
        "MatMul" | "Einsum" => &[0, 1],
        "Gemm" | "Conv" | "ConvTranspose" => &[1],
        "Gather" => &[0],
        "LSTM" | "GRU" | "RNN" => &[1, 2, 3],
        _ => &[],
    };
    positions.iter().filter_map(|&position| node.input.get(position)).map(String::as_str)
}
