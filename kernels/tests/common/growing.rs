//! Random chains of elementwise ops, some of which end in sums, and what their ops give one after the other.
#![allow(dead_code, reason = "each test binary uses a part")]

use graphc_ir::op::{Op, Region};
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::cuda::{Call, prepare_fused};
use graphc_plan::{FusedArg, FusedOp, FusedStep};

use crate::cases::FLOATS;
use crate::chains::{evaluated, rounded};
use crate::common::{Case, Memory, Random, ordinary, shard};

/// The size of random chains: the most elements, and the extents that dims may have.
pub struct Size<'a> {
    pub most: usize,
    pub extents: &'a [usize],
}

/// Few elements, and odd extents.
pub const SMALL: Size<'static> = Size { most: 4000, extents: &[1, 2, 3, 5, 8, 13, 24, 64] };

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
    /// The values that steps may read, each with its type.
    values: Vec<(FusedArg, DType)>,
}

impl Growing {
    fn new(seed: u64, size: &Size<'_>) -> Self {
        let mut random = Random::new(seed);
        let rank = 1 + random.below(4);
        let mut shape: Vec<usize> = (0..rank).map(|_| random.of(size.extents)).collect();
        while shape.iter().product::<usize>() > size.most {
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

    /// Adds one operand of the chain's shape, and some that are spread over it.
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

    /// Draws some value of floating-point numbers, of a type if one is given.
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

    /// Draws all dims but a run of them.
    fn axes(&mut self) -> Vec<usize> {
        let rank = self.shape.len();
        let first = self.random.below(rank);
        let end = first + self.random.below(rank - first);
        let kept = if first == 0 && end == rank { 0..0 } else { first..end };
        (0..rank).filter(|dim| !kept.contains(dim)).collect()
    }
}

/// Returns the error that an element may have before it is rounded.
fn room(op: &Op, right: f64, amount: Option<&f64>) -> f64 {
    match op {
        Op::Reduce(_) => 1e-5 * amount.copied().unwrap_or(0.0),
        Op::Unary(unary) if NEAR.contains(&unary.function) => 1e-5 * (1.0 + right.abs()),
        _ => 0.0,
    }
}

/// A chain as one call.
pub struct Chain {
    pub fused: FusedOp,
    pub call: Call,
    /// The op only names it.
    pub case: Case,
    /// The right values of each result, and the error that each value may have before it is rounded.
    pub right: Vec<[Vec<f64>; 2]>,
}

/// The chain of a seed.
pub fn random_chain(seed: u64, size: &Size<'_>) -> Chain {
    let mut chain = Growing::new(seed, size);
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
            Op::Reduce(_) => fused.steps[output].op.infer_types(&[&ty]).expect("it fits").remove(0),
            _ => ty,
        };
        Region::whole(&made)
    };
    case.results = fused.outputs.iter().map(region).collect();
    let operands: Vec<_> = case.operands.iter().map(|operand| shard(&operand.0)).collect();
    let results: Vec<_> = case.results.iter().map(shard).collect();
    let call = prepare_fused(&fused, &operands, &results).expect("a chain");
    let right = |&output: &usize| {
        let (_, right, amounts) = expected[output].clone();
        let op = &fused.steps[output].op;
        let room = |(place, &right): (usize, &f64)| room(op, right, amounts.get(place));
        let rooms = right.iter().enumerate().map(room).collect();
        [right, rooms]
    };
    let right = fused.outputs.iter().map(right).collect();
    Chain { fused, call, case, right }
}

impl Chain {
    /// The least and the greatest that an element of a result may be.
    pub fn bounds(&self, result: usize, place: usize) -> [f64; 2] {
        let [right, room] = [0, 1].map(|part| self.right[result][part][place]);
        let bounds = rounded(self.case.results[result].dtype, &[right - room, right + room]);
        [bounds[0], bounds[1]]
    }
}
