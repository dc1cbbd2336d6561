//! Pages: what is known of 4 KiB of memory, which bytes were written, and who touched each last.
//!
//! A cell stands for 4 bytes, or for 2 or 1 where something smaller was touched, or for the whole page as long as only
//! whole pages were. After FastTrack (Flanagan and Freund, PLDI 2009): the last write and the last reads of a cell are
//! compared with what the one who comes knows to be done.

use std::collections::BTreeMap;

use super::clock::{Clock, Operations};
use super::touch::Who;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// The number that stands for several blocks.
const MANY: u32 = u32::MAX;

/// The way in which bytes are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    /// A read, a write or both that cannot be torn, and that others may do at the same time.
    Atomic,
    /// An atomic access without a write.
    AtomicRead,
    /// An atomic access without a read.
    AtomicWrite,
}

impl Kind {
    pub fn reads(self) -> bool {
        !matches!(self, Kind::Write | Kind::AtomicWrite)
    }

    pub fn writes(self) -> bool {
        !matches!(self, Kind::Read | Kind::AtomicRead)
    }

    pub fn atomic(self) -> bool {
        !matches!(self, Kind::Read | Kind::Write)
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Atomic => "atomic access",
            Kind::AtomicRead => "atomic read",
            Kind::AtomicWrite => "atomic write",
        }
    }
}

/// The last access to a cell: operation, block, warps of the block as a mask, and when by the block's count of barriers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Mark {
    operation: u32,
    block: u32,
    warps: u32,
    epoch: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cell {
    writer: Mark,
    reader: Mark,
    atomic: bool,
}

/// The other side of two accesses that nothing orders.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Meeting {
    /// A thread of another block, or of the same block (with its warps); and whether it wrote.
    Thread { block: Option<u32>, warps: u32, wrote: bool },
    /// Another operation, and whether it wrote.
    Operation { operation: u32, wrote: bool },
}

enum Cells {
    One(Cell),
    Many { shift: u32, cells: Vec<Cell> },
}

/// See the module.
pub(crate) struct Page {
    written: [u64; PAGE / 64],
    cells: Cells,
    /// Operations that read a cell beside the one that it names, none ordered after another.
    crowd: BTreeMap<u32, Vec<u32>>,
}

impl Page {
    /// A page that nobody touched.
    pub fn new(written: bool) -> Page {
        let bits = if written { u64::MAX } else { 0 };
        Page {
            written: [bits; PAGE / 64],
            cells: Cells::One(Cell::default()),
            crowd: BTreeMap::new(),
        }
    }

    /// The first byte of `from..to` that nothing has written.
    pub fn unwritten(&self, from: usize, to: usize) -> Option<usize> {
        let mut at = from;
        while at < to {
            let (bits, end) = bits_of(at, to);
            let missing = bits & !self.written[at / 64];
            if missing != 0 {
                return Some(at / 64 * 64 + missing.trailing_zeros() as usize);
            }
            at = end;
        }
        None
    }

    /// Notes that `from..to` is written.
    pub fn write(&mut self, from: usize, to: usize) {
        let mut at = from;
        while at < to {
            let (bits, end) = bits_of(at, to);
            self.written[at / 64] |= bits;
            at = end;
        }
    }

    /// Compares an access of `from..to` with those before it, and notes it.
    pub fn meet(
        &mut self,
        from: usize,
        to: usize,
        kind: Kind,
        who: &Who<'_>,
        order: (&Operations, &Clock),
    ) -> Result<(), Meeting> {
        let (first, last) = self.range(from, to);
        let crowd = &mut self.crowd;
        let cells = match &mut self.cells {
            Cells::One(cell) => std::slice::from_mut(cell),
            Cells::Many { cells, .. } => &mut cells[first..last],
        };
        for (number, cell) in cells.iter_mut().enumerate() {
            let number = (first + number) as u32;
            cell.check(kind, who, order)?;
            if kind.writes() && !crowd.is_empty() {
                disperse(crowd, number, order)?;
            }
            if let Some(old) = cell.note(kind, who, order) {
                crowd.entry(number).or_default().push(old);
            }
        }
        Ok(())
    }

    /// Cells of `from..to`, after the page has cells that are fine enough for it.
    fn range(&mut self, from: usize, to: usize) -> (usize, usize) {
        let needed = ((from | to | 4).trailing_zeros()).min(2);
        match &self.cells {
            Cells::One(_) if from == 0 && to == PAGE => return (0, 1),
            Cells::One(cell) => {
                let cells = vec![*cell; PAGE >> needed];
                self.spread(12 - needed);
                self.cells = Cells::Many { shift: needed, cells };
            }
            Cells::Many { shift, cells } if *shift > needed => {
                let by = *shift - needed;
                let cells = cells.iter().flat_map(|cell| std::iter::repeat_n(*cell, 1 << by));
                let cells = cells.collect();
                self.spread(by);
                self.cells = Cells::Many { shift: needed, cells };
            }
            Cells::Many { .. } => {}
        }
        let Cells::Many { shift, .. } = &self.cells else { return (0, 1) };
        (from >> shift, to >> shift)
    }

    /// Splits each cell in 2^by cells, and the crowds of operations too.
    fn spread(&mut self, by: u32) {
        let old = std::mem::take(&mut self.crowd);
        for (cell, operations) in old {
            for part in 0..1 << by {
                self.crowd.insert((cell << by) + part, operations.clone());
            }
        }
    }
}

/// The bits of the word of `at` that stand for `at..to`, and the first byte after the word.
fn bits_of(at: usize, to: usize) -> (u64, usize) {
    let end = (at / 64 * 64 + 64).min(to);
    let bits = if end - at == 64 { u64::MAX } else { ((1 << (end - at)) - 1) << (at % 64) };
    (bits, end)
}

/// All that read a cell beside the one that it names must come before a write, and are then forgotten.
fn disperse(
    crowd: &mut BTreeMap<u32, Vec<u32>>,
    cell: u32,
    (operations, clock): (&Operations, &Clock),
) -> Result<(), Meeting> {
    let Some(readers) = crowd.remove(&cell) else { return Ok(()) };
    match readers.into_iter().find(|reader| !operations.before(*reader, clock)) {
        Some(operation) => Err(Meeting::Operation { operation, wrote: false }),
        None => Ok(()),
    }
}

impl Cell {
    fn check(
        &self,
        kind: Kind,
        who: &Who<'_>,
        order: (&Operations, &Clock),
    ) -> Result<(), Meeting> {
        let together = kind.atomic() && self.atomic && self.writer.operation == who.operation;
        if !together {
            self.writer.check(who, order, true)?;
        }
        if kind.writes() && !(together && self.reader.operation != who.operation) {
            self.reader.check(who, order, false)?;
        }
        Ok(())
    }

    /// Notes an access that was found to be in order; a reader that is still of interest is handed back.
    fn note(&mut self, kind: Kind, who: &Who<'_>, order: (&Operations, &Clock)) -> Option<u32> {
        if kind.writes() {
            let join = kind.atomic() && self.atomic;
            self.writer = if join { self.writer.joined(who) } else { Mark::of(who) };
            self.atomic = kind.atomic();
            self.reader = Mark::default();
            return None;
        }
        if kind.atomic() && self.atomic && self.writer.operation == who.operation {
            return None;
        }
        let old = self.reader;
        self.reader = old.joined(who);
        let known = old.operation == who.operation || order.0.before(old.operation, order.1);
        (!known).then_some(old.operation)
    }
}

impl Mark {
    fn of(who: &Who<'_>) -> Mark {
        Mark { operation: who.operation, block: who.block, warps: 1 << who.warp, epoch: who.epoch }
    }

    /// The mark with one more thread of the same operation, or of a new one alone.
    fn joined(self, who: &Who<'_>) -> Mark {
        let new = Mark::of(who);
        if self.operation != who.operation {
            return new;
        }
        if self.block != who.block {
            return Mark { block: MANY, ..new };
        }
        let warps = if self.epoch == who.epoch { self.warps } else { 0 };
        Mark { warps: warps | new.warps, ..new }
    }

    fn check(
        &self,
        who: &Who<'_>,
        (operations, clock): (&Operations, &Clock),
        wrote: bool,
    ) -> Result<(), Meeting> {
        if self.operation == 0 {
            return Ok(());
        }
        if self.operation != who.operation {
            let before = operations.before(self.operation, clock);
            let other = Meeting::Operation { operation: self.operation, wrote };
            return if before { Ok(()) } else { Err(other) };
        }
        if self.block != who.block {
            let block = (self.block != MANY).then_some(self.block);
            let known = who.has_heard_of(block);
            let other = Meeting::Thread { block, warps: self.warps, wrote };
            return if known { Ok(()) } else { Err(other) };
        }
        match self.unknown_warps(who) {
            0 => Ok(()),
            warps => Err(Meeting::Thread { block: Some(self.block), warps, wrote }),
        }
    }

    /// Warps of the same block that no barrier has joined with this one since.
    fn unknown_warps(&self, who: &Who<'_>) -> u32 {
        let mut others = self.warps & !(1 << who.warp);
        let mut unknown = 0;
        while others != 0 {
            let warp = others.trailing_zeros();
            others &= others - 1;
            if who.known.get(warp as usize).is_none_or(|known| *known < self.epoch) {
                unknown |= 1 << warp;
            }
        }
        unknown
    }
}
