//! The vector instructions of convolution: all `unsafe` on registers of 16 numbers.

use std::arch::x86_64::*;
use std::marker::PhantomData;

/// Numbers of a vector.
pub(super) const LANES: usize = 16;
/// Vectors of a panel, at most.
pub(super) const MOST_VECTORS: usize = 4;
/// Rows of a tile, at most.
pub(super) const MOST_ROWS: usize = 12;

/// How many rows are multiplied at a time with so many vectors: their sums are 24 registers, or 12.
pub(super) fn rows_beside(vectors: usize) -> usize {
    [12, 12, 8, 6][vectors - 1]
}

/// An element of the window: how far from the first one's source its own is, and which part of the panel is its.
#[derive(Clone, Copy)]
pub(super) struct Tap {
    pub ahead: isize,
    pub slot: usize,
}

/// A mask of as many ones.
pub(super) fn first(count: usize) -> u16 {
    ((1u32 << count.min(LANES)) - 1) as u16
}

/// A result that several threads write, each its own places.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pointer: *mut f32,
    len: usize,
    of: PhantomData<&'a mut [f32]>,
}

// SAFETY: who writes vouches that nobody else reaches the same places: `multiply` and `accumulate` ask for it.
unsafe impl Send for Target<'_> {}
// SAFETY: as above.
unsafe impl Sync for Target<'_> {}

impl<'a> Target<'a> {
    pub fn new(result: &'a mut [f32]) -> Self {
        Self { pointer: result.as_mut_ptr(), len: result.len(), of: PhantomData }
    }
}

/// What one call of [`multiply`] computes: `to[row + column] = sum over taps and channels of
/// from[row + tap + channel] panel[tap + channel][column]`.
pub(super) struct Tile<'a> {
    pub from: &'a [f32],
    pub to: Target<'a>,
    /// Where the source of the first tap begins, and the result, by row.
    pub rows: &'a [(usize, usize)],
    pub taps: &'a [Tap],
    pub channels: usize,
    /// Rows of `vectors` vectors, one for each channel of each tap, so far apart.
    pub panel: &'a [f32],
    pub stride: usize,
    pub vectors: usize,
    /// The lanes of the last vector that are read and written.
    pub last: u16,
}

impl Tile<'_> {
    /// # Panics
    /// Where a row or a tap lies outside its memory.
    fn check(&self) {
        let width = self.vectors * LANES;
        let written = width - self.last.leading_zeros() as usize;
        let (mut nearest, mut farthest) = (0, 0);
        for tap in self.taps {
            (nearest, farthest) = (tap.ahead.min(nearest), tap.ahead.max(farthest));
            let last = ((tap.slot + 1) * self.channels).saturating_sub(1) * self.stride;
            assert!(last + written <= self.panel.len(), "a tap's part of the panel");
        }
        let reach = farthest as usize + if self.taps.is_empty() { 0 } else { self.channels };
        for &(from, to) in self.rows {
            assert!(from >= nearest.unsigned_abs() && from + reach <= self.from.len(), "a row");
            assert!(to + written <= self.to.len, "a row of the result");
        }
    }
}

/// Computes a tile.
///
/// # Safety
/// The processor has AVX-512 F, and nobody else reaches the rows of the result meanwhile.
///
/// # Panics
/// Where a row or a tap lies outside its memory.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn multiply(tile: &Tile<'_>) {
    tile.check();
    macro_rules! of_rows {
        ($vectors:literal: $($rows:literal)*) => {
            match tile.rows.len() {
                // SAFETY: as the caller says; bounds have just been checked.
                $($rows => unsafe { sums::<$rows, $vectors>(tile) },)*
                count => unreachable!("a tile of {count} rows"),
            }
        };
    }
    match tile.vectors {
        1 => of_rows!(1: 1 2 3 4 5 6 7 8 9 10 11 12),
        2 => of_rows!(2: 1 2 3 4 5 6 7 8 9 10 11 12),
        3 => of_rows!(3: 1 2 3 4 5 6 7 8),
        4 => of_rows!(4: 1 2 3 4 5 6),
        count => unreachable!("a panel of {count} vectors"),
    }
}

/// # Safety
/// As [`multiply`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn sums<const R: usize, const V: usize>(tile: &Tile<'_>) {
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    for tap in tile.taps {
        let mut a = [std::ptr::null(); R];
        for (a, row) in a.iter_mut().zip(tile.rows) {
            *a = tile.from.as_ptr().wrapping_add(row.0).wrapping_offset(tap.ahead);
        }
        let mut panel = tile.panel.as_ptr().wrapping_add(tap.slot * tile.channels * tile.stride);
        let mut channel = 0;
        while channel + 4 <= tile.channels {
            for _ in 0..4 {
                // SAFETY: the channel is one of the row's and of the panel's.
                unsafe { step(&mut sums, &a, channel, (panel, tile.last)) };
                panel = panel.wrapping_add(tile.stride);
                channel += 1;
            }
        }
        while channel < tile.channels {
            // SAFETY: as above.
            unsafe { step(&mut sums, &a, channel, (panel, tile.last)) };
            panel = panel.wrapping_add(tile.stride);
            channel += 1;
        }
    }
    for (sums, row) in sums.iter().zip(tile.rows) {
        let to = tile.to.pointer.wrapping_add(row.1);
        for (index, &sum) in sums.iter().enumerate() {
            let mask = if index + 1 == V { tile.last } else { u16::MAX };
            // SAFETY: the mask keeps to the row.
            unsafe { _mm512_mask_storeu_ps(to.add(index * LANES), mask, sum) };
        }
    }
}

/// Adds the products of one channel.
///
/// # Safety
/// The channel may be read in all rows, and `V` vectors, of the last one some lanes, at `panel`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn step<const R: usize, const V: usize>(
    sums: &mut [[__m512; V]; R],
    a: &[*const f32; R],
    channel: usize,
    (panel, last): (*const f32, u16),
) {
    let mut b = [_mm512_setzero_ps(); V];
    for (index, b) in b.iter_mut().enumerate() {
        let mask = if index + 1 == V { last } else { u16::MAX };
        // SAFETY: as the caller says.
        *b = unsafe { _mm512_maskz_loadu_ps(mask, panel.add(index * LANES)) };
    }
    for (sums, a) in sums.iter_mut().zip(a) {
        // SAFETY: as the caller says.
        let a = unsafe { _mm512_set1_ps(*a.add(channel)) };
        for (sum, &b) in sums.iter_mut().zip(&b) {
            *sum = _mm512_fmadd_ps(a, b, *sum);
        }
    }
}

/// A run of places of which the sum is taken: where the first lies in both factors, and how many there are.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub wide: usize,
    pub narrow: usize,
    pub count: usize,
}

/// What one call of [`accumulate`] adds: `to[row][column] += sum over places of narrow[place][row] wide[place][column]`.
pub(super) struct Outer<'a> {
    /// Read as vectors.
    pub wide: &'a [f32],
    /// Read number by number.
    pub narrow: &'a [f32],
    /// From place to place within a run: of `wide`, of `narrow`.
    pub steps: [usize; 2],
    pub runs: &'a [Run],
    pub to: Target<'a>,
    /// Where the first row of the result begins, and how far the next one lies from it.
    pub at: [usize; 2],
    pub rows: usize,
    pub vectors: usize,
    /// The lanes of the last vector that are read and written.
    pub last: u16,
    /// Whether the sum is added to what is there.
    pub add: bool,
}

impl Outer<'_> {
    /// # Panics
    /// Where a place lies outside its memory.
    fn check(&self) {
        let width = self.vectors * LANES - self.last.leading_zeros() as usize;
        for run in self.runs.iter().filter(|run| run.count > 0) {
            let last = [0, 1].map(|side| (run.count - 1) * self.steps[side]);
            assert!(run.wide + last[0] + width <= self.wide.len(), "a place of vectors");
            assert!(run.narrow + last[1] + self.rows <= self.narrow.len(), "a place of numbers");
        }
        assert!(self.at[0] + (self.rows - 1) * self.at[1] + width <= self.to.len, "the result");
    }
}

/// Adds products of columns.
///
/// # Safety
/// The processor has AVX-512 F, and nobody else reaches the result meanwhile.
///
/// # Panics
/// Where a place lies outside its memory.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn accumulate(outer: &Outer<'_>) {
    outer.check();
    macro_rules! of_rows {
        ($vectors:literal: $($rows:literal)*) => {
            match outer.rows {
                // SAFETY: as the caller says; bounds have just been checked.
                $($rows => unsafe { outer_sums::<$rows, $vectors>(outer) },)*
                count => unreachable!("{count} rows"),
            }
        };
    }
    match outer.vectors {
        1 => of_rows!(1: 1 2 3 4 5 6 7 8 9 10 11 12),
        2 => of_rows!(2: 1 2 3 4 5 6 7 8 9 10 11 12),
        3 => of_rows!(3: 1 2 3 4 5 6 7 8),
        4 => of_rows!(4: 1 2 3 4 5 6),
        count => unreachable!("{count} vectors"),
    }
}

/// # Safety
/// As [`accumulate`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn outer_sums<const R: usize, const V: usize>(outer: &Outer<'_>) {
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    for run in outer.runs {
        let mut wide = outer.wide.as_ptr().wrapping_add(run.wide);
        let mut narrow = outer.narrow.as_ptr().wrapping_add(run.narrow);
        for _ in 0..run.count {
            let mut x = [_mm512_setzero_ps(); V];
            for (index, x) in x.iter_mut().enumerate() {
                let mask = if index + 1 == V { outer.last } else { u16::MAX };
                // SAFETY: the mask keeps to the place.
                *x = unsafe { _mm512_maskz_loadu_ps(mask, wide.add(index * LANES)) };
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: as the caller says.
                let factor = unsafe { _mm512_set1_ps(*narrow.add(row)) };
                for (sum, &x) in sums.iter_mut().zip(&x) {
                    *sum = _mm512_fmadd_ps(factor, x, *sum);
                }
            }
            wide = wide.wrapping_add(outer.steps[0]);
            narrow = narrow.wrapping_add(outer.steps[1]);
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (index, &sum) in sums.iter().enumerate() {
            let mask = if index + 1 == V { outer.last } else { u16::MAX };
            // SAFETY: the mask keeps to the row of the result.
            unsafe {
                let to = outer.to.pointer.add(outer.at[0] + row * outer.at[1] + index * LANES);
                let before =
                    if outer.add { _mm512_maskz_loadu_ps(mask, to) } else { _mm512_setzero_ps() };
                _mm512_mask_storeu_ps(to, mask, _mm512_add_ps(before, sum));
            }
        }
    }
}
