//! The cells of one sample at one step. `x` and `p` are the shares of the inputs and of the state in all gates.

use crate::math;
use crate::simd::vectorized;

vectorized! {
    /// Computes a step of an LSTM with gates i, o, f and g.
    pub(super) fn lstm_cell(x: &[f32], p: &[f32], state: &mut [f32], kept: &mut [f32]) {
        let width = state.len();
        let ([xi, xo, xf, xg], [pi, po, pf, pg]) = (split_gates(x, width), split_gates(p, width));
        let kept = &mut kept[..width];
        for j in 0..width {
            let (i, f) = (math::sigmoid(xi[j] + pi[j]), math::sigmoid(xf[j] + pf[j]));
            kept[j] = f * kept[j] + i * math::tanh(xg[j] + pg[j]);
            state[j] = math::sigmoid(xo[j] + po[j]) * math::tanh(kept[j]);
        }
    }
}

vectorized! {
    /// Computes a step of a GRU with gates z, r and m.
    pub(super) fn gru_cell(x: &[f32], p: &[f32], state: &mut [f32]) {
        let width = state.len();
        let ([xz, xr, xm], [pz, pr, pm]) = (split_gates(x, width), split_gates(p, width));
        for j in 0..width {
            let (z, r) = (math::sigmoid(xz[j] + pz[j]), math::sigmoid(xr[j] + pr[j]));
            let new = math::tanh(xm[j] + r * pm[j]);
            state[j] = (1.0 - z) * new + z * state[j];
        }
    }
}

vectorized! {
    pub(super) fn tanh_cell(x: &[f32], p: &[f32], state: &mut [f32]) {
        for ((state, x), p) in state.iter_mut().zip(x).zip(p) {
            *state = math::tanh(x + p);
        }
    }
}

vectorized! {
    pub(super) fn relu_cell(x: &[f32], p: &[f32], state: &mut [f32]) {
        for ((state, x), p) in state.iter_mut().zip(x).zip(p) {
            let sum = x + p;
            *state = if sum < 0.0 { 0.0 } else { sum };
        }
    }
}

/// The numbers that the gradient of an LSTM's step reads.
pub(super) struct LstmStep<'a> {
    /// x + p
    pub gates: &'a [f32],
    /// The kept content before the step.
    pub before: &'a [f32],
    /// The kept content after it.
    pub after: &'a [f32],
    /// The gradient of that from elsewhere, or nothing.
    pub given: &'a [f32],
}

vectorized! {
    /// The gradient of the gates, from those of the state, which is taken, and of what is kept, which goes a step back.
    pub(super) fn lstm_grad(step: &LstmStep<'_>, state: &mut [f32], kept: &mut [f32], out: &mut [f32]) {
        let width = state.len();
        let [gi, go, gf, gg] = split_gates(step.gates, width);
        let (before, after, kept) = (&step.before[..width], &step.after[..width], &mut kept[..width]);
        for (kept, given) in kept.iter_mut().zip(step.given) {
            *kept += given;
        }
        let (di, rest) = out.split_at_mut(width);
        let (d_o, rest) = rest.split_at_mut(width);
        let (df, dg) = rest.split_at_mut(width);
        let dg = &mut dg[..width];
        for j in 0..width {
            let (i, o) = (math::sigmoid(gi[j]), math::sigmoid(go[j]));
            let (f, g) = (math::sigmoid(gf[j]), math::tanh(gg[j]));
            let out = math::tanh(after[j]);
            let of_kept = kept[j] + state[j] * o * (1.0 - out * out);
            di[j] = of_kept * g * (i * (1.0 - i));
            d_o[j] = state[j] * out * (o * (1.0 - o));
            df[j] = of_kept * before[j] * (f * (1.0 - f));
            dg[j] = of_kept * i * (1.0 - g * g);
            kept[j] = of_kept * f;
            state[j] = 0.0;
        }
    }
}

/// The numbers that the gradient of a GRU's step reads.
pub(super) struct GruStep<'a> {
    pub x: &'a [f32],
    pub p: &'a [f32],
    /// The state before the step.
    pub before: &'a [f32],
}

vectorized! {
    /// The gradients of x and of p, from that of the state, of which what goes straight a step back is left.
    pub(super) fn gru_grad(step: &GruStep<'_>, state: &mut [f32], of_x: &mut [f32], of_p: &mut [f32]) {
        let width = state.len();
        let ([xz, xr, xm], [pz, pr, pm]) = (split_gates(step.x, width), split_gates(step.p, width));
        let before = &step.before[..width];
        let (of_gates, of_m) = of_x.split_at_mut(2 * width);
        let (of_z, of_r) = of_gates.split_at_mut(width);
        let (of_m, p_of_m) = (&mut of_m[..width], &mut of_p[2 * width..][..width]);
        for j in 0..width {
            let (z, r) = (math::sigmoid(xz[j] + pz[j]), math::sigmoid(xr[j] + pr[j]));
            let new = math::tanh(xm[j] + r * pm[j]);
            let of_new = state[j] * (1.0 - z) * (1.0 - new * new);
            of_z[j] = state[j] * (before[j] - new) * (z * (1.0 - z));
            of_r[j] = of_new * pm[j] * (r * (1.0 - r));
            of_m[j] = of_new;
            p_of_m[j] = of_new * r;
            state[j] *= z;
        }
        of_p[..2 * width].copy_from_slice(of_gates);
    }
}

vectorized! {
    /// The gradient of what tanh was taken of, from the gradient of the state, which is taken.
    pub(super) fn tanh_grad(y: &[f32], state: &mut [f32], out: &mut [f32]) {
        for ((state, y), out) in state.iter_mut().zip(y).zip(out) {
            *out = *state * (1.0 - y * y);
            *state = 0.0;
        }
    }
}

vectorized! {
    /// Computes the gradient of a cell like [`tanh_grad`], of the greater of a number and 0.
    pub(super) fn relu_grad(y: &[f32], state: &mut [f32], out: &mut [f32]) {
        for ((state, y), out) in state.iter_mut().zip(y).zip(out) {
            *out = if *y > 0.0 { *state } else { 0.0 };
            *state = 0.0;
        }
    }
}

vectorized! {
    pub(super) fn add_row(to: &mut [f32], more: &[f32]) {
        for (to, more) in to.iter_mut().zip(more) {
            *to += more;
        }
    }
}

/// The gates of a row.
#[inline(always)]
fn split_gates<const N: usize>(row: &[f32], width: usize) -> [&[f32]; N] {
    std::array::from_fn(|gate| &row[gate * width..][..width])
}
