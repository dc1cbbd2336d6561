//! Two buffers folded into one with an operation and an order: what collectives of the user's own need beyond
//! [`super::combine`].

use graphc_ir::types::DType;

use super::reduce::{is_nan, read_bf16, read_f16, write_bf16, write_f16, zip};

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
        DType::F32 => floats(op, before, into, from, f32::from_ne_bytes, f32::to_ne_bytes),
        DType::F16 => floats(op, before, into, from, read_f16, write_f16),
        DType::BF16 => floats(op, before, into, from, read_bf16, write_bf16),
        DType::I64 => integers!(i64, op, into, from),
        DType::I32 => integers!(i32, op, into, from),
        DType::U8 => integers!(u8, op, into, from),
        DType::Bool => truth_values(op, into, from),
    }
}

fn floats<const N: usize>(
    op: Fold,
    before: bool,
    into: &mut [u8],
    from: &[u8],
    read: impl Fn([u8; N]) -> f32 + Copy,
    write: impl Fn(f32) -> [u8; N] + Copy,
) {
    let greater = |a: f32, b: f32| if is_nan(a) || a > b { a } else { b };
    let less = |a: f32, b: f32| if is_nan(a) || a < b { a } else { b };
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
        DType::F16 => map(values, |e| write_f16(real(read_f16(e)))),
        DType::BF16 => map(values, |e| write_bf16(real(read_bf16(e)))),
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
