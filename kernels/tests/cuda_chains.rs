//! Random chains of elementwise ops, as one kernel on a double of a card, have the values of their ops one after the other: the same
//! bits where an op has one right answer.

mod cases;
#[path = "common/chains.rs"]
mod chains;
mod common;
#[path = "common/cuda.rs"]
mod on_card;

use cases::FLOATS;
use chains::{evaluated, rounded};
use common::{Case, Memory, Random, ordinary};
use graphc_ir::op::{EvalContext, InPlace, Op, Region};
use graphc_ir::ops::*;
use graphc_ir::plan::{FusedArg, FusedOp, FusedStep};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::cuda::prepare_fused;
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
