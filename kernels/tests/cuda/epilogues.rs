//! Matrix products and what goes with them, as one call: what a library adds, applies, keeps and sums at a product's end has the values
//! of the ops one after the other, and what it does not compute stays apart.

use crate::common::{Case, Random, other_ways, rounded_room};
use crate::on_card::{Bench, bench};
use crate::products::*;
use graphc_ir::op::{EvalContext, Op, Region};
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;
use graphc_kernels::cuda::{Call, Launch, product_end};
use graphc_plan::FusedArg::{Operand as X, Step as S};
use graphc_plan::{FusedArg, FusedStep};

/// The call, and how far its results are from those of the ops; `None` where there is no call.
fn error(chained: &Chained, bench: &mut Bench, dtype: DType) -> Option<(Call, f64)> {
    let Joined { call, case, right } = chained.join(dtype, evaluate)?;
    let apart = apart(bench, &call, &case, &right);
    Some((call, apart))
}

/// Returns the greatest error of the results, over all ways in which the call can be made; that of sums is a share of what is summed.
fn apart(bench: &mut Bench, call: &Call, case: &Case, right: &[Vec<f64>]) -> f64 {
    let ways = other_ways(call);
    assert_eq!(ways.len(), if product_end_of(call).is_empty() { 1 } else { 2 });
    let all = std::iter::once(call).chain(&ways);
    all.map(|call| one_apart(bench, call, case, right)).fold(0.0, f64::max)
}

/// Returns the launches behind the product of a call where the library makes it without its epilogue.
fn product_end_of(call: &Call) -> Vec<Launch> {
    let Launch::Product(product) = &call.launches[0] else { panic!("{:?}", call.launches) };
    product_end(product)
}

fn one_apart(bench: &mut Bench, call: &Call, case: &Case, right: &[Vec<f64>]) -> f64 {
    let found = bench.execute(call, case, &[], &EvalContext::default()).expect("no fault");
    let pairs = found.iter().zip(right).flat_map(|(found, right)| {
        let greatest = right.iter().fold(1.0f64, |most, x| most.max(x.abs()));
        assert_eq!(found.values().len(), right.len());
        let near = move |(a, b): (f64, &f64)| (a - b).abs() / greatest;
        found.values().into_iter().zip(right).map(near).collect::<Vec<_>>()
    });
    pairs.fold(0.0, f64::max)
}

/// Products of many rows have the values of the ops in f32, rounded a few times: in every way that they can be made.
#[test]
fn products_are_rounded_a_few_times() {
    let Some(mut bench) = bench() else { return };
    let of = Extents { rows: [2, 40], inner: 48, columns: 64 };
    let all = [with_summands(of), keeping(of), gradients(of), vec![with_other_sums(of)]];
    for chained in all.iter().flatten() {
        for (dtype, _) in TYPES {
            let joined = chained.join_unrounded(dtype, evaluate).expect("it is joined");
            for call in std::iter::once(&joined.call).chain(&other_ways(&joined.call)) {
                check_rounded(&mut bench, call, &joined, &of.all());
            }
        }
    }
}

fn check_rounded(
    bench: &mut Bench,
    call: &Call,
    Joined { case, right, .. }: &Joined,
    all: &[usize],
) {
    let found = bench.execute(call, case, &[], &EvalContext::default()).expect("no fault");
    for (result, (found, right)) in found.iter().zip(right).enumerate() {
        let Region { dtype, ref rect, .. } = case.results[result];
        let greatest = right.iter().fold(1.0f64, |most, x| most.max(x.abs()));
        let of_greatest = unrounded_room(dtype, rect.extent != all) * greatest;
        for (place, (found, &right)) in found.values().into_iter().zip(right).enumerate() {
            let room = ROUNDINGS * rounded_room(dtype, 0.0, found, right) + of_greatest;
            let what =
                || format!("result {result} of {:?}, {dtype}: {found} for {right}", case.results);
            assert!((found - right).abs() <= room, "{place}: {}", what());
        }
    }
}

const ROW: &[usize] = &[9];
const ALL: &[usize] = &[3, 5, 9];
/// A shape whose rows can be kept.
const WIDE: &[usize] = &[3, 5, 24];

/// Chains that are joined: the call has one launch and the values of the ops.
fn check_joined(cases: Vec<Chained>) {
    let Some(mut bench) = bench() else { return };
    for case in cases {
        for (dtype, near) in TYPES {
            let (call, error) = error(&case, &mut bench, dtype).expect("it is joined");
            assert_eq!(call.launches.len(), 1, "{:?}", case.steps);
            assert!(error <= near, "{:?} of {dtype}: {error}", case.steps);
        }
    }
}

fn check_apart(cases: Vec<Chained>) {
    let Some(mut bench) = bench() else { return };
    for case in cases {
        assert!(error(&case, &mut bench, DType::F32).is_none(), "{:?}", case.steps);
    }
}

#[test]
fn products_are_joined_with_what_a_library_adds_and_applies() {
    use UnaryFunction::Relu;
    check_joined(with_summands(small(9)));
    check_apart(vec![
        Chained::new(small(9), vec![add(X(0), X(1)), apply(UnaryFunction::Gelu, S(0))], &[ROW]),
        Chained::new(small(9), vec![add(X(0), X(1)), add(S(0), X(1))], &[ROW]),
        Chained::new(small(9), vec![add(X(0), X(0))], &[]),
        Chained::new(small(9), vec![add(X(0), X(1))], &[&[5, 1]]),
        Chained::new(small(9), vec![apply(Relu, X(0)), add(S(0), X(1))], &[ROW]),
        // A result over a bias, which the library reads to the end.
        Chained::new(small(9), vec![add(X(0), X(1))], &[ROW]).sharing(1),
    ]);
}

/// A product of halves is not rounded where only a cast to f32 reads it; with a bias it is.
#[test]
fn a_product_of_halves_may_be_given_in_f32() {
    let Some(mut bench) = bench() else { return };
    let cast = |x| FusedStep { op: Op::Cast(Cast { dtype: DType::F32 }), args: vec![x] };
    for (dtype, near) in &TYPES[1..] {
        let (call, error) = error(&widened(small(9)), &mut bench, *dtype).expect("it is joined");
        let Launch::Product(product) = &call.launches[0] else { panic!("{:?}", call.launches) };
        assert_eq!((call.launches.len(), product.operands.made), (1, DType::F32));
        assert!(error <= *near, "{dtype}: {error}");
        let biased = Chained::new(small(9), vec![add(X(0), X(1)), cast(S(0))], &[ROW]);
        assert!(biased.join(*dtype, evaluate).is_none());
    }
}

/// GELU written as sums and products is GELU, with constants that went through f32 as well; with other ones it is not.
#[test]
fn gelu_is_known_by_its_values() {
    let written = |c: f64, x: FusedArg| {
        use BinaryFunction::Mul;
        let [_, a] = constants();
        vec![
            add(X(0), X(1)),
            apply(UnaryFunction::PowScalar(Scalar(3.0)), x),
            apply(UnaryFunction::Scale(Scalar(a)), S(1)),
            add(S(2), x),
            apply(UnaryFunction::Scale(Scalar(c)), S(3)),
            apply(UnaryFunction::Tanh, S(4)),
            apply(UnaryFunction::Offset(Scalar(1.0)), S(5)),
            binary(Mul, S(6), x),
            apply(UnaryFunction::Scale(Scalar(0.5)), S(7)),
        ]
    };
    let [c, _] = constants();
    let joined = [c, f64::from(c as f32)].map(|c| Chained::new(small(9), written(c, S(0)), &[ROW]));
    check_joined(joined.into());
    check_apart(vec![Chained::new(small(9), written(0.8, S(0)), &[ROW])]);
}

#[test]
fn what_gelu_is_taken_of_is_kept() {
    let steps = || vec![add(X(1), X(0)), apply(UnaryFunction::GeluTanh, S(0))];
    let row: &[usize] = &[24];
    check_joined(keeping(small(24)));
    let relu = vec![add(X(1), X(0)), apply(UnaryFunction::Relu, S(0))];
    let erf = vec![add(X(1), X(0)), apply(UnaryFunction::Gelu, S(0))];
    check_apart(vec![
        // Rows of 9 elements.
        Chained::new(small(9), steps(), &[ROW]).giving(&[0, 1]),
        Chained::new(small(9), steps(), &[ROW]).keeping(S(0)),
        // The product itself where a bias goes on top, the result, or what others take.
        Chained::new(small(24), steps(), &[row]).keeping(X(0)),
        Chained::new(small(24), steps(), &[row]).keeping(S(1)),
        Chained::new(small(24), relu, &[row]).giving(&[0, 1]),
        Chained::new(small(24), erf, &[row]).giving(&[0, 1]),
    ]);
}

#[test]
fn gradients_of_gelu_are_taken_at_what_was_kept() {
    let plain = || gradient(X(1), X(0));
    check_joined(gradients(small(24)));
    let erf = vec![apply(UnaryFunction::Erf, X(1)), binary(BinaryFunction::Mul, S(0), X(0))];
    check_apart(vec![
        Chained::new(small(9), gradient(X(1), X(0)), &[ALL]),
        // At one row of numbers for all rows, or over what it is taken at.
        Chained::new(small(24), plain(), &[&[24]]),
        Chained::new(small(24), plain(), &[WIDE]).sharing(1),
        Chained::new(small(24), erf, &[WIDE]),
        Chained::new(small(24), plain()[..17].to_vec(), &[WIDE]),
    ]);
}

/// Sums of another type than the gradient's, or over other dims, are launches behind the product.
#[test]
fn other_sums_of_a_gradient_stand_behind_it() {
    let Some(mut bench) = bench() else { return };
    let case = with_other_sums(small(24));
    for (dtype, near) in TYPES {
        let (call, error) = error(&case, &mut bench, dtype).expect("it is joined");
        assert!(matches!(call.launches[0], Launch::Product(_)) && call.launches.len() > 1);
        let is_named = |launch: &Launch| match launch {
            Launch::Kernel(kernel) => kernel.entry.ends_with("_reduce_sum"),
            Launch::Product(_) | Launch::Clear { .. } | Launch::Copy { .. } => true,
        };
        assert!(call.launches.iter().all(is_named), "{:?}", call.launches);
        assert!(error <= near, "{dtype}: {error}");
    }
}

/// Sums over the extent that a product sums over, of either factor, whichever way it is stored.
#[test]
fn sums_of_a_factor_come_with_its_product() {
    let Some(mut bench) = bench() else { return };
    let mut random = Random::new(2);
    for (case, (dtype, near)) in (0..8).flat_map(|case| TYPES.map(|ty| (case, ty))) {
        let stored = [1, 2, 4].map(|bit| case & bit != 0);
        let of = SummedFactor::new(&mut random, dtype, [5, 11, 9], stored);
        let reduce = |function, axis| Reduce { function, axes: vec![axis], keep_dims: false };
        let (axis, sums) = (of.axis, &of.sums.0);
        assert!(of.join_with(&reduce(ReduceFunction::Mean, axis), sums).is_none());
        assert!(of.join_with(&reduce(ReduceFunction::Sum, 1 - axis), sums).is_none());
        let other = Region { dtype: DType::F32, ..sums.clone() };
        let others = of.join_with(&reduce(ReduceFunction::Sum, axis), &other);
        assert_eq!(others.is_some(), dtype == DType::F32);
        let Joined { call, case, right } = of.join().expect("it is joined");
        let error = apart(&mut bench, &call, &case, &right);
        assert!(error <= near, "{:?} of {dtype}: {error}", of.op);
    }
}
