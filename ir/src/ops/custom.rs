//! An op of a program's own: it says what its dims are and how they may be split; what it computes is a kernel that the program gives
//! to the session.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, dtype_error, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::sbp::ReduceKind;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// The description of an op: its dims, and how they may be split; the program says what it computes. Kernels are found by its name; one that is
/// differentiable has a second one, `NAME.backward`, which takes the operands, the results and the gradients of the results, and gives the gradients
/// of the operands of floating-point numbers.
///
/// The dims are said as in `"batch d, d -> batch d"`: the dims of each operand by names of one's own, and those of each result, which
/// are named among the operands or a number. A name is one extent throughout. A kernel must give the same for the same operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Custom {
    /// The name by which a session finds its kernel.
    pub name: String,
    /// The dims of operands and results, e.g. `batch d, d -> batch d`.
    pub dims: String,
    /// The dims that may be split over ranks and microbatches, for each of which a kernel then computes its part. A result that lacks
    /// such a dim is the sum over it. Others stay whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub split: Vec<String>,
    /// The element type of each result; an empty list: that of the first operand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<DType>,
    /// The numbers that the kernel reads, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<String, Scalar>,
    /// Whether there is a kernel `NAME.backward`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub differentiable: bool,
}

impl Custom {
    /// Makes an op without gradient whose dims all stay whole.
    ///
    /// ```
    /// use graphc_ir::builder::GraphBuilder;
    /// use graphc_ir::ops::{Custom, Init};
    /// use graphc_ir::types::DType;
    ///
    /// let g = GraphBuilder::new("example");
    /// let x = g.input("x", DType::F32, [4, 5]);
    /// let w = g.variable("w", DType::F32, [5], Init::Fill(1.0.into()));
    /// let op = Custom::new("scaled_square", "batch d, d -> batch d").split(&["batch"]).differentiable();
    /// let y = &g.custom(&op, &[&x, &w])[0];
    /// assert_eq!(y.shape(), [4, 5]);
    /// g.output("y", y);
    /// # g.finish()?;
    /// # Ok::<(), graphc_ir::builder::BuildErrors>(())
    /// ```
    pub fn new(name: impl Into<String>, dims: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            dims: dims.into(),
            split: Vec::new(),
            results: Vec::new(),
            numbers: BTreeMap::new(),
            differentiable: false,
        }
    }

    /// Sets the dims that may be split.
    #[must_use]
    pub fn split(self, dims: &[&str]) -> Self {
        Self { split: dims.iter().map(|&dim| dim.to_owned()).collect(), ..self }
    }

    /// Sets the element types of the results.
    #[must_use]
    pub fn with_result_dtypes(self, results: &[DType]) -> Self {
        Self { results: results.to_vec(), ..self }
    }

    /// Adds a number for the kernel.
    #[must_use]
    pub fn with_number(mut self, name: &str, value: f64) -> Self {
        self.numbers.insert(name.to_owned(), value.into());
        self
    }

    /// Sets that the op has a kernel `NAME.backward`.
    #[must_use]
    pub fn differentiable(self) -> Self {
        Self { differentiable: true, ..self }
    }

    /// Returns a number for the kernel; `None` where there is none of this name.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers.get(name).map(|number| number.0)
    }

    /// Returns the number of results that its dims name.
    pub(crate) fn count_results(&self) -> usize {
        self.dims.split_once("->").map_or(1, |(_, results)| parse_tensor_dims(results).len())
    }

    /// Returns the op that gives the gradients of operands of these types.
    pub(crate) fn backward_op(&self, operands: &[TensorType]) -> Self {
        let (from, to) = self.dims.split_once("->").unwrap_or((&self.dims, ""));
        let (from, to) = (from.trim(), to.trim());
        let floats = || {
            parse_tensor_dims(from).into_iter().zip(operands).filter(|(_, ty)| ty.dtype.is_float())
        };
        let gradients: Vec<String> = floats().map(|(dims, _)| dims.join(" ")).collect();
        Self {
            name: format!("{}.backward", self.name),
            dims: format!("{from}, {to}, {to} -> {}", gradients.join(", ")),
            split: self.split.clone(),
            results: floats().map(|(_, ty)| ty.dtype).collect(),
            numbers: self.numbers.clone(),
            differentiable: false,
        }
    }
}

/// Splits a list of tensors, as text, into the names of their dims.
fn parse_tensor_dims(list: &str) -> Vec<Vec<&str>> {
    list.split(',').map(|dims| dims.split_whitespace().collect()).collect()
}

impl Operation for Custom {
    fn name(&self) -> &'static str {
        "custom"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        let given = match (&self.results[..], operands) {
            ([], [first, ..]) => vec![first.dtype; self.count_results()],
            (given, _) => given.to_vec(),
        };
        match given.len() == self.count_results() {
            true => Ok(given),
            false => {
                let reason = format!(
                    "`{}` has {} results by its dims `{}`, and {} element types of results",
                    self.name,
                    self.count_results(),
                    self.dims,
                    given.len()
                );
                Err(dtype_error(self.name(), operands, reason))
            }
        }
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let reading = RuleReader::read_rule(self, operands);
        reading.map_err(|reason| {
            let reason = format!("`{}` with the dims `{}`: {reason}", self.name, self.dims);
            shape_error(Operation::name(self), operands, reason)
        })
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        Err(OpError::Custom { name: self.name.clone() })
    }
}

/// A rule while it is read from the dims of an op.
struct RuleReader<'a> {
    op: &'a Custom,
    rule: Rule,
    factors: BTreeMap<&'a str, usize>,
}

impl<'a> RuleReader<'a> {
    fn read_rule(op: &'a Custom, operands: &[&TensorType]) -> Result<Rule, String> {
        let (from, to) = op.dims.split_once("->").ok_or("there is no `->` before the results")?;
        let (from, to) = (parse_tensor_dims(from), parse_tensor_dims(to));
        if from.len() != operands.len() {
            return Err(format!("{} operands are named, and {} given", from.len(), operands.len()));
        }
        let mut reading = Self { op, rule: Rule::default(), factors: BTreeMap::new() };
        for (dims, ty) in from.iter().zip(operands) {
            let dims = reading.read_operand(dims, ty)?;
            reading.rule.operands.push(dims);
        }
        for dims in &to {
            let dims = dims.iter().map(|dim| reading.of_result(dim)).collect::<Result<_, _>>()?;
            reading.rule.results.push(dims);
        }
        reading.mark_splits(&to)?;
        Ok(reading.rule)
    }

    fn read_operand(&mut self, dims: &[&'a str], ty: &TensorType) -> Result<Vec<DimRule>, String> {
        if dims.len() != ty.shape.len() {
            return Err(format!("`{}` are {} dims, not those of {ty}", dims.join(" "), dims.len()));
        }
        if dims.iter().collect::<BTreeSet<_>>().len() < dims.len() {
            return Err(format!("`{}` names a dim twice", dims.join(" ")));
        }
        dims.iter().zip(&ty.shape).map(|(&dim, &extent)| self.read_dim(dim, extent)).collect()
    }

    fn read_dim(&mut self, dim: &'a str, extent: usize) -> Result<DimRule, String> {
        if let Ok(number) = dim.parse::<usize>() {
            let other = || format!("an extent is {extent} where {number} is said");
            return (number == extent).then_some(DimRule::Whole(extent)).ok_or_else(other);
        }
        let known = self.factors.get(dim).copied();
        let factor = known.unwrap_or_else(|| self.rule.add_factor(extent, FactorKind::Whole));
        self.factors.insert(dim, factor);
        match self.rule.factors[factor].size {
            size if size == extent => Ok(DimRule::Factors(vec![factor])),
            size => Err(format!("`{dim}` is {size} in one place and {extent} in another")),
        }
    }

    fn of_result(&self, dim: &str) -> Result<DimRule, String> {
        match (self.factors.get(dim), dim.parse()) {
            (Some(&factor), _) => Ok(DimRule::Factors(vec![factor])),
            (None, Ok(extent)) => Ok(DimRule::Whole(extent)),
            (None, Err(_)) => Err(format!("no operand has the dim `{dim}` of a result")),
        }
    }

    /// Sets how the factors of dims in `split` may be split: those in all results independently, others into summands.
    fn mark_splits(&mut self, results: &[Vec<&str>]) -> Result<(), String> {
        for dim in &self.op.split {
            let factor = self.factors.get(dim.as_str());
            let &factor = factor.ok_or_else(|| format!("there is no dim `{dim}` to split"))?;
            let in_all = results.iter().all(|dims| dims.contains(&dim.as_str()));
            self.rule.factors[factor].kind = match in_all {
                true => FactorKind::Parallel,
                false => FactorKind::Reduction(ReduceKind::Sum),
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32(shape: &[usize]) -> TensorType {
        TensorType::new(DType::F32, shape)
    }

    #[test]
    fn dims_give_shapes_and_signatures() {
        let op = Custom::new("op", "b d, d -> b d, b 3").split(&["b"]);
        let rule = op.rule(&[&f32(&[4, 6]), &f32(&[6])]).expect("they fit");
        assert_eq!(rule.result_shapes(), [vec![4, 6], vec![4, 3]]);
        let text = |rule: &Rule| -> Vec<String> {
            let signatures = rule.signatures(&[2]);
            let list = |all: &[crate::sbp::NdSbp]| -> Vec<String> {
                all.iter().map(ToString::to_string).collect()
            };
            let text = |s: &crate::rule::Signature| {
                format!("{} -> {}", list(&s.operands).join(", "), list(&s.results).join(", "))
            };
            signatures.iter().map(text).collect()
        };
        assert_eq!(text(&rule), ["B, B -> B, B", "S(0), B -> S(0), S(0)"]);
        let backward = op.backward_op(&[f32(&[4, 6]), f32(&[6])]);
        assert_eq!(backward.dims, "b d, d, b d, b 3, b d, b 3 -> b d, d");
        let types = [&[4, 6][..], &[6], &[4, 6], &[4, 3], &[4, 6], &[4, 3]].map(f32);
        let rule = backward.rule(&types.iter().collect::<Vec<_>>()).expect("they fit");
        let split = "S(0), B, S(0), S(0), S(0), S(0) -> S(0), P(sum)";
        assert_eq!(text(&rule)[1], split);
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let error = |dims: &str, split: &[&str], results: &[DType]| {
            let op = Custom::new("op", dims).split(split).with_result_dtypes(results);
            let (x, w) = (f32(&[4, 6]), f32(&[6]));
            crate::op::Op::Custom(op).infer_types(&[&x, &w]).expect_err(dims).to_string()
        };
        for (dims, split, reason) in [
            ("b d, d", &[][..], "there is no `->`"),
            ("b d -> b d", &[], "1 operands are named, and 2 given"),
            ("b, d -> b", &[], "`b` are 1 dims, not those of f32[4, 6]"),
            ("b d, b -> b", &[], "`b` is 4 in one place and 6 in another"),
            ("b 5, d -> b", &[], "an extent is 6 where 5 is said"),
            ("b b, d -> b", &[], "`b b` names a dim twice"),
            ("b d, d -> e", &[], "no operand has the dim `e`"),
            ("b d, d -> b", &["e"], "there is no dim `e` to split"),
        ] {
            let error = error(dims, split, &[]);
            assert!(error.contains(reason) && error.contains("`op`"), "{error}");
        }
        let error = error("b d, d -> b, b", &[], &[DType::F32]);
        assert!(error.contains("has 2 results by its dims"), "{error}");
    }
}
