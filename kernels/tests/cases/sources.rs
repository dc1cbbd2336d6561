//! Sources, dropout, triangles, zigzags.

use std::num::NonZeroU32;

use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

use super::{Example, Examples, FLOATS, ty};

const MOVED: [DType; 6] = [DType::F32, DType::BF16, DType::F16, DType::I64, DType::I32, DType::U8];

pub fn examples() -> Vec<Example> {
    let to = &mut Examples::new(6);
    for dtype in MOVED {
        numbers(to, ty(dtype, &[5, 67]));
    }
    to.both(Op::Iota(Iota { ty: ty(DType::F32, &[5, 67]), dim: 0 }), &[], 0.0);
    numbers(to, ty(DType::F32, &[3, 0]));
    numbers(to, ty(DType::F32, &[1]));
    for dtype in FLOATS {
        random(to, ty(dtype, &[9, 5, 12]));
    }
    triangles(to);
    zigzags(to);
    std::mem::take(&mut to.all)
}

fn numbers(to: &mut Examples, of: TensorType) {
    let data = (0..of.elements()).map(|i| Scalar((i % 7) as f64 - 2.0)).collect();
    to.both(Op::Constant(Constant { ty: of.clone(), data }), &[], 0.0);
    for value in [3.0, 0.0].map(Scalar) {
        to.both(Op::Full(Full { ty: of.clone(), value }), &[], 0.0);
    }
    let same = vec![Scalar(4.0); of.elements()];
    to.whole(Op::Constant(Constant { ty: of.clone(), data: same }), &[], 0.0);
    let init = Init::Fill(Scalar(2.0));
    let trainable = true;
    to.whole(
        Op::Variable(Variable { name: "b".into(), ty: of.clone(), init, trainable }),
        &[],
        0.0,
    );
    let dim = of.shape.len() - 1;
    to.both(Op::Iota(Iota { ty: of.clone(), dim }), &[], 0.0);
}

pub fn random(to: &mut Examples, of: TensorType) {
    let normal = Distribution::Normal { mean: Scalar(1.0), std: Scalar(0.5) };
    let uniform = Distribution::Uniform { low: Scalar(-1.0), high: Scalar(0.3) };
    for distribution in [normal, uniform] {
        let op = Random { ty: of.clone(), distribution, key: 0xF00D_0000_0000_0003 };
        to.both(Op::Random(op), &[], 0.0);
    }
    let init = Init::Normal { mean: Scalar(0.0), std: Scalar(0.02) };
    let trainable = true;
    to.both(Op::Variable(Variable { name: "w".into(), ty: of.clone(), init, trainable }), &[], 0.0);
    for (training, probability) in [(true, 0.3), (false, 0.3), (true, 0.0)] {
        let probability = Scalar(probability);
        let op = Op::Dropout(DropoutOp { probability, key: 11, training });
        to.both(op, std::slice::from_ref(&of), 1e-7);
    }
}

fn zigzags(to: &mut Examples) {
    for (dim, pairs, inverse) in [(1, 2, false), (0, 3, true), (2, 1, false)] {
        let pairs = NonZeroU32::new(pairs).expect("at least 1");
        let op = Op::Zigzag(Zigzag { dim, pairs, inverse });
        to.both(op.clone(), &[ty(DType::F32, &[6, 8, 10])], 0.0);
        to.both(op, &[ty(DType::I64, &[6, 8, 10])], 0.0);
    }
    let pairs = NonZeroU32::new(70).expect("at least 1");
    to.both(Op::Zigzag(Zigzag { dim: 0, pairs, inverse: true }), &[ty(DType::U8, &[280, 3])], 0.0);
}

fn triangles(to: &mut Examples) {
    for (lower, diagonal) in [(true, 1), (false, -2), (true, i64::MIN), (false, i64::MAX)] {
        let op = Op::Triangle(Triangle { lower, diagonal });
        to.both(op, &[ty(DType::F32, &[2, 7, 19])], 0.0);
    }
    for dtype in [DType::BF16, DType::I64, DType::U8] {
        let op = Op::Triangle(Triangle { lower: true, diagonal: -3 });
        to.both(op, &[ty(dtype, &[7, 19])], 0.0);
    }
}
