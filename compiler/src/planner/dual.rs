//! A lower bound of a network by shifting costs: sequential reweighted message passing on its pairs (Kolmogorov,
//! "Convergent tree-reweighted message passing", 2006), with the shifted costs kept in the tables themselves.
//!
//! Any shift leaves the cost of every assignment as it is, so the sum of all least entries is a bound at any time.

use super::network::Network;

/// A network whose costs are shifted.
pub struct Dual {
    order: Vec<usize>,
    rank: Vec<usize>,
    unary: Vec<Vec<f64>>,
    edges: Vec<Edge>,
    of_variable: Vec<Vec<usize>>,
    constant: f64,
}

struct Edge {
    a: usize,
    b: usize,
    /// Row-major by the label of `a`.
    table: Vec<f64>,
}

impl Edge {
    /// The least entry for each label of one end.
    fn least(&self, of: usize, labels: usize) -> Vec<f64> {
        let mut least = vec![f64::INFINITY; labels];
        if of == self.a {
            let columns = self.table.len() / labels;
            for (row, least) in self.table.chunks_exact(columns).zip(&mut least) {
                *least = row.iter().copied().fold(f64::INFINITY, f64::min);
            }
        } else {
            for row in self.table.chunks_exact(labels) {
                for (least, &cost) in least.iter_mut().zip(row) {
                    *least = least.min(cost);
                }
            }
        }
        least
    }

    /// Adds to all entries of each label of one end.
    fn add(&mut self, of: usize, costs: &[f64]) {
        if of == self.a {
            let columns = self.table.len() / costs.len();
            for (row, cost) in self.table.chunks_exact_mut(columns).zip(costs) {
                row.iter_mut().for_each(|entry| *entry += cost);
            }
        } else {
            for row in self.table.chunks_exact_mut(costs.len()) {
                row.iter_mut().zip(costs).for_each(|(entry, cost)| *entry += cost);
            }
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
        let mut of_variable = vec![Vec::new(); order.len()];
        let mut edges = Vec::new();
        for (&(a, b), table) in &network.pairs {
            of_variable[a].push(edges.len());
            of_variable[b].push(edges.len());
            edges.push(Edge { a, b, table: table.clone() });
        }
        let (unary, constant) = (network.unary.clone(), network.constant);
        Self { order, rank, unary, edges, of_variable, constant }
    }

    /// Entries of all tables.
    pub fn size(&self) -> usize {
        self.edges.iter().map(|edge| edge.table.len()).sum()
    }

    /// One pass forward and one back.
    pub fn sweep(&mut self) {
        for at in 0..self.order.len() {
            self.visit(self.order[at], true);
        }
        for at in (0..self.order.len()).rev() {
            self.visit(self.order[at], false);
        }
    }

    /// Draws everything into a variable and deals it out to the edges ahead.
    fn visit(&mut self, variable: usize, forward: bool) {
        let mut ahead = Vec::new();
        for at in 0..self.of_variable[variable].len() {
            let id = self.of_variable[variable][at];
            self.pull(id, variable);
            let edge = &self.edges[id];
            let other = if edge.a == variable { edge.b } else { edge.a };
            if (self.rank[other] > self.rank[variable]) == forward {
                ahead.push(id);
            }
        }
        let behind = self.of_variable[variable].len() - ahead.len();
        let chains = ahead.len().max(behind).max(1) as f64;
        let finite = |cost: f64| if cost.is_finite() { cost / chains } else { 0.0 };
        let share: Vec<f64> = self.unary[variable].iter().map(|&cost| finite(cost)).collect();
        for &id in &ahead {
            self.edges[id].add(variable, &share);
        }
        for (cost, share) in self.unary[variable].iter_mut().zip(share) {
            *cost -= share * ahead.len() as f64;
        }
    }

    fn pull(&mut self, id: usize, variable: usize) {
        let labels = self.unary[variable].len();
        let mut least = self.edges[id].least(variable, labels);
        for (cost, least) in self.unary[variable].iter_mut().zip(&mut least) {
            *cost += *least;
            *least = if least.is_finite() { -*least } else { 0.0 };
        }
        self.edges[id].add(variable, &least);
    }

    /// What no assignment goes below.
    pub fn bound(&self) -> f64 {
        let unary: f64 = self.unary.iter().map(|costs| least(costs)).sum();
        let edges: f64 = self.edges.iter().map(|edge| least(&edge.table)).sum();
        self.constant + unary + edges
    }

    /// For each variable and label what no assignment with that label goes below.
    pub fn bounds(&self) -> Vec<Vec<f64>> {
        let bound = self.bound();
        let of = |variable: usize| -> Vec<f64> {
            let mut costs = self.unary[variable].clone();
            let mut own = least(&costs);
            for &id in &self.of_variable[variable] {
                let least_of = self.edges[id].least(variable, costs.len());
                own += least(&least_of);
                costs.iter_mut().zip(least_of).for_each(|(cost, least)| *cost += least);
            }
            costs.into_iter().map(|cost| bound - own + cost).collect()
        };
        (0..self.unary.len()).map(of).collect()
    }

    /// Labels chosen one by one, each the best with those before it.
    pub fn decode(&self) -> Vec<usize> {
        let mut labels = vec![0; self.unary.len()];
        for &variable in &self.order {
            let mut costs = self.unary[variable].clone();
            for &id in &self.of_variable[variable] {
                let edge = &self.edges[id];
                let other = if edge.a == variable { edge.b } else { edge.a };
                if self.rank[other] < self.rank[variable] {
                    self.add_row(edge, variable, labels[other], &mut costs);
                } else {
                    let least_of = edge.least(variable, costs.len());
                    costs.iter_mut().zip(least_of).for_each(|(cost, least)| *cost += least);
                }
            }
            let best = (0..costs.len()).min_by(|&a, &b| costs[a].total_cmp(&costs[b]));
            labels[variable] = best.unwrap_or(0);
        }
        labels
    }

    fn add_row(&self, edge: &Edge, variable: usize, other: usize, costs: &mut [f64]) {
        let columns = self.unary[edge.b].len();
        for (label, cost) in costs.iter_mut().enumerate() {
            let at =
                if edge.a == variable { label * columns + other } else { other * columns + label };
            *cost += edge.table[at];
        }
    }

    /// Keeps these labels of each variable alone.
    pub fn restrict(&mut self, kept: &[Vec<usize>]) {
        for edge in &mut self.edges {
            let columns = self.unary[edge.b].len();
            let rows = kept[edge.a].iter();
            let table = rows.flat_map(|&i| kept[edge.b].iter().map(move |&j| i * columns + j));
            edge.table = table.map(|at| edge.table[at]).collect();
        }
        for (costs, kept) in self.unary.iter_mut().zip(kept) {
            *costs = kept.iter().map(|&label| costs[label]).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::eliminate::{LIMITS, minimum};

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
