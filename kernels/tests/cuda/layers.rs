//! Kernels of CUDA devices of attention, images and recurrent cells, chains that begin with a convolution or end in sums, and
//! rectangles, executed as PTX by a double of a card.

use crate::calls::{
    Executed, IDENTITIES, accumulations, binary, call_of, filled_case, filling, headed,
    on_processor, rectangle, step,
};
use crate::cases::Example;
use crate::common::{Case, Memory, Random};
use crate::on_card::{Bench, bench, check, prepare};
use crate::rectangles::{ODD, WIDE};
use graphc_ir::op::{EvalContext, InPlace, Op};
use graphc_ir::ops::*;
use graphc_ir::sbp::ReduceKind;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::cuda::{Call, Launch};
use graphc_plan::{FusedArg, FusedOp};

use FusedArg::{Operand as X, Step as S};

use crate::cases;

#[test]
fn queries_attend_to_keys() {
    check(&cases::attention::examples());
}

#[test]
fn images_are_convolved_pooled_and_resized() {
    check(&cases::images::examples());
}

#[test]
fn convolutions_are_products_of_matrices() {
    for Example { case, .. } in cases::images::products() {
        let call = prepare(&case).expect("a call");
        let is_product = |launch: &Launch| matches!(launch, Launch::Product(_));
        assert!(call.launches.iter().any(is_product), "{:?}: {:?}", case.op, call.launches);
    }
}

#[test]
fn cells_go_from_step_to_step() {
    check(&cases::recurrences::examples());
}

#[test]
fn sums_have_the_same_bits_in_every_order_of_threads() {
    let Some(mut bench) = bench() else { return };
    let cx = EvalContext::default();
    let sums = |example: &Example| {
        matches!(example.case.op, Op::AttentionGrad(_) | Op::ConvolutionKernelGrad(_))
    };
    let all = [cases::attention::examples(), cases::images::examples()].map(|examples| {
        let all = examples.into_iter().filter(sums).take(3);
        all.map(|example| example.case).collect::<Vec<Case>>()
    });
    for case in all.iter().flatten() {
        // Each launch goes through blocks and warps in another order.
        let runs = [(); 3].map(|()| bench.run(case, &[], &cx).expect("no fault"));
        assert!(runs[0] == runs[1] && runs[1] == runs[2], "{:?}", case.op);
    }
}

fn in_place(result: usize, operand: usize) -> InPlace {
    InPlace { result, operand, same_bytes: false }
}

fn executed(bench: &mut Bench, call: &Call, case: &Case, pairs: &[InPlace]) -> Vec<Vec<f64>> {
    let found = bench.execute(call, case, pairs, &EvalContext::default()).expect("no fault");
    found.iter().map(Memory::values).collect()
}

fn ty(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType::new(dtype, shape)
}

/// Executes a call, whose results must have exactly the right values.
fn check_executed(bench: &mut Bench, of: &Executed, what: &str) {
    let found = executed(bench, &of.call, &of.case, &of.placed);
    let bits = |values: &[Vec<f64>]| -> Vec<Vec<u64>> {
        values.iter().map(|values| values.iter().map(|x| x.to_bits()).collect()).collect()
    };
    assert!(bits(&found) == bits(&of.right), "{what}: {found:?}, not {:?}", of.right);
}

#[test]
fn rectangles_are_copied_and_joined() {
    let Some(mut bench) = bench() else { return };
    let kinds = [None, Some(ReduceKind::Sum), Some(ReduceKind::Max), Some(ReduceKind::Min)];
    for dtype in [DType::F32, DType::BF16, DType::I64, DType::U8, DType::Bool] {
        for ((parts, extent), kind) in [WIDE, ODD].into_iter().flat_map(|p| kinds.map(|k| (p, k))) {
            let of = rectangle(dtype, parts, extent, kind);
            check_executed(&mut bench, &of, &format!("{dtype} {parts:?} {kind:?}"));
        }
    }
}

#[test]
fn accumulators_are_overwritten_first_and_added_to_then() {
    let Some(mut bench) = bench() else { return };
    for dtype in [DType::F32, DType::F16, DType::I32] {
        for of in accumulations(&ty(dtype, &[3, 37])) {
            check_executed(&mut bench, &of, dtype.name());
        }
    }
}

#[test]
fn memory_is_filled_with_identities() {
    let Some(mut bench) = bench() else { return };
    for dtype in [DType::F32, DType::F16, DType::I64, DType::I32, DType::U8] {
        for value in IDENTITIES {
            let of = filling(dtype, 1003, value);
            check_executed(&mut bench, &of, &format!("{dtype} {value}"));
        }
    }
}

/// Compares the results of a chain.
fn check_chain(
    bench: &mut Bench,
    fused: &FusedOp,
    (case, pairs): (&Case, &[InPlace]),
    (expected, near): (&[Vec<f64>], f64),
) {
    let found = executed(bench, &call_of(fused, case), case, pairs);
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len());
        for (place, (a, b)) in found.iter().zip(expected).enumerate() {
            let same = a == b || (a - b).abs() <= near * (1.0 + b.abs());
            assert!(same, "{place}: {a} and {b} of {fused:?}");
        }
    }
}

#[test]
fn chains_begin_with_convolutions() {
    let Some(mut bench) = bench() else { return };
    for (dtype, is_kept, near) in
        [(DType::F32, false, 2e-5), (DType::F32, true, 2e-5), (DType::BF16, false, 2e-2)]
    {
        for extent in [3, 1] {
            let (fused, case) = headed(dtype, [2, 7, 6, 5], [12, 2, extent], is_kept);
            let expected = on_processor(&fused, &case, None);
            check_chain(&mut bench, &fused, (&case, &[]), (&expected, near));
        }
    }
}

/// y = (x - m) g, with the sums of y and of x y and the greatest x over the rows, or along them.
fn reducing(axes: &[usize], other: &[usize]) -> FusedOp {
    let reduce = |function, axes: &[usize]| {
        Op::Reduce(Reduce { function, axes: axes.to_vec(), keep_dims: true })
    };
    FusedOp {
        steps: vec![
            step(binary(BinaryFunction::Sub), &[X(0), X(1)]),
            step(binary(BinaryFunction::Mul), &[S(0), X(2)]),
            step(binary(BinaryFunction::Mul), &[S(1), X(0)]),
            step(reduce(ReduceFunction::Sum, axes), &[S(1)]),
            step(reduce(ReduceFunction::Mean, axes), &[S(2)]),
            step(reduce(ReduceFunction::Max, other), &[X(0)]),
        ],
        outputs: vec![1, 3, 4, 5],
    }
}

/// Computes the results of [`reducing`] step by step.
fn reduced(case: &Case, axes: &[usize], other: &[usize]) -> Vec<Vec<f64>> {
    let shape = &case.operands[0].0.global;
    let (rows, columns, dtype) = (shape[0], shape[1], case.operands[0].0.dtype);
    let round = |x: f64| Memory::of(dtype, &[x]).values()[0];
    let values: Vec<Vec<f64>> = case.operands.iter().map(|o| o.1.values()).collect();
    let spread = |operand: usize, at: usize| match case.operands[operand].0.global[0] {
        1 => values[operand][at % columns],
        _ => values[operand][at / columns],
    };
    let all = 0..rows * columns;
    let differences = all.clone().map(|at| round(values[0][at] - spread(1, at)));
    let y: Vec<f64> = differences.zip(all).map(|(d, at)| round(d * spread(2, at))).collect();
    let products: Vec<f64> = y.iter().zip(&values[0]).map(|(y, x)| round(y * x)).collect();
    let fold = |of: &[f64], axes: &[usize], first: f64, join: fn(f64, f64) -> f64| {
        let by_rows = axes == [0];
        let mut found = vec![first; if by_rows { columns } else { rows }];
        for (at, &x) in of.iter().enumerate() {
            let place = if by_rows { at % columns } else { at / columns };
            found[place] = join(found[place], x);
        }
        found
    };
    let count = if axes == [0] { rows } else { columns } as f64;
    let sums = fold(&y, axes, 0.0, |a, b| a + b);
    let means = fold(&products, axes, 0.0, |a, b| a + b).iter().map(|sum| sum / count).collect();
    let greatest = fold(&values[0], other, f64::NEG_INFINITY, f64::max);
    vec![y, sums, means, greatest]
}

#[test]
fn chains_end_in_sums() {
    let Some(mut bench) = bench() else { return };
    for dtype in [DType::F32, DType::BF16] {
        for (rows, columns) in [(70, 24), (5, 1030), (33, 7)] {
            let (x, row) = (ty(dtype, &[rows, columns]), ty(dtype, &[1, columns]));
            let column = ty(dtype, &[rows, 1]);
            let near = if dtype == DType::F32 { 2e-5 } else { 5e-3 };
            // The sums lie where an operand did that is spread over all rows.
            let over = [in_place(0, 0), in_place(1, 1), in_place(2, 2)];
            for (axis, kept) in [(0, row.clone()), (1, column)] {
                let results = [x.clone(), kept.clone(), kept.clone(), row.clone()];
                let case =
                    filled_case(&[x.clone(), kept.clone(), kept], &results, &mut Random::new(5));
                let (fused, expected) = (reducing(&[axis], &[0]), reduced(&case, &[axis], &[0]));
                check_chain(&mut bench, &fused, (&case, &[]), (&expected, near));
                check_chain(&mut bench, &fused, (&case, &over), (&expected, near));
            }
        }
    }
}

#[test]
fn chains_of_nothing_give_identities() {
    let Some(mut bench) = bench() else { return };
    let (x, row) = (ty(DType::F32, &[0, 8]), ty(DType::F32, &[1, 8]));
    let results = [x.clone(), row.clone(), row.clone(), row.clone()];
    let case = filled_case(&[x, row.clone(), row], &results, &mut Random::new(5));
    let expected = [vec![], vec![0.0; 8], vec![f64::NAN; 8], vec![f64::NEG_INFINITY; 8]];
    let fused = reducing(&[0], &[0]);
    let found = executed(&mut bench, &call_of(&fused, &case), &case, &[]);
    assert_eq!(format!("{found:?}"), format!("{expected:?}"));
}
