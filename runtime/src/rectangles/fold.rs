//! Two buffers folded into one with an operation and an order: what collectives of the user's own need beyond
//! [`super::combine_elements`].

use graphc_ir::float8::{E4M3, E5M2, Float8Format};
use graphc_ir::types::DType;
use graphc_kernels::{narrow_to_halves, widen_halves};

use super::reduce::{combine_halves, combine_pairs, greater_or_nan, less_or_nan};
use super::wide::join_wide;

/// The op that makes one element of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoldOp {
    Sum,
    Product,
    Max,
    Min,
    And,
    Or,
    Xor,
}

impl FoldOp {
    /// Whether elements of this type have the operation: floating-point numbers have no bits to combine.
    pub(crate) fn supports(self, dtype: DType) -> bool {
        !dtype.holds_floats() || !matches!(self, Self::And | Self::Or | Self::Xor)
    }
}

/// Replaces each element `a` of `into` by `a op b`, `b` the element of `from`; with `before` by `b op a`, which differs for
/// the greatest of two zeros or NaNs. Integers wrap; truth values are 0 or 1, their sum and greatest is `or`, their product
/// and least `and`. Any alignment.
pub(crate) fn fold_elements(dtype: DType, op: FoldOp, before: bool, into: &mut [u8], from: &[u8]) {
    match dtype {
        DType::F32 => fold_floats(op, before, into, from),
        DType::F16 | DType::BF16 => combine_halves(dtype, into, from, choose_wide_fold(op, before)),
        DType::I64 => integers!(i64, op, into, from),
        DType::I32 => integers!(i32, op, into, from),
        DType::U8 => integers!(u8, op, into, from),
        DType::Bool => truth_values(op, into, from),
        // Nobody adds them up.
        DType::F8E4M3 => fold_float8(E4M3, op, into, from),
        DType::F8E5M2 => fold_float8(E5M2, op, into, from),
    }
}

fn fold_float8(format: Float8Format, op: FoldOp, into: &mut [u8], from: &[u8]) {
    let (read, write) = (|[bits]: [u8; 1]| format.decode(bits), |x| [format.encode(x)]);
    match op {
        FoldOp::Product => combine_pairs(into, from, read, write, |a, b| a * b),
        FoldOp::Max => combine_pairs(into, from, read, write, greater_or_nan),
        FoldOp::Min => combine_pairs(into, from, read, write, less_or_nan),
        FoldOp::Sum | FoldOp::And | FoldOp::Or | FoldOp::Xor => {
            combine_pairs(into, from, read, write, |a, b| a + b);
        }
    }
}

fn fold_floats(op: FoldOp, before: bool, into: &mut [u8], from: &[u8]) {
    let (read, write) = (f32::from_ne_bytes, f32::to_ne_bytes);
    match (op, before) {
        (FoldOp::Sum, _) => combine_pairs(into, from, read, write, |a, b| a + b),
        (FoldOp::Product, _) => combine_pairs(into, from, read, write, |a, b| a * b),
        (FoldOp::Max, false) => combine_pairs(into, from, read, write, greater_or_nan),
        (FoldOp::Max, true) => combine_pairs(into, from, read, write, |a, b| greater_or_nan(b, a)),
        (FoldOp::Min, false) => combine_pairs(into, from, read, write, less_or_nan),
        (FoldOp::Min, true) => combine_pairs(into, from, read, write, |a, b| less_or_nan(b, a)),
        (FoldOp::And | FoldOp::Or | FoldOp::Xor, _) => {
            unreachable!("refused by `FoldOp::supports`")
        }
    }
}

/// Replaces each `a` of `into` by `a op b`, `b` the 16-bit number in `from`. Nothing is rounded, so only sums and products
/// are kept so.
pub(crate) fn fold_wide(dtype: DType, op: FoldOp, into: &mut [f32], from: &[u8]) {
    match op {
        FoldOp::Product => join_wide(dtype, from, into, |a, b| a * b),
        _ => join_wide(dtype, from, into, |a, b| a + b),
    }
}

/// Returns the op for two 16-bit numbers, as `f32`.
fn choose_wide_fold(op: FoldOp, before: bool) -> fn(f32, f32) -> f32 {
    match (op, before) {
        (FoldOp::Max, false) => greater_or_nan,
        (FoldOp::Max, true) => |a, b| greater_or_nan(b, a),
        (FoldOp::Min, false) => less_or_nan,
        (FoldOp::Min, true) => |a, b| less_or_nan(b, a),
        (FoldOp::Sum, _) => |a, b| a + b,
        (FoldOp::Product, _) => |a, b| a * b,
        (FoldOp::And | FoldOp::Or | FoldOp::Xor, _) => {
            unreachable!("refused by `FoldOp::supports`")
        }
    }
}

/// Implements the ops for one type of integers.
macro_rules! integers {
    ($type:ty, $op:expr, $into:expr, $from:expr) => {{
        let (read, write) = (<$type>::from_ne_bytes, <$type>::to_ne_bytes);
        match $op {
            FoldOp::Sum => combine_pairs($into, $from, read, write, <$type>::wrapping_add),
            FoldOp::Product => combine_pairs($into, $from, read, write, <$type>::wrapping_mul),
            FoldOp::Max => combine_pairs($into, $from, read, write, <$type>::max),
            FoldOp::Min => combine_pairs($into, $from, read, write, <$type>::min),
            FoldOp::And => combine_pairs($into, $from, read, write, |a, b| a & b),
            FoldOp::Or => combine_pairs($into, $from, read, write, |a, b| a | b),
            FoldOp::Xor => combine_pairs($into, $from, read, write, |a, b| a ^ b),
        }
    }};
}
use integers;

fn truth_values(op: FoldOp, into: &mut [u8], from: &[u8]) {
    let read = |[byte]: [u8; 1]| byte != 0;
    let write = |value: bool| [u8::from(value)];
    match op {
        FoldOp::Sum | FoldOp::Max | FoldOp::Or => {
            combine_pairs(into, from, read, write, |a, b| a | b)
        }
        FoldOp::Product | FoldOp::Min | FoldOp::And => {
            combine_pairs(into, from, read, write, |a, b| a & b)
        }
        FoldOp::Xor => combine_pairs(into, from, read, write, |a, b| a ^ b),
    }
}

/// Multiplies each element; integers wrap, by the factor's whole part.
pub(crate) fn scale_elements(dtype: DType, factor: f64, values: &mut [u8]) {
    let (real, whole) = (factor as f32, factor as i64);
    map_elements(dtype, values, |a| a * real, |a| a.wrapping_mul(whole));
}

/// Divides each element; integers towards zero.
pub(crate) fn divide_elements(dtype: DType, by: u32, values: &mut [u8]) {
    let (real, whole) = (by as f32, i64::from(by));
    map_elements(dtype, values, |a| a / real, |a| a / whole);
}

fn map_elements(
    dtype: DType,
    values: &mut [u8],
    real: impl Fn(f32) -> f32,
    whole: impl Fn(i64) -> i64,
) {
    match dtype {
        DType::F32 => map_chunks(values, |e| real(f32::from_ne_bytes(e)).to_ne_bytes()),
        DType::F16 | DType::BF16 => {
            let mut block = [0.0; 512];
            for values in values.chunks_mut(1024) {
                let block = &mut block[..values.len() / 2];
                widen_halves(dtype, values, block);
                block.iter_mut().for_each(|value| *value = real(*value));
                narrow_to_halves(dtype, block, values);
            }
        }
        DType::I64 => map_chunks(values, |e| whole(i64::from_ne_bytes(e)).to_ne_bytes()),
        DType::I32 => {
            map_chunks(values, |e| (whole(i32::from_ne_bytes(e).into()) as i32).to_ne_bytes())
        }
        DType::U8 => map_chunks(values, |[e]| [whole(e.into()) as u8]),
        DType::F8E4M3 => map_chunks(values, |[e]| [E4M3.encode(real(E4M3.decode(e)))]),
        DType::F8E5M2 => map_chunks(values, |[e]| [E5M2.encode(real(E5M2.decode(e)))]),
        DType::Bool => map_chunks(values, |[e]| [u8::from(whole(e.into()) != 0)]),
    }
}

fn map_chunks<const N: usize>(values: &mut [u8], work: impl Fn([u8; N]) -> [u8; N]) {
    values.as_chunks_mut::<N>().0.iter_mut().for_each(|element| *element = work(*element));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_matters_where_two_elements_are_equal_and_differ() {
        let zeros = [0.0_f32, -0.0];
        for (before, expected) in [(false, -0.0_f32), (true, 0.0)] {
            let mut into = zeros[0].to_ne_bytes();
            fold_elements(DType::F32, FoldOp::Max, before, &mut into, &zeros[1].to_ne_bytes());
            assert_eq!(into, expected.to_ne_bytes());
        }
    }

    #[test]
    fn integers_are_scaled_and_divided_as_integers() {
        let mut value = (-7_i64).to_ne_bytes();
        scale_elements(DType::I64, 3.0, &mut value);
        assert_eq!(i64::from_ne_bytes(value), -21);
        divide_elements(DType::I64, 2, &mut value);
        assert_eq!(i64::from_ne_bytes(value), -10);
        let mut byte = [200];
        scale_elements(DType::U8, 2.0, &mut byte);
        assert_eq!(byte, [144]);
    }
}
