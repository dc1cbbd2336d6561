//! Floating-point element types, for kernels with one body for all of them.
//!
//! A kernel is generic over [`Float`]. It widens a row or a block of bf16 or f16 to `f32` in the thread's own memory, computes,
//! and rounds once: to the nearest value, and of two equally near ones to the even one. Rows of `f32` are read where they lie.

use graphc_ir::float8::Float8Format;
use graphc_ir::types::DType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::simd::vectorized;
use crate::view::Element;

/// A floating-point element type: `f32`, `f16` or `bf16`. Kernels compute in `f32` whatever it is.
pub(crate) trait Float: Element {
    /// Returns the number of `f32` that [`Float::read_values`] and [`Float::write_values`] need to work on `count` elements.
    fn scratch_len(count: usize) -> usize;

    /// The value of one element.
    fn value(self) -> f32;

    /// The element nearest to a value.
    fn round_from(value: f32) -> Self;

    /// Writes the values to as many places.
    fn widen(from: &[Self], to: &mut [f32]);

    /// Writes the nearest values to as many places.
    fn narrow(from: &[f32], to: &mut [Self]);

    /// The values: where they lie, or in `room`.
    fn read_values<'a>(from: &'a [Self], room: &'a mut [f32]) -> &'a [f32];

    /// Lets `work` write all values: where they belong, or to `room`, from where they are rounded.
    fn write_values<R>(to: &mut [Self], room: &mut [f32], work: impl FnOnce(&mut [f32]) -> R) -> R;
}

impl Float for f32 {
    fn scratch_len(_count: usize) -> usize {
        0
    }

    #[inline(always)]
    fn value(self) -> f32 {
        self
    }

    #[inline(always)]
    fn round_from(value: f32) -> Self {
        value
    }

    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }

    #[inline(always)]
    fn read_values<'a>(from: &'a [Self], _room: &'a mut [f32]) -> &'a [f32] {
        from
    }

    #[inline(always)]
    fn write_values<R>(
        to: &mut [Self],
        _room: &mut [f32],
        work: impl FnOnce(&mut [f32]) -> R,
    ) -> R {
        work(to)
    }
}

impl Float for bf16 {
    fn scratch_len(count: usize) -> usize {
        count
    }

    #[inline(always)]
    fn value(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn round_from(value: f32) -> Self {
        bf16::from_bits((nearest_bf16(value.to_bits()) >> 16) as u16)
    }

    fn widen(from: &[Self], to: &mut [f32]) {
        assert_eq!(from.len(), to.len(), "as many values");
        widen_bf16(from, to);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        assert_eq!(from.len(), to.len(), "as many values");
        narrow_bf16(from, to);
    }

    fn read_values<'a>(from: &'a [Self], room: &'a mut [f32]) -> &'a [f32] {
        read_widened(from, room)
    }

    fn write_values<R>(to: &mut [Self], room: &mut [f32], work: impl FnOnce(&mut [f32]) -> R) -> R {
        write_narrowed(to, room, work)
    }
}

impl Float for f16 {
    fn scratch_len(count: usize) -> usize {
        count
    }

    #[inline(always)]
    fn value(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn round_from(value: f32) -> Self {
        f16::from_f32(value)
    }

    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }

    fn read_values<'a>(from: &'a [Self], room: &'a mut [f32]) -> &'a [f32] {
        read_widened(from, room)
    }

    fn write_values<R>(to: &mut [Self], room: &mut [f32], work: impl FnOnce(&mut [f32]) -> R) -> R {
        write_narrowed(to, room, work)
    }
}

/// Elements that go through the stack at one time.
const BLOCK: usize = 512;

/// Writes the values of 16-bit elements, `f16` or `bf16`, that lie in memory of any alignment.
pub fn widen_halves(dtype: DType, from: &[u8], to: &mut [f32]) {
    match dtype {
        DType::BF16 => widen_bytes(from, to, bf16::from_ne_bytes),
        _ => widen_bytes(from, to, f16::from_ne_bytes),
    }
}

/// Writes the nearest 16-bit elements, `f16` or `bf16`, to memory of any alignment.
pub fn narrow_to_halves(dtype: DType, from: &[f32], to: &mut [u8]) {
    match dtype {
        DType::BF16 => narrow_bytes(from, to, bf16::to_ne_bytes),
        _ => narrow_bytes(from, to, f16::to_ne_bytes),
    }
}

fn widen_bytes<T: Float>(from: &[u8], to: &mut [f32], element: impl Fn([u8; 2]) -> T) {
    let mut block = [T::default(); BLOCK];
    for (from, to) in from.as_chunks::<2>().0.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
        let block = &mut block[..to.len()];
        block.iter_mut().zip(from).for_each(|(block, &from)| *block = element(from));
        T::widen(block, to);
    }
}

fn narrow_bytes<T: Float>(from: &[f32], to: &mut [u8], bytes: impl Fn(T) -> [u8; 2]) {
    let mut block = [T::default(); BLOCK];
    for (from, to) in from.chunks(BLOCK).zip(to.as_chunks_mut::<2>().0.chunks_mut(BLOCK)) {
        let block = &mut block[..from.len()];
        T::narrow(from, block);
        to.iter_mut().zip(block).for_each(|(to, block)| *to = bytes(*block));
    }
}

fn read_widened<'a, T: Float>(from: &[T], room: &'a mut [f32]) -> &'a [f32] {
    let room = &mut room[..from.len()];
    T::widen(from, room);
    room
}

fn write_narrowed<T: Float, R>(
    to: &mut [T],
    room: &mut [f32],
    work: impl FnOnce(&mut [f32]) -> R,
) -> R {
    let room = &mut room[..to.len()];
    let result = work(room);
    T::narrow(room, to);
    result
}

/// Cuts a room into equal parts.
pub(crate) fn parts_of<const N: usize>(room: &mut [f32]) -> [&mut [f32]; N] {
    let each = room.len() / N;
    let mut rest = room;
    std::array::from_fn(|_| {
        let (own, tail) = std::mem::take(&mut rest).split_at_mut(each);
        rest = tail;
        own
    })
}

vectorized! {
    fn widen_bf16(from: &[bf16], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.value();
        }
    }
}

vectorized! {
    fn narrow_bf16(from: &[f32], to: &mut [bf16]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = bf16::round_from(*from);
        }
    }
}

vectorized! {
    /// Rounds to values of `bf16`.
    pub(crate) fn round_bf16(values: &mut [f32]) {
        for value in values {
            *value = f32::from_bits(nearest_bf16(value.to_bits()) & 0xFFFF_0000);
        }
    }
}

/// Writes the values of bits of 8-bit numbers to as many places.
#[inline]
pub(crate) fn widen_float8(format: Float8Format, from: &[u8], to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = format.decode(from));
}

/// Writes the bits of the nearest 8-bit numbers to as many places.
#[inline]
pub(crate) fn narrow_float8(format: Float8Format, from: &[f32], to: &mut [u8]) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = format.encode(from));
}

/// Rounds to values of 8-bit numbers.
#[inline]
pub(crate) fn round_float8(format: Float8Format, values: &mut [f32]) {
    values.iter_mut().for_each(|value| *value = format.decode(format.encode(*value)));
}

/// Rounds to values of `f16`.
pub(crate) fn round_f16(values: &mut [f32]) {
    let mut room = [f16::ZERO; 256];
    for values in values.chunks_mut(room.len()) {
        let room = &mut room[..values.len()];
        f16::narrow(values, room);
        f16::widen(room, values);
    }
}

/// The bits of the nearest `bf16` in the upper half; a NaN stays one.
#[inline(always)]
fn nearest_bf16(bits: u32) -> u32 {
    let nan = bits & 0x7FFF_FFFF > 0x7F80_0000;
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
    if nan { bits | 0x0040_0000 } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values about every rounding: all halves, what lies between neighbours, and a little to both sides of that.
    fn between(halves: impl Iterator<Item = f32>) -> Vec<f32> {
        let near = |value: f32| {
            let bits = value.to_bits();
            [0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
                .map(|more| f32::from_bits(bits.wrapping_add(more)))
        };
        halves.flat_map(near).collect()
    }

    fn agree<T: Float + std::fmt::Debug>(
        values: Vec<f32>,
        nearest: impl Fn(f32) -> T,
        round: impl Fn(&mut [f32]),
    ) {
        let mut narrow = vec![T::default(); values.len()];
        T::narrow(&values, &mut narrow);
        let mut wide = vec![0.0; values.len()];
        T::widen(&narrow, &mut wide);
        let mut rounded = values.clone();
        round(&mut rounded);
        for (i, &value) in values.iter().enumerate() {
            let expected = nearest(value);
            let same = expected == narrow[i] && wide[i] == expected.value();
            let nan = value.is_nan() && narrow[i].value().is_nan() && wide[i].is_nan();
            assert!(same || nan, "{value:e}: {:?} instead of {expected:?}", narrow[i]);
            assert!(rounded[i] == wide[i] || nan && rounded[i].is_nan(), "{value:e}");
        }
    }

    #[test]
    fn slices_are_rounded_as_single_values_are() {
        let bf16s = (0..=u16::MAX).map(|bits| bf16::from_bits(bits).to_f32());
        agree(between(bf16s), bf16::from_f32, round_bf16);
        let f16s = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32());
        agree(between(f16s), f16::from_f32, round_f16);
    }

    #[test]
    fn ties_go_to_the_even_value() {
        let mut out = [bf16::ZERO; 2];
        bf16::narrow(&[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0], &mut out);
        assert_eq!(out.map(bf16::to_bits), [0x3F80, 0x3F82]);
        let mut out = [f16::ZERO; 4];
        f16::narrow(&[1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 65_520.0, 65_519.0], &mut out);
        assert_eq!(out.map(f16::to_bits), [0x3C00, 0x3C02, 0x7C00, 0x7BFF]);
    }
}
