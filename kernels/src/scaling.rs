//! Steps that are not made: what is not finite, and what follows for the scale of the loss and for updates.

use graphc_ir::op::Op;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::precision::Float;
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

/// Elements that are looked at before they are counted one by one.
const BLOCK: usize = 4096;

/// The kernel of [`Op::NonFinite`], of elements of type `T`.
pub(crate) fn non_finite<T: Float>(
    _op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    _cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let ([operand], [result]) = (operands, results) else {
        return Err(KernelError::bad_call("non_finite", "takes 1 operand and gives 1 result"));
    };
    let mut count = 0;
    let mut room = [0.0; BLOCK];
    for start in (0..operand.len()).step_by(BLOCK) {
        let elements = operand.block::<T>(start..operand.len().min(start + BLOCK))?;
        let block = T::read_values(elements, &mut room);
        let mut largest = [0];
        largest_bits(block, &mut largest);
        if largest[0] >= f32::INFINITY.to_bits() {
            count += block.iter().filter(|element| !element.is_finite()).count();
        }
    }
    result.as_mut_slice::<f32>()?[0] = count as f32;
    Ok(())
}

vectorized! {
    /// The largest of all absolute values as bits, which are those of infinity or above where an element is not finite.
    fn largest_bits(elements: &[f32], largest: &mut [u32; 1]) {
        for element in elements {
            largest[0] = largest[0].max(element.abs().to_bits());
        }
    }
}

/// The kernel of [`Op::LossScale`]. Results may be the operands' memory.
pub(crate) fn loss_scale(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    _cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let Op::LossScale(scaling) = op else {
        return Err(KernelError::bad_call("loss_scale", "another op"));
    };
    if !matches!(operands.len(), 4 | 5) || results.len() != 7 {
        return Err(KernelError::bad_call("loss_scale", "takes 4 or 5 numbers and gives 7"));
    }
    let of_step = read_numbers(operands)?;
    let factor = operands.get(4).map(read_number).transpose()?;
    write_numbers(results, &scaling.evaluate_guarded_step(of_step, factor))
}

/// The kernel of [`Op::SkipStep`]. Results may be the operands' memory.
pub(crate) fn skip_step(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let Op::SkipStep(skip) = op else {
        return Err(KernelError::bad_call("skip_step", "another op"));
    };
    if operands.len() != 2 || results.len() != 4 {
        return Err(KernelError::bad_call("skip_step", "takes 2 numbers and gives 4"));
    }
    write_numbers(results, &skip.evaluate_step(read_numbers(operands)?, cx.step))
}

fn read_numbers<const N: usize>(operands: &[View<'_>]) -> Result<[f64; N], KernelError> {
    let mut numbers = [0.0; N];
    for (result, operand) in numbers.iter_mut().zip(operands) {
        *result = read_number(operand)?;
    }
    Ok(numbers)
}

fn read_number(operand: &View<'_>) -> Result<f64, KernelError> {
    match operand.is_empty() {
        true => Err(KernelError::bad_call("loss_scale", "takes numbers")),
        false => Ok(f64::from(operand.block::<f32>(0..1)?[0])),
    }
}

fn write_numbers(results: &mut [ViewMut<'_>], numbers: &[f64]) -> Result<(), KernelError> {
    for (result, &number) in results.iter_mut().zip(numbers) {
        result.as_mut_slice::<f32>()?[0] = number as f32;
    }
    Ok(())
}
