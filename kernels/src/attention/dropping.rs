//! Dropout of attention's weights. Each weight's random number is that of its place in the whole `[batch, heads, queries, keys]`, so shards and blocks
//! drop what a dropout of all weights would.

use graphc_ir::ops::Attention;
use graphc_ir::types::row_major_strides;

use super::KEYS;
use super::weights::{LANES, LaneGroup, lanes_mut};
use crate::context::KernelContext;
use crate::simd::vectorized;
use crate::source::DropoutMask;
use crate::view::View;

/// The choice of the weights that are dropped.
pub(super) struct WeightDropping {
    mask: DropoutMask,
    /// The place of the shard's first weight.
    first: usize,
    /// The distance from one batch, head and query to the next.
    strides: [usize; 3],
}

/// The factors of weights of [`LANES`] queries, for the keys of a block: 0 of those that are dropped.
pub(super) struct WeightFactors([[f32; LANES]; KEYS]);

impl WeightDropping {
    /// Takes the dropout of an op, if there is one, for shards of queries and keys.
    pub(super) fn from_op(
        op: Attention,
        [q, k]: [&View<'_>; 2],
        cx: &KernelContext<'_>,
    ) -> Option<Self> {
        let mask = DropoutMask::new(op.weight_dropout()?, cx);
        let strides = row_major_strides(&[q.global[0], q.global[2], q.global[1], k.global[1]]);
        let origin = [q.origin[0], q.origin[2], q.origin[1], k.origin[1]];
        let first = origin.iter().zip(&strides).map(|(index, stride)| index * stride).sum();
        Some(Self { mask, first, strides: [strides[0], strides[1], strides[2]] })
    }

    /// Returns the factors of weights of [`LANES`] queries from `[batch, query, head]` on, and of so many keys from `key` on.
    pub(super) fn factors(
        &self,
        ([batch, query, head], key): ([usize; 3], usize),
        keys: usize,
    ) -> WeightFactors {
        let [by_batch, by_head, by_query] = self.strides;
        let place = self.first + batch * by_batch + head * by_head + query * by_query + key;
        let mut factors = WeightFactors([[0.0; LANES]; KEYS]);
        fill_factors(&self.mask, [place, by_query], &mut factors.0[..keys]);
        factors
    }
}

impl WeightFactors {
    /// Multiplies weights, or what lies as they do.
    pub(super) fn apply(&self, weights: &mut [f32], group: LaneGroup) {
        multiply_lanes(weights, [group.keys, group.apart], &self.0);
    }
}

vectorized! {
    /// Fills the factors of all keys, from a place on; `by_query` is the distance from one query to the next.
    fn fill_factors(mask: &DropoutMask, place: [usize; 2], factors: &mut [[f32; LANES]]) {
        let [place, by_query] = place.map(|x| x as u64);
        for (key, row) in factors.iter_mut().enumerate() {
            for (lane, factor) in row.iter_mut().enumerate() {
                *factor = mask.drop_element(place + key as u64 + lane as u64 * by_query, 1.0);
            }
        }
    }
}

vectorized! {
    /// Multiplies numbers of [`LANES`] queries and so many keys, which lie so far apart.
    fn multiply_lanes(values: &mut [f32], extents: [usize; 2], factors: &[[f32; LANES]]) {
        let [keys, apart] = extents;
        for (row, factors) in values.chunks_mut(apart).zip(factors).take(keys) {
            for (value, factor) in lanes_mut(row).iter_mut().zip(factors) {
                *value *= factor;
            }
        }
    }
}
