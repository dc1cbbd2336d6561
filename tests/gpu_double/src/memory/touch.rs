//! Accesses of operations to memory: bounds, what was written, order.

use super::clock::Clock;
use super::page::{Kind, Meeting, PAGE, Page};
use super::space::{Allocation, Home, Space};
use super::trouble::Trouble;

/// The operation that touches memory. Within a launch these are also the block, the warp, the number of barriers that the block has passed,
/// and for each warp of the block the number up to which it is known to have come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Who<'a> {
    /// Number of the operation.
    pub operation: u32,
    /// Number of the block in its grid, plus one; 0 for what is no kernel.
    pub block: u32,
    /// Number of the warp in its block.
    pub warp: u32,
    /// Barriers that the block has passed.
    pub epoch: u32,
    /// For each warp, the last epoch that a barrier has told about.
    pub known: &'a [u32],
    /// Blocks that this one has heard of by a fence and an atomic access.
    pub heard: Option<&'a Heard>,
}

/// Blocks of the same launch whose writes are known, by number plus one.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// Bits of blocks.
    pub blocks: Vec<u64>,
    /// Whether they are all blocks of the launch.
    pub all: bool,
}

impl Heard {
    /// Whether a block is among them.
    pub fn has(&self, block: u32) -> bool {
        let word = self.blocks.get(block as usize / 64);
        word.is_some_and(|word| word >> (block % 64) & 1 == 1)
    }
}

impl Who<'_> {
    /// Whether a block, or all blocks, have told this one what they did.
    pub(crate) fn has_heard_of(&self, block: Option<u32>) -> bool {
        self.heard.is_some_and(|heard| heard.all || block.is_some_and(|block| heard.has(block)))
    }
}

/// Memory as one operation sees it.
pub struct Access<'a> {
    pub(crate) space: &'a mut Space,
    pub(crate) operation: u32,
    pub(crate) clock: &'a Clock,
    /// The card that executes the operation; None where it may use memory of all cards, as copies do.
    pub(crate) device: Option<i32>,
}

impl Access<'_> {
    /// Bytes to be read by the operation as a whole.
    ///
    /// # Errors
    /// Out of bounds, not written, or not ordered after what wrote them: a text that names addresses and operations.
    pub fn read(&mut self, address: u64, bytes: usize) -> Result<&[u8], String> {
        let who = Who { operation: self.operation, ..Who::default() };
        let slice = self.touch(address, bytes, Kind::Read, &who);
        slice.map(|slice| &*slice).map_err(|trouble| trouble.to_string())
    }

    /// Bytes to be written by the operation as a whole, all of them.
    ///
    /// # Errors
    /// Out of bounds, or not ordered after what read or wrote them: a text that names addresses and operations.
    pub fn write(&mut self, address: u64, bytes: usize) -> Result<&mut [u8], String> {
        let who = Who { operation: self.operation, ..Who::default() };
        self.touch(address, bytes, Kind::Write, &who).map_err(|trouble| trouble.to_string())
    }

    /// Bytes that one thread, or the operation as a whole, touches.
    pub(crate) fn touch(
        &mut self,
        address: u64,
        bytes: usize,
        kind: Kind,
        who: &Who<'_>,
    ) -> Result<&mut [u8], Trouble> {
        let number = self.space.locate(address, bytes)?;
        let (allocations, operations) = self.space.parts();
        let allocation = &mut allocations[number];
        reachable(allocation, self.device, address)?;
        let offset = (address - allocation.base) as usize;
        if bytes > 0 {
            allocation.used.advance_by(who.operation, operations);
        }
        let mut at = offset;
        while at < offset + bytes {
            let end = (at / PAGE * PAGE + PAGE).min(offset + bytes);
            let (from, to) = (at % PAGE, at % PAGE + (end - at));
            let page = allocation.page(at / PAGE);
            check(page, (from, to), kind, who, (operations, self.clock)).map_err(|wrong| {
                let text = Wrong { kind, address, bytes, allocation, base: at / PAGE * PAGE };
                text.trouble(wrong, operations)
            })?;
            at = end;
        }
        Ok(allocation.storage.as_mut().expect("a live allocation").slice_mut(offset, bytes))
    }
}

fn reachable(allocation: &Allocation, device: Option<i32>, address: u64) -> Result<(), Trouble> {
    match (allocation.home, device) {
        (Home::Device(home), Some(device)) if home != device => {
            Err(Trouble::OtherDevice { address, device, allocation: allocation.describe() })
        }
        _ => Ok(()),
    }
}

/// The objection of a page to an access.
enum Objection {
    Unwritten(usize),
    Met(Meeting),
}

fn check(
    page: &mut Page,
    (from, to): (usize, usize),
    kind: Kind,
    who: &Who<'_>,
    order: (&super::Operations, &Clock),
) -> Result<(), Objection> {
    if kind.reads()
        && let Some(byte) = page.unwritten(from, to)
    {
        return Err(Objection::Unwritten(byte));
    }
    if kind.writes() {
        page.write(from, to);
    }
    page.meet(from, to, kind, who, order).map_err(Objection::Met)
}

/// An access for a message.
struct Wrong<'a> {
    kind: Kind,
    address: u64,
    bytes: usize,
    allocation: &'a Allocation,
    base: usize,
}

impl Wrong<'_> {
    fn trouble(&self, objection: Objection, operations: &super::Operations) -> Trouble {
        let (address, bytes) = (self.address, self.bytes);
        let (offset, allocation) = (address - self.allocation.base, self.allocation.describe());
        let how = self.kind.name();
        match objection {
            Objection::Unwritten(byte) => {
                let offset = (self.base + byte) as u64;
                Trouble::Unwritten { address, bytes, offset, allocation }
            }
            Objection::Met(Meeting::Thread { block, warps, wrote }) => {
                let other = threads(block, warps, wrote);
                Trouble::Race { how, address, bytes, offset, allocation, other }
            }
            Objection::Met(Meeting::Operation { operation, wrote }) => {
                let (what, other) = (written(wrote), operations.describe(operation));
                Trouble::Unordered { how, what, address, bytes, offset, allocation, other }
            }
        }
    }
}

fn written(wrote: bool) -> &'static str {
    if wrote { "the write" } else { "a read" }
}

fn threads(block: Option<u32>, warps: u32, wrote: bool) -> String {
    let what = written(wrote);
    match block {
        Some(block) => {
            format!("{what} by warp {} of block {}", warps.trailing_zeros(), block.wrapping_sub(1))
        }
        None => format!("{what} by several blocks"),
    }
}
