//! The passes over memory that batch normalization takes between convolutions, each beside a plain copy of as many bytes.

use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::types::TensorType;
use graphc_kernels::{Prepared, prepare_fused};
use graphc_plan::{FusedArg, FusedOp, FusedStep};

use super::{Bench, binary, f32s, unary};

use BinaryFunction::{Add, Greater, Mul, Sub};
use FusedArg::{Operand as X, Step as S};

fn chain(steps: Vec<(Op, Vec<FusedArg>)>, outputs: &[usize]) -> FusedOp {
    let step = |(op, args)| FusedStep { op, args };
    FusedOp { steps: steps.into_iter().map(step).collect(), outputs: outputs.to_vec() }
}

fn over_images(function: ReduceFunction) -> Op {
    Op::Reduce(Reduce { function, axes: vec![0, 1, 2], keep_dims: false })
}

/// The passes, with the number of their operands that are images, the number of those that are of channels, and what they give:
/// images and sums.
fn passes() -> Vec<(&'static str, FusedOp, [usize; 4])> {
    let (sum, mean) = (over_images(ReduceFunction::Sum), over_images(ReduceFunction::Mean));
    let zero_below =
        || vec![(binary(Greater), vec![X(1), X(4)]), (Op::Where(Where {}), vec![S(0), X(0), X(4)])];
    let sums = vec![
        (sum.clone(), vec![S(1)]),
        (binary(Sub), vec![X(2), X(3)]),
        (binary(Mul), vec![S(1), S(3)]),
        (sum.clone(), vec![S(4)]),
    ];
    let of_variance = vec![
        (binary(Sub), vec![X(0), X(1)]),
        (binary(Mul), vec![S(0), S(0)]),
        (mean.clone(), vec![S(1)]),
    ];
    let normal = vec![
        (binary(Sub), vec![X(0), X(1)]),
        (binary(Mul), vec![S(0), X(2)]),
        (binary(Add), vec![S(1), X(3)]),
        (unary(UnaryFunction::Relu), vec![S(2)]),
    ];
    let of_x = vec![
        (binary(Sub), vec![X(0), X(2)]),
        (binary(Sub), vec![X(1), X(3)]),
        (binary(Mul), vec![S(1), X(4)]),
        (binary(Sub), vec![S(0), S(2)]),
        (binary(Mul), vec![S(3), X(5)]),
    ];
    vec![
        ("  mean", chain(vec![(mean, vec![X(0)])], &[0]), [1, 0, 0, 1]),
        ("  variance", chain(of_variance, &[2]), [1, 1, 0, 1]),
        ("  normalise, relu", chain(normal, &[3]), [1, 3, 1, 0]),
        (
            "  gradient of relu, sums",
            chain([zero_below(), sums].concat(), &[1, 2, 5]),
            [3, 2, 1, 2],
        ),
        ("  gradient of x", chain(of_x, &[4]), [2, 4, 1, 0]),
    ]
}

pub fn all(bench: &mut Bench) {
    for shape in [[64, 8, 8, 64], [64, 16, 16, 96], [64, 4, 4, 384], [64, 2, 2, 1280]] {
        println!("batch norm {shape:?}");
        for (name, op, [images, rows, made, sums]) in passes() {
            let (image, row) = (f32s(&shape), f32s(&shape[3..]));
            let of = |[images, rows]: [usize; 2]| -> Vec<TensorType> {
                [vec![image.clone(); images], vec![row.clone(); rows]].concat()
            };
            let mut operands = of([images, rows]);
            if name.contains("relu, sums") {
                // The 0 that the result is compared with.
                operands[4] = f32s(&[]);
            }
            let results = of([made, sums]);
            let call: Prepared =
                prepare_fused(&op, &operands, &results, DeviceKind::Cpu).expect("it fits");
            bench.time(name, &operands, &results, 0.0, |x, y, cx| call.launch(x, y, cx));
            copy(bench, &shape, images + made);
        }
    }
}

/// Copies half of as many images to the other half.
fn copy(bench: &mut Bench, shape: &[usize], images: usize) {
    let half = f32s(&[shape.iter().product::<usize>() * images / 2]);
    let types = [half];
    bench.time("    a copy of as many bytes", &types, &types, 0.0, |x, y, _| {
        y[0].as_mut_slice::<f32>()?.copy_from_slice(x[0].as_slice()?);
        Ok(())
    });
}
