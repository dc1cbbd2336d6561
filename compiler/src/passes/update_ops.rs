//! Ops of the update phase, pushed one after another beside the variable that they update: what optimizers are composed of.
//!
//! A state alone is not to be read once it is updated, so what it becomes is computed beside it.

use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::learning_rate::LearningRate;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{
    Binary, BinaryFunction, Blend, Cast, Constant, Init, SgdUpdate, Unary, UnaryFunction, Where,
};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::TensorKind;

use super::append::{Scalars, push_filled_state, push_node, push_value};
use crate::decisions::TrainingGraph;

/// Pushes ops beside a variable.
pub(super) struct Ops<'a> {
    pub training: &'a mut TrainingGraph,
    pub variable: ValueId,
    pub scalars: Scalars,
}

impl Ops<'_> {
    fn beside(&self) -> NodeId {
        self.training.graph.value(self.variable).producer
    }

    pub(super) fn push(&mut self, op: Op, operands: &[ValueId]) -> Result<ValueId, OpError> {
        let beside = self.beside();
        push_value(self.training, op, operands.to_vec(), beside)
    }

    pub(super) fn constant(&mut self, value: f64) -> Result<ValueId, OpError> {
        let ty = TensorType::new(DType::F32, []);
        self.push(Op::Constant(Constant { ty, data: vec![Scalar(value)] }), &[])
    }

    pub(super) fn unary(
        &mut self,
        function: UnaryFunction,
        x: ValueId,
    ) -> Result<ValueId, OpError> {
        self.push(Op::Unary(Unary { function }), &[x])
    }

    pub(super) fn scale(&mut self, x: ValueId, factor: f64) -> Result<ValueId, OpError> {
        self.unary(UnaryFunction::Scale(Scalar(factor)), x)
    }

    pub(super) fn offset(&mut self, x: ValueId, by: f64) -> Result<ValueId, OpError> {
        self.unary(UnaryFunction::Offset(Scalar(by)), x)
    }

    /// `factor x + by`
    pub(super) fn linear(&mut self, x: ValueId, factor: f64, by: f64) -> Result<ValueId, OpError> {
        let scaled = self.scale(x, factor)?;
        self.offset(scaled, by)
    }

    pub(super) fn binary(
        &mut self,
        function: BinaryFunction,
        a: ValueId,
        b: ValueId,
    ) -> Result<ValueId, OpError> {
        self.push(Op::Binary(Binary { function }), &[a, b])
    }

    pub(super) fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.binary(BinaryFunction::Add, a, b)
    }

    pub(super) fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.binary(BinaryFunction::Mul, a, b)
    }

    pub(super) fn div(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.binary(BinaryFunction::Div, a, b)
    }

    /// `of_a a + of_b b`
    pub(super) fn mix(
        &mut self,
        [a, b]: [ValueId; 2],
        [of_a, of_b]: [f64; 2],
    ) -> Result<ValueId, OpError> {
        let (a, b) = (self.scale(a, of_a)?, self.scale(b, of_b)?);
        self.add(a, b)
    }

    /// The first where `x` is above a limit, else the second.
    pub(super) fn choose(
        &mut self,
        (x, limit): (ValueId, f64),
        [above, other]: [ValueId; 2],
    ) -> Result<ValueId, OpError> {
        let limit = self.constant(limit)?;
        let is_above = self.binary(BinaryFunction::Greater, x, limit)?;
        self.push(Op::Where(Where {}), &[is_above, above, other])
    }

    pub(super) fn cast(&mut self, x: ValueId, dtype: DType) -> Result<ValueId, OpError> {
        match self.training.graph.value(x).ty.dtype == dtype {
            true => Ok(x),
            false => self.push(Op::Cast(Cast { dtype }), &[x]),
        }
    }

    /// The gradient as an update takes it: of f32, times the factor, then clipped.
    pub(super) fn gradient(
        &mut self,
        gradient: ValueId,
        clip: Option<Scalar>,
    ) -> Result<ValueId, OpError> {
        let mut gradient = self.cast(gradient, DType::F32)?;
        if let Some(factor) = self.scalars.factor {
            gradient = self.mul(gradient, factor)?;
        }
        match clip {
            None => Ok(gradient),
            Some(Scalar(most)) => {
                let function = UnaryFunction::Clip { low: Scalar(-most), high: Scalar(most) };
                self.unary(function, gradient)
            }
        }
    }

    /// A state of f32 that is like the variable and begins with one number everywhere.
    pub(super) fn state(&mut self, kind: &str, initial: f64) -> Result<ValueId, OpError> {
        let shape = self.training.graph.value(self.variable).ty.shape.clone();
        self.state_of(kind, TensorType::new(DType::F32, shape), initial)
    }

    /// A state that is one number of f32.
    pub(super) fn number_state(&mut self, kind: &str, initial: f64) -> Result<ValueId, OpError> {
        self.state_of(kind, TensorType::new(DType::F32, []), initial)
    }

    /// A state of its own type.
    pub(super) fn state_of(
        &mut self,
        kind: &str,
        ty: TensorType,
        initial: f64,
    ) -> Result<ValueId, OpError> {
        let beside = self.beside();
        let name = format!("state.{kind}.{}", self.training.graph.display_name(self.variable));
        push_filled_state(self.training, name, ty, Init::Fill(Scalar(initial)), beside)
    }

    /// Leaves `kept state + new x` in a state, where the update is made.
    pub(super) fn blend(
        &mut self,
        state: ValueId,
        x: ValueId,
        [kept, new]: [f64; 2],
    ) -> Result<(), OpError> {
        let operands = [state, x].into_iter().chain(self.scalars.made).collect();
        let (op, beside) = (Op::Blend(Blend::with_decay(kept, new)), self.beside());
        push_node(self.training, op, operands, beside, &[TensorKind::State])?;
        Ok(())
    }

    /// Leaves a value in a state, where the update is made.
    pub(super) fn replace(&mut self, state: ValueId, x: ValueId) -> Result<(), OpError> {
        self.blend(state, x, [0.0, 1.0])
    }

    /// Returns `kept state + new x`, and leaves it in the state.
    pub(super) fn average(
        &mut self,
        state: ValueId,
        x: ValueId,
        of: [f64; 2],
    ) -> Result<ValueId, OpError> {
        let average = self.mix([state, x], of)?;
        self.blend(state, x, of)?;
        Ok(average)
    }

    /// Moves the variable by the learning rate along a direction, by the step of SGD. Its weight decay, by the learning rate, is the
    /// decoupled one.
    pub(super) fn step(
        &mut self,
        direction: ValueId,
        lr: LearningRate,
        decoupled_decay: f64,
    ) -> Result<(), OpError> {
        self.limited_step((direction, None), lr, decoupled_decay)
    }

    /// The same step, but along the direction by a limit at most.
    pub(super) fn limited_step(
        &mut self,
        (direction, limit): (ValueId, Option<ValueId>),
        lr: LearningRate,
        decoupled_decay: f64,
    ) -> Result<(), OpError> {
        let made = match self.scalars.made {
            // SGD would take it as a factor of the step.
            Some(made) => Some(self.unary(UnaryFunction::Sign, made)?),
            // A limit stands behind a factor.
            None if limit.is_some() => Some(self.constant(1.0)?),
            None => None,
        };
        let weight_decay = Scalar(decoupled_decay);
        let update = Op::SgdUpdate(SgdUpdate { lr, weight_decay, ..SgdUpdate::default() });
        let operands = [self.variable, direction].into_iter().chain(made).chain(limit).collect();
        let beside = self.beside();
        push_node(self.training, update, operands, beside, &[TensorKind::Parameter])?;
        Ok(())
    }
}
