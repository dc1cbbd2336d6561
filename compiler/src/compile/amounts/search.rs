//! Searches for the least amount of recomputation that fits, using plans that are not lowered.
//!
//! The search starts at the amount that is likely to fit, by the plan with everything recomputed. From there it goes up or down in strides that grow
//! fourfold, from 1.2 % of a step on. Once the least amount lies between two known ones, it halves what is between them. The memory that a plan
//! leaves tells which amount is likely next. For each further plan the gain that is still possible must be larger.
//!
//! An amount is also too small if memory is so short for it that its plan costs more than a little more computing would. The cost of that computing
//! lies on a line between two points: this graph without regard to memory, and the plan of the next amount known to fit. If so, no good plan is
//! searched for (`planner::Purpose::Against`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::compile::limits;
use crate::error::CompileError;
use crate::planner::Purpose;

/// The costs of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    /// The seconds of the graph without a memory limit.
    pub relaxed: f64,
    /// The seconds of the plan.
    pub seconds: f64,
    /// The bytes at its peak, by stage.
    pub memory: Vec<u64>,
}

/// The difference between an amount and the one before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct More {
    /// The seconds that it takes more.
    pub seconds: f64,
    /// The stage that it belongs to.
    pub stage: usize,
    /// The bytes that need not be kept there.
    pub bytes: u64,
}

/// The possible amounts, with a limit of memory.
pub(crate) struct Amounts {
    steps: Vec<More>,
    /// The seconds that each amount takes more than the first, which is nothing.
    seconds: Vec<f64>,
    limit: u64,
}

impl Amounts {
    /// Makes the amounts of these steps, for ranks of `limit` bytes.
    pub(crate) fn new(steps: Vec<More>, limit: u64) -> Self {
        let mut seconds = vec![0.0];
        for step in &steps {
            seconds.push(seconds[seconds.len() - 1] + step.seconds);
        }
        Self { steps, seconds, limit }
    }

    /// Returns the amount that recomputes everything.
    pub(crate) fn full_amount(&self) -> usize {
        self.steps.len()
    }

    /// Returns the least amount that takes at least these seconds.
    fn amount_at(&self, seconds: f64) -> usize {
        self.seconds.partition_point(|&known| known < seconds)
    }

    /// Returns the least amount that is likely to fit, if the plan of a greater one keeps these bytes by stage.
    fn likely_amount(&self, amount: usize, memory: &[u64]) -> usize {
        let mut bytes = memory.to_vec();
        for at in (0..amount).rev() {
            let More { stage, bytes: more, .. } = self.steps[at];
            bytes[stage] += more;
            if bytes[stage] > self.limit {
                return at + 1;
            }
        }
        0
    }
}

/// The plans made so far, for one limit of memory or for several, each less than the one before.
pub(crate) struct KnownPlans<P> {
    /// The plans that fit by the planner's count, by amount, including those that cost too much.
    plans: BTreeMap<usize, P>,
    /// The greatest amount that is too little.
    too_little: usize,
    /// Whether `too_little` was found with as much memory as there is now. If it was found with more, it tells little about how much recomputation
    /// suffices.
    is_near: bool,
    /// The number of plans that were made in the search.
    made: usize,
}

impl<P> KnownPlans<P> {
    /// Makes the state in which the plan with everything recomputed is known.
    pub(crate) fn new(amounts: &Amounts, everything: P) -> Self {
        let plans = BTreeMap::from([(amounts.full_amount(), everything)]);
        Self { plans, too_little: 0, is_near: false, made: 0 }
    }

    /// Returns the plan with the most recomputation.
    pub(crate) fn full_plan(&self) -> Option<&P> {
        self.plans.last_key_value().map(|(_, plan)| plan)
    }

    /// Forgets the plans that do not fit, and, if plans were made in the search, those that memory has cost seconds.
    fn retain_fitting(&mut self, limit: u64, costs: &impl Fn(&P) -> Costs) {
        let holds = |costs: Costs| {
            let fits = costs.memory.iter().all(|&bytes| bytes <= limit);
            fits && (self.made == 0 || !costs.are_short())
        };
        self.plans.retain(|_, plan| holds(costs(plan)));
        self.is_near = false;
    }
}

/// Assembles the plan with the least recomputation that fits the memory. It is called if the plan without recomputation does not fit. The error is
/// that of the plan with everything recomputed, if not even that fits.
///
/// Less recomputation needs more memory. So the search goes from the likely amount up or down, farther each time, until the least lies between two
/// amounts, and then halves what is between them; the memory that a plan leaves tells which amount is likely next. If memory is short for an amount,
/// its plan may cost more than a little more computing: such an amount counts as too little, and no good plan is searched for there
/// ([`Purpose::Against`]). Only the plan of fewest seconds is assembled, and others with more recomputation if it needs more memory than the planner has
/// counted.
pub(crate) fn plan_least_amount<P, D>(
    amounts: &Amounts,
    known: &mut KnownPlans<P>,
    plan: impl Fn(usize, Purpose) -> Result<P, CompileError>,
    costs: impl Fn(&P) -> Costs,
    assemble: impl Fn(&P) -> Result<D, CompileError>,
) -> Result<D, CompileError> {
    known.retain_fitting(amounts.limit, &costs);
    if let Entry::Vacant(everything) = known.plans.entry(amounts.full_amount()) {
        everything.insert(plan(amounts.full_amount(), Purpose::Plan)?);
    }
    loop {
        search_amounts(amounts, known, &plan, &costs)?;
        let seconds = |plan: &P| costs(plan).seconds;
        let best =
            known.plans.iter().min_by(|one, other| seconds(one.1).total_cmp(&seconds(other.1)));
        let (&amount, best) = best.expect("there is that of everything");
        let assembled = assemble(best);
        match assembled {
            Err(error) if error.is_memory() && amount < amounts.full_amount() => {
                known.plans = known.plans.split_off(&(amount + 1));
                (known.too_little, known.is_near) = (amount, true);
            }
            other => return other,
        }
    }
}

/// Plans until the least amount that suffices is known.
fn search_amounts<P>(
    amounts: &Amounts,
    known: &mut KnownPlans<P>,
    plan: &impl Fn(usize, Purpose) -> Result<P, CompileError>,
    costs: &impl Fn(&P) -> Costs,
) -> Result<(), CompileError> {
    let mut between = Between::new(amounts, known, costs);
    while let Some(next) = between.next_amount() {
        known.made += 1;
        between.tolerance += limits::RECOMPUTE_STRIDE * between.step;
        let purpose = between.purpose(next, costs(&known.plans[&between.enough]).seconds);
        match found_in_memory(plan(next, purpose))? {
            Some(found) => {
                between.record_found(next, &costs(&found), purpose);
                known.plans.insert(next, found);
            }
            None => between.is_too_little(next),
        }
    }
    (known.too_little, known.is_near) = (between.too_little, between.is_near);
    Ok(())
}

/// The amounts between one that is too little and one that suffices.
struct Between<'a> {
    amounts: &'a Amounts,
    too_little: usize,
    /// As in [`KnownPlans`].
    is_near: bool,
    enough: usize,
    /// The seconds of a step.
    step: f64,
    /// The amounts that are tried first, in reverse order.
    first: Vec<usize>,
    /// The seconds by which the amount is changed next.
    stride: f64,
    /// A difference in seconds that is not worth another plan.
    tolerance: f64,
}

impl<'a> Between<'a> {
    /// Finds the amounts that are left between those that are known. If memory is short even with everything recomputed, the likely amount means
    /// little, because each amount has other layouts. Then half of everything is tried before it.
    fn new<P>(amounts: &'a Amounts, known: &KnownPlans<P>, costs: &impl Fn(&P) -> Costs) -> Self {
        let (&enough, least) = known.plans.first_key_value().expect("there is that of everything");
        let least = costs(least);
        let half = amounts.amount_at(amounts.seconds[amounts.full_amount()] / 2.0);
        let half = (enough == amounts.full_amount() && least.are_short()).then_some(half);
        let likely = amounts.likely_amount(enough, &least.memory);
        let first = [likely].into_iter().chain(half).filter(|&first| first < enough).collect();
        let step = least.seconds;
        let stride = limits::RECOMPUTE_STRIDE * step;
        let tolerance = stride * (known.made + 1) as f64;
        let KnownPlans { too_little, is_near, .. } = *known;
        Self { amounts, too_little, is_near, enough, step, first, stride, tolerance }
    }

    /// Returns the amount that is tried next, or `None` if the amounts that are left make no difference.
    fn next_amount(&mut self) -> Option<usize> {
        let Self { amounts, too_little, enough, stride, .. } = *self;
        let [low, high] = [too_little, enough].map(|amount| amounts.seconds[amount]);
        if enough < too_little + 2 || high - low <= self.tolerance {
            return None;
        }
        let within = |at: usize| at.clamp(too_little + 1, enough - 1);
        while let Some(first) = self.first.pop() {
            // What is likely says nothing any more where less is enough.
            if first < enough {
                return Some(within(first));
            }
        }
        self.stride *= 4.0;
        let at = match (self.is_near, enough == amounts.full_amount()) {
            (false, _) => amounts.amount_at(high - stride),
            (true, true) => amounts.amount_at(low + stride),
            (true, false) => amounts.amount_at(low.midpoint(high)),
        };
        Some(within(at))
    }

    /// Returns the purpose for a plan of an amount, which must cost at most a little more computing than a greater amount that suffices and costs
    /// `seconds`.
    fn purpose(&self, amount: usize, seconds: f64) -> Purpose {
        let more = self.amounts.seconds[self.enough] - self.amounts.seconds[amount];
        Purpose::Against {
            seconds,
            steps: (more / (limits::LITTLE_RECOMPUTE * self.step)).ceil() as usize,
        }
    }

    fn is_too_little(&mut self, amount: usize) {
        (self.too_little, self.is_near) = (amount, true);
    }

    /// Records that an amount has a plan that fits.
    fn record_found(&mut self, amount: usize, costs: &Costs, purpose: Purpose) {
        if costs.are_dear(purpose) {
            return self.is_too_little(amount);
        }
        self.enough = amount;
        let likely = self.amounts.likely_amount(amount, &costs.memory);
        let gain = self.amounts.seconds[amount] - self.amounts.seconds[likely];
        if !costs.are_short() && gain > self.tolerance {
            self.first.push(likely);
        }
    }
}

/// Returns a plan, or `None` if there is not enough memory for it.
fn found_in_memory<P>(found: Result<P, CompileError>) -> Result<Option<P>, CompileError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_memory() => Ok(None),
        Err(error) => Err(error),
    }
}

impl Costs {
    /// Whether memory is short, so that it costs seconds.
    pub(crate) fn are_short(&self) -> bool {
        self.seconds > self.relaxed * (1.0 + limits::RECOMPUTE_STRIDE)
    }

    fn are_dear(&self, purpose: Purpose) -> bool {
        purpose.is_dear(self.relaxed, self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Makes an error of too little memory.
    fn short() -> CompileError {
        CompileError::Memory { rank: 0, needed: 2, limit: 1, largest: Vec::new() }
    }

    /// Makes eight steps, each of which is said to take 3 seconds more and to free these bytes.
    fn amounts(bytes: u64, limit: u64) -> Amounts {
        Amounts::new(vec![More { seconds: 3.0, stage: 0, bytes }; 8], limit)
    }

    /// A model in which an amount costs 3 seconds more for each step, beyond 100, and keeps 10 bytes less.
    struct Model<F> {
        /// The bytes that each step is said to free.
        said: u64,
        /// The seconds that memory adds to an amount.
        paid: F,
        /// The least amount whose plan fits when it is assembled.
        assembled: usize,
    }

    fn costs(amount: usize, paid: f64) -> Costs {
        let relaxed = 100.0 + 3.0 * amount as f64;
        Costs { relaxed, seconds: relaxed + paid, memory: vec![100 - 10 * amount as u64] }
    }

    /// Returns the amounts that are taken within these limits, one after the other, and the amounts that were planned for them.
    fn taken<F: Fn(usize) -> f64>(
        model: &Model<F>,
        limits: &[u64],
    ) -> (Vec<Result<usize, CompileError>>, Vec<usize>) {
        let asked = RefCell::new(Vec::new());
        let assemble = |&(amount, _): &(usize, f64)| match amount >= model.assembled {
            true => Ok(amount),
            false => Err(short()),
        };
        let mut known = KnownPlans::new(&amounts(model.said, limits[0]), (8, 0.0));
        let taken = limits.iter().map(|&limit| {
            let plan = |amount: usize, _: Purpose| {
                asked.borrow_mut().push(amount);
                let paid = (model.paid)(amount);
                if costs(amount, paid).memory[0] > limit {
                    Err(short())
                } else {
                    Ok((amount, paid))
                }
            };
            let amounts = amounts(model.said, limit);
            plan_least_amount(
                &amounts,
                &mut known,
                plan,
                |&(amount, paid)| costs(amount, paid),
                assemble,
            )
        });
        (taken.collect(), asked.into_inner())
    }

    /// Returns the result of [`taken`] for a model in which amounts fit from `least` on, and memory costs nothing.
    fn fitting(said: u64, least: usize) -> (usize, Vec<usize>) {
        let model = Model { said, paid: |_| 0.0, assembled: 0 };
        let (mut taken, asked) = taken(&model, &[100 - 10 * least as u64]);
        (taken.remove(0).expect("fits"), asked)
    }

    #[test]
    fn the_least_that_fits_is_taken() {
        // What steps are said to take is so: one less is tried, and is too little.
        assert_eq!(fitting(10, 3), (3, vec![3, 2]));
        assert_eq!(fitting(10, 1), (1, vec![1]));
        assert_eq!(fitting(10, 8), (8, vec![7]));
        // They take more than is said.
        assert_eq!(fitting(5, 6), (6, vec![4, 5, 6]));
    }

    #[test]
    fn what_a_plan_leaves_says_which_amount_is_next() {
        // Half of what steps are said to take is so.
        assert_eq!(fitting(20, 2), (2, vec![5, 4, 3, 2, 1]));
    }

    #[test]
    fn of_several_stages_the_first_that_is_full_decides() {
        let more = |stage| More { seconds: 1.0, stage, bytes: 10 };
        let amounts = Amounts::new(vec![more(0), more(1), more(0), more(1)], 100);
        assert_eq!(amounts.likely_amount(4, &[95, 70]), 3);
        assert_eq!(amounts.likely_amount(4, &[90, 95]), 4);
        assert_eq!(amounts.likely_amount(4, &[90, 70]), 1);
        assert_eq!(amounts.likely_amount(4, &[80, 80]), 0);
    }

    #[test]
    fn what_makes_no_difference_is_not_looked_for() {
        let seconds = [1.0, 0.01, 0.01, 0.01, 0.97];
        let steps = seconds.map(|seconds| More { seconds, stage: 0, bytes: 10 });
        let amounts = Amounts::new(steps.to_vec(), 110);
        let everything = Costs { relaxed: 100.0, seconds: 100.0, memory: vec![100] };
        let known = KnownPlans::new(&amounts, everything);
        let mut between = Between::new(&amounts, &known, &Clone::clone);
        assert_eq!(between.next_amount(), Some(4));
        (between.too_little, between.enough) = (1, 4);
        assert_eq!(between.next_amount(), None);
    }

    #[test]
    fn half_of_everything_is_looked_at_first_where_memory_is_short_for_everything() {
        let amounts = amounts(10, 110);
        let everything = Costs { relaxed: 100.0, seconds: 104.0, memory: vec![100] };
        let known = KnownPlans::new(&amounts, everything);
        let mut between = Between::new(&amounts, &known, &Clone::clone);
        assert_eq!(between.next_amount(), Some(4));
        between.too_little = 4;
        assert_eq!(between.next_amount(), Some(7));
        let mut between = Between::new(&amounts, &known, &Clone::clone);
        assert_eq!(between.next_amount(), Some(4));
        between.enough = 4;
        assert_eq!(between.next_amount(), Some(3));
    }

    #[test]
    fn memory_that_costs_more_than_computing_is_not_paid_for() {
        let paying = |cost: f64| {
            let paid = |at| if at < 6 { cost } else { 0.1 };
            let (mut taken, asked) = taken(&Model { said: 10, paid, assembled: 0 }, &[70]);
            (taken.remove(0).expect("fits"), asked)
        };
        assert_eq!(paying(20.0), (6, vec![3, 4, 5, 7, 6]));
        // It is dearer than a little more computing, but not than much more.
        assert_eq!(paying(5.0), (3, vec![3, 4, 5, 7, 6]));
    }

    #[test]
    fn what_does_not_fit_as_it_is_assembled_is_too_little() {
        let of = |assembled| {
            let model = Model { said: 10, paid: |_| 0.0, assembled };
            let (mut taken, asked) = taken(&model, &[70]);
            (taken.remove(0), asked)
        };
        let (amount, asked) = of(5);
        assert_eq!((amount.expect("fits"), asked), (5, vec![3, 2, 4, 5]));
        assert!(of(9).0.is_err());
    }

    #[test]
    fn in_less_memory_what_is_known_is_not_planned_again() {
        let model = Model { said: 10, paid: |_| 0.0, assembled: 0 };
        let (taken, asked) = taken(&model, &[70, 20, 20]);
        let taken: Vec<usize> = taken.into_iter().map(|taken| taken.expect("fits")).collect();
        assert_eq!((taken, asked), (vec![3, 8, 8], vec![3, 2, 7]));
    }
}
