//! One rendezvous of a collective in which ranks read what others show.

use std::ops::Range;
use std::time::Duration;

use graphc_comm::memory::{ArenaRange, HostArena};
use graphc_comm::transport::{ExchangeGroup, Lent, Offer, TransportError};
use graphc_ir::sbp::ReduceKind;
use graphc_ir::types::DType;
use graphc_kernels::narrow_to_halves;

use super::buffers::Buffers;
use super::through::Through;
use crate::rectangles::Move;

/// One rendezvous of a collective, worked out for one rank and microbatch.
#[derive(Debug)]
pub(crate) enum CollectiveStage {
    /// Ranks show parts of their memory, and read what others show.
    Exchange(ExchangeStage),
    /// Each rank reduces its chunk and writes it into the memory of all.
    Through(Through),
}

/// Ranks show parts of their memory, and read what others show.
#[derive(Debug, Default)]
pub(crate) struct ExchangeStage {
    /// Copies into the pack buffer before anything is shown.
    pub(super) packs: Vec<InputPack>,
    /// The pieces that are shown.
    pub(super) shows: Vec<Show>,
    pub(super) offers: Vec<Offer>,
    /// The peers whose pieces are read, in coordinate order, and what becomes of them.
    pub(super) takes: Vec<usize>,
    pub(super) parts: Vec<Vec<ExchangePart>>,
    /// The parts that this rank contributes to its own result, and after how many takes.
    pub(super) own: Vec<ExchangePart>,
    pub(super) own_after: usize,
    /// Bytes of outputs that are made in the staging buffers, because peers still read inputs in the same memory.
    pub(super) copy_back: Vec<(usize, Range<usize>)>,
    /// Outputs of 16-bit numbers that are sums: their type, and the bytes of them that are made, as `f32`, in the wide
    /// buffers, until all ranks have contributed.
    pub(super) wide: Vec<(usize, DType, Range<usize>)>,
}

/// A rectangle of an input that is packed to be shown.
#[derive(Debug)]
pub(super) struct InputPack {
    pub(super) tensor: usize,
    pub(super) range: Range<usize>,
    pub(super) copy: Move,
}

/// A piece that is shown: bytes of a buffer.
#[derive(Debug)]
pub(super) struct Show {
    pub(super) buffer: ShownBuffer,
    pub(super) range: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShownBuffer {
    Input(usize),
    Output(usize),
    Packed,
}

/// The use of one piece: the bytes of an output that it is copied to or combined with.
#[derive(Debug)]
pub(super) struct ExchangePart {
    pub(super) tensor: usize,
    /// Index into what the peer shows; of an own part, bytes of the input.
    pub(super) piece: PieceSource,
    /// Bytes of the output that it is copied to or combined with.
    pub(super) target: Range<usize>,
    pub(super) copy: Move,
    pub(super) combine: Option<ReduceKind>,
}

#[derive(Clone, Debug)]
pub(super) enum PieceSource {
    Shown(usize),
    Own(Range<usize>),
}

/// Lists that stages work with, so that none is allocated per action.
#[derive(Default)]
pub(crate) struct StageLists {
    pieces: Vec<&'static [u8]>,
    pub(super) lent: Vec<Lent<'static>>,
}

impl CollectiveStage {
    /// Executes the stage. Returns how long it has waited.
    pub(crate) fn run(
        &self,
        group: &mut dyn ExchangeGroup,
        buffers: &mut Buffers<'_>,
        lists: &mut StageLists,
    ) -> Result<Duration, TransportError> {
        match self {
            Self::Exchange(exchange) => exchange.run(group, buffers, &mut lists.pieces),
            Self::Through(through) => through.run(group, buffers, &mut lists.lent),
        }
    }

    /// Returns the bytes of the output that are made in a staging buffer: none beyond this many.
    pub(crate) fn staged_bytes(&self, output: usize) -> usize {
        let Self::Exchange(exchange) = self else { return 0 };
        let ends = exchange.copy_back.iter().filter(|(tensor, _)| *tensor == output);
        ends.map(|(_, range)| range.end).max().unwrap_or(0)
    }
}

impl ExchangeStage {
    fn run(
        &self,
        group: &mut dyn ExchangeGroup,
        buffers: &mut Buffers<'_>,
        pieces: &mut Vec<&'static [u8]>,
    ) -> Result<Duration, TransportError> {
        self.pack_inputs(buffers);
        let Buffers { arena, inputs, outputs, staging, wide, packed } = buffers;
        let mut shown = reuse_slices(std::mem::take(pieces));
        shown.extend(self.shows.iter().map(|show| match show.buffer {
            ShownBuffer::Input(tensor) => arena.read(inputs[tensor].subrange(&show.range)),
            ShownBuffer::Output(tensor) => arena.read(outputs[tensor].subrange(&show.range)),
            ShownBuffer::Packed => &packed[show.range.clone()],
        }));
        let staging: &mut [Vec<u8>] = if self.copy_back.is_empty() { &mut [] } else { staging };
        self.resize_wide_buffers(wide);
        let mut sink = PartSink { arena, inputs, outputs, staging, wide };
        if self.own_after == 0 {
            sink.place_own(&self.own);
        }
        let waited = group.exchange(&shown, &self.offers, &self.takes, &mut |index, theirs| {
            sink.place_parts(&self.parts[index], theirs);
            if index + 1 == self.own_after {
                sink.place_own(&self.own);
            }
        });
        for (tensor, range) in &self.copy_back {
            let target = outputs[*tensor].subrange(range);
            arena.write(target).copy_from_slice(&sink.staging[*tensor][range.clone()]);
        }
        for (tensor, dtype, range) in &self.wide {
            let target = arena.write(outputs[*tensor].subrange(range));
            narrow_to_halves(*dtype, &sink.wide[*tensor][range.start / 2..range.end / 2], target);
        }
        *pieces = reuse_slices(shown);
        waited
    }

    /// Makes the wide buffers as long as this stage needs them; the others are empty.
    fn resize_wide_buffers(&self, wide: &mut [Vec<f32>]) {
        wide.iter_mut().for_each(Vec::clear);
        for (tensor, _, range) in &self.wide {
            wide[*tensor].resize(range.end / 2, 0.0);
        }
    }

    fn pack_inputs(&self, buffers: &mut Buffers<'_>) {
        for pack in &self.packs {
            let end = pack.range.end;
            if buffers.packed.len() < end {
                buffers.packed.resize(end, 0);
            }
            let input = buffers.arena.read(buffers.inputs[pack.tensor]);
            pack.copy.copy(input, &mut buffers.packed[pack.range.clone()]);
        }
    }
}

/// The memory that parts are written to.
struct PartSink<'a> {
    arena: &'a HostArena,
    inputs: &'a [ArenaRange],
    outputs: &'a [ArenaRange],
    /// The staging buffers; empty where outputs are written at once.
    staging: &'a mut [Vec<u8>],
    /// The buffers of sums; empty where outputs are no sums of 16-bit numbers.
    wide: &'a mut [Vec<f32>],
}

impl PartSink<'_> {
    fn place_parts(&mut self, parts: &[ExchangePart], theirs: &[&[u8]]) {
        for part in parts {
            if let PieceSource::Shown(piece) = part.piece {
                self.apply_part(part, theirs[piece]);
            }
        }
    }

    fn place_own(&mut self, parts: &[ExchangePart]) {
        for part in parts {
            if let PieceSource::Own(range) = &part.piece {
                self.apply_part(part, self.arena.read(self.inputs[part.tensor].subrange(range)));
            }
        }
    }

    fn apply_part(&mut self, part: &ExchangePart, from: &[u8]) {
        if let Some(wide) = self.wide.get_mut(part.tensor).filter(|wide| !wide.is_empty()) {
            let target = &mut wide[part.target.start / 2..part.target.end / 2];
            return part.copy.sum_wide(part.combine.is_some(), from, target);
        }
        let target = match self.staging.get_mut(part.tensor) {
            Some(staged) => &mut staged[part.target.clone()],
            None => self.arena.write(self.outputs[part.tensor].subrange(&part.target)),
        };
        part.copy.apply(part.combine, from, target);
    }
}

/// Empties a list of slices, and returns its memory for another.
fn reuse_slices<'b>(mut pieces: Vec<&[u8]>) -> Vec<&'b [u8]> {
    pieces.clear();
    pieces.into_iter().map(|_| -> &[u8] { &[] }).collect()
}
