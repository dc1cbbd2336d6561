//! Values of a chain's steps as expressions of C++. Floating-point values are `float`, whatever their type in memory; integers and
//! truth values are `i64`, of which those with fewer bits keep the low ones after each step.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, UnaryFunction};
use graphc_ir::types::DType;
use graphc_plan::FusedArg;

use super::super::Shard;
use super::super::source::{element_type, f32_literal};
use super::{BorrowedStep, mismatch_error};
use crate::error::KernelError;

/// A value that a step reads.
#[derive(Clone, Debug)]
pub(super) struct StepValue {
    pub(super) name: String,
    pub(super) dtype: DType,
}

/// The element type of each step's value.
pub(super) fn step_dtypes(
    steps: &[BorrowedStep<'_>],
    operands: &[Shard],
) -> Result<Vec<DType>, KernelError> {
    let mut dtypes: Vec<DType> = Vec::new();
    for step in steps {
        let dtype = |arg: &FusedArg| match *arg {
            FusedArg::Operand(operand) => operands.get(operand).map(Shard::dtype),
            FusedArg::Step(step) => dtypes.get(step).copied(),
        };
        let args: Option<Vec<DType>> = step.args.iter().map(dtype).collect();
        let args = args.ok_or_else(|| mismatch_error("a step that reads what is not there"))?;
        let first = *args.first().ok_or_else(|| mismatch_error("a step without operands"))?;
        dtypes.push(match step.op {
            Op::Unary(_) | Op::Reduce(_) => first,
            Op::Binary(op) => op.function.result_dtype(first),
            Op::Where(_) => {
                *args.get(1).ok_or_else(|| mismatch_error("a choice between nothing"))?
            }
            Op::Cast(op) => op.dtype,
            op => return Err(KernelError::bad_call("fused", format!("{} in a chain", op.name()))),
        });
    }
    Ok(dtypes)
}

/// Returns the C++ expression of a step's value, of type `dtype`.
pub(super) fn step_expression(
    op: &Op,
    args: &[StepValue],
    dtype: DType,
) -> Result<String, KernelError> {
    let value = match (op, args) {
        (Op::Unary(op), [x]) if dtype.is_float() => unary_expression(op.function, &x.name),
        (Op::Unary(op), [x]) => integer_unary(op.function, &x.name)?,
        (Op::Binary(op), [a, b]) => binary_expression(op.function, a, b)?,
        (Op::Where(_), [condition, a, b]) => {
            format!("({} != 0 ? {} : {})", condition.name, a.name, b.name)
        }
        (Op::Cast(_), [x]) => cast_expression(x, dtype),
        _ => return Err(mismatch_error("a step with another number of operands")),
    };
    Ok(match dtype {
        DType::F32 | DType::I64 => value,
        _ => format!("rounded<{}>({value})", element_type(dtype)),
    })
}

fn cast_expression(x: &StepValue, dtype: DType) -> String {
    let name = &x.name;
    match (x.dtype.holds_floats(), dtype) {
        (true, DType::Bool) => format!("(i64)({name} != 0.0f)"),
        (true, dtype) if !dtype.holds_floats() => format!("truncated({name})"),
        (false, dtype) if dtype.holds_floats() => format!("(float){name}"),
        _ => name.clone(),
    }
}

fn unary_expression(function: UnaryFunction, x: &str) -> String {
    match function {
        UnaryFunction::Relu => format!("({x} < 0.0f ? 0.0f : {x})"),
        UnaryFunction::Gelu => format!("(0.5f * {x} * (1.0f + erff({x} * 0.70710678f)))"),
        UnaryFunction::GeluTanh => format!(
            "(0.5f * {x} * (1.0f + tanhf(0.7978846f * ({x} + 0.044715f * {x} * {x} * {x}))))"
        ),
        UnaryFunction::Sigmoid => format!("(1.0f / (1.0f + expf(-{x})))"),
        UnaryFunction::Tanh => format!("tanhf({x})"),
        UnaryFunction::Silu => format!("({x} / (1.0f + expf(-{x})))"),
        UnaryFunction::Exp => format!("expf({x})"),
        UnaryFunction::Log => format!("logf({x})"),
        UnaryFunction::Sqrt => format!("sqrtf({x})"),
        UnaryFunction::Rsqrt => format!("(1.0f / sqrtf({x}))"),
        UnaryFunction::Abs => format!("fabsf({x})"),
        UnaryFunction::Neg => format!("(-{x})"),
        UnaryFunction::Sign => format!("({x} < 0.0f ? -1.0f : ({x} > 0.0f ? 1.0f : 0.0f))"),
        UnaryFunction::Erf => format!("erff({x})"),
        UnaryFunction::Sin => format!("sinf({x})"),
        UnaryFunction::Cos => format!("cosf({x})"),
        UnaryFunction::Floor => format!("floorf({x})"),
        UnaryFunction::Ceil => format!("ceilf({x})"),
        UnaryFunction::Round => format!("rintf({x})"),
        UnaryFunction::Reciprocal => format!("(1.0f / {x})"),
        UnaryFunction::Detach => x.to_owned(),
        UnaryFunction::Not => format!("({x} == 0.0f ? 1.0f : 0.0f)"),
        UnaryFunction::Scale(value) => format!("({x} * {})", f32_literal(value.0 as f32)),
        UnaryFunction::Offset(value) => format!("({x} + {})", f32_literal(value.0 as f32)),
        UnaryFunction::PowScalar(value) => power_expression(x, value.0),
        UnaryFunction::Clip { low, high } => {
            let (low, high) = (f32_literal(low.0 as f32), f32_literal(high.0 as f32));
            format!("({x} < {low} ? {low} : ({x} > {high} ? {high} : {x}))")
        }
    }
}

/// x to a fixed power; the usual ones without the general function.
fn power_expression(x: &str, value: f64) -> String {
    match value {
        2.0 => format!("({x} * {x})"),
        3.0 => format!("({x} * {x} * {x})"),
        1.0 => x.to_owned(),
        -1.0 => format!("(1.0f / {x})"),
        -2.0 => format!("(1.0f / ({x} * {x}))"),
        _ => format!("powf({x}, {})", f32_literal(value as f32)),
    }
}

fn integer_unary(function: UnaryFunction, x: &str) -> Result<String, KernelError> {
    Ok(match function {
        UnaryFunction::Relu => format!("({x} < 0 ? (i64)0 : {x})"),
        UnaryFunction::Abs => format!("({x} < 0 ? (i64)(0ull - (u64){x}) : {x})"),
        UnaryFunction::Neg => format!("(i64)(0ull - (u64){x})"),
        UnaryFunction::Sign => format!("(i64)(({x} > 0) - ({x} < 0))"),
        UnaryFunction::Not => format!("(i64)({x} == 0)"),
        UnaryFunction::Scale(value) => format!("(i64)((u64){x} * (u64){}ll)", value.0 as i64),
        UnaryFunction::Offset(value) => format!("(i64)((u64){x} + (u64){}ll)", value.0 as i64),
        UnaryFunction::Clip { low, high } => {
            let bounds = [low.0, high.0].map(integer_bound);
            format!("({x} < {0} ? {0} : ({x} > {1} ? {1} : {x}))", bounds[0], bounds[1])
        }
        _ => return Err(KernelError::bad_call("unary", format!("no {function:?} of integers"))),
    })
}

/// A bound as a literal: the least integer has none of its own.
fn integer_bound(bound: f64) -> String {
    match bound as i64 {
        i64::MIN => format!("(-{}ll - 1)", i64::MAX),
        bound => format!("{bound}ll"),
    }
}

fn binary_expression(
    function: BinaryFunction,
    a: &StepValue,
    b: &StepValue,
) -> Result<String, KernelError> {
    let float = a.dtype.is_float();
    let (a, b) = (&a.name, &b.name);
    let wrapping = |sign: &str| match float {
        true => format!("({a} {sign} {b})"),
        false => format!("(i64)((u64){a} {sign} (u64){b})"),
    };
    let truth = |sign: &str| format!("(i64)({a} {sign} {b})");
    Ok(match function {
        BinaryFunction::Add => wrapping("+"),
        BinaryFunction::Sub => wrapping("-"),
        BinaryFunction::Mul => wrapping("*"),
        BinaryFunction::Div if float => format!("({a} / {b})"),
        BinaryFunction::Div => format!("quotient({a}, {b}, account, call)"),
        BinaryFunction::Pow if float => format!("powf({a}, {b})"),
        // A whole number, or at most a half: what the function is beside it is rounded away.
        BinaryFunction::Pow => format!("(i64)rint(pow((double){a}, (double){b}))"),
        // What is no number stays so.
        BinaryFunction::Max => format!("({a} > {b} || {a} != {a} ? {a} : {b})"),
        BinaryFunction::Min => format!("({a} < {b} || {a} != {a} ? {a} : {b})"),
        BinaryFunction::Equal => truth("=="),
        BinaryFunction::NotEqual => truth("!="),
        BinaryFunction::Less => truth("<"),
        BinaryFunction::LessEqual => truth("<="),
        BinaryFunction::Greater => truth(">"),
        BinaryFunction::GreaterEqual => truth(">="),
        BinaryFunction::And => format!("(i64)({a} != 0 && {b} != 0)"),
        BinaryFunction::Or => format!("(i64)({a} != 0 || {b} != 0)"),
        BinaryFunction::BitAnd => format!("((i64){a} & (i64){b})"),
        BinaryFunction::BitOr => format!("((i64){a} | (i64){b})"),
        BinaryFunction::BitXor => format!("((i64){a} ^ (i64){b})"),
        BinaryFunction::RoundFloat8 => format!("({a} * float8_scale<e4m3_t>({b}))"),
        BinaryFunction::RoundFloat8E5m2 => format!("({a} * float8_scale<e5m2_t>({b}))"),
    })
}
