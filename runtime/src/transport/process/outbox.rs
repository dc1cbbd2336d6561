//! The shared memory in which a process lays out what it has for the others: a head with a directory of its queues and
//! of its arenas, then blocks that it allocates.

use std::collections::BTreeMap;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use super::bell::Bell;
use super::foreign;
use super::segment::Segment;
use super::wait::HasBell;

/// How many queues a process may make.
const QUEUES: usize = 1 << 16;
/// How many arenas.
const ARENAS: usize = 1 << 12;
/// The address space to try for: pages cost nothing until they are touched.
const LARGEST: u64 = 64 << 30;
const SMALLEST: u64 = 1 << 30;
/// Alignment of blocks: two cores' cache lines are never shared, and structures of 128 bytes fit.
const ALIGNMENT: u64 = 128;

/// What the memory begins with. All of it is atomic: other processes read and write it.
#[repr(C)]
struct Head {
    bell: Bell,
    /// Its own address in the maker's memory: who reads it there can read the maker's memory.
    address: AtomicU64,
    queues: AtomicU32,
    arenas: AtomicU32,
    queue: [QueueEntry; QUEUES],
    arena: [ArenaEntry; ARENAS],
}

#[repr(C)]
struct QueueEntry {
    key: AtomicU64,
    to: AtomicU32,
    offset: AtomicU64,
}

#[repr(C)]
struct ArenaEntry {
    descriptor: AtomicI32,
    bytes: AtomicU64,
}

/// Own shared memory.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub(super) segment: Segment,
    blocks: Mutex<Blocks>,
    /// Start, size and number of own arenas that are alive.
    arenas: RwLock<Vec<(usize, usize, u32)>>,
}

/// Which blocks are free.
#[derive(Debug)]
struct Blocks {
    next: u64,
    free: BTreeMap<u64, Vec<u64>>,
}

impl Outbox {
    /// New memory, as large as the system lets it be.
    pub(crate) fn new() -> io::Result<Self> {
        let mut bytes = LARGEST;
        let segment = loop {
            match Segment::new(bytes) {
                Ok(segment) => break segment,
                Err(error) if bytes <= SMALLEST => return Err(error),
                Err(_) => bytes /= 2,
            }
        };
        let next = (size_of::<Head>() as u64).next_multiple_of(ALIGNMENT);
        let blocks = Mutex::new(Blocks { next, free: BTreeMap::new() });
        let address = &head(&segment).address;
        address.store(std::ptr::from_ref(address) as u64, Ordering::Relaxed);
        Ok(Self { segment, blocks, arenas: RwLock::default() })
    }

    fn head(&self) -> &Head {
        head(&self.segment)
    }

    /// A block of at least so many bytes, content arbitrary. `None` where the memory is full.
    pub(super) fn allocate(&self, bytes: u64) -> Option<u64> {
        let size = block_size(bytes);
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(offset) = blocks.free.get_mut(&size).and_then(Vec::pop) {
            return Some(offset);
        }
        let offset = blocks.next;
        let end = offset.checked_add(size)?;
        (end <= self.segment.len() as u64).then(|| {
            blocks.next = end;
            offset
        })
    }

    /// As [`Outbox::allocate`], and where the block lies in this process.
    pub(crate) fn block(&self, bytes: u64) -> Option<(u64, NonNull<u8>)> {
        let offset = self.allocate(bytes)?;
        // SAFETY: the block is nobody else's.
        let block = unsafe { self.segment.write(offset, bytes) }?;
        Some((offset, NonNull::from(block).cast()))
    }

    /// Gives a block of so many bytes back; nobody reads it any more.
    pub(crate) fn release(&self, offset: u64, bytes: u64) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.free.entry(block_size(bytes)).or_default().push(offset);
    }

    /// Tells the others of a queue to `to`. `false` where the directory is full.
    pub(super) fn publish(&self, key: u64, to: u32, offset: u64) -> bool {
        // One at a time, so that entries are complete in order.
        let _blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let head = self.head();
        let index = head.queues.load(Ordering::Relaxed);
        let Some(entry) = head.queue.get(index as usize) else { return false };
        entry.key.store(key, Ordering::Relaxed);
        entry.to.store(to, Ordering::Relaxed);
        entry.offset.store(offset, Ordering::Relaxed);
        head.queues.store(index + 1, Ordering::Release);
        true
    }

    /// Tells the others of an arena, which they may map until it is withdrawn. `None` where the directory is full.
    pub(crate) fn lend(&self, arena: &Segment) -> Option<u32> {
        let mut arenas = self.arenas.write().unwrap_or_else(PoisonError::into_inner);
        let head = self.head();
        let index = head.arenas.load(Ordering::Relaxed);
        let entry = head.arena.get(index as usize)?;
        entry.descriptor.store(arena.descriptor(), Ordering::Relaxed);
        entry.bytes.store(arena.len() as u64, Ordering::Relaxed);
        head.arenas.store(index + 1, Ordering::Release);
        arenas.push((arena.start() as usize, arena.len(), index));
        Some(index)
    }

    /// The arena is about to go.
    pub(crate) fn withdraw(&self, arena: u32) {
        let mut arenas = self.arenas.write().unwrap_or_else(PoisonError::into_inner);
        arenas.retain(|&(.., index)| index != arena);
        self.head().arena[arena as usize].descriptor.store(-1, Ordering::Relaxed);
    }

    /// In which space, and where in it, these bytes lie: 0 is the outbox, beyond come the arenas; `None` where in none.
    pub(super) fn locate(&self, bytes: &[u8]) -> Option<(u32, u64)> {
        let start = bytes.as_ptr() as usize;
        let inside = |at: usize, len: usize| start >= at && start + bytes.len() <= at + len;
        let own = self.segment.start() as usize;
        if inside(own, self.segment.len()) {
            return Some((0, (start - own) as u64));
        }
        let arenas = self.arenas.read().unwrap_or_else(PoisonError::into_inner);
        let found = arenas.iter().find(|&&(at, len, _)| inside(at, len));
        found.map(|&(at, _, index)| (index + 1, (start - at) as u64))
    }
}

impl HasBell for Outbox {
    fn bell(&self) -> &Bell {
        &self.head().bell
    }
}

fn block_size(bytes: u64) -> u64 {
    bytes.max(ALIGNMENT).next_power_of_two()
}

fn head(segment: &Segment) -> &Head {
    // SAFETY: `Head` is atomics alone.
    let head = unsafe { segment.at::<Head>(0) };
    head.expect("shared memory is larger than its head, and pages are aligned")
}

/// Another process's shared memory.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    pub(super) segment: Segment,
    pid: u32,
    /// Whether its process's own memory can be read.
    readable: bool,
    found: Mutex<Found>,
}

/// What was read of its directory so far.
#[derive(Debug, Default)]
struct Found {
    read: usize,
    queues: BTreeMap<(u64, u32), u64>,
}

impl PeerMemory {
    /// Maps it.
    pub(crate) fn open(pid: u32, descriptor: i32, bytes: u64) -> io::Result<Self> {
        if bytes < size_of::<Head>() as u64 {
            return Err(io::Error::other("the memory has no head"));
        }
        let segment = Segment::open(pid, descriptor, bytes)?;
        let address = head(&segment).address.load(Ordering::Relaxed);
        let mut found = [0; 8];
        let read = foreign::read(pid, address, &mut found);
        let readable = read.is_ok() && u64::from_ne_bytes(found) == address;
        Ok(Self { segment, pid, readable, found: Mutex::default() })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn is_readable(&self) -> bool {
        self.readable
    }

    /// Rings its bell.
    #[inline]
    pub(super) fn ring(&self) {
        head(&self.segment).bell.ring();
    }

    /// Where the queue lies that it has made for `to`, if it has.
    pub(super) fn queue(&self, key: u64, to: u32) -> Option<u64> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let head = head(&self.segment);
        let known = (head.queues.load(Ordering::Acquire) as usize).min(QUEUES);
        while found.read < known {
            let entry = &head.queue[found.read];
            let name = (entry.key.load(Ordering::Relaxed), entry.to.load(Ordering::Relaxed));
            let offset = entry.offset.load(Ordering::Relaxed);
            found.queues.insert(name, offset);
            found.read += 1;
        }
        found.queues.get(&(key, to)).copied()
    }

    /// Maps one of its arenas.
    pub(super) fn arena(&self, index: u32) -> io::Result<Segment> {
        let gone = || io::Error::other("an arena that is gone");
        let entry = head(&self.segment).arena.get(index as usize).ok_or_else(gone)?;
        let descriptor = entry.descriptor.load(Ordering::Acquire);
        Segment::open(self.pid, descriptor, entry.bytes.load(Ordering::Relaxed))
    }
}
