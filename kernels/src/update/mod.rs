//! Steps of optimizers and of other states, each in one pass over all its tensors, block by block. The results are usually the
//! operands' memory.

mod blocks;
mod rules;

use graphc_ir::op::Op;
use graphc_ir::ops::{Blend, LambUpdate};
use graphc_ir::scalar::Scalar;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::view::{Element, View, ViewMut};
pub(crate) use blocks::{BLOCK, PartedGradient, UpdateTensors};
use blocks::{Step, UpdateOperands, over_blocks};
use rules::{
    AdamRates, LambRates, RmspropRates, SgdRates, adam_block, ahead_block, along_block,
    blend_block, clip_block, lamb_block, limited_block, momentum_block, replace_block,
    rmsprop_block, scale_block, sgd_block, step_block,
};

/// The update of an op, whatever the types of its tensors; states are of `f32`.
pub(crate) type Update = fn(
    &Op,
    &[View<'_>],
    &mut [ViewMut<'_>],
    &mut KernelContext<'_>,
    UpdateTensors<'_>,
) -> Result<(), KernelError>;

/// The update of an op that takes its gradient part by part, see [`UpdateTensors::in_parts`]; the operand in the gradient's place says its type
/// alone. `None` where the op has none. Variables are of `f32`.
pub(crate) fn in_parts(op: &Op) -> Option<Update> {
    match op {
        Op::SgdUpdate(_) => Some(sgd_update),
        Op::AdamUpdate(_) => Some(adam_update),
        _ => None,
    }
}

/// [`Op::SgdUpdate`].
pub(crate) fn sgd_update(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
    given: UpdateTensors<'_>,
) -> Result<(), KernelError> {
    let Op::SgdUpdate(op) = op else {
        return Err(KernelError::bad_call("sgd_update", "another op"));
    };
    let tensors = if op.momentum.0 == 0.0 { 2 } else { 3 };
    let (tensors, scalars) = operands.split_at(tensors.min(operands.len()));
    let limit = scalars.get(1).map(read_number).transpose()?;
    let lr = op.lr.at_or_given(cx.step, cx.rate);
    let rates = SgdRates::from_op(op, lr, limit.map_or(lr, f64::from));
    let clipping = GradientChange::from_scalars(scalars, op.clip)?;
    let operands = UpdateOperands { op: "sgd_update", tensors, given };
    if op.momentum.0 == 0.0 && limit.is_some() {
        return update_blocks::<2, 1>(operands, &clipping, results, cx, &|[w, g]| {
            limited_block(&rates, w, g);
        });
    }
    if op.momentum.0 == 0.0 {
        return update_blocks::<2, 1>(operands, &clipping, results, cx, &|[w, g]| {
            sgd_block(&rates, w, g);
        });
    }
    // The momentum is operand 2 and result 1.
    update_blocks::<3, 2>(operands, &clipping, results, cx, &|[w, g, m]| {
        momentum_block(&rates, w, g, m);
    })
}

/// [`Op::AdamUpdate`].
pub(crate) fn adam_update(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
    given: UpdateTensors<'_>,
) -> Result<(), KernelError> {
    let Op::AdamUpdate(op) = op else {
        return Err(KernelError::bad_call("adam_update", "another op"));
    };
    let (tensors, scalars) = operands.split_at(4.min(operands.len()));
    let lr = op.lr.at_or_given(cx.step, cx.rate);
    let rates = AdamRates::from_op(op, lr, update_number(scalars, cx)?);
    let clipping = GradientChange::from_scalars(scalars, op.clip)?;
    let operands = UpdateOperands { op: "adam_update", tensors, given };
    update_blocks::<4, 3>(operands, &clipping, results, cx, &|[w, g, m, v]| {
        adam_block(&rates, w, g, m, v);
    })
}

/// [`Op::RmspropUpdate`].
pub(crate) fn rmsprop_update(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
    given: UpdateTensors<'_>,
) -> Result<(), KernelError> {
    const OP: &str = "rmsprop_update";
    let Op::RmspropUpdate(op) = op else { return Err(KernelError::bad_call(OP, "another op")) };
    let rates = RmspropRates::from_op(op, op.lr.at_or_given(cx.step, cx.rate));
    let (tensors, scalars) = operands.split_at(op.count_tensors().min(operands.len()));
    let clipping = &GradientChange::from_scalars(scalars, op.clip)?;
    let operands = UpdateOperands { op: OP, tensors, given };
    // What there is of means and momenta; the square is always operand 2.
    match (op.centered, op.has_momentum()) {
        (false, false) => update_blocks::<3, 2>(operands, clipping, results, cx, &|[w, g, v]| {
            rmsprop_block(&rates, [w, g, v], None);
            step_block(&rates, w, g);
        }),
        (true, false) => update_blocks::<4, 3>(operands, clipping, results, cx, &|[w, g, v, a]| {
            let mean = Some(a);
            rmsprop_block(&rates, [w, g, v], mean);
            step_block(&rates, w, g);
        }),
        (false, true) => update_blocks::<4, 3>(operands, clipping, results, cx, &|[w, g, v, m]| {
            rmsprop_block(&rates, [w, g, v], None);
            ahead_block(&rates, g, m);
            step_block(&rates, w, m);
        }),
        (true, true) => {
            update_blocks::<5, 4>(operands, clipping, results, cx, &|[w, g, v, a, m]| {
                let mean = Some(a);
                rmsprop_block(&rates, [w, g, v], mean);
                ahead_block(&rates, g, m);
                step_block(&rates, w, m);
            })
        }
    }
}

/// [`Op::Blend`], of floating-point numbers.
pub(crate) fn blend_floats(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
    given: UpdateTensors<'_>,
) -> Result<(), KernelError> {
    let Op::Blend(op) = op else { return Err(KernelError::bad_call("blend", "another op")) };
    let (tensors, scalars) = operands.split_at(2.min(operands.len()));
    let now = blend_at(op, scalars, cx)?;
    let [decay, rate] = [now.decay, now.rate].map(|share| share.0 as f32);
    let kept = GradientChange { factor: is_skipped(scalars)?.then_some(0.0), clip: None };
    let operands = UpdateOperands { op: "blend", tensors, given };
    update_blocks::<2, 1>(operands, &kept, results, cx, &|[w, x]| {
        // What is replaced may be no number.
        if decay == 0.0 {
            replace_block(rate, w, x);
        } else {
            blend_block(decay, rate, w, x);
        }
    })
}

/// The decay and rate of a blend now: by the number of the update, where there is one, or by the step.
fn blend_at(
    op: &Blend,
    scalars: &[View<'_>],
    cx: &KernelContext<'_>,
) -> Result<Blend, KernelError> {
    match scalars.get(1) {
        Some(step) => Ok(op.at_update(read_number(step)?.into())),
        None => Ok(op.at_step(cx.step)),
    }
}

/// Whether the step is one that is not made.
fn is_skipped(scalars: &[View<'_>]) -> Result<bool, KernelError> {
    Ok(scalars.first().map(read_number).transpose()? == Some(0.0))
}

/// The kernel of [`Op::Blend`], of integers and truth values: the state is counted up, or replaced.
pub(crate) fn blend_integers<T: Element + WrappingCount>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let Op::Blend(op) = op else { return Err(KernelError::bad_call("blend", "another op")) };
    let ([state, more, scalars @ ..], [result]) = (operands, results) else {
        return Err(KernelError::bad_call("blend", "takes two operands and gives one result"));
    };
    let (stays, now) = (is_skipped(scalars)?, blend_at(op, scalars, cx)?);
    let len = state.len();
    if more.len() != len || result.len() != len {
        return Err(KernelError::bad_call("blend", "operands or results of other shape"));
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
pub(crate) trait WrappingCount: Sized {
    fn plus(self, other: Self) -> Self;
}

macro_rules! count {
    ($($integer:ty),*) => {$(
        impl WrappingCount for $integer {
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
        }
    )*};
}

count!(i64, i32, u8);

/// [`Op::LambDirection`].
pub(crate) fn lamb_direction(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
    given: UpdateTensors<'_>,
) -> Result<(), KernelError> {
    const OP: &str = "lamb_direction";
    let Op::LambDirection(op) = op else { return Err(KernelError::bad_call(OP, "another op")) };
    let (tensors, scalars) = operands.split_at(4.min(operands.len()));
    let rates = LambRates::from_op(op, update_number(scalars, cx)?);
    let clipping = GradientChange::from_scalars(scalars, op.clip)?;
    // Where the update is not made states stay, and the direction is 0: it does not take the variable's place.
    let operands = UpdateOperands { op: OP, tensors, given: given.with_result_of::<f32>() };
    over_blocks::<4, 3>(operands, results, cx, &|[w, g, m, v]| {
        if clipping.skips() {
            return w.fill(0.0);
        }
        clipping.apply(g);
        lamb_block(&rates, w, g, m, v);
    })
}

/// [`Op::LambUpdate`].
pub(crate) fn lamb_update(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
    given: UpdateTensors<'_>,
) -> Result<(), KernelError> {
    const OP: &str = "lamb_update";
    let (Op::LambUpdate(op), [_, _, a, b]) = (op, operands) else {
        return Err(KernelError::bad_call(OP, "takes 4 operands"));
    };
    let sums = [read_number(a)?, read_number(b)?].map(f64::from);
    let rate = LambUpdate::direction_rate(op.lr.at_or_given(cx.step, cx.rate), sums) as f32;
    let operands = UpdateOperands { op: OP, tensors: &operands[..2], given };
    over_blocks::<2, 1>(operands, results, cx, &|[w, u]| {
        along_block(rate, w, u);
    })
}

/// The number of the update, from 1: what loss scaling says, or the step.
fn update_number(scalars: &[View<'_>], cx: &KernelContext<'_>) -> Result<f64, KernelError> {
    match scalars.get(1) {
        Some(count) => read_number(count).map(f64::from),
        None => Ok(cx.step as f64 + 1.0),
    }
}

fn read_number(scalar: &View<'_>) -> Result<f32, KernelError> {
    Ok(scalar.block::<f32>(0..1)?[0])
}

/// The changes of a gradient before it is used.
struct GradientChange {
    /// The factor of the gradient; 0 where the update is not made.
    factor: Option<f32>,
    /// The greatest absolute value of an element.
    clip: Option<f32>,
}

impl GradientChange {
    fn from_scalars(scalars: &[View<'_>], clip: Option<Scalar>) -> Result<Self, KernelError> {
        let factor = scalars.first().map(read_number).transpose()?;
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

/// Updates block by block. The gradient is clipped before, and where its factor is 0 variables stay.
fn update_blocks<const N: usize, const R: usize>(
    operands: UpdateOperands<'_>,
    clipping: &GradientChange,
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
    step: Step<'_, N>,
) -> Result<(), KernelError> {
    over_blocks::<N, R>(operands, results, cx, &|blocks| {
        if !clipping.skips() {
            clipping.apply(blocks[1]);
            step(blocks);
        }
    })
}
