//! Plans as files.

use serde_json::Value;

use super::pretty::in_lines;
use crate::{PLAN_VERSION, Plan};

/// The reason that a plan file cannot be read.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// A text that is not JSON, or not that of a plan.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A JSON text without a version.
    #[error("it has no version")]
    NoVersion,
    /// A plan of another version.
    #[error(
        "the plan has version {found}, this build reads version {expected}: compile the model again"
    )]
    Version {
        /// The version of the plan.
        found: String,
        /// The version that this build reads.
        expected: u32,
    },
    /// A list of more ranks than the job has, or lists of more ranks than may be in memory.
    #[error("{place} lists {listed} ranks, at most {most} are possible")]
    Ranks {
        /// The place of the list; of all lists together, the plan.
        place: String,
        /// The number of ranks that are listed.
        listed: u64,
        /// The greatest number of ranks that may be listed.
        most: u64,
    },
}

graphc_ir::readable_debug!(PlanFileError);

/// The greatest number of ranks that all layouts and tensors of a file may list: each takes four bytes.
const MOST_LISTED: u64 = 1 << 27;

/// Reads a plan from its text.
///
/// # Errors
/// Returns an error if the text is no plan, or one of another version, or lists more ranks than there may be.
pub fn read_plan(json: &str) -> Result<Plan, PlanFileError> {
    let value: Value = serde_json::from_str(json)?;
    let version = value.get("version").ok_or(PlanFileError::NoVersion)?;
    if version.as_u64() != Some(u64::from(PLAN_VERSION)) {
        return Err(PlanFileError::Version { found: version.to_string(), expected: PLAN_VERSION });
    }
    check_rank_lists(&value)?;
    Ok(serde_json::from_str(json)?)
}

/// Checks the numbers of ranks that layouts and tensors list, before runs of them are written out.
fn check_rank_lists(value: &Value) -> Result<(), PlanFileError> {
    let ranks = value["ranks"].as_array().map_or(0, |ranks| ranks.len() as u64);
    let mut total = 0u64;
    for part in ["layouts", "tensors"] {
        for (index, entry) in value[part].as_array().into_iter().flatten().enumerate() {
            let listed = count_listed_ranks(&entry["ranks"]);
            let place = || format!("{part}[{index}]");
            check_list_length(place, listed, ranks)?;
            total = total.saturating_add(listed);
        }
    }
    check_list_length(|| "the plan".into(), total, MOST_LISTED)
}

fn check_list_length(
    place: impl Fn() -> String,
    listed: u64,
    most: u64,
) -> Result<(), PlanFileError> {
    if listed <= most { Ok(()) } else { Err(PlanFileError::Ranks { place: place(), listed, most }) }
}

/// Counts the ranks of a list of ranks or runs.
fn count_listed_ranks(ranks: &Value) -> u64 {
    let count = |item: &Value| item.get(1).map_or(1, |count| count.as_u64().unwrap_or(0));
    ranks.as_array().into_iter().flatten().map(count).fold(0, u64::saturating_add)
}

/// Writes a plan as text: the same text for the same plan. What fits in a line stands on one, and so does a list of numbers.
pub fn write_plan(plan: &Plan) -> String {
    in_lines(&serde_json::to_string(plan).expect("a plan has string keys only"))
}
