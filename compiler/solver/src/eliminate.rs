//! Variable elimination (Dechter, "Bucket elimination", 1999): a variable is minimised away, which leaves one table over its neighbours.
//!
//! The labels follow in reverse order. The result is exact, and its cost is that of the largest table. An elimination with the tables and tariffs of
//! an earlier one takes over its result.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use pulp::Arch;

use super::bucket::{Best, CostFactor, FactorCosts, minimise_variable};
use super::network::Network;
use super::share::Share;
use super::tables::{CostTable, LabelAxis, Tables};
use crate::meter::Meter;

/// The limits of the work of elimination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The most entries of one table.
    pub table: f64,
    /// The most entries of all tables, times the labels minimised over.
    pub work: f64,
}

/// The limits that plans are made with. With half or twice of either DenseNet-121, MobileNetV2 and ResNet on 2x4 and experts on
/// 2x2x2 have the same plans.
pub(crate) const LIMITS: Limits = Limits { table: 4_194_304.0, work: 6e7 };

/// The most labels that may be looked at for one variable with two neighbours. With half as many experts on 2x2x2 end 1.6 % lower; twice as many
/// change none of these plans.
const NARROW: usize = 4_000_000;

/// An eliminated variable, its neighbours, and its best label by theirs.
#[derive(Clone, Debug)]
struct Eliminated {
    variable: usize,
    scope: Vec<usize>,
    best: Rc<Best>,
}

/// Eliminations made before. The key has the labels of each variable, the eliminated one first, and for each factor the address of its costs and the
/// positions of its variables. The value has what was left, and all costs, so that no others get their addresses.
type Known = HashMap<
    (Vec<usize>, Vec<(*const (), Vec<usize>)>),
    (Rc<CostTable>, Rc<Best>, Vec<FactorCosts>),
>;

/// A network with some variables eliminated.
#[derive(Clone, Debug)]
pub(crate) struct Elimination {
    domains: Vec<usize>,
    factors: BTreeMap<usize, CostFactor>,
    of_variable: Vec<BTreeSet<usize>>,
    remaining: BTreeSet<usize>,
    trail: Vec<Eliminated>,
    next: usize,
    constant: f64,
    tables: Tables,
    known: Known,
    meter: Meter,
}

/// Finds the minimum, with labels that reach it, or `None` if it is not possible within the limits.
pub(crate) fn find_minimum(network: &Network, limits: Limits) -> Option<(f64, Vec<usize>)> {
    let mut elimination = Elimination::new(network);
    elimination.eliminate_narrow();
    let order = elimination.find_order(limits)?;
    Some(elimination.eliminate_all(order))
}

impl Elimination {
    /// Prepares a network, of which only variables with a single label are eliminated.
    pub(crate) fn new(network: &Network) -> Self {
        let mut network = network.fold_single_labels();
        let variables = network.unary.len();
        let mut tables = std::mem::take(&mut network.tables);
        let of_variable = |costs: &Vec<f64>| {
            tables.intern(CostTable::new(vec![LabelAxis::one_per_label(costs.len())], costs))
        };
        let unary: Vec<Rc<CostTable>> = network.unary.iter().map(of_variable).collect();
        let mut elimination = Self {
            domains: network.unary.iter().map(Vec::len).collect(),
            factors: BTreeMap::new(),
            of_variable: vec![BTreeSet::new(); variables],
            remaining: (0..variables).collect(),
            trail: Vec::new(),
            next: 0,
            constant: network.constant,
            tables,
            known: Known::new(),
            meter: network.meter.clone(),
        };
        for (variable, table) in unary.into_iter().enumerate() {
            elimination.add(CostFactor { scope: vec![variable], costs: FactorCosts::Table(table) });
        }
        for ((a, b), table) in network.pairs {
            elimination.add(CostFactor { scope: vec![a, b], costs: FactorCosts::Table(table) });
        }
        for share in network.shares {
            elimination
                .add(CostFactor { scope: share.members, costs: FactorCosts::Share(share.tariff) });
        }
        elimination
    }

    fn add(&mut self, factor: CostFactor) {
        if let (true, FactorCosts::Table(table)) = (factor.scope.is_empty(), &factor.costs) {
            self.constant += table.entries[0];
            return;
        }
        for &variable in &factor.scope {
            self.of_variable[variable].insert(self.next);
        }
        self.factors.insert(self.next, factor);
        self.next += 1;
    }

    fn neighbours(&self, variable: usize) -> BTreeSet<usize> {
        let scopes = self.of_variable[variable].iter().flat_map(|id| &self.factors[id].scope);
        scopes.copied().filter(|&other| other != variable).collect()
    }

    /// Eliminates every variable with at most two neighbours: chains, trees, and what they leave.
    pub(crate) fn eliminate_narrow(&mut self) {
        let mut queue = self.remaining.clone();
        while let Some(variable) = queue.pop_first() {
            let neighbours = self.neighbours(variable);
            if neighbours.len() > 2 {
                continue;
            }
            let size: usize = neighbours.iter().map(|&v| self.domains[v]).product();
            if size * self.domains[variable] <= NARROW {
                self.eliminate(variable);
                queue.extend(neighbours);
            }
        }
    }

    /// Eliminates the remaining variables in this order, and returns the minimum and its labels.
    pub(crate) fn eliminate_all(mut self, order: Vec<usize>) -> (f64, Vec<usize>) {
        order.into_iter().for_each(|variable| self.eliminate(variable));
        let mut labels = vec![0; self.domains.len()];
        self.complete(&mut labels);
        (self.constant, labels)
    }

    /// Minimises a variable away.
    fn eliminate(&mut self, variable: usize) {
        let ids = std::mem::take(&mut self.of_variable[variable]);
        let mut factors = Vec::new();
        for id in ids {
            let factor = self.factors.remove(&id).expect("a variable's factors are there");
            for other in factor.scope.iter().filter(|&&other| other != variable) {
                self.of_variable[*other].remove(&id);
            }
            factors.push(factor);
        }
        let scope: BTreeSet<usize> = factors.iter().flat_map(|f| f.scope.iter().copied()).collect();
        let scope: Vec<usize> = scope.into_iter().filter(|&other| other != variable).collect();
        let (table, best) = self.minimise(variable, &scope, &factors);
        self.trail.push(Eliminated { variable, scope: scope.clone(), best });
        self.remaining.remove(&variable);
        self.add(CostFactor { scope, costs: FactorCosts::Table(table) });
    }

    /// Returns the table that is left when a variable is minimised away, and its best labels. For variables that are alike it is computed once.
    fn minimise(
        &mut self,
        variable: usize,
        scope: &[usize],
        factors: &[CostFactor],
    ) -> (Rc<CostTable>, Rc<Best>) {
        let all: Vec<usize> = std::iter::once(variable).chain(scope.iter().copied()).collect();
        let place = |of: &usize| all.iter().position(|v| v == of).unwrap_or(usize::MAX);
        let alike = |factor: &CostFactor| {
            (factor.costs.address(), factor.scope.iter().map(place).collect())
        };
        let domains = all.iter().map(|&v| self.domains[v]).collect();
        let key = (domains, factors.iter().map(alike).collect());
        if let Some((table, best, _)) = self.known.get(&key) {
            return (table.clone(), best.clone());
        }
        let size: usize = all.iter().map(|&v| self.domains[v]).product();
        self.meter.add(size * factors.len());
        let (table, best) = minimise_variable(Arch::new(), &self.domains, variable, scope, factors);
        let (table, best) = (self.tables.intern(table), Rc::new(best));
        let costs = factors.iter().map(|factor| factor.costs.clone()).collect();
        self.known.insert(key, (table.clone(), best.clone(), costs));
        (table, best)
    }

    /// Finds an order in which the remaining variables can be eliminated within the limits, if it can. The next variable is always the one that
    /// leaves the smallest table.
    pub(crate) fn find_order(&self, limits: Limits) -> Option<Vec<usize>> {
        let mut graph = Neighbours::new(self);
        let (mut order, mut work) = (Vec::new(), 0.0);
        while let Some((size, variable)) = graph.pop() {
            work += size * self.domains[variable] as f64;
            if size > limits.table || work > limits.work {
                return None;
            }
            order.push(variable);
        }
        Some(order)
    }

    /// Returns the network that is left after [`Elimination::eliminate_narrow`], and its variables in the original network.
    pub(crate) fn residual(&self, of: &Network) -> (Network, Vec<usize>) {
        let variables: Vec<usize> = self.remaining.iter().copied().collect();
        let mut network = Network { constant: self.constant, ..Network::default() };
        (network.tables, network.meter) = (self.tables.clone(), self.meter.clone());
        for &variable in &variables {
            let index = network.add_variable(self.domains[variable], of.origin[variable]);
            network.switch[index] = of.switch[variable];
        }
        let index = |variable: &usize| variables.binary_search(variable).expect("it remains");
        for factor in self.factors.values() {
            match (factor.scope.as_slice(), &factor.costs) {
                (scope, FactorCosts::Share(tariff)) => {
                    let members = scope.iter().map(index).collect();
                    network.shares.push(Share { members, tariff: tariff.clone() });
                }
                ([a], FactorCosts::Table(table)) => {
                    let costs = table.axes[0].classes.iter();
                    for (sum, &class) in network.unary[index(a)].iter_mut().zip(costs) {
                        *sum += table.entries[class as usize];
                    }
                }
                ([a, b], FactorCosts::Table(table)) => {
                    network.meter.add(self.domains[*a] * self.domains[*b]);
                    if table.has_costs() {
                        network.add_table(index(a), index(b), table);
                    }
                }
                _ => unreachable!("narrow elimination leaves pairs"),
            }
        }
        (network, variables)
    }

    /// Fills in the labels of all eliminated variables from those of the remaining.
    pub(crate) fn complete(&self, labels: &mut [usize]) {
        for Eliminated { variable, scope, best } in self.trail.iter().rev() {
            labels[*variable] = best.best_label(scope.iter().map(|&v| labels[v]));
        }
    }
}

/// The neighbours of each variable, and the size of the table that it would leave.
struct Neighbours<'a> {
    domains: &'a [usize],
    of: Vec<BTreeSet<usize>>,
    /// The sizes and variables. The bits of positive sizes have the order of the sizes.
    queue: BTreeSet<(u64, usize)>,
    size: Vec<u64>,
}

impl<'a> Neighbours<'a> {
    fn new(elimination: &'a Elimination) -> Self {
        let variables = elimination.domains.len();
        let mut graph = Self {
            domains: &elimination.domains,
            of: vec![BTreeSet::new(); variables],
            queue: BTreeSet::new(),
            size: vec![0; variables],
        };
        for &variable in &elimination.remaining {
            graph.of[variable] = elimination.neighbours(variable);
        }
        for &variable in &elimination.remaining {
            graph.insert(variable);
        }
        graph
    }

    fn insert(&mut self, variable: usize) {
        let size: f64 = self.of[variable].iter().map(|&v| self.domains[v] as f64).product();
        self.size[variable] = size.to_bits();
        self.queue.insert((size.to_bits(), variable));
    }

    /// Takes out the variable that leaves the smallest table, and makes its neighbours neighbours of each other.
    fn pop(&mut self) -> Option<(f64, usize)> {
        let (size, variable) = self.queue.pop_first()?;
        let neighbours = std::mem::take(&mut self.of[variable]);
        for &a in &neighbours {
            self.queue.remove(&(self.size[a], a));
            self.of[a].remove(&variable);
            self.of[a].extend(neighbours.iter().copied().filter(|&b| b != a));
        }
        for &a in &neighbours {
            self.insert(a);
        }
        Some((f64::from_bits(size), variable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a ring of four variables with costs from a fixed sequence.
    fn ring() -> Network {
        let mut network = Network::default();
        for variable in 0..4 {
            network.add_variable(2 + variable % 2, variable);
        }
        let cost =
            |a: usize, b: usize, i: usize, j: usize| ((a * 7 + b * 5 + i * 3 + j * 11) % 13) as f64;
        for (a, b) in [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)] {
            network.add_pair(a, b, |i, j| cost(a, b, i, j));
        }
        network
    }

    #[test]
    fn elimination_finds_the_least_of_all() {
        let network = ring();
        let (value, labels) = find_minimum(&network, LIMITS).expect("it is small");
        let all = (0..36).map(|at| network.cost(&[at % 2, at / 2 % 3, at / 6 % 2, at / 12 % 3]));
        assert_eq!(value, all.fold(f64::INFINITY, f64::min));
        assert_eq!(value, network.cost(&labels));
    }
}
