//! Fourier transforms of known lengths, as products with tables of cosines and sines, and the windows before them.

use std::f64::consts::TAU;

use graphc_ir::ops::BinaryFunction;
use graphc_ir::types::{DType, TensorType};

use super::gather::gather_along;
use super::known::KnownValue;
use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with, resolve_axis};

/// The most numbers of a table.
const MOST_TABLE: usize = 1 << 22;

/// A discrete Fourier transform.
#[derive(Clone, Copy)]
struct Transform {
    /// The number of elements that it takes.
    length: usize,
    inverse: bool,
    /// Whether it gives the first half alone. For real numbers the other half follows from it.
    onesided: bool,
}

impl Transform {
    fn output_count(self) -> usize {
        if self.onesided { self.length / 2 + 1 } else { self.length }
    }

    /// Returns a table `[length * parts, outputs * 2]`: what each part of each element adds to the real and the imaginary part of each output.
    fn make_table(self, parts: usize) -> Res<KnownValue> {
        let (rows, outputs) = (self.length * parts, self.output_count());
        let size = rows.saturating_mul(2 * outputs);
        if size > MOST_TABLE {
            return fail_with(format!(
                "a transform of {} elements takes a table of {size} numbers, and {MOST_TABLE} are the most",
                self.length
            ));
        }
        let (sign, factor) = match self.inverse {
            true => (1.0, 1.0 / self.length as f64),
            false => (-1.0, 1.0),
        };
        let number = |at: usize| {
            let (row, column) = (at / (2 * outputs), at % (2 * outputs));
            let turn = (row / parts * (column / 2)) % self.length;
            let angle = sign * TAU * turn as f64 / self.length as f64;
            // i times cos + i sin is -sin + i cos.
            factor
                * match (row % parts, column % 2) {
                    (0, 0) | (1, 1) => angle.cos(),
                    (0, _) => angle.sin(),
                    _ => -angle.sin(),
                }
        };
        let numbers = (0..size).map(number).collect();
        Ok(KnownValue::new(TensorType::new(DType::F32, [rows, 2 * outputs]), numbers))
    }

    /// Transforms `[.., n, parts]`, cut or filled with zeros to the length, to `[.., outputs, 2]`.
    fn apply(self, cx: &mut Lowering, x: &Val) -> Res<Val> {
        let shape = cx.shape(x)?;
        let (outer, parts) = (&shape[..shape.len() - 2], shape[shape.len() - 1]);
        let table = Val::Known(self.make_table(parts)?);
        let x = self.fit_length(cx, x)?;
        let table = cx.cast(&table, cx.ty(&x)?.dtype)?;
        let flat = cx.reshape(&x, &[outer.iter().product(), self.length * parts])?;
        let y = cx.matmul(&flat, &table, false, false)?;
        cx.reshape(&y, &[outer, &[self.output_count(), 2]].concat())
    }

    fn fit_length(self, cx: &mut Lowering, x: &Val) -> Res<Val> {
        let shape = cx.shape(x)?;
        let dim = shape.len() - 2;
        let x = cx.slice(x, dim, 0, self.length.min(shape[dim]), 1)?;
        let missing = self.length.saturating_sub(shape[dim]);
        super::volumes::pad_dim(cx, &x, dim, [0, missing, 0], 0.0)
    }
}

/// Returns the number of elements that a transform takes: the node's own, or `usual`.
fn read_length(cx: &Lowering, given: Option<Val>, usual: usize) -> Res<usize> {
    let length = match given {
        Some(given) => {
            usize::try_from(cx.known_integer(&given, "the length of a transform")?).unwrap_or(0)
        }
        None => usual,
    };
    if length == 0 { fail_with("a transform of no elements is none") } else { Ok(length) }
}

/// Lowers a transform of real numbers `[.., n, .., 1]` or complex ones `[.., n, .., 2]`.
pub(super) fn lower_dft(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let shape = cx.shape(&x)?;
    let rank = shape.len();
    let of_operand = cx
        .optional_operand(call, 2)?
        .map(|axis| cx.known_integer(&axis, "the axis"))
        .transpose()?;
    let usual = if call.opset < 20 { 1 } else { -2 };
    let named = match of_operand {
        Some(named) => named,
        None => call.int("axis", usual)?,
    };
    let dim = resolve_axis(named, rank)?;
    if rank < 2 || dim + 1 == rank || !matches!(shape[rank - 1], 1 | 2) {
        let ty = cx.ty(&x)?;
        return fail_with(format!(
            "its numbers have a last dim of 1 or 2 parts, along which it is not: {ty}"
        ));
    }
    let given = cx.optional_operand(call, 1)?;
    let transform = Transform {
        length: read_length(cx, given, shape[dim])?,
        inverse: call.int("inverse", 0)? != 0,
        onesided: call.int("onesided", 0)? != 0,
    };
    if transform.inverse && transform.onesided {
        return fail_with("onesided=1 with inverse=1 is not supported: give both halves");
    }
    let there: Vec<usize> =
        (0..rank - 1).filter(|&other| other != dim).chain([dim, rank - 1]).collect();
    let x = cx.transpose(&x, there.clone())?;
    let y = transform.apply(cx, &x)?;
    let back = (0..rank).map(|dim| there.iter().position(|&from| from == dim).unwrap_or(dim));
    Ok(vec![cx.transpose(&y, back.collect())?])
}

/// Lowers a transform of each frame of a signal `[batch, n, parts]`, under a window if there is one.
pub(super) fn lower_stft(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (signal, step) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let step = usize::try_from(cx.known_integer(&step, "the step of frames")?).unwrap_or(0);
    let [_, samples, _] = cx.shape(&signal)?[..] else {
        return fail_with("a signal has three dims");
    };
    let window = cx.optional_operand(call, 2)?;
    let usual = match &window {
        Some(window) => cx.ty(window)?.elements(),
        None => 0,
    };
    let given = cx.optional_operand(call, 3)?;
    let length = read_length(cx, given, usual)?;
    if step == 0 || length > samples {
        return fail_with(format!(
            "frames of {length}, each {step} on, do not fit {samples} samples"
        ));
    }
    let frames = (samples - length) / step + 1;
    if frames.saturating_mul(length) > MOST_TABLE {
        return fail_with(format!(
            "{frames} frames of {length} samples are more than {MOST_TABLE} together: cut the signal"
        ));
    }
    let places = (0..frames * length).map(|at| (at / length * step + at % length) as f64);
    let places = KnownValue::new(TensorType::new(DType::I64, [frames, length]), places.collect());
    let mut x = gather_along(cx, &signal, &Val::Known(places), 1)?;
    if let Some(window) = window {
        let window = cx.reshape(&window, &[length, 1])?;
        x = cx.apply_binary(BinaryFunction::Mul, &x, &window)?;
    }
    let onesided = call.int("onesided", 1)? != 0;
    Ok(vec![Transform { length, inverse: false, onesided }.apply(cx, &x)?])
}

/// A sum of cosines with these factors, over one period.
pub(super) fn lower_window(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    factors: [f64; 3],
) -> Res<Vec<Val>> {
    let size = usize::try_from(cx.known_integer(&cx.operand(call, 0)?, "the size")?).unwrap_or(0);
    if size > super::known::MOST_FOLDED {
        return fail_with(format!("a window of {size} numbers is too long"));
    }
    let dtype = match call.int("output_datatype", 1)? {
        1 => DType::F32,
        10 => DType::F16,
        16 => DType::BF16,
        other => return fail_with(format!("the element type {other} is not supported")),
    };
    let period = if call.int("periodic", 1)? != 0 { size } else { size.max(2) - 1 };
    let number = |at: usize| {
        let angle = TAU * at as f64 / period as f64;
        factors[0] - factors[1] * angle.cos() + factors[2] * (2.0 * angle).cos()
    };
    let ty = TensorType::new(dtype, [size]);
    Ok(vec![Val::Known(KnownValue::new(ty, (0..size).map(number).collect()))])
}
