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

/// (x [g, t, d], chosen [g, t, k] of i64 \[, weights [g, t, k]\]) -> [experts, g, capacity, d]: each token, times its
/// weight, at the places that it has; 0 where no token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dispatch {
    /// The number of experts.
    pub experts: usize,
    /// The number of places of an expert for each group.
    pub capacity: usize,
}

/// (y [experts, g, capacity, d], chosen [g, t, k] of i64 \[, weights [g, t, k]\]) -> [g, t, d]: the sum over the places
/// of each token, times their weights; 0 for a token that is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Combine {}

/// (y [experts, g, capacity, d], chosen [g, t, k] of i64, x [g, t, d]) -> [g, t, k]: the products of each token with its
/// places. The gradient of the weights of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CombineWeightsGrad {}

/// A rule with factors for groups, tokens, elements, choices, experts and places, and the dims that are made of them.
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
const EXPERTS: usize = 4;
const PLACES: usize = 5;

/// Builds the rule from [g, t, k] of the choices, the number of elements, and [experts, capacity].
fn build_rule(chosen: [usize; 3], elements: usize, [experts, capacity]: [usize; 2]) -> ExpertRule {
    let [groups, tokens, choices] = chosen;
    let mut rule = Rule::default();
    let sizes = [groups, tokens, elements, choices, experts, capacity];
    let [g, t, d, k, e, c] = sizes.map(|size| {
        let factor = rule.add_factor(size, FactorKind::Parallel);
        DimRule::Factors(vec![factor])
    });
    ExpertRule {
        rule,
        tokens: vec![g.clone(), t.clone(), d.clone()],
        chosen: vec![g.clone(), DimRule::Whole(tokens), DimRule::Whole(choices)],
        weights: vec![g.clone(), t, k],
        places: vec![e, g, c, d],
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

const SUM: FactorKind = FactorKind::Reduction(ReduceKind::Sum);

fn expect_extents<const N: usize>(
    op: &'static str,
    operands: &[&TensorType],
    index: usize,
    dims: &str,
) -> Result<[usize; N], OpError> {
    let shape = operands[index].shape.as_slice().try_into();
    shape.map_err(|_| shape_error(op, operands, format!("operand {index} must be {dims}")))
}

fn check_agreement(op: &'static str, operands: &[&TensorType], holds: bool) -> Result<(), OpError> {
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
        let mut space = build_rule(chosen, elements, [self.experts, self.capacity]);
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
        each_token(chosen, tokens, [self.experts, self.capacity], |token| {
            let Some(weight) = weight_of(operands.get(2), token) else { return };
            for element in shard_range(&results[0], 3) {
                let place = [token.expert, token.group, token.place, element];
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
        let [experts, groups, capacity, elements] =
            expect_extents(self.name(), operands, 0, "[experts, g, capacity, d]")?;
        let chosen @ [g, _, _] = expect_extents(self.name(), operands, 1, "[g, t, k]")?;
        let weights = operands.get(2).is_none_or(|weights| weights.shape == chosen);
        check_agreement(self.name(), operands, g == groups && weights)?;
        let mut space = build_rule(chosen, elements, [experts, capacity]);
        space.set_kinds(&[EXPERTS, PLACES], FactorKind::Indexed);
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
        let [experts, _, capacity, _] = y.region.global[..] else { return Ok(Vec::new()) };
        check_indices(self.name(), "expert", chosen, experts, None)?;
        let mut x = Array::full(results[0].rect.extent.clone(), 0.0);
        let tokens = [shard_range(&results[0], 0), shard_range(&results[0], 1)];
        each_token(chosen, tokens, [experts, capacity], |token| {
            let Some(weight) = weight_of(operands.get(2), token) else { return };
            if !token.is_in(y.region) {
                return;
            }
            for element in shard_range(&results[0], 2) {
                let to = shard_offset(&results[0], &x, &[token.group, token.token, element]);
                let place = [token.expert, token.group, token.place, element];
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
        let [experts, groups, capacity, elements] =
            expect_extents(self.name(), operands, 0, "[experts, g, capacity, d]")?;
        let chosen @ [g, t, _] = expect_extents(self.name(), operands, 1, "[g, t, k]")?;
        let x = expect_extents(self.name(), operands, 2, "[g, t, d]")?;
        check_agreement(self.name(), operands, g == groups && x == [g, t, elements])?;
        let mut space = build_rule(chosen, elements, [experts, capacity]);
        space.set_kinds(&[EXPERTS, PLACES], FactorKind::Indexed);
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
        let [experts, _, capacity, _] = y.region.global[..] else { return Ok(Vec::new()) };
        check_indices(self.name(), "expert", chosen, experts, None)?;
        let mut products = Array::full(results[0].rect.extent.clone(), 0.0);
        let tokens = [shard_range(&results[0], 0), shard_range(&results[0], 1)];
        each_token(chosen, tokens, [experts, capacity], |token| {
            let to =
                shard_offset(&results[0], &products, &[token.group, token.token, token.choice]);
            let Some(offset) = to.filter(|_| token.is_in(y.region)) else { return };
            for element in shard_range(x.region, 2) {
                let place = [token.expert, token.group, token.place, element];
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
    expert: usize,
    place: usize,
}

/// Hands out the places of a group's experts: calls `handed` with the token and the index of each choice, and its place, `None` where it is dropped.
/// The choices are those of `tokens` tokens, each of `choices`, row-major. `count` has an element for each expert; any content will do.
pub fn hand_out_places(
    chosen: &[i64],
    [tokens, choices]: [usize; 2],
    capacity: usize,
    count: &mut [i64],
    mut handed: impl FnMut(usize, usize, Option<usize>),
) {
    count.fill(0);
    for choice in 0..choices {
        for token in 0..tokens {
            let expert = chosen[token * choices + choice] as usize;
            let place = count[expert] as usize;
            count[expert] += 1;
            handed(token, choice, Some(place).filter(|&place| place < capacity));
        }
    }
}

/// Calls `body` for the choices that have places, of ranges of groups and tokens.
fn each_token(
    chosen: &Operand<'_>,
    [groups, tokens]: [Range<usize>; 2],
    [experts, capacity]: [usize; 2],
    mut body: impl FnMut(Placed),
) {
    let [_, t, k] = chosen.region.global[..] else { return };
    let mut count = vec![0; experts];
    for group in groups {
        let index = |place: usize| {
            let [token, choice] = unravel_position(place, &[t, k])[..] else { return 0 };
            read_element(chosen, &[group, token, choice]) as i64
        };
        let all: Vec<i64> = (0..t * k).map(index).collect();
        hand_out_places(&all, [t, k], capacity, &mut count, |token, choice, place| {
            if let Some(place) = place.filter(|_| tokens.contains(&token)) {
                let expert = all[token * k + choice] as usize;
                body(Placed { group, token, choice, expert, place });
            }
        });
    }
}

impl Placed {
    /// Returns whether a shard of places has this expert and place.
    fn is_in(&self, places: &Region) -> bool {
        shard_range(places, 0).contains(&self.expert)
            && shard_range(places, 2).contains(&self.place)
    }
}

/// Returns the weight of a choice, 1 without weights; `None` where another rank has that choice.
fn weight_of(weights: Option<&Operand<'_>>, token: Placed) -> Option<f64> {
    let Some(weights) = weights else { return Some(1.0) };
    let index = [token.group, token.token, token.choice];
    shard_range(weights.region, 2).contains(&token.choice).then(|| read_element(weights, &index))
}

/// Returns the range of a dim that a shard covers.
fn shard_range(region: &Region, dim: usize) -> Range<usize> {
    let start = region.rect.origin[dim];
    start..start + region.rect.extent[dim]
}

/// Returns the offset in the shard of an element of the whole tensor; `None` where another rank has it.
fn shard_offset(region: &Region, array: &Array, index: &[usize]) -> Option<usize> {
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
        let op = Op::Dispatch(Dispatch { experts: 2, capacity: 2 });
        let y = evaluate(op, &[x, chosen.clone()]).expect("fits");
        assert_eq!(y, [Array::new([2, 1, 2, 1], vec![2., 0., 1., 3.])]);
        let back = Op::Combine(Combine {});
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
        hand_out_places(&chosen, [2, 2], 1, &mut [0; 2], |token, choice, place| {
            order.push((token, choice, place));
        });
        assert_eq!(order, [(0, 0, Some(0)), (1, 0, Some(0)), (0, 1, None), (1, 1, None)]);
    }

    #[test]
    fn an_expert_that_is_not_there_is_an_error() {
        let x = (DType::F32, Array::new([1, 1, 1], vec![1.]));
        let chosen = (DType::I64, Array::new([1, 1, 1], vec![2.]));
        let op = Op::Dispatch(Dispatch { experts: 2, capacity: 2 });
        let error = evaluate(op, &[x, chosen]).expect_err("2 of 0..2").to_string();
        assert_eq!(error, "expert 2 at position [0, 0, 0] is out of range: dispatch takes 0 to 1");
    }
}
