//! Two buffers folded into one with an operation and an order: what collectives of the user's own need beyond
//! [`super::combine`].

use graphc_ir::types::DType;
use graphc_kernels::{narrow, widen};

use super::reduce::{greater, halves, less, zip};
use super::wide::join_wide;

/// What two elements become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fold {
    Sum,
    Product,
    Max,
    Min,
    And,
    Or,
    Xor,
}

impl Fold {
    /// Whether elements of this type have the operation: floating-point numbers have no bits to combine.
    pub(crate) fn fits(self, dtype: DType) -> bool {
        !dtype.is_float() || !matches!(self, Self::And | Self::Or | Self::Xor)
    }
}

/// Replaces each element `a` of `into` by `a op b`, `b` the element of `from`; with `before` by `b op a`, which differs for
/// the greatest of two zeros or NaNs. Integers wrap; truth values are 0 or 1, their sum and greatest is `or`, their product
/// and least `and`. Any alignment.
pub(crate) fn fold(dtype: DType, op: Fold, before: bool, into: &mut [u8], from: &[u8]) {
    match dtype {
        DType::F32 => floats(op, before, into, from),
        DType::F16 | DType::BF16 => halves(dtype, into, from, chosen(op, before)),
        DType::I64 => integers!(i64, op, into, from),
        DType::I32 => integers!(i32, op, into, from),
        DType::U8 => integers!(u8, op, into, from),
        DType::Bool => truth_values(op, into, from),
    }
}

fn floats(op: Fold, before: bool, into: &mut [u8], from: &[u8]) {
    let (read, write) = (f32::from_ne_bytes, f32::to_ne_bytes);
    match (op, before) {
        (Fold::Sum, _) => zip(into, from, read, write, |a, b| a + b),
        (Fold::Product, _) => zip(into, from, read, write, |a, b| a * b),
        (Fold::Max, false) => zip(into, from, read, write, greater),
        (Fold::Max, true) => zip(into, from, read, write, |a, b| greater(b, a)),
        (Fold::Min, false) => zip(into, from, read, write, less),
        (Fold::Min, true) => zip(into, from, read, write, |a, b| less(b, a)),
        (Fold::And | Fold::Or | Fold::Xor, _) => unreachable!("refused by `Fold::fits`"),
    }
}

/// Replaces each `a` of `into` by `a op b`, `b` the 16-bit number in `from`. Nothing is rounded, so only sums and products
/// are kept so.
pub(crate) fn fold_wide(dtype: DType, op: Fold, into: &mut [f32], from: &[u8]) {
    match op {
        Fold::Product => join_wide(dtype, from, into, |a, b| a * b),
        _ => join_wide(dtype, from, into, |a, b| a + b),
    }
}

/// The choice between two 16-bit numbers.
fn chosen(op: Fold, before: bool) -> fn(f32, f32) -> f32 {
    match (op, before) {
        (Fold::Max, false) => greater,
        (Fold::Max, true) => |a, b| greater(b, a),
        (Fold::Min, false) => less,
        (Fold::Min, true) => |a, b| less(b, a),
        (Fold::Sum, _) => |a, b| a + b,
        (Fold::Product, _) => |a, b| a * b,
        (Fold::And | Fold::Or | Fold::Xor, _) => unreachable!("refused by `Fold::fits`"),
    }
}

/// For one type of integers.
macro_rules! integers {
    ($type:ty, $op:expr, $into:expr, $from:expr) => {{
        let (read, write) = (<$type>::from_ne_bytes, <$type>::to_ne_bytes);
        match $op {
            Fold::Sum => zip($into, $from, read, write, <$type>::wrapping_add),
            Fold::Product => zip($into, $from, read, write, <$type>::wrapping_mul),
            Fold::Max => zip($into, $from, read, write, <$type>::max),
            Fold::Min => zip($into, $from, read, write, <$type>::min),
            Fold::And => zip($into, $from, read, write, |a, b| a & b),
            Fold::Or => zip($into, $from, read, write, |a, b| a | b),
            Fold::Xor => zip($into, $from, read, write, |a, b| a ^ b),
        }
    }};
}
use integers;

fn truth_values(op: Fold, into: &mut [u8], from: &[u8]) {
    let read = |[byte]: [u8; 1]| byte != 0;
    let write = |value: bool| [u8::from(value)];
    match op {
        Fold::Sum | Fold::Max | Fold::Or => zip(into, from, read, write, |a, b| a | b),
        Fold::Product | Fold::Min | Fold::And => zip(into, from, read, write, |a, b| a & b),
        Fold::Xor => zip(into, from, read, write, |a, b| a ^ b),
    }
}

/// Multiplies each element; integers wrap, by the factor's whole part.
pub(crate) fn scale(dtype: DType, factor: f64, values: &mut [u8]) {
    let (real, whole) = (factor as f32, factor as i64);
    each(dtype, values, |a| a * real, |a| a.wrapping_mul(whole));
}

/// Divides each element; integers towards zero.
pub(crate) fn divide(dtype: DType, by: u32, values: &mut [u8]) {
    let (real, whole) = (by as f32, i64::from(by));
    each(dtype, values, |a| a / real, |a| a / whole);
}

fn each(dtype: DType, values: &mut [u8], real: impl Fn(f32) -> f32, whole: impl Fn(i64) -> i64) {
    match dtype {
        DType::F32 => map(values, |e| real(f32::from_ne_bytes(e)).to_ne_bytes()),
        DType::F16 | DType::BF16 => {
            let mut block = [0.0; 512];
            for values in values.chunks_mut(1024) {
                let block = &mut block[..values.len() / 2];
                widen(dtype, values, block);
                block.iter_mut().for_each(|value| *value = real(*value));
                narrow(dtype, block, values);
            }
        }
        DType::I64 => map(values, |e| whole(i64::from_ne_bytes(e)).to_ne_bytes()),
        DType::I32 => map(values, |e| (whole(i32::from_ne_bytes(e).into()) as i32).to_ne_bytes()),
        DType::U8 => map(values, |[e]| [whole(e.into()) as u8]),
        DType::Bool => map(values, |[e]| [u8::from(whole(e.into()) != 0)]),
    }
}

fn map<const N: usize>(values: &mut [u8], work: impl Fn([u8; N]) -> [u8; N]) {
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
            fold(DType::F32, Fold::Max, before, &mut into, &zeros[1].to_ne_bytes());
            assert_eq!(into, expected.to_ne_bytes());
        }
    }

    #[test]
    fn integers_are_scaled_and_divided_as_integers() {
        let mut value = (-7_i64).to_ne_bytes();
        scale(DType::I64, 3.0, &mut value);
        assert_eq!(i64::from_ne_bytes(value), -21);
        divide(DType::I64, 2, &mut value);
        assert_eq!(i64::from_ne_bytes(value), -10);
        let mut byte = [200];
        scale(DType::U8, 2.0, &mut byte);
        assert_eq!(byte, [144]);
    }
}
