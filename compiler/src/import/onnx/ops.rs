//! The table of ONNX ops and what lowers each. What is not in it is not supported.

use super::lower::{Lowering, Val};
use super::node::{Call, Res};
use super::{
    attention, border, control, einsum, elementwise as e, gather, linear, movement as m,
    normalize as n, picture as p, recurrent, reduce as r, resize, scatter, sequence as s,
};
use graphc_ir::ops::{BinaryFunction as B, ReduceFunction as R, UnaryFunction as U};

/// Lowers one node: its results, in order; trailing ones that it has not are an error where the model names them.
pub(super) type Lower = fn(&mut Lowering, Call<'_>) -> Res<Vec<Val>>;

/// What lowers an op.
pub(super) fn find(domain: &str, op_type: &str) -> Option<Lower> {
    let entry = table(domain).iter().find(|(name, _)| *name == op_type);
    entry.map(|(_, lower)| *lower)
}

/// The ops of a domain that are supported.
pub(super) fn names(domain: &str) -> impl Iterator<Item = &'static str> {
    table(domain).iter().map(|(name, _)| *name)
}

fn table(domain: &str) -> &'static [(&'static str, Lower)] {
    match domain {
        "" | "ai.onnx" => STANDARD,
        "com.microsoft" => MICROSOFT,
        _ => &[],
    }
}

const STANDARD: &[(&str, Lower)] = &[
    ("Abs", |cx, call| e::unary(cx, call, U::Abs)),
    ("Add", |cx, call| e::binary(cx, call, B::Add)),
    ("And", |cx, call| e::binary(cx, call, B::And)),
    ("ArgMax", |cx, call| r::arg(cx, call, false)),
    ("ArgMin", |cx, call| r::arg(cx, call, true)),
    ("Attention", attention::attention),
    ("AveragePool", p::average_pool),
    ("BatchNormalization", p::batch_normalization),
    ("Cast", e::cast),
    ("CastLike", e::cast_like),
    ("Ceil", |cx, call| e::rounded(cx, call, U::Ceil)),
    ("Celu", |cx, call| e::elu(cx, call, e::Exponential::Celu)),
    ("Clip", e::clip),
    ("Concat", m::concat),
    ("ConcatFromSequence", s::concat),
    ("Constant", m::constant),
    ("ConstantOfShape", m::constant_of_shape),
    ("Conv", p::convolution),
    ("ConvTranspose", p::transposed_convolution),
    ("Cos", |cx, call| e::unary(cx, call, U::Cos)),
    ("CumSum", r::cumulative_sum),
    ("DepthToSpace", border::depth_to_space),
    ("Div", e::divide),
    ("Dropout", n::dropout),
    ("Einsum", einsum::einsum),
    ("Elu", |cx, call| e::elu(cx, call, e::Exponential::Elu)),
    ("Equal", |cx, call| e::binary(cx, call, B::Equal)),
    ("Erf", |cx, call| e::unary(cx, call, U::Erf)),
    ("Exp", |cx, call| e::unary(cx, call, U::Exp)),
    ("Expand", m::expand),
    ("Flatten", m::flatten),
    ("Floor", |cx, call| e::rounded(cx, call, U::Floor)),
    ("GRU", recurrent::gru),
    ("Gather", gather::gather),
    ("GatherElements", gather::gather_elements),
    ("GatherND", gather::gather_nd),
    ("Gelu", e::gelu),
    ("Gemm", linear::gemm),
    ("GlobalAveragePool", r::global_average),
    ("GlobalMaxPool", r::global_max),
    ("Greater", |cx, call| e::binary(cx, call, B::Greater)),
    ("GreaterOrEqual", |cx, call| e::binary(cx, call, B::GreaterEqual)),
    ("GroupNormalization", n::group_normalization),
    ("HardSigmoid", e::hard_sigmoid),
    ("HardSwish", e::hard_swish),
    ("Identity", |cx, call| Ok(vec![cx.operand(call, 0)?])),
    ("If", control::branch),
    ("InstanceNormalization", n::instance_normalization),
    ("IsNaN", e::is_nan),
    ("LSTM", recurrent::lstm),
    ("LayerNormalization", n::layer_normalization),
    ("LeakyRelu", e::leaky_relu),
    ("Less", |cx, call| e::binary(cx, call, B::Less)),
    ("LessOrEqual", |cx, call| e::binary(cx, call, B::LessEqual)),
    ("Log", |cx, call| e::unary(cx, call, U::Log)),
    ("LogSoftmax", |cx, call| n::softmax(cx, call, true)),
    ("Loop", control::repeat),
    ("MatMul", linear::matmul),
    ("Max", |cx, call| e::variadic(cx, call, B::Max)),
    ("MaxPool", p::max_pool),
    ("Mean", e::mean),
    ("Min", |cx, call| e::variadic(cx, call, B::Min)),
    ("Mish", e::mish),
    ("Mod", e::modulo),
    ("Mul", |cx, call| e::binary(cx, call, B::Mul)),
    ("Neg", |cx, call| e::unary(cx, call, U::Neg)),
    ("Not", |cx, call| e::unary(cx, call, U::Not)),
    ("OneHot", m::one_hot),
    ("Or", |cx, call| e::binary(cx, call, B::Or)),
    ("PRelu", e::prelu),
    ("Pad", m::pad),
    ("Pow", e::pow),
    ("RMSNormalization", n::rms_normalization),
    ("RNN", recurrent::rnn),
    ("Range", m::range),
    ("Reciprocal", |cx, call| e::unary(cx, call, U::Reciprocal)),
    ("ReduceL1", |cx, call| r::norm(cx, call, r::Norm::L1)),
    ("ReduceL2", |cx, call| r::norm(cx, call, r::Norm::L2)),
    ("ReduceMax", |cx, call| r::reduce(cx, call, R::Max)),
    ("ReduceMean", |cx, call| r::reduce(cx, call, R::Mean)),
    ("ReduceMin", |cx, call| r::reduce(cx, call, R::Min)),
    ("ReduceSum", |cx, call| r::reduce(cx, call, R::Sum)),
    ("ReduceSumSquare", |cx, call| r::norm(cx, call, r::Norm::SumSquare)),
    ("Relu", |cx, call| e::unary(cx, call, U::Relu)),
    ("Reshape", m::reshape),
    ("Resize", resize::resize),
    ("RotaryEmbedding", attention::rotary),
    ("Round", |cx, call| e::rounded(cx, call, U::Round)),
    ("Scatter", scatter::scatter_elements),
    ("ScatterElements", scatter::scatter_elements),
    ("ScatterND", scatter::scatter_nd),
    ("Selu", |cx, call| e::elu(cx, call, e::Exponential::Selu)),
    ("SequenceAt", s::at),
    ("SequenceConstruct", s::construct),
    ("Shape", m::shape),
    ("Sigmoid", |cx, call| e::unary(cx, call, U::Sigmoid)),
    ("Sign", |cx, call| e::unary(cx, call, U::Sign)),
    ("SimplifiedLayerNormalization", n::rms_normalization),
    ("Sin", |cx, call| e::unary(cx, call, U::Sin)),
    ("Size", m::size),
    ("Slice", m::slice),
    ("Softmax", |cx, call| n::softmax(cx, call, false)),
    ("Softplus", e::softplus),
    ("Softsign", e::softsign),
    ("SpaceToDepth", border::space_to_depth),
    ("Split", m::split),
    ("SplitToSequence", s::split),
    ("Sqrt", |cx, call| e::unary(cx, call, U::Sqrt)),
    ("Squeeze", m::squeeze),
    ("Sub", |cx, call| e::binary(cx, call, B::Sub)),
    ("Sum", |cx, call| e::variadic(cx, call, B::Add)),
    ("Swish", e::swish),
    ("Tanh", |cx, call| e::unary(cx, call, U::Tanh)),
    ("ThresholdedRelu", e::thresholded_relu),
    ("Tile", m::tile),
    ("TopK", r::top_k),
    ("Transpose", m::transpose),
    ("Trilu", m::trilu),
    ("Unsqueeze", m::unsqueeze),
    ("Upsample", resize::upsample),
    ("Where", e::select),
    ("Xor", |cx, call| e::binary(cx, call, B::NotEqual)),
];

const MICROSOFT: &[(&str, Lower)] = &[
    ("BiasGelu", |cx, call| e::bias_gelu(cx, call, U::Gelu)),
    ("FastGelu", |cx, call| e::bias_gelu(cx, call, U::GeluTanh)),
    ("Gelu", |cx, call| e::unary(cx, call, U::Gelu)),
    ("QuickGelu", e::quick_gelu),
    ("SimplifiedLayerNormalization", n::rms_normalization),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_table_is_sorted_and_names_each_op_once() {
        for table in [STANDARD, MICROSOFT] {
            assert!(table.windows(2).all(|pair| pair[0].0 < pair[1].0));
        }
    }
}
