//! Helpers of several families of ops: evaluation of shards, checks of operands, rules of elementwise ops.

use crate::array::Array;
use crate::mesh::unravel_position;
use crate::operation::{OpError, Operand, Region, check_arity, dtype_error, shape_error};
use crate::rule::{FactorKind, Rule};
use crate::sbp::ReduceKind;
use crate::types::{DType, TensorType, row_major_position, row_major_strides};

/// Makes a shard of a result whose element at each index *of the whole tensor* is `element(index)`.
pub(crate) fn fill_shard(region: &Region, mut element: impl FnMut(&[usize]) -> f64) -> Array {
    let mut global = region.rect.origin.clone();
    Array::from_fn(region.rect.extent.clone(), |local| {
        for (place, (i, o)) in global.iter_mut().zip(local.iter().zip(&region.rect.origin)) {
            *place = i + o;
        }
        element(&global)
    })
}

/// Returns the element of an operand at an index of the whole tensor. The rule promises that the shard holds it.
pub(crate) fn read_element(operand: &Operand<'_>, index: &[usize]) -> f64 {
    let origin = &operand.region.rect.origin;
    let local = index.iter().zip(origin).map(|(i, o)| i - o);
    operand.array.data[row_major_position(local, &operand.array.shape)]
}

/// Returns the index in the whole tensor of an index in a shard.
pub(crate) fn global_index(region: &Region, local: &[usize]) -> Vec<usize> {
    local.iter().zip(&region.rect.origin).map(|(i, o)| i + o).collect()
}

/// Applies `lane` to the lanes along `axis` of arrays of one shape; it returns a lane of each result.
pub(crate) fn map_lanes<const N: usize>(
    axis: usize,
    arrays: &[&Array],
    lane: impl Fn(&[Vec<f64>]) -> [Vec<f64>; N],
) -> [Array; N] {
    let shape = &arrays[0].shape;
    let (extent, stride) = (shape[axis], row_major_strides(shape)[axis]);
    let mut results = [(); N].map(|()| Array::full(shape.clone(), 0.0));
    for start in 0..arrays[0].data.len() {
        if start / stride % extent != 0 {
            continue;
        }
        let read = |array: &&Array| (0..extent).map(|i| array.data[start + i * stride]).collect();
        let lanes = lane(&arrays.iter().map(read).collect::<Vec<Vec<f64>>>());
        for (result, values) in results.iter_mut().zip(lanes) {
            for (i, value) in values.into_iter().enumerate() {
                result.data[start + i * stride] = value;
            }
        }
    }
    results
}

/// Returns the rule of an elementwise op on operands of one shape.
pub(crate) fn elementwise_rule(shape: &[usize], operands: usize, results: usize) -> Rule {
    let mut rule = Rule::default();
    let dims = rule.add_parallel_dims(shape);
    rule.operands = vec![dims.clone(); operands];
    rule.results = vec![dims; results];
    rule
}

/// Checks that operands are floating-point numbers of one type, and returns it.
pub(crate) fn one_float(
    op: &'static str,
    all: &[&TensorType],
    which: &[usize],
) -> Result<DType, OpError> {
    let dtype = all[which[0]].dtype;
    if !dtype.is_float() {
        return Err(dtype_error(op, all, "it computes with floating-point numbers"));
    }
    if which.iter().any(|&i| all[i].dtype != dtype) {
        return Err(dtype_error(op, all, "their element types differ"));
    }
    Ok(dtype)
}

/// Checks that an operand holds indices.
pub(crate) fn check_index_dtype(
    op: &'static str,
    all: &[&TensorType],
    which: usize,
) -> Result<(), OpError> {
    if all[which].dtype == DType::I64 {
        return Ok(());
    }
    Err(dtype_error(op, all, format!("operand {which} must be i64")))
}

/// Checks that operands have one shape.
pub(crate) fn same_shape(
    op: &'static str,
    all: &[&TensorType],
    which: &[usize],
) -> Result<(), OpError> {
    if which.iter().all(|&i| all[i].shape == all[which[0]].shape) {
        return Ok(());
    }
    Err(shape_error(op, all, "their shapes differ"))
}

/// Returns the rule of an op that adds up something of all elements of its operand: (x) -> [].
pub(crate) fn sum_of_all(operands: &[&TensorType]) -> Rule {
    let mut rule = Rule::default();
    let dims = rule.add_parallel_dims(&operands[0].shape);
    for factor in &mut rule.factors {
        factor.kind = FactorKind::Reduction(ReduceKind::Sum);
    }
    (rule.operands, rule.results) = (vec![dims], vec![Vec::new()]);
    rule
}

/// Infers the element type of an op from floating-point numbers of any precision to f32.
pub(crate) fn float_to_f32(
    op: &'static str,
    operands: &[&TensorType],
) -> Result<Vec<DType>, OpError> {
    check_arity(op, operands, 1, "1 operand")?;
    if !operands[0].dtype.is_float() {
        return Err(dtype_error(op, operands, "it needs floating-point elements"));
    }
    Ok(vec![DType::F32])
}

/// Checks that a dim exists.
pub(crate) fn has_dim(op: &'static str, all: &[&TensorType], axis: usize) -> Result<(), OpError> {
    let rank = all[0].shape.len();
    if axis < rank {
        return Ok(());
    }
    Err(shape_error(op, all, format!("there is no dim {axis}, the rank is {rank}")))
}

/// Checks indices against `0..range` of the whole tensor; `ignored` passes too.
pub(crate) fn check_indices(
    op: &'static str,
    what: &'static str,
    operand: &Operand<'_>,
    range: usize,
    ignored: Option<i64>,
) -> Result<(), OpError> {
    for (local, &value) in operand.array.data.iter().enumerate() {
        let index = value as i64;
        if !(0..range as i64).contains(&index) && ignored != Some(index) {
            let local = unravel_position(local, &operand.array.shape);
            let position = global_index(operand.region, &local);
            return Err(OpError::Index { op, what, index, range, position });
        }
    }
    Ok(())
}

/// Evaluates an op that leaves each element as it is, and the rule of which is elementwise.
pub(crate) fn copy_operand(operands: &[Operand<'_>]) -> Vec<Array> {
    vec![operands[0].array.clone()]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::op::{EvalContext, Op};

    /// Evaluates an op on whole arrays.
    pub(crate) fn evaluate(op: Op, operands: &[(DType, Array)]) -> Result<Vec<Array>, OpError> {
        let types: Vec<TensorType> = operands
            .iter()
            .map(|(dtype, array)| TensorType::new(*dtype, array.shape.clone()))
            .collect();
        let results = op.infer_types(&types.iter().collect::<Vec<_>>())?;
        let regions: Vec<Region> = types.iter().map(Region::whole).collect();
        let operands: Vec<Operand<'_>> = operands
            .iter()
            .zip(&regions)
            .map(|((_, array), region)| Operand { array, region })
            .collect();
        let results: Vec<Region> = results.iter().map(Region::whole).collect();
        op.operation().evaluate(&operands, &results, &EvalContext::default())
    }
}
