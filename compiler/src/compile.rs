//! The whole way from a user's graph to a plan, in one function: [`compile`].

use graphc_ir::graph::Graph;
use graphc_ir::plan::{Cluster, CompileOptions, Plan, WeightsSource};

use crate::decisions::{Decisions, Sharding};
use crate::null_device::{NullDeviceError, Simulation};

/// A plan and what was decided on the way to it.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The plan.
    pub plan: Plan,
    /// The training graph with stages and rates.
    pub decisions: Decisions,
    /// The signature of every node.
    pub sharding: Sharding,
    /// What the null device measured.
    pub simulation: Simulation,
}

/// Why a graph cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The plan would hang.
    #[error(transparent)]
    NullDevice(#[from] NullDeviceError),
}

/// Compiles a graph for a mesh of machines. The same input gives the same plan, byte for byte.
///
/// # Errors
/// What the graph, the options or the machines do not allow.
pub fn compile(
    _graph: Graph,
    _options: &CompileOptions,
    _cluster: &Cluster,
    _weights: Option<WeightsSource>,
) -> Result<Compiled, CompileError> {
    todo!()
}
