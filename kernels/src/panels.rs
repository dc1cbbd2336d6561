//! Columns of a matrix in the order in which [`crate::vectors`] multiplies them.

use std::arch::x86_64::*;

use crate::vectors::{LANES, MOST_VECTORS, mask_first};

/// Columns of a result that are computed together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Panel {
    /// The first vector of them.
    pub start: usize,
    pub vectors: usize,
    /// The lanes of the last vector that are columns.
    pub last: u16,
}

impl Panel {
    /// Returns the number of lanes of a vector that are columns.
    pub(crate) fn lanes(&self, vector: usize) -> usize {
        if vector + 1 == self.vectors { self.last.count_ones() as usize } else { LANES }
    }
}

/// The panels of so many columns, from one on.
#[derive(Clone)]
pub(crate) struct Panels {
    columns: usize,
    start: usize,
}

/// The panels of so many columns.
pub(crate) fn cut_panels(columns: usize) -> Panels {
    Panels { columns, start: 0 }
}

impl Iterator for Panels {
    type Item = Panel;

    fn next(&mut self) -> Option<Panel> {
        let left = self.columns.div_ceil(LANES) - self.start;
        let vectors = match left {
            0 => return None,
            5 | 6 => 3,
            left => left.min(MOST_VECTORS),
        };
        let start = self.start;
        self.start += vectors;
        let last = mask_first(self.columns - (self.start - 1) * LANES);
        Some(Panel { start, vectors, last })
    }
}

/// Loads up to 16 rows of up to 16 numbers, `stride` apart, and 0 where there are none.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn load_rows(
    data: &[f32],
    start: usize,
    stride: usize,
    [rows, count]: [usize; 2],
) -> [__m512; LANES] {
    let mut loaded = [_mm512_setzero_ps(); LANES];
    let Some(last) = rows.checked_sub(1) else { return loaded };
    let all = &data[start..start + last * stride + count];
    let (from, mask) = (all.as_ptr(), mask_first(count));
    // SAFETY: the last row ends where these numbers do, and the mask keeps to the rows.
    let row = |row: usize| unsafe { _mm512_maskz_loadu_ps(mask, from.add(row * stride)) };
    if rows == LANES {
        for (index, loaded) in loaded.iter_mut().enumerate() {
            *loaded = row(index);
        }
    } else {
        for (index, loaded) in loaded[..rows].iter_mut().enumerate() {
            *loaded = row(index);
        }
    }
    loaded
}

/// Writes the first `count` lanes of some rows, `stride` apart.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn store_rows(
    to: &mut [f32],
    start: usize,
    stride: usize,
    (rows, count): (&[__m512], usize),
) {
    if [rows.len(), count] == [LANES; 2] {
        let all = &mut to[start..=start + (LANES - 1) * (stride + 1)];
        for (row, &vector) in rows.iter().enumerate() {
            // SAFETY: the last of 16 rows ends where these numbers do.
            unsafe { _mm512_storeu_ps(all.as_mut_ptr().add(row * stride), vector) };
        }
        return;
    }
    for (row, &vector) in rows.iter().enumerate() {
        store_first(to, start + row * stride, count, vector);
    }
}

/// Copies rows of so many numbers, `stride` apart, one behind the other in whole vectors, with 0 behind each. Some rows ahead are asked for.
#[target_feature(enable = "avx512f")]
pub(crate) fn copy_rows(data: &[f32], stride: usize, count: usize, ahead: usize, to: &mut [f32]) {
    const WHOLE: usize = MOST_VECTORS * LANES;
    match count {
        // A whole panel, for which the compiler writes the loop over vectors out.
        WHOLE => copy_rows_of(data, stride, WHOLE, ahead, to),
        _ => copy_rows_of(data, stride, count, ahead, to),
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn copy_rows_of(data: &[f32], stride: usize, count: usize, ahead: usize, to: &mut [f32]) {
    let vectors = count.div_ceil(LANES);
    let rows = to.len() / (vectors * LANES);
    assert!(rows == 0 || (rows - 1) * stride + count <= data.len(), "rows to pack");
    let last = mask_first(count - (vectors - 1) * LANES);
    for row in 0..rows {
        let from = data.as_ptr().wrapping_add(row * stride);
        for vector in 0..vectors {
            let line = from.wrapping_add(ahead * stride + vector * LANES);
            _mm_prefetch::<_MM_HINT_T0>(line.cast());
        }
        for vector in 0..vectors {
            let mask = if vector + 1 == vectors { last } else { u16::MAX };
            // SAFETY: the masks keep to the rows, of which the last one ends in the data, and there is memory for as many.
            unsafe {
                let lanes = _mm512_maskz_loadu_ps(mask, from.add(vector * LANES));
                _mm512_storeu_ps(to.as_mut_ptr().add((row * vectors + vector) * LANES), lanes);
            }
        }
    }
}

/// Loads up to 16 numbers, and 0 behind them.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn load_first(data: &[f32], start: usize, count: usize) -> __m512 {
    let part = &data[start..start + count];
    // SAFETY: the mask keeps to the part.
    unsafe { _mm512_maskz_loadu_ps(mask_first(count), part.as_ptr()) }
}

/// Writes the first `count` lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn store_first(to: &mut [f32], at: usize, count: usize, vector: __m512) {
    let part = &mut to[at..at + count];
    // SAFETY: the mask keeps to the part.
    unsafe { _mm512_mask_storeu_ps(part.as_mut_ptr(), mask_first(count), vector) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_wide_and_alike() {
        let widths = |columns| cut_panels(columns).map(|panel| panel.vectors).collect::<Vec<_>>();
        assert_eq!(widths(64), [4]);
        assert_eq!(widths(80), [3, 2]);
        assert_eq!(widths(96), [3, 3]);
        assert_eq!(widths(160), [4, 3, 3]);
        assert!(cut_panels(24).eq([Panel { start: 0, vectors: 2, last: 0xFF }]));
    }
}
