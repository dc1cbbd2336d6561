//! Ops that move, repeat or mask elements: transpose, expand, triangle.

use serde::{Deserialize, Serialize};

use super::shards::{elementwise_rule, fill_shard, read_element};
use crate::array::Array;
use crate::operation::{
    EvalContext, Movement, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::{DimRule, Rule};
use crate::types::{DType, TensorType};

/// A permutation of dims: result dim i is operand dim `permutation[i]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Transpose {
    /// The operand's dim for each dim of the result: a permutation.
    pub permutation: Vec<usize>,
}

/// The operand with dims of extent 1, and missing leading dims, repeated to this shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Expand {
    /// The shape of the result.
    pub shape: Vec<usize>,
}

/// The lower (`lower`) or upper (`!lower`) triangle of the last two dims, zero on the other side of the diagonal: tril and triu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Triangle {
    /// Whether the lower triangle is kept.
    pub lower: bool,
    /// The diagonal that is kept still: 0 the main one, positive above it.
    pub diagonal: i64,
}

impl Operation for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![operands[0].dtype])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let rank = operands[0].shape.len();
        let mut sorted = self.permutation.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..rank) {
            let reason = format!("{:?} is no permutation of its dims", self.permutation);
            return Err(shape_error(self.name(), operands, reason));
        }
        let mut rule = elementwise_rule(&operands[0].shape, 1, 0);
        let dims = self.permutation.iter().map(|&dim| rule.operands[0][dim].clone()).collect();
        rule.results = vec![dims];
        Ok(Rule { linear: vec![vec![0]], moves_data: true, ..rule })
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
        let element = |index: &[usize]| {
            let mut source = vec![0; index.len()];
            for (to, &from) in self.permutation.iter().enumerate() {
                source[from] = index[to];
            }
            read_element(&operands[0], &source)
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

impl Operation for Expand {
    fn name(&self) -> &'static str {
        "expand"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![operands[0].dtype])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let from = &operands[0].shape;
        let skip = self.shape.len().checked_sub(from.len());
        let fits = |skip: &usize| {
            from.iter().zip(&self.shape[*skip..]).all(|(&from, &to)| from == to || from == 1)
        };
        let Some(skip) = skip.filter(fits) else {
            let reason = format!("it does not repeat to {:?}", self.shape);
            return Err(shape_error(self.name(), operands, reason));
        };
        let mut rule = Rule { linear: vec![vec![0]], moves_data: true, ..Rule::default() };
        let result = rule.add_parallel_dims(&self.shape);
        let one_of = |(dim, &extent): (&DimRule, &usize)| match rule.extent(dim) == extent {
            true => dim.clone(),
            false => DimRule::Factors(vec![]),
        };
        let operand = result[skip..].iter().zip(from).map(one_of).collect();
        (rule.operands, rule.results) = (vec![operand], vec![result]);
        Ok(rule)
    }

    fn flops_per_point(&self) -> f64 {
        0.0
    }

    fn movement(&self) -> Option<Movement> {
        Some(Movement::Repeated)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let from = &operands[0].region.global;
        let skip = self.shape.len() - from.len();
        let element = |index: &[usize]| {
            let repeat = |(&i, &extent): (&usize, &usize)| if extent == 1 { 0 } else { i };
            let source: Vec<usize> = index[skip..].iter().zip(from).map(repeat).collect();
            read_element(&operands[0], &source)
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

impl Operation for Triangle {
    fn name(&self) -> &'static str {
        "triangle"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![operands[0].dtype])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        if operands[0].shape.len() < 2 {
            return Err(shape_error(self.name(), operands, "it needs two dims or more"));
        }
        Ok(Rule { linear: vec![vec![0]], ..elementwise_rule(&operands[0].shape, 1, 1) })
    }

    fn flops_per_point(&self) -> f64 {
        0.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let element = |index: &[usize]| {
            let [row, column] = [index.len() - 2, index.len() - 1].map(|dim| index[dim] as i64);
            let above = column - row;
            let kept = if self.lower { above <= self.diagonal } else { above >= self.diagonal };
            if kept { read_element(&operands[0], index) } else { 0.0 }
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    fn grid() -> (DType, Array) {
        (DType::F32, Array::new([2, 3], vec![1., 2., 3., 4., 5., 6.]))
    }

    #[test]
    fn transpose_exchanges_dims() {
        let op = Op::Transpose(Transpose { permutation: vec![1, 0] });
        let y = evaluate(op, &[grid()]).expect("fits");
        assert_eq!(y, [Array::new([3, 2], vec![1., 4., 2., 5., 3., 6.])]);
        let op = Op::Transpose(Transpose { permutation: vec![1, 1] });
        assert!(evaluate(op, &[grid()]).is_err());
    }

    #[test]
    fn expand_repeats_and_its_new_dims_split() {
        let expand = Expand { shape: vec![2, 2, 3] };
        let x = Array::new([2, 1], vec![1., 2.]);
        let y = evaluate(Op::Expand(expand.clone()), &[(DType::F32, x)]).expect("fits");
        let half = [1., 1., 1., 2., 2., 2.];
        assert_eq!(y, [Array::new([2, 2, 3], [half, half].concat())]);
        let ty = TensorType::new(DType::F32, [2, 1]);
        let rule = expand.rule(&[&ty]).expect("fits");
        let split = |s: &crate::rule::Signature| format!("{} -> {}", s.operands[0], s.results[0]);
        let signatures: Vec<_> = rule.signatures(&[2]).iter().map(split).collect();
        assert_eq!(signatures[..4], ["B -> B", "B -> S(0)", "S(0) -> S(1)", "B -> S(2)"]);
        assert!(expand.rule(&[&TensorType::new(DType::F32, [4, 3])]).is_err());
    }

    #[test]
    fn triangles_about_a_diagonal() {
        let op = |lower, diagonal| Op::Triangle(Triangle { lower, diagonal });
        let y = evaluate(op(true, 0), &[grid()]).expect("fits");
        assert_eq!(y[0].data, [1., 0., 0., 4., 5., 0.]);
        let y = evaluate(op(false, 1), &[grid()]).expect("fits");
        assert_eq!(y[0].data, [0., 2., 3., 0., 0., 6.]);
    }
}
