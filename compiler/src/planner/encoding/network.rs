//! Builds the cost-function network of a planning problem, with memory priced at given multipliers.
//!
//! Each node is a variable, and each candidate a label. A tensor with one reader is a table of pairs, and one with
//! several readers is a share. A reader may take a tensor in two layouts, and the user may read it too. Each of these
//! becomes a further reader, which follows from the variable that it belongs to, so such tensors are exact terms as
//! well. Only a tensor with more than [`MOST_READERS`] readers, these included, has a switch for each layout.

use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;

use graphc_solver::meter::Meter;
use graphc_solver::network::Network;
use graphc_solver::share::{Columns, MOST_READERS, Share, Tariff};
use graphc_solver::tables::{CostTable, LabelAxis};

use super::multipliers::Multipliers;
use crate::boxing::Fusion;
use crate::planner::problem::boxed::Boxed;
use crate::planner::problem::candidates::Candidate;
use crate::planner::problem::layouts::{ClassId, Price, SbpId};
use crate::planner::problem::lifetimes::Span;
use crate::planner::problem::{Demand, Problem, WriteBack};

/// The costs of tensors that are known already. Layers that are alike have the same costs.
#[derive(Default)]
struct KnownCosts {
    /// The costs of pairs of a producer and a reader.
    pairs: HashMap<BoxedKey, Counted<Option<Rc<CostTable>>>>,
    /// The patterns of tensors with several readers.
    shares: HashMap<BoxedKey, Counted<Option<Rc<SharePattern>>>>,
    /// The costs of variables that are written back.
    backs: HashMap<BackKey, Counted<Option<Rc<CostTable>>>>,
}

/// A result with the work of making it, which is counted each time it is used, so that the extent of a search depends only on the problem's size.
type Counted<T> = (T, u64);

/// The key of a tensor's costs: the prices of boxing, the number of times that they are paid, whether copies take memory of their own, and the price
/// of a byte in each of a demand's spans.
type BoxedKey = (*const Boxed, u64, bool, [u64; 5]);

/// The key of a write-back's costs: the candidates of the update and of the variable, the index of the result, the classes where it is made and kept,
/// the message that it is boxed in, whether others read it, and the price of a byte.
type BackKey = ([*const Candidate; 2], usize, [ClassId; 2], Option<Fusion>, bool, u64);

/// Computes a result once for all that are alike, unless each value has prices of its own.
fn find_once<K: Eq + Hash, T: Clone>(
    (known, key): (&mut HashMap<K, Counted<T>>, K),
    multipliers: &Multipliers,
    meter: &Meter,
    find: impl FnOnce() -> T,
) -> T {
    if !multipliers.are_equal() {
        return find();
    }
    if let Some((found, work)) = known.get(&key) {
        meter.add(*work as usize);
        return found.clone();
    }
    let before = meter.entries();
    let found = find();
    known.insert(key, (found.clone(), meter.entries() - before));
    found
}

/// Builds the network of the planning problem. First comes a variable for each node, with a label for each candidate. Then comes a variable for each
/// layout that many readers may share, whose label 1 says that the tensor is boxed to it. The variables that follow from another come last.
pub(crate) fn build_network(problem: &Problem<'_>, multipliers: &Multipliers) -> Network {
    let mut network = Network { meter: problem.meter.clone(), ..Network::default() };
    for (node, candidates) in problem.candidates.iter().enumerate() {
        let variable = network.add_variable(candidates.len(), node);
        for (label, candidate) in candidates.iter().enumerate() {
            network.unary[variable][label] = multipliers.seconds * candidate.seconds;
        }
    }
    add_made(problem, multipliers, &mut network);
    let mut known = KnownCosts::default();
    for back in problem.write_backs.iter() {
        add_write_back(problem, multipliers, &mut network, (back, &mut known));
    }
    for demand in problem.demands.iter() {
        add_demand(problem, multipliers, &mut network, (demand, &mut known));
    }
    network
}

fn add_made(problem: &Problem<'_>, multipliers: &Multipliers, network: &mut Network) {
    for made in problem.made.iter() {
        let weight = multipliers.seconds_per_byte(made.value, made.placement, made.span);
        if weight == 0.0 {
            continue;
        }
        let costs: Vec<(SbpId, f64)> = problem
            .candidates_of(made.producer)
            .iter()
            .map(|candidate| {
                let sbp = candidate.results[made.index];
                (sbp, weight * problem.layouts.bytes(made.class, sbp) as f64)
            })
            .collect();
        let Some((other, result)) = made.beside else {
            let unary = network.unary[made.producer.index()].iter_mut();
            unary.zip(&costs).for_each(|(unary, (_, cost))| *unary += cost);
            continue;
        };
        let others = problem.candidates_of(other);
        network.add_pair(made.producer.index(), other.index(), |label, beside| {
            let (sbp, cost) = costs[label];
            if others[beside].results[result] == sbp { 0.0 } else { cost }
        });
    }
}

fn add_write_back(
    problem: &Problem<'_>,
    multipliers: &Multipliers,
    network: &mut Network,
    (back, known): (&WriteBack, &mut KnownCosts),
) {
    let lists = [back.update, back.variable].map(|node| problem.candidates_of(node).as_ptr());
    let value = problem.decisions.graph().node(back.variable).results[0];
    let weight = multipliers.seconds_per_byte(value, back.placement, back.span);
    let classes = [back.from, back.to];
    let key = (lists, back.result, classes, back.fusion, back.is_read, weight.to_bits());
    let table = find_once((&mut known.backs, key), multipliers, &problem.meter, || {
        pair_of_back(problem, (multipliers.seconds, weight), network, back)
    });
    let (update, variable) = (back.update.index(), back.variable.index());
    table.iter().for_each(|table| {
        network.add_table(update.min(variable), update.max(variable), table);
    });
}

/// Returns the costs of a write-back, by the layouts in which the result is made and kept, at these weights of seconds and bytes.
fn pair_of_back(
    problem: &Problem<'_>,
    (seconds, weight): (f64, f64),
    network: &mut Network,
    back: &WriteBack,
) -> Option<Rc<CostTable>> {
    let [(made, sources), (kept, targets)] =
        [(back.update, back.result), (back.variable, 0)].map(|(node, result)| {
            LabelAxis::by_key(
                problem.candidates_of(node).iter().map(|candidate| candidate.results[result]),
            )
        });
    let mut costs = Vec::with_capacity(sources.len() * targets.len());
    for &source in &sources {
        for &target in &targets {
            let price = problem.back_price(back, source, target);
            let bytes = back.kept_bytes(&problem.layouts, source, price) as f64;
            costs.push(seconds * price.seconds + weight * bytes);
        }
    }
    let cost = |source: usize, target: usize| costs[source * targets.len() + target];
    network.build_table((back.update.index(), made), (back.variable.index(), kept), cost)
}

/// The costs of boxing a tensor, by the layouts in which it is made and taken.
struct Boxing {
    boxed: Rc<Boxed>,
    /// The costs by source and target.
    prices: Vec<Vec<f64>>,
}

impl Boxing {
    fn new(
        problem: &Problem<'_>,
        multipliers: &Multipliers,
        (demand, boxed, weights): (&Demand, Rc<Boxed>, [f64; 5]),
    ) -> Self {
        let spans = demand.spans();
        let weight = |span: Span| {
            let at = spans.iter().position(|known| *known == span);
            weights[at.expect("a demand keeps what it does in its spans")]
        };
        let mut prices = Vec::new();
        for (&source, row) in boxed.sources.iter().zip(&boxed.prices) {
            let price = |(&target, &price): (&SbpId, &Price)| {
                let seconds = multipliers.seconds * demand.times * price.seconds;
                if multipliers.are_free() {
                    return seconds;
                }
                let kept = problem.kept_bytes(demand, source, target, price);
                let cost = |(span, bytes): (Span, u64)| match bytes {
                    0 => 0.0,
                    _ => weight(span) * bytes as f64,
                };
                seconds + kept.into_iter().map(cost).sum::<f64>()
            };
            prices.push(boxed.targets.iter().zip(row).map(price).collect());
        }
        Self { boxed, prices }
    }

    /// Returns the index of a layout among all in which the tensor is taken.
    fn column(&self, target: &SbpId) -> usize {
        self.boxed.targets.binary_search(target).expect("a target is among all targets")
    }

    /// Returns the cost of boxing a tensor made as `source` to all of `targets`, and for the user.
    fn cost(&self, source: usize, targets: &[SbpId]) -> f64 {
        let fetch = self.boxed.fetch[source].filter(|target| !targets.contains(target));
        targets.iter().chain(&fetch).map(|target| self.prices[source][self.column(target)]).sum()
    }
}

fn add_demand(
    problem: &Problem<'_>,
    multipliers: &Multipliers,
    network: &mut Network,
    (demand, known): (&Demand, &mut KnownCosts),
) {
    let boxed = problem.boxing_prices(demand);
    let weights = demand
        .spans()
        .map(|span| multipliers.seconds_per_byte(demand.value, demand.placement, span));
    let bits = weights.map(f64::to_bits);
    let key = (Rc::as_ptr(&boxed), demand.times.to_bits(), demand.counts, bits);
    let meter = &problem.meter;
    let boxing = || Boxing::new(problem, multipliers, (demand, boxed.clone(), weights));
    match demand.readers.as_slice() {
        [] => {
            let (boxing, costs) = (boxing(), network.unary[demand.producer.index()].iter_mut());
            costs.zip(&boxed.source_of).for_each(|(cost, &s)| *cost += boxing.cost(s, &[]));
        }
        [(reader, _)] => {
            let between = (demand.producer.index(), reader.index());
            let table = find_once((&mut known.pairs, key), multipliers, meter, || {
                pair_table(network, between, &boxing())
            });
            table.iter().for_each(|table| network.add_table(between.0, between.1, table));
        }
        _ => {
            let pattern = find_once((&mut known.shares, key), multipliers, meter, || {
                find_share_pattern(network, &boxing()).map(Rc::new)
            });
            match pattern {
                Some(pattern) => add_share(network, demand, &pattern),
                None => add_switches(network, demand, &boxing()),
            }
        }
    }
}

/// Returns the costs of a tensor with one reader, which comes after its producer. They are the same for all labels that make and take it in the same
/// layouts.
fn pair_table(
    network: &mut Network,
    between: (usize, usize),
    boxing: &Boxing,
) -> Option<Rc<CostTable>> {
    let taken = &boxing.boxed.taken[0];
    let of = |source: usize| taken.lists.iter().map(move |list| boxing.cost(source, list));
    let costs: Vec<Vec<f64>> =
        (0..boxing.prices.len()).map(|source| of(source).collect()).collect();
    let made = LabelAxis::new(boxing.boxed.source_of.iter().copied(), costs.len());
    let taken = LabelAxis::new(taken.of_label.iter().copied(), taken.lists.len());
    network.build_table((between.0, made), (between.1, taken), |source, list| costs[source][list])
}

/// The pattern of a tensor with a few readers as one term of the costs, for any such readers.
struct SharePattern {
    /// The indices of the readers that take a layout in it.
    readers: Vec<usize>,
    /// The variables that follow from another.
    followers: Vec<Follower>,
    tariff: Rc<Tariff>,
}

/// A variable that takes a layout because another one has a certain label.
struct Follower {
    /// The index of the reader that it follows from, or `None` if that is the producer.
    of: Option<usize>,
    labels: usize,
    /// The costs of pairs of labels of the other variable and this one.
    table: Option<Rc<CostTable>>,
}

/// Finds the pattern of a tensor with a few readers as one term of the costs. In it a reader takes one layout. If its labels take two, or if the user
/// reads the tensor too, a variable of its own takes the second layout, which follows from another variable.
fn find_share_pattern(network: &mut Network, boxing: &Boxing) -> Option<SharePattern> {
    let boxed = &boxing.boxed;
    let column = |sbp: &SbpId| boxing.column(sbp);
    let fetch = |&source: &usize| boxed.fetch[source].as_ref().map(column);
    let mut users: Vec<(Option<usize>, Columns)> =
        vec![(None, boxed.source_of.iter().map(fetch).collect())];
    let mut readers = Vec::new();
    for (reader, taken) in boxed.taken.iter().enumerate() {
        let most = taken.lists.iter().map(Vec::len).max().unwrap_or(0);
        let mut takes = (0..most).map(|at| {
            let columns: Columns =
                taken.lists.iter().map(|list| list.get(at).map(column)).collect();
            taken.of_label.iter().map(|&list| columns[list]).collect::<Columns>()
        });
        readers.extend(takes.next().map(|columns| (reader, columns)));
        users.extend(takes.map(|columns| (Some(reader), columns)));
    }
    users.retain(|(_, columns)| columns.iter().any(Option::is_some));
    if readers.len() + users.len() > MOST_READERS {
        return None;
    }
    let (readers, mut taken): (Vec<usize>, Vec<Columns>) = readers.into_iter().unzip();
    let mut followers = Vec::new();
    for (of, columns) in users {
        let (follower, own) = build_follower(network, of, &columns);
        followers.push(follower);
        taken.push(own);
    }
    let tariff = Tariff {
        made: Some(boxed.source_of.clone()),
        taken,
        prices: boxing.prices.concat(),
        columns: boxed.targets.len(),
    };
    Some(SharePattern { readers, followers, tariff: network.tariffs.intern(tariff) })
}

fn add_share(network: &mut Network, demand: &Demand, pattern: &SharePattern) {
    let mut members = vec![demand.producer.index()];
    members.extend(pattern.readers.iter().map(|&reader| demand.readers[reader].0.index()));
    for follower in &pattern.followers {
        let of = follower.of.map_or(demand.producer, |reader| demand.readers[reader].0).index();
        let variable = network.add_variable(follower.labels, network.origin[of]);
        follower.table.iter().for_each(|table| network.add_table(of, variable, table));
        members.push(variable);
    }
    network.shares.push(Share { members, tariff: pattern.tariff.clone() });
}

/// Builds a variable that follows from the labels of another, and returns it with the columns of its labels.
fn build_follower(
    network: &mut Network,
    of: Option<usize>,
    columns: &Columns,
) -> (Follower, Columns) {
    let mut own = columns.clone();
    own.sort_unstable();
    own.dedup();
    let (leads, follows) =
        (LabelAxis::one_per_label(columns.len()), LabelAxis::one_per_label(own.len()));
    // It comes after all variables that are there.
    let (first, last) = (0, 1);
    let table = network.build_table((first, leads), (last, follows), |label, follows| {
        if columns[label] == own[follows] { 0.0 } else { f64::INFINITY }
    });
    (Follower { of, labels: own.len(), table }, own)
}

/// Adds a tensor with several readers: a switch for each layout that more than one of them, or the user, may take.
fn add_switches(network: &mut Network, demand: &Demand, boxing: &Boxing) {
    let taken = &boxing.boxed.taken;
    let price = |label: usize, target: &SbpId| {
        boxing.prices[boxing.boxed.source_of[label]][boxing.column(target)]
    };
    let fetch_of = |label: usize| boxing.boxed.fetch[boxing.boxed.source_of[label]];
    let (labels, targets) = (boxing.boxed.source_of.len(), &boxing.boxed.read);
    for label in 0..labels {
        let alone = fetch_of(label).filter(|target| !targets.contains(target));
        network.unary[demand.producer.index()][label] +=
            alone.map_or(0.0, |target| price(label, &target));
    }
    for target in targets {
        let takes = |reader: &usize| taken[*reader].lists.iter().any(|list| list.contains(target));
        let readers: Vec<usize> = (0..taken.len()).filter(takes).collect();
        let fetched = (0..labels).any(|label| fetch_of(label) == Some(*target));
        if (0..labels).all(|label| price(label, target) == 0.0) {
            continue;
        }
        if let ([reader], false) = (readers.as_slice(), fetched) {
            let between = (demand.producer.index(), demand.readers[*reader].0.index());
            network.add_pair(between.0, between.1, |label, other| {
                let takes = taken[*reader].layouts_of_label(other).contains(target);
                if takes { price(label, target) } else { 0.0 }
            });
            continue;
        }
        let boxed = network.add_variable(2, demand.producer.index());
        network.switch[boxed] = true;
        network.add_pair(demand.producer.index(), boxed, |label, is_boxed| match is_boxed {
            0 if fetch_of(label) == Some(*target) => f64::INFINITY,
            0 => 0.0,
            _ => price(label, target),
        });
        for reader in readers {
            network.add_pair(demand.readers[reader].0.index(), boxed, |label, is_boxed| {
                let missing =
                    is_boxed == 0 && taken[reader].layouts_of_label(label).contains(target);
                if missing { f64::INFINITY } else { 0.0 }
            });
        }
    }
}
