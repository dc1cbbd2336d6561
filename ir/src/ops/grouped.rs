//! Products of experts with the tokens that chose them, in blocks of places (`grouped_mm` of PyTorch; MegaBlocks: Gale et al.,
//! arXiv 2211.15841, section 4).
//!
//! The places of a block are in runs, one for each of its experts, and free ones are at the end ([`ExpertPlaces`]). A run is as long as
//! tokens chose the expert, so the product of a run with the matrix of its expert computes nothing for places that nobody has.
//!
//! *Splits.* Blocks split places and matrices alike: expert parallelism. Each rank has all experts of its blocks, and the choices whole.
//!
//! *8 bits.* Places and matrices of f8e4m3 and f8e5m2 give bf16. They may bring the sizes by which they were rounded ([`BinaryFunction::RoundFloat8`]), as two
//! more operands of f32, f16 or bf16: of the shapes of both factors, with an extent of 1 where elements have one size, which those that are added up must have.
//! Then the product is divided by both scales.
//!
//! *FLOPs.* Of all places as many are taken as there are choices, if that is not more than there are places. Blocks are counted as if
//! all got as many; a rank whose experts are chosen more often has more to do.
//!
//! [`BinaryFunction::RoundFloat8`]: super::BinaryFunction::RoundFloat8

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::experts::{
    ExpertPlaces, SUM, check_agreement, choices_of_group, expect_extents, find_run_ends,
    places_of_expert, shard_offset, shard_range,
};
use super::shards::{check_index_dtype, check_indices, one_float, read_element};
use crate::array::Array;
use crate::float8::{E4M3, Float8Format};
use crate::mesh::unravel_position;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, dtype_error, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::types::{DType, TensorType};

/// (x [blocks, g, capacity, i], w [experts, i, j], chosen [g, t, k] of i64 \[, sizes of x, sizes of w\]) -> [blocks, g, capacity, j]: each place times
/// the matrix of the expert whose run it is in; 0 at free places. Factors of 8 bits may bring the sizes by which they were rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GroupedMatMul {
    /// Whether the matrices are given as `[experts, j, i]`.
    pub transpose_b: bool,
}

/// (x [blocks, g, capacity, i], y [blocks, g, capacity, j], chosen [g, t, k] of i64 \[, sizes of x, sizes of y\]) -> [experts, i, j]: for each expert
/// the sum over the places of its runs of the outer products of x and y. The gradient of the matrices of [`GroupedMatMul`], for y the gradient of its
/// result. Factors of 8 bits may bring the sizes by which they were rounded.
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

/// Checks the types of the operands, two of numbers, the choices and maybe sizes, and returns that of the result.
fn infer_float(op: &'static str, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
    if operands.len() != 5 {
        check_arity(op, operands, 3, "3, or 5 of which 2 are of f8e4m3 or f8e5m2")?;
    }
    check_index_dtype(op, operands, 2)?;
    if operands[..2].iter().all(|ty| ty.dtype.is_float8()) {
        let mut sizes = operands.iter().skip(FIRST_SIZES);
        return match sizes.all(|ty| ty.dtype.is_float()) {
            true => Ok(vec![DType::BF16]),
            false => Err(dtype_error(op, operands, "sizes must be of f32, f16 or bf16")),
        };
    }
    if operands.len() > FIRST_SIZES {
        return Err(dtype_error(op, operands, "only operands of 8 bits bring sizes"));
    }
    Ok(vec![one_float(op, operands, &[0, 1])?])
}

/// The place of the first sizes among the operands.
const FIRST_SIZES: usize = 3;

/// Returns the dims of the sizes by which both factors were rounded, if the operands have such: those of the factors, but where all elements have one size.
fn dims_of_sizes(
    op: &'static str,
    operands: &[&TensorType],
    rule: &Rule,
    factors: [&[DimRule]; 2],
) -> Result<Vec<Vec<DimRule>>, OpError> {
    let mut all = Vec::new();
    for ((factor, sizes), dims) in operands.iter().zip(&operands[FIRST_SIZES..]).zip(factors) {
        let is_summed = |dim: &DimRule| {
            let DimRule::Factors(of_dim) = dim else { return false };
            of_dim.iter().any(|&factor| rule.factors[factor].kind == SUM)
        };
        let fits = |((&extent, &whole), dim): ((&usize, &usize), &DimRule)| {
            extent == 1 || extent == whole && !is_summed(dim)
        };
        let pairs = || sizes.shape.iter().zip(&factor.shape);
        if sizes.shape.len() != factor.shape.len() || !pairs().zip(dims).all(fits) {
            let reason = "sizes need the shapes of both factors, with an extent of 1 where elements are added up";
            return Err(shape_error(op, operands, reason));
        }
        let dim = |((&extent, &whole), dim): ((&usize, &usize), &DimRule)| match extent == whole {
            true if !is_summed(dim) => dim.clone(),
            _ => DimRule::Factors(Vec::new()),
        };
        all.push(pairs().zip(dims).map(dim).collect());
    }
    Ok(all)
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
        let sizes = dims_of_sizes(self.name(), operands, &rule, [&x, &dims])?;
        (rule.operands, rule.results) = (vec![x, dims, chosen], vec![y]);
        rule.operands.extend(sizes);
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
        let scales = GivenScales { operands };
        let [inner, columns] = [shard_range(x.region, 3), shard_range(&results[0], 3)];
        let shard = [0, 1, 2].map(|dim| shard_range(&results[0], dim));
        each_taken_place(chosen, shard, places, |expert, [block, group, place]| {
            for column in columns.clone() {
                let index = |row| match self.transpose_b {
                    true => [expert, column, row],
                    false => [expert, row, column],
                };
                let weight = |row| read_element(matrices, &index(row));
                let products = inner
                    .clone()
                    .map(|row| read_element(x, &[block, group, place, row]) * weight(row));
                let to = shard_offset(&results[0], &y, &[block, group, place, column]);
                let scale = scales.of(0, &[block, group, place, 0]) * scales.of(1, &index(0));
                y.data[to.expect("of the result")] = products.sum::<f64>() / scale;
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
        let sizes = dims_of_sizes(self.name(), operands, &rule, [&x, &y])?;
        (rule.operands, rule.results) = (vec![x, y, chosen], vec![matrices]);
        rule.operands.extend(sizes);
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
        let scales = GivenScales { operands };
        each_taken_place(chosen, shard, places, |expert, [block, group, place]| {
            for position in 0..rows.len() * columns.len() {
                let at = unravel_position(position, &extents);
                let (row, column) = (rows.start + at[0], columns.start + at[1]);
                let scale =
                    scales.of(0, &[block, 0, 0, row]) * scales.of(1, &[block, 0, 0, column]);
                let product = read_element(x, &[block, group, place, row])
                    * read_element(y, &[block, group, place, column])
                    / scale;
                if let Some(to) = shard_offset(&results[0], &matrices, &[expert, row, column]) {
                    matrices.data[to] += product;
                }
            }
        });
        Ok(vec![matrices])
    }
}

/// The scales of both factors, which follow from their sizes.
struct GivenScales<'a, 'b> {
    operands: &'a [Operand<'b>],
}

impl GivenScales<'_, '_> {
    /// Returns the scale of an element of a factor; 1 without sizes.
    fn of(&self, factor: usize, index: &[usize]) -> f64 {
        let Some(sizes) = self.operands.get(FIRST_SIZES + factor) else { return 1.0 };
        let format: Float8Format =
            self.operands[factor].region.dtype.float8_format().unwrap_or(E4M3);
        let extents = sizes.region.global.iter();
        let index: Vec<usize> =
            index.iter().zip(extents).map(|(&at, &n)| if n == 1 { 0 } else { at }).collect();
        f64::from(format.scale_for(read_element(sizes, &index) as f32))
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
    fn products_of_8_bits_are_divided_by_the_scales_of_places_and_matrices() {
        let eight = |shape: &[usize], values: &[f64]| {
            (DType::F8E4M3, Array::new(shape.to_vec(), values.to_vec()))
        };
        let chosen = (DType::I64, Array::new([1, 2, 1], vec![1., 0.]));
        let x = eight(&[1, 1, 2, 1], &[256., 384.]);
        let w = eight(&[2, 1, 1], &[2., 4.]);
        // Sizes of 448 have a scale of 1, those of 224 of 2.
        let of_x = numbers(&[1, 1, 2, 1], &[224., 448.]);
        let of_w = numbers(&[2, 1, 1], &[448., 224.]);
        let op = Op::GroupedMatMul(GroupedMatMul::default());
        let operands = [x.clone(), w, chosen.clone(), of_x, of_w];
        let y = evaluate(op, &operands).expect("fits");
        assert_eq!(y[0].data, [256., 768.]);
        let one = || numbers(&[1, 1, 1, 1], &[224.]);
        let op = Op::GroupedMatMulGrad(GroupedMatMulGrad { experts: 2 });
        let dy = eight(&[1, 1, 2, 1], &[1., 2.]);
        let dw = evaluate(op, &[x, dy, chosen, one(), one()]).expect("fits");
        assert_eq!(dw[0].data, [64., 192.]);
    }

    #[test]
    fn sizes_of_elements_that_are_added_up_are_refused() {
        let ty = |dtype, shape: &[usize]| TensorType::new(dtype, shape.to_vec());
        let eight = |shape: &[usize]| ty(DType::F8E4M3, shape);
        let chosen = ty(DType::I64, &[1, 2, 1]);
        let (x, w) = (eight(&[1, 1, 2, 3]), eight(&[2, 3, 5]));
        let op = GroupedMatMul::default();
        let rule = |of_x: &[usize], of_w: &[usize]| {
            let sizes = [of_x, of_w].map(|shape| ty(DType::F32, shape));
            op.rule(&[&x, &w, &chosen, &sizes[0], &sizes[1]]).map(drop)
        };
        assert_eq!(rule(&[1, 1, 2, 1], &[2, 1, 5]), Ok(()));
        assert_eq!(rule(&[1, 1, 1, 1], &[1, 1, 1]), Ok(()));
        for [of_x, of_w] in [
            [&[1, 1, 2, 3][..], &[2, 1, 5][..]],
            [&[1, 1, 2, 1], &[2, 3, 1]],
            [&[1, 2, 1], &[2, 1, 1]],
        ] {
            assert!(rule(of_x, of_w).is_err(), "{of_x:?} and {of_w:?}");
        }
        let wide = ty(DType::BF16, &[1, 1, 2, 3]);
        let matrices = ty(DType::BF16, &[2, 3, 5]);
        let one = ty(DType::F32, &[1, 1, 1, 1]);
        assert!(op.infer_dtypes(&[&wide, &matrices, &chosen, &one, &one]).is_err());
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
