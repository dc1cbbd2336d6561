//! The order of a sequence in which equal parts are equally much work under a causal mask.
//!
//! A sequence is cut into chunks, of which the first and the last lie beside each other, then the second and the last but one, and so on
//! (the load balancing of context parallelism in Megatron Core and in PyTorch; "striped" and "zigzag" orders are compared by Brandon et al.,
//! arXiv 2311.09431). A rank with a pair of chunks has early queries, which see few keys, and as many late ones.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::shards::{fill_shard, read_element};
use super::slice::dim_by_dim;
use crate::array::Array;
use crate::operation::{
    EvalContext, Movement, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::Rule;
use crate::types::{DType, TensorType};

/// x -> the same shape: of `2 pairs` chunks of a dim, chunk `2 i` of the result is chunk `i` of x, and chunk `2 i + 1` is chunk
/// `2 pairs - 1 - i`; the other way round where `inverse`. The dim is whole, and a multiple of `2 pairs`; all others may be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Zigzag {
    /// The dim whose elements are put in another order.
    pub dim: usize,
    /// The number of pairs of chunks.
    pub pairs: NonZeroU32,
    /// Whether elements go back to where they were.
    pub inverse: bool,
}

/// Elements of a sequence that lie one behind the other before and after [`Zigzag`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZigzagRun {
    /// The first one's index in the order of the sequence.
    pub position: usize,
    /// The first one's index in the order of pairs.
    pub index: usize,
    /// The number of elements.
    pub count: usize,
}

/// Returns whether a sequence of this extent has so many pairs of chunks of one length.
pub fn has_pairs(extent: usize, pairs: NonZeroU32) -> bool {
    extent.is_multiple_of(2 * pairs.get() as usize)
}

/// Returns the elements of a sequence in runs, one for each chunk, by their indices in the order of pairs. No elements have no runs.
pub fn zigzag_runs(extent: usize, pairs: NonZeroU32) -> impl Iterator<Item = ZigzagRun> {
    let count = extent / (2 * pairs.get() as usize);
    let chunks = if count == 0 { 0 } else { 2 * pairs.get() as usize };
    (0..chunks).map(move |chunk| {
        let index = chunk * count;
        ZigzagRun { position: find_position(index, extent, pairs), index, count }
    })
}

/// Returns the place in a sequence of the element that has an index in the order of pairs.
pub(crate) fn find_position(index: usize, extent: usize, pairs: NonZeroU32) -> usize {
    let chunks = 2 * pairs.get() as usize;
    let count = (extent / chunks).max(1);
    let (chunk, inside) = (index / count, index % count);
    let of_sequence = if chunk.is_multiple_of(2) { chunk / 2 } else { chunks - 1 - chunk / 2 };
    of_sequence * count + inside
}

/// Returns the index in the order of pairs of the element that has a place in a sequence.
fn find_index(position: usize, extent: usize, pairs: NonZeroU32) -> usize {
    let chunks = 2 * pairs.get() as usize;
    let count = (extent / chunks).max(1);
    let (chunk, inside) = (position / count, position % count);
    let of_pairs = if chunk < chunks / 2 { 2 * chunk } else { 2 * (chunks - 1 - chunk) + 1 };
    of_pairs * count + inside
}

impl Operation for Zigzag {
    fn name(&self) -> &'static str {
        "zigzag"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![operands[0].dtype])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let shape = &operands[0].shape;
        let Some(&extent) = shape.get(self.dim) else {
            let reason = format!("it has no dim {}", self.dim);
            return Err(shape_error(self.name(), operands, reason));
        };
        if !has_pairs(extent, self.pairs) {
            let reason = format!("{extent} elements are not {} pairs of equal chunks", self.pairs);
            return Err(shape_error(self.name(), operands, reason));
        }
        let rule = Rule { linear: vec![vec![0]], moves_data: true, ..Rule::default() };
        Ok(dim_by_dim(rule, shape, |dim, _| dim != self.dim, |_| extent))
    }

    fn flops_per_point(&self) -> f64 {
        0.0
    }

    fn movement(&self) -> Option<Movement> {
        Some(Movement::Rearranged)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let extent = operands[0].region.global[self.dim];
        let source = if self.inverse { find_index } else { find_position };
        let element = |index: &[usize]| {
            let mut place = index.to_vec();
            place[self.dim] = source(index[self.dim], extent, self.pairs);
            read_element(&operands[0], &place)
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    fn pairs(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).expect("a count")
    }

    #[test]
    fn first_and_last_chunks_lie_beside_each_other() {
        let order: Vec<usize> = (0..8).map(|index| find_position(index, 8, pairs(2))).collect();
        assert_eq!(order, [0, 1, 6, 7, 2, 3, 4, 5]);
        let runs: Vec<ZigzagRun> = zigzag_runs(8, pairs(2)).collect();
        assert_eq!(runs[1], ZigzagRun { position: 6, index: 2, count: 2 });
        assert_eq!(zigzag_runs(0, pairs(u32::MAX)).count(), 0);
        for position in 0..8 {
            assert_eq!(order[find_index(position, 8, pairs(2))], position);
        }
    }

    #[test]
    fn the_inverse_brings_elements_back() {
        let numbers: Vec<f64> = (0..24).map(f64::from).collect();
        let op = |inverse| Op::Zigzag(Zigzag { dim: 1, pairs: pairs(3), inverse });
        let x = Array::new([2, 6, 2], numbers.clone());
        let there = evaluate(op(false), &[(DType::F32, x)]).expect("fits")[0].clone();
        assert_eq!(there.data[..8], [0.0, 1.0, 10.0, 11.0, 2.0, 3.0, 8.0, 9.0]);
        let back = evaluate(op(true), &[(DType::F32, there)]).expect("fits");
        assert_eq!(back[0].data, numbers);
    }

    #[test]
    fn a_sequence_without_such_chunks_is_refused() {
        let op = Op::Zigzag(Zigzag { dim: 0, pairs: pairs(4), inverse: false });
        let error = op.infer_types(&[&TensorType::new(DType::F32, [12])]).expect_err("12 of 8");
        let text = error.to_string();
        assert!(text.ends_with("12 elements are not 4 pairs of equal chunks"), "{text}");
    }
}
