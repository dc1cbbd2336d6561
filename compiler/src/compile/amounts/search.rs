//! The search for the least amount.

use crate::error::CompileError;
use crate::planner::Care;

/// Share of a step by which the amount is changed at first where the likely one is not the least, and below which it makes no difference.
const STRIDE: f64 = 3e-3;

/// Share of a step that a little more computing takes.
pub const LITTLE: f64 = 1e-2;

/// What is known of a plan: its seconds without regard to memory, and within it.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// What the graph costs where memory is endless.
    pub relaxed: f64,
    /// What the plan costs.
    pub seconds: f64,
}

/// The amounts that there are.
pub struct Amounts {
    /// Seconds that each takes more than nothing; nothing is the first.
    pub seconds: Vec<f64>,
    /// The least that is likely to fit.
    pub likely: usize,
}

/// What is assembled of the plan in which the least amount is computed again that fits the memory, where nothing does not and `everything`
/// is the plan with everything. The error is that of everything where not even that fits.
///
/// As less needs more memory, the search goes from the likely amount up or down, farther each time, until the least is between two amounts, and
/// halves what is between them. Where memory is short for an amount, it may cost more than a little more computing: such an amount
/// counts as too little, and no good plan is looked for there ([`Care::Against`]). Only the plan of fewest seconds is assembled, and others that
/// compute more again where it needs more memory than the planner has counted.
pub fn least<P, D>(
    amounts: &Amounts,
    everything: P,
    plan: impl Fn(usize, Care) -> Result<P, CompileError>,
    costs: impl Fn(&P) -> Costs,
    assemble: impl Fn(P) -> Result<D, CompileError>,
) -> Result<D, CompileError> {
    let mut between = Between::new(amounts, costs(&everything));
    // All that fits by the planner's count, what is dear as well.
    let mut known = vec![(between.enough, everything)];
    loop {
        while let Some(next) = between.next() {
            let enough = known.iter().find(|known| known.0 == between.enough);
            let seconds = enough.map_or(f64::INFINITY, |(_, plan)| costs(plan).seconds);
            let care = between.care(next, seconds);
            let found = found_in_memory(plan(next, care))?;
            let is_dear = found.as_ref().is_none_or(|found| costs(found).are_dear(care));
            *(if is_dear { &mut between.too_little } else { &mut between.enough }) = next;
            known.extend(found.map(|found| (next, found)));
        }
        let seconds = |at: &usize| costs(&known[*at].1).seconds;
        let best = (0..known.len()).min_by(|one, other| seconds(one).total_cmp(&seconds(other)));
        let (amount, best) = known.swap_remove(best.expect("one is left"));
        let assembled = assemble(best);
        known.retain(|(other, _)| *other > amount);
        match (assembled, known.iter().map(|known| known.0).min()) {
            (Err(error), Some(next)) if error.is_memory() => {
                (between.too_little, between.enough) = (amount, next);
            }
            (other, _) => return other,
        }
    }
}

/// The amounts between one that is too little and one that is enough.
struct Between<'a> {
    amounts: &'a Amounts,
    too_little: usize,
    enough: usize,
    /// Seconds of a step.
    step: f64,
    /// What is looked at first, the last one before the others.
    first: Vec<usize>,
    /// Seconds by which the amount is changed next.
    stride: f64,
}

impl<'a> Between<'a> {
    /// All amounts, where everything costs so much. Where memory is short even for that, what is likely to fit says little, as layouts are other
    /// ones for each amount: there half of everything comes before it.
    fn new(amounts: &'a Amounts, everything: Costs) -> Self {
        let step = everything.seconds;
        let half = amounts.at(amounts.seconds[amounts.most()] / 2.0);
        let half = everything.are_short().then_some(half);
        let first = [amounts.likely].into_iter().chain(half).collect();
        let enough = amounts.most();
        Self { amounts, too_little: 0, enough, step, first, stride: STRIDE * step }
    }

    /// The amount that is looked at next; `None` where those that are left make no difference.
    fn next(&mut self) -> Option<usize> {
        let Self { amounts, too_little, enough, stride, .. } = *self;
        let [low, high] = [too_little, enough].map(|amount| amounts.seconds[amount]);
        if enough - too_little < 2 || high - low <= STRIDE * self.step {
            return None;
        }
        let within = |at: usize| at.clamp(too_little + 1, enough - 1);
        while let Some(first) = self.first.pop() {
            // What is likely says nothing any more where less is enough.
            if first <= enough {
                return Some(within(first));
            }
        }
        self.stride *= 4.0;
        let at = match (enough == amounts.most(), too_little == 0) {
            (true, false) => amounts.at(low + stride),
            (false, true) => amounts.at(high - stride),
            _ => amounts.at(low.midpoint(high)),
        };
        Some(within(at))
    }

    /// What a plan is for that costs little more than one of an amount, where one that is enough costs so much.
    fn care(&self, amount: usize, seconds: f64) -> Care {
        let more = self.amounts.seconds[self.enough] - self.amounts.seconds[amount];
        Care::Against { seconds, steps: (more / (LITTLE * self.step)).ceil() as usize }
    }
}

impl Amounts {
    fn most(&self) -> usize {
        self.seconds.len() - 1
    }

    /// The least amount that takes so many seconds.
    fn at(&self, seconds: f64) -> usize {
        self.seconds.partition_point(|&known| known < seconds)
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
    /// Whether memory is short, so that it costs seconds.
    pub fn are_short(self) -> bool {
        self.seconds > self.relaxed * (1.0 + STRIDE)
    }

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

    /// The amount that is taken of 8, and those that were planned, where 3 is likely, an amount costs as many seconds more than 100 as
    /// it is, and what `paid` says for memory, or does not fit. Plans of less than `assembled` do not fit when they are assembled.
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
        let amounts = Amounts { seconds: (0..=8).map(f64::from).collect(), likely: 3 };
        let everything = (8, Costs { relaxed: 108.0, seconds: 108.0 });
        let found = least(&amounts, everything, plan, |plan| plan.1, assemble);
        (found, asked.into_inner())
    }

    #[test]
    fn the_least_that_fits_is_taken() {
        let fitting = |least: usize| {
            let (amount, asked) = taken(|amount| (amount >= least).then_some(0.0), 0);
            (amount.expect("fits"), asked)
        };
        assert_eq!(fitting(3), (3, vec![3, 2]));
        assert_eq!(fitting(1), (1, vec![3, 2, 1]));
        assert_eq!(fitting(4), (4, vec![3, 4]));
        assert_eq!(fitting(6), (6, vec![3, 4, 6, 5]));
        assert_eq!(fitting(8), (8, vec![3, 4, 6, 7]));
    }

    #[test]
    fn what_makes_no_difference_is_not_looked_for() {
        let amounts = Amounts { seconds: vec![0.0, 1.0, 1.01, 1.02, 1.03, 2.0], likely: 4 };
        let mut between = Between::new(&amounts, Costs { relaxed: 100.0, seconds: 100.0 });
        assert_eq!(between.next(), Some(4));
        (between.too_little, between.enough) = (1, 4);
        assert_eq!(between.next(), None);
    }

    #[test]
    fn half_of_everything_is_looked_at_first_where_memory_is_short_for_everything() {
        let amounts = Amounts { seconds: (0..=8).map(f64::from).collect(), likely: 7 };
        let mut between = Between::new(&amounts, Costs { relaxed: 100.0, seconds: 104.0 });
        assert_eq!(between.next(), Some(4));
        between.too_little = 4;
        assert_eq!(between.next(), Some(7));
        let mut between = Between::new(&amounts, Costs { relaxed: 100.0, seconds: 104.0 });
        assert_eq!(between.next(), Some(4));
        between.enough = 4;
        assert_eq!(between.next(), Some(3));
    }

    #[test]
    fn memory_that_costs_more_than_computing_is_not_paid_for() {
        let paying = |paid: f64| {
            let (amount, asked) =
                taken(|at| (at >= 3).then_some(if at < 6 { paid } else { 0.1 }), 0);
            (amount.expect("fits"), asked)
        };
        assert_eq!(paying(10.0), (6, vec![3, 4, 6, 5]));
        // It is dearer than a little more computing, but not than much more.
        assert_eq!(paying(1.6), (3, vec![3, 4, 6, 5]));
    }

    #[test]
    fn what_does_not_fit_as_it_is_assembled_is_too_little() {
        let (amount, asked) = taken(|amount| (amount >= 3).then_some(0.0), 5);
        assert_eq!((amount.expect("fits"), asked), (5, vec![3, 2, 5, 4]));
        assert!(taken(|amount| (amount >= 3).then_some(0.0), 9).0.is_err());
    }
}
