//! The planning problem as a cost-function network, with memory priced at given multipliers.

use super::multipliers::Multipliers;
use crate::planner::problem::layouts::SbpId;
use crate::planner::problem::lifetimes::Span;
use crate::planner::problem::{Demand, Problem, Taken};
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
    /// All layouts in which it is taken, by the user too, in order.
    targets: Vec<SbpId>,
    /// By source and target.
    prices: Vec<Vec<f64>>,
}

impl Boxing {
    fn new(
        problem: &mut Problem<'_>,
        multipliers: &Multipliers,
        demand: &Demand,
        taken: &[SbpId],
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
        let mut targets = taken.to_vec();
        targets.extend(fetch.iter().copied().flatten());
        targets.sort_unstable();
        targets.dedup();
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
            let price = |&target: &SbpId| {
                let price = problem.price(demand, source, target);
                let seconds = multipliers.seconds * demand.times * price.seconds;
                if multipliers.are_free() {
                    return seconds;
                }
                let kept = problem.kept(demand, source, target, price);
                let cost = |(span, bytes): (Span, u64)| match bytes {
                    0 => 0.0,
                    _ => weight(span) * bytes as f64,
                };
                seconds + kept.into_iter().map(cost).sum::<f64>()
            };
            prices.push(targets.iter().map(price).collect());
        }
        Self { source_of, fetch, targets, prices }
    }

    /// The place of a layout among all in which the tensor is taken.
    fn column(&self, target: &SbpId) -> usize {
        self.targets.binary_search(target).expect("a target is among all targets")
    }

    /// The cost of boxing what is made as a source to all of `targets`, and for the user.
    fn cost(&self, source: usize, targets: &[SbpId]) -> f64 {
        let fetch = self.fetch[source].filter(|target| !targets.contains(target));
        targets.iter().chain(&fetch).map(|target| self.prices[source][self.column(target)]).sum()
    }
}

fn add_demand(
    problem: &mut Problem<'_>,
    multipliers: &Multipliers,
    network: &mut Network,
    demand: &Demand,
) {
    let taken: Vec<Taken> = demand.readers.iter().map(|reader| problem.taken(reader)).collect();
    let lists = taken.iter().flat_map(|taken| &taken.lists);
    let mut targets: Vec<SbpId> = lists.flatten().copied().collect();
    targets.sort_unstable();
    targets.dedup();
    let boxing = Boxing::new(problem, multipliers, demand, &targets);
    match demand.readers.as_slice() {
        [] => {
            let costs = network.unary[demand.producer].iter_mut().zip(&boxing.source_of);
            costs.for_each(|(cost, &source)| *cost += boxing.cost(source, &[]));
        }
        [(reader, _)] => add_pair(network, (demand.producer, *reader), &taken[0], &boxing),
        _ => match as_share(network, demand, &taken, &boxing) {
            Some(share) => network.shares.push(share),
            None => add_switches(network, demand, &targets, &taken, &boxing),
        },
    }
}

/// A tensor with one reader. What is boxed from one layout to others costs the same for all labels that make it and take it so.
fn add_pair(network: &mut Network, between: (usize, usize), taken: &Taken, boxing: &Boxing) {
    let of = |source: usize| taken.lists.iter().map(move |list| boxing.cost(source, list));
    let costs: Vec<Vec<f64>> =
        (0..boxing.prices.len()).map(|source| of(source).collect()).collect();
    network.pair(between.0, between.1, |label, other| {
        costs[boxing.source_of[label]][taken.of_label[other]]
    });
}

/// A tensor with a few readers as one term of the costs. A reader takes one layout in it: where its labels take two, or
/// where the user reads it too, a variable of its own that follows from another takes the further one.
fn as_share(
    network: &mut Network,
    demand: &Demand,
    taken: &[Taken],
    boxing: &Boxing,
) -> Option<Share> {
    let column = |sbp: &SbpId| boxing.column(sbp);
    let mut users: Vec<(usize, Columns)> = Vec::new();
    let fetch = |&source: &usize| boxing.fetch[source].as_ref().map(column);
    users.push((demand.producer, boxing.source_of.iter().map(fetch).collect()));
    let mut readers = Vec::new();
    for ((reader, _), taken) in demand.readers.iter().zip(taken) {
        let most = taken.lists.iter().map(Vec::len).max().unwrap_or(0);
        let mut takes = (0..most).map(|at| {
            let columns: Columns =
                taken.lists.iter().map(|list| list.get(at).map(column)).collect();
            taken.of_label.iter().map(|&list| columns[list]).collect::<Columns>()
        });
        readers.extend(takes.next().map(|columns| (*reader, columns)));
        users.extend(takes.map(|columns| (*reader, columns)));
    }
    users.retain(|(_, columns)| columns.iter().any(Option::is_some));
    if readers.len() + users.len() > MOST_READERS {
        return None;
    }
    readers.extend(users.into_iter().map(|(of, columns)| follower(network, of, &columns)));
    Some(Share {
        producer: Some((demand.producer, boxing.source_of.clone())),
        readers,
        prices: boxing.prices.concat(),
        columns: boxing.targets.len(),
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
    taken: &[Taken],
    boxing: &Boxing,
) {
    let price = |label: usize, target: &SbpId| {
        boxing.prices[boxing.source_of[label]][boxing.column(target)]
    };
    let fetch_of = |label: usize| boxing.fetch[boxing.source_of[label]];
    let labels = boxing.source_of.len();
    for label in 0..labels {
        let alone = fetch_of(label).filter(|target| !targets.contains(target));
        network.unary[demand.producer][label] += alone.map_or(0.0, |target| price(label, &target));
    }
    for target in targets {
        let takes = |reader: &usize| taken[*reader].lists.iter().any(|list| list.contains(target));
        let readers: Vec<usize> = (0..taken.len()).filter(takes).collect();
        let fetched = (0..labels).any(|label| fetch_of(label) == Some(*target));
        if (0..labels).all(|label| price(label, target) == 0.0) {
            continue;
        }
        if let ([reader], false) = (readers.as_slice(), fetched) {
            network.pair(demand.producer, demand.readers[*reader].0, |label, other| {
                let takes = taken[*reader].of(other).contains(target);
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
                let missing = is_boxed == 0 && taken[reader].of(label).contains(target);
                if missing { f64::INFINITY } else { 0.0 }
            });
        }
    }
}
