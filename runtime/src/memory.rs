//! Memory of ranks and of files: the `unsafe` of the runtime outside the in-process transport.
//!
//! An arena is shared by the workers of a rank. Who may touch which bytes when is said by the plan: registers that are
//! alive at one time do not overlap, and a worker reads or fills a register only while the machine's credits let it
//! ([`graphc_ir::machine::Machine::blocked`]), whose news travel through channels and so order the accesses. Every
//! access is checked to be inside the arena, and every address to fit its element type.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::File;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use graphc_ir::types::DType;
use graphc_kernels::{View, ViewMut};
use memmap2::Mmap;

use crate::transport::process::{Outbox, Segment};

/// Alignment of arenas and registers in bytes: a cache line, and the widest vector.
pub(crate) const ALIGNMENT: usize = 64;

/// The memory of one rank: zeroed, aligned, of fixed size.
#[derive(Debug)]
pub struct Arena {
    start: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

/// Whose memory it is.
#[derive(Debug)]
enum Owner {
    Heap(Layout),
    /// Shared with other processes, which know it by a number.
    Shared {
        #[expect(dead_code, reason = "it is kept mapped")]
        segment: Segment,
        outbox: Arc<Outbox>,
        number: u32,
    },
}

// SAFETY: an arena owns plain bytes.
unsafe impl Send for Arena {}
// SAFETY: workers touch disjoint registers at one time, see the head of this file.
unsafe impl Sync for Arena {}

/// Bytes of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

impl Place {
    /// A part of it.
    pub(crate) fn part(self, range: &Range<usize>) -> Place {
        assert!(range.start <= range.end && range.end <= self.bytes, "part of a register");
        Place { offset: self.offset + range.start, bytes: range.len() }
    }

    pub(crate) fn overlaps(self, other: Place) -> bool {
        self.offset < other.offset + other.bytes && other.offset < self.offset + self.bytes
    }
}

/// What a kernel is told of a shard besides its elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'a> {
    pub(crate) dtype: DType,
    pub(crate) extent: &'a [usize],
    pub(crate) global: &'a [usize],
    pub(crate) origin: &'a [usize],
}

impl Arena {
    /// An arena of zeros; `None` where the size is beyond the address space.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok()?.max(ALIGNMENT);
        let layout = Layout::from_size_align(bytes, ALIGNMENT).ok()?;
        // SAFETY: the size is not 0.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Some(Self { start, bytes, owner: Owner::Heap(layout) })
    }

    /// An arena of zeros that other processes of this host can read; `None` where the system gives none.
    pub(crate) fn shared(bytes: u64, outbox: &Arc<Outbox>) -> Option<Self> {
        let size = bytes.max(ALIGNMENT as u64);
        let segment = Segment::new(size).ok()?;
        let number = outbox.lend(&segment)?;
        let start = NonNull::new(segment.start())?;
        let outbox = Arc::clone(outbox);
        let owner = Owner::Shared { segment, outbox, number };
        Some(Self { start, bytes: usize::try_from(size).ok()?, owner })
    }

    fn address(&self, place: Place) -> *mut u8 {
        let end = place.offset.checked_add(place.bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "{place:?} is inside the arena");
        // SAFETY: inside the allocation, or one past it.
        unsafe { self.start.as_ptr().add(place.offset) }
    }

    /// Bytes to be read.
    pub(crate) fn read(&self, place: Place) -> &[u8] {
        // SAFETY: inside the allocation, initialized; nobody writes there, see the head of this file.
        unsafe { std::slice::from_raw_parts(self.address(place), place.bytes) }
    }

    /// Bytes to be written.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the plan, see the head of this file")]
    pub(crate) fn write(&self, place: Place) -> &mut [u8] {
        // SAFETY: inside the allocation, initialized; nobody else reads or writes, see the head of this file.
        unsafe { std::slice::from_raw_parts_mut(self.address(place), place.bytes) }
    }

    /// A shard to be read by a kernel.
    pub(crate) fn view<'a>(&'a self, place: Place, shape: Shape<'a>) -> View<'a> {
        check(place, shape);
        let data = self.address(place);
        // SAFETY: aligned and of the shape's size, as just checked; alive as the arena; an output of the same call is
        // the same memory only where the compiler has found the pair in `graphc_kernels::in_place`.
        unsafe { View::new(shape.dtype, shape.extent, shape.global, shape.origin, data) }
    }

    /// A shard to be written by a kernel.
    pub(crate) fn view_mut<'a>(&'a self, place: Place, shape: Shape<'a>) -> ViewMut<'a> {
        check(place, shape);
        let data = self.address(place);
        // SAFETY: as in `view`; nobody else reaches it, see the head of this file.
        unsafe { ViewMut::new(shape.dtype, shape.extent, shape.global, shape.origin, data) }
    }
}

fn check(place: Place, shape: Shape<'_>) {
    let elements: usize = shape.extent.iter().product();
    assert!(place.offset.is_multiple_of(ALIGNMENT), "registers are aligned");
    assert_eq!(place.bytes, elements * shape.dtype.size(), "a register has its shape's bytes");
}

impl Drop for Arena {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: allocated in `new` with this layout.
            Owner::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), *layout) },
            Owner::Shared { outbox, number, .. } => outbox.withdraw(*number),
        }
    }
}

/// The content of a file.
pub(crate) fn map_file(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is read at once and dropped; that nobody shortens a file while it is read is asked of the user, as
    // by every program that maps files.
    unsafe { Mmap::map(file) }
}
