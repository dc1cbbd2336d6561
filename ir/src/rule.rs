//! Iteration-space rules: what an op's dims are made of, and every SBP signature that follows.
//!
//! A rule is like an einsum: each dim of each operand and result is a product of *factors*, leading factor first. Splitting one
//! factor over a mesh axis splits every dim in which it leads. A result in which a reduced factor does not appear becomes
//! partial. Shape inference, signatures, FLOPs and bytes all come from here.
//!
//! [`Rule::linear`] names groups of operands in which the op is jointly linear: their partial sums pass through the op. That must
//! hold for all finite operands, whether the result is finite or not. So no op is linear in an operand that it divides: 7 / 0 + 0
//! / 0 is not 7 / 0.

use crate::sbp::{NdSbp, ReduceKind, Sbp};

/// The kind of a factor, which says how it may be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactorKind {
    /// A factor whose points are independent: it may be split.
    Parallel,
    /// A factor that is reduced away: a split gives partial results.
    Reduction(ReduceKind),
    /// A factor that is looked up by index: ranks mask what they do not hold, and the results are summed.
    Indexed,
    /// A factor that must stay whole.
    Whole,
}

/// One factor of the iteration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor {
    /// The number of points.
    pub size: usize,
    /// The kind, which says how the factor may be split.
    pub kind: FactorKind,
}

/// The factors of one dim of an operand or result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DimRule {
    /// A product of these factors (indices into [`Rule::factors`]), leading first; empty: extent 1.
    Factors(Vec<usize>),
    /// A dim that is no product of factors; it has this extent and is never split.
    Whole(usize),
}

/// The rule of one application of an op.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Rule {
    /// The iteration space.
    pub factors: Vec<Factor>,
    /// The dims of each operand.
    pub operands: Vec<Vec<DimRule>>,
    /// The dims of each result.
    pub results: Vec<Vec<DimRule>>,
    /// Groups of operands in which the op is jointly linear: partial sums pass, the other operands whole.
    ///
    /// The results of ranks for their summands add up to that for the sum, to rounding, for all operands that are finite, be the
    /// result finite or not: so no op is in that divides by an operand, which may be 0. Where an operand is infinite or no number the
    /// result is finite if and only if the sum of results is, and then they are equal; which of infinite and no number it is may differ,
    /// as a product of infinity with a summand of 0 is no number. Left aside is what a sum of parts always has: summands may overflow
    /// where their sum does not, and 0 may lose its sign.
    pub linear: Vec<Vec<usize>>,
    /// Whether elements are only moved or repeated, so that P(max) and P(min) pass too.
    pub moves_data: bool,
}

/// The use of one mesh axis by one application of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Choice {
    /// Every rank computes the whole.
    Replicate,
    /// Ranks share this factor.
    Factor(usize),
    /// The operands of this linear group, and the results, are partial sums.
    Linear(usize),
    /// All operands and results are partial of this kind (max, min), through an op that moves data.
    Move(ReduceKind),
}

/// The layouts of all operands and results under one choice per mesh axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signature {
    /// One choice per mesh axis.
    pub choices: Vec<Choice>,
    /// Layout of each operand.
    pub operands: Vec<NdSbp>,
    /// Layout of each result.
    pub results: Vec<NdSbp>,
}

impl DimRule {
    /// Returns the indices of the dim's factors; a whole dim has none.
    pub fn factors(&self) -> &[usize] {
        match self {
            Self::Factors(factors) => factors,
            Self::Whole(_) => &[],
        }
    }
}

impl Rule {
    /// Returns whether the op contracts: it has more points than any of its tensors has elements, as a product has.
    pub fn is_contraction(&self) -> bool {
        let elements = |dims: &Vec<DimRule>| -> f64 {
            dims.iter().map(|dim| self.extent(dim) as f64).product()
        };
        let tensors = self.operands.iter().chain(&self.results);
        self.count_points() > tensors.map(elements).fold(1.0, f64::max)
    }

    /// Returns the indices of the factors that `fits` accepts.
    pub fn factors_where(&self, fits: impl Fn(&Factor) -> bool) -> Vec<usize> {
        (0..self.factors.len()).filter(|&factor| fits(&self.factors[factor])).collect()
    }

    /// Returns the indices of the parallel factors that every result and each of the first `operands` operands has, in the order of the first
    /// operand's dims.
    pub fn shared_factors(&self, operands: usize) -> Vec<usize> {
        let has = |dims: &Vec<DimRule>, factor: &usize| {
            dims.iter().any(|dim| dim.factors().contains(factor))
        };
        let first = self.operands.first().into_iter().flatten().flat_map(DimRule::factors);
        first
            .copied()
            .filter(|&factor| self.factors[factor].kind == FactorKind::Parallel)
            .filter(|factor| {
                let operands = self.operands.iter().take(operands);
                operands.chain(&self.results).all(|dims| has(dims, factor))
            })
            .collect()
    }

    /// Adds a factor and returns its index.
    pub(crate) fn add_factor(&mut self, size: usize, kind: FactorKind) -> usize {
        self.factors.push(Factor { size, kind });
        self.factors.len() - 1
    }

    /// Adds a parallel factor for each extent and returns their dims.
    pub(crate) fn add_parallel_dims(&mut self, shape: &[usize]) -> Vec<DimRule> {
        shape
            .iter()
            .map(|&size| DimRule::Factors(vec![self.add_factor(size, FactorKind::Parallel)]))
            .collect()
    }

    /// Returns the extent of a dim.
    pub fn extent(&self, dim: &DimRule) -> usize {
        match dim {
            DimRule::Factors(factors) => factors.iter().map(|&f| self.factors[f].size).product(),
            DimRule::Whole(extent) => *extent,
        }
    }

    /// Returns the shape of each result.
    pub(crate) fn result_shapes(&self) -> Vec<Vec<usize>> {
        self.results.iter().map(|dims| dims.iter().map(|dim| self.extent(dim)).collect()).collect()
    }

    /// Returns the number of points of the iteration space: factors times the largest product of whole dims.
    pub(crate) fn count_points(&self) -> f64 {
        let factors: f64 = self.factors.iter().map(|factor| factor.size as f64).product();
        let whole = self.operands.iter().chain(&self.results).map(|dims| whole_extent(dims));
        factors * whole.fold(1.0, f64::max)
    }

    /// Returns the choices that one mesh axis has, valid or not together with those of other axes.
    pub fn axis_choices(&self) -> Vec<Choice> {
        let mut choices = vec![Choice::Replicate];
        let splittable = |f: &usize| self.factors[*f].kind != FactorKind::Whole;
        choices.extend((0..self.factors.len()).filter(splittable).map(Choice::Factor));
        choices.extend((0..self.linear.len()).map(Choice::Linear));
        if self.moves_data && !self.operands.is_empty() {
            choices.extend([ReduceKind::Max, ReduceKind::Min].map(Choice::Move));
        }
        choices
    }

    /// Returns every valid signature on a mesh of this hierarchy, without repetitions, in a fixed order.
    pub fn signatures(&self, hierarchy: &[usize]) -> Vec<Signature> {
        let choices = self.axis_choices();
        let mut partial = vec![Vec::new()];
        for _ in hierarchy {
            partial = partial
                .iter()
                .flat_map(|prefix: &Vec<Choice>| {
                    choices.iter().map(move |&choice| [prefix.as_slice(), &[choice]].concat())
                })
                .filter(|prefix| self.splits_fit(prefix, hierarchy))
                .collect();
        }
        let mut signatures: Vec<Signature> = Vec::new();
        for choices in partial {
            let signature = self.build_signature(choices);
            let known =
                |s: &Signature| s.operands == signature.operands && s.results == signature.results;
            if !signatures.iter().any(known) {
                signatures.push(signature);
            }
        }
        signatures
    }

    /// Returns the signature of these choices on a mesh of this hierarchy; `None` where they are not valid together.
    pub fn choose_signature(&self, choices: &[Choice], hierarchy: &[usize]) -> Option<Signature> {
        self.splits_fit(choices, hierarchy).then(|| self.build_signature(choices.to_vec()))
    }

    /// Returns whether the factors split as chosen: leading factors only, evenly in composite dims, and every result without a split parallel factor
    /// would be wrong.
    fn splits_fit(&self, choices: &[Choice], hierarchy: &[usize]) -> bool {
        let mut remaining: Vec<usize> = self.factors.iter().map(|factor| factor.size).collect();
        for (&choice, &parts) in choices.iter().zip(hierarchy) {
            let Choice::Factor(factor) = choice else { continue };
            if self.must_be_even(factor) && !remaining[factor].is_multiple_of(parts)
                || !self.leads_everywhere(factor, &remaining)
                || !self.reaches_results(factor)
            {
                return false;
            }
            remaining[factor] = remaining[factor].div_ceil(parts);
        }
        true
    }

    fn factor_dims(&self) -> impl Iterator<Item = &Vec<usize>> {
        self.operands.iter().chain(&self.results).flatten().filter_map(|dim| match dim {
            DimRule::Factors(factors) => Some(factors),
            DimRule::Whole(_) => None,
        })
    }

    fn must_be_even(&self, factor: usize) -> bool {
        self.factor_dims().any(|dim| {
            dim.contains(&factor) && dim.iter().any(|&f| f != factor && self.factors[f].size != 1)
        })
    }

    fn leads_everywhere(&self, factor: usize, remaining: &[usize]) -> bool {
        self.factor_dims().filter(|dim| dim.contains(&factor)).all(|dim| {
            dim.iter().take_while(|&&f| f != factor).all(|&before| remaining[before] == 1)
        })
    }

    fn reaches_results(&self, factor: usize) -> bool {
        self.factors[factor].kind != FactorKind::Parallel
            || self.results.iter().all(|dims| split_dim(dims, factor).is_some())
    }

    fn build_signature(&self, choices: Vec<Choice>) -> Signature {
        let operand = |index: usize, dims: &[DimRule]| {
            NdSbp(choices.iter().map(|&choice| self.operand_sbp(choice, index, dims)).collect())
        };
        let result = |dims: &Vec<DimRule>| {
            NdSbp(choices.iter().map(|&c| self.result_sbp(c, dims)).collect())
        };
        let operands = self.operands.iter().enumerate().map(|(i, dims)| operand(i, dims)).collect();
        let results = self.results.iter().map(result).collect();
        Signature { operands, results, choices }
    }

    fn operand_sbp(&self, choice: Choice, index: usize, dims: &[DimRule]) -> Sbp {
        match choice {
            Choice::Replicate => Sbp::Broadcast,
            Choice::Factor(f) => split_dim(dims, f).map_or(Sbp::Broadcast, Sbp::Split),
            Choice::Linear(group) if self.linear[group].contains(&index) => Sbp::PARTIAL,
            Choice::Linear(_) => Sbp::Broadcast,
            Choice::Move(kind) => Sbp::Partial(kind),
        }
    }

    fn result_sbp(&self, choice: Choice, dims: &[DimRule]) -> Sbp {
        match choice {
            Choice::Replicate => Sbp::Broadcast,
            Choice::Factor(f) => split_dim(dims, f).map_or_else(
                || match self.factors[f].kind {
                    FactorKind::Reduction(kind) => Sbp::Partial(kind),
                    _ => Sbp::PARTIAL,
                },
                Sbp::Split,
            ),
            Choice::Linear(_) => Sbp::PARTIAL,
            Choice::Move(kind) => Sbp::Partial(kind),
        }
    }
}

fn split_dim(dims: &[DimRule], factor: usize) -> Option<usize> {
    dims.iter().position(|dim| matches!(dim, DimRule::Factors(f) if f.contains(&factor)))
}

fn whole_extent(dims: &[DimRule]) -> f64 {
    dims.iter()
        .map(|dim| match dim {
            DimRule::Whole(extent) => *extent as f64,
            DimRule::Factors(_) => 1.0,
        })
        .product()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matmul() -> Rule {
        let mut rule = Rule { linear: vec![vec![0], vec![1]], ..Rule::default() };
        let i = rule.add_factor(4, FactorKind::Parallel);
        let j = rule.add_factor(8, FactorKind::Parallel);
        let k = rule.add_factor(6, FactorKind::Reduction(ReduceKind::Sum));
        let dim = |f| DimRule::Factors(vec![f]);
        rule.operands = vec![vec![dim(i), dim(k)], vec![dim(k), dim(j)]];
        rule.results = vec![vec![dim(i), dim(j)]];
        rule
    }

    #[test]
    fn matmul_has_six_signatures_on_one_axis() {
        let text: Vec<String> = matmul()
            .signatures(&[2])
            .iter()
            .map(|s| format!("({}) ({}) -> {}", s.operands[0], s.operands[1], s.results[0]))
            .collect();
        let expected = [
            "(B) (B) -> B",
            "(S(0)) (B) -> S(0)",
            "(B) (S(1)) -> S(1)",
            "(S(1)) (S(0)) -> P(sum)",
            "(P(sum)) (B) -> P(sum)",
            "(B) (P(sum)) -> P(sum)",
        ];
        assert_eq!(text, expected);
    }

    #[test]
    fn a_composite_dim_splits_evenly_by_leading_factors() {
        let mut rule = Rule::default();
        let a = rule.add_factor(2, FactorKind::Parallel);
        let b = rule.add_factor(6, FactorKind::Parallel);
        rule.operands = vec![vec![DimRule::Factors(vec![a]), DimRule::Factors(vec![b])]];
        rule.results = vec![vec![DimRule::Factors(vec![a, b])]];
        assert_eq!(rule.signatures(&[2]).len(), 2, "B and the leading factor");
        assert_eq!(rule.signatures(&[4]).len(), 1, "2 does not divide by 4");
        let both =
            rule.choose_signature(&[Choice::Factor(a), Choice::Factor(b)], &[2, 3]).expect("fits");
        assert_eq!(both.operands[0].to_string(), "S(0), S(1)");
        assert_eq!(both.results[0].to_string(), "S(0), S(0)");
        assert!(rule.choose_signature(&[Choice::Factor(b), Choice::Factor(a)], &[3, 2]).is_none());
    }
}
