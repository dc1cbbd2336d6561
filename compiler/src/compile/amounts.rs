//! How much is computed again: as little as the memory allows, as long as the memory that this takes is not dearer than computing.

use crate::error::CompileError;
use crate::planner::Care;

/// What is known of a plan: its seconds without regard to memory, and within it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// What the graph costs where memory is endless.
    pub relaxed: f64,
    /// What the plan costs.
    pub seconds: f64,
}

/// What is assembled of the plan in which the least of `most` amounts is computed again that fits the memory. As less needs more memory, how
/// much is found by bisection; the error is that of all of it where not even that fits.
///
/// Where memory is short for an amount, it may cost more than the next one does, of which one block more is computed again: such an amount
/// counts as too little, and no good plan is looked for there ([`Care::Against`]). Only the plan that is chosen is assembled, and the next one
/// that is known where it needs more memory than the planner has counted.
pub(super) fn least<P, D>(
    most: usize,
    plan: impl Fn(usize, Care) -> Result<P, CompileError>,
    costs: impl Fn(&P) -> Costs,
    assemble: impl Fn(P) -> Result<D, CompileError>,
) -> Result<D, CompileError> {
    match plan(0, Care::Plan).and_then(&assemble) {
        Err(error) if error.is_memory() && most > 0 => {}
        other => return other,
    }
    let (mut too_little, mut enough) = (0, plan(most, Care::Plan)?);
    let mut amount = most;
    // Amounts that are more than enough, with their plans.
    let mut behind = Vec::new();
    loop {
        while amount - too_little > 1 {
            let middle = usize::midpoint(too_little, amount);
            let care = Care::Against { seconds: costs(&enough).seconds, steps: amount - middle };
            match found_in_memory(plan(middle, care))? {
                Some(found) if !costs(&found).are_dear(care) => {
                    behind.push((amount, std::mem::replace(&mut enough, found)));
                    amount = middle;
                }
                _ => too_little = middle,
            }
        }
        match (assemble(enough), behind.pop()) {
            (Err(error), Some(next)) if error.is_memory() => {
                too_little = amount;
                (amount, enough) = next;
            }
            (other, _) => return other,
        }
    }
}

/// A plan; none where there is not memory enough.
fn found_in_memory<P>(found: Result<P, CompileError>) -> Result<Option<P>, CompileError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_memory() => Ok(None),
        Err(error) => Err(error),
    }
}

impl Costs {
    fn are_dear(self, care: Care) -> bool {
        care.is_dear(self.relaxed, self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Too much memory.
    fn short() -> CompileError {
        CompileError::Memory { rank: 0, needed: 2, limit: 1, largest: Vec::new() }
    }

    /// The amount that is taken of 8, and those that were planned, where an amount costs as many seconds more than 100 as it is, and what
    /// `paid` says for memory, or does not fit. Plans of less than `assembled` do not fit when they are assembled.
    fn taken(
        paid: impl Fn(usize) -> Option<f64>,
        assembled: usize,
    ) -> (Result<usize, CompileError>, Vec<usize>) {
        let asked = RefCell::new(Vec::new());
        let plan = |amount: usize, _: Care| {
            asked.borrow_mut().push(amount);
            let relaxed = 100.0 + amount as f64;
            let paid = paid(amount).ok_or_else(short)?;
            Ok((amount, Costs { relaxed, seconds: relaxed + paid }))
        };
        let assemble = |(amount, _): (usize, Costs)| match amount >= assembled {
            true => Ok(amount),
            false => Err(short()),
        };
        (least(8, plan, |plan| plan.1, assemble), asked.into_inner())
    }

    #[test]
    fn the_least_that_fits_is_taken() {
        let (amount, asked) = taken(|amount| (amount >= 3).then_some(0.0), 0);
        assert_eq!((amount.expect("fits"), asked), (3, vec![0, 8, 4, 2, 3]));
        assert_eq!(taken(|_| Some(0.0), 0).1, [0]);
        let (amount, asked) = taken(|_| None, 0);
        assert_eq!((amount.expect_err("too much").is_memory(), asked), (true, vec![0, 8]));
    }

    #[test]
    fn memory_that_costs_more_than_computing_is_not_paid_for() {
        let (amount, asked) = taken(|at| (at >= 3).then_some(if at < 6 { 1.6 } else { 0.5 }), 0);
        assert_eq!((amount.expect("fits"), asked), (6, vec![0, 8, 4, 6, 5]));
    }

    #[test]
    fn what_does_not_fit_as_it_is_assembled_is_too_little() {
        let (amount, asked) = taken(|amount| (amount >= 3).then_some(0.0), 5);
        assert_eq!((amount.expect("fits"), asked), (5, vec![0, 8, 4, 2, 3, 6, 5]));
        assert!(taken(|amount| (amount >= 3).then_some(0.0), 9).0.is_err());
    }
}
