//! Reshape: the same elements under other dims.

use serde::{Deserialize, Serialize};

use super::shards::{fill_shard, read_element};
use crate::array::Array;
use crate::mesh::unravel_position;
use crate::operation::{
    EvalContext, InPlace, Movement, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::types::{DType, TensorType, row_major_position};

/// The operand's elements, row-major, in another shape. Dims are factored by common refinement, so that a split passes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reshape {
    /// The shape of the result.
    pub shape: Vec<usize>,
}

impl Operation for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![operands[0].dtype])
    }

    fn in_place(&self) -> Vec<InPlace> {
        InPlace::same_bytes()
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let size = |size: usize, &extent: &usize| size.checked_mul(extent);
        let elements = self.shape.iter().try_fold(1, size);
        if elements != Some(operands[0].elements()) {
            let elements = elements.map_or("too many".into(), |elements| elements.to_string());
            let reason = format!("{:?} has {elements} elements", self.shape);
            return Err(shape_error(self.name(), operands, reason));
        }
        Ok(refine_shapes(&operands[0].shape, &self.shape))
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
        let (from, to) = (&operands[0].region.global, &results[0].global);
        let element = |index: &[usize]| {
            read_element(
                &operands[0],
                &unravel_position(row_major_position(index.iter().copied(), to), from),
            )
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

/// Cuts the dims of two shapes with the same number of elements into common factors, leading factor first.
///
/// Both shapes are read from the left, and the greatest common divisor of what remains of the two current dims
/// becomes a factor of both: a split passes a reshape only where it cuts both tensors into the same blocks,
/// and that takes a leading factor common to both dims. Where the remainders are coprime no block boundary is
/// shared until the products of the dims meet again; everything up to there stays whole.
fn refine_shapes(from: &[usize], to: &[usize]) -> Rule {
    let mut rule = Rule { linear: vec![vec![0]], moves_data: true, ..Rule::default() };
    if from == to {
        let dims = rule.add_parallel_dims(from);
        (rule.operands, rule.results) = (vec![dims.clone()], vec![dims]);
        return rule;
    }
    if from.contains(&0) {
        let whole = |shape: &[usize]| shape.iter().map(|&extent| DimRule::Whole(extent)).collect();
        (rule.operands, rule.results) = (vec![whole(from)], vec![whole(to)]);
        return rule;
    }
    let (mut a, mut b) = (ShapeReader::new(from), ShapeReader::new(to));
    loop {
        match (a.remaining_extent(), b.remaining_extent()) {
            // Two dims of extent 1 at the same place are one dim: the first rank holds it.
            (Some(1), Some(1)) => share_factor(&mut rule, &mut a, &mut b, 1),
            (Some(1), _) => a.advance_dim(),
            (_, Some(1)) => b.advance_dim(),
            (Some(left), Some(right)) => match gcd(left, right) {
                1 => keep_whole(&mut rule, &mut a, &mut b),
                size => share_factor(&mut rule, &mut a, &mut b, size),
            },
            // Both are at their ends: the products are equal.
            _ => break,
        }
    }
    (rule.operands, rule.results) = (vec![a.dim_rules()], vec![b.dim_rules()]);
    rule
}

/// Adds a parallel factor to both current dims.
fn share_factor(rule: &mut Rule, a: &mut ShapeReader<'_>, b: &mut ShapeReader<'_>, size: usize) {
    let factor = rule.add_factor(size, FactorKind::Parallel);
    a.take_factor(factor, size);
    b.take_factor(factor, size);
}

/// Adds whole factors to both sides up to where the products of their dims meet.
fn keep_whole(rule: &mut Rule, a: &mut ShapeReader<'_>, b: &mut ShapeReader<'_>) {
    let (mut left, mut right) = (a.take_whole(rule), b.take_whole(rule));
    while left != right {
        if left < right {
            left *= a.take_whole(rule);
        } else {
            right *= b.take_whole(rule);
        }
    }
}

/// A shape while it is read from the left.
struct ShapeReader<'a> {
    shape: &'a [usize],
    /// The factors of each dim read so far; the last is being read, `rest` remains of it.
    dims: Vec<Vec<usize>>,
    rest: usize,
}

impl<'a> ShapeReader<'a> {
    fn new(shape: &'a [usize]) -> Self {
        let mut side = Self { shape, dims: Vec::new(), rest: 1 };
        side.advance_dim();
        side
    }

    /// Returns the part of the current dim that remains; `None` at the end.
    fn remaining_extent(&self) -> Option<usize> {
        (self.dims.len() <= self.shape.len()).then_some(self.rest)
    }

    fn advance_dim(&mut self) {
        self.rest = self.shape.get(self.dims.len()).copied().unwrap_or(1);
        self.dims.push(Vec::new());
    }

    fn take_factor(&mut self, factor: usize, size: usize) {
        self.dims.last_mut().expect("a dim is being read").push(factor);
        self.rest /= size;
        if self.rest == 1 {
            self.advance_dim();
        }
    }

    /// Takes all that remains of the current dim as a whole factor, and returns it.
    fn take_whole(&mut self, rule: &mut Rule) -> usize {
        let size = self.rest;
        let factor = rule.add_factor(size, FactorKind::Whole);
        self.take_factor(factor, size);
        size
    }

    fn dim_rules(self) -> Vec<DimRule> {
        self.dims.into_iter().take(self.shape.len()).map(DimRule::Factors).collect()
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dims as text: factors by extent, whole ones in brackets.
    fn check(from: &[usize], to: &[usize], expected: &str) {
        let rule = refine_shapes(from, to);
        let dim = |dim: &DimRule| match dim {
            DimRule::Whole(extent) => format!("[{extent}]"),
            DimRule::Factors(factors) => {
                let factor = |&f: &usize| match rule.factors[f].kind {
                    FactorKind::Whole => format!("[{}]", rule.factors[f].size),
                    _ => format!("{}{}", rule.factors[f].size, (b'a' + f as u8) as char),
                };
                factors.iter().map(factor).collect::<Vec<_>>().join("*")
            }
        };
        let text = |dims: &[DimRule]| dims.iter().map(dim).collect::<Vec<_>>().join(" ");
        let found = format!("{} -> {}", text(&rule.operands[0]), text(&rule.results[0]));
        assert_eq!(found, expected, "{from:?} -> {to:?}");
        assert_eq!(rule.result_shapes(), [to.to_vec()]);
    }

    #[test]
    fn shapes_refine_into_common_factors() {
        check(&[4, 6], &[8, 3], "4a 2b*3c -> 4a*2b 3c");
        check(&[4, 6], &[24], "4a 6b -> 4a*6b");
        check(&[24], &[4, 6], "4a*6b -> 4a 6b");
        check(&[4, 6], &[4, 6], "4a 6b -> 4a 6b");
        check(&[8, 16, 64], &[8, 16, 4, 16], "8a 16b 4c*16d -> 8a 16b 4c 16d");
        check(&[8, 16, 4, 16], &[128, 64], "8a 16b 4c 16d -> 8a*16b 4c*16d");
        check(&[12], &[2, 3, 2], "2a*3b*2c -> 2a 3b 2c");
        check(&[4, 9], &[6, 6], "2a*[2] [9] -> 2a*[3] [6]");
    }

    #[test]
    fn coprime_rests_stay_whole_until_the_products_meet() {
        check(&[6, 4, 5], &[4, 6, 5], "2a*[3] [4] 5f -> 2a*[2] [6] 5f");
    }

    #[test]
    fn extents_of_one_and_zero() {
        check(&[1, 4], &[4], " 4a -> 4a");
        check(&[4], &[4, 1], "4a -> 4a ");
        check(&[1, 4], &[1, 2, 2], "1a 2b*2c -> 1a 2b 2c");
        check(&[4, 1], &[1, 4], "4a  ->  4a");
        check(&[2, 1, 3], &[2, 3, 1], "2a  3b -> 2a 3b ");
        check(&[], &[1, 1], " ->  ");
        check(&[1], &[], " -> ");
        check(&[8, 0, 4], &[0, 7], "[8] [0] [4] -> [0] [7]");
        check(&[8, 0, 4], &[8, 0, 4], "8a 0b 4c -> 8a 0b 4c");
    }
}
