//! Memory of ranks.
//!
//! An arena is shared by the workers of a rank. Who may touch which bytes when is said by the plan: registers that are
//! alive at one time do not overlap, and a worker reads or fills a register only while the machine's credits let it
//! (`graphc_plan::machine::Machine::find_blocker`). News of credits travel through channels and so order the accesses.
//!
//! The `unsafe` of this file lends bytes of arenas. Every access is checked to be inside the arena, and
//! every address to fit its element type.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};

/// Alignment of arenas and registers in bytes: a cache line, and the widest vector.
pub const ALIGNMENT: usize = 64;

/// The bytes from which on an arena has pages of its own: a large page of most systems.
const LARGE: usize = 1 << 21;

/// The memory of one rank: zeroed, aligned, of fixed size.
#[derive(Debug)]
pub struct HostArena {
    start: NonNull<u8>,
    bytes: usize,
    owner: ArenaOwner,
}

/// The owner of an arena's memory.
#[derive(Debug)]
enum ArenaOwner {
    /// An allocation, which the arena is inside of.
    Heap { base: NonNull<u8>, layout: Layout },
    /// Pages of its own.
    Pages {
        #[expect(dead_code, reason = "it is kept mapped")]
        map: MmapRaw,
    },
    /// Memory that somebody else made.
    Provided {
        #[expect(dead_code, reason = "the memory stays as long as it is kept")]
        memory: Box<dyn ProvidedMemory>,
    },
}

/// Memory for an arena that somebody else has made, who takes it back when this is dropped.
///
/// # Safety
/// As long as this lives, there are `bytes` initialized bytes at `start`, and nobody else touches them but by what the arena lends.
pub unsafe trait ProvidedMemory: std::fmt::Debug + Send + Sync {
    /// Returns the first byte.
    fn start(&self) -> *mut u8;

    /// Returns the number of bytes.
    fn bytes(&self) -> usize;
}

/// Memory that a transport offers to the device of a rank: zeros, which other processes of this host map and read and write in
/// place as long as it is kept.
#[derive(Debug)]
pub struct Offered(pub Box<dyn ProvidedMemory>);

// SAFETY: an arena owns plain bytes.
unsafe impl Send for HostArena {}
// SAFETY: workers touch disjoint registers at one time, see the head of this file.
unsafe impl Sync for HostArena {}

/// Bytes of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaRange {
    /// The place of its first byte in the arena.
    pub offset: usize,
    /// The number of bytes.
    pub bytes: usize,
}

impl ArenaRange {
    /// Returns the range of a part of it.
    #[inline]
    pub fn subrange(self, range: &Range<usize>) -> ArenaRange {
        assert!(range.start <= range.end && range.end <= self.bytes, "part of a register");
        ArenaRange { offset: self.offset + range.start, bytes: range.len() }
    }

    /// Whether both have a byte in common.
    #[inline]
    pub fn overlaps(self, other: ArenaRange) -> bool {
        self.offset < other.offset + other.bytes && other.offset < self.offset + self.bytes
    }
}

/// Memory of one rank that others read and write for the time of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a> {
    start: NonNull<u8>,
    bytes: usize,
    arena: PhantomData<&'a HostArena>,
}

// SAFETY: it stands for plain bytes of an arena, which threads share (see `HostArena`).
unsafe impl Send for Lent<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for Lent<'_> {}

impl<'a> Lent<'a> {
    /// Returns memory of another process's arena.
    ///
    /// # Safety
    /// It is mapped, readable and writable, for `'a`, and its owner has lent it for the time that this is used.
    pub unsafe fn from_mapped(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes, arena: PhantomData }
    }

    /// Returns the bytes, to be shown to others.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.read(&(0..self.bytes))
    }

    #[inline]
    fn address(&self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.bytes, "part of what is lent");
        // SAFETY: inside what was lent, or one past it.
        unsafe { self.start.as_ptr().add(range.start) }
    }

    /// Returns bytes to be read.
    #[inline]
    pub fn read(&self, range: &Range<usize>) -> &'a [u8] {
        // SAFETY: inside the arena, initialized; ranks cut what is lent into parts, and no part has two ranks that touch
        // it, its owner included, until the exchange is over.
        unsafe { std::slice::from_raw_parts(self.address(range), range.len()) }
    }

    /// Returns elements of four bytes to be read and written in turn; bytes beyond the last are left out.
    #[inline]
    pub fn cells(&self, range: &Range<usize>) -> &'a [Cell<[u8; 4]>] {
        let elements = self.address(range).cast::<Cell<[u8; 4]>>();
        // SAFETY: as in `read`; cells have the layout of bytes, and one thread touches them.
        unsafe { std::slice::from_raw_parts(elements, range.len() / 4) }
    }

    /// Whether both stand for the same bytes.
    #[inline]
    pub fn is_same(&self, other: &Lent<'_>) -> bool {
        (self.start, self.bytes) == (other.start, other.bytes)
    }

    /// Returns bytes to be written.
    #[inline]
    pub fn write(&self, range: &Range<usize>) -> &'a mut [u8] {
        // SAFETY: as in `read`.
        unsafe { std::slice::from_raw_parts_mut(self.address(range), range.len()) }
    }
}

impl HostArena {
    /// Makes an arena of zeros; `None` where the system has not so much.
    pub fn new(bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok()?.max(ALIGNMENT);
        if bytes >= LARGE {
            return Self::of_pages(bytes);
        }
        // Memory of a greater alignment the allocator would zero by hand, all of it and at once. Of what it gets from the
        // system each rank's threads touch pages when they need them.
        let layout = Layout::from_size_align(bytes.checked_add(ALIGNMENT)?, 1).ok()?;
        // SAFETY: the size is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(base)?;
        // SAFETY: at most `ALIGNMENT` bytes on, which the allocation has beyond `bytes`.
        let start = unsafe { base.add(base.align_offset(ALIGNMENT)) };
        Some(Self { start, bytes, owner: ArenaOwner::Heap { base, layout } })
    }

    /// Makes an arena of large pages, where the system has such: kernels that go through matrices find each of its pages at
    /// once.
    fn of_pages(bytes: usize) -> Option<Self> {
        let map = MmapRaw::from(MmapOptions::new().len(bytes).map_anon().ok()?);
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let start = NonNull::new(map.as_mut_ptr())?;
        Some(Self { start, bytes, owner: ArenaOwner::Pages { map } })
    }

    /// Makes an arena in memory that somebody else has made; `None` where that lies nowhere.
    pub fn from_provided(memory: Box<dyn ProvidedMemory>) -> Option<Self> {
        let (start, bytes) = (NonNull::new(memory.start())?, memory.bytes());
        Some(Self { start, bytes, owner: ArenaOwner::Provided { memory } })
    }

    /// Returns the address of bytes, which are inside the arena.
    #[inline]
    pub fn address(&self, place: ArenaRange) -> *mut u8 {
        let end = place.offset.checked_add(place.bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "{place:?} is inside the arena");
        // SAFETY: inside the allocation, or one past it.
        unsafe { self.start.as_ptr().add(place.offset) }
    }

    /// Returns bytes to be read.
    #[inline]
    pub fn read(&self, place: ArenaRange) -> &[u8] {
        // SAFETY: inside the allocation, initialized; nobody writes there, see the head of this file.
        unsafe { std::slice::from_raw_parts(self.address(place), place.bytes) }
    }

    /// Returns bytes to be written.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the plan, see the head of this file")]
    #[inline]
    pub fn write(&self, place: ArenaRange) -> &mut [u8] {
        // SAFETY: inside the allocation, initialized; nobody else reads or writes, see the head of this file.
        unsafe { std::slice::from_raw_parts_mut(self.address(place), place.bytes) }
    }

    /// Returns bytes that other ranks may read and write.
    #[inline]
    pub fn lend(&self, place: ArenaRange) -> Lent<'_> {
        let start = NonNull::new(self.address(place)).expect("an address inside an allocation");
        Lent { start, bytes: place.bytes, arena: PhantomData }
    }
}

impl Drop for HostArena {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: allocated in `new` with this layout.
            ArenaOwner::Heap { base, layout } => unsafe { dealloc(base.as_ptr(), *layout) },
            // Gives itself back.
            ArenaOwner::Pages { .. } | ArenaOwner::Provided { .. } => {}
        }
    }
}
