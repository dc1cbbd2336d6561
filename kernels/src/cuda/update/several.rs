//! What kernels of several tensors have in common.

use super::super::source::Source;
use super::{THREADS, WIDTH};

/// How often a block goes on: blocks of 8192 elements keep the table short and still fill a card.
const STEPS: usize = 8;

/// Blocks for so many elements.
pub(super) fn blocks_of(extent: usize) -> usize {
    extent.div_ceil(STEPS * THREADS * WIDTH)
}

/// Macros for kernels of several tensors, of at most so many elements.
pub(super) fn of_several(source: Source, members: usize, elements: usize) -> Source {
    let room = elements + STEPS * THREADS * WIDTH;
    source.define("PARTS", members).define("STEPS", STEPS).index(room)
}
