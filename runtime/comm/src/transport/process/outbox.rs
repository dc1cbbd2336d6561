//! The outbox of a process: shared memory in which it lays out what it has for the others. It has a head with a directory
//! of its queues and of its arenas, then blocks that it allocates.
//!
//! A queue's blocks and its entry in the directory are used again once both of its ends are gone. Each end says that for
//! itself, in whatever order, so sessions in a row leave nothing behind.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use super::bell::Bell;
use super::foreign;
use super::segment::SharedSegment;
use super::slots::{is_left, leave_queue};
use super::wait::HasBell;

/// The most queues that a process may have at one time.
const QUEUES: usize = 1 << 16;
/// The most arenas.
const ARENAS: usize = 1 << 12;
/// The address space to try for: pages cost nothing until they are touched.
const LARGEST: u64 = 64 << 30;
const SMALLEST: u64 = 1 << 30;
/// Alignment of blocks: two cores' cache lines are never shared, and structures of 128 bytes fit.
const ALIGNMENT: u64 = 128;

/// The head of the memory. All of it is atomic: other processes read and write it.
#[repr(C)]
struct OutboxHead {
    bell: Bell,
    /// Its own address in the maker's memory: who reads it there can read the maker's memory.
    address: AtomicU64,
    /// The number of queues that were made so far; each has its number.
    made: AtomicU64,
    /// The number of entries that were ever in use.
    queues: AtomicU32,
    queue: [QueueEntry; QUEUES],
    arena: [ArenaEntry; ARENAS],
}

#[repr(C)]
struct QueueEntry {
    /// The number of this queue among all queues made; 0: none.
    number: AtomicU64,
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
    pub(super) segment: SharedSegment,
    blocks: Mutex<FreeBlocks>,
    directory: Mutex<Directory>,
    arenas: RwLock<Arenas>,
}

/// The free entries of the directory, and queues whose sender is gone and whose receiver is not.
#[derive(Debug, Default)]
struct Directory {
    free: Vec<usize>,
    abandoned: Vec<Abandoned>,
    /// The number of `abandoned` that were left when it was last looked through.
    kept: usize,
}

/// A queue that its sender has left, with the blocks that go with it: offset and size.
#[derive(Debug)]
pub(super) struct Abandoned {
    pub(super) entry: usize,
    pub(super) queue: (u64, u64),
    pub(super) blocks: Vec<(u64, u64)>,
}

/// Own arenas.
#[derive(Debug, Default)]
struct Arenas {
    /// The arenas that are alive: start, size and number.
    alive: Vec<(usize, usize, u32)>,
    free: Vec<u32>,
    /// The count of numbers that were ever given.
    numbers: u32,
}

/// The free blocks of memory.
#[derive(Debug)]
struct FreeBlocks {
    next: u64,
    free: BTreeMap<u64, Vec<u64>>,
}

impl Outbox {
    /// Makes the memory, as large as the system lets it be.
    pub(crate) fn new() -> io::Result<Self> {
        let mut bytes = LARGEST;
        let segment = loop {
            match SharedSegment::new(bytes) {
                Ok(segment) => break segment,
                Err(error) if bytes <= SMALLEST => return Err(error),
                Err(_) => bytes /= 2,
            }
        };
        let next = (size_of::<OutboxHead>() as u64).next_multiple_of(ALIGNMENT);
        let blocks = Mutex::new(FreeBlocks { next, free: BTreeMap::new() });
        let address = &outbox_head(&segment).address;
        address.store(std::ptr::from_ref(address) as u64, Ordering::Relaxed);
        let (directory, arenas) = (Mutex::default(), RwLock::default());
        Ok(Self { segment, blocks, directory, arenas })
    }

    fn head(&self) -> &OutboxHead {
        outbox_head(&self.segment)
    }

    /// Allocates a block of at least so many bytes, content arbitrary. `None` where the memory is full.
    pub(super) fn allocate(&self, bytes: u64) -> Option<u64> {
        let size = block_size(bytes);
        let mut blocks = lock_mutex(&self.blocks);
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

    /// Returns where a block lies in this process.
    pub(super) fn block_start(&self, offset: u64, bytes: u64) -> *mut u8 {
        self.segment.locate_range(offset, bytes).expect("a block is allocated inside")
    }

    /// Gives a block of so many bytes back; nobody reads it any more.
    pub(crate) fn release_block(&self, offset: u64, bytes: u64) {
        let mut blocks = lock_mutex(&self.blocks);
        blocks.free.entry(block_size(bytes)).or_default().push(offset);
    }

    /// Tells the others of a queue to `to`, until [`Outbox::abandon_queue`]. The entry; `None` where the directory is full.
    pub(super) fn publish_queue(&self, key: u64, to: u32, offset: u64) -> Option<usize> {
        let mut directory = lock_mutex(&self.directory);
        // As often as that many have come: so each is looked at a few times at most.
        if directory.abandoned.len() > 2 * directory.kept + 16 {
            self.free_abandoned(&mut directory);
        }
        let head = self.head();
        let used = head.queues.load(Ordering::Relaxed) as usize;
        let index = directory.free.pop().unwrap_or(used);
        let entry = head.queue.get(index)?;
        // A reader that sees the number sees the rest, or sees another number afterwards.
        fence(Ordering::Release);
        entry.key.store(key, Ordering::Relaxed);
        entry.to.store(to, Ordering::Relaxed);
        entry.offset.store(offset, Ordering::Relaxed);
        let made = head.made.load(Ordering::Relaxed) + 1;
        entry.number.store(made, Ordering::Release);
        head.queues.store(used.max(index + 1) as u32, Ordering::Release);
        head.made.store(made, Ordering::Release);
        Some(index)
    }

    /// Takes a queue back whose sender is gone, once its receiver is gone too.
    pub(super) fn abandon_queue(&self, queue: Abandoned) {
        lock_mutex(&self.directory).abandoned.push(queue);
    }

    /// Frees the queues that nobody will touch again.
    fn free_abandoned(&self, directory: &mut Directory) {
        let Directory { free, abandoned, kept } = directory;
        abandoned.retain(|queue| {
            let left = is_left(&self.segment, queue.queue.0);
            if left {
                self.head().queue[queue.entry].number.store(0, Ordering::Relaxed);
                free.push(queue.entry);
                let blocks = queue.blocks.iter().chain([&queue.queue]);
                blocks.for_each(|&(offset, bytes)| self.release_block(offset, bytes));
            }
            !left
        });
        *kept = abandoned.len();
    }

    /// Returns the bytes that are or were in use, blocks that are free again among them.
    #[cfg(test)]
    pub(super) fn extent(&self) -> u64 {
        lock_mutex(&self.blocks).next
    }

    /// Tells the others of an arena, which they may map until it is withdrawn. `None` where the directory is full.
    pub(crate) fn lend_arena(&self, arena: &SharedSegment) -> Option<u32> {
        let mut arenas = self.arenas.write().unwrap_or_else(PoisonError::into_inner);
        let index = arenas.free.pop().unwrap_or(arenas.numbers);
        let entry = self.head().arena.get(index as usize)?;
        entry.bytes.store(arena.len() as u64, Ordering::Relaxed);
        entry.descriptor.store(arena.descriptor(), Ordering::Release);
        arenas.numbers = arenas.numbers.max(index + 1);
        arenas.alive.push((arena.start() as usize, arena.len(), index));
        Some(index)
    }

    /// Withdraws an arena that is about to go.
    pub(crate) fn withdraw_arena(&self, arena: u32) {
        let mut arenas = self.arenas.write().unwrap_or_else(PoisonError::into_inner);
        arenas.alive.retain(|&(.., index)| index != arena);
        arenas.free.push(arena);
        self.head().arena[arena as usize].descriptor.store(-1, Ordering::Relaxed);
    }

    /// Finds the space in which these bytes lie, and their offset in it: 0 is the outbox, beyond come the arenas;
    /// `None` where in none.
    pub(super) fn locate_bytes(&self, bytes: &[u8]) -> Option<(u32, u64)> {
        let start = bytes.as_ptr() as usize;
        let inside = |at: usize, len: usize| start >= at && start + bytes.len() <= at + len;
        let own = self.segment.start() as usize;
        if inside(own, self.segment.len()) {
            return Some((0, (start - own) as u64));
        }
        let arenas = self.arenas.read().unwrap_or_else(PoisonError::into_inner);
        let found = arenas.alive.iter().find(|&&(at, len, _)| inside(at, len));
        found.map(|&(at, _, index)| (index + 1, (start - at) as u64))
    }
}

impl HasBell for Outbox {
    fn bell(&self) -> &Bell {
        &self.head().bell
    }
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn block_size(bytes: u64) -> u64 {
    bytes.max(ALIGNMENT).next_power_of_two()
}

fn outbox_head(segment: &SharedSegment) -> &OutboxHead {
    // SAFETY: `OutboxHead` is atomics alone.
    let head = unsafe { segment.struct_at::<OutboxHead>(0) };
    head.expect("shared memory is larger than its head, and pages are aligned")
}

/// Another process's shared memory.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    pub(super) segment: SharedSegment,
    /// The rank that has mapped it: queues for other ranks are not looked at.
    reader: u32,
    pid: u32,
    /// Whether its process's own memory can be read.
    readable: bool,
    found: Mutex<DirectoryContent>,
}

/// The content of its directory when it was last read.
#[derive(Debug, Default)]
struct DirectoryContent {
    /// The number of queues that had been made.
    made: u64,
    /// The queues for the reader.
    queues: BTreeMap<u64, u64>,
    /// The queues that the reader has left before they were made.
    unwanted: BTreeSet<u64>,
}

impl PeerMemory {
    /// Maps it, for rank `reader`.
    pub(crate) fn open(reader: u32, pid: u32, descriptor: i32, bytes: u64) -> io::Result<Self> {
        if bytes < size_of::<OutboxHead>() as u64 {
            return Err(io::Error::other("the memory has no head"));
        }
        let segment = SharedSegment::open(pid, descriptor, bytes)?;
        let address = outbox_head(&segment).address.load(Ordering::Relaxed);
        let mut found = [0; 8];
        let read = foreign::read_process_memory(pid, address, &mut found);
        let readable = read.is_ok() && u64::from_ne_bytes(found) == address;
        Ok(Self { segment, reader, pid, readable, found: Mutex::default() })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn is_readable(&self) -> bool {
        self.readable
    }

    /// Rings its bell.
    #[inline]
    pub(super) fn ring_bell(&self) {
        outbox_head(&self.segment).bell.ring();
    }

    /// Finds the place of the queue that it has made for the reader, if it has.
    pub(super) fn find_queue(&self, key: u64) -> Option<u64> {
        let mut found = lock_mutex(&self.found);
        self.read_directory(&mut found);
        found.queues.get(&key).copied()
    }

    /// Marks a queue that the reader will not touch again, now or once it is made.
    pub(super) fn leave_queue(&self, key: u64) {
        let mut found = lock_mutex(&self.found);
        self.read_directory(&mut found);
        match found.queues.remove(&key) {
            Some(queue) => leave_queue(&self.segment, queue),
            None => _ = found.unwanted.insert(key),
        }
    }

    /// Reads the directory, if there are new queues in it.
    fn read_directory(&self, found: &mut DirectoryContent) {
        let head = outbox_head(&self.segment);
        let made = head.made.load(Ordering::Acquire);
        if made == found.made {
            return;
        }
        let used = (head.queues.load(Ordering::Acquire) as usize).min(QUEUES);
        for entry in &head.queue[..used] {
            let number = entry.number.load(Ordering::Acquire);
            // What is made meanwhile is read the next time, and nothing is read twice.
            if number <= found.made
                || number > made
                || entry.to.load(Ordering::Relaxed) != self.reader
            {
                continue;
            }
            let key = entry.key.load(Ordering::Relaxed);
            let offset = entry.offset.load(Ordering::Relaxed);
            // An entry for this reader is not used again before it has left the queue; others may be.
            fence(Ordering::Acquire);
            if entry.number.load(Ordering::Relaxed) != number {
                continue;
            }
            if found.unwanted.remove(&key) {
                leave_queue(&self.segment, offset);
            } else {
                found.queues.insert(key, offset);
            }
        }
        found.made = made;
    }

    /// Maps one of its arenas.
    pub(super) fn map_arena(&self, index: u32) -> io::Result<SharedSegment> {
        let gone = || io::Error::other("an arena that is gone");
        let entry = outbox_head(&self.segment).arena.get(index as usize).ok_or_else(gone)?;
        let descriptor = entry.descriptor.load(Ordering::Acquire);
        SharedSegment::open(self.pid, descriptor, entry.bytes.load(Ordering::Relaxed))
    }
}
