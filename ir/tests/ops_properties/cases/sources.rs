//! Cases of sources.

use graphc_ir::op::Op;
use graphc_ir::ops::{Constant, Distribution, Full, Init, Input, Iota, Random, Variable};
use graphc_ir::types::{DType, TensorType};

use super::Case;

pub fn cases() -> Vec<Case> {
    let shapes: [(&[usize], bool); 5] =
        [(&[4, 6], true), (&[5, 3], false), (&[0, 3], false), (&[1, 2, 4], false), (&[7], false)];
    shapes.iter().flat_map(|&(shape, complete)| of_shape(shape, complete)).collect()
}

fn of_shape(shape: &[usize], complete: bool) -> Vec<Case> {
    let ty = TensorType::new(DType::F32, shape);
    let uniform = Distribution::Uniform { low: (-1.0).into(), high: 2.0.into() };
    let normal = Distribution::Normal { mean: 1.0.into(), std: 2.0.into() };
    let inits = [
        Init::Fill(0.5.into()),
        Init::Normal { mean: 1.0.into(), std: 2.0.into() },
        Init::Uniform { low: (-1.0).into(), high: 2.0.into() },
    ];
    let variable = |init| Variable { name: "w".into(), ty: ty.clone(), init, trainable: true };
    let random = |distribution| Random { ty: ty.clone(), distribution, key: 5 };
    let data = (0..ty.elements()).map(|i| (i as f64 * 0.5 - 3.25).into()).collect();
    let mut ops: Vec<Op> = inits.into_iter().map(|init| Op::Variable(variable(init))).collect();
    ops.extend([uniform, normal].map(|distribution| Op::Random(random(distribution))));
    ops.extend((0..shape.len()).map(|dim| Op::Iota(Iota { ty: ty.clone(), dim })));
    ops.push(Op::Full(Full { ty: ty.clone(), value: 0.5.into() }));
    ops.push(Op::Constant(Constant { ty: ty.clone(), data }));
    let mut cases: Vec<Case> =
        ops.into_iter().map(|op| Case { op, operands: Vec::new(), complete }).collect();
    cases.push(Case::new(Op::Variable(variable(Init::Weights)), Vec::new()));
    cases.push(Case::new(Op::Input(Input::new("x", ty)), Vec::new()));
    cases
}
