//! The checker: every invariant of a plan, from the plan alone.

use graphc_ir::plan::Plan;

/// Everything that is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct PlanErrors(pub Vec<PlanError>);

/// One thing that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct PlanError {
    /// Where in the plan, e.g. `programs[0].registers[3]`.
    pub place: String,
    /// What is wrong.
    pub message: String,
}

/// Why a plan file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Not a plan.
    #[error("this is no plan: {0}")]
    Json(#[from] serde_json::Error),
    /// A plan of another version.
    #[error(
        "the plan has version {found}, this build reads version {expected}: compile the model again"
    )]
    Version {
        /// The plan's.
        found: String,
        /// The build's.
        expected: u32,
    },
}

/// Checks every invariant of a plan, and that the graph, options and cluster in it compile to it.
///
/// # Errors
/// Everything that is wrong.
pub fn verify(_plan: &Plan) -> Result<(), PlanErrors> {
    todo!()
}

/// Reads a plan.
///
/// # Errors
/// Where the text is no plan or one of another version.
pub fn read_plan(_json: &str) -> Result<Plan, ReadError> {
    todo!()
}

/// Writes a plan: the same text for the same plan.
pub fn write_plan(_plan: &Plan) -> String {
    todo!()
}
