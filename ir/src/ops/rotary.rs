//! Rotary position embedding (RoFormer; Su et al., arXiv 2104.09864, section 3.4.2).

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::shards::{fill_shard, one_float, read_element};
use super::zigzag::{find_position, has_pairs};
use crate::array::Array;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// x [.., time, heads, d] -> the same shape: of each head the pairs (i, i + d/2), as transformers has them, or
/// (2i, 2i + 1) where `interleaved`, as RoFormer and LLaMA have them, are turned by position base^(-2i/d) radians.
/// The position is the index along time in the whole tensor, so that time may be split, or in the sequence that
/// [`Zigzag`](super::Zigzag) has put in another order; d is even, and whole but for pairs of neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rotary {
    /// The base of the angles' frequencies, 10000 in RoFormer, 500000 in LLaMA 3.
    pub base: Scalar,
    /// Whether neighbours make a pair.
    pub interleaved: bool,
    /// Whether it turns by the negative angles, as the gradient does.
    pub inverse: bool,
    /// The pairs of chunks in whose order the times lie, where they are in the order of [`Zigzag`](super::Zigzag).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zigzag: Option<NonZeroU32>,
}

impl Rotary {
    /// Returns the angle of pair `pair` of a head of `width` elements at a position, in radians.
    pub fn angle(&self, position: usize, pair: usize, width: usize) -> f64 {
        let frequency = self.base.0.powf(-2.0 * pair as f64 / width as f64);
        let angle = position as f64 * frequency;
        if self.inverse { -angle } else { angle }
    }

    /// Returns the position of the element that has an index along `time` ones.
    pub fn position(&self, index: usize, time: usize) -> usize {
        self.zigzag.map_or(index, |pairs| find_position(index, time, pairs))
    }

    /// Returns the pair of an element of a head of `width` elements, and the positions of that pair's two elements.
    fn locate_pair(&self, element: usize, width: usize) -> (usize, [usize; 2]) {
        if self.interleaved {
            let pair = element / 2;
            return (pair, [2 * pair, 2 * pair + 1]);
        }
        let pair = element % (width / 2);
        (pair, [pair, pair + width / 2])
    }
}

impl Operation for Rotary {
    fn name(&self) -> &'static str {
        "rotary"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![one_float(self.name(), operands, &[0])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        match operands[0].shape[..] {
            [.., _, _, width] if width.is_multiple_of(2) => {}
            [.., _, _, width] => {
                let reason = format!("a head of {width} elements has no pairs");
                return Err(shape_error(self.name(), operands, reason));
            }
            _ => {
                return Err(shape_error(
                    self.name(),
                    operands,
                    "it needs dims of time, heads, width",
                ));
            }
        }
        let (&width, outer) = operands[0].shape.split_last().expect("there are three dims");
        if let Some(pairs) = self.zigzag
            && !has_pairs(outer[outer.len() - 2], pairs)
        {
            let reason = format!("its times are not {pairs} pairs of equal chunks");
            return Err(shape_error(self.name(), operands, reason));
        }
        let mut rule = Rule { linear: vec![vec![0]], ..Rule::default() };
        let mut dims = rule.add_parallel_dims(outer);
        let pairs = rule.add_factor(width / 2, FactorKind::Parallel);
        let both = rule.add_factor(2, FactorKind::Whole);
        dims.push(DimRule::Factors(match self.interleaved {
            true => vec![pairs, both],
            false => vec![both, pairs],
        }));
        (rule.operands, rule.results) = (vec![dims.clone()], vec![dims]);
        Ok(rule)
    }

    fn flops_per_point(&self) -> f64 {
        3.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let element = |index: &[usize]| {
            let (&element, outer) = index.split_last().expect("there are three dims");
            let width = results[0].global[index.len() - 1];
            let (pair, places) = self.locate_pair(element, width);
            let time = index.len() - 3;
            let position = self.position(index[time], results[0].global[time]);
            let (sin, cos) = self.angle(position, pair, width).sin_cos();
            let [x, y] =
                places.map(|place| read_element(&operands[0], &[outer, &[place]].concat()));
            if element == places[0] { x * cos - y * sin } else { x * sin + y * cos }
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    fn turned(interleaved: bool) -> Vec<f64> {
        let op =
            Op::Rotary(Rotary { base: Scalar(100.0), interleaved, inverse: false, zigzag: None });
        let x = Array::new([2, 1, 4], vec![1.0, 2.0, 3.0, 4.0, 1.0, 0.0, 0.0, 1.0]);
        evaluate(op, &[(DType::F32, x)]).expect("fits")[0].data.clone()
    }

    #[test]
    fn the_first_position_stays_and_the_second_turns_by_the_frequencies() {
        let (one, tenth) = (1f64.sin_cos(), 0.1f64.sin_cos());
        let neighbours = [1.0, 2.0, 3.0, 4.0, one.1, one.0, -tenth.0, tenth.1];
        assert_eq!(turned(true), neighbours);
        let halves = [1.0, 2.0, 3.0, 4.0, one.1, -tenth.0, one.0, tenth.1];
        assert_eq!(turned(false), halves);
    }

    #[test]
    fn an_odd_width_has_no_pairs() {
        let op = Op::Rotary(Rotary {
            base: Scalar(1e4),
            interleaved: false,
            inverse: false,
            zigzag: None,
        });
        let error = op.infer_types(&[&TensorType::new(DType::F32, [4, 2, 3])]).expect_err("odd");
        assert!(error.to_string().ends_with("a head of 3 elements has no pairs"), "{error}");
    }
}
