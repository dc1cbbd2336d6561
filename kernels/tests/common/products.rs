//! Matrix products with what a library adds, applies, keeps and sums at their ends: chains that are joined with a product, and what
//! their ops give one after the other.
#![allow(dead_code, reason = "each test binary uses a part")]

use graphc_ir::op::{EvalContext, InPlace, Op, Region};
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::cuda::{Behind, Call, Sums, join_chain, join_sums};
use graphc_plan::FusedArg::{self, Operand as X, Step as S};
use graphc_plan::{FusedOp, FusedStep};

use crate::chains::{evaluated, rounded};
use crate::common::{Case, Memory, Random, ordinary, shard};

/// Element types, and how far results may be from those of the ops, which round after each step.
pub const TYPES: [(DType, f64); 3] = [(DType::F32, 1e-5), (DType::BF16, 3e-2), (DType::F16, 4e-3)];

/// Returns the error that an element of a product may have beside the same ops in f32, as a share of the greatest element, and without the
/// error of rounding to `dtype`. An element is rounded at most [`ROUNDINGS`] times. A library rounds once; where it refuses the epilogue,
/// there is a product and then a chain, whose greatest step is of the size of its result. Sums are of rounded elements.
pub fn unrounded_room(dtype: DType, is_sum: bool) -> f64 {
    match (dtype, is_sum) {
        (DType::F32, _) => 1e-5,
        (_, false) => 1e-3,
        (_, true) => 4e-3,
    }
}

/// The number of times that an element is rounded to its type, at most.
pub const ROUNDINGS: f64 = 3.0;

/// The content of a register, and its place in its tensor.
pub type Held = (Region, Memory);

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
    /// The results of the ops one after the other.
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

    /// The call and what the ops give one after the other, of factors of this type that `multiply` multiplies; `None` where there is no
    /// call.
    pub fn join(&self, dtype: DType, multiply: impl FnOnce(&Case) -> Vec<f64>) -> Option<Joined> {
        self.joined(dtype, dtype, multiply)
    }

    /// Returns the same call as [`Self::join`], and the results of the ops in f32, where nothing is rounded to the type of the factors.
    pub fn join_unrounded(
        &self,
        dtype: DType,
        multiply: impl FnOnce(&Case) -> Vec<f64>,
    ) -> Option<Joined> {
        self.joined(dtype, DType::F32, multiply)
    }

    /// The call of factors of one type, and what the ops give in another one.
    fn joined(
        &self,
        dtype: DType,
        computed: DType,
        multiply: impl FnOnce(&Case) -> Vec<f64>,
    ) -> Option<Joined> {
        let op = MatMul { transpose_a: false, transpose_b: true };
        let (factors, others) = self.fill(dtype);
        let [a, b] = factors.each_ref().map(|factor| held_as(computed, factor));
        let product = multiplied(op, [&a, &b], computed, &self.extents.all(), multiply);
        let right = self.evaluate(op, &product, &others);
        let mut results = self.results(dtype);
        let product = held_as(dtype, &product);
        results.extend(self.keeps.map(|_| product.0.clone()));
        let chained: Vec<_> = std::iter::once(product).chain(others).collect();
        let call = self.call(op, [&factors[0].0, &factors[1].0], &chained, &results)?;
        let operands = factors.into_iter().chain(chained).collect();
        Some(Joined { call, case: Case { op: Op::MatMul(op), operands, results }, right })
    }

    /// The factors, and the chain's operands behind the product.
    fn fill(&self, dtype: DType) -> ([Held; 2], Vec<Held>) {
        let mut random = Random::new(1);
        let mut filled = |shape: &[usize]| filled(&mut random, dtype, shape);
        let Extents { rows, inner, columns } = self.extents;
        let factors = [filled(&[rows[0], rows[1], inner]), filled(&[columns, inner])];
        (factors, self.others.iter().map(|shape| filled(shape)).collect())
    }

    /// Evaluates the steps one after the other, in the type of the product.
    fn evaluate(&self, op: MatMul, product: &Held, others: &[Held]) -> Vec<Vec<f64>> {
        let others = others.iter().map(|other| held_as(product.0.dtype, other));
        let operands = std::iter::once(product.clone()).chain(others).collect();
        let case = Case { op: Op::MatMul(op), operands, results: vec![] };
        let chain = FusedOp { steps: self.steps.clone(), outputs: self.outputs.clone() };
        let values = evaluated(&chain, &case, &self.extents.all());
        let kept = self.keeps.map(|keeps| match keeps {
            S(step) => values[step].1.clone(),
            X(_) => product.1.values(),
        });
        self.outputs.iter().map(|&step| values[step].1.clone()).chain(kept).collect()
    }

    fn call(
        &self,
        op: MatMul,
        factors: [&Region; 2],
        chained: &[Held],
        results: &[Region],
    ) -> Option<Call> {
        let chain = FusedOp { steps: self.steps.clone(), outputs: self.outputs.clone() };
        let operands: Vec<_> = chained.iter().map(|operand| shard(&operand.0)).collect();
        let results: Vec<_> = results.iter().map(shard).collect();
        let Self { keeps, shared, .. } = self;
        let behind =
            Behind { chain: &chain, operands: &operands, product: 0, keeps: *keeps, shared };
        join_chain(&op, &factors.map(shard), behind, &results)
    }

    /// The results of the chain, of operands of this type.
    fn results(&self, dtype: DType) -> Vec<Region> {
        let all = self.extents.all();
        let mut made: Vec<TensorType> = Vec::new();
        for FusedStep { op, args } in &self.steps {
            let of = |arg: &FusedArg| match *arg {
                X(_) => TensorType::new(dtype, all.clone()),
                S(step) => made[step].clone(),
            };
            let args: Vec<TensorType> = args.iter().map(of).collect();
            made.push(op.infer_types(&args.iter().collect::<Vec<_>>()).expect("it fits").remove(0));
        }
        self.outputs.iter().map(|&step| Region::whole(&made[step])).collect()
    }
}

/// Returns the same numbers in memory of another type.
fn held_as(dtype: DType, (of, memory): &Held) -> Held {
    (Region { dtype, ..of.clone() }, Memory::of(dtype, &memory.values()))
}

pub fn filled(random: &mut Random, dtype: DType, shape: &[usize]) -> Held {
    let ty = TensorType::new(dtype, shape);
    let values: Vec<f64> = (0..ty.elements()).map(|i| ordinary(random, i, dtype)).collect();
    (Region::whole(&ty), Memory::of(dtype, &values))
}

pub fn multiplied(
    op: MatMul,
    [a, b]: [&Held; 2],
    dtype: DType,
    shape: &[usize],
    multiply: impl FnOnce(&Case) -> Vec<f64>,
) -> Held {
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

/// A product of halves that is given in f32.
pub fn widened(of: Extents) -> Chained {
    let cast = Op::Cast(Cast { dtype: DType::F32 });
    Chained::new(of, vec![FusedStep { op: cast, args: vec![X(0)] }], &[])
}

/// A gradient of GELU with sums over other dims, which are launches behind the product.
pub fn with_other_sums(of: Extents) -> Chained {
    let steps = [gradient(X(1), X(0)), vec![sum(&[2], S(17))]].concat();
    Chained::new(of, steps, &[&of.all()]).giving(&[17, 18])
}

/// A product, and sums of one of its factors over the extent that it sums over.
pub struct SummedFactor {
    pub op: MatMul,
    pub factors: [Held; 2],
    /// The factor that is summed: 0 or 1.
    pub factor: usize,
    /// The dim that is summed.
    pub axis: usize,
    pub product: Held,
    pub sums: (Region, Vec<f64>),
}

impl SummedFactor {
    /// The product [rows, inner] x [inner, columns] whose factors are stored turned or not.
    pub fn new(
        random: &mut Random,
        dtype: DType,
        [rows, inner, columns]: [usize; 3],
        [transpose_a, transpose_b, second]: [bool; 3],
    ) -> Self {
        let turned = |[a, b]: [usize; 2], turn: bool| if turn { [b, a] } else { [a, b] };
        let op = MatMul { transpose_a, transpose_b };
        let a = filled(random, dtype, &turned([rows, inner], transpose_a));
        let b = filled(random, dtype, &turned([inner, columns], transpose_b));
        let (x, turn) = if second { (&b, !transpose_b) } else { (&a, transpose_a) };
        let axis = usize::from(!turn);
        let reduce = Op::Reduce(Self::sum(axis));
        let ty = TensorType::new(dtype, x.0.rect.extent.clone());
        let sums = Region::whole(&reduce.infer_types(&[&ty]).expect("it fits")[0]);
        let case = Case { op: reduce, operands: vec![x.clone()], results: vec![sums.clone()] };
        let right = case.oracle(&EvalContext::default()).expect("sums").remove(0).data;
        let product = multiplied(op, [&a, &b], dtype, &[rows, columns], evaluate);
        let (factors, factor) = ([a, b], usize::from(second));
        Self { op, factors, factor, axis, product, sums: (sums, right) }
    }

    fn sum(axis: usize) -> Reduce {
        Reduce { function: ReduceFunction::Sum, axes: vec![axis], keep_dims: false }
    }

    /// The call with this reduction; `None` where it is none that a product brings.
    pub fn join_with(&self, reduce: &Reduce, sums: &Region) -> Option<Call> {
        let factors = self.factors.each_ref().map(|factor| shard(&factor.0));
        let operand = &factors[self.factor];
        let of = Sums { factor: self.factor, operand, reduce };
        join_sums(&self.op, &factors, of, [&shard(&self.product.0), &shard(sums)])
    }

    /// The call, and what comes out of it.
    pub fn join(&self) -> Option<Joined> {
        let call = self.join_with(&Self::sum(self.axis), &self.sums.0)?;
        let results = vec![self.product.0.clone(), self.sums.0.clone()];
        let case = Case { op: Op::MatMul(self.op), operands: self.factors.to_vec(), results };
        let right = vec![self.product.1.values(), self.sums.1.clone()];
        Some(Joined { call, case, right })
    }
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
