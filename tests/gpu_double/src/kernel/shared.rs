//! Shared memory of a block: its bytes, and for each word which warps touched it since which barrier.

use super::report::Wrong;
use crate::memory::Kind;

/// The writer of what a copy beside the kernel will bring.
const FLIGHT: u8 = u8::MAX;

/// One word, or one byte of a word that was touched in parts.
#[derive(Clone, Copy, Default)]
struct Cell {
    /// Warp plus one; 0 if nothing was written.
    writer: u8,
    atomic: bool,
    /// Whether the bytes of the word have cells of their own.
    split: bool,
    written: u32,
    readers: u32,
    read: u32,
}

/// The warp that touches shared memory, the number of barriers that the block has passed, and for each warp the number up to which this one
/// knows of it.
#[derive(Clone, Copy)]
pub struct Me<'a> {
    pub warp: u32,
    pub epoch: u32,
    pub known: &'a [u32],
}

/// See the module.
#[derive(Default)]
pub struct Shared {
    bytes: Vec<u8>,
    words: Vec<Cell>,
    parts: Vec<Cell>,
}

impl Shared {
    /// Forgets everything: for a new block with so many bytes.
    pub fn reset(&mut self, bytes: usize) {
        self.bytes.clear();
        self.bytes.resize(bytes, 0xA5);
        self.words.clear();
        self.words.resize(bytes.div_ceil(4), Cell::default());
        self.parts.resize(bytes.next_multiple_of(4), Cell::default());
    }

    /// Bytes that a warp touches.
    pub fn touch(
        &mut self,
        at: u64,
        bytes: usize,
        kind: Kind,
        me: Me<'_>,
    ) -> Result<&mut [u8], Wrong> {
        let size = self.bytes.len();
        let start = at as usize;
        if at >= size as u64 || bytes > size - start {
            return Err(Wrong::SharedOutside { at, bytes, size });
        }
        if start.is_multiple_of(4) && bytes.is_multiple_of(4) {
            for word in start / 4..(start + bytes) / 4 {
                self.touch_word(word, kind, me)?;
            }
        } else {
            for byte in start..start + bytes {
                self.touch_byte(byte, kind, me)?;
            }
        }
        Ok(&mut self.bytes[start..start + bytes])
    }

    /// Bytes that a copy beside the kernel will bring: nobody may read them before it has.
    pub fn announce(&mut self, at: u64, bytes: usize, me: Me<'_>) -> Result<(), Wrong> {
        self.touch(at, bytes, Kind::Write, me)?;
        for byte in at as usize..at as usize + bytes {
            self.words[byte / 4].writer = FLIGHT;
            self.parts[byte].writer = FLIGHT;
        }
        Ok(())
    }

    /// Writes the data, which is there for the warp that has waited.
    pub fn arrive(&mut self, at: u64, data: &[u8], me: Me<'_>) {
        let start = at as usize;
        self.bytes[start..start + data.len()].copy_from_slice(data);
        for byte in start..start + data.len() {
            let new = Cell { writer: me.warp as u8 + 1, written: me.epoch, ..Cell::default() };
            self.words[byte / 4] = Cell { split: self.words[byte / 4].split, ..new };
            self.parts[byte] = new;
        }
    }

    fn touch_word(&mut self, word: usize, kind: Kind, me: Me<'_>) -> Result<(), Wrong> {
        if self.words[word].split {
            return (4 * word..4 * word + 4).try_for_each(|byte| self.touch_byte(byte, kind, me));
        }
        self.words[word].touch(kind, me, 4 * word)
    }

    fn touch_byte(&mut self, byte: usize, kind: Kind, me: Me<'_>) -> Result<(), Wrong> {
        let word = &mut self.words[byte / 4];
        if !word.split {
            let whole = *word;
            word.split = true;
            self.parts[byte / 4 * 4..byte / 4 * 4 + 4].fill(whole);
        }
        self.parts[byte].touch(kind, me, byte)
    }
}

impl Cell {
    fn touch(&mut self, kind: Kind, me: Me<'_>, at: usize) -> Result<(), Wrong> {
        if kind.reads() && self.writer == 0 {
            return Err(Wrong::SharedUnwritten { at });
        }
        if self.writer == FLIGHT {
            return Err(Wrong::InFlight { at });
        }
        let together = kind.atomic() && self.atomic;
        let how = kind.name();
        if self.writer > 0 && !together {
            let other = u32::from(self.writer) - 1;
            if unknown(other, self.written, me) {
                return Err(Wrong::SharedRace { at, how, other, what: "a write" });
            }
        }
        if !kind.writes() {
            self.readers = if self.read == me.epoch { self.readers } else { 0 } | 1 << me.warp;
            self.read = me.epoch;
            return Ok(());
        }
        let mut others = self.readers & !(1 << me.warp);
        while others != 0 && !together {
            let other = others.trailing_zeros();
            others &= others - 1;
            if unknown(other, self.read, me) {
                return Err(Wrong::SharedRace { at, how, other, what: "a read" });
            }
        }
        let split = self.split;
        let (writer, atomic) = (me.warp as u8 + 1, kind.atomic());
        *self = Cell { writer, atomic, split, written: me.epoch, readers: 0, read: 0 };
        Ok(())
    }
}

/// Whether no barrier has told this warp what another did in an epoch.
fn unknown(other: u32, epoch: u32, me: Me<'_>) -> bool {
    other != me.warp && me.known[other as usize] < epoch
}
