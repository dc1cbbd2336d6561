//! The proof that a plan is sound, from the plan alone: [`VerifiedPlan::check`].
//!
//! Whoever executes a [`VerifiedPlan`] touches no memory that another may be at, and waits for nobody for ever. Sessions
//! take a `VerifiedPlan` alone, and there is one way to make one. The compiler gives its plans through it, the command
//! line what it reads from files, and each rank of a job the plan that it gets from rank 0. The runtime checks nothing
//! again.
//!
//! The proof trusts no index and no size. It takes time that grows with the plan and with the actions of a step, and
//! collects all that is wrong:
//!
//! - `structure` checks indices, extents and sizes. Each register lies in its arena, which is no larger than its
//!   registers need.
//! - `actors` checks that registers have the number, rate and type that an action asks for. It goes through chains of
//!   elementwise ops step by step.
//! - `communication` and `edges` match ranks with each other. By a name they mean the same tensor, and they take part in
//!   the same collectives and channels.
//! - `memory` proves that no content is overwritten before it is read.
//! - `progress` proves that every step ends, so ranks communicate in one order, microbatch after microbatch.
//!
//! `structure` goes first, with `actors`, and the others follow only where it finds nothing. It refuses sizes that would
//! make the proof itself endless, such as 2^32 microbatches or more than 2^26 actions. `seal` says in a file that all of
//! it was proven.
//!
//! The proof does not show that a plan computes its graph. For that, `check::verify_plan` of the compiler compiles the graph again, and an
//! equal plan needs no second proof. So `graphc verify` refuses an exchange of equal shapes. `run` and `train` execute it as the plan says,
//! because planning a large model again takes longer than many runs.
//!
//! `cargo test --test mutations` edits plans at random, and runs what is accepted.

use std::fmt::{self, Display};
use std::ops::Deref;
use std::sync::Arc;

use crate::Plan;

mod actors;
mod clock;
mod communication;
mod edges;
mod fence;
mod memory;
mod progress;
mod seal;
mod structure;

pub use seal::Seal;
pub use structure::ALIGNMENT;

/// A plan that was proven sound. It cannot be changed, and to clone it is cheap.
///
/// Sessions take no other: registers of one rank that are alive at one time do not overlap, bytes that two streams touch
/// are touched in an order that both know, every register lies in its arena, ranks that exchange something agree on what,
/// and no rank waits for ever.
#[derive(Clone, PartialEq)]
pub struct VerifiedPlan(Arc<Plan>);

impl VerifiedPlan {
    /// Checks a plan.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with the register, actor or other place in the plan.
    pub fn check(plan: Plan) -> Result<Self, PlanErrors> {
        let _span = graphc_ir::enter_span!("check_plan", plan = plan.name.as_str());
        verify_invariants(&plan)?;
        Ok(Self(Arc::new(plan)))
    }

    /// The plan, to be changed: what comes of it must be checked again.
    pub fn into_plan(self) -> Plan {
        Arc::unwrap_or_clone(self.0)
    }
}

impl Deref for VerifiedPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.0
    }
}

impl fmt::Debug for VerifiedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// All errors of a plan.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", list_errors(.0))]
pub struct PlanErrors(pub Vec<PlanError>);

graphc_ir::readable_debug!(PlanErrors);

/// Errors that are listed in a text: the others are mostly what follows from them.
const MOST_LISTED: usize = 12;

fn list_errors(errors: &[PlanError]) -> String {
    let mut lines: Vec<String> = errors.iter().take(MOST_LISTED).map(ToString::to_string).collect();
    if errors.len() > MOST_LISTED {
        lines.push(format!("and {} more", errors.len() - MOST_LISTED));
    }
    lines.join("\n")
}

/// One thing that is wrong, and where.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct PlanError {
    /// The place in the plan, e.g. `programs[0].registers[3]`.
    pub place: String,
    /// The fault.
    pub message: String,
}

graphc_ir::readable_debug!(PlanError);

/// Errors that are told: where everything is wrong, so many suffice.
const MOST_ERRORS: usize = 64;

/// Checks of a plan that are not passed so far.
#[derive(Debug, Default)]
pub struct ErrorCollector(pub Vec<PlanError>);

impl ErrorCollector {
    /// Adds an error, unless there are many already.
    pub fn add(&mut self, place: impl Display, message: impl Into<String>) {
        if self.0.len() == MOST_ERRORS {
            return;
        }
        self.0.push(PlanError { place: place.to_string(), message: message.into() });
    }

    /// Adds an error unless `holds`.
    pub fn require(&mut self, holds: bool, place: impl Display, message: impl FnOnce() -> String) {
        if !holds {
            self.add(place, message());
        }
    }

    /// Returns all of them, if there are any.
    ///
    /// # Errors
    /// Returns all errors that were added.
    pub(crate) fn into_result(self) -> Result<(), PlanErrors> {
        if self.0.is_empty() { Ok(()) } else { Err(PlanErrors(self.0)) }
    }
}

/// Checks what each part of a plan says by itself: indices, extents, counts. It takes time in proportion to the plan's size.
///
/// # Errors
/// Everything that is wrong.
pub fn verify_structure(plan: &Plan) -> Result<(), PlanErrors> {
    let mut errors = ErrorCollector::default();
    structure::check_structure(plan, &mut errors);
    errors.into_result()
}

/// Checks a plan without taking it.
///
/// # Errors
/// Everything that is wrong.
pub fn verify_invariants(plan: &Plan) -> Result<(), PlanErrors> {
    let mut errors = ErrorCollector::default();
    structure::check_structure(plan, &mut errors);
    if errors.0.is_empty() {
        communication::check_communication(plan, &mut errors);
        memory::check_memory(plan, &mut errors);
        progress::check_progress(plan, &mut errors);
    }
    errors.into_result()
}
