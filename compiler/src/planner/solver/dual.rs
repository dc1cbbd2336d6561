//! A lower bound of a network by shifting costs: sequential reweighted message passing (Kolmogorov, "A new look at
//! reweighted message passing", 2015), from terms over several variables to their variables and back.
//!
//! A message is taken from a term and given to a variable, so any messages leave the cost of every assignment as it is:
//! the sum of all least entries is a bound at any time.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::network::Network;
use super::quotient::{self, Quotient, Quotients};
use super::share::{Groups, Share};
use crate::planner::meter::Meter;

/// A network whose costs are shifted.
#[derive(Clone)]
pub struct Dual {
    order: Vec<usize>,
    rank: Vec<usize>,
    /// Costs of labels, with all messages.
    unary: Vec<Vec<f64>>,
    terms: Vec<Term>,
    /// By variable: its terms.
    of_variable: Vec<Vec<Slot>>,
    constant: f64,
    tables: Quotients,
    meter: Meter,
    /// Whether terms are told which labels are forbidden: bounds are tighter, and what is found first of equals may be another.
    pub forbids: bool,
    /// Used again and again.
    room: Room,
}

#[derive(Clone)]
struct Term {
    members: Vec<usize>,
    costs: Costs,
    /// By member: what was given to its labels, negated.
    owed: Vec<Vec<f64>>,
    /// By member: whether it has been given all that there is, and nothing has changed since.
    drawn: Vec<bool>,
}

/// A variable's place in a term.
#[derive(Clone, Copy)]
struct Slot {
    term: usize,
    place: usize,
    /// Whether variables of the term are visited before this one in a pass forward, and after it.
    reaches: [bool; 2],
}

/// The way of a pass, as it indexes [`Slot::reaches`].
#[derive(Clone, Copy)]
enum Pass {
    Back,
    Forward,
}

/// Memory of one step, kept for the next.
#[derive(Clone, Default)]
struct Room {
    least: Vec<f64>,
    dealt: Vec<f64>,
    for_terms: ForTerms,
}

/// The part of it that terms use.
#[derive(Clone, Default)]
struct ForTerms {
    groups: Groups,
    pairs: quotient::Room,
}

/// A term by its variables, as they are called elsewhere, and which of the terms over these it is.
pub type Key = (Vec<usize>, usize);

/// What was given to whom, to be given again where costs are a little different: any messages are right, and these are
/// good ones.
#[derive(Clone, Debug, Default)]
pub struct Messages {
    known: BTreeMap<Key, Vec<Vec<f64>>>,
}

#[derive(Clone)]
enum Costs {
    /// By the labels of both members.
    Pair(Rc<Quotient>),
    Share(Share),
}

impl Messages {
    /// Messages to these terms.
    pub fn new(keys: Vec<Key>, given: Vec<Vec<Vec<f64>>>) -> Self {
        Self { known: keys.into_iter().zip(given).collect() }
    }
}

impl Term {
    fn new(network: &Network, members: Vec<usize>, costs: Costs) -> Self {
        let owed = members.iter().map(|&v| vec![0.0; network.labels(v)]).collect();
        let drawn = vec![false; members.len()];
        Self { members, costs, owed, drawn }
    }

    /// For each label of a member the least of the costs with what was given to the other members.
    fn least(&self, of: usize, room: &mut ForTerms, least: &mut Vec<f64>) {
        match &self.costs {
            Costs::Share(share) => share.least(of, &self.owed, &mut room.groups, least),
            Costs::Pair(table) => table.least(of, &self.owed[1 - of], &mut room.pairs, least),
        }
    }
}

fn least(costs: &[f64]) -> f64 {
    costs.iter().copied().fold(f64::INFINITY, f64::min)
}

impl Dual {
    /// Nothing is shifted yet.
    pub fn new(network: &Network) -> Self {
        let mut order: Vec<usize> = (0..network.unary.len()).collect();
        order.sort_by_key(|&variable| (network.origin[variable], variable));
        let mut rank = vec![0; order.len()];
        for (at, &variable) in order.iter().enumerate() {
            rank[variable] = at;
        }
        let mut tables = Quotients::default();
        let mut known: HashMap<(*const f64, usize), Rc<Quotient>> = HashMap::new();
        let pairs = network.pairs.iter().map(|(&(a, b), table)| {
            let columns = network.labels(b);
            let of = known.entry((table.as_ptr(), columns));
            let table = of.or_insert_with(|| tables.intern(Quotient::new(table, columns)));
            Term::new(network, vec![a, b], Costs::Pair(table.clone()))
        });
        let shares = network.shares.iter();
        let shares =
            shares.map(|share| Term::new(network, share.members(), Costs::Share(share.clone())));
        let terms: Vec<Term> = pairs.chain(shares).collect();
        let mut of_variable = vec![Vec::new(); order.len()];
        for (id, term) in terms.iter().enumerate() {
            for (place, &variable) in term.members.iter().enumerate() {
                let own = rank[variable];
                let earlier = term.members.iter().any(|&other| rank[other] < own);
                let later = term.members.iter().any(|&other| rank[other] > own);
                of_variable[variable].push(Slot { term: id, place, reaches: [earlier, later] });
            }
        }
        let (unary, constant) = (network.unary.clone(), network.constant);
        let meter = network.meter.clone();
        let (forbids, room) = (false, Room::default());
        Self { order, rank, unary, terms, of_variable, constant, tables, meter, forbids, room }
    }

    /// The terms, where variables are called as `names` says.
    pub fn keys(&self, names: &[usize]) -> Vec<Key> {
        let mut seen: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
        let mut key = |term: &Term| {
            let members: Vec<usize> = term.members.iter().map(|&member| names[member]).collect();
            let count = seen.entry(members.clone()).or_default();
            *count += 1;
            (members, *count)
        };
        self.terms.iter().map(&mut key).collect()
    }

    /// Begins with these messages; nothing may have been shifted yet.
    pub fn resume(&mut self, keys: &[Key], messages: &Messages) {
        for (term, key) in self.terms.iter_mut().zip(keys) {
            let same = |known: &&Vec<Vec<f64>>| {
                known.iter().zip(&term.owed).all(|(a, b)| a.len() == b.len())
            };
            let Some(owed) = messages.known.get(key).filter(same) else { continue };
            for (&member, owed) in term.members.iter().zip(owed) {
                let costs = self.unary[member].iter_mut();
                costs.zip(owed).for_each(|(cost, owed)| *cost -= owed);
            }
            term.owed.clone_from(owed);
        }
    }

    /// By term and member what was given to its labels, where `kept` says which of all the labels are left: those that are not have what
    /// they had before, and so has what is forbidden.
    pub fn note(&self, kept: &[Vec<usize>], given: &mut [Vec<Vec<f64>>]) {
        for (term, given) in self.terms.iter().zip(given) {
            for ((&member, owed), given) in term.members.iter().zip(&term.owed).zip(given) {
                let known = kept[member].iter().zip(owed).filter(|(_, owed)| owed.is_finite());
                known.for_each(|(&label, &owed)| given[label] = owed);
            }
        }
    }

    /// What was given to whom, by term and member.
    pub fn given(&self) -> Vec<Vec<Vec<f64>>> {
        self.terms.iter().map(|term| term.owed.clone()).collect()
    }

    /// Keeps all messages.
    pub fn save(&self, keys: Vec<Key>, messages: &mut Messages) {
        let all = keys.into_iter().zip(&self.terms);
        messages.known.extend(all.map(|(key, term)| (key, term.owed.clone())));
    }

    /// Terms that a variable is part of.
    pub fn terms(&self, variable: usize) -> usize {
        self.of_variable[variable].len()
    }

    /// Entries that one sweep reads, about.
    pub fn size(&self) -> usize {
        let size = |term: &Term| match &term.costs {
            Costs::Pair(table) => 4 * table.pairs(),
            Costs::Share(share) => {
                2 * term.members.len() * (share.prices.len() << share.readers.len())
            }
        };
        self.terms.iter().map(size).sum()
    }

    /// One pass forward and one back.
    pub fn sweep(&mut self) {
        self.meter.add(self.size());
        for at in 0..self.order.len() {
            self.visit(self.order[at], Pass::Forward);
        }
        for at in (0..self.order.len()).rev() {
            self.visit(self.order[at], Pass::Back);
        }
    }

    /// Draws everything into a variable and deals it out to the terms that reach ahead.
    fn visit(&mut self, variable: usize, pass: Pass) {
        let (ahead, behind) = (pass as usize, 1 - pass as usize);
        let slots = std::mem::take(&mut self.of_variable[variable]);
        slots.iter().for_each(|&slot| self.pull(slot));
        if self.forbids {
            self.forbid(variable, &slots);
        }
        let reach = |way: usize| slots.iter().filter(|slot| slot.reaches[way]).count();
        let (to, from) = (reach(ahead), reach(behind));
        let chains = to.max(from).max(1) as f64;
        let part = |cost: &f64| if cost.is_finite() { cost / chains } else { 0.0 };
        let dealt = &mut self.room.dealt;
        dealt.clear();
        dealt.extend(self.unary[variable].iter().map(part));
        for slot in slots.iter().filter(|slot| slot.reaches[ahead]) {
            let term = &mut self.terms[slot.term];
            term.drawn.fill(false);
            let owed = term.owed[slot.place].iter_mut();
            for (owed, dealt) in owed.zip(&*dealt) {
                *owed += dealt;
            }
        }
        for (cost, dealt) in self.unary[variable].iter_mut().zip(dealt) {
            *cost -= *dealt * to as f64;
        }
        self.of_variable[variable] = slots;
    }

    /// Gives to a member of a term all that it can: what is left of the term's least costs is 0 for each label.
    fn pull(&mut self, slot: Slot) {
        let term = &mut self.terms[slot.term];
        if term.drawn[slot.place] {
            return;
        }
        let Room { least, for_terms, .. } = &mut self.room;
        term.least(slot.place, for_terms, least);
        let unary = self.unary[term.members[slot.place]].iter_mut();
        for ((cost, owed), &least) in unary.zip(&mut term.owed[slot.place]).zip(&*least) {
            *cost += least + *owed;
            *owed = if least.is_finite() { -least } else { 0.0 };
        }
        term.drawn.fill(false);
        term.drawn[slot.place] = true;
    }

    /// Says to all terms of a variable which of its labels no assignment has. Otherwise a term counts on such a label at no cost, as
    /// there is no finite part of its cost that could be dealt out.
    fn forbid(&mut self, variable: usize, slots: &[Slot]) {
        let costs = &self.unary[variable];
        if costs.iter().all(|cost| cost.is_finite()) {
            return;
        }
        for slot in slots {
            let term = &mut self.terms[slot.term];
            for (owed, cost) in term.owed[slot.place].iter_mut().zip(costs) {
                if cost.is_infinite() && owed.is_finite() {
                    *owed = f64::INFINITY;
                    let others = term.drawn.iter_mut().enumerate();
                    others.for_each(|(place, drawn)| *drawn &= place == slot.place);
                }
            }
        }
    }

    /// What is left of a term's least costs by label of a member; `None` where it has drawn all, so that nothing is left for any label
    /// that is not forbidden anyway.
    fn left<'a>(&self, slot: Slot, room: &'a mut Room) -> Option<&'a [f64]> {
        let term = &self.terms[slot.term];
        if term.drawn[slot.place] {
            return None;
        }
        let Room { least, for_terms, .. } = room;
        term.least(slot.place, for_terms, least);
        least.iter_mut().zip(&term.owed[slot.place]).for_each(|(least, owed)| *least += owed);
        Some(least)
    }

    /// What no assignment goes below.
    pub fn bound(&self) -> f64 {
        let mut room = Room::default();
        let mut of_term = |term: usize| {
            let first = Slot { term, place: 0, reaches: [false; 2] };
            self.left(first, &mut room).map_or(0.0, least)
        };
        let unary: f64 = self.unary.iter().map(|costs| least(costs)).sum();
        let terms: f64 = (0..self.terms.len()).map(&mut of_term).sum();
        self.constant + unary + terms
    }

    /// By variable and label: what no assignment with that label goes below.
    pub fn bounds(&self) -> Vec<Vec<f64>> {
        let bound = self.bound();
        let mut room = Room::default();
        let of = |variable: usize| -> Vec<f64> {
            let mut costs = self.unary[variable].clone();
            let mut own = least(&costs);
            for &slot in &self.of_variable[variable] {
                let Some(left) = self.left(slot, &mut room) else { continue };
                own += least(left);
                costs.iter_mut().zip(left).for_each(|(cost, left)| *cost += left);
            }
            costs.into_iter().map(|cost| bound - own + cost).collect()
        };
        (0..self.unary.len()).map(of).collect()
    }

    /// Labels chosen one by one, each the best with those before it.
    pub fn decode(&self) -> Vec<usize> {
        let mut labels = vec![0; self.unary.len()];
        let mut room = Room::default();
        for &variable in &self.order {
            let mut costs = self.unary[variable].clone();
            for &slot in &self.of_variable[variable] {
                if self.with_those_before(slot, &labels, &mut room) {
                    costs.iter_mut().zip(&room.least).for_each(|(cost, added)| *cost += added);
                }
            }
            let best = (0..costs.len()).min_by(|&a, &b| costs[a].total_cmp(&costs[b]));
            labels[variable] = best.unwrap_or(0);
        }
        labels
    }

    /// What a term costs by label of a member, where those before it have their labels: whether it costs anything.
    fn with_those_before(&self, slot: Slot, labels: &[usize], room: &mut Room) -> bool {
        let term = &self.terms[slot.term];
        let own = self.rank[term.members[slot.place]];
        let is_before = |&member: &usize| self.rank[term.members[member]] < own;
        if !slot.reaches[Pass::Back as usize] {
            return self.left(slot, room).is_some();
        }
        let Room { least, for_terms, .. } = room;
        match &term.costs {
            Costs::Pair(table) => {
                let label = labels[term.members[1 - slot.place]];
                let own = 0..term.owed[slot.place].len();
                least.clear();
                match slot.place {
                    0 => least.extend(own.map(|own| table.at(own, label))),
                    _ => least.extend(own.map(|own| table.at(label, own))),
                }
            }
            Costs::Share(share) => {
                let mut owed = term.owed.clone();
                for member in (0..term.members.len()).filter(is_before) {
                    let label = labels[term.members[member]];
                    let costs = owed[member].iter_mut().enumerate();
                    costs.filter(|(l, _)| *l != label).for_each(|(_, cost)| *cost = f64::INFINITY);
                }
                share.least(slot.place, &owed, &mut for_terms.groups, least);
            }
        }
        least.iter_mut().zip(&term.owed[slot.place]).for_each(|(least, owed)| *least += owed);
        true
    }

    /// Keeps these labels of each variable alone.
    pub fn restrict(&mut self, kept: &[Vec<usize>]) {
        self.tables = Quotients::default();
        let whole = |v: &usize| kept[*v].len() == self.unary[*v].len();
        for term in &mut self.terms {
            if term.members.iter().all(whole) {
                continue;
            }
            term.drawn.fill(false);
            match &mut term.costs {
                Costs::Share(share) => *share = share.with_labels(kept),
                Costs::Pair(table) => {
                    let [rows, columns] = [0, 1].map(|place| &kept[term.members[place]]);
                    *table = self.tables.intern(table.picked(rows, columns));
                }
            }
            for (owed, &member) in term.owed.iter_mut().zip(&term.members) {
                *owed = kept[member].iter().map(|&label| owed[label]).collect();
            }
        }
        for (costs, kept) in self.unary.iter_mut().zip(kept) {
            *costs = kept.iter().map(|&label| costs[label]).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::solver::eliminate::{LIMITS, minimum};

    #[test]
    fn a_label_that_one_term_forbids_is_counted_on_by_no_other() {
        // What 0 and 1 cost together is free where 1 has its first label, which 2 and 3 forbid, one label of 3 each.
        let mut network = Network::default();
        for variable in 0..4 {
            network.variable(2, variable);
        }
        let forbidden = f64::INFINITY;
        network.pair(0, 1, |_, own| if own == 0 { 0.0 } else { 4.0 });
        network.pair(1, 2, |own, _| if own == 0 { forbidden } else { 0.0 });
        network.pair(0, 2, |a, b| if a == b { 0.0 } else { 1.0 });
        network.pair(0, 3, |a, b| if a == b { 3.0 } else { 0.0 });
        network.pair(2, 3, |a, b| if a == b { 0.0 } else { 3.0 });
        let bound_of = |forbids: bool| {
            let mut dual = Dual::new(&network);
            dual.forbids = forbids;
            (0..20).for_each(|_| dual.sweep());
            dual.bound()
        };
        let (value, _) = minimum(&network, LIMITS).expect("it is small");
        assert!(bound_of(true) <= value + 1e-9);
        assert!(bound_of(true) > bound_of(false) + 0.1, "{} {}", bound_of(true), bound_of(false));
    }

    #[test]
    fn the_bound_is_below_the_minimum_and_tight_on_trees() {
        let mut network = Network::default();
        for variable in 0..6 {
            network.variable(3, variable);
        }
        let cost = |a: usize, i: usize, j: usize| ((a * 7 + i * 5 + j * 11) % 13) as f64;
        for a in 0..5 {
            network.pair(a, a + 1, |i, j| cost(a, i, j));
        }
        let bound_of = |network: &Network| {
            let mut dual = Dual::new(network);
            (0..20).for_each(|_| dual.sweep());
            dual.bound()
        };
        let (value, _) = minimum(&network, LIMITS).expect("it is small");
        assert!((bound_of(&network) - value).abs() < 1e-9, "a chain is a tree");
        for a in 0..4 {
            network.pair(a, a + 2, |i, j| cost(a + 9, j, i));
        }
        let (value, _) = minimum(&network, LIMITS).expect("it is small");
        assert!(bound_of(&network) <= value + 1e-9);
    }
}
