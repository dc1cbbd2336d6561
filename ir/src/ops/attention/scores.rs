//! The oracle of attention: scores, and what each of them adds to the gradients, element by element.

use std::cell::RefCell;
use std::collections::HashMap;

use super::super::shards::at;
use super::{Attention, FLOOR};
use crate::op::Operand;

/// The range of a dim that an operand's shard covers.
pub(super) fn range(operand: &Operand<'_>, dim: usize) -> std::ops::Range<usize> {
    let rect = &operand.region.rect;
    rect.origin[dim]..rect.origin[dim] + rect.extent[dim]
}

/// log(sum(exp(x))); that of nothing is -inf.
pub(super) fn log_sum_exp(x: &[f64]) -> f64 {
    let greatest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if greatest == f64::NEG_INFINITY {
        return greatest;
    }
    greatest + x.iter().map(|x| (x - greatest).exp()).sum::<f64>().ln()
}

/// The scores, element by element.
#[derive(Clone, Copy)]
pub(super) struct Scores<'a> {
    pub q: &'a Operand<'a>,
    pub k: &'a Operand<'a>,
    pub bias: Option<&'a Operand<'a>>,
    pub op: Attention,
}

impl Scores<'_> {
    /// The head of keys and values that a head reads.
    pub fn shared_head(&self, head: usize) -> usize {
        head / (self.q.region.global[2] / self.k.region.global[2])
    }

    /// Of a query [b, t, head] and a key; -inf where the query does not see it.
    pub fn at(&self, row: &[usize], key: usize) -> f64 {
        if !self.op.sees(row[1], key) {
            return f64::NEG_INFINITY;
        }
        let score = self.capped(row, key);
        let Some(bias) = self.bias else { return score };
        let of_extents = [row[0], row[2], row[1], key].into_iter().zip(&bias.region.global);
        let place: Vec<usize> =
            of_extents.map(|(index, &extent)| if extent == 1 { 0 } else { index }).collect();
        let sum = score + at(bias, &place);
        if sum == f64::NEG_INFINITY { sum } else { sum.max(FLOOR) }
    }

    /// How fast a score grows with the scaled product of query and key.
    pub fn slope(&self, row: &[usize], key: usize) -> f64 {
        self.op.soft_cap.map_or(1.0, |cap| 1.0 - (self.capped(row, key) / cap.0).powi(2))
    }

    /// The scaled product, bounded, before a bias is added.
    fn capped(&self, row: &[usize], key: usize) -> f64 {
        let head = self.shared_head(row[2]);
        let product =
            |c| at(self.q, &[row[0], row[1], row[2], c]) * at(self.k, &[row[0], key, head, c]);
        let scaled = self.op.scale.0 * (0..self.q.region.global[3]).map(product).sum::<f64>();
        self.op.soft_cap.map_or(scaled, |cap| cap.0 * (scaled / cap.0).tanh())
    }
}

/// What a query pays to a key, and the gradient of the score.
#[derive(Clone, Copy)]
pub(super) struct Term {
    /// p.
    pub weight: f64,
    /// ds of the score that softmax reads.
    pub of_score: f64,
    /// The same of the scaled product.
    pub of_product: f64,
}

/// The terms that a query and a key add to the gradients.
pub(super) struct Terms<'a> {
    scores: Scores<'a>,
    /// q, k, v, o, l, do.
    operands: &'a [Operand<'a>],
    of_l: Option<&'a Operand<'a>>,
    known: RefCell<HashMap<[usize; 4], Term>>,
}

impl<'a> Terms<'a> {
    pub fn new(
        scores: Scores<'a>,
        operands: &'a [Operand<'a>],
        of_l: Option<&'a Operand<'a>>,
    ) -> Self {
        Self { scores, operands, of_l, known: RefCell::default() }
    }

    /// Of a query [b, t, head] and a key.
    pub fn at(&self, row: &[usize], key: usize) -> Term {
        let place = [row[0], row[1], row[2], key];
        if let Some(&known) = self.known.borrow().get(&place) {
            return known;
        }
        let found = self.compute(row, key);
        self.known.borrow_mut().insert(place, found);
        found
    }

    fn compute(&self, row: &[usize], key: usize) -> Term {
        let score = self.scores.at(row, key);
        // A row without keys has no weights, whatever its log-sum-exp.
        let hidden = score == f64::NEG_INFINITY;
        let weight = if hidden { 0.0 } else { (score - at(&self.operands[4], row)).exp() };
        let other = [row[0], key, self.scores.shared_head(row[2])];
        let gradient = self.dot(5, row, 2, &other) - self.dot(5, row, 3, row);
        let of_score = weight * (gradient + self.of_l.map_or(0.0, |of_l| at(of_l, row)));
        Term { weight, of_score, of_product: of_score * self.scores.slope(row, key) }
    }

    /// The product of the last dims of two operands.
    fn dot(&self, a: usize, at_a: &[usize], b: usize, at_b: &[usize]) -> f64 {
        let [a, b] = [&self.operands[a], &self.operands[b]];
        (0..a.region.global[3])
            .map(|c| at(a, &[at_a, &[c]].concat()) * at(b, &[at_b, &[c]].concat()))
            .sum()
    }
}
