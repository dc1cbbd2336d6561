//! All allocations by their addresses. Addresses are never given twice, so what was freed is known as such.

use std::collections::BTreeMap;

use super::clock::{Clock, Operations};
use super::page::{PAGE, Page};
use super::storage::Storage;
use super::trouble::Trouble;

/// Addresses of one card: they begin at (device + 1) times this.
const CARD: u64 = 1 << 41;
/// The number of bytes of which allocations are multiples.
const GRAIN: u64 = 512;

/// The memory that an allocation is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Memory of a card.
    Device(i32),
    /// Pinned memory of the host, at its own address.
    Host,
}

/// The last operation of each stream that touched an allocation.
#[derive(Default)]
pub(crate) struct Used {
    last: u32,
    clock: BTreeMap<u32, u32>,
}

impl Used {
    pub fn advance_by(&mut self, operation: u32, operations: &Operations) {
        if self.last != operation {
            self.last = operation;
            let (stream, tick) = operations.place(operation);
            let known = self.clock.entry(stream).or_insert(0);
            *known = (*known).max(tick);
        }
    }
}

/// One allocation with its pages, which come to be when they are touched.
pub(crate) struct Allocation {
    pub base: u64,
    pub bytes: u64,
    pub home: Home,
    pub storage: Option<Storage>,
    pub used: Used,
    number: usize,
    pages: Vec<Option<Box<Page>>>,
}

impl Allocation {
    pub fn page(&mut self, number: usize) -> &mut Page {
        if self.pages.is_empty() {
            self.pages.resize_with((self.bytes as usize).div_ceil(PAGE), || None);
        }
        let host = self.home == Home::Host;
        self.pages[number].get_or_insert_with(|| Box::new(Page::new(host)))
    }

    pub fn describe(&self) -> String {
        let home = match self.home {
            Home::Device(device) => format!("on device {device}"),
            Home::Host => String::from("of pinned host memory"),
        };
        let Allocation { number, bytes, base, .. } = self;
        format!("allocation {number} ({bytes} bytes at {base:#x} {home})")
    }
}

/// See the module.
#[derive(Default)]
pub struct Space {
    allocations: Vec<Allocation>,
    by_base: BTreeMap<u64, usize>,
    next: BTreeMap<i32, u64>,
    held: BTreeMap<i32, u64>,
    recent: usize,
    operations: Operations,
}

impl Space {
    /// Memory of a card. None where the system has no more. The caller holds the limit of a card's memory.
    pub fn allocate(&mut self, device: i32, bytes: u64) -> Option<u64> {
        let storage = Storage::new(usize::try_from(bytes).ok()?)?;
        let next = self.next.entry(device).or_insert(CARD * (device as u64 + 1));
        let base = *next;
        // A gap, so that what runs over the end of an allocation meets none.
        *next = (base + bytes + 4 * GRAIN).next_multiple_of(GRAIN);
        *self.held.entry(device).or_insert(0) += bytes;
        self.insert(base, bytes, Home::Device(device), storage);
        Some(base)
    }

    /// Pinned memory of the host, at its own address.
    pub fn allocate_host(&mut self, bytes: u64) -> Option<u64> {
        let storage = Storage::new(usize::try_from(bytes).ok()?)?;
        let base = storage.address();
        self.insert(base, bytes, Home::Host, storage);
        Some(base)
    }

    /// Memory of the host program becomes pinned where it is.
    pub fn register_host(&mut self, place: *mut u8, bytes: u64) {
        let storage = Storage::of_host(place, bytes as usize);
        self.insert(place as u64, bytes, Home::Host, storage);
    }

    /// Frees an allocation by its first address.
    ///
    /// # Errors
    /// There is none, or an operation that is not known to be done has touched it: a text.
    pub fn free(&mut self, base: u64, known: &Clock) -> Result<(), String> {
        let live = self.by_base.get(&base).map(|number| &mut self.allocations[*number]);
        let Some(allocation) = live.filter(|allocation| allocation.storage.is_some()) else {
            return Err(format!("free of {base:#x}, which is the start of no allocation"));
        };
        allocation.storage = None;
        allocation.pages = Vec::new();
        let used = std::mem::take(&mut allocation.used.clock);
        let text = allocation.describe();
        match allocation.home {
            Home::Device(device) => *self.held.entry(device).or_insert(0) -= allocation.bytes,
            // The host may get the same addresses again.
            Home::Host => drop(self.by_base.remove(&base)),
        }
        match used.iter().find(|(stream, tick)| !known.covers(**stream, **tick)) {
            None => Ok(()),
            Some((stream, tick)) => Err(format!(
                "{text} is freed, but nothing says that {} is done with it",
                self.operations.find(*stream, *tick)
            )),
        }
    }

    /// Bytes that are allocated on a card.
    pub fn held(&self, device: i32) -> u64 {
        self.held.get(&device).copied().unwrap_or(0)
    }

    /// Home, first address and size of the live allocation with an address.
    pub fn whose(&self, address: u64) -> Option<(Home, u64, u64)> {
        let allocation = self.below(address)?;
        let inside = address < allocation.base + allocation.bytes;
        let live = inside && allocation.storage.is_some();
        live.then_some((allocation.home, allocation.base, allocation.bytes))
    }

    /// Bytes as they are, for a look without an operation; None where they are not in one live allocation.
    pub fn peek(&self, address: u64, bytes: usize) -> Option<&[u8]> {
        let allocation = self.below(address)?;
        let inside = address + bytes as u64 <= allocation.base + allocation.bytes;
        let storage = allocation.storage.as_ref().filter(|_| inside)?;
        Some(storage.slice((address - allocation.base) as usize, bytes))
    }

    /// Sets bytes of one live allocation, as if they had been there from the beginning.
    pub fn poke(&mut self, address: u64, bytes: &[u8]) {
        let Ok(number) = self.locate(address, bytes.len()) else { return };
        let allocation = &mut self.allocations[number];
        let from = (address - allocation.base) as usize;
        for at in from..from + bytes.len() {
            allocation.page(at / PAGE).write(at % PAGE, at % PAGE + 1);
        }
        if let Some(storage) = &mut allocation.storage {
            storage.slice_mut(from, bytes.len()).copy_from_slice(bytes);
        }
    }

    /// Returns all operations so far.
    pub fn operations(&mut self) -> &mut Operations {
        &mut self.operations
    }

    pub(crate) fn parts(&mut self) -> (&mut [Allocation], &Operations) {
        (&mut self.allocations, &self.operations)
    }

    /// The allocation that has all of some bytes.
    pub(crate) fn locate(&mut self, address: u64, bytes: usize) -> Result<usize, Trouble> {
        let has = |allocation: &Allocation| {
            address >= allocation.base
                && address - allocation.base < allocation.bytes.max(1)
                && bytes as u64 <= allocation.bytes - (address - allocation.base)
        };
        if self.allocations.get(self.recent).is_some_and(|a| a.storage.is_some() && has(a)) {
            return Ok(self.recent);
        }
        let number = self.by_base.range(..=address).next_back().map(|(_, number)| *number);
        match number.map(|number| &self.allocations[number]) {
            Some(allocation) if has(allocation) => match allocation.storage {
                Some(_) => {
                    self.recent = allocation.number;
                    Ok(self.recent)
                }
                None => Err(freed(allocation, address, bytes)),
            },
            near => Err(outside(near, address, bytes)),
        }
    }

    fn below(&self, address: u64) -> Option<&Allocation> {
        let (_, number) = self.by_base.range(..=address).next_back()?;
        Some(&self.allocations[*number])
    }

    fn insert(&mut self, base: u64, bytes: u64, home: Home, storage: Storage) {
        let number = self.allocations.len();
        let (storage, used) = (Some(storage), Used::default());
        let pages = Vec::new();
        self.allocations.push(Allocation { base, bytes, home, storage, used, number, pages });
        self.by_base.insert(base, number);
    }
}

fn freed(allocation: &Allocation, address: u64, bytes: usize) -> Trouble {
    let (offset, allocation) = (address - allocation.base, allocation.describe());
    Trouble::Freed { address, bytes, offset, allocation }
}

fn outside(near: Option<&Allocation>, address: u64, bytes: usize) -> Trouble {
    let near = near.filter(|near| address - near.base < near.bytes + (1 << 20)).map(|near| {
        let over = address + bytes as u64 - near.base - near.bytes;
        format!(", {over} bytes beyond the end of {}", near.describe())
    });
    Trouble::Outside { address, bytes, near: near.unwrap_or_default() }
}
