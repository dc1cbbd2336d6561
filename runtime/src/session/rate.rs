//! Learning rates that a program gives while it trains, in the place of those that the plan says.
//!
//! A rate belongs to the step: what is given holds for the steps that are begun from then on, however many are under way. The
//! plan stays as it is, and updates ask the step for its rate first ([`GivenRate`]).

use std::sync::Arc;

use graphc_ir::learning_rate::GivenRate;
use graphc_plan::Plan;

use super::Session;
use crate::error::RuntimeError;

/// The source of the learning rate of the next steps.
#[derive(Clone, Default)]
pub(super) enum RateSource {
    /// The plan.
    #[default]
    Planned,
    /// A number.
    Number(f64),
    /// A function of the step's number.
    Function(Arc<dyn Fn(u64) -> f64 + Send + Sync>),
}

impl Session {
    /// Has the steps that are begun from now on train with this learning rate, in the place of the one that the plan says with its
    /// schedule. Groups of variables keep their factors. Where ranks are processes, all of them set the same. No checkpoint holds
    /// it: a program that resumes a training sets it again.
    ///
    /// # Errors
    /// Where the plan has no optimizer, or one whose learning rate is 0, or the rate is negative or no number.
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<(), RuntimeError> {
        build_given_rate(&self.plan, rate)?;
        self.rates = RateSource::Number(rate);
        Ok(())
    }

    /// Sets the learning rate as [`Session::set_learning_rate`], for each step its own: `schedule` is called with its number
    /// when it is begun, from [`SessionOptions::first_step`](super::SessionOptions::first_step) on.
    ///
    /// # Errors
    /// Where the plan has no optimizer, or one whose learning rate is 0. What `schedule` gives is looked at when a step is begun.
    pub fn set_schedule(
        &mut self,
        schedule: impl Fn(u64) -> f64 + Send + Sync + 'static,
    ) -> Result<(), RuntimeError> {
        planned_rate(&self.plan)?;
        self.rates = RateSource::Function(Arc::new(schedule));
        Ok(())
    }

    /// Has the steps that are begun from now on train with what the plan says again.
    pub fn follow_planned_rate(&mut self) {
        self.rates = RateSource::Planned;
    }

    /// Has the steps that are begun from now on train with what another session does: the rate or schedule that was given to it, or where
    /// none was, or it follows its plan again, what this session's own plan says.
    ///
    /// # Errors
    /// Where one was given and this plan has no optimizer, or one whose learning rate is 0.
    pub fn take_rate_of(&mut self, other: &Session) -> Result<(), RuntimeError> {
        if !matches!(other.rates, RateSource::Planned) {
            planned_rate(&self.plan)?;
        }
        self.rates = other.rates.clone();
        Ok(())
    }

    /// Returns the learning rate with which the next step trains variables that are in no group; `None` where the plan has no
    /// optimizer.
    pub fn learning_rate(&self) -> Option<f64> {
        let step = self.next_step();
        let planned = self.plan.options.learning_rate(step)?;
        Some(self.rates.rate_at(step).unwrap_or(planned))
    }

    /// Returns the rate of the step that is begun now, where it is not the plan's.
    pub(super) fn given_rate(&self) -> Result<Option<GivenRate>, RuntimeError> {
        let rate = self.rates.rate_at(self.next_step());
        rate.map(|rate| build_given_rate(&self.plan, rate)).transpose()
    }
}

impl RateSource {
    fn rate_at(&self, step: u64) -> Option<f64> {
        match self {
            Self::Planned => None,
            Self::Number(rate) => Some(*rate),
            Self::Function(schedule) => Some(schedule(step)),
        }
    }
}

fn build_given_rate(plan: &Plan, rate: f64) -> Result<GivenRate, RuntimeError> {
    let planned = planned_rate(plan)?;
    match rate.is_finite() && rate >= 0.0 {
        true => Ok(GivenRate { rate, planned }),
        false => Err(rate_error(&format!(
            "{rate} is no rate; give a finite number that is not negative"
        ))),
    }
}

/// Returns the base that the plan has for variables which are in no group.
fn planned_rate(plan: &Plan) -> Result<f64, RuntimeError> {
    let optimizer = plan.options.optimizer.ok_or_else(|| {
        rate_error("the plan has no optimizer; compile it with one (CompileOptions::optimizer)")
    })?;
    match optimizer.lr() {
        0.0 => Err(rate_error(
            "the plan was compiled with a learning rate of 0, of which groups have no part; compile it with another",
        )),
        base => Ok(base),
    }
}

fn rate_error(reason: &str) -> RuntimeError {
    RuntimeError::LearningRate { reason: reason.into() }
}
