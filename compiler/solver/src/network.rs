//! Cost-function networks: variables with few labels, costs of labels, of pairs of labels, and of tensors with
//! several readers.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::share::{Settled, Share, Tariff, Tariffs};
use super::tables::{CostTable, LabelAxis, Tables};
use crate::meter::Meter;

/// A network: the sum of `constant`, of one cost for each variable, of one for each pair in `pairs`, and of the shares.
/// An infinite cost forbids a pair of labels.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Costs by variable and label.
    pub unary: Vec<Vec<f64>>,
    /// Costs of pairs `(a, b)`, `a < b`.
    pub pairs: BTreeMap<(usize, usize), Rc<CostTable>>,
    /// Tensors that several variables read.
    pub shares: Vec<Share>,
    /// The cost that is paid in any case.
    pub constant: f64,
    /// The node of each variable, which orders variables.
    pub origin: Vec<usize>,
    /// Whether a variable is a switch, whose label 1 is allowed whatever the labels of the others.
    pub switch: Vec<bool>,
    /// All tables, each equal one once.
    pub tables: Tables,
    /// All tariffs, each equal one once.
    pub tariffs: Tariffs,
    /// The counter of the work on it.
    pub meter: Meter,
}

impl Network {
    /// Adds a variable.
    pub fn add_variable(&mut self, labels: usize, origin: usize) -> usize {
        self.unary.push(vec![0.0; labels]);
        self.origin.push(origin);
        self.switch.push(false);
        self.unary.len() - 1
    }

    /// Returns the number of labels of a variable.
    pub fn count_labels(&self, variable: usize) -> usize {
        self.unary[variable].len()
    }

    /// Adds the cost of pairs of labels.
    pub fn add_pair(&mut self, a: usize, b: usize, cost: impl Fn(usize, usize) -> f64) {
        let every =
            |variable: usize| (variable, LabelAxis::one_per_label(self.count_labels(variable)));
        if let Some(table) = self.build_table(every(a), every(b), cost) {
            self.add_table(a.min(b), a.max(b), &table);
        }
    }

    /// Makes a table of the costs of pairs of labels of two variables, the lower variable first. Costs are given by the classes of labels. `None` if
    /// no pair costs anything.
    pub fn build_table(
        &mut self,
        (a, of_a): (usize, LabelAxis),
        (b, of_b): (usize, LabelAxis),
        cost: impl Fn(usize, usize) -> f64,
    ) -> Option<Rc<CostTable>> {
        let table = match a < b {
            true => CostTable::of_pair([of_a, of_b], cost),
            false => CostTable::of_pair([of_b, of_a], |b, a| cost(a, b)),
        };
        self.intern_table(table)
    }

    /// Returns the known table that is equal to this one, or `None` if nothing costs anything.
    fn intern_table(&mut self, table: CostTable) -> Option<Rc<CostTable>> {
        self.meter.add(table.axes.iter().map(|axis| axis.classes.len()).product());
        table.has_costs().then(|| self.tables.intern(table))
    }

    /// Adds the costs of a table over two variables.
    pub fn add_table(&mut self, low: usize, high: usize, table: &Rc<CostTable>) {
        let table = match self.pairs.get(&(low, high)) {
            Some(known) => self.tables.intern(table.sum_with(known)),
            None => table.clone(),
        };
        self.pairs.insert((low, high), table);
    }

    /// Returns the cost of an assignment of labels.
    pub fn cost(&self, assignment: &[usize]) -> f64 {
        let unary: f64 =
            self.unary.iter().zip(assignment).map(|(costs, &label)| costs[label]).sum();
        let pairs: f64 = self
            .pairs
            .iter()
            .map(|(&(a, b), table)| table.cost_at(assignment[a], assignment[b]))
            .sum();
        let shares: f64 = self.shares.iter().map(|share| share.cost(|v| assignment[v])).sum();
        self.constant + unary + pairs + shares
    }

    /// Adds the cost of a share, as a pair if it has no more than two members.
    fn add_share(&mut self, share: Share) {
        let tariff = &share.tariff;
        match (&tariff.made, tariff.taken.as_slice(), share.members.as_slice()) {
            (_, [], _) => {}
            (Some(rows), [columns], &[producer, reader]) => {
                self.add_pair(producer, reader, |a, b| {
                    columns[b].map_or(0.0, |column| tariff.price(rows[a], column))
                });
            }
            (None, [columns], &[reader]) => {
                for (cost, column) in self.unary[reader].iter_mut().zip(columns) {
                    *cost += column.map_or(0.0, |column| tariff.price(0, column));
                }
            }
            _ => self.shares.push(share),
        }
    }

    /// Turns on every switch that other variables ask for, so that no pair of labels is forbidden.
    pub(crate) fn turn_on(&self, assignment: &mut [usize]) {
        // Where all labels of an eliminated reader ask for the switch, the switch alone knows.
        for (variable, label) in assignment.iter_mut().enumerate() {
            if self.switch[variable] && self.unary[variable][*label].is_infinite() {
                *label = 1;
            }
        }
        for (&(a, b), table) in &self.pairs {
            if table.cost_at(assignment[a], assignment[b]).is_infinite() {
                for end in [a, b].into_iter().filter(|&end| self.switch[end]) {
                    assignment[end] = 1;
                }
            }
        }
    }

    /// Turns off every switch that costs something and that no variable asks for.
    pub(crate) fn turn_off(&self, assignment: &mut [usize]) {
        let mut extra: Vec<f64> =
            self.unary.iter().map(|costs| costs[costs.len() - 1] - costs[0]).collect();
        for (&(a, b), table) in &self.pairs {
            if self.switch[a] {
                extra[a] += table.cost_at(1, assignment[b]) - table.cost_at(0, assignment[b]);
            }
            if self.switch[b] {
                extra[b] += table.cost_at(assignment[a], 1) - table.cost_at(assignment[a], 0);
            }
        }
        for (variable, label) in assignment.iter_mut().enumerate() {
            if self.switch[variable] && self.count_labels(variable) == 2 && extra[variable] > 0.0 {
                *label = 0;
            }
        }
    }

    /// Returns the network in which each variable has only the labels of `kept`.
    pub fn with_labels(&self, kept: &[Vec<usize>]) -> Network {
        let pick =
            |costs: &Vec<f64>, labels: &Vec<usize>| labels.iter().map(|&l| costs[l]).collect();
        let unary =
            self.unary.iter().zip(kept).map(|(costs, labels)| pick(costs, labels)).collect();
        let mut network = Network {
            unary,
            pairs: BTreeMap::new(),
            shares: Vec::new(),
            constant: self.constant,
            origin: self.origin.clone(),
            switch: self.switch.clone(),
            tables: Tables::default(),
            tariffs: Tariffs::default(),
            meter: self.meter.clone(),
        };
        let whole = |v: usize| kept[v].len() == self.count_labels(v);
        for (&(a, b), table) in &self.pairs {
            if whole(a) && whole(b) && kept[a].len() > 1 && kept[b].len() > 1 {
                network.pairs.insert((a, b), table.clone());
                continue;
            }
            let cost = |i: usize, j: usize| table.cost_at(kept[a][i], kept[b][j]);
            match (kept[a].len(), kept[b].len()) {
                (1, _) => (0..kept[b].len()).for_each(|j| network.unary[b][j] += cost(0, j)),
                (_, 1) => (0..kept[a].len()).for_each(|i| network.unary[a][i] += cost(i, 0)),
                _ => {
                    let picked = network.intern_table(table.with_labels(&[&kept[a], &kept[b]]));
                    picked.iter().for_each(|table| network.add_table(a, b, table));
                }
            }
        }
        let mut known: HashMap<(*const Tariff, Vec<&[usize]>), Settled> = HashMap::new();
        for share in &self.shares {
            let lists: Vec<&[usize]> =
                share.members.iter().map(|&member| kept[member].as_slice()).collect();
            let settled = known.entry((Rc::as_ptr(&share.tariff), lists.clone()));
            let Settled { paid, rest } = settled.or_insert_with(|| {
                let mut settled = share.tariff.settle_labels(&lists);
                if let Some((rest, _)) = &mut settled.rest {
                    *rest = network.tariffs.intern(rest.clone());
                }
                settled
            });
            match share.producer() {
                Some(producer) => {
                    let costs = network.unary[producer].iter_mut();
                    costs.zip(paid).for_each(|(cost, paid)| *cost += *paid);
                }
                None => network.constant += paid[0],
            }
            if let Some((rest, places)) = rest {
                let members = places.iter().map(|&place| share.members[place]).collect();
                network.add_share(Share { members, tariff: rest.clone() });
            }
        }
        network
    }

    /// Returns the network with the pairs of variables that have a single label folded into the costs of the others.
    pub(crate) fn fold_single_labels(&self) -> Network {
        let all: Vec<Vec<usize>> =
            self.unary.iter().map(|costs| (0..costs.len()).collect()).collect();
        self.with_labels(&all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_that_must_be_on_is_turned_on() {
        let mut network = Network::default();
        for variable in 0..2 {
            network.add_variable(2, variable);
            network.switch[variable] = true;
        }
        network.unary[0] = vec![f64::INFINITY, 3.0];
        network.add_pair(0, 1, |a, b| if a == 1 && b == 0 { f64::INFINITY } else { 1.0 });
        let mut labels = vec![0, 0];
        network.turn_on(&mut labels);
        assert_eq!((labels.as_slice(), network.cost(&labels)), (&[1, 1][..], 4.0));
    }
}
