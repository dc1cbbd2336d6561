//! Look-up of rows and its gradient.

use serde::{Deserialize, Serialize};

use super::shards::{check_index_dtype, check_indices, fill_shard, one_float, read_element};
use crate::array::Array;
use crate::mesh::unravel_position;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::sbp::ReduceKind;
use crate::types::{DType, TensorType};

/// (table [V, D], rows [..] of i64) -> [.., D]. V is indexed: split, each rank looks up what it holds and the
/// results are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EmbeddingOp {}

/// (rows [..] of i64, g [.., D]) -> [V, D]: each g added into its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EmbeddingGrad {
    /// The number V of rows of the table.
    pub rows: usize,
}

impl Operation for EmbeddingOp {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 2, "2")?;
        check_index_dtype(self.name(), operands, 1)?;
        Ok(vec![one_float(self.name(), operands, &[0])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let [rows, width] = operands[0].shape[..] else {
            return Err(shape_error(self.name(), operands, "the table must have two dims"));
        };
        let mut rule = Rule { linear: vec![vec![0]], ..Rule::default() };
        let ids = rule.add_parallel_dims(&operands[1].shape);
        let row = DimRule::Factors(vec![rule.add_factor(rows, FactorKind::Indexed)]);
        let column = DimRule::Factors(vec![rule.add_factor(width, FactorKind::Parallel)]);
        rule.results = vec![[ids.as_slice(), std::slice::from_ref(&column)].concat()];
        rule.operands = vec![vec![row, column], ids];
        Ok(rule)
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
        let [table, ids] = [&operands[0], &operands[1]];
        check_indices(self.name(), "row", ids, table.region.global[0], None)?;
        let first = table.region.rect.origin[0];
        let held = first..first + table.region.rect.extent[0];
        let element = |index: &[usize]| {
            let (column, position) = index.split_last().expect("the result has a last dim");
            let row = read_element(ids, position) as usize;
            if held.contains(&row) { read_element(table, &[row, *column]) } else { 0.0 }
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

impl Operation for EmbeddingGrad {
    fn name(&self) -> &'static str {
        "embedding_grad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 2, "2")?;
        check_index_dtype(self.name(), operands, 0)?;
        Ok(vec![one_float(self.name(), operands, &[1])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let ids = &operands[0].shape;
        let Some((&width, _)) =
            operands[1].shape.split_last().filter(|(_, outer)| *outer == ids.as_slice())
        else {
            return Err(shape_error(
                self.name(),
                operands,
                "there must be one gradient row for each index",
            ));
        };
        let mut rule = Rule { linear: vec![vec![1]], ..Rule::default() };
        let mut ids = rule.add_parallel_dims(ids);
        rule.factors.iter_mut().for_each(|f| f.kind = FactorKind::Reduction(ReduceKind::Sum));
        let row = DimRule::Factors(vec![rule.add_factor(self.rows, FactorKind::Parallel)]);
        let column = DimRule::Factors(vec![rule.add_factor(width, FactorKind::Parallel)]);
        rule.operands = vec![ids.clone()];
        ids.push(column.clone());
        rule.operands.push(ids);
        rule.results = vec![vec![row, column]];
        Ok(rule)
    }

    /// Counts one addition for each index, whereas the points count every row for each.
    fn flops_per_point(&self) -> f64 {
        1.0 / self.rows.max(1) as f64
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [ids, g] = [&operands[0], &operands[1]];
        check_indices(self.name(), "row", ids, self.rows, None)?;
        let rect = &results[0].rect;
        let mut table = Array::full(rect.extent.clone(), 0.0);
        let first = rect.origin[0];
        for (place, &row) in ids.array.data.iter().enumerate() {
            let row = row as usize;
            if !(first..first + rect.extent[0]).contains(&row) {
                continue;
            }
            for column in 0..rect.extent[1] {
                let index = [unravel_position(place, &ids.array.shape), vec![column]].concat();
                let offset = table.offset_of_index(&[row - first, column]);
                table.data[offset] += g.array.element_at(&index);
            }
        }
        Ok(vec![table])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;
    use crate::shard::Rect;

    fn table() -> Array {
        Array::new([3, 2], vec![1., 2., 3., 4., 5., 6.])
    }

    #[test]
    fn looks_up_and_adds_back() {
        let ids = (DType::I64, Array::new([3], vec![2., 0., 2.]));
        let op = Op::Embedding(EmbeddingOp {});
        let y = evaluate(op, &[(DType::F32, table()), ids.clone()]).expect("fits");
        assert_eq!(y, [Array::new([3, 2], vec![5., 6., 1., 2., 5., 6.])]);
        let op = Op::EmbeddingGrad(EmbeddingGrad { rows: 3 });
        let g = Array::new([3, 2], vec![1., 2., 3., 4., 10., 20.]);
        let dt = evaluate(op, &[ids, (DType::F32, g)]).expect("fits");
        assert_eq!(dt, [Array::new([3, 2], vec![3., 4., 0., 0., 11., 22.])]);
    }

    #[test]
    fn a_row_outside_the_table_is_an_error_and_one_of_another_shard_is_not() {
        let ids = Array::new([2], vec![1., 3.]);
        let op = Op::Embedding(EmbeddingOp {});
        let operands = [(DType::F32, table()), (DType::I64, ids)];
        let error = evaluate(op.clone(), &operands).expect_err("row 3 of 3").to_string();
        assert_eq!(error, "row 3 at position [1] is out of range: embedding takes 0 to 2");

        let shard = Array::new([1, 2], vec![5., 6.]);
        let rect = Rect { origin: vec![2, 0], extent: vec![1, 2] };
        let held = Region { dtype: DType::F32, global: vec![3, 2], rect };
        let ids = Array::new([2], vec![2., 0.]);
        let ids_region = Region::whole(&TensorType::new(DType::I64, [2]));
        let result = Region::whole(&TensorType::new(DType::F32, [2, 2]));
        let operands = [
            Operand { array: &shard, region: &held },
            Operand { array: &ids, region: &ids_region },
        ];
        let y = op.operation().evaluate(&operands, &[result], &EvalContext::default());
        assert_eq!(y.expect("in range"), [Array::new([2, 2], vec![5., 6., 0., 0.])]);
    }
}
