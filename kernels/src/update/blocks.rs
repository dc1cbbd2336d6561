//! Updates block by block.
//!
//! A variable or a state of `f32` whose memory is the result's, as it nearly always is, is updated where it lies. The gradient,
//! other types and memory elsewhere are brought to the stack as `f32`, updated there, and written back.

use std::ops::Range;

use graphc_ir::types::DType;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::precision::Float;
use crate::product::Then;
use crate::view::{Flat, OutputParts, View, ViewMut};

/// Elements of a block.
pub(crate) const BLOCK: usize = 512;

/// Gradients that are there part by part.
pub(crate) trait PartedGradient: Sync {
    /// Gives all parts, on several threads, to who reads the same parts of some others.
    ///
    /// # Errors
    /// Those of who takes them.
    fn for_each_part(
        &self,
        cx: &mut KernelContext<'_>,
        beside: &[OutputParts<'_>],
        take: Then<'_>,
    ) -> Result<(), KernelError>;
}

/// The tensors of an update: how variables and gradients are read and written, whatever their types, and where the gradient comes
/// from if not from its operand.
#[derive(Clone, Copy)]
pub(crate) struct UpdateTensors<'a> {
    variable: Read,
    gradient: Read,
    result: Write,
    parted: Option<&'a dyn PartedGradient>,
}

type Read = fn(&View<'_>, Range<usize>, &mut [f32]) -> Result<(), KernelError>;
type Write = fn(&[f32], &mut Flat<'_>, Range<usize>) -> Result<(), KernelError>;

impl<'a> UpdateTensors<'a> {
    /// Variables of type `W`, gradients of type `G`.
    pub(crate) fn of_types<W: Float, G: Float>() -> Self {
        Self {
            variable: read_block::<W>,
            gradient: read_block::<G>,
            result: write_block::<W>,
            parted: None,
        }
    }

    /// Variables of `f32`, and gradients that are there part by part.
    pub(crate) fn in_parts(parted: &'a dyn PartedGradient) -> Self {
        Self { parted: Some(parted), ..Self::of_types::<f32, f32>() }
    }

    /// Sets the type of the first result to `O`, which need not be the variable's.
    pub(super) fn with_result_of<O: Float>(self) -> Self {
        Self { result: write_block::<O>, ..self }
    }
}

fn read_block<T: Float>(
    from: &View<'_>,
    range: Range<usize>,
    to: &mut [f32],
) -> Result<(), KernelError> {
    T::widen(from.block(range)?, to);
    Ok(())
}

fn write_block<T: Float>(
    from: &[f32],
    to: &mut Flat<'_>,
    range: Range<usize>,
) -> Result<(), KernelError> {
    T::narrow(from, to.block(range)?);
    Ok(())
}

/// The tensors of an update: operand 1 is the gradient, the others are the variables that the results replace, in order.
#[derive(Clone, Copy)]
pub(super) struct UpdateOperands<'a> {
    pub op: &'static str,
    pub tensors: &'a [View<'a>],
    pub given: UpdateTensors<'a>,
}

/// Updates a block of each operand; all have as many elements.
pub(super) type Step<'a, const N: usize> = &'a (dyn Fn([&mut [f32]; N]) + Sync);

/// Makes the step on all blocks of `N` operands and `R` results.
///
/// Types are told apart by the address of what reads and writes them, and the step is called by its address: one copy of the loops
/// serves all updates.
pub(super) fn over_blocks<const N: usize, const R: usize>(
    UpdateOperands { op, tensors, given }: UpdateOperands<'_>,
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
    step: Step<'_, N>,
) -> Result<(), KernelError> {
    let Ok(tensors) = <&[View<'_>; N]>::try_from(tensors) else {
        return Err(KernelError::bad_call(
            op,
            format!("takes {N} operands, not {}", tensors.len()),
        ));
    };
    let len = tensors[0].len();
    let same = |of: usize| of == len;
    let fits = tensors.iter().all(|tensor| same(tensor.len()))
        && results.iter().all(|result| same(result.len()));
    let Some(results) = <&mut [ViewMut<'_>; R]>::try_from(results).ok().filter(|_| fits) else {
        return Err(KernelError::bad_call(op, "operands or results of other number or shape"));
    };
    if let Some(parted) = given.parted {
        return over_parts(given, parted, tensors, results, cx, step);
    }
    let parts = parallel::count_parts(cx, len);
    let mut flats: Vec<Flat<'_>> = results.iter_mut().map(ViewMut::flat).collect();
    let mut pieces = Vec::with_capacity(parts);
    let mut start = 0;
    for part in 1..=parts {
        let end = (len.div_ceil(BLOCK) * part / parts * BLOCK).min(len);
        let (heads, tails): (Vec<_>, _) =
            flats.into_iter().map(|flat| flat.split_at(end - start)).unzip();
        flats = tails;
        pieces.push((start..end, heads));
        start = end;
    }
    parallel::run_parts(cx.pool, pieces, &|(whole, mut outputs): (Range<usize>, Vec<Flat<'_>>)| {
        let mut buffers = [[0.0; BLOCK]; N];
        for start in whole.clone().step_by(BLOCK) {
            let range = start..whole.end.min(start + BLOCK);
            (given.gradient)(&tensors[1], range.clone(), &mut buffers[1][..range.len()])?;
            let within = start - whole.start..range.end - whole.start;
            given.update([range, within], tensors, &mut outputs, &mut buffers, step)?;
        }
        Ok(())
    })
}

/// Updates blocks as the gradient becomes ready, part by part.
fn over_parts<const N: usize, const R: usize>(
    given: UpdateTensors<'_>,
    parted: &dyn PartedGradient,
    tensors: &[View<'_>; N],
    results: &mut [ViewMut<'_>; R],
    cx: &mut KernelContext<'_>,
    step: Step<'_, N>,
) -> Result<(), KernelError> {
    let outputs: [OutputParts<'_>; R] = results.each_mut().map(|result| result.parts());
    parted.for_each_part(cx, &outputs, &|made| {
        let mut buffers = [[0.0; BLOCK]; N];
        for (range, gradient) in made.pieces(BLOCK) {
            buffers[1][..range.len()].copy_from_slice(gradient);
            // SAFETY: each element comes once, and who takes it reaches these elements alone.
            let mut places = outputs.map(|output| unsafe { output.part(range.clone()) });
            let within = 0..range.len();
            given.update([range, within], tensors, &mut places, &mut buffers, step)?;
        }
        Ok(())
    })
}

impl UpdateTensors<'_> {
    /// Updates a range of all tensors, which is another one of the outputs. Buffer 1 has the gradient.
    fn update<const N: usize>(
        &self,
        [range, within]: [Range<usize>; 2],
        tensors: &[View<'_>; N],
        outputs: &mut [Flat<'_>],
        buffers: &mut [[f32; BLOCK]; N],
        step: Step<'_, N>,
    ) -> Result<(), KernelError> {
        let is_there = |output: &Flat<'_>, tensor: &View<'_>| {
            output.dtype() == DType::F32 && output.is_at(within.start, tensor, range.start)
        };
        let mut blocks = buffers.each_mut().map(|buffer| &mut buffer[..range.len()]);
        for (output, index) in outputs.iter_mut().zip(VARIABLES) {
            let tensor = &tensors[index];
            if is_there(output, tensor) {
                blocks[index] = output.block(within.clone())?;
            } else if index == 0 {
                (self.variable)(tensor, range.clone(), blocks[0])?;
            } else {
                blocks[index].copy_from_slice(tensor.block(range.clone())?);
            }
        }
        step(blocks);
        for (output, index) in outputs.iter_mut().zip(VARIABLES) {
            let buffer = &buffers[index][..range.len()];
            match index {
                _ if is_there(output, &tensors[index]) => {}
                0 => (self.result)(buffer, output, within.clone())?,
                _ => output.write(within.start, buffer)?,
            }
        }
        Ok(())
    }
}

/// The operands that results replace, in order: all but the gradient.
const VARIABLES: [usize; 4] = [0, 2, 3, 4];
