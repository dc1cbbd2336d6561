//! Elements of two buffers combined into one: sum, greatest, least.

use graphc_host::tensor::write_element;
use graphc_ir::float8::{E4M3, E5M2, Float8Format};
use graphc_ir::sbp::ReduceKind;
use graphc_ir::types::DType;
use graphc_kernels::{narrow_to_halves, widen_halves};

use super::wide::join_wide;

/// Combines each element of `into` with that of `from`; integers wrap, truth values are 0 or 1 (the sum is `or`), a
/// NaN stays a NaN. Any alignment.
pub(crate) fn combine_elements(dtype: DType, kind: ReduceKind, into: &mut [u8], from: &[u8]) {
    match dtype {
        DType::F32 => {
            combine_by_kind(into, from, kind, f32::from_ne_bytes, f32::to_ne_bytes, |a, b| a + b)
        }
        DType::F16 | DType::BF16 => match kind {
            ReduceKind::Sum => combine_halves(dtype, into, from, |a, b| a + b),
            ReduceKind::Max => combine_halves(dtype, into, from, greater_or_nan),
            ReduceKind::Min => combine_halves(dtype, into, from, less_or_nan),
        },
        DType::I64 => {
            combine_by_kind(
                into,
                from,
                kind,
                i64::from_ne_bytes,
                i64::to_ne_bytes,
                i64::wrapping_add,
            );
        }
        DType::I32 => {
            combine_by_kind(
                into,
                from,
                kind,
                i32::from_ne_bytes,
                i32::to_ne_bytes,
                i32::wrapping_add,
            );
        }
        DType::U8 => {
            combine_by_kind(into, from, kind, u8::from_ne_bytes, u8::to_ne_bytes, u8::wrapping_add)
        }
        DType::Bool => {
            combine_by_kind(into, from, kind, u8::from_ne_bytes, u8::to_ne_bytes, |a, b| a | b)
        }
        DType::F8E4M3 => combine_float8(E4M3, into, from, kind),
        DType::F8E5M2 => combine_float8(E5M2, into, from, kind),
    }
}

fn combine_float8(format: Float8Format, into: &mut [u8], from: &[u8], kind: ReduceKind) {
    let read = |[bits]: [u8; 1]| format.decode(bits);
    combine_by_kind(into, from, kind, read, |x| [format.encode(x)], |a, b| a + b);
}

/// Sets `into` to the combination of `a` with `b`.
pub(crate) fn combine_into(dtype: DType, kind: ReduceKind, into: &mut [u8], a: &[u8], b: &[u8]) {
    if (dtype, kind) == (DType::F32, ReduceKind::Sum) {
        return graphc_kernels::sum_of_two(into, a, b);
    }
    into.copy_from_slice(a);
    combine_elements(dtype, kind, into, b);
}

fn combine_by_kind<T: Copy + PartialOrd, const N: usize>(
    into: &mut [u8],
    from: &[u8],
    kind: ReduceKind,
    read: impl Fn([u8; N]) -> T + Copy,
    write: impl Fn(T) -> [u8; N] + Copy,
    add: impl Fn(T, T) -> T,
) {
    match kind {
        ReduceKind::Sum => combine_pairs(into, from, read, write, add),
        // What does not compare is a NaN: `a != a` keeps the first, the comparison's failure takes the second.
        ReduceKind::Max => combine_pairs(into, from, read, write, greater_or_nan),
        ReduceKind::Min => combine_pairs(into, from, read, write, less_or_nan),
    }
}

/// Returns the greater of two; a NaN wins.
pub(super) fn greater_or_nan<T: Copy + PartialOrd>(a: T, b: T) -> T {
    if is_nan(a) || a > b { a } else { b }
}

/// Returns the lesser of two; a NaN wins.
pub(super) fn less_or_nan<T: Copy + PartialOrd>(a: T, b: T) -> T {
    if is_nan(a) || a < b { a } else { b }
}

/// Joins pairs of 16-bit numbers; the results are rounded.
pub(super) fn combine_halves(
    dtype: DType,
    into: &mut [u8],
    from: &[u8],
    join: impl Fn(f32, f32) -> f32 + Copy,
) {
    let mut block = [0.0; 512];
    for (into, from) in into.chunks_mut(1024).zip(from.chunks(1024)) {
        let block = &mut block[..into.len().min(from.len()) / 2];
        widen_halves(dtype, into, block);
        join_wide(dtype, from, block, join);
        narrow_to_halves(dtype, block, into);
    }
}

#[expect(clippy::eq_op, reason = "only a NaN differs from itself")]
fn is_nan<T: PartialEq>(value: T) -> bool {
    value != value
}

pub(super) fn combine_pairs<T, const N: usize>(
    into: &mut [u8],
    from: &[u8],
    read: impl Fn([u8; N]) -> T,
    write: impl Fn(T) -> [u8; N],
    combine: impl Fn(T, T) -> T,
) {
    for (a, b) in into.as_chunks_mut::<N>().0.iter_mut().zip(from.as_chunks::<N>().0) {
        *a = write(combine(read(*a), read(*b)));
    }
}

/// Fills a buffer with the value that changes nothing: 0, the least, the greatest.
pub(crate) fn fill_identity(dtype: DType, kind: ReduceKind, into: &mut [u8]) {
    let mut element = [0; 8];
    let element = &mut element[..dtype.size()];
    match (dtype, kind) {
        (DType::Bool, _) => element[0] = u8::from(kind == ReduceKind::Min),
        _ => write_element(dtype, kind.identity(), element),
    }
    into.chunks_exact_mut(element.len()).for_each(|place| place.copy_from_slice(element));
}

#[cfg(test)]
mod tests {
    use super::*;
    use graphc_host::tensor::HostTensor;

    const KINDS: [ReduceKind; 3] = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min];

    #[test]
    fn every_type_combines_as_numbers_do() {
        for (dtype, kind) in DType::ALL.into_iter().flat_map(|d| KINDS.map(|k| (d, k))) {
            let small = dtype == DType::Bool;
            let (a, b) = if small { ([0.0, 1.0], [0.0, 0.0]) } else { ([2.0, 7.0], [5.0, 3.0]) };
            let tensor = |data: &[f64]| HostTensor::from_f64(dtype, [2], data).expect("2 elements");
            let mut into = tensor(&a);
            combine_elements(dtype, kind, into.bytes_mut(), tensor(&b).bytes());
            let expected: Vec<f64> = a.iter().zip(b).map(|(&a, b)| kind.combine(a, b)).collect();
            assert_eq!(into.to_f64(), expected, "{dtype} {kind:?}");
            let mut anew = tensor(&[1.0, 1.0]);
            combine_into(dtype, kind, anew.bytes_mut(), tensor(&a).bytes(), tensor(&b).bytes());
            assert_eq!(anew, into, "{dtype} {kind:?}");
        }
    }

    #[test]
    fn the_identity_changes_nothing_and_nan_stays() {
        for (dtype, kind) in DType::ALL.into_iter().flat_map(|d| KINDS.map(|k| (d, k))) {
            let data = HostTensor::from_f64(dtype, [2], &[0.0, 1.0]).expect("2 elements");
            let mut into = data.clone();
            fill_identity(dtype, kind, into.bytes_mut());
            combine_elements(dtype, kind, into.bytes_mut(), data.bytes());
            assert_eq!(into, data, "{dtype} {kind:?}");
        }
        for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            let mut into = a.to_ne_bytes();
            combine_elements(DType::F32, ReduceKind::Max, &mut into, &b.to_ne_bytes());
            assert!(f32::from_ne_bytes(into).is_nan());
        }
    }
}
