//! The greatest elements of each row.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, dtype_error, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::types::{DType, TensorType};

/// x [.., n] -> the greatest or least elements of each row and their places, both [.., count], the best first; of equal
/// ones that of the lower place. A NaN is greater than any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TopK {
    /// The number of elements that are taken of each row.
    pub count: usize,
    /// Whether the greatest are taken, or else the least.
    pub greatest: bool,
}

impl TopK {
    /// Compares two elements of a row by their order in the result, whatever their places.
    fn compare_elements(&self, a: f64, b: f64) -> Ordering {
        let ascending = a.partial_cmp(&b).unwrap_or(a.is_nan().cmp(&b.is_nan()));
        if self.greatest { ascending.reverse() } else { ascending }
    }

    /// Returns the places of a row's elements, the best first.
    fn sorted_places(&self, row: &[f64]) -> Vec<usize> {
        let mut places: Vec<usize> = (0..row.len()).collect();
        places.sort_by(|&a, &b| self.compare_elements(row[a], row[b]));
        places
    }
}

impl Operation for TopK {
    fn name(&self) -> &'static str {
        "top_k"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1 operand")?;
        match operands[0].dtype {
            DType::Bool => Err(dtype_error(self.name(), operands, "truth values are cast first")),
            dtype => Ok(vec![dtype, DType::I64]),
        }
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let Some((&extent, outer)) = operands[0].shape.split_last() else {
            return Err(shape_error(self.name(), operands, "it needs a dim to choose from"));
        };
        if self.count > extent {
            let reason = format!("there are no {} of {extent} elements", self.count);
            return Err(shape_error(self.name(), operands, reason));
        }
        let mut rule = Rule::default();
        let outer = rule.add_parallel_dims(outer);
        let from = rule.add_factor(extent, FactorKind::Whole);
        let row = |last: DimRule| [outer.as_slice(), &[last]].concat();
        rule.operands = vec![row(DimRule::Factors(vec![from]))];
        rule.results = vec![row(DimRule::Whole(self.count)); 2];
        Ok(rule)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let x = operands[0].array;
        let extent = x.shape[x.shape.len() - 1];
        let mut places = Vec::new();
        let mut values = Vec::new();
        for row in x.data.chunks(extent.max(1)) {
            for place in self.sorted_places(row).into_iter().take(self.count) {
                places.push(place as f64);
                values.push(row[place]);
            }
        }
        let shape = results[0].rect.extent.clone();
        Ok(vec![Array::new(shape.clone(), values), Array::new(shape, places)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    #[test]
    fn the_best_come_first_and_equal_ones_in_their_order() {
        let best = |greatest| {
            let x = Array::new([5], vec![2., 5., f64::NAN, 5., 1.]);
            let op = Op::TopK(TopK { count: 3, greatest });
            evaluate(op, &[(DType::F32, x)]).expect("fits")[1].data.clone()
        };
        assert_eq!(best(true), [2., 1., 3.]);
        assert_eq!(best(false), [4., 0., 1.]);
    }

    #[test]
    fn more_than_there_are_is_an_error() {
        let op = Op::TopK(TopK { count: 4, greatest: true });
        let error = op.infer_types(&[&TensorType::new(DType::F32, [2, 3])]).expect_err("4 of 3");
        assert!(error.to_string().ends_with("there are no 4 of 3 elements"), "{error}");
    }
}
