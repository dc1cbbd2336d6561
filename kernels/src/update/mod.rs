//! Steps of optimizers and of other states, each in one pass over its tensors. The results are usually the operands' memory.

mod rules;

use std::ops::Range;

use graphc_ir::op::Op;
use graphc_ir::ops::Blend;
use graphc_ir::scalar::Scalar;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::precision::Float;
use crate::product::Then;
use crate::view::{Element, Flat, Parts, View, ViewMut};
use rules::{
    AdamRates, LambRates, RmspropRates, SgdRates, adam_block, ahead_block, along_block,
    blend_block, clip_block, lamb_block, momentum_block, replace_block, rmsprop_block, scale_block,
    sgd_block, step_block,
};

/// Elements that are copied to the stack, updated, and written back: operands may be the results' memory.
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

/// The kernel of an update whose gradient is there part by part; the operand in its place says its type alone. `None` where the op has
/// none. Variables are of `f32`.
pub(crate) fn in_parts(op: &Op) -> Option<PartedKernel> {
    match op {
        Op::SgdUpdate(_) => Some(sgd_of::<f32, f32>),
        Op::AdamUpdate(_) => Some(adam_of::<f32, f32>),
        _ => None,
    }
}

/// A kernel of [`in_parts`].
pub(crate) type PartedKernel = fn(
    &Op,
    &[View<'_>],
    &mut [ViewMut<'_>],
    &mut KernelContext<'_>,
    Option<&dyn Parted>,
) -> Result<(), KernelError>;

/// The kernel of [`Op::SgdUpdate`]: of variables of type `W`, gradients of type `G`, and states of `f32`.
pub(crate) fn sgd<W: Float, G: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    sgd_of::<W, G>(op, operands, results, cx, None)
}

fn sgd_of<W: Float, G: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
    parted: Option<&dyn Parted>,
) -> Result<(), KernelError> {
    let Op::SgdUpdate(op) = op else { return Err(KernelError::call("sgd_update", "another op")) };
    let rates = SgdRates::of(op, op.lr.at(cx.step));
    let tensors = if op.momentum.0 == 0.0 { 2 } else { 3 };
    let (operands, scalars) = operands.split_at(tensors.min(operands.len()));
    let operands = (operands, Clipping::of(scalars, op.clip)?, parted);
    if op.momentum.0 == 0.0 {
        return update::<W, G, 2, 1>("sgd_update", operands, results, cx, |[w, g], count| {
            sgd_block(&rates, &mut w[..count], &g[..count]);
        });
    }
    // The momentum is operand 2 and result 1.
    update::<W, G, 3, 2>("sgd_update", operands, results, cx, |[w, g, m], count| {
        momentum_block(&rates, &mut w[..count], &g[..count], &mut m[..count]);
    })
}

/// The kernel of [`Op::AdamUpdate`]; types are those of [`sgd`].
pub(crate) fn adam<W: Float, G: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    adam_of::<W, G>(op, operands, results, cx, None)
}

fn adam_of<W: Float, G: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
    parted: Option<&dyn Parted>,
) -> Result<(), KernelError> {
    let Op::AdamUpdate(op) = op else { return Err(KernelError::call("adam_update", "another op")) };
    let (operands, scalars) = operands.split_at(4.min(operands.len()));
    let rates = AdamRates::of(op, op.lr.at(cx.step), update_number(scalars, cx)?);
    let operands = (operands, Clipping::of(scalars, op.clip)?, parted);
    update::<W, G, 4, 3>("adam_update", operands, results, cx, |[w, g, m, v], count| {
        adam_block(&rates, &mut w[..count], &g[..count], &mut m[..count], &mut v[..count]);
    })
}

/// The kernel of [`Op::RmspropUpdate`]; types are those of [`sgd`].
pub(crate) fn rmsprop<W: Float, G: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    const OP: &str = "rmsprop_update";
    let Op::RmspropUpdate(op) = op else { return Err(KernelError::call(OP, "another op")) };
    let rates = RmspropRates::of(op, op.lr.at(cx.step));
    let (operands, scalars) = operands.split_at(op.tensors().min(operands.len()));
    let operands = (operands, Clipping::of(scalars, op.clip)?, None);
    // What there is of means and momenta; the square is always operand 2.
    match (op.centered, op.has_momentum()) {
        (false, false) => update::<W, G, 3, 2>(OP, operands, results, cx, |[w, g, v], count| {
            rmsprop_block(&rates, [&mut w[..count], &mut g[..count], &mut v[..count]], None);
            step_block(&rates, &mut w[..count], &g[..count]);
        }),
        (true, false) => update::<W, G, 4, 3>(OP, operands, results, cx, |[w, g, v, a], count| {
            let mean = Some(&mut a[..count]);
            rmsprop_block(&rates, [&mut w[..count], &mut g[..count], &mut v[..count]], mean);
            step_block(&rates, &mut w[..count], &g[..count]);
        }),
        (false, true) => update::<W, G, 4, 3>(OP, operands, results, cx, |[w, g, v, m], count| {
            rmsprop_block(&rates, [&mut w[..count], &mut g[..count], &mut v[..count]], None);
            ahead_block(&rates, &g[..count], &mut m[..count]);
            step_block(&rates, &mut w[..count], &m[..count]);
        }),
        (true, true) => {
            update::<W, G, 5, 4>(OP, operands, results, cx, |[w, g, v, a, m], count| {
                let mean = Some(&mut a[..count]);
                rmsprop_block(&rates, [&mut w[..count], &mut g[..count], &mut v[..count]], mean);
                ahead_block(&rates, &g[..count], &mut m[..count]);
                step_block(&rates, &mut w[..count], &m[..count]);
            })
        }
    }
}

/// The kernel of [`Op::Blend`], of floating-point numbers: the state is of type `W`, what it takes in of type `G`.
pub(crate) fn blend<W: Float, G: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let Op::Blend(op) = op else { return Err(KernelError::call("blend", "another op")) };
    let (operands, scalars) = operands.split_at(2.min(operands.len()));
    let now = blend_at(op, scalars, cx)?;
    let [decay, rate] = [now.decay, now.rate].map(|share| share.0 as f32);
    let kept = Clipping { factor: stays(scalars)?.then_some(0.0), clip: None };
    update::<W, G, 2, 1>("blend", (operands, kept, None), results, cx, |[w, x], count| {
        // What is replaced may be no number.
        if decay == 0.0 {
            replace_block(rate, &mut w[..count], &x[..count]);
        } else {
            blend_block(decay, rate, &mut w[..count], &x[..count]);
        }
    })
}

/// What a blend does now: by the number of the update, where there is one, or by the step.
fn blend_at(
    op: &Blend,
    scalars: &[View<'_>],
    cx: &KernelContext<'_>,
) -> Result<Blend, KernelError> {
    match scalars.get(1) {
        Some(step) => Ok(op.at_update(number(step)?.into())),
        None => Ok(op.at(cx.step)),
    }
}

/// Whether the step is one that is not made.
fn stays(scalars: &[View<'_>]) -> Result<bool, KernelError> {
    Ok(scalars.first().map(number).transpose()? == Some(0.0))
}

/// The kernel of [`Op::Blend`], of integers and truth values: the state is counted up, or replaced.
pub(crate) fn count<T: Element + Count>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let Op::Blend(op) = op else { return Err(KernelError::call("blend", "another op")) };
    let ([state, more, scalars @ ..], [result]) = (operands, results) else {
        return Err(KernelError::call("blend", "takes two operands and gives one result"));
    };
    let (stays, now) = (stays(scalars)?, blend_at(op, scalars, cx)?);
    let len = state.len();
    if more.len() != len || result.len() != len {
        return Err(KernelError::call("blend", "operands or results of other shape"));
    }
    let mut buffer = [T::default(); BLOCK];
    let mut flat = result.flat();
    for start in (0..len).step_by(BLOCK) {
        let range = start..len.min(start + BLOCK);
        let buffer = &mut buffer[..range.len()];
        let taken = if stays { state } else { more };
        buffer.copy_from_slice(taken.block(range.clone())?);
        if !stays && now.decay.0 != 0.0 {
            for (sum, &before) in buffer.iter_mut().zip(state.block::<T>(range)?) {
                *sum = before.plus(*sum);
            }
        }
        flat.write(start, buffer)?;
    }
    Ok(())
}

/// Integers, which wrap around.
pub(crate) trait Count: Sized {
    fn plus(self, other: Self) -> Self;
}

macro_rules! count {
    ($($integer:ty),*) => {$(
        impl Count for $integer {
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
        }
    )*};
}

count!(i64, i32, u8);

/// The kernel of [`Op::LambDirection`]; types are those of [`sgd`].
pub(crate) fn lamb_direction<W: Float, G: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    const OP: &str = "lamb_direction";
    let Op::LambDirection(op) = op else { return Err(KernelError::call(OP, "another op")) };
    let (operands, scalars) = operands.split_at(4.min(operands.len()));
    let rates = LambRates::of(op, update_number(scalars, cx)?);
    let clipping = Clipping::of(scalars, op.clip)?;
    // Where the update is not made states stay, and the direction is 0: it does not take the variable's place.
    let operands = (operands, Clipping::NONE, None);
    mixed::<W, G, f32, 4, 3>(OP, operands, results, cx, |[w, g, m, v], count| {
        if clipping.skips() {
            return w[..count].fill(0.0);
        }
        clipping.apply(&mut g[..count]);
        lamb_block(&rates, &mut w[..count], &g[..count], &mut m[..count], &mut v[..count]);
    })
}

/// The kernel of [`Op::LambUpdate`], of variables of type `W`.
pub(crate) fn lamb<W: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    const OP: &str = "lamb_update";
    let (Op::LambUpdate(op), [_, _, a, b]) = (op, operands) else {
        return Err(KernelError::call(OP, "takes 4 operands"));
    };
    let sums = [number(a)?, number(b)?].map(f64::from);
    let rate = op.rate(cx.step, sums) as f32;
    let operands = (&operands[..2], Clipping::NONE, None);
    update::<W, f32, 2, 1>(OP, operands, results, cx, |[w, u], count| {
        along_block(rate, &mut w[..count], &u[..count]);
    })
}

/// The number of the update, from 1: what loss scaling says, or the step.
fn update_number(scalars: &[View<'_>], cx: &KernelContext<'_>) -> Result<f64, KernelError> {
    match scalars.get(1) {
        Some(count) => number(count).map(f64::from),
        None => Ok(cx.step as f64 + 1.0),
    }
}

fn number(scalar: &View<'_>) -> Result<f32, KernelError> {
    Ok(scalar.block::<f32>(0..1)?[0])
}

/// What is done to a gradient before it is used.
struct Clipping {
    /// By what it is multiplied; 0 where the update is not made.
    factor: Option<f32>,
    /// The greatest absolute value of an element.
    clip: Option<f32>,
}

impl Clipping {
    const NONE: Self = Self { factor: None, clip: None };

    fn of(scalars: &[View<'_>], clip: Option<Scalar>) -> Result<Self, KernelError> {
        let factor = scalars.first().map(number).transpose()?;
        Ok(Self { factor, clip: clip.map(|clip| clip.0 as f32) })
    }

    fn skips(&self) -> bool {
        self.factor == Some(0.0)
    }

    fn apply(&self, g: &mut [f32]) {
        if let Some(factor) = self.factor {
            scale_block(factor, g);
        }
        if let Some(clip) = self.clip {
            clip_block(clip, g);
        }
    }
}

/// The operands of an update, what is done to its gradient before, and where that comes from if not from its operand.
type Given<'a> = (&'a [View<'a>], Clipping, Option<&'a dyn Parted>);

/// Updates block by block: operand 1 is the gradient, the others are the variables that the results replace, in order. Where
/// its factor is 0 variables stay.
fn update<W: Float, G: Float, const N: usize, const R: usize>(
    op: &'static str,
    operands: Given<'_>,
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
    step: impl Fn([&mut [f32; BLOCK]; N], usize) + Send + Sync,
) -> Result<(), KernelError> {
    mixed::<W, G, W, N, R>(op, operands, results, cx, step)
}

/// The same where the first result is of type `O`.
fn mixed<W: Float, G: Float, O: Float, const N: usize, const R: usize>(
    op: &'static str,
    (operands, clipping, parted): Given<'_>,
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
    step: impl Fn([&mut [f32; BLOCK]; N], usize) + Send + Sync,
) -> Result<(), KernelError> {
    let Ok(operands) = <&[View<'_>; N]>::try_from(operands) else {
        return Err(KernelError::call(op, format!("takes {N} operands, not {}", operands.len())));
    };
    let len = operands[0].len();
    if results.len() != R
        || operands.iter().any(|operand| operand.len() != len)
        || results.iter().any(|result| result.len() != len)
    {
        return Err(KernelError::call(op, "operands or results of other number or shape"));
    }
    let step = |buffers: [&mut [f32; BLOCK]; N], count: usize| {
        if !clipping.skips() {
            clipping.apply(&mut buffers[1][..count]);
            step(buffers, count);
        }
    };
    if let Some(parted) = parted {
        let Ok(results) = <&mut [ViewMut<'_>; R]>::try_from(results) else {
            unreachable!("as many as were counted")
        };
        let outputs: [Parts<'_>; R] = results.each_mut().map(|result| result.parts());
        return parted.each(cx, &outputs, &|made| {
            let mut buffers = [[0.0; BLOCK]; N];
            for (range, gradient) in made.pieces(BLOCK) {
                fill::<W, N>(operands, range.clone(), &mut buffers)?;
                buffers[1][..range.len()].copy_from_slice(gradient);
                step(buffers.each_mut(), range.len());
                // SAFETY: each element comes once, and who takes it reaches these elements alone.
                let mut places = outputs.map(|output| unsafe { output.part(range.clone()) });
                put::<O, N>(&buffers, 0..range.len(), &mut places)?;
            }
            Ok(())
        });
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
    parallel::run(cx.pool, pieces, |(range, outputs)| {
        blocks::<W, G, O, N>(operands, range, outputs, &step)
    })
}

fn blocks<W: Float, G: Float, O: Float, const N: usize>(
    operands: &[View<'_>; N],
    whole: Range<usize>,
    mut outputs: Vec<Flat<'_>>,
    step: &impl Fn([&mut [f32; BLOCK]; N], usize),
) -> Result<(), KernelError> {
    let mut buffers = [[0.0; BLOCK]; N];
    for start in whole.clone().step_by(BLOCK) {
        let range = start..whole.end.min(start + BLOCK);
        fill::<W, N>(operands, range.clone(), &mut buffers)?;
        G::widen(operands[1].block(range.clone())?, &mut buffers[1][..range.len()]);
        step(buffers.each_mut(), range.len());
        put::<O, N>(&buffers, range.start - whole.start..range.end - whole.start, &mut outputs)?;
    }
    Ok(())
}

/// Brings a block of all operands but the gradient to buffers.
fn fill<W: Float, const N: usize>(
    operands: &[View<'_>; N],
    range: Range<usize>,
    buffers: &mut [[f32; BLOCK]; N],
) -> Result<(), KernelError> {
    for (index, (buffer, operand)) in buffers.iter_mut().zip(operands).enumerate() {
        let buffer = &mut buffer[..range.len()];
        match index {
            0 => W::widen(operand.block(range.clone())?, buffer),
            1 => {}
            _ => buffer.copy_from_slice(operand.block(range.clone())?),
        }
    }
    Ok(())
}

/// Writes a block of all variables back.
fn put<O: Float, const N: usize>(
    buffers: &[[f32; BLOCK]; N],
    range: Range<usize>,
    outputs: &mut [Flat<'_>],
) -> Result<(), KernelError> {
    let variables = buffers.iter().enumerate().filter(|&(index, _)| index != 1);
    for (output, (index, buffer)) in outputs.iter_mut().zip(variables) {
        let buffer = &buffer[..range.len()];
        match index {
            0 => O::narrow(buffer, output.block(range.clone())?),
            _ => output.write(range.start, buffer)?,
        }
    }
    Ok(())
}
