//! The planning problem as a cost-function network, with memory priced at given multipliers.

use std::collections::BTreeMap;

use super::multipliers::Multipliers;
use crate::planner::problem::layouts::SbpId;
use crate::planner::problem::lifetimes::Span;
use crate::planner::problem::{Demand, Problem};
use crate::planner::solver::network::Network;
use crate::planner::solver::share::{Columns, MOST_READERS, Share};

/// The planning problem as a network: first a variable for each node, with a label for each candidate; then a
/// variable for each layout that many readers may share, whose label 1 says that the tensor is boxed to it, and those that
/// follow from another.
pub fn network(problem: &mut Problem<'_>, multipliers: &Multipliers) -> Network {
    let mut network = Network { meter: problem.meter.clone(), ..Network::default() };
    for (node, candidates) in problem.candidates.iter().enumerate() {
        let variable = network.variable(candidates.len(), node);
        for (label, candidate) in candidates.iter().enumerate() {
            network.unary[variable][label] = multipliers.seconds * candidate.seconds;
        }
    }
    add_made(problem, multipliers, &mut network);
    for index in 0..problem.write_backs.len() {
        add_write_back(problem, multipliers, &mut network, index);
    }
    let demands = std::mem::take(&mut problem.demands);
    for demand in &demands {
        add_demand(problem, multipliers, &mut network, demand);
    }
    problem.demands = demands;
    network
}

fn add_made(problem: &mut Problem<'_>, multipliers: &Multipliers, network: &mut Network) {
    for made in &problem.made {
        let weight = multipliers.weight(made.value, made.placement, made.span);
        if weight == 0.0 {
            continue;
        }
        let costs: Vec<(SbpId, f64)> = problem.candidates[made.producer]
            .iter()
            .map(|candidate| {
                let sbp = candidate.results[made.index];
                (sbp, weight * problem.layouts.bytes(made.class, sbp) as f64)
            })
            .collect();
        let Some((other, result)) = made.beside else {
            let unary = network.unary[made.producer].iter_mut();
            unary.zip(&costs).for_each(|(unary, (_, cost))| *unary += cost);
            continue;
        };
        let others = &problem.candidates[other];
        network.pair(made.producer, other, |label, beside| {
            let (sbp, cost) = costs[label];
            if others[beside].results[result] == sbp { 0.0 } else { cost }
        });
    }
}

fn add_write_back(
    problem: &mut Problem<'_>,
    multipliers: &Multipliers,
    network: &mut Network,
    index: usize,
) {
    let back = problem.write_backs[index].clone();
    let value = problem.decisions.graph().nodes[back.variable].results[0];
    let weight = multipliers.weight(value, back.placement, back.span);
    let (rows, columns) =
        (problem.candidates[back.update].len(), problem.candidates[back.variable].len());
    let mut table = vec![0.0; rows * columns];
    for row in 0..rows {
        let source = problem.candidates[back.update][row].results[back.result];
        for column in 0..columns {
            let target = problem.candidates[back.variable][column].results[0];
            let price = problem.back_price(&back, source, target);
            let bytes = back.bytes(&mut problem.layouts, source, price) as f64;
            table[row * columns + column] = multipliers.seconds * price.seconds + weight * bytes;
        }
    }
    network.pair(back.update, back.variable, |row, column| table[row * columns + column]);
}

/// Costs of boxing a tensor, by the layouts in which it is made and taken.
struct Boxing {
    /// By candidate of the producer: index into `prices`.
    source_of: Vec<usize>,
    /// By source: the layout in which the user takes it, if that is another.
    fetch: Vec<Option<SbpId>>,
    /// By source and target.
    prices: Vec<BTreeMap<SbpId, f64>>,
}

impl Boxing {
    fn new(
        problem: &mut Problem<'_>,
        multipliers: &Multipliers,
        demand: &Demand,
        targets: &[SbpId],
    ) -> Self {
        let candidates = problem.candidates[demand.producer].len();
        let made: Vec<SbpId> = (0..candidates).map(|label| problem.source(demand, label)).collect();
        let mut sources = made.clone();
        sources.sort_unstable();
        sources.dedup();
        let index =
            |sbp: &SbpId| sources.binary_search(sbp).expect("a source is among all sources");
        let source_of = made.iter().map(index).collect();
        let fetch: Vec<Option<SbpId>> =
            sources.iter().map(|&source| problem.fetch_target(demand, source)).collect();
        // Spans are few, and each is looked up for every pair of layouts.
        let mut weights: Vec<(Span, f64)> = Vec::new();
        let mut weight = |span: Span| match weights.iter().find(|known| known.0 == span) {
            Some(&(_, weight)) => weight,
            None => {
                let weight = multipliers.weight(demand.value, demand.placement, span);
                weights.push((span, weight));
                weight
            }
        };
        let mut prices = Vec::new();
        for &source in &sources {
            let all = targets.iter().copied().chain(fetch.iter().copied().flatten());
            let price = |target| {
                let price = problem.price(demand, source, target);
                let seconds = multipliers.seconds * demand.times * price.seconds;
                if multipliers.are_free() {
                    return (target, seconds);
                }
                let kept = problem.kept(demand, source, target, price);
                let cost = |(span, bytes): (Span, u64)| match bytes {
                    0 => 0.0,
                    _ => weight(span) * bytes as f64,
                };
                (target, seconds + kept.into_iter().map(cost).sum::<f64>())
            };
            prices.push(all.map(price).collect());
        }
        Self { source_of, fetch, prices }
    }

    /// The cost of boxing what candidate `label` of the producer makes to all of `targets`, and for the user.
    fn cost(&self, label: usize, targets: &[SbpId]) -> f64 {
        let source = self.source_of[label];
        let fetch = self.fetch[source].filter(|target| !targets.contains(target));
        targets.iter().chain(&fetch).map(|target| self.prices[source][target]).sum()
    }
}

fn add_demand(
    problem: &mut Problem<'_>,
    multipliers: &Multipliers,
    network: &mut Network,
    demand: &Demand,
) {
    let taken: Vec<Vec<Vec<SbpId>>> = demand
        .readers
        .iter()
        .map(|reader| {
            let labels = 0..problem.candidates[reader.0].len();
            labels.map(|label| problem.targets(reader, label)).collect()
        })
        .collect();
    let mut targets: Vec<SbpId> = taken.iter().flatten().flatten().copied().collect();
    targets.sort_unstable();
    targets.dedup();
    let boxing = Boxing::new(problem, multipliers, demand, &targets);
    match demand.readers.as_slice() {
        [] => {
            for label in 0..problem.candidates[demand.producer].len() {
                network.unary[demand.producer][label] += boxing.cost(label, &[]);
            }
        }
        [(reader, _)] => network
            .pair(demand.producer, *reader, |label, other| boxing.cost(label, &taken[0][other])),
        _ => match as_share(network, demand, &targets, &taken, &boxing) {
            Some(share) => network.shares.push(share),
            None => add_switches(network, demand, &targets, &taken, &boxing),
        },
    }
}

/// A tensor with a few readers as one term of the costs. A reader takes one layout in it: where its labels take two, or
/// where the user reads it too, a variable of its own that follows from another takes the further one.
fn as_share(
    network: &mut Network,
    demand: &Demand,
    targets: &[SbpId],
    taken: &[Vec<Vec<SbpId>>],
    boxing: &Boxing,
) -> Option<Share> {
    let mut targets = targets.to_vec();
    targets.extend(boxing.fetch.iter().copied().flatten());
    targets.sort_unstable();
    targets.dedup();
    let column = |sbp: &SbpId| targets.binary_search(sbp).expect("a target is among all targets");
    let mut users: Vec<(usize, Columns)> = Vec::new();
    let fetch = |&source: &usize| boxing.fetch[source].as_ref().map(column);
    users.push((demand.producer, boxing.source_of.iter().map(fetch).collect()));
    let mut readers = Vec::new();
    for ((reader, _), labels) in demand.readers.iter().zip(taken) {
        let most = labels.iter().map(Vec::len).max().unwrap_or(0);
        let mut takes = (0..most)
            .map(|at| labels.iter().map(|all| all.get(at).map(column)).collect::<Columns>());
        readers.extend(takes.next().map(|columns| (*reader, columns)));
        users.extend(takes.map(|columns| (*reader, columns)));
    }
    users.retain(|(_, columns)| columns.iter().any(Option::is_some));
    if readers.len() + users.len() > MOST_READERS {
        return None;
    }
    readers.extend(users.into_iter().map(|(of, columns)| follower(network, of, &columns)));
    let price = |row: &BTreeMap<SbpId, f64>, target| row.get(target).copied().unwrap_or(0.0);
    let prices =
        boxing.prices.iter().flat_map(|row| targets.iter().map(move |target| price(row, target)));
    Some(Share {
        producer: Some((demand.producer, boxing.source_of.clone())),
        readers,
        prices: prices.collect(),
        columns: targets.len(),
    })
}

/// A variable that takes what the label of another says, with the columns of its labels.
fn follower(network: &mut Network, of: usize, columns: &Columns) -> (usize, Columns) {
    let mut own = columns.clone();
    own.sort_unstable();
    own.dedup();
    let variable = network.variable(own.len(), network.origin[of]);
    network.pair(
        of,
        variable,
        |label, follows| {
            if columns[label] == own[follows] { 0.0 } else { f64::INFINITY }
        },
    );
    (variable, own)
}

/// A tensor with several readers: a variable for each layout that more than one of them, or the user, may take.
fn add_switches(
    network: &mut Network,
    demand: &Demand,
    targets: &[SbpId],
    taken: &[Vec<Vec<SbpId>>],
    boxing: &Boxing,
) {
    let price = |label: usize, target: &SbpId| boxing.prices[boxing.source_of[label]][target];
    let fetch_of = |label: usize| boxing.fetch[boxing.source_of[label]];
    let labels = boxing.source_of.len();
    for label in 0..labels {
        let alone = fetch_of(label).filter(|target| !targets.contains(target));
        network.unary[demand.producer][label] += alone.map_or(0.0, |target| price(label, &target));
    }
    for target in targets {
        let takes = |reader: &usize| taken[*reader].iter().any(|all| all.contains(target));
        let readers: Vec<usize> = (0..taken.len()).filter(takes).collect();
        let fetched = (0..labels).any(|label| fetch_of(label) == Some(*target));
        if (0..labels).all(|label| price(label, target) == 0.0) {
            continue;
        }
        if let ([reader], false) = (readers.as_slice(), fetched) {
            network.pair(demand.producer, demand.readers[*reader].0, |label, other| {
                let takes = taken[*reader][other].contains(target);
                if takes { price(label, target) } else { 0.0 }
            });
            continue;
        }
        let boxed = network.variable(2, demand.producer);
        network.switch[boxed] = true;
        network.pair(demand.producer, boxed, |label, is_boxed| match is_boxed {
            0 if fetch_of(label) == Some(*target) => f64::INFINITY,
            0 => 0.0,
            _ => price(label, target),
        });
        for reader in readers {
            network.pair(demand.readers[reader].0, boxed, |label, is_boxed| {
                let missing = is_boxed == 0 && taken[reader][label].contains(target);
                if missing { f64::INFINITY } else { 0.0 }
            });
        }
    }
}
