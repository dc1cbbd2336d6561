//! Sessions: a plan that has been loaded and takes step after step.

mod options;
mod statistics;

use std::collections::BTreeMap;
use std::sync::Arc;

use graphc_ir::plan::{Plan, TensorKind};
use graphc_ir::types::TensorType;

use crate::error::RuntimeError;
use crate::tensor::HostTensor;

pub use options::SessionOptions;
pub use statistics::{RankStatistics, RegisterStatistics, Statistics};

/// A loaded plan: one arena per rank, filled with variables, and workers that wait for steps.
pub struct Session {}

/// A step under way.
pub struct StepHandle {}

impl StepHandle {
    /// The step's number.
    pub fn step(&self) -> u64 {
        todo!()
    }

    /// Waits until the step is done on all ranks. Returns the graph's outputs by name.
    ///
    /// # Errors
    /// Where a rank has failed or the session was dropped before.
    pub fn wait(self) -> Result<BTreeMap<String, HostTensor>, RuntimeError> {
        todo!()
    }
}

impl Session {
    /// Loads a plan: allocates arenas, fills variables, starts workers. `weights` holds what `Init::Weights` variables
    /// begin with, whole, by name.
    ///
    /// # Errors
    /// Where the plan cannot be executed, a weight is missing or of another type, or there is no thread to be had.
    pub fn new(
        _plan: Arc<Plan>,
        _weights: &BTreeMap<String, HostTensor>,
        _options: SessionOptions,
    ) -> Result<Self, RuntimeError> {
        todo!()
    }

    /// What must be fed, by name.
    pub fn inputs(&self) -> &BTreeMap<String, TensorType> {
        todo!()
    }

    /// What a step gives back, by name.
    pub fn outputs(&self) -> &BTreeMap<String, TensorType> {
        todo!()
    }

    /// All variables, by name: parameters and states of the optimizer.
    pub fn variables(&self) -> BTreeMap<String, (TensorKind, TensorType)> {
        todo!()
    }

    /// Begins a step; waits only where [`SessionOptions::queue`] steps are under way. Steps run in order.
    ///
    /// # Errors
    /// Where the feeds are not the graph's inputs, or a rank has failed.
    pub fn step(
        &mut self,
        _feeds: BTreeMap<String, HostTensor>,
    ) -> Result<StepHandle, RuntimeError> {
        todo!()
    }

    /// The content of a variable after all steps begun so far.
    ///
    /// # Errors
    /// Where there is none of that name, or a rank has failed.
    pub fn variable(&mut self, _name: &str) -> Result<HostTensor, RuntimeError> {
        todo!()
    }

    /// Overwrites a variable, after all steps begun so far.
    ///
    /// # Errors
    /// Where there is none of that name, its type is another, or a rank has failed.
    pub fn set_variable(&mut self, _name: &str, _value: &HostTensor) -> Result<(), RuntimeError> {
        todo!()
    }

    /// What was measured in all steps begun so far.
    ///
    /// # Errors
    /// Where a rank has failed.
    pub fn statistics(&mut self) -> Result<Statistics, RuntimeError> {
        todo!()
    }

    /// Finishes all steps and ends the workers. Dropping a session instead abandons steps under way.
    ///
    /// # Errors
    /// Where a rank has failed.
    pub fn shutdown(self) -> Result<(), RuntimeError> {
        todo!()
    }
}
