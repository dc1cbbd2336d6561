//! Products of experts with the tokens that chose them, in blocks of places (`grouped_mm` of PyTorch; MegaBlocks: Gale et al.,
//! arXiv 2211.15841, section 4).
//!
//! The places of a block are in runs, one for each of its experts, and free ones are at the end ([`ExpertPlaces`]). A run is as long as
//! tokens chose the expert, so the product of a run with the matrix of its expert computes nothing for places that nobody has.
//!
//! *Splits.* Blocks split places and matrices alike: expert parallelism. Each rank has all experts of its blocks, and the choices whole.
//!
//! *FLOPs.* Of all places as many are taken as there are choices, if that is not more than there are places. Blocks are counted as if
//! all got as many; a rank whose experts are chosen more often has more to do.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::experts::{
    ExpertPlaces, SUM, check_agreement, choices_of_group, expect_extents, find_run_ends,
    places_of_expert, shard_offset, shard_range,
};
use super::shards::{check_index_dtype, check_indices, one_float, read_element};
use crate::array::Array;
use crate::mesh::unravel_position;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::types::{DType, TensorType};

/// (x [blocks, g, capacity, i], w [experts, i, j], chosen [g, t, k] of i64) -> [blocks, g, capacity, j]: each place times the matrix of the
/// expert whose run it is in; 0 at free places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GroupedMatMul {
    /// Whether the matrices are given as `[experts, j, i]`.
    pub transpose_b: bool,
}

/// (x [blocks, g, capacity, i], y [blocks, g, capacity, j], chosen [g, t, k] of i64) -> [experts, i, j]: for each expert the sum over the places
/// of its runs of the outer products of x and y. The gradient of the matrices of [`GroupedMatMul`], for y the gradient of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GroupedMatMulGrad {
    /// The number of experts.
    pub experts: usize,
}

/// The factors of both ops.
const BLOCKS: usize = 0;
const GROUPS: usize = 2;
const PLACES: usize = 3;
const ROWS: usize = 4;
const COLUMNS: usize = 5;
const CHOICES: usize = 6;

/// A rule with all factors, and the dims that are made of them.
struct GroupedRule {
    rule: Rule,
    x: Vec<DimRule>,
    y: Vec<DimRule>,
    matrices: Vec<DimRule>,
    chosen: Vec<DimRule>,
}

/// Builds the rule of the places of operand 0, `[blocks, g, capacity, i]`, the choices of operand 2, and `columns` of each place's result.
fn build_rule(
    op: &'static str,
    operands: &[&TensorType],
    experts: usize,
    columns: usize,
) -> Result<GroupedRule, OpError> {
    let [blocks, groups, capacity, rows] =
        expect_extents(op, operands, 0, "[blocks, g, capacity, i]")?;
    let [of_chosen, tokens, choices] = expect_extents(op, operands, 2, "[g, t, k]")?;
    check_agreement(op, operands, groups == of_chosen)?;
    let places = ExpertPlaces { experts, blocks, capacity };
    places.check(op, operands)?;
    let mut rule = Rule::default();
    let sizes = [blocks, places.experts_of_block(), groups, capacity, rows, columns];
    let [b, e, g, c, i, j] = sizes.map(|size| rule.add_factor(size, FactorKind::Parallel));
    rule.factors[e].kind = FactorKind::Whole;
    // No dim has it: the choices of a group for each block, by which `flops` knows how many places are taken.
    rule.add_factor((tokens * choices).div_ceil(blocks), FactorKind::Whole);
    let dims = |dims: &[&[usize]]| dims.iter().map(|f| DimRule::Factors(f.to_vec())).collect();
    let (x, y) = (dims(&[&[b], &[g], &[c], &[i]]), dims(&[&[b], &[g], &[c], &[j]]));
    let matrices = dims(&[&[b, e], &[i], &[j]]);
    let g = DimRule::Factors(vec![g]);
    let chosen = vec![g, DimRule::Whole(tokens), DimRule::Whole(choices)];
    Ok(GroupedRule { rule, x, y, matrices, chosen })
}

/// Checks the types of the operands, two of numbers and the choices, and returns that of the result.
fn infer_float(op: &'static str, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
    check_arity(op, operands, 3, "3")?;
    check_index_dtype(op, operands, 2)?;
    Ok(vec![one_float(op, operands, &[0, 1])?])
}

/// Returns the FLOPs for the places that are taken.
fn count_flops(rule: &Rule) -> f64 {
    let size = |factor: usize| rule.factors[factor].size as f64;
    let [capacity, choices] = [size(PLACES), size(CHOICES)];
    let taken = if capacity > choices { choices / capacity } else { 1.0 };
    let points: f64 = [BLOCKS, GROUPS, PLACES, ROWS, COLUMNS].map(size).iter().product();
    2.0 * points * taken
}

/// Returns the FLOPs of a part: of its places the same share is taken as of all.
fn most_flops(whole: &Rule, part: &Rule) -> f64 {
    let mut all = part.clone();
    all.factors[PLACES].size = whole.factors[PLACES].size;
    let share = part.factors[PLACES].size as f64 / (whole.factors[PLACES].size as f64).max(1.0);
    count_flops(&all) * share
}

impl GroupedMatMul {
    /// Returns [rows, columns] of the matrices `[experts, i, j]`, which may be transposed.
    fn matrix_extents(&self, [_, first, second]: [usize; 3]) -> [usize; 2] {
        if self.transpose_b { [second, first] } else { [first, second] }
    }
}

impl Operation for GroupedMatMul {
    fn name(&self) -> &'static str {
        "grouped_matmul"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        infer_float(self.name(), operands)
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let matrices = expect_extents(self.name(), operands, 1, "[experts, i, j]")?;
        let [rows, columns] = self.matrix_extents(matrices);
        let GroupedRule { mut rule, x, y, matrices: mut dims, chosen } =
            build_rule(self.name(), operands, matrices[0], columns)?;
        if operands[0].shape[3] != rows {
            let reason =
                format!("places of {} elements, and matrices of {rows} rows", operands[0].shape[3]);
            return Err(shape_error(self.name(), operands, reason));
        }
        rule.factors[ROWS].kind = SUM;
        if self.transpose_b {
            dims.swap(1, 2);
        }
        rule.linear = vec![vec![0], vec![1]];
        (rule.operands, rule.results) = (vec![x, dims, chosen], vec![y]);
        Ok(rule)
    }

    fn flops(&self, rule: &Rule) -> f64 {
        count_flops(rule)
    }

    fn most_flops(&self, whole: &Rule, part: &Rule) -> f64 {
        most_flops(whole, part)
    }

    fn multiplies_matrices(&self) -> bool {
        true
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [x, matrices, chosen] = [&operands[0], &operands[1], &operands[2]];
        let experts = matrices.region.global[0];
        let places = places_of(x, experts);
        check_indices(self.name(), "expert", chosen, experts, None)?;
        let mut y = Array::full(results[0].rect.extent.clone(), 0.0);
        let [inner, columns] = [shard_range(x.region, 3), shard_range(&results[0], 3)];
        let shard = [0, 1, 2].map(|dim| shard_range(&results[0], dim));
        each_taken_place(chosen, shard, places, |expert, [block, group, place]| {
            for column in columns.clone() {
                let weight = |row| {
                    let index = if self.transpose_b {
                        [expert, column, row]
                    } else {
                        [expert, row, column]
                    };
                    read_element(matrices, &index)
                };
                let products = inner
                    .clone()
                    .map(|row| read_element(x, &[block, group, place, row]) * weight(row));
                let to = shard_offset(&results[0], &y, &[block, group, place, column]);
                y.data[to.expect("of the result")] = products.sum();
            }
        });
        Ok(vec![y])
    }
}

impl Operation for GroupedMatMulGrad {
    fn name(&self) -> &'static str {
        "grouped_matmul_grad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        infer_float(self.name(), operands)
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let of_y @ [_, _, _, columns] =
            expect_extents(self.name(), operands, 1, "[blocks, g, capacity, j]")?;
        let same = operands[0].shape.len() == 4 && operands[0].shape[..3] == of_y[..3];
        if !same {
            return Err(shape_error(self.name(), operands, "the places differ"));
        }
        let GroupedRule { mut rule, x, y, matrices, chosen } =
            build_rule(self.name(), operands, self.experts, columns)?;
        [GROUPS, PLACES].iter().for_each(|&factor| rule.factors[factor].kind = SUM);
        rule.linear = vec![vec![0], vec![1]];
        (rule.operands, rule.results) = (vec![x, y, chosen], vec![matrices]);
        Ok(rule)
    }

    fn flops(&self, rule: &Rule) -> f64 {
        count_flops(rule)
    }

    fn most_flops(&self, whole: &Rule, part: &Rule) -> f64 {
        most_flops(whole, part)
    }

    fn multiplies_matrices(&self) -> bool {
        true
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [x, y, chosen] = [&operands[0], &operands[1], &operands[2]];
        check_indices(self.name(), "expert", chosen, self.experts, None)?;
        let mut matrices = Array::full(results[0].rect.extent.clone(), 0.0);
        let [rows, columns] = [1, 2].map(|dim| shard_range(&results[0], dim));
        let extents = [rows.len(), columns.len()];
        let places = places_of(x, self.experts);
        let experts = shard_range(&results[0], 0);
        let each = places.experts_of_block();
        let blocks = experts.start / each..experts.end / each;
        let shard = [blocks, shard_range(x.region, 1), shard_range(x.region, 2)];
        each_taken_place(chosen, shard, places, |expert, [block, group, place]| {
            for position in 0..rows.len() * columns.len() {
                let at = unravel_position(position, &extents);
                let (row, column) = (rows.start + at[0], columns.start + at[1]);
                let product = read_element(x, &[block, group, place, row])
                    * read_element(y, &[block, group, place, column]);
                if let Some(to) = shard_offset(&results[0], &matrices, &[expert, row, column]) {
                    matrices.data[to] += product;
                }
            }
        });
        Ok(vec![matrices])
    }
}

/// Returns the places of the operand that has them.
fn places_of(x: &Operand<'_>, experts: usize) -> ExpertPlaces {
    let global = &x.region.global;
    ExpertPlaces { experts, blocks: global[0], capacity: global[2] }
}

/// Calls `body` with the expert and `[block, group, place]` of each place of such ranges that a token has.
fn each_taken_place(
    chosen: &Operand<'_>,
    [blocks, groups, held]: [Range<usize>; 3],
    places: ExpertPlaces,
    mut body: impl FnMut(usize, [usize; 3]),
) {
    let mut ends = vec![0; places.experts];
    let each = places.experts_of_block();
    for group in groups {
        find_run_ends(&choices_of_group(chosen, group), places, &mut ends);
        for block in blocks.clone() {
            for expert in block * each..(block + 1) * each {
                for place in places_of_expert(places, &ends, expert) {
                    if held.contains(&place) {
                        body(expert, [block, group, place]);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    fn numbers(shape: &[usize], values: &[f64]) -> (DType, Array) {
        (DType::F32, Array::new(shape.to_vec(), values.to_vec()))
    }

    #[test]
    fn each_run_of_places_meets_the_matrix_of_its_expert() {
        let chosen = (DType::I64, Array::new([1, 3, 1], vec![1., 0., 1.]));
        // Places: the token of expert 0, the two of expert 1, a free one.
        let x = numbers(&[1, 1, 4, 1], &[2., 3., 4., 9.]);
        let w = numbers(&[2, 1, 2], &[10., 20., 1., 2.]);
        let op = Op::GroupedMatMul(GroupedMatMul::default());
        let y = evaluate(op, &[x.clone(), w, chosen.clone()]).expect("fits");
        assert_eq!(y[0].data, [20., 40., 3., 6., 4., 8., 0., 0.]);
        let op = Op::GroupedMatMulGrad(GroupedMatMulGrad { experts: 2 });
        let dy = numbers(&[1, 1, 4, 2], &[1., 0., 0., 1., 1., 1., 5., 5.]);
        let dw = evaluate(op, &[x, dy, chosen]).expect("fits");
        assert_eq!(dw, [Array::new([2, 1, 2], vec![2., 0., 4., 7.])]);
    }

    #[test]
    fn places_that_nobody_has_count_no_flops() {
        let ty = |shape: &[usize]| TensorType::new(DType::F32, shape.to_vec());
        let chosen = TensorType::new(DType::I64, vec![3, 16, 2]);
        let op = GroupedMatMul::default();
        let flops = |capacity: usize, blocks: usize| {
            let operands = [&ty(&[blocks, 3, capacity, 5]), &ty(&[8, 5, 7]), &chosen];
            op.flops(&op.rule(&operands).expect("fits"))
        };
        let of_choices = 2.0 * (3 * 16 * 2 * 5 * 7) as f64;
        assert_eq!(flops(32, 1), of_choices);
        assert_eq!(flops(32, 4), of_choices);
        assert_eq!(flops(8, 4), of_choices);
        assert_eq!(flops(4, 4), of_choices / 2.0);
    }
}
