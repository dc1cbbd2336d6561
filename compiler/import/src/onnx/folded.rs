//! Weights that the exporter's optimizer has computed with before it wrote them. It says of each tensor that it wrote so of which others it was
//! computed, parameters among them, and the signature of the program says which parameters there were.
//!
//! Some of these tensors are still weights: a parameter that was only turned, or only moved, in whole or in part, learns in its new place what it would
//! have learned. So does an exponential, of which the parameter is computed back. What was computed otherwise learns differently or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use graphc_ir::ops::{BinaryFunction, UnaryFunction};
use graphc_ir::types::DType;
use rten_onnx::onnx::{GraphProto, NodeProto};

use super::known::KnownValue;
use super::lower::{Lowering, Val};
use super::model::op_type;
use super::node::LoweringProblem;
use super::repeated::Repetition;
use super::wire::Metadata;
use crate::ImportError;
use crate::weights::{WeightData, WeightTensor, Weights, encode_elements};

/// The functions of PyTorch that change neither a number nor how often a model has it, but for a repetition along the batch; `val` stands for what
/// the translation of a function adds, such as extents.
const MOVEMENTS: [&str; 34] = [
    "alias",
    "arange",
    "chunk",
    "clone",
    "contiguous",
    "detach",
    "embedding",
    "expand",
    "expand_as",
    "flatten",
    "gather",
    "getitem",
    "index",
    "index_select",
    "lift_fresh_copy",
    "movedim",
    "mt",
    "narrow",
    "numpy_t",
    "permute",
    "repeat",
    "reshape",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "transpose",
    "unbind",
    "unsafe_view",
    "unsqueeze",
    "val",
    "view",
];

/// The functions by which models count how far two tokens are apart, in buckets that grow with the distance (Raffel et al. 2020, section 2.1): those
/// that compute places, in which a table is looked up, and not with the table. `log` tells them from others.
const BUCKETS: [&str; 24] = [
    "abs",
    "add",
    "clamp",
    "convert_element_type_default",
    "div",
    "full_like",
    "ge",
    "gt",
    "le",
    "log",
    "lt",
    "max",
    "maximum",
    "min",
    "minimum",
    "mul",
    "neg",
    "ones",
    "scalar_tensor_default",
    "sub",
    "to_copy",
    "where",
    "zeros",
    "zeros_like",
];

/// The most products, and the most quotients, by which buckets are counted; with more of them something may be done to the table.
const MOST_BUCKET_PRODUCTS: usize = 2;

/// The functions that take rows of a parameter, some of them several times.
const LOOK_UPS: [&str; 5] = ["embedding", "gather", "getitem", "index", "index_select"];

/// The functions that turn a matrix, and the translation of `linear`, which turns its weight.
const TURNS: [&str; 6] = ["mt", "numpy_t", "permute", "t", "transpose", "val"];

/// The tensors that the exporter's optimizer has made of the parameters of a model.
#[derive(Debug, Default, PartialEq)]
pub(super) struct FoldedWeights {
    /// Matrices that are a parameter turned, each with the parameter.
    pub turned: BTreeMap<String, String>,
    /// Tensors that are the exponential of a parameter, or the opposite of that, as scales and rates are, each with the parameter.
    pub exponentials: BTreeMap<String, FoldedExponential>,
    /// Parameters that the file has in no form but one of these two.
    pub absent: BTreeSet<String>,
    /// Tensors that are parameters, or parts of them, in another place, each with the parameters.
    pub moved: BTreeMap<String, Vec<String>>,
    /// Those of them to which the exporter has added a number or a tensor.
    pub shifted: BTreeSet<String>,
    /// Those of them of which a part is zeros that nobody learns, with the elements of that part.
    pub zeros: BTreeMap<String, Range<usize>>,
    /// Those of them in which the exporter has repeated something.
    pub repeated: BTreeMap<String, Repetition>,
    /// Tensors that are computed of parameters, each with these.
    pub computed: BTreeMap<String, Vec<String>>,
    /// Tensors of which no parameter is a part.
    pub constants: BTreeSet<String>,
    /// Parameters of which nothing is left in the file.
    pub lost: Vec<String>,
}

/// The exponential of a parameter, or its opposite.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FoldedExponential {
    /// The parameter.
    pub parameter: String,
    /// Whether it is the opposite.
    pub is_negative: bool,
}

impl FoldedExponential {
    /// Finds it by the names of the functions that a tensor was computed by.
    fn of_functions(parameter: &str, functions: &BTreeSet<&str>) -> Option<Self> {
        let is_negative = functions.contains("neg");
        let known = if is_negative { &["exp", "neg"][..] } else { &["exp"] };
        let parameter = parameter.to_owned();
        functions.iter().eq(known).then_some(Self { parameter, is_negative })
    }

    /// Returns the parameter of which a tensor is the exponential. It is `None` if it is the exponential of no number, or of
    /// half precision.
    fn parameter_of(&self, name: &str, tensor: &WeightTensor) -> Option<WeightTensor> {
        let tensor = Some(tensor).filter(|tensor| tensor.dtype == DType::F32)?;
        let elements = tensor.elements(name).ok()?.into_iter();
        let sign = self.sign();
        let logarithms: Vec<f64> = elements.map(|value| (sign * value).ln()).collect();
        let are_finite = logarithms.iter().all(|value| value.is_finite());
        are_finite.then(|| with_elements(tensor, &logarithms))
    }

    /// Returns the tensor that the file has for a parameter.
    fn of_parameter(&self, tensor: &WeightTensor) -> Result<WeightTensor, ImportError> {
        let name = &self.parameter;
        let error = |reason| ImportError::Tensor { name: name.clone(), reason };
        if tensor.dtype != DType::F32 {
            return Err(error(format!("it is {}, and the model has f32", tensor.dtype)));
        }
        let elements = tensor.elements(name).map_err(|failure| error(failure.to_string()))?;
        let sign = self.sign();
        let raised: Vec<f64> = elements.into_iter().map(|value| sign * value.exp()).collect();
        Ok(with_elements(tensor, &raised))
    }

    fn sign(&self) -> f64 {
        if self.is_negative { -1.0 } else { 1.0 }
    }
}

/// Returns a tensor of the same type with other elements.
fn with_elements(tensor: &WeightTensor, elements: &[f64]) -> WeightTensor {
    let data = WeightData::Bytes(encode_elements(tensor.dtype, elements).into());
    WeightTensor { dtype: tensor.dtype, shape: tensor.shape.clone(), data }
}

impl FoldedWeights {
    /// Returns whether a tensor stands for a parameter from which it is computed again.
    pub(super) fn is_made(&self, name: &str) -> bool {
        self.turned.contains_key(name) || self.exponentials.contains_key(name)
    }

    /// Adds the parameters that the file does not have to its tensors.
    pub(super) fn add_absent(&self, tensors: &mut BTreeMap<String, WeightTensor>) {
        for (made, parameter) in &self.turned {
            let turned = tensors[made].turn();
            tensors.entry(parameter.clone()).or_insert(turned);
        }
        for (made, exponential) in &self.exponentials {
            if let Some(own) = exponential.parameter_of(made, &tensors[made]) {
                tensors.entry(exponential.parameter.clone()).or_insert(own);
            }
        }
    }

    /// Puts what the exporter has made of parameters in their place.
    ///
    /// # Errors
    /// Returns an error if a weight cannot be read.
    pub(super) fn write_as_exported(&self, weights: &mut Weights) -> Result<(), ImportError> {
        for (made, exponential) in &self.exponentials {
            if let Some(parameter) = weights.tensors.get(&exponential.parameter) {
                let raised = exponential.of_parameter(parameter)?;
                weights.tensors.insert(made.clone(), raised);
            }
        }
        weights.tensors.retain(|name, _| !self.absent.contains(name));
        for (name, repetition) in &self.repeated {
            if let Some(weight) = weights.tensors.get_mut(name) {
                *weight = repetition.repeat_rows(name, weight)?;
            }
        }
        Ok(())
    }

    /// Adds a tensor that has one parameter, or a part of it, in another place.
    fn add_moved(
        &mut self,
        name: &str,
        tensor: &WeightTensor,
        parameters: Vec<String>,
        functions: &FunctionNames<'_>,
        batch: Option<usize>,
    ) {
        let repetition = match functions.has_any(&LOOK_UPS) {
            true => Repetition::of_rows(name, tensor),
            false => Ok(functions.find_repetition(name, tensor, batch)),
        };
        // Buckets of distances repeat, so that their rows are not found where none do.
        let is_lost = matches!(repetition, Ok(None)) && functions.names.contains("log");
        let Some(repetition) = repetition.ok().filter(|_| !is_lost) else {
            return self.add_computed(name, tensor, parameters, functions, batch);
        };
        self.repeated.extend(repetition.map(|repetition| (name.to_owned(), repetition)));
        if functions.has_any(&["add"]) && !functions.has_any(&LOOK_UPS) {
            self.shifted.insert(name.to_owned());
        }
        self.moved.insert(name.to_owned(), parameters);
    }

    /// Adds a tensor that is computed of parameters. What all samples of a batch have alike of it is kept once.
    fn add_computed(
        &mut self,
        name: &str,
        tensor: &WeightTensor,
        parameters: Vec<String>,
        functions: &FunctionNames<'_>,
        batch: Option<usize>,
    ) {
        let repetition = functions.find_repetition(name, tensor, batch);
        self.repeated.extend(repetition.map(|repetition| (name.to_owned(), repetition)));
        self.computed.insert(name.to_owned(), parameters);
    }

    /// Adds a tensor that is made of no parameter, or of several: each of them learns in its place if they are only joined, with zeros or without.
    fn add_joined(
        &mut self,
        name: &str,
        tensor: &WeightTensor,
        (parameters, sources): (Vec<String>, usize),
        functions: &FunctionNames<'_>,
        batch: Option<usize>,
    ) {
        let zeros = zero_part(name, tensor, sources);
        if parameters.is_empty() {
            self.constants.insert(name.to_owned());
        } else if functions.join() && (sources == parameters.len() || zeros.is_some()) {
            if sources > parameters.len() {
                self.zeros.extend(zeros.map(|zeros| (name.to_owned(), zeros)));
            }
            self.moved.insert(name.to_owned(), parameters);
        } else {
            self.add_computed(name, tensor, parameters, functions, batch);
        }
    }

    /// Finds them by the metadata of the model. `batch` is the number of samples that it was exported for, if it has no name.
    pub(super) fn of_model(
        graph: &GraphProto,
        metadata: &Metadata,
        tensors: &BTreeMap<String, WeightTensor>,
        batch: Option<usize>,
    ) -> Self {
        let mut found = Self::default();
        let Metadata { kinds, folded, signature, .. } = metadata;
        if signature.is_empty() {
            return found;
        }
        let is_parameter = |name: &&String| signature.get(*name).is_some_and(|k| k == "PARAMETER");
        let floats = tensors.iter().filter(|(_, tensor)| tensor.dtype.is_float());
        for (name, tensor) in floats.filter(|(name, _)| !kinds.contains_key(*name)) {
            let Some(parts) = folded.get(name) else { continue };
            let sources = parts.iter().filter(|part| signature.contains_key(*part)).count();
            let parameters: Vec<String> = parts.iter().filter(is_parameter).cloned().collect();
            let is_result =
                |part: &&String| !signature.contains_key(*part) && !part.contains("lifted_tensor");
            let made = parts.iter().filter(is_result).chain([name]);
            let functions: Vec<&str> = made.map(|name| function_of(name)).collect();
            let functions = FunctionNames::of_names(&functions);
            let [parameter] = &parameters[..] else {
                found.add_joined(name, tensor, (parameters, sources), &functions, batch);
                continue;
            };
            let exponential = FoldedExponential::of_functions(parameter, &functions.names)
                .filter(|_| sources == 1 && !tensors.contains_key(parameter))
                .filter(|exponential| exponential.parameter_of(name, tensor).is_some());
            if let Some(exponential) = exponential {
                found.absent.insert(parameter.clone());
                found.exponentials.insert(name.clone(), exponential);
            } else if parts.len() == 1 && is_turned(graph, metadata, name, tensor) {
                if !tensors.contains_key(parameter) {
                    found.absent.insert(parameter.clone());
                }
                found.turned.insert(name.clone(), parameter.clone());
            } else if functions.move_parameter() {
                found.add_moved(name, tensor, parameters, &functions, batch);
            } else {
                found.add_computed(name, tensor, parameters, &functions, batch);
            }
        }
        found.lost = lost_parameters(metadata, tensors.keys());
        found
    }
}

/// The functions that a tensor was computed by.
struct FunctionNames<'a> {
    names: BTreeSet<&'a str>,
    products: usize,
    quotients: usize,
}

impl<'a> FunctionNames<'a> {
    fn of_names(names: &[&'a str]) -> Self {
        let count = |function| names.iter().filter(|name| **name == function).count();
        let (products, quotients) = (count("mul"), count("div"));
        Self { names: names.iter().copied().collect(), products, quotients }
    }

    fn has_any(&self, functions: &[&str]) -> bool {
        functions.iter().any(|name| self.names.contains(name))
    }

    /// Finds what all samples of a batch have alike, where the exporter has repeated something.
    fn find_repetition(
        &self,
        name: &str,
        tensor: &WeightTensor,
        batch: Option<usize>,
    ) -> Option<Repetition> {
        let repeats = self.has_any(&["expand", "repeat"]);
        repeats.then(|| Repetition::along_batch(name, tensor, batch)).flatten()
    }

    /// Whether a parameter learns in its new place what it would have learned: where nothing is computed but moved, and what is added has no
    /// gradient. In a look-up, buffers and sums are the places.
    fn move_parameter(&self) -> bool {
        let looks_up = self.has_any(&LOOK_UPS);
        let counts_buckets = looks_up
            && self.names.contains("log")
            && self.products.max(self.quotients) <= MOST_BUCKET_PRODUCTS;
        // The sum of a matrix and itself turned learns otherwise.
        let adds = looks_up || !self.has_any(&TURNS[..TURNS.len() - 1]);
        self.names.iter().all(|name| {
            MOVEMENTS.contains(name)
                || (*name == "add" && adds)
                || (counts_buckets && BUCKETS.contains(name))
        })
    }

    /// Whether tensors are only put beside each other.
    fn join(&self) -> bool {
        let moves = |name: &&str| {
            MOVEMENTS.contains(name)
                && !LOOK_UPS.contains(name)
                && !["expand", "repeat"].contains(name)
        };
        self.has_any(&["cat", "stack"])
            && self.names.iter().all(|name| ["cat", "stack"].contains(name) || moves(name))
    }
}

/// Returns the elements that are zeros of a tensor of so many equal parts, if one part is. Where several are, as in a model that begins to
/// learn, it is the second of three: attention whose keys have no bias joins the biases of queries, keys and values.
fn zero_part(name: &str, tensor: &WeightTensor, parts: usize) -> Option<Range<usize>> {
    let [extent] = tensor.shape[..] else { return None };
    let size = extent / parts.max(1);
    if size == 0 || size * parts != extent {
        return None;
    }
    let elements = tensor.elements(name).ok()?;
    let is_zero = |part: &usize| elements[part * size..][..size].iter().all(|&x| x == 0.0);
    let zeros: Vec<usize> = (0..parts).filter(is_zero).collect();
    let part = match zeros[..] {
        [part] => part,
        _ if parts == 3 && zeros.contains(&1) => 1,
        _ => return None,
    };
    Some(part * size..(part + 1) * size)
}

/// Returns the function of PyTorch whose result has this name: `permute` of `permute_12`.
pub(super) fn function_of(name: &str) -> &str {
    let name = name.strip_prefix('_').unwrap_or(name);
    match name.rsplit_once('_') {
        Some((function, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => function,
        _ => name,
    }
}

/// Whether a tensor that is one function of a parameter is the parameter turned, of which the model multiplies by the columns.
fn is_turned(graph: &GraphProto, metadata: &Metadata, name: &str, tensor: &WeightTensor) -> bool {
    let names_copy = |node: &NodeProto| {
        op_type(node) == "Identity"
            && node.output.first().is_some_and(|copy| metadata.merged.contains_key(copy))
    };
    let nodes = graph.node.iter().filter(|node| !names_copy(node));
    let mut readers = nodes.filter(|node| node.input.iter().any(|input| input == name)).peekable();
    let has_readers = readers.peek().is_some();
    tensor.shape.len() == 2
        && TURNS.contains(&function_of(name))
        && has_readers
        && readers.all(|node| {
            let multiplies = matches!(op_type(node), "MatMul" | "Gemm");
            let turns = node.attribute.iter().any(|a| {
                a.name.as_deref() == Some("transB") && a.i.is_some_and(|turns| turns != 0)
            });
            multiplies && !turns && node.input.iter().position(|input| input == name) == Some(1)
        })
}

/// Returns the parameters of the program that no tensor of the file is, or is computed of.
pub(super) fn lost_parameters<'a>(
    metadata: &'a Metadata,
    tensors: impl Iterator<Item = &'a String> + Clone,
) -> Vec<String> {
    let parts = tensors.clone().filter_map(|name| metadata.folded.get(name)).flatten();
    let kept: BTreeSet<&String> = parts.chain(tensors).collect();
    let all = metadata.signature.iter().filter(|(_, kind)| *kind == "PARAMETER");
    all.map(|(name, _)| name).filter(|name| !kept.contains(name)).cloned().collect()
}

impl Lowering {
    /// Lets a weight stand for the tensor that the file has, with zeros that learn nothing.
    pub(super) fn zero_part_of_weight(
        &mut self,
        name: &str,
        zeros: &Range<usize>,
    ) -> Result<(), ImportError> {
        let error = |LoweringProblem(reason)| ImportError::Tensor { name: name.into(), reason };
        let ty = self.tensors()[name].ty();
        let kept = (0..ty.elements()).map(|at| f64::from(u8::from(!zeros.contains(&at)))).collect();
        let kept = Val::Known(KnownValue::new(ty, kept));
        let product = self.apply_binary(BinaryFunction::Mul, &Val::Weight(name.into()), &kept);
        self.values.insert(name.into(), product.map_err(error)?);
        Ok(())
    }

    /// Lets the exponential of a weight stand for what the exporter has computed of it.
    pub(super) fn raise_weight(
        &mut self,
        made: &str,
        of: &FoldedExponential,
    ) -> Result<(), ImportError> {
        let error = |LoweringProblem(reason)| ImportError::Tensor { name: made.into(), reason };
        let weight = Val::Weight(of.parameter.clone());
        let mut raised = self.apply_unary(UnaryFunction::Exp, &weight).map_err(error)?;
        if of.is_negative {
            raised = self.apply_unary(UnaryFunction::Neg, &raised).map_err(error)?;
        }
        self.values.insert(made.into(), raised);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_those_of_their_parameters() {
        let of = |functions: &[&str]| {
            FoldedExponential::of_functions("rate", &functions.iter().copied().collect())
        };
        let tensor = |elements: &[f64]| WeightTensor {
            dtype: DType::F32,
            shape: vec![elements.len()],
            data: WeightData::Bytes(encode_elements(DType::F32, elements).into()),
        };
        for (functions, sign) in [(&["exp"][..], 1.0), (&["exp", "neg"], -1.0)] {
            let exponential = of(functions).expect("it is one");
            let made = tensor(&[sign, sign * 2.0, sign * 0.5]);
            let own = exponential.parameter_of("made", &made).expect("there is a number for each");
            let logarithms = own.elements("own").expect("in memory");
            assert_eq!(logarithms[0], 0.0);
            assert!((logarithms[1] - f64::ln(2.0)).abs() < 1e-7, "{logarithms:?}");
            let again = exponential.of_parameter(&own).expect("in memory");
            let again = again.elements("again").expect("in memory");
            assert!((again[2] - sign * 0.5).abs() < 1e-7, "{again:?}");
            assert_eq!(exponential.parameter_of("made", &tensor(&[0.0])), None, "of no number");
            assert_eq!(exponential.parameter_of("made", &tensor(&[-sign])), None);
        }
        assert!(
            of(&["exp", "val"]).is_none()
                && of(&["neg"]).is_none()
                && of(&["exp", "mul"]).is_none()
        );
    }

    #[test]
    fn results_are_named_after_functions() {
        for (name, function) in [
            ("permute", "permute"),
            ("permute_12", "permute"),
            ("val_3", "val"),
            ("_unsafe_view_1", "unsafe_view"),
            ("split_with_sizes", "split_with_sizes"),
            ("exp_1", "exp"),
            ("t", "t"),
        ] {
            assert_eq!(function_of(name), function);
        }
    }
}
