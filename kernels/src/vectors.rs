//! Sums of products in registers of AVX-512, of which products and convolutions of `f32` are made.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

use graphc_ir::shard::split_range;

/// Numbers of a vector.
pub(crate) const LANES: usize = 16;
/// Vectors of a panel, at most.
pub(crate) const MOST_VECTORS: usize = 4;
/// Rows of a strip that are computed together: a multiple of all that [`rows_beside`] says.
pub(crate) const STRIP: usize = 240;

/// Returns the number of rows that are multiplied at a time with so many vectors: their sums take 24 registers, or 12 for one vector.
pub(crate) fn rows_beside(vectors: usize) -> usize {
    [12, 12, 8, 6][vectors - 1]
}

/// An element of the window: how far from the first one's source its own is, and which part of the panel is its.
#[derive(Clone, Copy)]
pub(crate) struct Tap {
    pub ahead: isize,
    pub slot: usize,
}

/// A mask of as many ones.
pub(crate) fn mask_first(count: usize) -> u16 {
    ((1u32 << count.min(LANES)) - 1) as u16
}

/// A result that several threads write, each its own places.
#[derive(Clone, Copy)]
pub(crate) struct VectorTarget<'a> {
    pointer: *mut f32,
    len: usize,
    of: PhantomData<&'a mut [f32]>,
}

// SAFETY: who writes vouches that nobody else reaches the same places: `multiply_strip` and `accumulate_outer` ask for it.
unsafe impl Send for VectorTarget<'_> {}
// SAFETY: as above.
unsafe impl Sync for VectorTarget<'_> {}

impl<'a> VectorTarget<'a> {
    pub(crate) fn new(result: &'a mut [f32]) -> Self {
        Self { pointer: result.as_mut_ptr(), len: result.len(), of: PhantomData }
    }

    /// Makes a target of `len` numbers at `pointer`.
    ///
    /// # Safety
    /// They are valid for reads and writes for `'a`.
    pub(crate) unsafe fn from_raw(pointer: *mut f32, len: usize) -> Self {
        Self { pointer, len, of: PhantomData }
    }

    /// The numbers from one on; panics where there are fewer.
    pub(crate) fn starting_at(self, start: usize) -> Self {
        assert!(start <= self.len, "the result");
        Self { pointer: self.pointer.wrapping_add(start), len: self.len - start, ..self }
    }

    /// Writes the first `count` lanes from a place on; panics where there are fewer.
    ///
    /// # Safety
    /// The processor has AVX-512 F, and nobody else reaches these places.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn write(self, at: usize, count: usize, lanes: __m512) {
        assert!(at + count <= self.len, "the result");
        // SAFETY: the mask keeps to the places.
        unsafe { _mm512_mask_storeu_ps(self.pointer.add(at), mask_first(count), lanes) };
    }
}

/// The positions at which rows begin: for each row, that of its first tap's source and that of its result.
#[derive(Clone, Copy)]
pub(crate) enum RowStarts<'a> {
    /// Anywhere.
    Listed(&'a [(usize, usize)]),
    /// Rows at equal distances: `count` of them, each `apart` behind the one before. The source of the first begins at 0, the result at
    /// `to`.
    Even { count: usize, to: usize, apart: (usize, usize) },
}

impl RowStarts<'_> {
    fn len(self) -> usize {
        match self {
            Self::Listed(rows) => rows.len(),
            Self::Even { count, .. } => count,
        }
    }

    #[inline(always)]
    fn start_of(self, index: usize) -> (usize, usize) {
        match self {
            Self::Listed(rows) => rows[index],
            Self::Even { to, apart, .. } => (index * apart.0, to + index * apart.1),
        }
    }
}

/// The work of one call of [`multiply_strip`]: `to[row + column] = scale sum over taps and channels of
/// from[row + tap + channel] panel[tap + channel][column]`.
pub(crate) struct VectorStrip<'a> {
    pub from: &'a [f32],
    pub to: VectorTarget<'a>,
    pub rows: RowStarts<'a>,
    pub taps: &'a [Tap],
    pub channels: usize,
    /// The distance from one channel of a row to the next.
    pub step: usize,
    /// Rows of `vectors` vectors, one for each channel of each tap, so far apart.
    pub panel: &'a [f32],
    pub stride: usize,
    pub vectors: usize,
    /// The lanes of the last vector that are read and written.
    pub last: u16,
    /// The factor of sums, and whether they are added to what is there.
    pub scale: f32,
    pub add: bool,
    /// The lines that are read after this strip.
    pub next: &'a [PrefetchLines],
}

/// Cache lines of a matrix, about: rows or columns that are contiguous in memory. They are asked for, not read.
#[derive(Clone, Copy)]
pub(crate) struct PrefetchLines {
    pub first: *const f32,
    /// The distance from one row or column to the next, in numbers, and the number of lines of each.
    pub stride: usize,
    pub each: usize,
    pub count: usize,
}

impl VectorStrip<'_> {
    /// # Panics
    /// Panics if a row or a tap lies outside its memory.
    fn check(&self) {
        let width = self.vectors * LANES;
        let written = width - self.last.leading_zeros() as usize;
        let (mut nearest, mut farthest) = (0, 0);
        for tap in self.taps {
            (nearest, farthest) = (tap.ahead.min(nearest), tap.ahead.max(farthest));
            let last = ((tap.slot + 1) * self.channels).saturating_sub(1) * self.stride;
            assert!(last + written <= self.panel.len(), "a tap's part of the panel");
        }
        let last = self.channels.checked_sub(1).filter(|_| !self.taps.is_empty());
        let reach = farthest as usize + last.map_or(0, |last| last * self.step + 1);
        let check = |(from, to): (usize, usize)| {
            assert!(from >= nearest.unsigned_abs() && from + reach <= self.from.len(), "a row");
            assert!(to + written <= self.to.len, "a row of the result");
        };
        match self.rows {
            RowStarts::Listed(rows) => rows.iter().copied().for_each(check),
            RowStarts::Even { count: 0, .. } => {}
            rows @ RowStarts::Even { count, apart, .. } => {
                // All others lie between the first and the last.
                assert!(count.checked_mul(apart.0.max(apart.1)).is_some(), "rows so far apart");
                [0, count - 1].into_iter().map(|row| rows.start_of(row)).for_each(check);
            }
        }
    }
}

/// Computes rows, as many at a time as there are registers for.
///
/// # Safety
/// The processor has AVX-512 F, and nobody else reaches the rows of the result meanwhile.
///
/// # Panics
/// Panics if a row or a tap lies outside its memory.
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn multiply_strip(strip: &VectorStrip<'_>) {
    strip.check();
    let rows = strip.rows.len();
    let tiles = rows.div_ceil(rows_beside(strip.vectors)).max(1);
    let count = rows.div_ceil(tiles).max(1);
    for (index, start) in (0..rows).step_by(count).enumerate() {
        let end = rows.min(start + count);
        let ahead = Ahead::new(strip, end..rows.min(end + count), [index, tiles]);
        // SAFETY: as the caller says; bounds have been checked.
        unsafe { multiply_tile(strip, start..end, ahead) };
    }
}

/// # Safety
/// As [`multiply_strip`]; the rows are the strip's.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn multiply_tile(strip: &VectorStrip<'_>, tile: Range<usize>, ahead: Ahead<'_>) {
    macro_rules! of_rows {
        ($vectors:literal: $($rows:literal)*) => {
            match tile.len() {
                // SAFETY: as the caller says.
                $($rows => unsafe { sum_tile::<$rows, $vectors>(strip, tile.start, ahead) },)*
                count => unreachable!("a tile of {count} rows"),
            }
        };
    }
    match strip.vectors {
        1 => of_rows!(1: 1 2 3 4 5 6 7 8 9 10 11 12),
        2 => of_rows!(2: 1 2 3 4 5 6 7 8 9 10 11 12),
        3 => of_rows!(3: 1 2 3 4 5 6 7 8),
        4 => of_rows!(4: 1 2 3 4 5 6),
        count => unreachable!("a panel of {count} vectors"),
    }
}

/// Asks for the lines of the result that are written next, and for those that are read after the strip, a few at a time: all at
/// once they would hold up what is read.
struct Ahead<'a> {
    rows: RowStarts<'a>,
    next: Range<usize>,
    to: *const f32,
    vectors: usize,
    /// The next line, how many of its row are left, and how many are asked for at a time.
    line: *const f32,
    left: usize,
    each: usize,
    /// The cache lines that are read later: those of this tile among those of all, some of which are behind.
    later: &'a [PrefetchLines],
    behind: usize,
    range: Range<usize>,
    each_later: usize,
}

impl<'a> Ahead<'a> {
    /// Prepares the requests of one of so many tiles; `next` are the rows of the one behind it.
    #[inline(always)]
    fn new(strip: &VectorStrip<'a>, next: Range<usize>, [tile, tiles]: [usize; 2]) -> Self {
        let steps = (strip.taps.len() * strip.channels.div_ceil(UNROLLED)).max(1);
        let each = (next.len() * strip.vectors).div_ceil(steps);
        let all = strip.next.iter().map(|lines| lines.count).sum();
        let range = if all > 0 { split_range(all, tiles, tile) } else { 0..0 };
        let to = strip.to.pointer.cast_const();
        Self {
            rows: strip.rows,
            next,
            to,
            vectors: strip.vectors,
            line: to,
            left: 0,
            each,
            later: strip.next,
            behind: 0,
            each_later: range.len().div_ceil(steps),
            range,
        }
    }

    #[inline(always)]
    fn prefetch_next(&mut self) {
        for _ in 0..self.each {
            if self.left == 0 {
                let Some(row) = self.next.next() else { break };
                (self.line, self.left) =
                    (self.to.wrapping_add(self.rows.start_of(row).1), self.vectors);
            }
            // SAFETY: a hint, which writes nothing.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(self.line.cast()) };
            (self.line, self.left) = (self.line.wrapping_add(LANES), self.left - 1);
        }
        for _ in 0..self.each_later {
            let Some(line) = self.range.next() else { return };
            while let [first, rest @ ..] = self.later
                && line - self.behind >= first.count
            {
                (self.behind, self.later) = (self.behind + first.count, rest);
            }
            let Some(later) = self.later.first() else { return };
            let line = line - self.behind;
            let at = line / later.each * later.stride + line % later.each * LANES;
            // SAFETY: a hint, which reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(later.first.wrapping_add(at).cast()) };
        }
    }
}

/// Channels between two looks at what comes next.
const UNROLLED: usize = 4;

/// # Safety
/// As [`multiply_tile`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn sum_tile<const R: usize, const V: usize>(
    strip: &VectorStrip<'_>,
    first: usize,
    mut ahead: Ahead<'_>,
) {
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    let rows: [(usize, usize); R] = std::array::from_fn(|row| strip.rows.start_of(first + row));
    for tap in strip.taps {
        let mut a = [std::ptr::null(); R];
        for (a, row) in a.iter_mut().zip(rows) {
            *a = strip.from.as_ptr().wrapping_add(row.0).wrapping_offset(tap.ahead);
        }
        let start = tap.slot * strip.channels * strip.stride;
        let mut panel = strip.panel.as_ptr().wrapping_add(start);
        let (mut channel, mut at) = (0, 0);
        while channel + UNROLLED <= strip.channels {
            ahead.prefetch_next();
            // Written out: of a loop some optimisation levels keep the sums in memory.
            // SAFETY: the channels are the row's and the panel's.
            unsafe {
                add_channel(&mut sums, &a, at, (panel, strip.last));
                (panel, at) = (panel.wrapping_add(strip.stride), at + strip.step);
                add_channel(&mut sums, &a, at, (panel, strip.last));
                (panel, at) = (panel.wrapping_add(strip.stride), at + strip.step);
                add_channel(&mut sums, &a, at, (panel, strip.last));
                (panel, at) = (panel.wrapping_add(strip.stride), at + strip.step);
                add_channel(&mut sums, &a, at, (panel, strip.last));
                (panel, at) = (panel.wrapping_add(strip.stride), at + strip.step);
            }
            channel += UNROLLED;
        }
        if channel < strip.channels {
            ahead.prefetch_next();
        }
        while channel < strip.channels {
            // SAFETY: as above.
            unsafe { add_channel(&mut sums, &a, at, (panel, strip.last)) };
            (panel, at) = (panel.wrapping_add(strip.stride), at + strip.step);
            channel += 1;
        }
    }
    let scale = _mm512_set1_ps(strip.scale);
    for (sums, row) in sums.iter().zip(rows) {
        let to = strip.to.pointer.wrapping_add(row.1);
        for (index, &sum) in sums.iter().enumerate() {
            let mask = if index + 1 == V { strip.last } else { u16::MAX };
            let before = if strip.add { mask } else { 0 };
            // SAFETY: the masks keep to the row.
            unsafe {
                let to = to.add(index * LANES);
                let before = _mm512_maskz_loadu_ps(before, to);
                _mm512_mask_storeu_ps(to, mask, _mm512_fmadd_ps(sum, scale, before));
            }
        }
    }
}

/// Adds the products of one channel.
///
/// # Safety
/// The channel may be read in all rows, and `V` vectors, of the last one some lanes, at `panel`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add_channel<const R: usize, const V: usize>(
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
pub(crate) struct PlaceRun {
    pub wide: usize,
    pub narrow: usize,
    pub count: usize,
}

/// The work of one call of [`accumulate_outer`]: `to[row][column] += sum over places of narrow[place][row] wide[place][column]`.
pub(crate) struct Outer<'a> {
    /// Read as vectors.
    pub wide: &'a [f32],
    /// Read number by number.
    pub narrow: &'a [f32],
    /// The distance from place to place within a run: of `wide`, of `narrow`.
    pub steps: [usize; 2],
    pub runs: &'a [PlaceRun],
    pub to: VectorTarget<'a>,
    /// The position of the first row of the result, and the distance from each row to the next.
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
    /// Panics if a place lies outside its memory.
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
/// Panics if a place lies outside its memory.
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn accumulate_outer(outer: &Outer<'_>) {
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
/// As [`accumulate_outer`].
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
