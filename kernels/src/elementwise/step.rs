//! One step of a chain on one block.

use std::ops::Range;

use graphc_ir::float8::{E4M3, E5M2};
use graphc_ir::op::Op;
use graphc_ir::ops::BinaryFunction;
use graphc_ir::types::DType;

use super::program::{ArgumentSource, ChainStep};
use super::values::{Values, zip_elements};
use super::{Others, float, integer};
use crate::error::KernelError;
use crate::precision::{round_bf16, round_f16, round_float8};
use crate::simd::vectorized;
use crate::view::{Element, Flat, View, read_elements};

/// Evaluates a step for the elements `range` of the result and writes its value to `to`, which has as many: of arithmetic the first or the
/// second argument may be what is there, which its value replaces.
pub(super) fn evaluate_step(
    step: &ChainStep,
    replaced: Option<usize>,
    operands: &[View<'_>],
    range: &Range<usize>,
    buffers: &Others<'_>,
    mut to: Flat<'_>,
) -> Result<(), KernelError> {
    let values = |index: usize| read_argument(step.args[index], operands, range, buffers);
    let into = 0..range.len();
    if let Some(arithmetic) = step.arithmetic {
        let single = |index| read_single(step, index, operands, range, buffers);
        let first = replaced.unwrap_or(0);
        let arithmetic = if first == 0 { arithmetic } else { arithmetic.swap_operands() };
        let a = if replaced.is_some() { None } else { Some(single(0)?) };
        let (b, to) = (single(1 - first)?, to.block(into)?);
        match arithmetic.second {
            Some(_) => float::of_three(&arithmetic, (a, [b, single(2)?]), to),
            None => float::of_two(&arithmetic, a, b, to),
        }
        return Ok(());
    }
    if let Some(framed) = &step.framed {
        let x = read_single(step, 0, operands, range, buffers)?;
        float::apply_framed(framed, x, to.block(into)?);
        return Ok(());
    }
    match &step.op {
        Op::Unary(unary) => match values(0)? {
            Values::F32(x) => float::apply_unary(unary.function, x, to.block(into)?),
            Values::I64(x) => integer::apply_unary(unary.function, x, to.block(into)?)?,
            Values::I32(x) => integer::apply_unary(unary.function, x, to.block(into)?)?,
            Values::U8(x) => integer::apply_unary(unary.function, x, to.block(into)?)?,
        },
        Op::Binary(binary) => match (values(0)?, values(1)?) {
            (Values::F32(a), Values::F32(b)) if !binary.function.gives_bool() => {
                float::apply_binary(binary.function, a, b, to.block(into)?);
            }
            (Values::F32(a), Values::F32(b)) => {
                compare_elements(binary.function, a, b, to.block(into)?)
            }
            (Values::I64(a), Values::I64(b)) => of_integers(binary.function, a, b, &mut to, into)?,
            (Values::I32(a), Values::I32(b)) => of_integers(binary.function, a, b, &mut to, into)?,
            (Values::U8(a), Values::U8(b)) => of_integers(binary.function, a, b, &mut to, into)?,
            _ => return Err(mismatch_error(&step.op)),
        },
        Op::Where(_) => match (values(0)?, values(1)?, values(2)?) {
            (Values::U8(c), Values::F32(a), Values::F32(b)) => {
                select_elements(c, a, b, to.block(into)?)
            }
            (Values::U8(c), Values::I64(a), Values::I64(b)) => {
                select_elements(c, a, b, to.block(into)?)
            }
            (Values::U8(c), Values::I32(a), Values::I32(b)) => {
                select_elements(c, a, b, to.block(into)?)
            }
            (Values::U8(c), Values::U8(a), Values::U8(b)) => {
                select_elements(c, a, b, to.block(into)?)
            }
            _ => return Err(mismatch_error(&step.op)),
        },
        Op::Cast(_) => integer::cast_elements(values(0)?, &mut to, into)?,
        _ => return Err(mismatch_error(&step.op)),
    }
    match step.round {
        Some(DType::BF16) => round_bf16(to.block(0..range.len())?),
        Some(DType::F8E4M3) => round_float8(E4M3, to.block(0..range.len())?),
        Some(DType::F8E5M2) => round_float8(E5M2, to.block(0..range.len())?),
        Some(_) => round_f16(to.block(0..range.len())?),
        None => {}
    }
    Ok(())
}

/// The elements of an argument of `f32`.
#[inline]
fn read_single<'a>(
    step: &ChainStep,
    index: usize,
    operands: &[View<'a>],
    range: &Range<usize>,
    buffers: &Others<'a>,
) -> Result<&'a [f32], KernelError> {
    match read_argument(step.args[index], operands, range, buffers)? {
        Values::F32(x) => Ok(x),
        _ => Err(mismatch_error(&step.op)),
    }
}

/// The elements that a step sums, and gives to nobody else.
pub(super) fn read_summed<'a>(
    step: &ChainStep,
    operands: &[View<'a>],
    range: &Range<usize>,
    buffers: &Others<'a>,
) -> Result<&'a [f32], KernelError> {
    read_single(step, 0, operands, range, buffers)
}

/// The elements of an argument in a block.
#[inline]
fn read_argument<'a>(
    source: ArgumentSource,
    operands: &[View<'a>],
    range: &Range<usize>,
    buffers: &Others<'a>,
) -> Result<Values<'a>, KernelError> {
    match source {
        ArgumentSource::Direct(operand) => of_operand(&operands[operand], range.clone()),
        // Blocks end where rows do.
        ArgumentSource::Row(operand) => {
            let operand = &operands[operand];
            let first = range.start % operand.len();
            of_operand(operand, first..first + range.len())
        }
        ArgumentSource::Buffer(buffer) => of_buffer(buffers, buffer, range.len()),
    }
}

#[inline]
fn of_operand<'a>(operand: &View<'a>, range: Range<usize>) -> Result<Values<'a>, KernelError> {
    Ok(match operand.dtype {
        DType::F32 => Values::F32(operand.block(range)?),
        DType::I64 => Values::I64(operand.block(range)?),
        DType::I32 => Values::I32(operand.block(range)?),
        DType::U8 | DType::Bool => Values::U8(operand.block(range)?),
        // They are gathered into buffers of `f32`.
        dtype @ (DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2) => {
            return Err(KernelError::wrong_dtype::<f32>(dtype));
        }
    })
}

fn of_buffer<'a>(
    buffers: &Others<'a>,
    buffer: usize,
    count: usize,
) -> Result<Values<'a>, KernelError> {
    let words = buffers.words(buffer);
    Ok(match buffers.dtypes[buffer] {
        DType::F32 => Values::F32(read_elements(words, count)),
        DType::I64 => Values::I64(read_elements(words, count)),
        DType::I32 => Values::I32(read_elements(words, count)),
        DType::U8 | DType::Bool => Values::U8(read_elements(words, count)),
        // Buffers hold them as `f32`.
        dtype @ (DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2) => {
            return Err(KernelError::wrong_dtype::<f32>(dtype));
        }
    })
}

fn of_integers<T: integer::Integer>(
    function: BinaryFunction,
    a: &[T],
    b: &[T],
    to: &mut Flat<'_>,
    into: Range<usize>,
) -> Result<(), KernelError> {
    if function == BinaryFunction::Div && b.contains(&T::wrap(0)) {
        return Err(KernelError::DivisionByZero);
    }
    if function.gives_bool() {
        compare_elements(function, a, b, to.block(into)?);
    } else {
        integer::apply_binary(function, a, b, to.block(into)?);
    }
    Ok(())
}

fn mismatch_error(op: &Op) -> KernelError {
    KernelError::bad_call(op.name(), "element types that do not go together")
}

vectorized! {
    /// Comparisons and logic.
    fn compare_elements<T: Element>(function: BinaryFunction, a: &[T], b: &[T], out: &mut [u8]) {
        match function {
            BinaryFunction::Equal => zip_elements(a, b, out, |a, b| u8::from(a == b)),
            BinaryFunction::NotEqual => zip_elements(a, b, out, |a, b| u8::from(a != b)),
            BinaryFunction::Less => zip_elements(a, b, out, |a, b| u8::from(a < b)),
            BinaryFunction::LessEqual => zip_elements(a, b, out, |a, b| u8::from(a <= b)),
            BinaryFunction::Greater => zip_elements(a, b, out, |a, b| u8::from(a > b)),
            BinaryFunction::GreaterEqual => zip_elements(a, b, out, |a, b| u8::from(a >= b)),
            BinaryFunction::And => {
                let zero = T::default();
                zip_elements(a, b, out, |a, b| u8::from(a != zero) & u8::from(b != zero));
            }
            _ => {
                let zero = T::default();
                zip_elements(a, b, out, |a, b| u8::from(a != zero) | u8::from(b != zero));
            }
        }
    }
}

vectorized! {
    /// `a` where the condition holds, else `b`.
    fn select_elements<T: Element>(condition: &[u8], a: &[T], b: &[T], out: &mut [T]) {
        for (((out, &c), &a), &b) in out.iter_mut().zip(condition).zip(a).zip(b) {
            *out = T::choose(c != 0, a, b);
        }
    }
}
