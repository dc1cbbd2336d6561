//! Helpers of arithmetic ops: broadcasting as NumPy does, elementwise evaluation, checks of element types.

use crate::array::Array;
use crate::float8::{E4M3, E5M2};
use crate::operation::{OpError, Region, dtype_error, shape_error};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::types::{DType, TensorType};

/// Adds the dims of operands of these shapes and of their broadcast result: a parallel factor for each dim of the result. `None` where the shapes do
/// not broadcast.
pub(crate) fn broadcast_dims(
    rule: &mut Rule,
    shapes: &[&[usize]],
) -> Option<(Vec<Vec<DimRule>>, Vec<DimRule>)> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut operands = vec![Vec::new(); shapes.len()];
    let mut result = Vec::new();
    for dim in 0..rank {
        let extents: Vec<Option<usize>> =
            shapes.iter().map(|s| (dim + s.len()).checked_sub(rank).map(|d| s[d])).collect();
        let size = extents.iter().flatten().copied().find(|&extent| extent != 1).unwrap_or(1);
        let factor = rule.add_factor(size, FactorKind::Parallel);
        for (dims, extent) in operands.iter_mut().zip(extents) {
            match extent {
                Some(extent) if extent == size => dims.push(DimRule::Factors(vec![factor])),
                Some(1) => dims.push(DimRule::Factors(Vec::new())),
                Some(_) => return None,
                None => {}
            }
        }
        result.push(DimRule::Factors(vec![factor]));
    }
    Some((operands, result))
}

/// Returns the rule of an elementwise op with one result on broadcast operands.
pub(crate) fn broadcast_rule(
    op: &'static str,
    operands: &[&TensorType],
    linear: Vec<Vec<usize>>,
) -> Result<Rule, OpError> {
    let mut rule = Rule { linear, ..Rule::default() };
    let shapes: Vec<&[usize]> = operands.iter().map(|ty| ty.shape.as_slice()).collect();
    let (dims, result) = broadcast_dims(&mut rule, &shapes)
        .ok_or_else(|| shape_error(op, operands, "the shapes do not broadcast"))?;
    (rule.operands, rule.results) = (dims, vec![result]);
    Ok(rule)
}

/// Computes `function` at each element of broadcast operands.
pub(crate) fn map_broadcast<const N: usize>(
    result: &Region,
    operands: [&Array; N],
    function: impl Fn([f64; N]) -> f64,
) -> Array {
    let shape = &result.rect.extent;
    if operands.iter().all(|array| &array.shape == shape) {
        let element = |i: usize| function(operands.map(|array| array.data[i]));
        return Array::new(shape.clone(), (0..shape.iter().product()).map(element).collect());
    }
    Array::from_fn(shape.clone(), |index| function(operands.map(|array| array.at_broadcast(index))))
}

/// Checks that all operands have one element type, and returns it.
pub(crate) fn same_dtype(op: &'static str, operands: &[&TensorType]) -> Result<DType, OpError> {
    let dtype = operands[0].dtype;
    match operands.iter().find(|other| other.dtype != dtype) {
        None => Ok(dtype),
        Some(other) => {
            let reason = format!("element types {dtype} and {} differ", other.dtype);
            Err(dtype_error(op, operands, reason))
        }
    }
}

/// Returns a number as an element of this type: integers truncate and wrap around, bool is whether it is not 0; a floating-point number of 16 bits
/// or more stays as it is, because the oracle does not round there.
pub(crate) fn fit_to_dtype(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => value,
        DType::I64 => value as i64 as f64,
        DType::I32 => f64::from(value as i64 as i32),
        DType::U8 => f64::from(value as i64 as u8),
        DType::Bool => f64::from(u8::from(value != 0.0)),
        DType::F8E4M3 => E4M3.decode(E4M3.encode(value as f32)).into(),
        DType::F8E5M2 => E5M2.decode(E5M2.encode(value as f32)).into(),
    }
}
