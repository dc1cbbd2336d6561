//! Updates block by block: a block of each tensor is brought to the stack as `f32`, updated there, and written back. Operands may be the
//! results' memory.

use std::ops::Range;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::precision::Float;
use crate::product::Then;
use crate::view::{Flat, Parts, View, ViewMut};

/// Elements of a block.
pub(crate) const BLOCK: usize = 512;

/// Gradients that are there part by part.
pub(crate) trait Parted: Sync {
    /// Gives all parts, on several threads, to who reads the same parts of some others.
    ///
    /// # Errors
    /// Those of who takes them.
    fn each(
        &self,
        cx: &mut KernelContext<'_>,
        beside: &[Parts<'_>],
        take: Then<'_>,
    ) -> Result<(), KernelError>;
}

/// What an update works on: how variables and gradients are read and written, whatever their types, and where the gradient comes from
/// if not from its operand.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    variable: Read,
    gradient: Read,
    result: Write,
    parted: Option<&'a dyn Parted>,
}

type Read = fn(&View<'_>, Range<usize>, &mut [f32]) -> Result<(), KernelError>;
type Write = fn(&[f32], &mut Flat<'_>, Range<usize>) -> Result<(), KernelError>;

impl<'a> Given<'a> {
    /// Variables of type `W`, gradients of type `G`.
    pub(crate) fn of<W: Float, G: Float>() -> Self {
        Self { variable: read::<W>, gradient: read::<G>, result: write::<W>, parted: None }
    }

    /// Variables of `f32`, and gradients that are there part by part.
    pub(crate) fn in_parts(parted: &'a dyn Parted) -> Self {
        Self { parted: Some(parted), ..Self::of::<f32, f32>() }
    }

    /// The same where the first result is of type `O`, not the variable's.
    pub(super) fn with_result_of<O: Float>(self) -> Self {
        Self { result: write::<O>, ..self }
    }
}

fn read<T: Float>(from: &View<'_>, range: Range<usize>, to: &mut [f32]) -> Result<(), KernelError> {
    T::widen(from.block(range)?, to);
    Ok(())
}

fn write<T: Float>(
    from: &[f32],
    to: &mut Flat<'_>,
    range: Range<usize>,
) -> Result<(), KernelError> {
    T::narrow(from, to.block(range)?);
    Ok(())
}

/// The tensors of an update: operand 1 is the gradient, the others are the variables that the results replace, in order.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub op: &'static str,
    pub tensors: &'a [View<'a>],
    pub given: Given<'a>,
}

/// Updates so many elements of buffers, one for each operand.
pub(super) type Step<'a, const N: usize> = &'a (dyn Fn([&mut [f32; BLOCK]; N], usize) + Sync);

/// Makes the step on all blocks of `N` operands and `R` results.
///
/// Types are told apart by the address of what reads and writes them, and the step is called by its address: one copy of the loops
/// serves all updates.
pub(super) fn over_blocks<const N: usize, const R: usize>(
    Operands { op, tensors, given }: Operands<'_>,
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
    step: Step<'_, N>,
) -> Result<(), KernelError> {
    let Ok(tensors) = <&[View<'_>; N]>::try_from(tensors) else {
        return Err(KernelError::call(op, format!("takes {N} operands, not {}", tensors.len())));
    };
    let len = tensors[0].len();
    let same = |of: usize| of == len;
    let fits = tensors.iter().all(|tensor| same(tensor.len()))
        && results.iter().all(|result| same(result.len()));
    let Some(results) = <&mut [ViewMut<'_>; R]>::try_from(results).ok().filter(|_| fits) else {
        return Err(KernelError::call(op, "operands or results of other number or shape"));
    };
    if let Some(parted) = given.parted {
        return over_parts(given, parted, tensors, results, cx, step);
    }
    let parts = parallel::parts(cx, len);
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
    parallel::run(cx.pool, pieces, &|(whole, mut outputs): (Range<usize>, Vec<Flat<'_>>)| {
        let mut buffers = [[0.0; BLOCK]; N];
        for start in whole.clone().step_by(BLOCK) {
            let range = start..whole.end.min(start + BLOCK);
            given.fill(tensors, range.clone(), &mut buffers)?;
            (given.gradient)(&tensors[1], range.clone(), &mut buffers[1][..range.len()])?;
            step(buffers.each_mut(), range.len());
            given.put(&buffers, start - whole.start..range.end - whole.start, &mut outputs)?;
        }
        Ok(())
    })
}

/// The same where the gradient is there part by part.
fn over_parts<const N: usize, const R: usize>(
    given: Given<'_>,
    parted: &dyn Parted,
    tensors: &[View<'_>; N],
    results: &mut [ViewMut<'_>; R],
    cx: &mut KernelContext<'_>,
    step: Step<'_, N>,
) -> Result<(), KernelError> {
    let outputs: [Parts<'_>; R] = results.each_mut().map(|result| result.parts());
    parted.each(cx, &outputs, &|made| {
        let mut buffers = [[0.0; BLOCK]; N];
        for (range, gradient) in made.pieces(BLOCK) {
            given.fill(tensors, range.clone(), &mut buffers)?;
            buffers[1][..range.len()].copy_from_slice(gradient);
            step(buffers.each_mut(), range.len());
            // SAFETY: each element comes once, and who takes it reaches these elements alone.
            let mut places = outputs.map(|output| unsafe { output.part(range.clone()) });
            given.put(&buffers, 0..range.len(), &mut places)?;
        }
        Ok(())
    })
}

impl Given<'_> {
    /// Brings a block of all tensors but the gradient to buffers.
    fn fill(
        &self,
        tensors: &[View<'_>],
        range: Range<usize>,
        buffers: &mut [[f32; BLOCK]],
    ) -> Result<(), KernelError> {
        for (index, (buffer, tensor)) in buffers.iter_mut().zip(tensors).enumerate() {
            let buffer = &mut buffer[..range.len()];
            match index {
                0 => (self.variable)(tensor, range.clone(), buffer)?,
                1 => {}
                _ => buffer.copy_from_slice(tensor.block(range.clone())?),
            }
        }
        Ok(())
    }

    /// Writes a block of all variables back.
    fn put(
        &self,
        buffers: &[[f32; BLOCK]],
        range: Range<usize>,
        outputs: &mut [Flat<'_>],
    ) -> Result<(), KernelError> {
        let variables = buffers.iter().enumerate().filter(|&(index, _)| index != 1);
        for (output, (index, buffer)) in outputs.iter_mut().zip(variables) {
            let buffer = &buffer[..range.len()];
            match index {
                0 => (self.result)(buffer, output, range.clone())?,
                _ => output.write(range.start, buffer)?,
            }
        }
        Ok(())
    }
}
