//! The check that every op has a trial, or a reason to have none. An op with neither makes the whole fail.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::op::Op;
use graphc_ir::ops::{BatchNorm, BatchNormTraining, Custom, Input};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

/// Explains why an op has no trial; `None` for ops that have some.
fn why_untried(op: &Op) -> Option<&'static str> {
    match op {
        Op::Input(_) => Some("what the user feeds is computed by nobody"),
        Op::Custom(_) => Some("a program that has it gives its kernel, for the processor"),
        Op::BatchNorm(_) | Op::BatchNormTraining(_) => {
            Some("a graph has its parts instead before kernels are looked up")
        }
        // Of `groups::few`, as the cases of the rooms are.
        Op::Variable(_) | Op::Constant(_) | Op::Full(_) | Op::Iota(_) | Op::Random(_) => None,
        Op::Unary(_) | Op::Binary(_) | Op::Where(_) | Op::Cast(_) => None,
        Op::Reduce(_) | Op::ArgMax(_) | Op::TopK(_) | Op::CumulativeSum(_) | Op::MatMul(_) => None,
        Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::Concat(_) | Op::Split(_) => None,
        Op::Expand(_) | Op::Pad(_) | Op::Triangle(_) | Op::Zigzag(_) => None,
        Op::Dropout(_) | Op::Rotary(_) => None,
        Op::Softmax(_) | Op::SoftmaxGrad(_) | Op::LogSoftmax(_) | Op::LogSoftmaxGrad(_) => None,
        Op::Normalize(_) | Op::NormalizeGrad(_) => None,
        Op::Embedding(_) | Op::EmbeddingGrad(_) => None,
        Op::Gather(_) | Op::ScatterSum(_) | Op::Scatter(_) => None,
        Op::Pick(_) | Op::PickGrad(_) | Op::LabelRank(_) => None,
        Op::CrossEntropy(_) | Op::CrossEntropyGrad(_) => None,
        Op::Attention(_) | Op::AttentionGrad(_) => None,
        Op::Recurrence(_) | Op::RecurrenceGrad(_) => None,
        Op::Convolution(_) | Op::ConvolutionInputGrad(_) | Op::ConvolutionKernelGrad(_) => None,
        Op::MaxPool(_) | Op::MaxPoolGrad(_) | Op::AveragePool(_) | Op::AveragePoolGrad(_) => None,
        Op::Resize(_) | Op::ResizeGrad(_) => None,
        Op::Dispatch(_)
        | Op::Combine(_)
        | Op::CombineWeightsGrad(_)
        | Op::GroupedMatMul(_)
        | Op::GroupedMatMulGrad(_) => None,
        Op::SgdUpdate(_) | Op::AdamUpdate(_) | Op::RmspropUpdate(_) => None,
        Op::LambDirection(_) | Op::LambUpdate(_) | Op::Blend(_) => None,
        Op::SquareSum(_) | Op::ClipFactor(_) | Op::NonFinite(_) => None,
        Op::LossScale(_) | Op::SkipStep(_) => None,
        Op::ToGlobal(_) | Op::Regather(_) | Op::Accumulate(_) => None,
    }
}

/// Returns one of each op that has no trial.
fn without_trials() -> [Op; 4] {
    let (epsilon, ty) = (Scalar(1e-5), TensorType::new(DType::F32, [1]));
    let samples = Default::default();
    [
        Op::Input(Input { name: "x".into(), ty, samples }),
        Op::Custom(Custom::new("own", "n -> n")),
        Op::BatchNorm(BatchNorm { epsilon, momentum: Scalar(0.9) }),
        Op::BatchNormTraining(BatchNormTraining { epsilon, batches: 1, channel: 1 }),
    ]
}

/// The names of ops that have no trial, and why.
pub fn reasons() -> BTreeMap<&'static str, &'static str> {
    let ops = without_trials();
    ops.iter().filter_map(|op| Some((op.name(), why_untried(op)?))).collect()
}

/// The names of all ops but those that were tried and those of which it is known why they are not.
pub fn untried(tried: &BTreeSet<String>) -> Vec<String> {
    let known = reasons();
    let is_known = |name: &String| tried.contains(name) || known.contains_key(name.as_str());
    names().into_iter().filter(|name| !is_known(name)).collect()
}

/// The names of all ops, as the error of reading one that there is not lists them.
fn names() -> Vec<String> {
    let error = serde_json::from_str::<Op>(r#"{"op": "?"}"#).expect_err("`?` is no op");
    let words = error.to_string();
    let (_, list) = words.split_once("expected one of").expect("serde lists the ops");
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
