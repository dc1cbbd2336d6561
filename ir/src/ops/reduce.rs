//! Reductions over dims.

use serde::{Deserialize, Serialize};

use crate::array::{Array, visit_indices};
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, dtype_error, shape_error,
};
use crate::ops::broadcast::fit_to_dtype;
use crate::rule::{DimRule, FactorKind, Rule};
use crate::sbp::ReduceKind;
use crate::types::{DType, TensorType, row_major_position};

/// A reduction over dims. A mean divides by the whole tensor's extents, whatever the shard or microbatch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reduce {
    /// The function that reduces.
    pub function: ReduceFunction,
    /// The dims that are reduced, ascending, distinct.
    pub axes: Vec<usize>,
    /// Whether reduced dims stay, with extent 1.
    pub keep_dims: bool,
}

/// The functions of [`Reduce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceFunction {
    /// The sum of the elements
    Sum,
    /// The mean of the elements: their sum over their number
    Mean,
    /// The greatest of the elements
    Max,
    /// The least of the elements
    Min,
    /// The greatest of the sizes of the elements, which are floating-point numbers
    MaxAbs,
}

/// The index (i64) of the greatest element along a dim, the first where several are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ArgMax {
    /// The dim along which the greatest is sought.
    pub axis: usize,
    /// Whether that dim stays, with extent 1.
    pub keep_dims: bool,
}

impl ReduceFunction {
    /// Returns the reduction that joins partial results.
    pub fn kind(self) -> ReduceKind {
        match self {
            Self::Sum | Self::Mean => ReduceKind::Sum,
            Self::Max | Self::MaxAbs => ReduceKind::Max,
            Self::Min => ReduceKind::Min,
        }
    }

    /// Returns the result over no elements: the value that changes nothing where it is joined to others.
    pub fn identity(self, dtype: DType) -> f64 {
        let (least, greatest) = match dtype {
            DType::I64 => (i64::MIN as f64, i64::MAX as f64),
            DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
            DType::U8 => (0.0, 255.0),
            _ => (f64::NEG_INFINITY, f64::INFINITY),
        };
        match self {
            Self::Sum | Self::Mean | Self::MaxAbs => 0.0,
            Self::Max => least,
            Self::Min => greatest,
        }
    }
}

impl Reduce {
    /// Returns the number of elements that each result is made of; `shape` is that of the whole operand.
    pub fn count_elements(&self, shape: &[usize]) -> usize {
        self.axes.iter().map(|&axis| shape[axis]).product()
    }

    /// Returns the extents `[before, kept, after]` where a sum or mean of floating-point numbers of this type reduces all dims before and after one
    /// run of dims that stay: a chain of elementwise ops may end in such a reduction. `None` of others.
    pub fn run_extents(&self, operand: &TensorType) -> Option<[usize; 3]> {
        if self.function.kind() != ReduceKind::Sum || !operand.dtype.is_float() {
            return None;
        }
        let shape = &operand.shape;
        let kept = |&dim: &usize| !self.axes.contains(&dim) && shape[dim] != 1;
        let Some(first) = (0..shape.len()).find(kept) else {
            return Some([shape.iter().product(), 1, 1]);
        };
        let last = (0..shape.len()).rfind(kept)?;
        if (first..=last).any(|dim| !kept(&dim) && shape[dim] != 1) {
            return None;
        }
        let extents = [&shape[..first], &shape[first..=last], &shape[last + 1..]];
        Some(extents.map(|extents| extents.iter().product()))
    }

    /// Returns the shape of the operand with every reduced dim of extent 1.
    pub(crate) fn kept_shape(&self, shape: &[usize]) -> Vec<usize> {
        let extent = |(dim, &extent)| if self.axes.contains(&dim) { 1 } else { extent };
        shape.iter().enumerate().map(extent).collect()
    }

    fn check_axes(&self, operands: &[&TensorType]) -> Result<(), OpError> {
        let rank = operands[0].shape.len();
        if self.axes.windows(2).any(|pair| pair[0] >= pair[1]) {
            let reason = format!("axes {:?} are not ascending and distinct", self.axes);
            return Err(shape_error(self.name(), operands, reason));
        }
        match self.axes.iter().find(|&&axis| axis >= rank) {
            None => Ok(()),
            Some(axis) => {
                Err(shape_error(self.name(), operands, format!("there is no dim {axis}")))
            }
        }
    }
}

impl Operation for Reduce {
    fn name(&self) -> &'static str {
        "reduce"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1 operand")?;
        let dtype = operands[0].dtype;
        if dtype == DType::Bool {
            return Err(dtype_error(self.name(), operands, "truth values are cast first"));
        }
        let name = match self.function {
            ReduceFunction::Mean => "a mean",
            ReduceFunction::MaxAbs => "the greatest size",
            ReduceFunction::Sum | ReduceFunction::Max | ReduceFunction::Min => {
                return Ok(vec![dtype]);
            }
        };
        if !dtype.is_float() {
            let reason = format!("{name} needs floating-point elements");
            return Err(dtype_error(self.name(), operands, reason));
        }
        Ok(vec![dtype])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        self.check_axes(operands)?;
        let kind = self.function.kind();
        let linear = if kind == ReduceKind::Sum { vec![vec![0]] } else { Vec::new() };
        let mut rule = Rule { linear, ..Rule::default() };
        let reduced = |dim| self.axes.contains(&dim).then_some(FactorKind::Reduction(kind));
        let (operand, result) =
            reduced_dims(&mut rule, &operands[0].shape, reduced, self.keep_dims);
        (rule.operands, rule.results) = (vec![operand], vec![result]);
        Ok(rule)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let (operand, dtype) = (operands[0], results[0].dtype);
        let kind = self.function.kind();
        let kept = self.kept_shape(&operand.array.shape);
        let mut result = Array::full(kept, self.function.identity(dtype));
        let mut values = operand.array.data.iter();
        visit_indices(&operand.array.shape, |index| {
            let own = |(dim, &i): (usize, &usize)| if self.axes.contains(&dim) { 0 } else { i };
            let offset = row_major_position(index.iter().enumerate().map(own), &result.shape);
            let value = *values.next().expect("an element for each index");
            let value = if self.function == ReduceFunction::MaxAbs { value.abs() } else { value };
            result.data[offset] = fit_to_dtype(dtype, kind.combine(result.data[offset], value));
        });
        if self.function == ReduceFunction::Mean {
            let count = self.count_elements(&operand.region.global) as f64;
            result.data.iter_mut().for_each(|value| *value /= count);
        }
        result.shape = results[0].rect.extent.clone();
        Ok(vec![result])
    }
}

/// Adds the dims of an operand and of its reduction: `reduced` gives the kind of a reduced dim's factor.
fn reduced_dims(
    rule: &mut Rule,
    shape: &[usize],
    reduced: impl Fn(usize) -> Option<FactorKind>,
    keep_dims: bool,
) -> (Vec<DimRule>, Vec<DimRule>) {
    let (mut operand, mut result) = (Vec::new(), Vec::new());
    for (dim, &extent) in shape.iter().enumerate() {
        let kind = reduced(dim);
        let factor = rule.add_factor(extent, kind.unwrap_or(FactorKind::Parallel));
        operand.push(DimRule::Factors(vec![factor]));
        match kind {
            None => result.push(DimRule::Factors(vec![factor])),
            Some(_) if keep_dims => result.push(DimRule::Factors(Vec::new())),
            Some(_) => {}
        }
    }
    (operand, result)
}

impl Operation for ArgMax {
    fn name(&self) -> &'static str {
        "argmax"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1 operand")?;
        if operands[0].dtype == DType::Bool {
            return Err(dtype_error(self.name(), operands, "truth values are cast first"));
        }
        Ok(vec![DType::I64])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        match operands[0].shape.get(self.axis) {
            None => {
                let reason = format!("there is no dim {}", self.axis);
                return Err(shape_error(self.name(), operands, reason));
            }
            Some(0) => {
                return Err(shape_error(self.name(), operands, "an empty dim has no greatest"));
            }
            Some(_) => {}
        }
        let mut rule = Rule::default();
        let reduced = |dim| (dim == self.axis).then_some(FactorKind::Whole);
        let (operand, result) =
            reduced_dims(&mut rule, &operands[0].shape, reduced, self.keep_dims);
        (rule.operands, rule.results) = (vec![operand], vec![result]);
        Ok(rule)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let x = operands[0].array;
        let result = Array::from_fn(results[0].rect.extent.clone(), |index| {
            let mut index = index.to_vec();
            if self.keep_dims {
                index[self.axis] = 0;
            } else {
                index.insert(self.axis, 0);
            }
            find_greatest(x, index, self.axis) as f64
        });
        Ok(vec![result])
    }
}

/// Finds the first index of the greatest along a dim; a NaN is greater than any number.
fn find_greatest(x: &Array, mut index: Vec<usize>, axis: usize) -> usize {
    let mut best = (0, x.element_at(&index));
    for i in 1..x.shape[axis] {
        index[axis] = i;
        let value = x.element_at(&index);
        if value > best.1 || value.is_nan() && !best.1.is_nan() {
            best = (i, value);
        }
    }
    best.0
}
