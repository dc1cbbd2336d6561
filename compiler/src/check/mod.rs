//! Checks that a plan is what its graph compiles to. The proof that a plan is sound, whatever it computes, is in [`graphc_plan::check`]. Start reading
//! with [`verify_plan`].

use graphc_plan::Plan;
use graphc_plan::check::{ErrorCollector, VerifiedPlan, verify_structure};

mod recompile;

pub use graphc_plan::check::{PlanError, PlanErrors, verify_invariants};
pub use graphc_plan::{PlanFileError, read_plan, write_plan};

/// Checks every invariant of a plan, and that the graph, options and cluster in it compile to it. A plan that they compile to is proven sound by
/// that, so it is not proven a second time.
///
/// # Errors
/// Returns everything that is wrong.
pub fn verify_plan(plan: &Plan) -> Result<VerifiedPlan, PlanErrors> {
    verify_structure(plan)?;
    let mut differences = ErrorCollector::default();
    let again = recompile::compare_recompiled(plan, &mut differences);
    match again.filter(|_| differences.0.is_empty()) {
        Some(again) => Ok(again),
        None => {
            let unsound = verify_invariants(plan).err().map_or_else(Vec::new, |errors| errors.0);
            Err(PlanErrors([unsound, differences.0].concat()))
        }
    }
}
