//! The element types that steps work on.

/// Elements of an argument. Truth values are `u8`.
#[derive(Clone, Copy)]
pub(super) enum Values<'a> {
    F32(&'a [f32]),
    I64(&'a [i64]),
    I32(&'a [i32]),
    U8(&'a [u8]),
}

/// Calls `f` on each pair.
#[inline(always)]
pub(super) fn zip_elements<T: Copy, U>(a: &[T], b: &[T], out: &mut [U], f: impl Fn(T, T) -> U) {
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = f(a, b);
    }
}
