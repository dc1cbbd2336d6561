//! Random chains of elementwise ops, as one kernel on a double of a card, have the values of their ops one after the other: the same
//! bits where an op has one right answer.

mod cases;
mod common;
#[path = "common/cuda.rs"]
mod on_card;

use cases::FLOATS;
use common::{Case, Memory, Random, ordinary};
use graphc_ir::array::Array;
use graphc_ir::op::{EvalContext, InPlace, Op, Operand, Region};
use graphc_ir::ops::*;
use graphc_ir::plan::{FusedArg, FusedOp, FusedStep};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::cuda::{Behind, join_chain, prepare_fused};
use on_card::{Bench, bench, shard};

/// Chains that are tried.
const CHAINS: u64 = 40;
/// Functions with one right answer in f32.
const EXACT: [UnaryFunction; 6] = [
    UnaryFunction::Relu,
    UnaryFunction::Abs,
    UnaryFunction::Neg,
    UnaryFunction::Round,
    UnaryFunction::Scale(Scalar(0.375)),
    UnaryFunction::Offset(Scalar(-1.5)),
];
/// Functions that a card approximates.
const NEAR: [UnaryFunction; 6] = [
    UnaryFunction::GeluTanh,
    UnaryFunction::Gelu,
    UnaryFunction::Sigmoid,
    UnaryFunction::Tanh,
    UnaryFunction::Silu,
    UnaryFunction::Erf,
];
const BINARY: [BinaryFunction; 6] = [
    BinaryFunction::Add,
    BinaryFunction::Sub,
    BinaryFunction::Mul,
    BinaryFunction::Div,
    BinaryFunction::Max,
    BinaryFunction::Min,
];

/// A chain that grows.
struct Growing {
    random: Random,
    shape: Vec<usize>,
    operands: Vec<TensorType>,
    steps: Vec<FusedStep>,
    /// What steps may read, and of which type it is.
    values: Vec<(FusedArg, DType)>,
}

impl Growing {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let rank = 1 + random.below(4);
        let mut shape: Vec<usize> =
            (0..rank).map(|_| random.of(&[1, 2, 3, 5, 8, 13, 24, 64])).collect();
        while shape.iter().product::<usize>() > 4000 {
            shape.pop();
        }
        if seed % 8 == 7 {
            let dim = random.below(shape.len());
            shape[dim] = 0;
        }
        let mut chain = Self { random, shape, operands: vec![], steps: vec![], values: vec![] };
        chain.operands();
        chain
    }

    /// One operand of the chain's shape, and some that are spread over it.
    fn operands(&mut self) {
        let main = self.random.of(&FLOATS);
        for operand in 0..1 + self.random.below(4) {
            let mut shape = self.shape.clone();
            if operand > 0 {
                shape.drain(..self.random.below(shape.len()));
                for extent in &mut shape {
                    *extent = if self.random.below(3) == 0 { 1 } else { *extent };
                }
            }
            let dtype = self.random.of(&[main, main, main, DType::F32]);
            self.operands.push(TensorType::new(dtype, shape));
            self.values.push((FusedArg::Operand(operand), dtype));
        }
    }

    fn step(&mut self, op: Op, args: &[FusedArg], dtype: DType) -> usize {
        self.values.push((FusedArg::Step(self.steps.len()), dtype));
        self.steps.push(FusedStep { op, args: args.to_vec() });
        self.steps.len() - 1
    }

    /// Some value of floating-point numbers, of a type if one is given.
    fn value(&mut self, wanted: Option<DType>) -> (FusedArg, DType) {
        let fits = |dtype: DType| wanted.map_or(dtype.is_float(), |wanted| dtype == wanted);
        let fitting: Vec<_> = self.values.iter().filter(|value| fits(value.1)).copied().collect();
        // Later ones are likelier, so that chains get long.
        let [a, b] = [0; 2].map(|_| self.random.below(fitting.len()));
        fitting[a.max(b)]
    }

    /// A step whose result is one right number.
    fn exact(&mut self) {
        let (x, dtype) = self.value(None);
        let (y, _) = self.value(Some(dtype));
        match self.random.below(8) {
            0 | 1 => {
                let function = self.random.of(&EXACT);
                self.step(Op::Unary(Unary { function }), &[x], dtype);
            }
            2 => {
                let to = self.random.of(&FLOATS);
                self.step(Op::Cast(Cast { dtype: to }), &[x], to);
            }
            3 => {
                let function = BinaryFunction::Less;
                let less = self.step(Op::Binary(Binary { function }), &[x, y], DType::Bool);
                let (z, _) = self.value(Some(dtype));
                self.step(Op::Where(Where {}), &[FusedArg::Step(less), z, x], dtype);
            }
            _ => {
                let function = self.random.of(&BINARY);
                self.step(Op::Binary(Binary { function }), &[x, y], dtype);
            }
        }
    }

    /// The steps whose values are results: the last, maybe another, one that is approximated, and sums.
    fn ends(&mut self) -> Vec<usize> {
        let mut outputs = vec![self.steps.len() - 1];
        let other = self.random.below(self.steps.len());
        if self.random.below(2) == 0 && !outputs.contains(&other) {
            outputs.push(other);
        }
        if self.random.below(2) == 0 {
            let function = self.random.of(&NEAR);
            let (x, dtype) = self.value(None);
            outputs.push(self.step(Op::Unary(Unary { function }), &[x], dtype));
            self.values.pop();
        }
        if self.random.below(3) == 0 {
            let axes = self.axes();
            for function in [ReduceFunction::Sum, ReduceFunction::Mean] {
                let (x, dtype) = self.value(None);
                let axes = axes.clone();
                let op = Op::Reduce(Reduce { function, axes, keep_dims: true });
                outputs.push(self.step(op, &[x], dtype));
                self.values.pop();
            }
        }
        outputs
    }

    /// All dims but a run of them.
    fn axes(&mut self) -> Vec<usize> {
        let rank = self.shape.len();
        let first = self.random.below(rank);
        let end = first + self.random.below(rank - first);
        let kept = if first == 0 && end == rank { 0..0 } else { first..end };
        (0..rank).filter(|dim| !kept.contains(dim)).collect()
    }
}

fn rounded(dtype: DType, values: &[f64]) -> Vec<f64> {
    // Kernels compute in f32.
    let in_f32: Vec<f64> = values.iter().map(|&x| f64::from(x as f32)).collect();
    Memory::of(dtype, &in_f32).values()
}

/// The elements of an operand, spread over a shape.
fn spread(values: &[f64], from: &[usize], to: &[usize]) -> Vec<f64> {
    let strides = graphc_ir::types::strides(from);
    let skip = to.len() - from.len();
    let place = |mut index: usize| {
        let mut place = 0;
        for dim in (0..to.len()).rev() {
            if dim >= skip && from[dim - skip] > 1 {
                place += index % to[dim] * strides[dim - skip];
            }
            index /= to[dim];
        }
        place
    };
    (0..to.iter().product()).map(|index| values[place(index)]).collect()
}

/// The value of each step, by the ops' own evaluation; of sums also that of the amounts that are summed.
fn evaluated(fused: &FusedOp, case: &Case, shape: &[usize]) -> Vec<(DType, Vec<f64>, Vec<f64>)> {
    let operand = |index: usize| {
        let (of, memory) = &case.operands[index];
        (of.dtype, spread(&memory.values(), &of.rect.extent, shape))
    };
    let mut values: Vec<(DType, Vec<f64>, Vec<f64>)> = Vec::new();
    for FusedStep { op, args } in &fused.steps {
        let args: Vec<(DType, Vec<f64>)> = args
            .iter()
            .map(|arg| match *arg {
                FusedArg::Operand(index) => operand(index),
                FusedArg::Step(step) => (values[step].0, values[step].1.clone()),
            })
            .collect();
        let types: Vec<TensorType> = args.iter().map(|arg| TensorType::new(arg.0, shape)).collect();
        let result = op.infer(&types.iter().collect::<Vec<_>>()).expect("it fits").remove(0);
        let regions: Vec<Region> = types.iter().map(Region::whole).collect();
        let evaluate = |of: &dyn Fn(f64) -> f64| {
            let array = |arg: &(DType, Vec<f64>)| {
                Array::new(shape.to_vec(), arg.1.iter().map(|&x| of(x)).collect())
            };
            let arrays: Vec<Array> = args.iter().map(array).collect();
            let pairs = arrays.iter().zip(&regions);
            let operands: Vec<_> = pairs.map(|(array, region)| Operand { array, region }).collect();
            let cx = EvalContext::default();
            let made = op.operation().evaluate(&operands, &[Region::whole(&result)], &cx);
            made.expect("a value").remove(0).data
        };
        let amounts = match op {
            Op::Reduce(_) => evaluate(&f64::abs),
            _ => Vec::new(),
        };
        values.push((result.dtype, rounded(result.dtype, &evaluate(&|x| x)), amounts));
    }
    values
}

/// How far an element may be from the right one, before it is rounded.
fn room(op: &Op, right: f64, amount: Option<&f64>) -> f64 {
    match op {
        Op::Reduce(_) => 1e-5 * amount.copied().unwrap_or(0.0),
        Op::Unary(unary) if NEAR.contains(&unary.function) => 1e-5 * (1.0 + right.abs()),
        _ => 0.0,
    }
}

fn check(bench: &mut Bench, seed: u64) {
    let mut chain = Growing::new(seed);
    for _ in 0..2 + chain.random.below(6) {
        chain.exact();
    }
    let outputs = chain.ends();
    let Growing { mut random, shape, operands, steps, .. } = chain;
    let fused = FusedOp { steps, outputs };
    let filled = |(index, ty): (usize, &TensorType)| {
        let fill = |_| ordinary(&mut random, index, ty.dtype);
        let values: Vec<f64> = (0..ty.elements()).map(fill).collect();
        (Region::whole(ty), Memory::of(ty.dtype, &values))
    };
    let operands: Vec<_> = operands.iter().enumerate().map(filled).collect();
    let op = fused.steps[0].op.clone();
    let mut case = Case { op, operands, results: vec![] };
    let expected = evaluated(&fused, &case, &shape);
    let region = |&output: &usize| {
        let ty = TensorType::new(expected[output].0, shape.clone());
        let made = match &fused.steps[output].op {
            Op::Reduce(_) => fused.steps[output].op.infer(&[&ty]).expect("it fits").remove(0),
            _ => ty,
        };
        Region::whole(&made)
    };
    case.results = fused.outputs.iter().map(region).collect();
    let operands: Vec<_> = case.operands.iter().map(|operand| shard(&operand.0)).collect();
    let results: Vec<_> = case.results.iter().map(shard).collect();
    let call = prepare_fused(&fused, &operands, &results).expect("a chain");
    let fits = case.results[0] == case.operands[0].0;
    let over = [InPlace::new(0, 0)];
    for pairs in [&[][..], &over[..usize::from(fits)]] {
        let found = bench.execute(&call, &case, pairs, &EvalContext::default()).expect("no fault");
        for (found, &output) in found.iter().zip(&fused.outputs) {
            let (dtype, right, amounts) = &expected[output];
            let found = found.values();
            assert_eq!(found.len(), right.len(), "chain {seed}, step {output}");
            for (place, (&found, &right)) in found.iter().zip(right).enumerate() {
                let room = room(&fused.steps[output].op, right, amounts.get(place));
                let bounds = rounded(*dtype, &[right - room, right + room]);
                let near = bounds[0] <= found && found <= bounds[1];
                let same = found == right || found.is_nan() && right.is_nan();
                assert!(
                    same || near,
                    "chain {seed}, step {output}: {found}, not {right}: {fused:?}"
                );
            }
        }
    }
}

#[test]
fn random_chains_have_the_values_of_their_ops() {
    let Some(mut bench) = bench() else { return };
    for seed in 0..CHAINS {
        check(&mut bench, seed);
    }
}

/// A product of [3, 5, 7] and [9, 7]', and what is behind it: the steps, and the operands after the product.
fn behind(
    bench: &mut Bench,
    dtype: DType,
    steps: Vec<FusedStep>,
    others: &[&[usize]],
) -> Option<f64> {
    let mut random = Random::new(1);
    let mut filled = |shape: &[usize]| {
        let ty = TensorType::new(dtype, shape);
        let values: Vec<f64> =
            (0..ty.elements()).map(|i| ordinary(&mut random, i, dtype)).collect();
        (Region::whole(&ty), Memory::of(dtype, &values))
    };
    let (a, b) = (filled(&[3, 5, 7]), filled(&[9, 7]));
    let others: Vec<_> = others.iter().map(|shape| filled(shape)).collect();
    let op = MatMul { transpose_a: false, transpose_b: true };
    let made = Region::whole(&TensorType::new(dtype, [3, 5, 9]));
    let product = {
        let case = Case {
            op: Op::MatMul(op),
            operands: vec![a.clone(), b.clone()],
            results: vec![made.clone()],
        };
        rounded(dtype, &case.oracle(&EvalContext::default()).expect("a product").remove(0).data)
    };
    let made = (made.clone(), Memory::of(dtype, &product));
    let operands: Vec<_> = std::iter::once(made.clone()).chain(others).collect();
    let outputs = vec![steps.len() - 1];
    let chain = FusedOp { steps, outputs };
    let mut case = Case { op: Op::MatMul(op), operands, results: vec![made.0.clone()] };
    let right = evaluated(&chain, &case, &[3, 5, 9]).pop().expect("a value").1;
    let shards: Vec<_> = case.operands.iter().map(|operand| shard(&operand.0)).collect();
    let factors = [shard(&a.0), shard(&b.0)];
    let behind = Behind { chain: &chain, operands: &shards, product: 0 };
    let call = join_chain(&op, &factors, behind, &shard(&made.0))?;
    case.operands.splice(0..0, [a, b]);
    let found = bench.execute(&call, &case, &[], &EvalContext::default()).expect("no fault");
    let apart = |(a, b): (f64, &f64)| (a - b).abs() / (1.0 + b.abs());
    Some(found[0].values().into_iter().zip(&right).map(apart).fold(0.0, f64::max))
}

#[test]
fn products_are_joined_with_what_a_library_adds_and_applies() {
    let Some(mut bench) = bench() else { return };
    use FusedArg::{Operand as X, Step as S};
    let add = |args: [FusedArg; 2]| {
        let function = BinaryFunction::Add;
        FusedStep { op: Op::Binary(Binary { function }), args: args.to_vec() }
    };
    let apply = |function, x| FusedStep { op: Op::Unary(Unary { function }), args: vec![x] };
    let (row, all) = (&[9][..], &[3, 5, 9][..]);
    let joined = [
        (vec![add([X(0), X(1)])], vec![row]),
        (vec![add([X(1), X(0)]), add([X(2), S(0)])], vec![row, all]),
        (vec![add([X(0), X(1)]), apply(UnaryFunction::Relu, S(0))], vec![row]),
        (vec![add([X(0), X(1)]), apply(UnaryFunction::GeluTanh, S(0))], vec![&[1, 1, 9]]),
        (vec![apply(UnaryFunction::GeluTanh, X(0))], vec![]),
    ];
    for (steps, others) in joined {
        for (dtype, near) in [(DType::F32, 1e-5), (DType::BF16, 2e-2), (DType::F16, 2e-3)] {
            let error = behind(&mut bench, dtype, steps.clone(), &others).expect("it is joined");
            assert!(error <= near, "{steps:?} of {dtype}: {error}");
        }
    }
    let apart = [
        (vec![add([X(0), X(1)]), apply(UnaryFunction::Gelu, S(0))], vec![row]),
        (vec![add([X(0), X(1)]), add([S(0), X(1)])], vec![row]),
        (vec![add([X(0), X(0)])], vec![]),
        (vec![add([X(0), X(1)])], vec![&[5, 1][..]]),
        (vec![apply(UnaryFunction::Relu, X(0)), add([S(0), X(1)])], vec![row]),
    ];
    for (steps, others) in apart {
        let error = behind(&mut bench, DType::F32, steps.clone(), &others);
        assert_eq!(error, None, "{steps:?}");
    }
}
