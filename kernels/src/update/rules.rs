//! The rules of updates, element by element, and what of them is the same for all elements.

use graphc_ir::ops::{AdamUpdate, LambDirection, RmspropUpdate, SgdUpdate};

use crate::simd::vectorized;

pub(super) struct SgdRates {
    lr: f32,
    momentum: f32,
    decay: f32,
    nesterov: bool,
    /// The rate of gradients, where it is limited.
    limited: f32,
    /// 1 - lr weight_decay
    shrink: f32,
}

impl SgdRates {
    pub(super) fn from_op(op: &SgdUpdate, lr: f64, limit: f64) -> Self {
        let (limited, shrink) = (lr.min(limit), 1.0 - lr * op.weight_decay.0);
        let [lr, momentum, decay, limited, shrink] =
            [lr, op.momentum.0, op.weight_decay.0, limited, shrink].map(|value| value as f32);
        Self { lr, momentum, decay, nesterov: op.nesterov, limited, shrink }
    }
}

pub(super) struct AdamRates {
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
    /// Computes the numbers of update `count`, from 1, that do not depend on the element, in `f64`.
    pub(super) fn from_op(op: &AdamUpdate, lr: f64, count: f64) -> Self {
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

pub(super) struct RmspropRates {
    lr: f32,
    alpha: f32,
    rest: f32,
    epsilon: f32,
    decay: f32,
    momentum: f32,
}

impl RmspropRates {
    pub(super) fn from_op(op: &RmspropUpdate, lr: f64) -> Self {
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

pub(super) struct LambRates {
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
    pub(super) fn from_op(op: &LambDirection, count: f64) -> Self {
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
    pub(super) fn clip_block(clip: f32, g: &mut [f32]) {
        for g in g {
            // What is no number stays.
            *g = if g.abs() > clip { clip.copysign(*g) } else { *g };
        }
    }
}

vectorized! {
    /// Leaves in g what the variable is to go along.
    pub(super) fn rmsprop_block(rates: &RmspropRates, tensors: [&mut [f32]; 3], mean: Option<&mut [f32]>) {
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
    pub(super) fn ahead_block(rates: &RmspropRates, g: &[f32], m: &mut [f32]) {
        for (&g, m) in g.iter().zip(m) {
            *m = rates.momentum * *m + g;
        }
    }
}

vectorized! {
    pub(super) fn step_block(rates: &RmspropRates, w: &mut [f32], along: &[f32]) {
        for (w, &along) in w.iter_mut().zip(along) {
            *w -= rates.lr * along;
        }
    }
}

vectorized! {
    /// Leaves the direction in w.
    pub(super) fn lamb_block(rates: &LambRates, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
        for (((w, &g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
            *m = rates.beta1 * *m + rates.rest1 * g;
            *v = rates.beta2 * *v + rates.rest2 * g * g;
            let root = v.sqrt() * rates.root + rates.epsilon;
            *w = *m * rates.correct / root + rates.decay * *w;
        }
    }
}

vectorized! {
    pub(super) fn along_block(rate: f32, w: &mut [f32], u: &[f32]) {
        for (w, &u) in w.iter_mut().zip(u) {
            *w -= rate * u;
        }
    }
}

vectorized! {
    pub(super) fn scale_block(factor: f32, g: &mut [f32]) {
        for g in g {
            *g *= factor;
        }
    }
}

vectorized! {
    pub(super) fn replace_block(rate: f32, w: &mut [f32], x: &[f32]) {
        for (w, &x) in w.iter_mut().zip(x) {
            *w = rate * x;
        }
    }
}

vectorized! {
    pub(super) fn blend_block(decay: f32, rate: f32, w: &mut [f32], x: &[f32]) {
        for (w, &x) in w.iter_mut().zip(x) {
            *w = decay * *w + rate * x;
        }
    }
}

vectorized! {
    pub(super) fn sgd_block(rates: &SgdRates, w: &mut [f32], g: &[f32]) {
        for (w, &g) in w.iter_mut().zip(g) {
            *w -= rates.lr * (g + rates.decay * *w);
        }
    }
}

vectorized! {
    pub(super) fn limited_block(rates: &SgdRates, w: &mut [f32], g: &[f32]) {
        for (w, &g) in w.iter_mut().zip(g) {
            *w = rates.shrink * *w - rates.limited * g;
        }
    }
}

vectorized! {
    pub(super) fn momentum_block(rates: &SgdRates, w: &mut [f32], g: &[f32], m: &mut [f32]) {
        for ((w, &g), m) in w.iter_mut().zip(g).zip(m) {
            let g = g + rates.decay * *w;
            *m = rates.momentum * *m + g;
            let ahead = if rates.nesterov { g + rates.momentum * *m } else { *m };
            *w -= rates.lr * ahead;
        }
    }
}

vectorized! {
    pub(super) fn adam_block(rates: &AdamRates, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
        for (((w, &g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
            let g = g + rates.decay * *w;
            *m = rates.beta1 * *m + rates.rest1 * g;
            *v = rates.beta2 * *v + rates.rest2 * g * g;
            let root = v.sqrt() * rates.root + rates.epsilon;
            *w = *w * rates.shrink - rates.rate * *m / root;
        }
    }
}
