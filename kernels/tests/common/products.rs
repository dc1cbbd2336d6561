//! Matrix products with what a library adds, applies, keeps and sums at their ends: chains that are joined with a product, and what
//! their ops give one after the other.
#![allow(dead_code, reason = "each test binary uses a part")]

use graphc_ir::op::{EvalContext, InPlace, Op, Region};
use graphc_ir::ops::*;
use graphc_ir::plan::FusedArg::{self, Operand as X, Step as S};
use graphc_ir::plan::{FusedOp, FusedStep};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::cuda::{Behind, Call, join_chain};

use crate::chains::{evaluated, rounded};
use crate::common::{Case, Memory, Random, ordinary, shard};

/// Element types, and how far results may be from those of the ops, which round after each step.
pub const TYPES: [(DType, f64); 3] = [(DType::F32, 1e-5), (DType::BF16, 3e-2), (DType::F16, 4e-3)];

/// The extents of a product [rows, inner] x [columns, inner]'; rows are two dims.
#[derive(Clone, Copy, Debug)]
pub struct Extents {
    pub rows: [usize; 2],
    pub inner: usize,
    pub columns: usize,
}

/// Extents that fit no tile, with so many columns.
pub fn small(columns: usize) -> Extents {
    Extents { rows: [3, 5], inner: 7, columns }
}

impl Extents {
    /// The shape of a summand for each column.
    pub fn row(&self) -> Vec<usize> {
        vec![self.columns]
    }

    /// The shape of the product.
    pub fn all(&self) -> Vec<usize> {
        vec![self.rows[0], self.rows[1], self.columns]
    }
}

/// A chain behind a product.
pub struct Chained {
    pub extents: Extents,
    pub steps: Vec<FusedStep>,
    pub outputs: Vec<usize>,
    /// The shapes of the chain's operands behind the product.
    pub others: Vec<Vec<usize>>,
    pub keeps: Option<FusedArg>,
    pub shared: Vec<InPlace>,
}

/// A chain that was joined with its product.
pub struct Joined {
    pub call: Call,
    /// The op only names it: both factors and the chain's operands, all results.
    pub case: Case,
    /// What the ops give one after the other.
    pub right: Vec<Vec<f64>>,
}

impl Chained {
    /// The last step is the result.
    pub fn new(extents: Extents, steps: Vec<FusedStep>, others: &[&[usize]]) -> Self {
        let outputs = vec![steps.len() - 1];
        let others = others.iter().map(|shape| shape.to_vec()).collect();
        Self { extents, steps, outputs, others, keeps: None, shared: Vec::new() }
    }

    pub fn giving(self, outputs: &[usize]) -> Self {
        Self { outputs: outputs.to_vec(), ..self }
    }

    pub fn keeping(self, keeps: FusedArg) -> Self {
        Self { keeps: Some(keeps), ..self }
    }

    pub fn sharing(self, operand: usize) -> Self {
        Self { shared: vec![InPlace::new(0, operand)], ..self }
    }

    /// The call and what it should give, of factors of this type that `multiply` multiplies; `None` where there is no call.
    pub fn join(&self, dtype: DType, multiply: impl FnOnce(&Case) -> Vec<f64>) -> Option<Joined> {
        let mut random = Random::new(1);
        let mut filled = |shape: &[usize]| filled(&mut random, dtype, shape);
        let Extents { rows, inner, columns } = self.extents;
        let shape = self.extents.all();
        let (a, b) = (filled(&[rows[0], rows[1], inner]), filled(&[columns, inner]));
        let others: Vec<_> = self.others.iter().map(|shape| filled(shape)).collect();
        let op = MatMul { transpose_a: false, transpose_b: true };
        let made = multiplied(op, [&a, &b], dtype, &shape, multiply);
        let operands: Vec<_> = std::iter::once(made.clone()).chain(others).collect();
        let chain = FusedOp { steps: self.steps.clone(), outputs: self.outputs.clone() };
        let mut case = Case { op: Op::MatMul(op), operands, results: vec![] };
        let values = evaluated(&chain, &case, &shape);
        let region = |step: usize| {
            let ty = TensorType::new(values[step].0, shape.clone());
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
        Some(Joined { call, case, right })
    }
}

pub fn filled(random: &mut Random, dtype: DType, shape: &[usize]) -> (Region, Memory) {
    let ty = TensorType::new(dtype, shape);
    let values: Vec<f64> = (0..ty.elements()).map(|i| ordinary(random, i, dtype)).collect();
    (Region::whole(&ty), Memory::of(dtype, &values))
}

pub fn multiplied(
    op: MatMul,
    [a, b]: [&(Region, Memory); 2],
    dtype: DType,
    shape: &[usize],
    multiply: impl FnOnce(&Case) -> Vec<f64>,
) -> (Region, Memory) {
    let made = Region::whole(&TensorType::new(dtype, shape));
    let operands = vec![a.clone(), b.clone()];
    let case = Case { op: Op::MatMul(op), operands, results: vec![made.clone()] };
    let memory = Memory::of(dtype, &rounded(dtype, &multiply(&case)));
    (made, memory)
}

/// The product by its op's own evaluation.
pub fn evaluate(case: &Case) -> Vec<f64> {
    case.oracle(&EvalContext::default()).expect("a product").remove(0).data
}

/// Products with summands and functions that a library has.
pub fn with_summands(of: Extents) -> Vec<Chained> {
    use UnaryFunction::{GeluTanh, Relu};
    let (row, all) = (&of.row()[..], &of.all()[..]);
    let spread = [1, 1, of.columns];
    vec![
        Chained::new(of, vec![add(X(0), X(1))], &[row]),
        Chained::new(of, vec![add(X(1), X(0)), add(X(2), S(0))], &[row, all]),
        Chained::new(of, vec![add(X(1), X(0)), add(X(2), S(0))], &[row, all]).sharing(2),
        Chained::new(of, vec![add(X(0), X(1)), apply(Relu, S(0))], &[row]),
        Chained::new(of, vec![add(X(0), X(1)), apply(GeluTanh, S(0))], &[&spread]),
        Chained::new(of, vec![apply(GeluTanh, X(0))], &[]),
    ]
}

/// Products with GELU, of which that is kept of which it is taken.
pub fn keeping(of: Extents) -> Vec<Chained> {
    let steps = || vec![add(X(1), X(0)), apply(UnaryFunction::GeluTanh, S(0))];
    let bare = || vec![apply(UnaryFunction::GeluTanh, X(0))];
    let (row, all) = (&of.row()[..], &of.all()[..]);
    vec![
        Chained::new(of, steps(), &[row]).giving(&[0, 1]),
        Chained::new(of, steps(), &[row]).giving(&[1, 0]),
        Chained::new(of, steps(), &[row]).keeping(S(0)),
        Chained::new(of, steps(), &[all]).keeping(S(0)),
        Chained::new(of, bare(), &[]).keeping(X(0)),
    ]
}

/// Products with the gradient of GELU, and with sums of it.
pub fn gradients(of: Extents) -> Vec<Chained> {
    let all = &of.all()[..];
    let plain = || gradient(X(1), X(0));
    let summed = || [plain(), vec![sum(&[0, 1], S(17))]].concat();
    let mut behind = gradient(X(1), S(18));
    behind.push(add(X(0), X(2)));
    behind.swap(17, 18);
    let behind: Vec<FusedStep> = behind.into_iter().map(exchanged).collect();
    vec![
        Chained::new(of, plain(), &[all]),
        Chained::new(of, behind, &[all, all]),
        Chained::new(of, summed(), &[all]).giving(&[17, 18]),
        Chained::new(of, summed(), &[all]).giving(&[18, 17]),
    ]
}

pub fn add(a: FusedArg, b: FusedArg) -> FusedStep {
    binary(BinaryFunction::Add, a, b)
}

pub fn binary(function: BinaryFunction, a: FusedArg, b: FusedArg) -> FusedStep {
    FusedStep { op: Op::Binary(Binary { function }), args: vec![a, b] }
}

pub fn apply(function: UnaryFunction, x: FusedArg) -> FusedStep {
    FusedStep { op: Op::Unary(Unary { function }), args: vec![x] }
}

pub fn sum(axes: &[usize], x: FusedArg) -> FusedStep {
    let op = Reduce { function: ReduceFunction::Sum, axes: axes.to_vec(), keep_dims: false };
    FusedStep { op: Op::Reduce(op), args: vec![x] }
}

/// The factor of tanh in GELU, and that of the cube in it.
pub fn constants() -> [f64; 2] {
    [(2.0 / std::f64::consts::PI).sqrt(), 0.044_715]
}

/// The gradient of GELU at an operand, times a value, as autodiff writes it: 15 steps.
pub fn gradient(x: FusedArg, value: FusedArg) -> Vec<FusedStep> {
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

/// Steps 17 and 18 have changed places.
fn exchanged(step: FusedStep) -> FusedStep {
    let args = step.args.into_iter().map(|arg| if arg == S(18) { S(17) } else { arg });
    FusedStep { op: step.op, args: args.collect() }
}
