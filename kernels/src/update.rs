//! Steps of optimizers and of other states, each in one pass over its tensors. The results are usually the operands' memory.

use std::ops::Range;

use graphc_ir::op::Op;
use graphc_ir::ops::{AdamUpdate, Blend, LambDirection, RmspropUpdate, SgdUpdate};
use graphc_ir::scalar::Scalar;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::precision::Float;
use crate::simd::vectorized;
use crate::view::{Element, Flat, View, ViewMut};

/// Elements that are copied to the stack, updated, and written back: operands may be the results' memory.
const BLOCK: usize = 512;

/// The kernel of [`Op::SgdUpdate`]: of variables of type `W`, gradients of type `G`, and states of `f32`.
pub(crate) fn sgd<W: Float, G: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let Op::SgdUpdate(op) = op else { return Err(KernelError::call("sgd_update", "another op")) };
    let rates = SgdRates::of(op, op.lr.at(cx.step));
    let tensors = if op.momentum.0 == 0.0 { 2 } else { 3 };
    let (operands, scalars) = operands.split_at(tensors.min(operands.len()));
    let operands = (operands, Clipping::of(scalars, op.clip)?);
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
    let Op::AdamUpdate(op) = op else { return Err(KernelError::call("adam_update", "another op")) };
    let (operands, scalars) = operands.split_at(4.min(operands.len()));
    let rates = AdamRates::of(op, op.lr.at(cx.step), update_number(scalars, cx)?);
    let operands = (operands, Clipping::of(scalars, op.clip)?);
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
    let operands = (operands, Clipping::of(scalars, op.clip)?);
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
    update::<W, G, 2, 1>("blend", (operands, kept), results, cx, |[w, x], count| {
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
    let operands = (operands, Clipping::NONE);
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
    let operands = (&operands[..2], Clipping::NONE);
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

/// Updates block by block: operand 1 is the gradient, the others are the variables that the results replace, in order. Where
/// its factor is 0 variables stay.
fn update<W: Float, G: Float, const N: usize, const R: usize>(
    op: &'static str,
    operands: (&[View<'_>], Clipping),
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
    step: impl Fn([&mut [f32; BLOCK]; N], usize) + Send + Sync,
) -> Result<(), KernelError> {
    mixed::<W, G, W, N, R>(op, operands, results, cx, step)
}

/// The same where the first result is of type `O`.
fn mixed<W: Float, G: Float, O: Float, const N: usize, const R: usize>(
    op: &'static str,
    (operands, clipping): (&[View<'_>], Clipping),
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
    let step = |buffers: [&mut [f32; BLOCK]; N], count: usize| {
        if !clipping.skips() {
            clipping.apply(&mut buffers[1][..count]);
            step(buffers, count);
        }
    };
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
        let end = whole.end.min(start + BLOCK);
        for (index, (buffer, operand)) in buffers.iter_mut().zip(operands).enumerate() {
            let buffer = &mut buffer[..end - start];
            match index {
                0 => W::widen(operand.block(start..end)?, buffer),
                1 => G::widen(operand.block(start..end)?, buffer),
                _ => buffer.copy_from_slice(operand.block(start..end)?),
            }
        }
        step(buffers.each_mut(), end - start);
        let variables = buffers.iter().enumerate().filter(|&(index, _)| index != 1);
        let range = start - whole.start..end - whole.start;
        for (output, (index, buffer)) in outputs.iter_mut().zip(variables) {
            let buffer = &buffer[..end - start];
            match index {
                0 => O::narrow(buffer, output.block(range.clone())?),
                _ => output.write(range.start, buffer)?,
            }
        }
    }
    Ok(())
}

struct SgdRates {
    lr: f32,
    momentum: f32,
    decay: f32,
    nesterov: bool,
}

impl SgdRates {
    fn of(op: &SgdUpdate, lr: f64) -> Self {
        let [lr, momentum, decay] =
            [lr, op.momentum.0, op.weight_decay.0].map(|value| value as f32);
        Self { lr, momentum, decay, nesterov: op.nesterov }
    }
}

struct AdamRates {
    /// 1 - lr weight_decay where that is decoupled.
    shrink: f32,
    /// The weight decay where it is not.
    decay: f32,
    beta1: f32,
    rest1: f32,
    beta2: f32,
    rest2: f32,
    /// lr / (1 - beta1^step)
    rate: f32,
    /// 1 / sqrt(1 - beta2^step)
    root: f32,
    epsilon: f32,
}

impl AdamRates {
    /// Everything that does not depend on the element, in `f64`, of update `count`, from 1.
    fn of(op: &AdamUpdate, lr: f64, count: f64) -> Self {
        let (beta1, beta2) = (op.beta1.0, op.beta2.0);
        let decay = op.weight_decay.0;
        Self {
            shrink: if op.decoupled { (1.0 - lr * decay) as f32 } else { 1.0 },
            decay: if op.decoupled { 0.0 } else { decay as f32 },
            beta1: beta1 as f32,
            rest1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            rest2: (1.0 - beta2) as f32,
            rate: (lr / (1.0 - beta1.powf(count))) as f32,
            root: (1.0 / (1.0 - beta2.powf(count)).sqrt()) as f32,
            epsilon: op.epsilon.0 as f32,
        }
    }
}

struct RmspropRates {
    lr: f32,
    alpha: f32,
    rest: f32,
    epsilon: f32,
    decay: f32,
    momentum: f32,
}

impl RmspropRates {
    fn of(op: &RmspropUpdate, lr: f64) -> Self {
        Self {
            lr: lr as f32,
            alpha: op.alpha.0 as f32,
            rest: (1.0 - op.alpha.0) as f32,
            epsilon: op.epsilon.0 as f32,
            decay: op.weight_decay.0 as f32,
            momentum: op.momentum.0 as f32,
        }
    }
}

struct LambRates {
    beta1: f32,
    rest1: f32,
    beta2: f32,
    rest2: f32,
    /// 1 / (1 - beta1^count)
    correct: f32,
    /// 1 / sqrt(1 - beta2^count)
    root: f32,
    epsilon: f32,
    decay: f32,
}

impl LambRates {
    fn of(op: &LambDirection, count: f64) -> Self {
        let (beta1, beta2) = (op.beta1.0, op.beta2.0);
        Self {
            beta1: beta1 as f32,
            rest1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            rest2: (1.0 - beta2) as f32,
            correct: (1.0 / (1.0 - beta1.powf(count))) as f32,
            root: (1.0 / (1.0 - beta2.powf(count)).sqrt()) as f32,
            epsilon: op.epsilon.0 as f32,
            decay: op.weight_decay.0 as f32,
        }
    }
}

vectorized! {
    fn clip_block(clip: f32, g: &mut [f32]) {
        for g in g {
            // What is no number stays.
            *g = if g.abs() > clip { clip.copysign(*g) } else { *g };
        }
    }
}

vectorized! {
    /// Leaves in g what the variable is to go along.
    fn rmsprop_block(rates: &RmspropRates, tensors: [&mut [f32]; 3], mean: Option<&mut [f32]>) {
        let [w, g, v] = tensors;
        for ((w, g), v) in w.iter().zip(g.iter_mut()).zip(v.iter_mut()) {
            *g += rates.decay * *w;
            *v = rates.alpha * *v + rates.rest * *g * *g;
        }
        match mean {
            None => {
                for (g, v) in g.iter_mut().zip(v) {
                    *g /= v.sqrt() + rates.epsilon;
                }
            }
            Some(mean) => {
                for ((g, v), a) in g.iter_mut().zip(v).zip(mean) {
                    *a = rates.alpha * *a + rates.rest * *g;
                    *g /= (*v - *a * *a).max(0.0).sqrt() + rates.epsilon;
                }
            }
        }
    }
}

vectorized! {
    fn ahead_block(rates: &RmspropRates, g: &[f32], m: &mut [f32]) {
        for (&g, m) in g.iter().zip(m) {
            *m = rates.momentum * *m + g;
        }
    }
}

vectorized! {
    fn step_block(rates: &RmspropRates, w: &mut [f32], along: &[f32]) {
        for (w, &along) in w.iter_mut().zip(along) {
            *w -= rates.lr * along;
        }
    }
}

vectorized! {
    /// Leaves the direction in w.
    fn lamb_block(rates: &LambRates, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
        for (((w, &g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
            *m = rates.beta1 * *m + rates.rest1 * g;
            *v = rates.beta2 * *v + rates.rest2 * g * g;
            let root = v.sqrt() * rates.root + rates.epsilon;
            *w = *m * rates.correct / root + rates.decay * *w;
        }
    }
}

vectorized! {
    fn along_block(rate: f32, w: &mut [f32], u: &[f32]) {
        for (w, &u) in w.iter_mut().zip(u) {
            *w -= rate * u;
        }
    }
}

vectorized! {
    fn scale_block(factor: f32, g: &mut [f32]) {
        for g in g {
            *g *= factor;
        }
    }
}

vectorized! {
    fn replace_block(rate: f32, w: &mut [f32], x: &[f32]) {
        for (w, &x) in w.iter_mut().zip(x) {
            *w = rate * x;
        }
    }
}

vectorized! {
    fn blend_block(decay: f32, rate: f32, w: &mut [f32], x: &[f32]) {
        for (w, &x) in w.iter_mut().zip(x) {
            *w = decay * *w + rate * x;
        }
    }
}

vectorized! {
    fn sgd_block(rates: &SgdRates, w: &mut [f32], g: &[f32]) {
        for (w, &g) in w.iter_mut().zip(g) {
            *w -= rates.lr * (g + rates.decay * *w);
        }
    }
}

vectorized! {
    fn momentum_block(rates: &SgdRates, w: &mut [f32], g: &[f32], m: &mut [f32]) {
        for ((w, &g), m) in w.iter_mut().zip(g).zip(m) {
            let g = g + rates.decay * *w;
            *m = rates.momentum * *m + g;
            let ahead = if rates.nesterov { g + rates.momentum * *m } else { *m };
            *w -= rates.lr * ahead;
        }
    }
}

vectorized! {
    fn adam_block(rates: &AdamRates, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
        for (((w, &g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
            let g = g + rates.decay * *w;
            *m = rates.beta1 * *m + rates.rest1 * g;
            *v = rates.beta2 * *v + rates.rest2 * g * g;
            let root = v.sqrt() * rates.root + rates.epsilon;
            *w = *w * rates.shrink - rates.rate * *m / root;
        }
    }
}
