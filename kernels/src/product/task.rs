//! A product of matrices as the threads see it that compute its blocks: the factors, and where the product lies.

use half::{bf16, f16};

use super::{Data, DataMut, Layout};

/// The form to which blocks of a product are brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// `f32`, in blocks that stay in the cache.
    Widened,
    /// Pairs of `bf16`, which AVX-512 BF16 multiplies and adds.
    #[cfg(target_arch = "x86_64")]
    Pairs,
    /// Pairs of `bf16`, which AMX multiplies.
    #[cfg(target_arch = "x86_64")]
    Matrices,
    /// `f32` cut in three `bf16` each, of which AMX multiplies pairs: exact as `f32` is.
    #[cfg(target_arch = "x86_64")]
    Thirds,
}

/// A product, to be computed block by block.
pub(super) struct ProductTask<'a> {
    pub method: Method,
    pub extents: [usize; 3],
    pub scale: f32,
    pub factors: [(Data<'a>, Layout); 2],
    pub add: bool,
    pub target: BlockTarget,
}

/// The position and the extents of a block, in rows and columns.
#[derive(Clone, Copy)]
pub(super) struct ProductBlock {
    pub start: [usize; 2],
    pub extents: [usize; 2],
}

/// The address of elements to write.
#[derive(Clone, Copy)]
pub(super) enum Pointer {
    Single(*mut f32),
    Brain(*mut bf16),
    Half(*mut f16),
}

impl Pointer {
    /// # Safety
    /// So many elements further is in the same memory.
    unsafe fn add(self, elements: usize) -> Self {
        // SAFETY: as the caller says.
        unsafe {
            match self {
                Self::Single(to) => Self::Single(to.add(elements)),
                Self::Brain(to) => Self::Brain(to.add(elements)),
                Self::Half(to) => Self::Half(to.add(elements)),
            }
        }
    }
}

/// A part of a product in memory.
#[derive(Clone, Copy)]
pub(super) struct ProductPlace {
    pub pointer: Pointer,
    pub rows: usize,
    pub columns: usize,
    /// The distance from one row to the next; columns are neighbours.
    pub stride: usize,
}

/// The whole product in memory, which threads write at places that do not meet.
#[derive(Clone, Copy)]
pub(super) struct BlockTarget {
    pub place: ProductPlace,
}

// SAFETY: exclusive access to plain elements, as `multiply` was given it; threads take blocks that do not meet.
unsafe impl Send for BlockTarget {}
// SAFETY: as for `Send`.
unsafe impl Sync for BlockTarget {}

impl ProductTask<'_> {
    /// Returns the memory of a block of the product.
    pub(super) fn place(
        &self,
        ProductBlock { start, extents: [rows, columns] }: ProductBlock,
    ) -> ProductPlace {
        let whole = self.target.place;
        assert!(start[0] + rows <= whole.rows && start[1] + columns <= whole.columns, "a block");
        let at = start[0] * whole.stride + start[1];
        // SAFETY: inside the product, whose memory `multiply` has measured.
        let pointer = unsafe { whole.pointer.add(at) };
        ProductPlace { pointer, rows, columns, stride: whole.stride }
    }
}

impl ProductPlace {
    /// A part of the place: the rows and columns from a row and a column on, at most so many.
    ///
    /// # Safety
    /// It begins inside the place.
    pub(super) unsafe fn part(self, start: [usize; 2], most: [usize; 2]) -> Self {
        let at = start[0] * self.stride + start[1];
        // SAFETY: as the caller says.
        let pointer = unsafe { self.pointer.add(at) };
        let [rows, columns] =
            [most[0].min(self.rows - start[0]), most[1].min(self.columns - start[1])];
        Self { pointer, rows, columns, stride: self.stride }
    }

    /// Asks for its lines, if it is of `f32`.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn prefetch(self) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let Pointer::Single(to) = self.pointer else { return };
        for row in 0..self.rows {
            for column in (0..self.columns).step_by(16) {
                let line = to.wrapping_add(row * self.stride + column);
                // SAFETY: asking for a line does nothing else.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
            }
        }
    }

    /// Calls `work` with each row.
    ///
    /// # Safety
    /// No other thread, and nothing else, reaches the place meanwhile.
    pub(super) unsafe fn for_each_row(self, mut work: impl FnMut(usize, DataMut<'_>)) {
        for row in 0..self.rows {
            let at = row * self.stride;
            // SAFETY: inside the product's memory; the caller says that nothing else reaches it.
            let row_of = unsafe {
                use std::slice::from_raw_parts_mut as slice;
                match self.pointer {
                    Pointer::Single(to) => DataMut::Single(slice(to.add(at), self.columns)),
                    Pointer::Brain(to) => DataMut::Brain(slice(to.add(at), self.columns)),
                    Pointer::Half(to) => DataMut::Half(slice(to.add(at), self.columns)),
                }
            };
            work(row, row_of);
        }
    }
}
