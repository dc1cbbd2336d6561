//! Weights that the exporter's optimizer has computed with before it wrote them. It says of each tensor that it wrote so of which others it was
//! computed, parameters among them, and the signature of the program says which parameters there were.
//!
//! Some of these tensors are still weights: a parameter that was only turned, or only moved, in whole or in part, learns in its new place what it would
//! have learned. So does an exponential, of which the parameter is computed back. What was computed otherwise learns differently or not at all.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::ops::UnaryFunction;
use graphc_ir::types::DType;
use rten_onnx::onnx::GraphProto;

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

/// The functions that take rows of a parameter, some of them several times.
const LOOK_UPS: [&str; 5] = ["embedding", "gather", "getitem", "index", "index_select"];

/// The functions that turn a matrix, and the translation of `linear`, which turns its weight.
const TURNS: [&str; 6] = ["mt", "numpy_t", "permute", "t", "transpose", "val"];

/// What the exporter's optimizer has made of the parameters of a model.
#[derive(Debug, Default, PartialEq)]
pub(super) struct FoldedWeights {
    /// Matrices that are a parameter turned, each with the parameter.
    pub turned: BTreeMap<String, String>,
    /// Tensors that are the exponential of a parameter, or the opposite of that, as scales and rates are, each with the parameter.
    pub exponentials: BTreeMap<String, Exponential>,
    /// Parameters that the file has in no form but one of these two.
    pub absent: BTreeSet<String>,
    /// Tensors that are a parameter, or a part of it, in another place, each with the parameter.
    pub moved: BTreeMap<String, String>,
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
pub(super) struct Exponential {
    /// The parameter.
    pub parameter: String,
    /// Whether it is the opposite.
    pub is_negative: bool,
}

impl Exponential {
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
            let [parameter] = &parameters[..] else {
                match parameters.is_empty() {
                    true => _ = found.constants.insert(name.clone()),
                    false => _ = found.computed.insert(name.clone(), parameters),
                }
                continue;
            };
            let made = parts.iter().filter(|part| !signature.contains_key(*part)).chain([name]);
            let functions: BTreeSet<&str> = made.map(|name| function_of(name)).collect();
            // Where nothing is computed but moved, buffers are the places that are looked up.
            let moves = functions.iter().all(|name| MOVEMENTS.contains(name));
            let exponential = Exponential::of_functions(parameter, &functions)
                .filter(|_| sources == 1 && !tensors.contains_key(parameter))
                .filter(|exponential| exponential.parameter_of(name, tensor).is_some());
            if let Some(exponential) = exponential {
                found.absent.insert(parameter.clone());
                found.exponentials.insert(name.clone(), exponential);
            } else if !moves {
                found.computed.insert(name.clone(), parameters);
            } else if parts.len() == 1 && is_turned(graph, name, tensor) {
                if !tensors.contains_key(parameter) {
                    found.absent.insert(parameter.clone());
                }
                found.turned.insert(name.clone(), parameter.clone());
            } else {
                let looks_up = LOOK_UPS.iter().any(|name| functions.contains(name));
                let repeats = functions.contains("expand") || functions.contains("repeat");
                let repetition = match looks_up {
                    true => Repetition::of_rows(name, tensor),
                    false if repeats => Ok(Repetition::along_batch(name, tensor, batch)),
                    false => Ok(None),
                };
                let Ok(repetition) = repetition else {
                    found.computed.insert(name.clone(), parameters);
                    continue;
                };
                found.repeated.extend(repetition.map(|repetition| (name.clone(), repetition)));
                found.moved.insert(name.clone(), parameter.clone());
            }
        }
        found.lost = lost_parameters(metadata, tensors);
        found
    }
}

/// Returns the function of PyTorch whose result has this name: `permute` of `permute_12`.
fn function_of(name: &str) -> &str {
    let name = name.strip_prefix('_').unwrap_or(name);
    match name.rsplit_once('_') {
        Some((function, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => function,
        _ => name,
    }
}

/// Whether a tensor that is one function of a parameter is the parameter turned, of which the model multiplies by the columns.
fn is_turned(graph: &GraphProto, name: &str, tensor: &WeightTensor) -> bool {
    let mut readers =
        graph.node.iter().filter(|node| node.input.iter().any(|input| input == name)).peekable();
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
fn lost_parameters(metadata: &Metadata, tensors: &BTreeMap<String, WeightTensor>) -> Vec<String> {
    let parts = tensors.keys().filter_map(|name| metadata.folded.get(name)).flatten();
    let kept: BTreeSet<&String> = parts.chain(tensors.keys()).collect();
    let all = metadata.signature.iter().filter(|(_, kind)| *kind == "PARAMETER");
    all.map(|(name, _)| name).filter(|name| !kept.contains(name)).cloned().collect()
}

impl Lowering {
    /// Lets the exponential of a weight stand for what the exporter has computed of it.
    pub(super) fn raise_weight(&mut self, made: &str, of: &Exponential) -> Result<(), ImportError> {
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
            Exponential::of_functions("rate", &functions.iter().copied().collect())
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
