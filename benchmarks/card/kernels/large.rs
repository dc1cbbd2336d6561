//! Ops at the sizes of GPT-2, ResNet-50 and LLaMA: tiles are full, sums long, indices wide.

use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::types::{DType, TensorType};

use crate::cases::images::{Setting, convolutions, setting};
use crate::cases::{
    self, Example, Examples, FLOATS, attention, f32s, indices, losses, places, recurrences, rows,
    sources, ty, updates,
};
use crate::common::ordinary;
use crate::groups::Group;

/// Groups of one op each, those first that take the processor longest.
pub fn groups() -> Vec<Group> {
    let mut groups = Vec::new();
    attentions(&mut groups);
    images(&mut groups);
    for dtype in FLOATS {
        of_tokens(&mut groups, dtype);
        of_tables(&mut groups, dtype);
        of_layers(&mut groups, dtype);
    }
    of_updates(&mut groups);
    groups
}

/// A group of what `fill` collects.
fn group(to: &mut Vec<Group>, name: String, fill: impl Fn(&mut Examples) + 'static) {
    to.push(Group::of_ops(name, true, move || {
        let mut examples = Examples::new(21);
        fill(&mut examples);
        std::mem::take(&mut examples.all) as Vec<Example>
    }));
}

fn attentions(to: &mut Vec<Group>) {
    for (dtype, causal, extents) in [
        (DType::BF16, true, [1, 1024, 1024, 12, 1, 64]),
        (DType::F32, true, [1, 1024, 1024, 12, 1, 64]),
        (DType::F16, true, [1, 1024, 1024, 12, 1, 64]),
        (DType::BF16, true, [1, 2048, 2048, 2, 4, 64]),
        (DType::BF16, true, [1, 1024, 1024, 2, 4, 128]),
        (DType::F32, false, [1, 512, 777, 2, 1, 128]),
    ] {
        let name = format!("real attention of {dtype} {extents:?}");
        group(to, name, move |to| attention::attentions(to, dtype, causal, extents));
    }
}

/// The kinds of ResNet-50's convolutions, 8 images each, and one of each layout and of many groups.
fn images(to: &mut Vec<Group>) {
    let settings: [fn() -> Setting; 7] = [
        || setting([8, 224, 224, 3], 64, 7, 2),
        || setting([8, 56, 56, 64], 64, 3, 1),
        || setting([8, 56, 56, 64], 256, 1, 1),
        || setting([8, 14, 14, 256], 256, 3, 1),
        || setting([8, 14, 14, 1024], 2048, 1, 2),
        || Setting { channels_last: false, ..setting([8, 28, 28, 128], 128, 3, 2) },
        || Setting { groups: 144, ..setting([8, 56, 56, 144], 144, 3, 1) },
    ];
    for dtype in [DType::BF16, DType::F32] {
        for setting in settings {
            let Setting { image, outputs, kernel, .. } = setting();
            let name = format!("real convolutions of {dtype} {image:?}, {outputs} of {kernel:?}");
            group(to, name, move |to| convolutions(to, dtype, &setting()));
        }
    }
    for dtype in FLOATS {
        group(to, format!("real pools of {dtype}"), move |to| pools(to, dtype));
        group(to, format!("real resizes of {dtype}"), move |to| {
            cases::images::resized(to, dtype, &[8, 28, 28, 256], (1, 56), linear());
        });
    }
}

/// Returns the sampling by which a U-Net doubles its images.
fn linear() -> Sampling {
    let (filter, coordinates) = (Filter::Linear, Coordinates::HalfPixel);
    let scale = graphc_ir::scalar::Scalar(2.0);
    Sampling { filter, coordinates, scale, smooth: false, inside: false }
}

fn pools(to: &mut Examples, dtype: DType) {
    let window = Window { strides: [2; 2], pads: [1; 4], dilations: [1; 2] };
    let x = ty(dtype, &[8, 112, 112, 64]);
    let (kernel, channels_last) = ([3; 2], true);
    let op = Op::MaxPool(MaxPool { kernel, window, channels_last });
    let y = op.infer_types(&[&x]).expect("it fits").swap_remove(0);
    to.whole(op, std::slice::from_ref(&x), 0.0);
    let op = Op::MaxPoolGrad(MaxPoolGrad { kernel, window, channels_last });
    to.whole(op, &[x.clone(), y.clone()], 1e-6);
    let count_border = true;
    let op = AveragePool { kernel, window, count_border, channels_last };
    to.whole(Op::AveragePool(op), &[x], 2e-6);
    let extents = [112; 2];
    let op = AveragePoolGrad { kernel, window, count_border, extents, channels_last };
    to.whole(Op::AveragePoolGrad(op), &[y], 2e-6);
}

/// Rows of tokens: losses over a vocabulary, norms, softmax.
fn of_tokens(to: &mut Vec<Group>, dtype: DType) {
    group(to, format!("real cross entropy of {dtype} [384, 50257]"), move |to| {
        losses::losses(to, dtype, 384, 50257);
    });
    group(to, format!("real cross entropy with padding of {dtype} [384, 50304]"), move |to| {
        losses::padded(to, dtype, [384, 50304], 50257);
    });
    group(to, format!("real ranks of labels of {dtype} [384, 50304]"), move |to| {
        losses::ranks(to, dtype, [384, 50257], None);
        losses::ranks(to, dtype, [384, 50304], Some(50257));
    });
    group(to, format!("real norms of {dtype} [8192, 768]"), move |to| {
        to.placed = false;
        rows::normalizations(to, dtype, &[8, 1024, 768]);
    });
    group(to, format!("real softmaxes of {dtype} [1024, 2048]"), move |to| {
        to.placed = false;
        rows::softmaxes(to, dtype, &[1024, 2048], 1);
    });
    group(to, format!("real dropout and random numbers of {dtype}"), move |to| {
        sources::random(to, ty(dtype, &[8, 512, 768]));
    });
}

/// Rows of a vocabulary's table, and the greatest of each.
fn of_tables(to: &mut Vec<Group>, dtype: DType) {
    group(to, format!("real embedding of {dtype} [50257, 768]"), move |to| {
        let (ids, rows) = (ty(DType::I64, &[8, 1024]), 50257);
        let types = [ty(dtype, &[rows, 768]), ids.clone()];
        to.both_filled(Op::Embedding(EmbeddingOp {}), &types, 0.0, &mut indices(1, rows, None));
        let types = [ids, ty(dtype, &[8, 1024, 768])];
        let op = Op::EmbeddingGrad(EmbeddingGrad { rows });
        to.both_filled(op, &types, 2e-5, &mut indices(0, rows, None));
    });
    group(to, format!("real gathers and scatters of {dtype}"), move |to| {
        places::middle(to, dtype, [8, 1024], 300, &[256]);
    });
    group(to, format!("real places of the greatest of {dtype}"), move |to| {
        let logits = [ty(dtype, &[256, 50257])];
        to.whole(Op::ArgMax(ArgMax { axis: 1, keep_dims: false }), &logits, 0.0);
        to.whole(Op::TopK(TopK { count: 50, greatest: true }), &logits, 0.0);
    });
}

/// Adds the ops that layers apply to activations.
fn of_layers(to: &mut Vec<Group>, dtype: DType) {
    group(to, format!("real products of {dtype}"), move |to| products(to, dtype));
    group(to, format!("real sums of {dtype}"), move |to| {
        for (shape, axes) in
            [(&[8192, 768][..], &[0][..]), (&[4096, 3072], &[1]), (&[64, 28, 28, 256], &[0, 1, 2])]
        {
            let of = |function| Reduce { function, axes: axes.to_vec(), keep_dims: false };
            let x = [ty(dtype, shape)];
            to.whole(Op::Reduce(of(ReduceFunction::Sum)), &x, 5e-5);
            to.whole(Op::Reduce(of(ReduceFunction::Max)), &x, 0.0);
        }
        to.both(Op::SquareSum(SquareSum {}), &[ty(dtype, &[9_000_001])], 1e-5);
    });
    group(to, format!("real movements of {dtype}"), move |to| movements(to, dtype));
    group(to, format!("real recurrences of {dtype}"), move |to| {
        for cell in [Cell::Lstm, Cell::Gru] {
            recurrences::cells(to, dtype, cell, false, [32, 24, 256]);
        }
    });
}

fn products(to: &mut Examples, dtype: DType) {
    let product = |to: &mut Examples, a: &[usize], b: &[usize], transpose_a, transpose_b| {
        let op = Op::MatMul(MatMul { transpose_a, transpose_b });
        to.whole(op, &[ty(dtype, a), ty(dtype, b)], 5e-5);
    };
    // A layer and both of its gradients, the head, batches.
    product(to, &[2048, 768], &[768, 3072], false, false);
    product(to, &[2048, 3072], &[768, 3072], false, true);
    product(to, &[2048, 768], &[2048, 3072], true, false);
    product(to, &[512, 768], &[50257, 768], false, true);
    product(to, &[24, 512, 64], &[24, 512, 64], false, true);
}

fn movements(to: &mut Examples, dtype: DType) {
    let heads = [ty(dtype, &[4, 1024, 12, 64])];
    let permutation = vec![0, 2, 1, 3];
    to.both(Op::Transpose(Transpose { permutation }), &heads, 0.0);
    to.both(Op::Transpose(Transpose { permutation: vec![3, 0, 1, 2] }), &heads, 0.0);
    let thirds = vec![ty(dtype, &[4, 1024, 768]); 3];
    to.both(Op::Concat(Concat { axis: 2 }), &thirds, 0.0);
    let whole = ty(dtype, &[4, 1024, 2304]);
    to.both(Op::Split(Split { axis: 2, sizes: vec![768; 3] }), &[whole], 0.0);
    let op = Slice { starts: vec![0, 3, 64], ends: vec![4, 1024, 704], steps: vec![1, 2, 1] };
    to.whole(Op::Slice(op), std::slice::from_ref(&thirds[0]), 0.0);
    let [low, high, interior] = [vec![0, 1, 8], vec![0, 2, 8], vec![0, 1, 0]];
    let value = graphc_ir::scalar::Scalar(-2.5);
    to.whole(Op::Pad(Pad { low, high, interior, value }), &thirds[..1], 0.0);
    let op = Op::Triangle(Triangle { lower: true, diagonal: -3 });
    to.whole(op, &[ty(dtype, &[12, 512, 513])], 0.0);
    let pairs = std::num::NonZeroU32::new(8).expect("at least 1");
    to.whole(Op::Zigzag(Zigzag { dim: 1, pairs, inverse: false }), &thirds[..1], 0.0);
    let places = ty(DType::Bool, &[4, 1024, 1]);
    to.whole(Op::Where(Where {}), &[places, thirds[0].clone(), ty(dtype, &[768])], 0.0);
    let op = Rotary {
        base: graphc_ir::scalar::Scalar(5e5),
        interleaved: false,
        inverse: false,
        zigzag: None,
    };
    // Angles reach 2047, of which f32 has 1e-4.
    to.both(Op::Rotary(op), &[ty(dtype, &[1, 2048, 16, 64])], 5e-4);
    let op = CumulativeSum { axis: 1, exclusive: false, reverse: false };
    to.both(Op::CumulativeSum(op), &[ty(dtype, &[64, 20_000])], 1e-5);
    for (function, place) in [(BinaryFunction::Add, 8192), (BinaryFunction::Mul, 1)] {
        let types: [TensorType; 2] = [ty(dtype, &[8192, 768]), ty(dtype, &[place, 768])];
        to.filled(&[1], Op::Binary(Binary { function }), &types, 1e-6, &mut ordinary);
    }
}

fn of_updates(to: &mut Vec<Group>) {
    for pair in [[DType::F32, DType::F32], [DType::BF16, DType::BF16], [DType::BF16, DType::F32]] {
        let [weight, gradient] = pair;
        group(to, format!("real updates of {weight} by {gradient}"), move |to| {
            to.placed = false;
            updates::plain(to, pair, &[3072, 768]);
        });
    }
    group(to, "real updates in all forms".into(), |to| {
        to.placed = false;
        updates::optimizers(to, [DType::F32, DType::F32], &[1024, 769]);
        to.whole(Op::NonFinite(NonFinite {}), &[f32s(&[9_000_001])], 0.0);
    });
}
