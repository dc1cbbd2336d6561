//! The gradient of a bias: that of the scores, summed over the samples and heads that have the bias in common.
//!
//! A block of queries of a bias is one thread's. It computes the scores once more, because samples and heads that share a bias are several
//! threads' in the other gradients.

use graphc_ir::types::DType;
use half::{bf16, f16};

use super::gradient::{AttentionGradInputs, ScoreBlock};
use super::{APART, AttentionExtents, QUERIES, ScoreStrip};
use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::product::Number;
use crate::view::ViewMut;

/// Gradients of a block of queries of a bias.
struct BiasUnit<'a, B> {
    /// Sample and head of the bias, its first query, and how many queries there are.
    at: [usize; 4],
    to: &'a mut [B],
}

/// The work of one thread, and its scratch memory.
struct BiasPiece<'a, B> {
    units: Vec<BiasUnit<'a, B>>,
    scratch: &'a mut [f32],
}

impl<T: Number> AttentionGradInputs<'_, T> {
    /// The gradient of a bias that has all queries and keys.
    pub(super) fn all_biases(
        &self,
        to: &mut ViewMut<'_>,
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let [batch, heads, queries, keys] = self.space.score_extents();
        let &[samples, of_heads, ..] = to.shape else {
            return Err(KernelError::bad_call("attention_grad", "a bias of other rank than 4"));
        };
        let shared = [samples == 1 || samples == batch, of_heads == 1 || of_heads == heads];
        if shared.contains(&false) || to.shape[2..] != [queries, keys] {
            return Err(KernelError::bad_call(
                "attention_grad",
                "the gradient of a bias of another shape",
            ));
        }
        let extents = [samples, of_heads];
        match to.dtype {
            DType::BF16 => self.compute_biases::<bf16>(extents, to.as_mut_slice()?, cx),
            DType::F16 => self.compute_biases::<f16>(extents, to.as_mut_slice()?, cx),
            _ => self.compute_biases::<f32>(extents, to.as_mut_slice()?, cx),
        }
    }

    fn compute_biases<B: Number>(
        &self,
        extents: [usize; 2],
        to: &mut [B],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let [_, _, _, keys] = self.space.score_extents();
        let units = cut_units(extents, self.space, to);
        let parts =
            parallel::count_parts(cx, self.space.count_multiplications()).min(units.len()).max(1);
        let rows = 2 * self.space.rows() + 2 * self.space.width;
        let own = QUERIES * keys + self.score_blocks() + rows + self.scratch_len();
        let mut pieces: Vec<BiasPiece<'_, B>> = cx
            .scratch
            .take(parts * own)
            .chunks_mut(own.max(1))
            .map(|scratch| BiasPiece { units: Vec::new(), scratch })
            .collect();
        for (index, unit) in units.into_iter().enumerate() {
            pieces[index % parts].units.push(unit);
        }
        parallel::run_parts(cx.pool, pieces, &|piece| {
            for unit in piece.units {
                let (sums, rest) = piece.scratch.split_at_mut(unit.to.len());
                self.add_bias(extents, unit.at, sums, rest);
                B::narrow(sums, unit.to);
            }
            Ok(())
        })
    }

    /// The sums of a block of queries.
    fn add_bias(
        &self,
        [samples, of_heads]: [usize; 2],
        [sample, of_head, start, count]: [usize; 4],
        sums: &mut [f32],
        scratch: &mut [f32],
    ) {
        let [batch, heads, _, keys] = self.space.score_extents();
        sums.fill(0.0);
        let (blocks, rest) = scratch.split_at_mut(self.score_blocks());
        let [weights, of_scores, slopes] = self.cut_blocks(blocks);
        let (l, rest) = rest.split_at_mut(self.space.rows());
        let (shifts, rest) = rest.split_at_mut(self.space.rows());
        let (pair, room) = rest.split_at_mut(2 * self.space.width);
        let all = |own: usize, index: usize, extent: usize| {
            if own == 1 { 0..extent } else { index..index + 1 }
        };
        for batch in all(samples, sample, batch) {
            for head in all(of_heads, of_head, heads) {
                self.prepare_rows([batch, head], pair, [&mut *l, &mut *shifts]);
                for (first, own) in self.space.key_blocks() {
                    let strips = self.space.strips([start, count], [first, own]);
                    if strips.are_empty() {
                        continue;
                    }
                    let shared = head / self.space.group;
                    let block = ScoreBlock { batch, shared, head, start, first, strips };
                    let rows = [&l[start..], &shifts[start..]];
                    let to = [&mut *weights, &mut *of_scores, &mut *slopes];
                    self.compute_scores(&block, rows, to, room);
                    add_block(&block, of_scores, sums, keys);
                }
            }
        }
    }
}

/// The parts of the gradient that are computed one by one.
fn cut_units<'a, B>(
    [samples, heads]: [usize; 2],
    space: &AttentionExtents,
    to: &'a mut [B],
) -> Vec<BiasUnit<'a, B>> {
    let (mut units, mut rest) = (Vec::new(), to);
    for sample in 0..samples {
        for head in 0..heads {
            for (start, count) in space.query_blocks() {
                let (to, behind) = rest.split_at_mut(count * space.keys);
                rest = behind;
                units.push(BiasUnit { at: [sample, head, start, count], to });
            }
        }
    }
    units
}

/// Adds the gradients of the scores of a block to rows of all keys.
fn add_block(block: &ScoreBlock, of_scores: &[f32], sums: &mut [f32], keys: usize) {
    for strip in block.strips.by_queries() {
        let ScoreStrip { queries, keys: own } = strip;
        for query in queries {
            let row = &mut sums[query * keys + block.first..][..own.end];
            for (sum, of_score) in row.iter_mut().zip(of_scores[query..].iter().step_by(APART)) {
                *sum += of_score;
            }
        }
    }
}
