//! Makes scores of scaled products, block by block: bounds them by the soft cap and adds a bias.
//!
//! Scores of one key lie together, so 16 queries are one vector, as where they are weighed. Rows of a bias are brought for 16 queries at a
//! time.

use graphc_ir::ops::{Attention, FLOOR};
use graphc_ir::types::DType;

use super::strips::{ScoreStrip, Strips};
use super::weights::{LANES, lanes_mut};
use super::{APART, KEYS};
use crate::error::KernelError;
use crate::math;
use crate::product::Number;
use crate::simd::vectorized;
use crate::view::View;

/// Biases of as many queries and keys of a block.
type Tile = [f32; LANES * KEYS];

/// The steps from a scaled product of query and key to the score that is weighed: a soft cap and a bias.
pub(super) struct Scoring<'a, T> {
    cap: Option<f32>,
    bias: Option<BiasRows<'a, T>>,
}

/// A bias `[batch, heads, queries, keys]`.
struct BiasRows<'a, T> {
    elements: BiasElements<'a, T>,
    /// The distance from one index to the next of each dim; 0 where it has extent 1.
    strides: [usize; 4],
}

enum BiasElements<'a, T> {
    Single(&'a [f32]),
    Own(&'a [T]),
}

impl<'a, T: Number> Scoring<'a, T> {
    /// Takes the soft cap of an op, and a bias of these extents or one that is broadcast to them.
    pub(super) fn new(
        op: Attention,
        bias: Option<&View<'a>>,
        extents: [usize; 4],
    ) -> Result<Self, KernelError> {
        let bias = bias.map(|bias| BiasRows::new(bias, extents)).transpose()?;
        Ok(Self { cap: op.soft_cap.map(|cap| cap.0 as f32), bias })
    }

    /// Whether scores are bounded, so that they have slopes.
    pub(super) fn is_capped(&self) -> bool {
        self.cap.is_some()
    }

    /// Turns the products of a block, of queries `[batch, query, head]` and keys from `first` on, into scores. Where there is memory for them,
    /// as much as for scores, it gets the slopes of the soft cap.
    pub(super) fn apply(
        &self,
        strips: Strips,
        ([batch, start, head], first): ([usize; 3], usize),
        scores: &mut [f32],
        slopes: &mut [f32],
    ) {
        for ScoreStrip { queries, keys } in strips.by_queries() {
            for query in queries.clone().step_by(LANES) {
                let scores = &mut scores[query..];
                if let Some(cap) = self.cap {
                    cap_scores(scores, keys.end, cap);
                    if !slopes.is_empty() {
                        fill_slopes(scores, &mut slopes[query..], keys.end, cap);
                    }
                }
                if let Some(bias) = &self.bias {
                    let count = LANES.min(queries.end - query);
                    let tile = bias.tile([batch, head, start + query, first], [count, keys.end]);
                    add_biases(scores, &tile, keys.end);
                }
            }
        }
    }
}

impl<'a, T: Number> BiasRows<'a, T> {
    fn new(bias: &View<'a>, extents: [usize; 4]) -> Result<Self, KernelError> {
        let fits = bias.shape.iter().zip(extents).all(|(&own, extent)| [1, extent].contains(&own));
        if bias.shape.len() != 4 || !fits {
            return Err(KernelError::bad_call("attention", "a bias of another shape"));
        }
        let mut strides = [0; 4];
        let mut apart = 1;
        for (stride, &extent) in strides.iter_mut().zip(bias.shape).rev() {
            *stride = if extent == 1 { 0 } else { apart };
            apart *= extent;
        }
        let elements = match bias.dtype {
            DType::F32 => BiasElements::Single(bias.as_slice()?),
            _ => BiasElements::Own(bias.as_slice()?),
        };
        Ok(Self { elements, strides })
    }

    /// The biases of some queries of a head, for some keys, from these on: a row of [`KEYS`] for each query.
    fn tile(&self, from: [usize; 4], [queries, keys]: [usize; 2]) -> Tile {
        let mut tile = [0.0; LANES * KEYS];
        let [.., by_query, _] = self.strides;
        let place: usize =
            from.iter().zip(self.strides).map(|(index, stride)| index * stride).sum();
        for (query, row) in tile.chunks_exact_mut(KEYS).take(queries).enumerate() {
            self.read(place + query * by_query, &mut row[..keys]);
        }
        tile
    }

    /// The biases of a query from a place on.
    fn read(&self, place: usize, to: &mut [f32]) {
        let repeats = self.strides[3] == 0;
        let count = if repeats { 1 } else { to.len() };
        match self.elements {
            BiasElements::Single(all) => to[..count].copy_from_slice(&all[place..place + count]),
            BiasElements::Own(all) => T::widen(&all[place..place + count], &mut to[..count]),
        }
        if repeats {
            to.fill(to[0]);
        }
    }
}

vectorized! {
    /// Bounds scores of [`LANES`] queries.
    fn cap_scores(scores: &mut [f32], keys: usize, cap: f32) {
        for row in scores.chunks_mut(APART).take(keys) {
            for score in lanes_mut(row) {
                *score = cap * math::tanh(*score / cap);
            }
        }
    }
}

vectorized! {
    /// Computes the derivatives of bounded scores of [`LANES`] queries with respect to the products that they are made of.
    fn fill_slopes(scores: &[f32], slopes: &mut [f32], keys: usize, cap: f32) {
        for (row, slopes) in scores.chunks(APART).zip(slopes.chunks_mut(APART)).take(keys) {
            for (slope, score) in lanes_mut(slopes).iter_mut().zip(row) {
                let share = score / cap;
                *slope = 1.0 - share * share;
            }
        }
    }
}

vectorized! {
    /// Adds biases to scores of [`LANES`] queries: what is finite is at least [`FLOOR`].
    fn add_biases(scores: &mut [f32], tile: &Tile, keys: usize) {
        for (key, row) in scores.chunks_mut(APART).take(keys).enumerate() {
            for (lane, score) in lanes_mut(row).iter_mut().enumerate() {
                let sum = *score + tile[lane * KEYS + key];
                let least = if sum == f32::NEG_INFINITY { sum } else { FLOOR as f32 };
                *score = if sum < least { least } else { sum };
            }
        }
    }
}

vectorized! {
    /// Multiplies gradients of scores of [`LANES`] queries by slopes.
    pub(super) fn multiply_slopes(of_scores: &mut [f32], slopes: &[f32], keys: usize) {
        for (row, slopes) in of_scores.chunks_mut(APART).zip(slopes.chunks(APART)).take(keys) {
            for (of_score, slope) in lanes_mut(row).iter_mut().zip(slopes) {
                *of_score *= slope;
            }
        }
    }
}
