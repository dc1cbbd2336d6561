//! Loss scaling: what is not finite, and the scale that follows.

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
        return Err(KernelError::call("non_finite", "takes 1 operand and gives 1 result"));
    };
    let mut count = 0;
    let mut room = [0.0; BLOCK];
    for start in (0..operand.len()).step_by(BLOCK) {
        let elements = operand.block::<T>(start..operand.len().min(start + BLOCK))?;
        let block = T::read(elements, &mut room);
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
        return Err(KernelError::call("loss_scale", "another op"));
    };
    if operands.len() != 4 || results.len() != 7 || operands.iter().any(View::is_empty) {
        return Err(KernelError::call("loss_scale", "takes 4 numbers and gives 7"));
    }
    let mut numbers = [0.0; 4];
    for (number, operand) in numbers.iter_mut().zip(operands) {
        *number = f64::from(operand.block::<f32>(0..1)?[0]);
    }
    for (result, number) in results.iter_mut().zip(scaling.step(numbers)) {
        result.as_mut_slice::<f32>()?[0] = number as f32;
    }
    Ok(())
}
