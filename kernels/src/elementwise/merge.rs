//! Steps of a chain that one loop computes: two sums or products in a row and bounds behind them, or a function of one number
//! with short arithmetic around it.
//!
//! Values in between stay in registers. The loop computes what the steps compute, rounded after each operation.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, UnaryFunction};
use graphc_ir::types::{DType, TensorType};
use graphc_plan::FusedArg;

use super::StepRef;
use crate::error::KernelError;

/// `a ∘ b`, or `(a ∘ b) ∘ c`, of `f32`, between two bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BoundedArithmetic {
    pub first: Operator,
    pub second: Option<Operator>,
    /// Values below become `low`, those above `high`.
    pub low: f32,
    pub high: f32,
}

impl BoundedArithmetic {
    fn is_bounded(&self) -> bool {
        (self.low, self.high) != (f32::NEG_INFINITY, f32::INFINITY)
    }

    /// Exchanges the operands of the first operation.
    pub(super) fn swap_operands(self) -> Self {
        let first = match self.first {
            Operator::Sub => Operator::From,
            Operator::From => Operator::Sub,
            alike => alike,
        };
        Self { first, ..self }
    }

    /// Whether more than one step is done.
    fn is_of_several(&self) -> bool {
        self.second.is_some() || self.is_bounded()
    }
}

/// Arithmetic of two numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Operator {
    Add,
    Sub,
    /// The first from the second.
    From,
    Mul,
}

/// A function of one number with what is done before and behind it: `(function(before x) + offset) scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Framed {
    pub function: UnaryFunction,
    pub before: f32,
    pub offset: f32,
    pub scale: f32,
}

/// The offset that changes no number, not even -0.
const NO_OFFSET: f32 = -0.0;

impl Framed {
    /// A function alone, if it is one whose loop has such a frame.
    fn from_unary(function: UnaryFunction) -> Option<Self> {
        let has_frame = matches!(function, UnaryFunction::Erf | UnaryFunction::Exp);
        has_frame.then_some(Self { function, before: 1.0, offset: NO_OFFSET, scale: 1.0 })
    }

    /// Appends one more operation, if the frame has a place for it.
    fn followed_by(self, function: UnaryFunction) -> Option<Self> {
        let is_offset = self.offset.to_bits() != NO_OFFSET.to_bits();
        match function {
            _ if self.scale != 1.0 => None,
            UnaryFunction::Offset(value) if !is_offset => {
                Some(Self { offset: value.0 as f32, ..self })
            }
            UnaryFunction::Scale(value) => Some(Self { scale: value.0 as f32, ..self }),
            _ => None,
        }
    }

    /// A step together with that which makes its argument, if one loop can compute both.
    fn join_step(before: &MergedStep<'_>, step: &Op) -> Option<Self> {
        let Op::Unary(step) = step else { return None };
        match (before.framed, before.op) {
            (Some(framed), _) => framed.followed_by(step.function),
            (None, Op::Unary(producer)) => match producer.function {
                UnaryFunction::Scale(value) => {
                    Some(Self { before: value.0 as f32, ..Self::from_unary(step.function)? })
                }
                function => Self::from_unary(function)?.followed_by(step.function),
            },
            _ => None,
        }
    }
}

/// A step, or several that are one.
#[derive(Debug)]
pub(super) struct MergedStep<'a> {
    /// The op, of several the last.
    pub op: &'a Op,
    pub arithmetic: Option<BoundedArithmetic>,
    pub framed: Option<Framed>,
    pub args: Vec<FusedArg>,
}

/// The steps, as few as can be, and which of them give the results.
///
/// # Errors
/// Returns an error if a step refers to a value that does not exist, or does not take its arguments.
pub(super) fn merge_steps<'a>(
    steps: &[StepRef<'a>],
    outputs: &[usize],
    operands: &[TensorType],
) -> Result<(Vec<MergedStep<'a>>, Vec<usize>), KernelError> {
    let single = is_single(steps, operands)?;
    let mut uses = vec![0; steps.len()];
    let args = steps.iter().flat_map(|step| step.args);
    for step in args.filter_map(|&arg| step_of(arg)).chain(outputs.iter().copied()) {
        *uses.get_mut(step).ok_or_else(dangling_error)? += 1;
    }
    let mut found: Vec<Option<MergedStep<'a>>> = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        let alone = || MergedStep {
            op: step.op,
            arithmetic: if single[index] { read_arithmetic(step.op) } else { None },
            framed: None,
            args: step.args.to_vec(),
        };
        let before = step.args.iter().enumerate().find_map(|(place, &arg)| {
            let producer = step_of(arg).filter(|&producer| single[index] && uses[producer] == 1)?;
            let both = join_steps(found[producer].as_ref()?, step, place)?;
            Some((producer, both))
        });
        let merged = match before {
            Some((producer, both)) => {
                found[producer] = None;
                both
            }
            None => alone(),
        };
        found.push(Some(merged));
    }
    Ok(numbered_again(found, outputs))
}

/// Whether each step gives `f32` of nothing but `f32`.
fn is_single(steps: &[StepRef<'_>], operands: &[TensorType]) -> Result<Vec<bool>, KernelError> {
    let mut dtypes: Vec<DType> = Vec::with_capacity(steps.len());
    let mut single = Vec::with_capacity(steps.len());
    for step in steps {
        let dtype = |arg: &FusedArg| match *arg {
            FusedArg::Operand(operand) => operands.get(operand).map(|ty| ty.dtype),
            FusedArg::Step(step) => dtypes.get(step).copied(),
        };
        let args: Option<Vec<DType>> = step.args.iter().map(dtype).collect();
        let args = args.ok_or_else(dangling_error)?;
        // What a reduction gives no step reads.
        let sum = matches!(step.op, Op::Reduce(_));
        let given = match args.first() {
            Some(&summed) if sum => summed,
            _ => result_dtype(step.op, &args)?,
        };
        single.push(!sum && args.iter().chain([&given]).all(|&dtype| dtype == DType::F32));
        dtypes.push(given);
    }
    Ok(single)
}

fn step_of(arg: FusedArg) -> Option<usize> {
    match arg {
        FusedArg::Step(step) => Some(step),
        FusedArg::Operand(_) => None,
    }
}

/// Returns the op as one operation without bounds, if it is one.
fn read_arithmetic(op: &Op) -> Option<BoundedArithmetic> {
    let Op::Binary(binary) = op else { return None };
    let first = match binary.function {
        BinaryFunction::Add => Operator::Add,
        BinaryFunction::Sub => Operator::Sub,
        BinaryFunction::Mul => Operator::Mul,
        _ => return None,
    };
    Some(BoundedArithmetic { first, second: None, low: f32::NEG_INFINITY, high: f32::INFINITY })
}

/// A step together with that which makes the argument at `place`, if one loop can compute both.
fn join_steps<'a>(
    before: &MergedStep<'a>,
    step: &StepRef<'a>,
    place: usize,
) -> Option<MergedStep<'a>> {
    if let Some(framed) = Framed::join_step(before, step.op) {
        let args = before.args.clone();
        return Some(MergedStep { op: step.op, arithmetic: None, framed: Some(framed), args });
    }
    let first = before.arithmetic.filter(|arithmetic| !arithmetic.is_bounded())?;
    let mut args = before.args.clone();
    let arithmetic = match step.op {
        Op::Unary(unary) => {
            let (low, high) = match unary.function {
                UnaryFunction::Relu => (0.0, f32::INFINITY),
                UnaryFunction::Clip { low, high } => (low.0 as f32, high.0 as f32),
                _ => return None,
            };
            BoundedArithmetic { low, high, ..first }
        }
        _ => {
            let second = read_arithmetic(step.op)?.first;
            if first.second.is_some() {
                return None;
            }
            args.push(step.args[1 - place]);
            let second =
                if (second, place) == (Operator::Sub, 1) { Operator::From } else { second };
            BoundedArithmetic { second: Some(second), ..first }
        }
    };
    Some(MergedStep { op: step.op, arithmetic: Some(arithmetic), framed: None, args })
}

/// The steps that are left, which refer to one another by their new places.
fn numbered_again<'a>(
    found: Vec<Option<MergedStep<'a>>>,
    outputs: &[usize],
) -> (Vec<MergedStep<'a>>, Vec<usize>) {
    let mut count = 0;
    let mut places = Vec::with_capacity(found.len());
    for step in &found {
        places.push(count);
        count += usize::from(step.is_some());
    }
    let again = |arg: &FusedArg| match *arg {
        FusedArg::Step(step) => FusedArg::Step(places[step]),
        operand => operand,
    };
    let steps = found.into_iter().flatten().map(|step| MergedStep {
        op: step.op,
        arithmetic: step.arithmetic.filter(BoundedArithmetic::is_of_several),
        framed: step.framed,
        args: step.args.iter().map(again).collect(),
    });
    (steps.collect(), outputs.iter().map(|&output| places[output]).collect())
}

/// The error of a chain whose steps refer to nothing.
pub(super) fn dangling_error() -> KernelError {
    KernelError::bad_call("fused", "a step refers to an operand or a step that is not there")
}

/// The element type of a step's value.
pub(super) fn result_dtype(op: &Op, args: &[DType]) -> Result<DType, KernelError> {
    let operation = op.operation();
    let fail = || KernelError::bad_call(op.name(), format!("no elementwise step of {args:?}"));
    let types: Vec<TensorType> = args.iter().map(|&dtype| TensorType::new(dtype, [])).collect();
    let dtypes = operation.infer_dtypes(&types.iter().collect::<Vec<_>>()).ok();
    match dtypes.filter(|_| operation.is_elementwise()).as_deref() {
        Some(&[dtype]) => Ok(dtype),
        _ => Err(fail()),
    }
}
