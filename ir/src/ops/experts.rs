//! Tokens to experts and back, with a static capacity (GShard: Lepikhin et al., arXiv 2006.16668, section 3.2; Switch: Fedus et
//! al., arXiv 2101.03961, section 2.2).
//!
//! Tokens come in groups, and each expert has `capacity` places for each group. Of the tokens that choose an expert the first
//! ones in order have its places: all first choices before all second ones, and each choice in the order of the tokens. The rest
//! are dropped. So the choices of a group alone decide which token has which place. Every rank has these choices, `[g, t, k]`,
//! whole. Tokens, experts, places and elements may be split, and ranks agree.
//!
//! The places are `[experts, g, capacity, width]`. On one side of an all-to-all groups split them, on the other experts do. That
//! all-to-all is boxing like any other. Capacity is counted within a group, so microbatches do not see each other.
//!
//! *Blocks.* Several experts may share a block of places, `[blocks, g, capacity, width]`: the tokens of a block's first expert come
//! first, those of the next one follow, and the free places are at the end ([`ExpertPlaces`]). [`GroupedMatMul`] multiplies each run of
//! places by the matrix of its expert. So a block needs a capacity for all of its experts together, and no token is dropped if that is
//! [`ExpertPlaces::most_choices`], however unevenly they choose (MegaBlocks: Gale et al., arXiv 2211.15841). A rank with
//! all experts needs one block, with as many places as there are choices; expert parallelism over n ranks needs n blocks.
//!
//! [`GroupedMatMul`]: super::GroupedMatMul

use std::num::NonZeroU32;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::shards::{check_index_dtype, check_indices, one_float, read_element};
use crate::array::Array;
use crate::mesh::unravel_position;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::sbp::ReduceKind;
use crate::types::{DType, TensorType};

/// (x [g, t, d], chosen [g, t, k] of i64 \[, weights [g, t, k]\]) -> [blocks, g, capacity, d]: each token, times its
/// weight, at the places that it has; 0 where no token is. Without `blocks` each expert has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dispatch {
    /// The number of experts.
    pub experts: usize,
    /// The number of places of a block for each group.
    pub capacity: usize,
    /// The number of blocks, which divides that of experts, if several experts share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<NonZeroU32>,
}

/// (y [blocks, g, capacity, d], chosen [g, t, k] of i64 \[, weights [g, t, k]\]) -> [g, t, d]: the sum over the places
/// of each token, times their weights; 0 for a token that is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Combine {
    /// The number of experts, if several share a block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<NonZeroU32>,
}

/// (y [blocks, g, capacity, d], chosen [g, t, k] of i64, x [g, t, d]) -> [g, t, k]: the products of each token with its
/// places. The gradient of the weights of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CombineWeightsGrad {
    /// The number of experts, as in [`Combine`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<NonZeroU32>,
}

/// The places of all experts for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertPlaces {
    /// The number of experts.
    pub experts: usize,
    /// The number of blocks, which divides that of experts; each has as many experts.
    pub blocks: usize,
    /// The number of places of a block.
    pub capacity: usize,
}

impl ExpertPlaces {
    /// Returns the places of `[blocks, g, capacity, ..]`, where `experts` is their number if several share a block.
    pub fn of_shape(places: &[usize], experts: Option<NonZeroU32>) -> Self {
        let (blocks, capacity) = (places.first(), places.get(2));
        let blocks = blocks.copied().unwrap_or(0);
        let experts = experts.map_or(blocks, |experts| experts.get() as usize);
        Self { experts, blocks, capacity: capacity.copied().unwrap_or(0) }
    }

    /// Returns the number of experts of a block.
    pub fn experts_of_block(&self) -> usize {
        self.experts / self.blocks.max(1)
    }

    /// Returns the most choices that experts of one block can get of a group: none is dropped where a block has as many places. A token
    /// chooses no expert twice.
    pub fn most_choices(experts: usize, blocks: usize, [tokens, choices]: [usize; 2]) -> usize {
        tokens * choices.min(experts / blocks.max(1))
    }

    pub(super) fn check(&self, op: &'static str, operands: &[&TensorType]) -> Result<(), OpError> {
        if self.blocks > 0 && self.experts.is_multiple_of(self.blocks) {
            return Ok(());
        }
        let reason = format!("{} blocks do not divide {} experts", self.blocks, self.experts);
        Err(shape_error(op, operands, reason))
    }

    /// The number of experts as [`Combine`] has it.
    fn shared_experts(&self) -> Option<NonZeroU32> {
        (self.blocks < self.experts).then(|| NonZeroU32::new(self.experts as u32)).flatten()
    }
}

impl Dispatch {
    /// Makes an op that sends tokens to these places.
    pub fn to_places(places: ExpertPlaces) -> Self {
        let ExpertPlaces { experts, blocks, capacity } = places;
        let shared = blocks < experts;
        let blocks = shared.then(|| NonZeroU32::new(blocks as u32)).flatten();
        Self { experts, capacity, blocks }
    }

    /// Returns the places that it sends tokens to.
    pub fn places(&self) -> ExpertPlaces {
        let Self { experts, capacity, blocks } = *self;
        let blocks = blocks.map_or(experts, |blocks| blocks.get() as usize);
        ExpertPlaces { experts, blocks, capacity }
    }
}

impl Combine {
    /// Makes an op that brings tokens back from these places.
    pub fn from_places(places: ExpertPlaces) -> Self {
        Self { experts: places.shared_experts() }
    }
}

impl CombineWeightsGrad {
    /// Makes an op that multiplies tokens with these places.
    pub fn of_places(places: ExpertPlaces) -> Self {
        Self { experts: places.shared_experts() }
    }
}

/// A rule with factors for groups, tokens, elements, choices, blocks and places, and the dims that are made of them.
struct ExpertRule {
    rule: Rule,
    tokens: Vec<DimRule>,
    chosen: Vec<DimRule>,
    weights: Vec<DimRule>,
    places: Vec<DimRule>,
}

const TOKENS: usize = 1;
const ELEMENTS: usize = 2;
const CHOICES: usize = 3;
const BLOCKS: usize = 4;
const PLACES: usize = 5;

/// Builds the rule from [g, t, k] of the choices, the number of elements, and the places.
fn build_rule(chosen: [usize; 3], elements: usize, places: ExpertPlaces) -> ExpertRule {
    let [groups, tokens, choices] = chosen;
    let mut rule = Rule::default();
    let sizes = [groups, tokens, elements, choices, places.blocks, places.capacity];
    let [g, t, d, k, b, c] = sizes.map(|size| {
        let factor = rule.add_factor(size, FactorKind::Parallel);
        DimRule::Factors(vec![factor])
    });
    ExpertRule {
        rule,
        tokens: vec![g.clone(), t.clone(), d.clone()],
        chosen: vec![g.clone(), DimRule::Whole(tokens), DimRule::Whole(choices)],
        weights: vec![g.clone(), t, k],
        places: vec![b, g, c, d],
    }
}

impl ExpertRule {
    fn set_kinds(&mut self, factors: &[usize], kind: FactorKind) {
        for &factor in factors {
            self.rule.factors[factor].kind = kind;
        }
    }

    /// Completes the rule of dispatch or combine; without weights a choice is no operand's dim.
    fn finish_rule(mut self, weighted: bool, first: Vec<DimRule>, result: Vec<DimRule>) -> Rule {
        let mut operands = vec![first, self.chosen];
        self.rule.linear = vec![vec![0]];
        if weighted {
            self.rule.factors[CHOICES].kind = SUM;
            operands.push(self.weights);
            self.rule.linear.push(vec![2]);
        } else {
            self.rule.factors[CHOICES].kind = FactorKind::Whole;
        }
        (self.rule.operands, self.rule.results) = (operands, vec![result]);
        self.rule
    }
}

pub(super) const SUM: FactorKind = FactorKind::Reduction(ReduceKind::Sum);

pub(super) fn expect_extents<const N: usize>(
    op: &'static str,
    operands: &[&TensorType],
    index: usize,
    dims: &str,
) -> Result<[usize; N], OpError> {
    let shape = operands[index].shape.as_slice().try_into();
    shape.map_err(|_| shape_error(op, operands, format!("operand {index} must be {dims}")))
}

pub(super) fn check_agreement(
    op: &'static str,
    operands: &[&TensorType],
    holds: bool,
) -> Result<(), OpError> {
    if holds { Ok(()) } else { Err(shape_error(op, operands, "groups, tokens or elements differ")) }
}

/// Checks the operands of an op with choices, and with weights where there are any, and returns the element type.
fn float_of(op: &'static str, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
    if operands.len() != 3 {
        check_arity(op, operands, 2, "2, or 3 with weights")?;
    }
    check_index_dtype(op, operands, 1)?;
    let floats: &[usize] = if operands.len() == 3 { &[0, 2] } else { &[0] };
    Ok(vec![one_float(op, operands, floats)?])
}

impl Operation for Dispatch {
    fn name(&self) -> &'static str {
        "dispatch"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        float_of(self.name(), operands)
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let [groups, tokens, elements] = expect_extents(self.name(), operands, 0, "[g, t, d]")?;
        let chosen @ [g, t, _] = expect_extents(self.name(), operands, 1, "[g, t, k]")?;
        let weights = operands.get(2).is_none_or(|weights| weights.shape == chosen);
        check_agreement(self.name(), operands, [g, t] == [groups, tokens] && weights)?;
        let places = self.places();
        places.check(self.name(), operands)?;
        let mut space = build_rule(chosen, elements, places);
        space.set_kinds(&[TOKENS], SUM);
        let (tokens, places) = (space.tokens.clone(), space.places.clone());
        Ok(space.finish_rule(operands.len() == 3, tokens, places))
    }

    /// Counts one for each element that is moved, whereas the points count every pair of a token and a place.
    fn flops(&self, rule: &Rule) -> f64 {
        count_place_elements(rule, &rule.results[0])
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [x, chosen] = [&operands[0], &operands[1]];
        check_indices(self.name(), "expert", chosen, self.experts, None)?;
        let mut y = Array::full(results[0].rect.extent.clone(), 0.0);
        let tokens = [shard_range(&results[0], 1), shard_range(x.region, 1)];
        each_token(chosen, tokens, self.places(), |token| {
            let Some(weight) = weight_of(operands.get(2), token) else { return };
            for element in shard_range(&results[0], 3) {
                let place = [token.block, token.group, token.place, element];
                if let Some(offset) = shard_offset(&results[0], &y, &place) {
                    y.data[offset] +=
                        weight * read_element(x, &[token.group, token.token, element]);
                }
            }
        });
        Ok(vec![y])
    }
}

impl Operation for Combine {
    fn name(&self) -> &'static str {
        "combine"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        float_of(self.name(), operands)
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let [_, groups, _, elements] =
            expect_extents(self.name(), operands, 0, "[blocks, g, capacity, d]")?;
        let places = ExpertPlaces::of_shape(&operands[0].shape, self.experts);
        places.check(self.name(), operands)?;
        let chosen @ [g, _, _] = expect_extents(self.name(), operands, 1, "[g, t, k]")?;
        let weights = operands.get(2).is_none_or(|weights| weights.shape == chosen);
        check_agreement(self.name(), operands, g == groups && weights)?;
        let mut space = build_rule(chosen, elements, places);
        space.set_kinds(&[BLOCKS, PLACES], FactorKind::Indexed);
        let (tokens, places) = (space.tokens.clone(), space.places.clone());
        Ok(space.finish_rule(operands.len() == 3, places, tokens))
    }

    fn flops(&self, rule: &Rule) -> f64 {
        count_place_elements(rule, &rule.operands[0])
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [y, chosen] = [&operands[0], &operands[1]];
        let places = ExpertPlaces::of_shape(&y.region.global, self.experts);
        check_indices(self.name(), "expert", chosen, places.experts, None)?;
        let mut x = Array::full(results[0].rect.extent.clone(), 0.0);
        let tokens = [shard_range(&results[0], 0), shard_range(&results[0], 1)];
        each_token(chosen, tokens, places, |token| {
            let Some(weight) = weight_of(operands.get(2), token) else { return };
            if !token.is_in(y.region) {
                return;
            }
            for element in shard_range(&results[0], 2) {
                let to = shard_offset(&results[0], &x, &[token.group, token.token, element]);
                let place = [token.block, token.group, token.place, element];
                x.data[to.expect("of the result")] += weight * read_element(y, &place);
            }
        });
        Ok(vec![x])
    }
}

impl Operation for CombineWeightsGrad {
    fn name(&self) -> &'static str {
        "combine_weights_grad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 3, "3")?;
        check_index_dtype(self.name(), operands, 1)?;
        Ok(vec![one_float(self.name(), operands, &[0, 2])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let [_, groups, _, elements] =
            expect_extents(self.name(), operands, 0, "[blocks, g, capacity, d]")?;
        let places = ExpertPlaces::of_shape(&operands[0].shape, self.experts);
        places.check(self.name(), operands)?;
        let chosen @ [g, t, _] = expect_extents(self.name(), operands, 1, "[g, t, k]")?;
        let x = expect_extents(self.name(), operands, 2, "[g, t, d]")?;
        check_agreement(self.name(), operands, g == groups && x == [g, t, elements])?;
        let mut space = build_rule(chosen, elements, places);
        space.set_kinds(&[BLOCKS, PLACES], FactorKind::Indexed);
        space.set_kinds(&[ELEMENTS], SUM);
        let ExpertRule { mut rule, tokens, chosen, weights, places } = space;
        rule.linear = vec![vec![0], vec![2]];
        (rule.operands, rule.results) = (vec![places, chosen, tokens], vec![weights]);
        Ok(rule)
    }

    fn flops(&self, rule: &Rule) -> f64 {
        2.0 * count_place_elements(rule, &rule.operands[0])
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [y, chosen, x] = [&operands[0], &operands[1], &operands[2]];
        let places = ExpertPlaces::of_shape(&y.region.global, self.experts);
        check_indices(self.name(), "expert", chosen, places.experts, None)?;
        let mut products = Array::full(results[0].rect.extent.clone(), 0.0);
        let tokens = [shard_range(&results[0], 0), shard_range(&results[0], 1)];
        each_token(chosen, tokens, places, |token| {
            let to =
                shard_offset(&results[0], &products, &[token.group, token.token, token.choice]);
            let Some(offset) = to.filter(|_| token.is_in(y.region)) else { return };
            for element in shard_range(x.region, 2) {
                let place = [token.block, token.group, token.place, element];
                products.data[offset] +=
                    read_element(y, &place) * read_element(x, &[token.group, token.token, element]);
            }
        });
        Ok(vec![products])
    }
}

/// Counts one for each element of the experts' places.
fn count_place_elements(rule: &Rule, places: &[DimRule]) -> f64 {
    places.iter().map(|dim| rule.extent(dim) as f64).product()
}

/// A choice of a token that has a place; all indices are those of the whole.
#[derive(Clone, Copy)]
struct Placed {
    group: usize,
    token: usize,
    choice: usize,
    block: usize,
    place: usize,
}

/// Hands out the places of a group's experts: calls `handed` with the token and the index of each choice, and its place in the block of the
/// expert, `None` where it is dropped. The choices are those of `tokens` tokens, each of `choices`, row-major. `next` has an element for
/// each expert, with any content.
pub fn hand_out_places(
    chosen: &[i64],
    [tokens, choices]: [usize; 2],
    places: ExpertPlaces,
    next: &mut [i64],
    mut handed: impl FnMut(usize, usize, Option<usize>),
) {
    if places.experts_of_block() > 1 {
        find_run_ends(chosen, places, next);
        // A run begins where the one before it in its block ends.
        for block in next.chunks_mut(places.experts_of_block()) {
            block.rotate_right(1);
            block[0] = 0;
        }
    } else {
        next.fill(0);
    }
    for choice in 0..choices {
        for token in 0..tokens {
            let expert = chosen[token * choices + choice] as usize;
            let place = next[expert] as usize;
            next[expert] += 1;
            handed(token, choice, Some(place).filter(|&place| place < places.capacity));
        }
    }
}

/// Finds the place behind the last choice of each expert of a group, dropped or not. `ends` has an element for each expert, with any content.
pub fn find_run_ends(chosen: &[i64], places: ExpertPlaces, ends: &mut [i64]) {
    ends.fill(0);
    chosen.iter().for_each(|&expert| ends[expert as usize] += 1);
    for block in ends.chunks_mut(places.experts_of_block().max(1)) {
        let mut end = 0;
        for count in block {
            end += *count;
            *count = end;
        }
    }
}

/// Returns the places of an expert in its block, by what [`find_run_ends`] finds.
pub fn places_of_expert(places: ExpertPlaces, ends: &[i64], expert: usize) -> Range<usize> {
    let begins_block = expert.is_multiple_of(places.experts_of_block().max(1));
    let first = if begins_block { 0 } else { ends[expert - 1] as usize };
    first.min(places.capacity)..(ends[expert] as usize).min(places.capacity)
}

/// Returns the choices of a group, row-major.
pub(super) fn choices_of_group(chosen: &Operand<'_>, group: usize) -> Vec<i64> {
    let [_, t, k] = chosen.region.global[..] else { return Vec::new() };
    let index = |place: usize| {
        let [token, choice] = unravel_position(place, &[t, k])[..] else { return 0 };
        read_element(chosen, &[group, token, choice]) as i64
    };
    (0..t * k).map(index).collect()
}

/// Calls `body` for the choices that have places, of ranges of groups and tokens.
fn each_token(
    chosen: &Operand<'_>,
    [groups, tokens]: [Range<usize>; 2],
    places: ExpertPlaces,
    mut body: impl FnMut(Placed),
) {
    let [_, t, k] = chosen.region.global[..] else { return };
    let mut next = vec![0; places.experts];
    let each = places.experts_of_block().max(1);
    for group in groups {
        let all = choices_of_group(chosen, group);
        hand_out_places(&all, [t, k], places, &mut next, |token, choice, place| {
            if let Some(place) = place.filter(|_| tokens.contains(&token)) {
                let block = all[token * k + choice] as usize / each;
                body(Placed { group, token, choice, block, place });
            }
        });
    }
}

impl Placed {
    /// Returns whether a shard of places has this block and place.
    fn is_in(&self, places: &Region) -> bool {
        shard_range(places, 0).contains(&self.block) && shard_range(places, 2).contains(&self.place)
    }
}

/// Returns the weight of a choice, 1 without weights; `None` where another rank has that choice.
fn weight_of(weights: Option<&Operand<'_>>, token: Placed) -> Option<f64> {
    let Some(weights) = weights else { return Some(1.0) };
    let index = [token.group, token.token, token.choice];
    shard_range(weights.region, 2).contains(&token.choice).then(|| read_element(weights, &index))
}

/// Returns the range of a dim that a shard covers.
pub(super) fn shard_range(region: &Region, dim: usize) -> Range<usize> {
    let start = region.rect.origin[dim];
    start..start + region.rect.extent[dim]
}

/// Returns the offset in the shard of an element of the whole tensor; `None` where another rank has it.
pub(super) fn shard_offset(region: &Region, array: &Array, index: &[usize]) -> Option<usize> {
    let within = (0..index.len()).all(|dim| shard_range(region, dim).contains(&index[dim]));
    within.then(|| {
        let origin = &region.rect.origin;
        array.offset_of_index(&index.iter().zip(origin).map(|(i, o)| i - o).collect::<Vec<_>>())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    #[test]
    fn tokens_have_places_in_order_and_the_rest_are_dropped() {
        let x = (DType::F32, Array::new([1, 4, 1], vec![1., 2., 3., 4.]));
        let chosen = (DType::I64, Array::new([1, 4, 1], vec![1., 0., 1., 1.]));
        let op = Op::Dispatch(Dispatch { experts: 2, capacity: 2, blocks: None });
        let y = evaluate(op, &[x, chosen.clone()]).expect("fits");
        assert_eq!(y, [Array::new([2, 1, 2, 1], vec![2., 0., 1., 3.])]);
        let back = Op::Combine(Combine::default());
        let x = evaluate(back.clone(), &[(DType::F32, y[0].clone()), chosen.clone()]);
        assert_eq!(x.expect("fits")[0].data, [1., 2., 3., 0.]);
        let weights = (DType::F32, Array::new([1, 4, 1], vec![10., 20., 30., 40.]));
        let x = evaluate(back, &[(DType::F32, y[0].clone()), chosen, weights]).expect("fits");
        assert_eq!(x[0].data, [10., 40., 90., 0.]);
    }

    #[test]
    fn first_choices_come_before_second_ones() {
        let mut order = Vec::new();
        let chosen = [0, 1, 1, 0];
        let places = ExpertPlaces { experts: 2, blocks: 2, capacity: 1 };
        hand_out_places(&chosen, [2, 2], places, &mut [0; 2], |token, choice, place| {
            order.push((token, choice, place));
        });
        assert_eq!(order, [(0, 0, Some(0)), (1, 0, Some(0)), (0, 1, None), (1, 1, None)]);
    }

    #[test]
    fn experts_of_a_block_have_places_behind_each_other() {
        let x = (DType::F32, Array::new([1, 5, 1], vec![1., 2., 3., 4., 5.]));
        let chosen = (DType::I64, Array::new([1, 5, 1], vec![1., 0., 3., 1., 0.]));
        let blocks = NonZeroU32::new(2);
        let op = Op::Dispatch(Dispatch { experts: 4, capacity: 3, blocks });
        let y = evaluate(op, &[x, chosen.clone()]).expect("fits");
        // The block of experts 0 and 1 is full; the second token of expert 1 is dropped.
        assert_eq!(y, [Array::new([2, 1, 3, 1], vec![2., 5., 1., 3., 0., 0.])]);
        let back = Op::Combine(Combine { experts: NonZeroU32::new(4) });
        let x = evaluate(back, &[(DType::F32, y[0].clone()), chosen]).expect("fits");
        assert_eq!(x[0].data, [1., 2., 3., 0., 5.]);
    }

    #[test]
    fn runs_of_places_end_where_a_block_is_full() {
        let places = ExpertPlaces { experts: 4, blocks: 2, capacity: 3 };
        let mut ends = [0; 4];
        find_run_ends(&[1, 0, 3, 1, 0], places, &mut ends);
        let runs: Vec<_> = (0..4).map(|expert| places_of_expert(places, &ends, expert)).collect();
        assert_eq!(runs, [0..2, 2..3, 0..0, 0..1]);
    }

    #[test]
    fn blocks_must_divide_experts() {
        let x = (DType::F32, Array::new([1, 1, 1], vec![1.]));
        let chosen = (DType::I64, Array::new([1, 1, 1], vec![2.]));
        let op = Op::Dispatch(Dispatch { experts: 3, capacity: 2, blocks: NonZeroU32::new(2) });
        let error = op.infer_types(&[
            &TensorType::new(x.0, x.1.shape.clone()),
            &TensorType::new(chosen.0, chosen.1.shape.clone()),
        ]);
        let error = error.expect_err("3 experts in 2 blocks").to_string();
        assert!(error.contains("2 blocks do not divide 3 experts"), "{error}");
    }

    #[test]
    fn an_expert_that_is_not_there_is_an_error() {
        let x = (DType::F32, Array::new([1, 1, 1], vec![1.]));
        let chosen = (DType::I64, Array::new([1, 1, 1], vec![2.]));
        let op = Op::Dispatch(Dispatch { experts: 2, capacity: 2, blocks: None });
        let error = evaluate(op, &[x, chosen]).expect_err("2 of 0..2").to_string();
        assert_eq!(error, "expert 2 at position [0, 0, 0] is out of range: dispatch takes 0 to 1");
    }
}
