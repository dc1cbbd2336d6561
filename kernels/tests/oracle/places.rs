//! Kernels that read at computed places: losses of labels, tables, what is taken, put and summed over, the best of rows.

use crate::common::{Case, Random, ordinary};
use crate::drawn::{f32s, repeat, ty};
use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::types::DType;

const MOVED: [DType; 4] = [DType::F32, DType::I64, DType::I32, DType::U8];

/// Indices for the operand `place`, with some ignored.
fn indices(
    place: usize,
    range: usize,
    ignored: bool,
) -> impl FnMut(&mut Random, usize, DType) -> f64 {
    move |random, operand, dtype| match operand == place {
        true if ignored && random.below(5) == 0 => IGNORED_LABEL as f64,
        true => random.below(range) as f64,
        false => ordinary(random, operand, dtype),
    }
}

#[test]
fn losses_and_their_gradients() {
    repeat(80, |random| {
        let rank = random.below(3);
        let outer = random.shape(rank);
        let classes = random.extent().max(1);
        let labels = ty(DType::I64, &outer);
        let x = f32s(&[outer.as_slice(), &[classes]].concat());
        let of = |place| indices(place, classes, true);
        let types = [x.clone(), labels.clone()];
        Case::random(Op::Pick(Pick::default()), &types, random, &mut of(1)).check(0.0);
        Case::random(Op::CrossEntropy(CrossEntropy::default()), &types, random, &mut of(1))
            .check(4e-6);
        let types = [labels.clone(), f32s(&outer)];
        Case::random(Op::PickGrad(PickGrad { classes }), &types, random, &mut of(0)).check(0.0);
        let types = [x, f32s(&outer), labels, f32s(&outer)];
        Case::random(Op::CrossEntropyGrad(CrossEntropyGrad::default()), &types, random, &mut of(2))
            .check(1e-5);
    });
}

#[test]
fn embeddings_and_their_gradients() {
    repeat(80, |random| {
        let rank = random.below(3);
        let outer = random.shape(rank);
        let (rows, width) = (random.extent().max(1), random.extent());
        let ids = ty(DType::I64, &outer);
        let g = f32s(&[outer.as_slice(), &[width]].concat());
        let types = [f32s(&[rows, width]), ids.clone()];
        Case::random(Op::Embedding(EmbeddingOp {}), &types, random, &mut indices(1, rows, false))
            .check(0.0);
        let op = Op::EmbeddingGrad(EmbeddingGrad { rows });
        Case::random(op, &[ids, g], random, &mut indices(0, rows, false)).check(2e-5);
    });
}

#[test]
fn places_are_taken_from_summed_over_and_put_to() {
    repeat(80, |random| {
        let rank = random.below(3);
        let batch = random.shape(rank);
        let rank = random.below(2);
        let inner = random.shape(rank);
        let (n, m) = (random.extent().max(1), random.extent());
        let whole = [&batch[..], &[n], &inner].concat();
        let part = [&batch[..], &[m], &inner].concat();
        let places = ty(DType::I64, &[&batch[..], &[m]].concat());
        let dtype = random.of(&MOVED);
        let types = [ty(dtype, &whole), places.clone()];
        Case::random(Op::Gather(Gather {}), &types, random, &mut indices(1, n, false)).check(0.0);
        let summed = random.of(&[DType::F32, DType::I64, DType::I32]);
        let types = [places.clone(), ty(summed, &part)];
        let op = Op::ScatterSum(ScatterSum { places: n });
        Case::random(op, &types, random, &mut indices(0, n, false)).check(2e-5);
        let set = Scatter { function: ScatterFunction::Set };
        let types = [ty(dtype, &whole), places.clone(), ty(dtype, &part)];
        Case::random(Op::Scatter(set), &types, random, &mut indices(1, n, false)).check(0.0);
        let dtype = random.of(&[DType::F32, DType::I64, DType::I32, DType::U8]);
        let types = [ty(dtype, &whole), places, ty(dtype, &part)];
        for function in [ScatterFunction::Mul, ScatterFunction::Max, ScatterFunction::Min] {
            let op = Op::Scatter(Scatter { function });
            Case::random(op, &types, random, &mut indices(1, n, false)).check(2e-5);
        }
    });
}

#[test]
fn the_best_of_rows_and_running_sums() {
    repeat(80, |random| {
        let rank = 1 + random.below(3);
        let shape = random.shape(rank);
        let dtype = random.of(&[DType::F32, DType::I64, DType::I32]);
        let x = std::slice::from_ref(&ty(dtype, &shape)).to_vec();
        let (exclusive, reverse) = (random.below(2) == 0, random.below(2) == 0);
        let op = CumulativeSum { axis: random.below(rank), exclusive, reverse };
        Case::random(Op::CumulativeSum(op), &x, random, &mut ordinary).check(1e-6);
        let count = random.below(shape[rank - 1] + 1);
        let op = TopK { count, greatest: random.below(2) == 0 };
        // Small integers, of which many are equal.
        let mut few = |random: &mut Random, _: usize, _: DType| random.below(5) as f64;
        Case::random(Op::TopK(op), &x, random, &mut few).check(0.0);
        Case::random(Op::TopK(op), &x, random, &mut ordinary).check(0.0);
    });
}
