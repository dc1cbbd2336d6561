//! Matrix products and what goes with them, as one call: what a library adds, applies, keeps and sums at a product's end has the values
//! of the ops one after the other, and what it does not compute stays apart.

mod cases;
#[path = "common/chains.rs"]
mod chains;
mod common;
#[path = "common/cuda.rs"]
mod on_card;

use chains::{evaluated, rounded};
use common::{Case, Memory, Random, ordinary};
use graphc_ir::op::{EvalContext, InPlace, Op, Region};
use graphc_ir::ops::*;
use graphc_ir::plan::FusedArg::{self, Operand as X, Step as S};
use graphc_ir::plan::{FusedOp, FusedStep};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::cuda::{Behind, Call, Launch, Sums, join_chain, join_sums, product_end};
use on_card::{Bench, bench, other_ways, shard};

/// Element types, and how far results may be from those of the ops, which round after each step.
const TYPES: [(DType, f64); 3] = [(DType::F32, 1e-5), (DType::BF16, 3e-2), (DType::F16, 4e-3)];

/// A chain behind a product [3, 5, 7] x [columns, 7]'.
struct Chained {
    columns: usize,
    steps: Vec<FusedStep>,
    outputs: Vec<usize>,
    /// The shapes of the chain's operands behind the product.
    others: Vec<Vec<usize>>,
    keeps: Option<FusedArg>,
    shared: Vec<InPlace>,
}

impl Chained {
    /// The last step is the result.
    fn new(columns: usize, steps: Vec<FusedStep>, others: &[&[usize]]) -> Self {
        let outputs = vec![steps.len() - 1];
        let others = others.iter().map(|shape| shape.to_vec()).collect();
        Self { columns, steps, outputs, others, keeps: None, shared: Vec::new() }
    }

    fn giving(self, outputs: &[usize]) -> Self {
        Self { outputs: outputs.to_vec(), ..self }
    }

    fn keeping(self, keeps: FusedArg) -> Self {
        Self { keeps: Some(keeps), ..self }
    }

    fn sharing(self, operand: usize) -> Self {
        Self { shared: vec![InPlace::new(0, operand)], ..self }
    }

    /// The call, and how far its results are from those of the ops; `None` where there is no call.
    fn error(&self, bench: &mut Bench, dtype: DType) -> Option<(Call, f64)> {
        let mut random = Random::new(1);
        let mut filled = |shape: &[usize]| filled(&mut random, dtype, shape);
        let shape = [3, 5, self.columns];
        let (a, b) = (filled(&[3, 5, 7]), filled(&[self.columns, 7]));
        let others: Vec<_> = self.others.iter().map(|shape| filled(shape)).collect();
        let op = MatMul { transpose_a: false, transpose_b: true };
        let made = multiplied(op, [&a, &b], dtype, &shape);
        let operands: Vec<_> = std::iter::once(made.clone()).chain(others).collect();
        let chain = FusedOp { steps: self.steps.clone(), outputs: self.outputs.clone() };
        let mut case = Case { op: Op::MatMul(op), operands, results: vec![] };
        let values = evaluated(&chain, &case, &shape);
        let region = |step: usize| {
            let ty = TensorType::new(values[step].0, shape);
            Region::whole(&match &self.steps[step].op {
                Op::Reduce(_) => self.steps[step].op.infer(&[&ty]).expect("it fits").remove(0),
                _ => ty,
            })
        };
        case.results = self.outputs.iter().map(|&step| region(step)).collect();
        let mut right: Vec<_> = self.outputs.iter().map(|&step| values[step].1.clone()).collect();
        if let Some(keeps) = self.keeps {
            case.results.push(made.0.clone());
            right.push(match keeps {
                S(step) => values[step].1.clone(),
                X(_) => made.1.values(),
            });
        }
        let shards: Vec<_> = case.operands.iter().map(|operand| shard(&operand.0)).collect();
        let results: Vec<_> = case.results.iter().map(shard).collect();
        let Self { keeps, shared, .. } = self;
        let behind = Behind { chain: &chain, operands: &shards, product: 0, keeps: *keeps, shared };
        let call = join_chain(&op, &[shard(&a.0), shard(&b.0)], behind, &results)?;
        case.operands.splice(0..0, [a, b]);
        Some((call.clone(), apart(bench, &call, &case, &right)))
    }
}

fn filled(random: &mut Random, dtype: DType, shape: &[usize]) -> (Region, Memory) {
    let ty = TensorType::new(dtype, shape);
    let values: Vec<f64> = (0..ty.elements()).map(|i| ordinary(random, i, dtype)).collect();
    (Region::whole(&ty), Memory::of(dtype, &values))
}

fn multiplied(
    op: MatMul,
    [a, b]: [&(Region, Memory); 2],
    dtype: DType,
    shape: &[usize],
) -> (Region, Memory) {
    let made = Region::whole(&TensorType::new(dtype, shape));
    let operands = vec![a.clone(), b.clone()];
    let case = Case { op: Op::MatMul(op), operands, results: vec![made.clone()] };
    let product = case.oracle(&EvalContext::default()).expect("a product").remove(0).data;
    let memory = Memory::of(dtype, &rounded(dtype, &product));
    (made, memory)
}

/// How far results are from the right ones, in whichever way the call is made; of sums as a share of what is summed.
fn apart(bench: &mut Bench, call: &Call, case: &Case, right: &[Vec<f64>]) -> f64 {
    let ways = other_ways(call);
    assert_eq!(ways.len(), if product_end_of(call).is_empty() { 1 } else { 2 });
    let all = std::iter::once(call).chain(&ways);
    all.map(|call| one_apart(bench, call, case, right)).fold(0.0, f64::max)
}

/// What stands behind the product of a call where the library makes it without its end.
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

fn add(a: FusedArg, b: FusedArg) -> FusedStep {
    binary(BinaryFunction::Add, a, b)
}

fn binary(function: BinaryFunction, a: FusedArg, b: FusedArg) -> FusedStep {
    FusedStep { op: Op::Binary(Binary { function }), args: vec![a, b] }
}

fn apply(function: UnaryFunction, x: FusedArg) -> FusedStep {
    FusedStep { op: Op::Unary(Unary { function }), args: vec![x] }
}

fn sum(axes: &[usize], x: FusedArg) -> FusedStep {
    let op = Reduce { function: ReduceFunction::Sum, axes: axes.to_vec(), keep_dims: false };
    FusedStep { op: Op::Reduce(op), args: vec![x] }
}

/// The factor of tanh in GELU, and that of the cube in it.
fn constants() -> [f64; 2] {
    [(2.0 / std::f64::consts::PI).sqrt(), 0.044_715]
}

/// The gradient of GELU at an operand, times a value, as autodiff writes it: 15 steps.
fn gradient(x: FusedArg, value: FusedArg) -> Vec<FusedStep> {
    use BinaryFunction::{Add, Mul};
    use UnaryFunction::{Neg, Offset, Scale, Tanh};
    let [c, a] = constants();
    let scale = |by| Scale(Scalar(by));
    let one = Offset(Scalar(1.0));
    vec![
        binary(Mul, x, x),
        binary(Mul, S(0), x),
        apply(scale(a), S(1)),
        binary(Add, x, S(2)),
        apply(scale(c), S(3)),
        apply(Tanh, S(4)),
        apply(scale(3.0 * a), S(0)),
        apply(one, S(6)),
        apply(scale(c), S(7)),
        binary(Mul, S(5), S(5)),
        apply(Neg, S(9)),
        apply(one, S(10)),
        binary(Mul, S(11), S(8)),
        binary(Mul, S(12), x),
        apply(one, S(5)),
        binary(Add, S(14), S(13)),
        apply(scale(0.5), S(15)),
        binary(Mul, value, S(16)),
    ]
}

const ROW: &[usize] = &[9];
const ALL: &[usize] = &[3, 5, 9];
/// Of rows that can be kept.
const WIDE: &[usize] = &[3, 5, 24];

/// Chains that are joined: the call has one launch and the values of the ops.
fn check_joined(cases: Vec<Chained>) {
    let Some(mut bench) = bench() else { return };
    for case in cases {
        for (dtype, near) in TYPES {
            let (call, error) = case.error(&mut bench, dtype).expect("it is joined");
            assert_eq!(call.launches.len(), 1, "{:?}", case.steps);
            assert!(error <= near, "{:?} of {dtype}: {error}", case.steps);
        }
    }
}

fn check_apart(cases: Vec<Chained>) {
    let Some(mut bench) = bench() else { return };
    for case in cases {
        assert!(case.error(&mut bench, DType::F32).is_none(), "{:?}", case.steps);
    }
}

#[test]
fn products_are_joined_with_what_a_library_adds_and_applies() {
    use UnaryFunction::{GeluTanh, Relu};
    check_joined(vec![
        Chained::new(9, vec![add(X(0), X(1))], &[ROW]),
        Chained::new(9, vec![add(X(1), X(0)), add(X(2), S(0))], &[ROW, ALL]),
        Chained::new(9, vec![add(X(1), X(0)), add(X(2), S(0))], &[ROW, ALL]).sharing(2),
        Chained::new(9, vec![add(X(0), X(1)), apply(Relu, S(0))], &[ROW]),
        Chained::new(9, vec![add(X(0), X(1)), apply(GeluTanh, S(0))], &[&[1, 1, 9]]),
        Chained::new(9, vec![apply(GeluTanh, X(0))], &[]),
    ]);
    check_apart(vec![
        Chained::new(9, vec![add(X(0), X(1)), apply(UnaryFunction::Gelu, S(0))], &[ROW]),
        Chained::new(9, vec![add(X(0), X(1)), add(S(0), X(1))], &[ROW]),
        Chained::new(9, vec![add(X(0), X(0))], &[]),
        Chained::new(9, vec![add(X(0), X(1))], &[&[5, 1]]),
        Chained::new(9, vec![apply(Relu, X(0)), add(S(0), X(1))], &[ROW]),
        // A result over a bias, which the library reads to the end.
        Chained::new(9, vec![add(X(0), X(1))], &[ROW]).sharing(1),
    ]);
}

/// A product of halves is not rounded where only a cast to f32 reads it; with a bias it is.
#[test]
fn a_product_of_halves_may_be_given_in_f32() {
    let Some(mut bench) = bench() else { return };
    let cast = |x| FusedStep { op: Op::Cast(Cast { dtype: DType::F32 }), args: vec![x] };
    for (dtype, near) in &TYPES[1..] {
        let (call, error) =
            Chained::new(9, vec![cast(X(0))], &[]).error(&mut bench, *dtype).expect("it is joined");
        let Launch::Product(product) = &call.launches[0] else { panic!("{:?}", call.launches) };
        assert_eq!((call.launches.len(), product.operands.made), (1, DType::F32));
        assert!(error <= *near, "{dtype}: {error}");
        let biased = Chained::new(9, vec![add(X(0), X(1)), cast(S(0))], &[ROW]);
        assert!(biased.error(&mut bench, *dtype).is_none());
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
    let joined = [c, f64::from(c as f32)].map(|c| Chained::new(9, written(c, S(0)), &[ROW]));
    check_joined(joined.into());
    check_apart(vec![Chained::new(9, written(0.8, S(0)), &[ROW])]);
}

#[test]
fn what_gelu_is_taken_of_is_kept() {
    let steps = || vec![add(X(1), X(0)), apply(UnaryFunction::GeluTanh, S(0))];
    let bare = || vec![apply(UnaryFunction::GeluTanh, X(0))];
    let row: &[usize] = &[24];
    check_joined(vec![
        Chained::new(24, steps(), &[row]).giving(&[0, 1]),
        Chained::new(24, steps(), &[row]).giving(&[1, 0]),
        Chained::new(24, steps(), &[row]).keeping(S(0)),
        Chained::new(24, steps(), &[WIDE]).keeping(S(0)),
        Chained::new(24, bare(), &[]).keeping(X(0)),
    ]);
    let relu = vec![add(X(1), X(0)), apply(UnaryFunction::Relu, S(0))];
    let erf = vec![add(X(1), X(0)), apply(UnaryFunction::Gelu, S(0))];
    check_apart(vec![
        // Rows of 9 elements.
        Chained::new(9, steps(), &[ROW]).giving(&[0, 1]),
        Chained::new(9, steps(), &[ROW]).keeping(S(0)),
        // The product itself where a bias goes on top, the result, or what others take.
        Chained::new(24, steps(), &[row]).keeping(X(0)),
        Chained::new(24, steps(), &[row]).keeping(S(1)),
        Chained::new(24, relu, &[row]).giving(&[0, 1]),
        Chained::new(24, erf, &[row]).giving(&[0, 1]),
    ]);
}

#[test]
fn gradients_of_gelu_are_taken_at_what_was_kept() {
    let plain = || gradient(X(1), X(0));
    let summed = |axes: &[usize]| [plain(), vec![sum(axes, S(17))]].concat();
    let mut behind = gradient(X(1), S(18));
    behind.push(add(X(0), X(2)));
    behind.swap(17, 18);
    let behind: Vec<FusedStep> = behind.into_iter().map(exchanged).collect();
    check_joined(vec![
        Chained::new(24, plain(), &[WIDE]),
        Chained::new(24, behind, &[WIDE, WIDE]),
        Chained::new(24, summed(&[0, 1]), &[WIDE]).giving(&[17, 18]),
        Chained::new(24, summed(&[0, 1]), &[WIDE]).giving(&[18, 17]),
    ]);
    let erf = vec![apply(UnaryFunction::Erf, X(1)), binary(BinaryFunction::Mul, S(0), X(0))];
    check_apart(vec![
        Chained::new(9, gradient(X(1), X(0)), &[ALL]),
        // At one row of numbers for all rows, or over what it is taken at.
        Chained::new(24, plain(), &[&[24]]),
        Chained::new(24, plain(), &[WIDE]).sharing(1),
        Chained::new(24, erf, &[WIDE]),
        Chained::new(24, plain()[..17].to_vec(), &[WIDE]),
    ]);
}

/// Steps 17 and 18 have changed places.
fn exchanged(step: FusedStep) -> FusedStep {
    let args = step.args.into_iter().map(|arg| if arg == S(18) { S(17) } else { arg });
    FusedStep { op: step.op, args: args.collect() }
}

/// Sums of another type than the gradient's, or over other dims, are launches behind the product.
#[test]
fn other_sums_of_a_gradient_stand_behind_it() {
    let Some(mut bench) = bench() else { return };
    let steps = [gradient(X(1), X(0)), vec![sum(&[2], S(17))]].concat();
    let case = Chained::new(24, steps, &[WIDE]).giving(&[17, 18]);
    for (dtype, near) in TYPES {
        let (call, error) = case.error(&mut bench, dtype).expect("it is joined");
        assert!(matches!(call.launches[0], Launch::Product(_)) && call.launches.len() > 1);
        assert!(error <= near, "{dtype}: {error}");
    }
}

/// Sums over the extent that a product sums over, of either factor, whichever way it is stored.
#[test]
fn sums_of_a_factor_come_with_its_product() {
    let Some(mut bench) = bench() else { return };
    let mut random = Random::new(2);
    let [rows, inner, columns] = [5, 11, 9];
    let turned = |shape: [usize; 2], turn: bool| if turn { [shape[1], shape[0]] } else { shape };
    for (case, (dtype, near)) in (0..8).flat_map(|case| TYPES.map(|ty| (case, ty))) {
        let [transpose_a, transpose_b, second] = [1, 2, 4].map(|bit| case & bit != 0);
        let op = MatMul { transpose_a, transpose_b };
        let a = filled(&mut random, dtype, &turned([rows, inner], transpose_a));
        let b = filled(&mut random, dtype, &turned([inner, columns], transpose_b));
        let (x, turn) = if second { (&b, !transpose_b) } else { (&a, transpose_a) };
        let axis = usize::from(!turn);
        let reduce = |function, axis| Reduce { function, axes: vec![axis], keep_dims: false };
        let own = reduce(ReduceFunction::Sum, axis);
        let ty = TensorType::new(dtype, x.0.rect.extent.clone());
        let sums = Region::whole(&Op::Reduce(own.clone()).infer(&[&ty]).expect("it fits")[0]);
        let alone = Case {
            op: Op::Reduce(own.clone()),
            operands: vec![x.clone()],
            results: vec![sums.clone()],
        };
        let right = alone.oracle(&EvalContext::default()).expect("sums").remove(0).data;
        let made = multiplied(op, [&a, &b], dtype, &[rows, columns]);
        let join = |reduce: &Reduce, sums: &Region| {
            let factors = [shard(&a.0), shard(&b.0)];
            let of = usize::from(second);
            let sums_of = Sums { factor: of, operand: &shard(&x.0), reduce };
            join_sums(&op, &factors, sums_of, [&shard(&made.0), &shard(sums)])
        };
        let call = join(&own, &sums).expect("it is joined");
        assert!(join(&reduce(ReduceFunction::Mean, axis), &sums).is_none());
        assert!(join(&reduce(ReduceFunction::Sum, 1 - axis), &sums).is_none());
        let other = Region { dtype: DType::F32, ..sums.clone() };
        assert_eq!(join(&own, &other).is_some(), dtype == DType::F32);
        let results = vec![made.0.clone(), sums];
        let case = Case { op: Op::MatMul(op), operands: vec![a.clone(), b.clone()], results };
        let error = apart(&mut bench, &call, &case, &[made.1.values(), right]);
        assert!(error <= near, "{op:?} of {dtype}: {error}");
    }
}
