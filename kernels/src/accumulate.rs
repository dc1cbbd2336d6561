//! Joining one tensor into another: gradient accumulation, and what collectives reduce with.

use std::cell::Cell;

use graphc_ir::sbp::ReduceKind;
use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::elementwise::Integer;
use crate::error::KernelError;
use crate::precision::Float;
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

/// `into += from`, element by element.
///
/// # Errors
/// Returns an error if the shapes or element types differ, or elements cannot be added.
pub fn accumulate_into(into: &mut ViewMut<'_>, from: &View<'_>) -> Result<(), KernelError> {
    combine_into(ReduceKind::Sum, into, from)
}

/// `into = into + from`, or the greater or the lesser of both (a NaN stays a NaN), element by element.
///
/// # Errors
/// Returns an error if the shapes or element types differ, or elements cannot be added.
pub fn combine_into(
    kind: ReduceKind,
    into: &mut ViewMut<'_>,
    from: &View<'_>,
) -> Result<(), KernelError> {
    if into.len() != from.len() || into.dtype != from.dtype {
        let reason = format!("{}{:?} into {}{:?}", from.dtype, from.shape, into.dtype, into.shape);
        return Err(KernelError::bad_call("accumulate", reason));
    }
    match into.dtype {
        DType::F32 => combine_floats(kind, into.as_mut_slice()?, from.as_slice()?),
        DType::I64 => combine_integers::<i64>(kind, into.as_mut_slice()?, from.as_slice()?),
        DType::I32 => combine_integers::<i32>(kind, into.as_mut_slice()?, from.as_slice()?),
        DType::U8 => combine_integers::<u8>(kind, into.as_mut_slice()?, from.as_slice()?),
        // The sum of truth values is whether any holds.
        DType::Bool if kind == ReduceKind::Min => {
            combine_integers::<u8>(ReduceKind::Min, into.as_mut_slice()?, from.as_slice()?);
        }
        DType::Bool => {
            combine_integers::<u8>(ReduceKind::Max, into.as_mut_slice()?, from.as_slice()?)
        }
        DType::F16 => combine_halves::<f16>(kind, into.as_mut_slice()?, from.as_slice()?),
        DType::BF16 => combine_halves::<bf16>(kind, into.as_mut_slice()?, from.as_slice()?),
        dtype @ (DType::F8E4M3 | DType::F8E5M2) => {
            return Err(KernelError::wrong_dtype::<f32>(dtype));
        }
    }
    Ok(())
}

vectorized! {
    /// `into = a + b`, bytes of `f32` of any alignment: what lies beyond the shortest stays.
    pub fn sum_of_two(into: &mut [u8], a: &[u8], b: &[u8]) {
        let summands = a.as_chunks::<4>().0.iter().zip(b.as_chunks::<4>().0);
        for (into, (a, b)) in into.as_chunks_mut::<4>().0.iter_mut().zip(summands) {
            *into = (f32::from_ne_bytes(*a) + f32::from_ne_bytes(*b)).to_ne_bytes();
        }
    }
}

vectorized! {
    /// Replaces both numbers by `a + b`, bytes of `f32`.
    pub fn sum_in_both(a: &[Cell<[u8; 4]>], b: &[Cell<[u8; 4]>]) {
        for (a, b) in a.iter().zip(b) {
            let sum = f32::from_ne_bytes(a.get()) + f32::from_ne_bytes(b.get());
            a.set(sum.to_ne_bytes());
            b.set(sum.to_ne_bytes());
        }
    }
}

vectorized! {
    fn combine_floats(kind: ReduceKind, into: &mut [f32], from: &[f32]) {
        let pairs = into.iter_mut().zip(from);
        match kind {
            ReduceKind::Sum => pairs.for_each(|(into, &x)| *into += x),
            ReduceKind::Max => pairs.for_each(|(into, &x)| {
                *into = if *into > x || into.is_nan() { *into } else { x };
            }),
            ReduceKind::Min => pairs.for_each(|(into, &x)| {
                *into = if *into < x || into.is_nan() { *into } else { x };
            }),
        }
    }
}

fn combine_halves<T: Float>(kind: ReduceKind, into: &mut [T], from: &[T]) {
    let (mut a, mut b) = ([0.0; 256], [0.0; 256]);
    for (into, from) in into.chunks_mut(256).zip(from.chunks(256)) {
        let (a, b) = (&mut a[..into.len()], &mut b[..into.len()]);
        T::widen(into, a);
        T::widen(from, b);
        combine_floats(kind, a, b);
        T::narrow(a, into);
    }
}

fn combine_integers<T: Integer>(kind: ReduceKind, into: &mut [T], from: &[T]) {
    for (into, &x) in into.iter_mut().zip(from) {
        *into = match kind {
            ReduceKind::Sum => T::wrap((*into).into().wrapping_add(x.into())),
            ReduceKind::Max => x.max(*into),
            ReduceKind::Min => x.min(*into),
        };
    }
}
