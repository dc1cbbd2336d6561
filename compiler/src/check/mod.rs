//! The checker: every invariant of a plan, from the plan alone. It trusts no index and no size, and collects all that
//! is wrong.
//!
//! `structure` checks what each part says by itself; where that holds, `communication` matches ranks with each other,
//! `memory` proves that no content is overwritten before it is read, and the null device executes two steps. At last
//! the graph in the plan is compiled again. Start reading with [`verify`].

use std::fmt::Display;

use graphc_ir::plan::Plan;

use crate::null_device::{NullDeviceError, execute};

mod actors;
mod communication;
mod memory;
mod recompile;
mod structure;
mod write;

pub use write::{ReadError, read_plan, write_plan};

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

/// Errors so far.
#[derive(Default)]
struct Errors(Vec<PlanError>);

impl Errors {
    fn add(&mut self, place: impl Display, message: impl Into<String>) {
        self.0.push(PlanError { place: place.to_string(), message: message.into() });
    }

    /// Adds an error unless `holds`.
    fn require(&mut self, holds: bool, place: impl Display, message: impl FnOnce() -> String) {
        if !holds {
            self.add(place, message());
        }
    }
}

/// Checks every invariant of a plan, and that the graph, options and cluster in it compile to it.
///
/// # Errors
/// Everything that is wrong.
pub fn verify(plan: &Plan) -> Result<(), PlanErrors> {
    let mut errors = invariants(plan);
    recompile::check(plan, &mut errors);
    if errors.0.is_empty() { Ok(()) } else { Err(PlanErrors(errors.0)) }
}

/// Checks every invariant of a plan but that its graph compiles to it.
///
/// # Errors
/// Everything that is wrong.
pub fn verify_invariants(plan: &Plan) -> Result<(), PlanErrors> {
    let errors = invariants(plan);
    if errors.0.is_empty() { Ok(()) } else { Err(PlanErrors(errors.0)) }
}

fn invariants(plan: &Plan) -> Errors {
    let mut errors = Errors::default();
    structure::check(plan, &mut errors);
    if !errors.0.is_empty() {
        return errors;
    }
    communication::check(plan, &mut errors);
    memory::check(plan, &mut errors);
    if let Err(NullDeviceError::Hang { waits }) = execute(plan, 2) {
        errors.add("programs", format!("the plan hangs:\n  {}", waits.join("\n  ")));
    }
    errors
}
