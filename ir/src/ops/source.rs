//! Sources: ops without operands.
//!
//! The payload of an [`Input`] says which dim counts samples: the first unless said, another, or none. No later step takes dim 0
//! for granted. The pass `rates` cuts an input along that dim, fixed strategies split it, and a feed of the plan names it.

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::mesh::unravel_position;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, dtype_error, shape_error,
};
use crate::ops::broadcast::fit_to_dtype;
use crate::random::{RandomStream, key_of};
use crate::rule::Rule;
use crate::scalar::Scalar;
use crate::table::{Table, decode_numbers};
use crate::types::{DType, Samples, TensorType, row_major_strides};

/// A tensor that the user feeds each step. Under microbatches it is cut along the dim that counts samples.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Input {
    /// The name of the tensor in a data file or a feed.
    pub name: String,
    /// Element type and shape of a whole batch.
    pub ty: TensorType,
    /// The dim that counts samples: the first, where nothing is said.
    #[serde(default, skip_serializing_if = "Samples::is_first")]
    pub samples: Samples,
}

impl Input {
    /// Makes an input whose first dim counts samples.
    pub fn new(name: impl Into<String>, ty: TensorType) -> Self {
        Self { name: name.into(), ty, samples: Samples::First }
    }

    /// Returns the dim that counts samples, if any does.
    pub fn samples_dim(&self) -> Option<usize> {
        self.samples.dim(self.ty.shape.len())
    }

    /// Returns the number of samples of a batch; `None` where no dim counts them.
    pub fn batch_size(&self) -> Option<usize> {
        self.samples.count_samples(&self.ty.shape)
    }
}

/// A weight or a state of the optimizer: kept from step to step.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Variable {
    /// The name in a weights file; unique in the graph.
    pub name: String,
    /// The element type and shape.
    pub ty: TensorType,
    /// The first content.
    pub init: Init,
    /// Whether an optimizer changes it.
    pub trainable: bool,
}

/// The first content of a variable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// A content that is read by name from the model's weights.
    Weights,
    /// A table that the import of the model has computed: no weight of the model, so no file of weights holds it.
    Table(Table),
    /// A content of one value everywhere.
    Fill(Scalar),
    /// A normally distributed content, keyed by the variable's name.
    Normal {
        /// The mean.
        mean: Scalar,
        /// The standard deviation.
        std: Scalar,
    },
    /// A uniformly distributed content, in [low, high), keyed by the variable's name.
    Uniform {
        /// The lower bound.
        low: Scalar,
        /// The upper bound.
        high: Scalar,
    },
}

/// A small literal; large ones are variables that begin as tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Constant {
    /// The element type and shape.
    pub ty: TensorType,
    /// The elements, row-major.
    pub data: Vec<Scalar>,
}

/// A tensor with one value everywhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Full {
    /// The element type and shape.
    pub ty: TensorType,
    /// The value.
    pub value: Scalar,
}

/// A tensor that holds at each element its index along a dim, in the whole tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Iota {
    /// The element type and shape.
    pub ty: TensorType,
    /// The dim whose index is held.
    pub dim: usize,
}

/// Random numbers, new each step: functions of (seed, key, step, global element index).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Random {
    /// The element type (floating) and shape.
    pub ty: TensorType,
    /// The distribution.
    pub distribution: Distribution,
    /// The key that tells this op's numbers from those of others.
    pub key: u64,
}

/// A distribution of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// The normal distribution, with this mean and standard deviation.
    Normal {
        /// The mean.
        mean: Scalar,
        /// The standard deviation.
        std: Scalar,
    },
    /// The uniform distribution in [low, high).
    Uniform {
        /// The lower bound.
        low: Scalar,
        /// The upper bound.
        high: Scalar,
    },
}

impl Distribution {
    /// Returns the random number of one element, computed in `f64` and rounded once.
    pub fn draw(&self, stream: &RandomStream, element: u64) -> f32 {
        let number = match *self {
            Self::Normal { mean, std } => mean.0 + std.0 * f64::from(stream.normal(element)),
            Self::Uniform { low, high } => {
                low.0 + (high.0 - low.0) * f64::from(stream.uniform(element))
            }
        };
        number as f32
    }
}

impl Init {
    /// Returns the first content of the element of the variable `name` at this row-major position of the whole; `None` where it is read from a file
    /// or a table.
    pub(crate) fn first_value(&self, name: &str, seed: u64, element: u64) -> Option<f64> {
        match self {
            Self::Weights | Self::Table(_) => None,
            Self::Fill(value) => Some(value.0),
            Self::Normal { .. } | Self::Uniform { .. } => {
                let (distribution, stream) = self.random_stream(name, seed)?;
                Some(f64::from(distribution.draw(&stream, element)))
            }
        }
    }

    /// Returns the source of random content: the distribution, and the stream of the variable's name. `None` where the content is not random.
    pub fn random_stream(&self, name: &str, seed: u64) -> Option<(Distribution, RandomStream)> {
        let distribution = match *self {
            Self::Weights | Self::Table(_) | Self::Fill(_) => return None,
            Self::Normal { mean, std } => Distribution::Normal { mean, std },
            Self::Uniform { low, high } => Distribution::Uniform { low, high },
        };
        Some((distribution, RandomStream { seed, key: key_of(name), step: 0 }))
    }
}

/// Returns the rule of every source: all points are independent.
fn source_rule(ty: &TensorType) -> Rule {
    let mut rule = Rule::default();
    rule.results = vec![rule.add_parallel_dims(&ty.shape)];
    rule
}

fn source_dtype(
    op: &'static str,
    operands: &[&TensorType],
    ty: &TensorType,
) -> Result<Vec<DType>, OpError> {
    check_arity(op, operands, 0, "no operands")?;
    Ok(vec![ty.dtype])
}

fn check_float(op: &'static str, ty: &TensorType) -> Result<(), OpError> {
    if ty.dtype.is_float() {
        return Ok(());
    }
    Err(dtype_error(op, &[ty], "random numbers need a floating-point element type"))
}

/// Makes the shard of a result whose element at a row-major position of the whole is `element(position)`.
fn fill_by_position(region: &Region, mut element: impl FnMut(usize) -> f64) -> Vec<Array> {
    let whole = Strided::from_region(region);
    vec![Array::from_fn(region.rect.extent.clone(), |index| {
        fit_to_dtype(region.dtype, element(whole.position(index)))
    })]
}

/// Row-major positions in the whole tensor of the elements of a shard.
struct Strided {
    strides: Vec<usize>,
    start: usize,
}

impl Strided {
    fn from_region(region: &Region) -> Self {
        let strides = row_major_strides(&region.global);
        let start = region.rect.origin.iter().zip(&strides).map(|(o, stride)| o * stride).sum();
        Self { strides, start }
    }

    fn position(&self, local: &[usize]) -> usize {
        self.start + local.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum::<usize>()
    }
}

impl Operation for Input {
    fn name(&self) -> &'static str {
        "input"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        source_dtype(self.name(), operands, &self.ty)
    }

    fn rule(&self, _operands: &[&TensorType]) -> Result<Rule, OpError> {
        if let Samples::Dim(dim) = self.samples
            && dim >= self.ty.shape.len()
        {
            let reason = format!("`{}` is {}: it has no dim {dim} for samples", self.name, self.ty);
            return Err(OpError::Shapes { op: "input", operands: Vec::new(), reason });
        }
        Ok(source_rule(&self.ty))
    }

    fn flops_per_point(&self) -> f64 {
        0.0
    }

    fn is_source(&self) -> bool {
        true
    }

    fn is_function(&self) -> bool {
        false
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        Err(OpError::NoValue { op: self.name(), name: self.name.clone() })
    }
}

impl Operation for Variable {
    fn name(&self) -> &'static str {
        "variable"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        match &self.init {
            Init::Normal { .. } | Init::Uniform { .. } => check_float(self.name(), &self.ty)?,
            Init::Table(table) if table.bytes().len() != self.ty.bytes() => {
                let (found, needed) = (table.bytes().len(), self.ty.bytes());
                let reason = format!("its table has {found} bytes, and {} needs {needed}", self.ty);
                return Err(shape_error(self.name(), operands, reason));
            }
            Init::Weights | Init::Table(_) | Init::Fill(_) => {}
        }
        source_dtype(self.name(), operands, &self.ty)
    }

    fn rule(&self, _operands: &[&TensorType]) -> Result<Rule, OpError> {
        Ok(source_rule(&self.ty))
    }

    fn flops_per_point(&self) -> f64 {
        0.0
    }

    fn is_executed(&self) -> bool {
        false
    }

    fn is_source(&self) -> bool {
        true
    }

    fn is_function(&self) -> bool {
        false
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        results: &[Region],
        cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        if self.init == Init::Weights {
            return Err(OpError::NoValue { op: self.name(), name: self.name.clone() });
        }
        if let Init::Table(table) = &self.init {
            let elements = decode_numbers(self.ty.dtype, table.bytes());
            return Ok(fill_by_position(&results[0], |i| elements.get(i).copied().unwrap_or(0.0)));
        }
        let element =
            |i: usize| self.init.first_value(&self.name, cx.seed, i as u64).unwrap_or(0.0);
        Ok(fill_by_position(&results[0], element))
    }
}

impl Operation for Constant {
    fn name(&self) -> &'static str {
        "constant"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        source_dtype(self.name(), operands, &self.ty)
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        if self.data.len() != self.ty.elements() {
            let reason = format!("{} elements are given for {}", self.data.len(), self.ty);
            return Err(shape_error(self.name(), operands, reason));
        }
        Ok(source_rule(&self.ty))
    }

    fn flops_per_point(&self) -> f64 {
        0.0
    }

    fn is_source(&self) -> bool {
        true
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        Ok(fill_by_position(&results[0], |i| self.data[i].0))
    }
}

impl Operation for Full {
    fn name(&self) -> &'static str {
        "full"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        source_dtype(self.name(), operands, &self.ty)
    }

    fn rule(&self, _operands: &[&TensorType]) -> Result<Rule, OpError> {
        Ok(source_rule(&self.ty))
    }

    fn flops_per_point(&self) -> f64 {
        0.0
    }

    fn is_source(&self) -> bool {
        true
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        Ok(fill_by_position(&results[0], |_| self.value.0))
    }
}

impl Operation for Iota {
    fn name(&self) -> &'static str {
        "iota"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        if self.ty.dtype == DType::Bool {
            return Err(dtype_error(
                self.name(),
                operands,
                "an index needs a numeric element type",
            ));
        }
        source_dtype(self.name(), operands, &self.ty)
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        if self.dim >= self.ty.shape.len() {
            let reason = format!("{} has no dim {}", self.ty, self.dim);
            return Err(shape_error(self.name(), operands, reason));
        }
        Ok(source_rule(&self.ty))
    }

    fn flops_per_point(&self) -> f64 {
        0.0
    }

    fn is_source(&self) -> bool {
        true
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        Ok(fill_by_position(&results[0], |i| unravel_position(i, &self.ty.shape)[self.dim] as f64))
    }
}

impl Operation for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_float(self.name(), &self.ty)?;
        source_dtype(self.name(), operands, &self.ty)
    }

    fn rule(&self, _operands: &[&TensorType]) -> Result<Rule, OpError> {
        Ok(source_rule(&self.ty))
    }

    fn flops_per_point(&self) -> f64 {
        0.0
    }

    fn is_source(&self) -> bool {
        true
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        results: &[Region],
        cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let stream = cx.random_stream(self.key);
        let draw = |i: usize| f64::from(self.distribution.draw(&stream, i as u64));
        Ok(fill_by_position(&results[0], draw))
    }
}
