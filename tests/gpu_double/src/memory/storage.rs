//! The bytes behind an allocation: the system gives pages of them when they are first touched.

use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Memory at a fixed place, owned or the host program's.
pub struct Storage {
    place: *mut u8,
    bytes: usize,
    owned: Option<Layout>,
}

// SAFETY: a storage has one owner, and is used under the lock of the machine.
unsafe impl Send for Storage {}

impl Storage {
    /// Fresh memory, or None where the system has none.
    pub fn new(bytes: usize) -> Option<Storage> {
        let layout = Layout::from_size_align(bytes.max(1), 256).ok()?;
        // SAFETY: the layout has at least one byte.
        let place = unsafe { alloc_zeroed(layout) };
        (!place.is_null()).then_some(Storage { place, bytes, owned: Some(layout) })
    }

    /// Memory that the host program keeps until it unregisters it.
    pub fn of_host(place: *mut u8, bytes: usize) -> Storage {
        Storage { place, bytes, owned: None }
    }

    /// Returns the address of the memory in this process.
    pub fn address(&self) -> u64 {
        self.place as u64
    }

    /// Bytes of a part that the caller has found to lie inside.
    pub fn slice(&self, from: usize, bytes: usize) -> &[u8] {
        assert!(from + bytes <= self.bytes, "the caller has checked bounds");
        // SAFETY: in bounds; the memory lives as long as `self`, and the host program keeps what it registered.
        unsafe { std::slice::from_raw_parts(self.place.add(from), bytes) }
    }

    /// Bytes of a part that the caller has found to lie inside, to be written.
    pub fn slice_mut(&mut self, from: usize, bytes: usize) -> &mut [u8] {
        assert!(from + bytes <= self.bytes, "the caller has checked bounds");
        // SAFETY: as in `slice`; `&mut self` is the only way here.
        unsafe { std::slice::from_raw_parts_mut(self.place.add(from), bytes) }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Some(layout) = self.owned {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.place, layout) }
        }
    }
}
