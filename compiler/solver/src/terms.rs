//! Terms over several variables, with the part of their costs that was given to each member's labels.
//!
//! A sweep goes over all terms again and again, and spends most of its time waiting for memory. So numbers of one kind are stored one after the
//! other. The other members read only the least cost of each class of a member's labels, which is kept until the member is given something.

use std::ops::Range;
use std::rc::Rc;

use super::joint::{Groups, Joint};
use super::network::Network;
use super::quotient::Quotient;
use super::share::Tariff;
use super::tables::{CostTable, MadeOnce, lower_to};

/// Terms with their messages.
#[derive(Clone)]
pub(crate) struct Terms {
    terms: Vec<CostTerm>,
    /// The members of terms, one term after the other, and the end of the last.
    seats: Vec<TermSeat>,
    /// The debts by member and label: the negated costs that were given.
    owed: Vec<f64>,
    /// The least debt of the labels of a class, by member and class.
    least_owed: Vec<f64>,
    /// The members of each term that have been given all that there is, with no change since.
    drawn: Vec<Places>,
    /// The members of each term whose `least_owed` is not up to date.
    stale: Vec<Places>,
    made: OfEqual,
    scratch: TermScratch,
}

/// A set of members of a term as bits.
type Places = u32;

#[derive(Clone)]
struct CostTerm {
    costs: TermCosts,
    /// The index of its first member.
    first: usize,
    /// The number of its members.
    members: usize,
}

#[derive(Clone)]
enum TermCosts {
    /// Costs by the labels of both members.
    Pair(Rc<Quotient>),
    Share(Rc<Joint>),
}

/// The results that were made from tables and tariffs.
#[derive(Clone, Default)]
struct OfEqual {
    quotients: MadeOnce<CostTable, Quotient>,
    joints: MadeOnce<Tariff, Joint>,
}

/// A member of a term.
#[derive(Clone, Copy)]
struct TermSeat {
    variable: usize,
    /// The index at which the debts to its labels begin.
    owed: usize,
    /// The index at which the least costs of its classes begin.
    classes: usize,
}

/// A variable's position in a term.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    /// The term.
    pub term: usize,
    /// The position among its members.
    pub place: usize,
}

/// Buffers of one step, which are kept for the next.
#[derive(Clone, Default)]
struct TermScratch {
    /// Costs by class.
    best: Vec<f64>,
    /// Costs by label.
    left: Vec<f64>,
    /// The part of `least_owed` that belongs to a term.
    classes: Vec<f64>,
    groups: Groups,
}

impl TermCosts {
    fn classes(&self, place: usize) -> &[u32] {
        match self {
            TermCosts::Pair(table) => table.classes(place),
            TermCosts::Share(joint) => joint.classes(place),
        }
    }

    fn count_classes(&self, place: usize) -> usize {
        match self {
            TermCosts::Pair(table) => table.count_classes(place),
            TermCosts::Share(joint) => joint.count_classes(place),
        }
    }

    /// Returns the approximate number of entries that one sweep reads.
    fn sweep_size(&self, members: usize) -> usize {
        match self {
            TermCosts::Pair(table) => 4 * table.count_pairs(),
            TermCosts::Share(joint) => {
                let tariff = &joint.tariff;
                2 * members * (tariff.prices.len() << tariff.taken.len())
            }
        }
    }

    /// Computes, for each class of a member, the least sum of the costs and of the costs of the other members' classes.
    fn least_costs(&self, of: usize, classes: &[f64], groups: &mut Groups, best: &mut Vec<f64>) {
        match self {
            TermCosts::Pair(table) => {
                let (rows, columns) = classes.split_at(table.count_classes(0));
                table.least_costs(of, if of == 0 { columns } else { rows }, groups.arch, best);
            }
            TermCosts::Share(joint) => joint.least_costs(of, classes, groups, best),
        }
    }
}

impl Terms {
    /// Makes the terms of a network, with nothing given yet.
    pub(crate) fn new(network: &Network) -> Self {
        let mut made = OfEqual::default();
        let pairs = network.pairs.iter().map(|(&(a, b), table)| {
            (vec![a, b], TermCosts::Pair(made.quotients.find_or_make(table.clone())))
        });
        let shares = network.shares.iter().map(|share| {
            (
                share.members.clone(),
                TermCosts::Share(made.joints.find_or_make(share.tariff.clone())),
            )
        });
        let all: Vec<(Vec<usize>, TermCosts)> = pairs.chain(shares).collect();
        let mut terms = Self {
            drawn: vec![0; all.len()],
            stale: vec![0; all.len()],
            terms: Vec::with_capacity(all.len()),
            seats: Vec::new(),
            owed: Vec::new(),
            least_owed: Vec::new(),
            made,
            scratch: TermScratch::default(),
        };
        for (members, costs) in all {
            let (first, count) = (terms.seats.len(), members.len());
            let at = |variable| TermSeat { variable, owed: 0, classes: 0 };
            terms.seats.extend(members.into_iter().map(at));
            terms.terms.push(CostTerm { costs, first, members: count });
        }
        terms.seats.push(TermSeat { variable: 0, owed: 0, classes: 0 });
        terms.place_seats();
        terms.owed.resize(terms.seats[terms.seats.len() - 1].owed, 0.0);
        terms
    }

    /// Sets the positions of each member's numbers. Debts must be stored there.
    fn place_seats(&mut self) {
        let (mut owed, mut classes) = (0, 0);
        for term in &self.terms {
            for place in 0..term.members {
                let seat = &mut self.seats[term.first + place];
                (seat.owed, seat.classes) = (owed, classes);
                owed += term.costs.classes(place).len();
                classes += term.costs.count_classes(place);
            }
        }
        let end = self.seats.len() - 1;
        (self.seats[end].owed, self.seats[end].classes) = (owed, classes);
        self.least_owed.clear();
        self.least_owed.resize(classes, 0.0);
        self.stale.fill(Places::MAX);
    }

    /// Returns the number of terms.
    pub(crate) fn len(&self) -> usize {
        self.terms.len()
    }

    /// Returns the variables of a term.
    pub(crate) fn members(&self, term: usize) -> impl Iterator<Item = usize> + Clone {
        let CostTerm { first, members, .. } = self.terms[term];
        self.seats[first..first + members].iter().map(|seat| seat.variable)
    }

    /// Returns the debts to the labels of each member of a term.
    pub(crate) fn member_debts(&self, term: usize) -> impl Iterator<Item = &[f64]> {
        let members = self.terms[term].members;
        (0..members).map(move |place| &self.owed[self.label_range(Slot { term, place })])
    }

    /// Sets the debts to the labels of a member.
    pub(crate) fn owe(&mut self, slot: Slot, owed: &[f64]) {
        let labels = self.label_range(slot);
        self.owed[labels].copy_from_slice(owed);
        self.note_change(slot);
    }

    /// Returns the approximate number of entries that one sweep reads.
    pub(crate) fn sweep_size(&self) -> usize {
        self.terms.iter().map(|term| term.costs.sweep_size(term.members)).sum()
    }

    fn label_range(&self, slot: Slot) -> Range<usize> {
        let seat = self.terms[slot.term].first + slot.place;
        self.seats[seat].owed..self.seats[seat + 1].owed
    }

    fn class_range(&self, slot: Slot) -> Range<usize> {
        let seat = self.terms[slot.term].first + slot.place;
        self.seats[seat].classes..self.seats[seat + 1].classes
    }

    /// Notes that the debts to a member have changed, so that the others may be given more.
    fn note_change(&mut self, slot: Slot) {
        self.drawn[slot.term] &= 1 << slot.place;
        self.stale[slot.term] |= 1 << slot.place;
    }

    /// Whether a member has been given all that there is.
    pub(crate) fn is_drawn(&self, slot: Slot) -> bool {
        self.drawn[slot.term] >> slot.place & 1 == 1
    }

    /// Gives to a member of a term all that it can, and adds it to `costs`. What is left of the term's least costs is then 0 for each label.
    pub(crate) fn pull(&mut self, slot: Slot, costs: &mut [f64]) {
        if self.is_drawn(slot) {
            return;
        }
        self.find_best(slot);
        let labels = self.label_range(slot);
        let classes = self.terms[slot.term].costs.classes(slot.place);
        let best = &self.scratch.best;
        for ((cost, owed), &class) in costs.iter_mut().zip(&mut self.owed[labels]).zip(classes) {
            let least = best[class as usize];
            *cost += least + *owed;
            *owed = if least.is_finite() { -least } else { 0.0 };
        }
        self.note_change(slot);
        self.drawn[slot.term] = 1 << slot.place;
    }

    /// Takes these costs from a member, label by label, and gives them back to the term.
    pub(crate) fn deal(&mut self, slot: Slot, dealt: &[f64]) {
        let labels = self.label_range(slot);
        for (owed, dealt) in self.owed[labels].iter_mut().zip(dealt) {
            *owed += dealt;
        }
        self.drawn[slot.term] = 0;
        self.refresh(slot);
    }

    /// Tells a term which labels of a member no assignment has: those that cost infinitely much.
    pub(crate) fn forbid(&mut self, slot: Slot, costs: &[f64]) {
        let labels = self.label_range(slot);
        let mut is_new = false;
        for (owed, cost) in self.owed[labels].iter_mut().zip(costs) {
            if cost.is_infinite() && owed.is_finite() {
                *owed = f64::INFINITY;
                is_new = true;
            }
        }
        if is_new {
            self.note_change(slot);
        }
    }

    /// Returns the rest of a term's least costs by label of a member. `None` if the member has drawn all, so that nothing is left for any label that
    /// is not forbidden anyway.
    pub(crate) fn left_costs(&mut self, slot: Slot) -> Option<&[f64]> {
        if self.is_drawn(slot) {
            return None;
        }
        self.find_best(slot);
        Some(self.best_with_owed(slot))
    }

    /// Returns the rest of a term's least costs, given the labels of the other members that `label_of` knows.
    pub(crate) fn left_with(
        &mut self,
        slot: Slot,
        label_of: impl Fn(usize) -> Option<usize>,
    ) -> &[f64] {
        let CostTerm { costs, first, members } = &self.terms[slot.term];
        let (first, members) = (*first, *members);
        if let TermCosts::Pair(table) = costs
            && let Some(label) = label_of(self.seats[first + 1 - slot.place].variable)
        {
            table.write_costs(slot.place, label, &mut self.scratch.best);
            return self.best_with_owed(slot);
        }
        self.find_best(slot);
        let TermScratch { best, classes, groups, .. } = &mut self.scratch;
        let begin = self.seats[first].classes;
        classes.clear();
        classes.extend(&self.least_owed[begin..self.seats[first + members].classes]);
        let costs = &self.terms[slot.term].costs;
        for place in (0..members).filter(|&place| place != slot.place) {
            let seat = self.seats[first + place];
            if let Some(label) = label_of(seat.variable) {
                let own = seat.classes - begin..self.seats[first + place + 1].classes - begin;
                classes[own.clone()].fill(f64::INFINITY);
                let class = costs.classes(place)[label] as usize;
                classes[own][class] = self.owed[seat.owed + label];
            }
        }
        costs.least_costs(slot.place, classes, groups, best);
        self.best_with_owed(slot)
    }

    /// Returns the best cost by label, including the debts.
    fn best_with_owed(&mut self, slot: Slot) -> &[f64] {
        let labels = self.label_range(slot);
        let classes = self.terms[slot.term].costs.classes(slot.place).iter();
        let TermScratch { best, left, .. } = &mut self.scratch;
        left.clear();
        left.extend(classes.zip(&self.owed[labels]).map(|(&of, owed)| best[of as usize] + owed));
        left
    }

    /// Computes, for each class of a member, the least sum of the costs and of the debts to the other members.
    fn find_best(&mut self, slot: Slot) {
        let mut stale = self.stale[slot.term] & !(1 << slot.place);
        let CostTerm { first, members, .. } = self.terms[slot.term];
        stale &= (1 << members) - 1;
        while stale > 0 {
            self.refresh(Slot { place: stale.trailing_zeros() as usize, ..slot });
            stale &= stale - 1;
        }
        let classes = self.seats[first].classes..self.seats[first + members].classes;
        let TermScratch { best, groups, .. } = &mut self.scratch;
        let costs = &self.terms[slot.term].costs;
        costs.least_costs(slot.place, &self.least_owed[classes], groups, best);
    }

    /// Finds the least debt of the labels of each class of a member.
    fn refresh(&mut self, slot: Slot) {
        let (labels, classes) = (self.label_range(slot), self.class_range(slot));
        let least = &mut self.least_owed[classes];
        least.fill(f64::INFINITY);
        let of = self.terms[slot.term].costs.classes(slot.place);
        for (&class, &owed) in of.iter().zip(&self.owed[labels]) {
            lower_to(&mut least[class as usize], owed);
        }
        self.stale[slot.term] &= !(1 << slot.place);
    }

    /// Keeps only these labels of each variable. `whole` tells the variables of which these are all labels.
    pub(crate) fn restrict(&mut self, kept: &[Vec<usize>], whole: &[bool]) {
        self.made = OfEqual::default();
        let owed: Vec<f64> =
            (0..self.terms.len()).flat_map(|term| self.kept_of(term, kept)).collect();
        for at in 0..self.terms.len() {
            if self.members(at).all(|member| whole[member]) {
                continue;
            }
            self.drawn[at] = 0;
            let CostTerm { costs, first, members } = &mut self.terms[at];
            let seats = &self.seats[*first..*first + *members];
            let lists: Vec<&[usize]> =
                seats.iter().map(|seat| kept[seat.variable].as_slice()).collect();
            match costs {
                TermCosts::Share(joint) => {
                    *joint = self.made.joints.find_or_make(joint.tariff.with_labels(&lists));
                }
                TermCosts::Pair(table) => {
                    *table =
                        self.made.quotients.find_or_make(table.with_labels(lists[0], lists[1]));
                }
            }
        }
        self.owed = owed;
        self.place_seats();
    }

    /// Returns the debts to those labels of a term's members that are kept.
    fn kept_of(&self, term: usize, kept: &[Vec<usize>]) -> impl Iterator<Item = f64> {
        let members = self.members(term).zip(self.member_debts(term));
        members.flat_map(|(member, owed)| kept[member].iter().map(|&label| owed[label]))
    }
}
