//! Every op has kernels of the two 16-bit types, which compute what its oracle computes of the rounded operands, and
//! round once.

use std::collections::BTreeSet;

use crate::common::{Case, Random, ordinary};
use crate::drawn::f32s;
use crate::elementwise::{BINARY, REDUCTIONS};
use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

/// The number of variants of [`Op`].
const OPS: usize = 74;

/// The number of an op's variant, from 0 to `OPS - 1`: who adds a variant adds its number, and examples below.
fn number(op: &Op) -> usize {
    match op {
        Op::Input(_) => 0,
        Op::Variable(_) => 1,
        Op::Constant(_) => 2,
        Op::Full(_) => 3,
        Op::Iota(_) => 4,
        Op::Random(_) => 5,
        Op::Unary(_) => 6,
        Op::Binary(_) => 7,
        Op::Where(_) => 8,
        Op::Cast(_) => 9,
        Op::Reduce(_) => 10,
        Op::ArgMax(_) => 11,
        Op::MatMul(_) => 12,
        Op::Reshape(_) => 13,
        Op::Transpose(_) => 14,
        Op::Slice(_) => 15,
        Op::Concat(_) => 16,
        Op::Split(_) => 17,
        Op::Expand(_) => 18,
        Op::Pad(_) => 19,
        Op::Softmax(_) => 20,
        Op::SoftmaxGrad(_) => 21,
        Op::LogSoftmax(_) => 22,
        Op::LogSoftmaxGrad(_) => 23,
        Op::Normalize(_) => 24,
        Op::NormalizeGrad(_) => 25,
        Op::Embedding(_) => 26,
        Op::EmbeddingGrad(_) => 27,
        Op::Pick(_) => 28,
        Op::PickGrad(_) => 29,
        Op::CrossEntropy(_) => 30,
        Op::CrossEntropyGrad(_) => 31,
        Op::Attention(_) => 32,
        Op::AttentionGrad(_) => 33,
        Op::Rotary(_) => 34,
        Op::Convolution(_) => 35,
        Op::ConvolutionInputGrad(_) => 36,
        Op::ConvolutionKernelGrad(_) => 37,
        Op::MaxPool(_) => 38,
        Op::MaxPoolGrad(_) => 39,
        Op::AveragePool(_) => 40,
        Op::AveragePoolGrad(_) => 41,
        Op::BatchNorm(_) | Op::BatchNormTraining(_) => 42,
        Op::Dispatch(_) => 43,
        Op::Combine(_) => 44,
        Op::CombineWeightsGrad(_) => 45,
        Op::GroupedMatMul(_) => 71,
        Op::GroupedMatMulGrad(_) => 72,
        Op::Dropout(_) => 46,
        Op::Triangle(_) => 47,
        Op::Zigzag(_) => 73,
        Op::SgdUpdate(_) => 48,
        Op::AdamUpdate(_) => 49,
        Op::ToGlobal(_) | Op::Regather(_) | Op::Accumulate(_) => 50,
        Op::NonFinite(_) => 51,
        Op::LossScale(_) => 52,
        Op::RmspropUpdate(_) => 53,
        Op::LambDirection(_) => 54,
        Op::LambUpdate(_) => 55,
        Op::SquareSum(_) => 56,
        Op::ClipFactor(_) => 57,
        Op::LabelRank(_) => 58,
        Op::Blend(_) => 59,
        Op::SkipStep(_) => 60,
        Op::Recurrence(_) => 61,
        Op::RecurrenceGrad(_) => 62,
        Op::Resize(_) => 63,
        Op::ResizeGrad(_) => 64,
        Op::Gather(_) => 65,
        Op::ScatterSum(_) => 66,
        Op::Scatter(_) => 67,
        Op::TopK(_) => 68,
        Op::CumulativeSum(_) => 69,
        Op::Custom(_) => 70,
    }
}

/// The elements of the operand at a place.
type Fill = Box<dyn FnMut(&mut Random, usize, DType) -> f64>;

/// An application of an op, and how near its kernel comes before it rounds.
struct Example {
    op: Op,
    types: Vec<TensorType>,
    fill: Fill,
    tolerance: f64,
}

/// Examples of all ops for one type.
struct Examples<'a> {
    random: &'a mut Random,
    half: DType,
    all: Vec<Example>,
}

impl Examples<'_> {
    fn ty(&self, shape: &[usize]) -> TensorType {
        TensorType::new(self.half, shape)
    }

    fn add(&mut self, op: Op, types: &[TensorType], tolerance: f64) {
        self.filled(op, types, tolerance, ordinary);
    }

    fn filled(
        &mut self,
        op: Op,
        types: &[TensorType],
        tolerance: f64,
        fill: impl FnMut(&mut Random, usize, DType) -> f64 + 'static,
    ) {
        self.all.push(Example { op, types: types.to_vec(), fill: Box::new(fill), tolerance });
    }
}

/// Indices below `range` for the operand `place`.
fn indices(place: usize, range: usize) -> impl FnMut(&mut Random, usize, DType) -> f64 {
    move |random, operand, dtype| match operand == place {
        true => random.below(range) as f64,
        false => ordinary(random, operand, dtype),
    }
}

/// Draws numbers for which roots and powers are defined.
fn positive(random: &mut Random, operand: usize, dtype: DType) -> f64 {
    ordinary(random, operand, dtype).abs() + 0.25
}

fn sources(to: &mut Examples<'_>) {
    let ty = to.ty(&[3, 5]);
    let data = (0..15).map(|i| Scalar(f64::from(i) * 0.37)).collect();
    let distribution = Distribution::Normal { mean: Scalar(1.0), std: Scalar(0.5) };
    for init in [
        Init::Normal { mean: Scalar(0.0), std: Scalar(0.02) },
        Init::Uniform { low: Scalar(-1.0), high: Scalar(1.0) },
        Init::Fill(Scalar(0.1)),
    ] {
        let op = Variable { name: "w".into(), ty: ty.clone(), init, trainable: true };
        to.add(Op::Variable(op), &[], 1e-6);
    }
    to.add(Op::Constant(Constant { ty: ty.clone(), data }), &[], 1e-6);
    to.add(Op::Full(Full { ty: ty.clone(), value: Scalar(0.3) }), &[], 1e-6);
    to.add(Op::Iota(Iota { ty: ty.clone(), dim: 1 }), &[], 0.0);
    to.add(Op::Random(graphc_ir::ops::Random { ty, distribution, key: 3 }), &[], 1e-6);
}

fn elementwise(to: &mut Examples<'_>) {
    use UnaryFunction as U;
    let shape = to.random.shape(2);
    let x = to.ty(&shape);
    let two = Scalar(1.7);
    for function in [
        U::Relu,
        U::Gelu,
        U::GeluTanh,
        U::Sigmoid,
        U::Tanh,
        U::Silu,
        U::Exp,
        U::Log,
        U::Sqrt,
        U::Rsqrt,
        U::Abs,
        U::Neg,
        U::Sign,
        U::Erf,
        U::Sin,
        U::Cos,
        U::Floor,
        U::Ceil,
        U::Round,
        U::Reciprocal,
        U::Scale(two),
        U::Offset(two),
        U::PowScalar(two),
        U::PowScalar(Scalar(2.0)),
        U::Clip { low: Scalar(-1.0), high: two },
    ] {
        to.filled(Op::Unary(Unary { function }), std::slice::from_ref(&x), 4e-6, positive);
        if function.apply(-1.0).is_finite() {
            to.add(Op::Unary(Unary { function }), std::slice::from_ref(&x), 4e-6);
        }
    }
    let row = to.ty(&[shape[1]]);
    for function in BINARY {
        let types = [x.clone(), row.clone()];
        to.filled(Op::Binary(Binary { function }), &types, 1e-5, positive);
    }
    for function in [BinaryFunction::RoundFloat8, BinaryFunction::RoundFloat8E5m2] {
        to.add(Op::Binary(Binary { function }), &[x.clone(), row.clone()], 0.0);
    }
    let condition = TensorType::new(DType::Bool, [shape[0], 1]);
    to.add(Op::Where(Where {}), &[condition, x.clone(), row], 0.0);
    for other in DType::ALL {
        let from = TensorType::new(other, x.shape.clone());
        to.add(Op::Cast(Cast { dtype: to.half }), &[from], 0.0);
        to.add(Op::Cast(Cast { dtype: other }), std::slice::from_ref(&x), 0.0);
    }
}

fn reductions(to: &mut Examples<'_>) {
    let shape = to.random.shape(3);
    for axes in [vec![0], vec![1], vec![2], vec![0, 1], vec![1, 2], vec![0, 2], vec![0, 1, 2]] {
        for function in REDUCTIONS {
            let op = Reduce { function, axes: axes.clone(), keep_dims: to.random.below(2) == 0 };
            to.add(Op::Reduce(op), &[to.ty(&shape)], 5e-5);
        }
    }
    // Sums that a 16-bit accumulator would lose.
    let long = Reduce { function: ReduceFunction::Sum, axes: vec![0], keep_dims: false };
    to.filled(Op::Reduce(long.clone()), &[to.ty(&[9000])], 1e-6, |_, _, _| 0.125);
    to.filled(Op::Reduce(long), &[to.ty(&[5000, 3])], 1e-6, |_, _, _| 0.125);
    let axis = to.random.below(3);
    if shape[axis] > 0 {
        to.add(Op::ArgMax(ArgMax { axis, keep_dims: false }), &[to.ty(&shape)], 0.0);
    }
}

fn movements(to: &mut Examples<'_>) {
    let x = to.ty(&[4, 6]);
    let one = std::slice::from_ref(&x);
    to.add(Op::Reshape(Reshape { shape: vec![24] }), one, 0.0);
    to.add(Op::Transpose(Transpose { permutation: vec![1, 0] }), one, 0.0);
    let slice = Slice { starts: vec![0, 1], ends: vec![4, 6], steps: vec![1, 2] };
    to.add(Op::Slice(slice), one, 0.0);
    to.add(Op::Concat(Concat { axis: 1 }), &[x.clone(), x.clone()], 0.0);
    to.add(Op::Split(Split { axis: 1, sizes: vec![2, 4] }), one, 0.0);
    to.add(Op::Expand(Expand { shape: vec![3, 4, 6] }), one, 0.0);
    let (low, high, interior) = (vec![0, 1], vec![0, 2], vec![0, 1]);
    to.add(Op::Pad(Pad { low, high, interior, value: Scalar(0.3) }), one, 1e-6);
    to.add(Op::Triangle(Triangle { lower: true, diagonal: 1 }), one, 0.0);
    let pairs = std::num::NonZeroU32::new(2).expect("a count");
    to.add(Op::Zigzag(Zigzag { dim: 0, pairs, inverse: false }), one, 0.0);
    to.add(Op::Accumulate(Accumulate {}), one, 0.0);
    let dropout = DropoutOp { probability: Scalar(0.3), key: 11, training: true };
    to.add(Op::Dropout(dropout), one, 1e-6);
}

fn rows(to: &mut Examples<'_>) {
    let mut shape = to.random.shape(2);
    shape[1] = shape[1].max(1);
    let (x, row) = (to.ty(&shape), f32s(&[shape[0], 1]));
    for axis in [0, 1] {
        let pair = [x.clone(), x.clone()];
        to.add(Op::Softmax(Softmax { axis }), &pair[..1], 2e-6);
        to.add(Op::LogSoftmax(LogSoftmax { axis }), &pair[..1], 4e-6);
        to.add(Op::SoftmaxGrad(SoftmaxGrad { axis }), &pair, 2e-5);
        let logarithm = |random: &mut Random, i: usize, dtype: DType| {
            let x = ordinary(random, i, dtype);
            if i == 0 { -x.abs() } else { x }
        };
        to.filled(Op::LogSoftmaxGrad(LogSoftmaxGrad { axis }), &pair, 2e-5, logarithm);
    }
    for center in [true, false] {
        let op = Op::Normalize(Normalize { center, epsilon: Scalar(1e-5) });
        to.add(op, std::slice::from_ref(&x), 2e-5);
        let types = [x.clone(), row.clone(), x.clone()];
        to.add(Op::NormalizeGrad(NormalizeGrad { center }), &types, 2e-5);
    }
    let labels = TensorType::new(DType::I64, [shape[0]]);
    let (of_row, half_row) = (f32s(&[shape[0]]), to.ty(&[shape[0]]));
    let (classes, scored) = (shape[1], [x.clone(), labels.clone()]);
    to.filled(Op::Pick(Pick::default()), &scored, 0.0, indices(1, classes));
    let types = [labels.clone(), half_row];
    to.filled(Op::PickGrad(PickGrad { classes }), &types, 0.0, indices(0, classes));
    to.filled(Op::CrossEntropy(CrossEntropy::default()), &scored, 4e-6, indices(1, classes));
    let types = [x.clone(), of_row.clone(), labels.clone(), of_row];
    let op = Op::CrossEntropyGrad(CrossEntropyGrad::default());
    to.filled(op, &types, 1e-5, indices(2, classes));
    to.filled(Op::Embedding(EmbeddingOp {}), &[to.ty(&[7, 3]), labels.clone()], 0.0, indices(1, 7));
    let types = [labels, to.ty(&[shape[0], 3])];
    to.filled(Op::EmbeddingGrad(EmbeddingGrad { rows: 7 }), &types, 2e-5, indices(0, 7));
    // Many rows, in several tiles, and sums that a 16-bit accumulator would lose.
    let types = [TensorType::new(DType::I64, [3000]), to.ty(&[3000, 30])];
    let same = |random: &mut Random, i: usize, _: DType| match i {
        0 => random.below(4) as f64 * 1100.0,
        _ => 0.125,
    };
    to.filled(Op::EmbeddingGrad(EmbeddingGrad { rows: 5000 }), &types, 1e-6, same);
}

fn places(to: &mut Examples<'_>) {
    let places = TensorType::new(DType::I64, [3, 9]);
    let (whole, part) = (to.ty(&[3, 5, 2]), to.ty(&[3, 9, 2]));
    let types = [whole.clone(), places.clone()];
    to.filled(Op::Gather(Gather {}), &types, 0.0, indices(1, 5));
    let types = [places.clone(), part.clone()];
    to.filled(Op::ScatterSum(ScatterSum { places: 5 }), &types, 2e-5, indices(0, 5));
    for function in [ScatterFunction::Set, ScatterFunction::Max, ScatterFunction::Min] {
        let types = [whole.clone(), places.clone(), part.clone()];
        to.filled(Op::Scatter(Scatter { function }), &types, 0.0, indices(1, 5));
    }
    let x = to.ty(&[4, 11]);
    let one = std::slice::from_ref(&x);
    to.add(Op::TopK(TopK { count: 3, greatest: true }), one, 0.0);
    let sum = CumulativeSum { axis: 1, exclusive: false, reverse: true };
    to.add(Op::CumulativeSum(sum), one, 1e-6);
}

fn products(to: &mut Examples<'_>) {
    let op = Op::MatMul(MatMul { transpose_a: false, transpose_b: true });
    to.add(op, &[to.ty(&[5, 70]), to.ty(&[9, 70])], 5e-5);
    let (query, key) = (to.ty(&[2, 9, 4, 6]), to.ty(&[2, 9, 2, 6]));
    let (causal, scale) = (to.random.below(2) == 0, Scalar(0.4));
    let types = [query.clone(), key.clone(), key.clone()];
    // What a product makes for another one is rounded to the type before it is multiplied, where the processor has products
    // of that type: a few of its units.
    let unit = if to.half == DType::BF16 { 1.0 / 128.0 } else { 1.0 / 1024.0 };
    to.add(Op::Attention(Attention::new(causal, scale)), &types, 2.0 * unit);
    let row = f32s(&query.shape[..3]);
    let types = [&query, &key, &key, &query, &row, &query].map(TensorType::clone);
    let op = Op::AttentionGrad(AttentionGrad::new(causal, scale));
    to.filled(op, &types, 4.0 * unit, |random, i, dtype| {
        let x = ordinary(random, i, dtype) * 0.5;
        if i == 4 { x.abs() + 3.0 } else { x }
    });
    let window = Window { strides: [2, 1], pads: [1; 4], dilations: [1; 2] };
    let (x, k) = (to.ty(&[2, 4, 7, 8]), to.ty(&[6, 2, 3, 3]));
    let op = Op::Convolution(Convolution { window, groups: 2, channels_last: false });
    let y = op.infer_types(&[&x, &k]).expect("it fits").swap_remove(0);
    to.add(op, &[x.clone(), k.clone()], 5e-5);
    let of_x = ConvolutionInputGrad { window, groups: 2, extents: [7, 8], channels_last: false };
    to.add(Op::ConvolutionInputGrad(of_x), &[k, y.clone()], 5e-5);
    let of_k = ConvolutionKernelGrad { window, groups: 2, extents: [3, 3], channels_last: false };
    to.add(Op::ConvolutionKernelGrad(of_k), &[x, y], 1e-4);
}

fn layers(to: &mut Examples<'_>) {
    for interleaved in [true, false] {
        let op = Rotary { base: Scalar(1e4), interleaved, inverse: false, zigzag: None };
        to.add(Op::Rotary(op), &[to.ty(&[2, 9, 3, 8])], 4e-6);
    }
    recurrences(to);
    let window = Window { strides: [2, 1], pads: [1; 4], dilations: [1; 2] };
    let (kernel, extents) = ([3, 2], [7, 8]);
    for (channels_last, x) in [(false, [2, 3, 7, 8]), (true, [2, 7, 8, 3])] {
        let x = to.ty(&x);
        let op = Op::MaxPool(MaxPool { kernel, window, channels_last });
        let y = op.infer_types(&[&x]).expect("it fits").swap_remove(0);
        to.add(op, std::slice::from_ref(&x), 0.0);
        let op = Op::MaxPoolGrad(MaxPoolGrad { kernel, window, channels_last });
        to.add(op, &[x.clone(), y.clone()], 2e-6);
        let op = AveragePool { kernel, window, count_border: false, channels_last };
        to.add(Op::AveragePool(op), &[x], 4e-6);
        let op = AveragePoolGrad { kernel, window, count_border: true, extents, channels_last };
        to.add(Op::AveragePoolGrad(op), &[y], 4e-6);
    }
    let (filter, coordinates) = (Filter::Linear, Coordinates::HalfPixel);
    let sampling =
        Sampling { filter, coordinates, scale: Scalar(1.5), smooth: false, inside: false };
    for (axis, from, extent) in [(1, [2, 4, 3], 6), (2, [2, 3, 4], 6)] {
        let x = to.ty(&from);
        to.add(Op::Resize(Resize { axis, extent, sampling }), std::slice::from_ref(&x), 4e-6);
        to.add(Op::ResizeGrad(ResizeGrad { axis, extent: 3, sampling }), &[x], 4e-6);
    }
    let (x, chosen) = (to.ty(&[2, 5, 3]), TensorType::new(DType::I64, [2, 5, 2]));
    let (y, weights) = (to.ty(&[4, 2, 3, 3]), to.ty(&[2, 5, 2]));
    let types = [x.clone(), chosen.clone(), weights.clone()];
    let op = Op::Dispatch(Dispatch { experts: 4, capacity: 3, blocks: None });
    to.filled(op.clone(), &types[..2], 0.0, indices(1, 4));
    to.filled(op, &types, 1e-6, indices(1, 4));
    let types = [y.clone(), chosen.clone(), weights];
    to.filled(Op::Combine(Combine::default()), &types, 4e-6, indices(1, 4));
    let op = Op::CombineWeightsGrad(CombineWeightsGrad::default());
    to.filled(op, &[y, chosen.clone(), x], 1e-5, indices(1, 4));
    let (places, matrices) = (to.ty(&[2, 2, 9, 3]), to.ty(&[4, 3, 5]));
    let op = Op::GroupedMatMul(GroupedMatMul { transpose_b: false });
    to.filled(op, &[places.clone(), matrices, chosen.clone()], 1e-5, indices(2, 4));
    let op = Op::GroupedMatMulGrad(GroupedMatMulGrad { experts: 4 });
    let other = to.ty(&[2, 2, 9, 5]);
    to.filled(op, &[places, other, chosen], 1e-5, indices(2, 4));
}

fn recurrences(to: &mut Examples<'_>) {
    let [gates, states, state] = [&[3, 2, 20][..], &[3, 2, 5], &[3, 5]].map(|shape| to.ty(shape));
    let (weight, bias, reverse) = (to.ty(&[20, 5]), to.ty(&[20]), false);
    let types = [&gates, &weight, &bias, &state, &state].map(TensorType::clone);
    to.add(Op::Recurrence(Recurrence { cell: Cell::Lstm, reverse }), &types, 2e-5);
    let types = [&weight, &gates, &state, &states, &states].map(TensorType::clone);
    to.add(Op::RecurrenceGrad(RecurrenceGrad { cell: Cell::Lstm, reverse }), &types, 5e-5);
}

fn updates(to: &mut Examples<'_>) {
    let shape = to.random.shape(2);
    let (half, float) = (to.ty(&shape), f32s(&shape));
    for gradient in [&half, &float] {
        for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
            let (momentum, weight_decay) = (Scalar(momentum), Scalar(0.01));
            let op = SgdUpdate { lr: 0.1.into(), momentum, nesterov, weight_decay, clip: None };
            let types = [half.clone(), gradient.clone(), float.clone()];
            let count = if momentum.is_zero() { 2 } else { 3 };
            to.add(Op::SgdUpdate(op), &types[..count], 1e-6);
        }
        let op = AdamUpdate {
            lr: 0.01.into(),
            beta1: Scalar(0.9),
            beta2: Scalar(0.999),
            epsilon: Scalar(1e-8),
            weight_decay: Scalar(0.01),
            decoupled: true,
            clip: None,
        };
        let types = [half.clone(), gradient.clone(), float.clone(), float.clone()];
        to.filled(Op::AdamUpdate(op), &types, 4e-6, |random, i, dtype| {
            let x = ordinary(random, i, dtype);
            if i == 3 { x * x } else { x }
        });
        for decay in [0.9, 0.0] {
            let op = Op::Blend(Blend::with_decay(decay, 0.1));
            to.add(op.clone(), &[half.clone(), gradient.clone()], 1e-6);
            to.add(op, &[float.clone(), half.clone()], 1e-6);
        }
    }
    to.filled(Op::NonFinite(NonFinite {}), &[half], 0.0, |random, i, dtype| {
        if random.below(3) == 0 { f64::INFINITY } else { ordinary(random, i, dtype) }
    });
    // Its numbers are f32 whatever the gradients are.
    let scaling =
        LossScale { growth: Scalar(2.0), backoff: Scalar(0.5), interval: 2, floor: Scalar(1.0) };
    let counts = |random: &mut Random, _: usize, _: DType| random.below(3) as f64 + 1.0;
    to.filled(Op::LossScale(scaling), &vec![f32s(&[]); 4], 0.0, counts);
    to.filled(Op::SkipStep(SkipStep {}), &vec![f32s(&[]); 2], 0.0, counts);
}

/// Ops of training that stand after the others, so that these are tried on the numbers on which they were before.
fn practice(to: &mut Examples<'_>) {
    let (half, float) = (to.ty(&[5, 7]), f32s(&[5, 7]));
    for gradient in [&half, &float] {
        let types = [half.clone(), gradient.clone(), float.clone(), float.clone()];
        let direction = LambDirection {
            beta1: Scalar(0.9),
            beta2: Scalar(0.999),
            epsilon: Scalar(1e-6),
            ..LambDirection::default()
        };
        to.filled(Op::LambDirection(direction), &types, 4e-6, |random, i, dtype| {
            let x = ordinary(random, i, dtype);
            if i == 3 { x * x } else { x }
        });
        let rmsprop = RmspropUpdate {
            lr: 0.1.into(),
            alpha: Scalar(0.9),
            epsilon: Scalar(1e-8),
            ..RmspropUpdate::default()
        };
        to.filled(Op::RmspropUpdate(rmsprop), &types[..3], 4e-6, |random, i, dtype| {
            let x = ordinary(random, i, dtype);
            if i == 2 { x * x } else { x }
        });
    }
    let types = [half.clone(), float, f32s(&[]), f32s(&[])];
    to.filled(Op::LambUpdate(LambUpdate { lr: 0.1.into() }), &types, 2e-6, |random, i, dtype| {
        if i > 1 { 4.0 } else { ordinary(random, i, dtype) }
    });
    to.add(Op::SquareSum(SquareSum {}), std::slice::from_ref(&half), 1e-6);
    to.filled(
        Op::ClipFactor(ClipFactor { max: Scalar(1.0) }),
        &[f32s(&[])],
        1e-6,
        |random, _, _| random.below(9) as f64,
    );
    let labels = TensorType::new(DType::I64, [5]);
    let types = [to.ty(&[5, 7]), labels, to.ty(&[5])];
    to.filled(Op::LabelRank(LabelRank::default()), &types, 0.0, indices(1, 7));
}

fn examples(random: &mut Random, half: DType) -> Vec<Example> {
    let mut to = Examples { random, half, all: Vec::new() };
    for add in [
        sources,
        elementwise,
        reductions,
        movements,
        rows,
        places,
        products,
        layers,
        updates,
        practice,
    ] {
        add(&mut to);
    }
    to.all
}

fn check(half: DType) {
    let mut covered = BTreeSet::new();
    for seed in 0..12 {
        let random = &mut Random::new(seed);
        for mut example in examples(random, half) {
            covered.insert(number(&example.op));
            let case = Case::random(example.op, &example.types, random, &mut *example.fill);
            case.check_rounded(example.tolerance);
        }
    }
    // What the user feeds is computed by nobody, and batch normalization by its parts.
    let computed = (0..OPS).filter(|number| ![0, 42, 70].contains(number));
    assert_eq!(covered, computed.collect(), "every op has an example");
}

#[test]
fn every_op_of_bf16() {
    check(DType::BF16);
}

#[test]
fn every_op_of_f16() {
    check(DType::F16);
}
