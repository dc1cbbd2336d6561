//! Kernels of CUDA devices compute what their ops' oracles compute, on shards, executed as PTX by a double of a card.

use crate::cases;
use crate::cases::{f32s, ty};
use crate::common::{Case, Memory, Random, shard};
use crate::joint::{joint, resized};
use crate::on_card::{Fault, bench, check, prepare};
use graphc_ir::op::{EvalContext, Op, Region};
use graphc_ir::ops::*;
use graphc_ir::types::DType;
use graphc_kernels::cuda::{join_alike, joinable_tensors};

#[test]
fn elementwise_ops() {
    check(&cases::elementwise::examples());
}

#[test]
fn sums_and_products() {
    check(&cases::sums::examples());
}

/// Kernels of graphc's own multiply as many matrices with large tiles as a large card has multiprocessors.
#[test]
fn large_products_by_own_kernels() {
    check(&cases::sums::tiled());
}

#[test]
fn tokens_go_to_experts_and_back() {
    check(&cases::experts::examples());
}

#[test]
fn experts_share_blocks_of_places() {
    check(&cases::experts::shared_blocks());
}

#[test]
fn losses_of_labels() {
    check(&cases::losses::examples());
}

#[test]
fn elements_are_moved() {
    check(&cases::movements::examples());
}

#[test]
fn rows_are_taken_by_places_and_put_to_places() {
    check(&cases::places::examples());
}

#[test]
fn rows_are_read_as_a_whole() {
    check(&cases::rows::examples());
}

#[test]
fn sources_are_functions_of_places() {
    check(&cases::sources::examples());
}

#[test]
fn updates_and_the_numbers_of_steps() {
    check(&cases::updates::examples());
}

#[test]
fn updates_of_one_launch_have_the_bits_of_their_own() {
    let joined = joined(cases::updates::examples(), |case| {
        let of = &case.operands[0].0;
        (of.dtype == DType::F32 || matches!(case.op, Op::AdamUpdate(_)))
            && (1..=300).contains(&of.rect.elements())
    });
    assert!(joined.is_none_or(|joined| joined > 10), "{joined:?} updates");
}

#[test]
fn casts_of_one_launch_have_the_bits_of_their_own() {
    let joined = joined(cases::elementwise::examples(), |case| {
        let is_float = |of: &Region| of.dtype.is_float();
        matches!(case.op, Op::Cast(_))
            && is_float(&case.operands[0].0)
            && is_float(&case.results[0])
    });
    assert!(joined.is_none_or(|joined| joined == 6), "{joined:?} casts");
}

/// Holds several applications of an op as one launch against each by itself, of those examples that are tried: how many these are.
fn joined(examples: Vec<cases::Example>, is_tried: impl Fn(&Case) -> bool) -> Option<usize> {
    let mut bench = bench()?;
    let cx = EvalContext { seed: 5, step: 3 };
    let mut tried = 0;
    for cases::Example { case, .. } in examples {
        let Some(own) = joinable_tensors(&case.op).filter(|_| is_tried(&case)) else { continue };
        tried += 1;
        let members = [9000, 1, 0, 291, 8192].map(|elements| resized(&case, own, elements));
        let mut run = |member: &Case| bench.run(member, &[], &cx).expect("no fault");
        let apart: Vec<Memory> = members.iter().flat_map(&mut run).collect();
        let shards = members.each_ref().map(|member| {
            member.operands.iter().map(|operand| shard(&operand.0)).collect::<Vec<_>>()
        });
        let call = join_alike(&case.op, &shards).expect("they join");
        let (all, pairs) = joint(&members);
        for pairs in [&[][..], &pairs] {
            let together = bench.execute(&call, &all, pairs, &cx).expect("no fault");
            assert!(together == apart, "{:?}, of which {} in place", case.op, pairs.len());
        }
    }
    Some(tried)
}

/// Ops with an index that is out of range, the operand that has it, and what it is called.
fn beyond() -> Vec<(Case, &'static str)> {
    let labels = ty(DType::I64, &[5]);
    let ops = [
        (Op::Pick(Pick::default()), vec![f32s(&[5, 4]), labels.clone()], 1, "label"),
        (Op::PickGrad(PickGrad { classes: 4 }), vec![labels.clone(), f32s(&[5])], 0, "label"),
        (
            Op::CrossEntropy(CrossEntropy::default()),
            vec![f32s(&[5, 4]), labels.clone()],
            1,
            "label",
        ),
        (Op::Embedding(EmbeddingOp {}), vec![f32s(&[4, 3]), labels.clone()], 1, "row"),
        (Op::Embedding(EmbeddingOp {}), vec![f32s(&[4, 0]), labels.clone()], 1, "row"),
        (
            Op::EmbeddingGrad(EmbeddingGrad { rows: 4 }),
            vec![labels.clone(), f32s(&[5, 3])],
            0,
            "row",
        ),
        (
            Op::EmbeddingGrad(EmbeddingGrad { rows: 4 }),
            vec![ty(DType::I64, &[90]), f32s(&[90, 3])],
            0,
            "row",
        ),
        (Op::Gather(Gather {}), vec![f32s(&[4, 2]), labels.clone()], 1, "index"),
        (
            Op::Scatter(Scatter { function: ScatterFunction::Set }),
            vec![f32s(&[4, 2]), labels, f32s(&[5, 2])],
            1,
            "index",
        ),
        (
            Op::Dispatch(Dispatch { experts: 4, capacity: 2, blocks: None }),
            vec![f32s(&[1, 5, 2]), ty(DType::I64, &[1, 5, 1])],
            1,
            "expert",
        ),
        (
            Op::GroupedMatMul(GroupedMatMul::default()),
            vec![f32s(&[2, 1, 4, 2]), f32s(&[4, 2, 3]), ty(DType::I64, &[1, 5, 1])],
            2,
            "expert",
        ),
    ];
    let case = |(op, types, operand, what): (Op, Vec<_>, usize, _)| {
        let mut count = 0;
        let fill = &mut |_: &mut Random, i: usize, _: DType| {
            count += usize::from(i == operand);
            if i == operand && count == 4 { 9.0 } else { 1.0 }
        };
        (Case::on(&[1], op, &types, &mut Random::new(1), fill), what)
    };
    ops.into_iter().map(case).collect()
}

#[test]
fn an_index_out_of_range_is_told() {
    let Some(mut bench) = bench() else { return };
    for (case, what) in beyond() {
        let checked = prepare(&case).expect("a call").checked.expect("indices are checked");
        assert_eq!((checked.what, checked.range), (what, 4), "{:?}", case.op);
        let fault = bench.run(&case, &[], &EvalContext::default()).expect_err("9 of 0..4");
        assert_eq!(fault, Fault { call: 7, kind: 1, index: 9, position: 3 }, "{:?}", case.op);
        assert_eq!(case.operands[checked.operand].0.dtype, DType::I64);
    }
}

#[test]
fn a_division_by_zero_is_told() {
    let Some(mut bench) = bench() else { return };
    let op = Op::Binary(Binary { function: BinaryFunction::Div });
    let types = [ty(DType::I64, &[70]), ty(DType::I64, &[70])];
    for divisor in [0.0, 2.0] {
        let fill = &mut |_: &mut Random, i: usize, _: DType| if i == 0 { 9.0 } else { divisor };
        let case = Case::on(&[1], op.clone(), &types, &mut Random::new(1), fill);
        let found = bench.run(&case, &[], &EvalContext::default());
        assert_eq!(found.err().map(|fault| fault.kind), (divisor == 0.0).then_some(2));
    }
}

#[test]
fn sums_over_places_have_the_same_bits_in_every_order_of_threads() {
    let types = [ty(DType::I64, &[300]), f32s(&[300, 4])];
    let fill = &mut |random: &mut Random, i: usize, _: DType| match i {
        0 => random.below(3) as f64,
        _ => f64::from(random.normal() as f32),
    };
    let op = Op::EmbeddingGrad(EmbeddingGrad { rows: 3 });
    let case = Case::on(&[1], op, &types, &mut Random::new(1), fill);
    let Some(mut bench) = bench() else { return };
    let cx = EvalContext::default();
    // Each launch goes through blocks and warps in another order.
    let runs = [(); 3].map(|()| bench.run(&case, &[], &cx).expect("no fault"));
    assert!(runs[0] == runs[1] && runs[1] == runs[2]);
}
