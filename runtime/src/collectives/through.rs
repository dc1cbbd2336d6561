//! All-reduce between ranks that write each other's memory: one rendezvous, in which each rank reduces its chunk of every
//! tensor and writes the result into the outputs of all. Every byte is read once and written once, and the result may take
//! the operand's place, because nobody else touches the chunk.

use std::ops::Range;
use std::time::Duration;

use graphc_comm::memory::Lent;
use graphc_comm::transport::{ExchangeGroup, TransportError};
use graphc_ir::sbp::ReduceKind;
use graphc_ir::types::DType;
use graphc_kernels::{narrow_to_halves, widen_halves};

use super::buffers::Buffers;
use crate::rectangles::{combine_elements, combine_into, join_wide, sums_wide};

/// Bytes that are reduced at a time: what all ranks bring of them stays in the nearest caches.
const BLOCK: usize = 16 << 10;

/// The work of one rank.
#[derive(Debug)]
pub(crate) struct Through {
    pub(super) ranks: usize,
    pub(super) kind: ReduceKind,
    /// The bytes of each tensor that this rank reduces.
    pub(super) chunks: Vec<(DType, Range<usize>)>,
}

impl Through {
    pub(super) fn run(
        &self,
        group: &mut dyn ExchangeGroup,
        buffers: &Buffers<'_>,
        lent: &mut Vec<Lent<'static>>,
    ) -> Result<Duration, TransportError> {
        let Buffers { arena, inputs, outputs, .. } = buffers;
        let mut own = reuse_lent(std::mem::take(lent));
        let pairs = inputs.iter().zip(*outputs);
        own.extend(pairs.flat_map(|(&from, &to)| [arena.lend(from), arena.lend(to)]));
        let group = group.as_lending().expect("groups of a direct transport lend");
        let waited = group.lend(&own, &mut |lent| {
            for (tensor, (dtype, chunk)) in self.chunks.iter().enumerate() {
                let pair = |rank: usize| (lent(rank)[2 * tensor], lent(rank)[2 * tensor + 1]);
                self.reduce_chunk(*dtype, chunk, &pair);
            }
        });
        *lent = reuse_lent(own);
        waited
    }

    /// Reduces a chunk in the order of ranks. `pair` is a rank's input and output.
    fn reduce_chunk<'l>(
        &self,
        dtype: DType,
        chunk: &Range<usize>,
        pair: &dyn Fn(usize) -> (Lent<'l>, Lent<'l>),
    ) {
        if self.ranks == 2 && (dtype, self.kind) == (DType::F32, ReduceKind::Sum) {
            let (a, b) = (pair(0), pair(1));
            if a.0.is_same(&a.1) && b.0.is_same(&b.1) {
                // Without blocks, memory is read and written in one go.
                return graphc_kernels::sum_in_both(a.0.cells(chunk), b.0.cells(chunk));
            }
        }
        let mut sum = [0; BLOCK];
        let mut wide = [0.0; BLOCK / 2];
        for begin in chunk.clone().step_by(BLOCK) {
            let block = begin..chunk.end.min(begin + BLOCK);
            let sum = &mut sum[..block.len()];
            let of = |rank: usize| pair(rank).0.read(&block);
            if sums_wide(dtype, Some(self.kind)) {
                let wide = &mut wide[..sum.len() / 2];
                widen_halves(dtype, of(0), wide);
                (1..self.ranks).for_each(|rank| join_wide(dtype, of(rank), wide, |a, b| a + b));
                narrow_to_halves(dtype, wide, sum);
            } else {
                combine_into(dtype, self.kind, sum, of(0), of(1));
                (2..self.ranks).for_each(|rank| combine_elements(dtype, self.kind, sum, of(rank)));
            }
            for rank in 0..self.ranks {
                pair(rank).1.write(&block).copy_from_slice(sum);
            }
        }
    }
}

/// Empties a list of pieces, and returns its memory for another.
fn reuse_lent<'b>(mut lent: Vec<Lent<'_>>) -> Vec<Lent<'b>> {
    lent.clear();
    lent.into_iter().map(|_| -> Lent<'b> { unreachable!("the list is empty") }).collect()
}
