//! Sources: what has no operands.

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::builder::Tensor;
use crate::op::{EvalContext, GradientNode, OpError, Operand, Operation, Region};
use crate::rule::Rule;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// What the user feeds each step. The first dim counts samples; under microbatches it is cut along it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// The name of the tensor in a data file or a feed.
    pub name: String,
    /// Element type and shape of a whole batch.
    pub ty: TensorType,
}

/// A weight or a state of the optimizer: kept from step to step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variable {
    /// The name in a weights file; unique in the graph.
    pub name: String,
    /// Element type and shape.
    pub ty: TensorType,
    /// The first content.
    pub init: Init,
    /// Whether an optimizer changes it.
    pub trainable: bool,
}

/// The first content of a variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// Read by name from the model's weights.
    Weights,
    /// One value everywhere.
    Fill(Scalar),
    /// Normally distributed, keyed by the variable's name.
    Normal {
        /// The mean.
        mean: Scalar,
        /// The standard deviation.
        std: Scalar,
    },
    /// Uniformly distributed in [low, high), keyed by the variable's name.
    Uniform {
        /// The least.
        low: Scalar,
        /// One past the greatest.
        high: Scalar,
    },
}

/// A small literal; large ones are variables that are not trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    /// Element type and shape.
    pub ty: TensorType,
    /// Elements, row-major.
    pub data: Vec<Scalar>,
}

/// One value everywhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Full {
    /// Element type and shape.
    pub ty: TensorType,
    /// The value.
    pub value: Scalar,
}

/// The global index along a dim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Iota {
    /// Element type and shape.
    pub ty: TensorType,
    /// The dim.
    pub dim: usize,
}

/// Random numbers, new each step: functions of (seed, key, step, global element index).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Random {
    /// Element type (floating) and shape.
    pub ty: TensorType,
    /// The distribution.
    pub distribution: Distribution,
    /// Tells this op's numbers from those of others.
    pub key: u64,
}

/// A distribution of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Normal, with this mean and standard deviation.
    Normal {
        /// The mean.
        mean: Scalar,
        /// The standard deviation.
        std: Scalar,
    },
    /// Uniform in [low, high).
    Uniform {
        /// The least.
        low: Scalar,
        /// One past the greatest.
        high: Scalar,
    },
}

impl Operation for Input {
    fn name(&self) -> &'static str {
        "input"
    }

    fn dtypes(&self, _operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        todo!()
    }

    fn rule(&self, _operands: &[&TensorType]) -> Result<Rule, OpError> {
        todo!()
    }

    fn gradient(&self, _node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        todo!()
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        todo!()
    }
}

impl Operation for Variable {
    fn name(&self) -> &'static str {
        "variable"
    }

    fn dtypes(&self, _operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        todo!()
    }

    fn rule(&self, _operands: &[&TensorType]) -> Result<Rule, OpError> {
        todo!()
    }

    fn gradient(&self, _node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        todo!()
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        todo!()
    }
}

impl Operation for Constant {
    fn name(&self) -> &'static str {
        "constant"
    }

    fn dtypes(&self, _operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        todo!()
    }

    fn rule(&self, _operands: &[&TensorType]) -> Result<Rule, OpError> {
        todo!()
    }

    fn gradient(&self, _node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        todo!()
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        todo!()
    }
}

impl Operation for Full {
    fn name(&self) -> &'static str {
        "full"
    }

    fn dtypes(&self, _operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        todo!()
    }

    fn rule(&self, _operands: &[&TensorType]) -> Result<Rule, OpError> {
        todo!()
    }

    fn gradient(&self, _node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        todo!()
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        todo!()
    }
}

impl Operation for Iota {
    fn name(&self) -> &'static str {
        "iota"
    }

    fn dtypes(&self, _operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        todo!()
    }

    fn rule(&self, _operands: &[&TensorType]) -> Result<Rule, OpError> {
        todo!()
    }

    fn gradient(&self, _node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        todo!()
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        todo!()
    }
}

impl Operation for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn dtypes(&self, _operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        todo!()
    }

    fn rule(&self, _operands: &[&TensorType]) -> Result<Rule, OpError> {
        todo!()
    }

    fn gradient(&self, _node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        todo!()
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        todo!()
    }
}
