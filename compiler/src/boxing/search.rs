//! The cheapest route: Dijkstra over N-D SBPs, or an exchange.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use graphc_ir::plan::{Cluster, Layout};
use graphc_ir::sbp::{NdSbp, ReduceKind, Sbp};

use super::steps::{legal_steps, price};
use super::{BoxingStep, Prices, Route, RouteStep, exchange};
use crate::cluster::alpha_beta;
use crate::cost::exchange_seconds;

/// The cheapest route between two layouts of one tensor. `microbatches` is the number of parts in which layouts with
/// a microbatch dim are cut; seconds and bytes are of one part.
pub fn route(from: &Layout, to: &Layout, cluster: &Cluster, microbatches: usize) -> Route {
    Router::new(cluster, microbatches).route(from, to)
}

/// Routes between layouts, each searched once.
pub struct Router<'a> {
    prices: Prices<'a>,
    /// What is known of each tensor type on each mesh: of layouts that differ in their SBP alone.
    places: Vec<(Layout, Known)>,
    /// Indices into `places`, by a layout without SBP.
    index: BTreeMap<Layout, usize>,
    /// The place asked for last: a planner asks for one after another.
    last: usize,
    crossings: BTreeMap<(Layout, Layout), (f64, u64)>,
}

/// What was searched on one mesh.
#[derive(Default)]
struct Known {
    /// By the SBP from which they start, without its splits on axes of extent 1.
    trees: BTreeMap<NdSbp, Vec<(Vec<ReduceKind>, Tree)>>,
    edges: Edges,
    exchanges: BTreeMap<(NdSbp, NdSbp), (f64, u64)>,
}

/// A legal step: what it leads to, its seconds and its bytes.
type Edge = (BoxingStep, NdSbp, f64, u64);

/// The legal steps from each SBP, by the kinds of partial values that may be made.
type Edges = BTreeMap<NdSbp, Vec<(Vec<ReduceKind>, Vec<Edge>)>>;

/// All SBPs that are reached from one.
type Tree = BTreeMap<NdSbp, Reached>;

/// How an SBP is reached.
#[derive(Clone)]
struct Reached {
    seconds: f64,
    steps: usize,
    /// Whether no rank communicates.
    local: bool,
    last: Option<(BoxingStep, NdSbp, f64, u64)>,
}

impl<'a> Router<'a> {
    /// A router of a cluster.
    pub fn new(cluster: &'a Cluster, microbatches: usize) -> Self {
        let prices = Prices { cluster, microbatches };
        let (places, index, crossings) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Self { prices, places, index, last: 0, crossings }
    }

    /// The cheapest route. A partial value is made whole by collectives alone on its own mesh: they sum in a fixed
    /// order and can be fused. Otherwise an exchange takes the place of two steps or more, not all of them local, that
    /// cost more.
    pub fn route(&mut self, from: &Layout, to: &Layout) -> Route {
        if same_shards(from, to, self.prices.microbatches) {
            return Route::default();
        }
        if from.ranks != to.ranks || from.hierarchy != to.hierarchy {
            let (seconds, bytes) = self.crossing(from, to);
            return exchanged(to, seconds, bytes);
        }
        let from = aligned(from, to);
        let kinds = kinds(&from, to);
        let reached = self.tree(&from, &kinds);
        let Some(end) = reached.get(&to.sbp) else {
            let (seconds, bytes) = self.exchange(&from, to);
            return exchanged(to, seconds, bytes);
        };
        let end = Reached { last: None, ..*end };
        let exchangeable = end.steps > 1 && !end.local && !from.sbp.is_partial();
        if exchangeable && end.seconds > self.least_exchange(&from, to) {
            let (seconds, bytes) = self.exchange(&from, to);
            if seconds < end.seconds {
                return exchanged(to, seconds, bytes);
            }
        }
        walk(self.tree(&from, &kinds), to, end.seconds)
    }

    /// Seconds of the cheapest route.
    pub fn seconds(&mut self, from: &Layout, to: &Layout) -> f64 {
        self.route(from, to).seconds
    }

    /// What is known of a layout's type and mesh.
    fn known(&mut self, layout: &Layout) -> &mut Known {
        let is_same = |place: &(Layout, Known)| {
            let of = &place.0;
            of.shape == layout.shape
                && of.dtype == layout.dtype
                && of.microbatch_dim == layout.microbatch_dim
                && of.hierarchy == layout.hierarchy
                && of.ranks == layout.ranks
        };
        if !self.places.get(self.last).is_some_and(is_same) {
            let place = Layout { sbp: NdSbp(Vec::new()), ..layout.clone() };
            self.last = match self.index.get(&place) {
                Some(&known) => known,
                None => {
                    self.index.insert(place.clone(), self.places.len());
                    self.places.push((place, Known::default()));
                    self.places.len() - 1
                }
            };
        }
        &mut self.places[self.last].1
    }

    fn tree(&mut self, from: &Layout, kinds: &[ReduceKind]) -> &Tree {
        let prices = self.prices;
        let Known { trees, edges, .. } = self.known(from);
        if !trees.contains_key(&from.sbp) {
            trees.insert(from.sbp.clone(), Vec::new());
        }
        let known = trees.get_mut(&from.sbp).expect("it was just made sure");
        let index = known.iter().position(|(of, _)| of == kinds).unwrap_or_else(|| {
            let tree = shortest(prices, edges, from, kinds);
            known.push((kinds.to_vec(), tree));
            known.len() - 1
        });
        &known[index].1
    }

    /// What an exchange takes at least: what the first rank receives.
    fn least_exchange(&self, from: &Layout, to: &Layout) -> f64 {
        let Prices { cluster, microbatches } = self.prices;
        let traffic = exchange::received_first(from, to, microbatches);
        let link = alpha_beta(cluster, &from.ranks, None);
        exchange_seconds(cluster, link, traffic.messages, traffic.bytes as f64)
    }

    /// An exchange on one mesh.
    fn exchange(&mut self, from: &Layout, to: &Layout) -> (f64, u64) {
        let prices = self.prices;
        let exchanges = &mut self.known(from).exchanges;
        let price = || exchange::price(prices, from, to);
        *exchanges.entry((from.sbp.clone(), to.sbp.clone())).or_insert_with(price)
    }

    /// An exchange between two meshes.
    fn crossing(&mut self, from: &Layout, to: &Layout) -> (f64, u64) {
        let prices = self.prices;
        *self
            .crossings
            .entry((from.clone(), to.clone()))
            .or_insert_with(|| exchange::price(prices, from, to))
    }
}

fn exchanged(to: &Layout, seconds: f64, bytes: u64) -> Route {
    let step = RouteStep { step: BoxingStep::Exchange, layout_after: to.clone(), seconds, bytes };
    Route { steps: vec![step], seconds }
}

/// Whether every rank holds in `from` what it needs in `to`: equal rectangles, equal partial axes.
fn same_shards(from: &Layout, to: &Layout, microbatches: usize) -> bool {
    if from == to {
        return true;
    }
    if from.hierarchy == to.hierarchy && !from.hierarchy.contains(&1) && from.ranks == to.ranks {
        return false;
    }
    if from.ranks != to.ranks || wide_partials(from) != wide_partials(to) {
        return false;
    }
    let plain = wide_partials(from).is_empty();
    (plain || from.hierarchy == to.hierarchy)
        && from
            .ranks
            .iter()
            .all(|&rank| from.rect(rank, 0, microbatches) == to.rect(rank, 0, microbatches))
}

/// The partial axes of extent above 1.
fn wide_partials(layout: &Layout) -> Vec<(usize, Sbp)> {
    let axes = layout.sbp.0.iter().copied().enumerate();
    axes.filter(|&(axis, sbp)| sbp.is_partial() && layout.hierarchy[axis] > 1).collect()
}

/// The same layout with the target's names on axes of extent 1, where all names mean the same.
fn aligned(from: &Layout, to: &Layout) -> Layout {
    let mut aligned = from.clone();
    for (axis, sbp) in aligned.sbp.0.iter_mut().enumerate() {
        if from.hierarchy[axis] == 1 {
            *sbp = to.sbp.0[axis];
        }
    }
    aligned
}

/// The partial kinds that may be made on the way: those of the target.
fn kinds(from: &Layout, to: &Layout) -> Vec<ReduceKind> {
    let mut kinds: Vec<ReduceKind> = Vec::new();
    for (axis, sbp) in to.sbp.0.iter().enumerate() {
        if let Sbp::Partial(kind) = *sbp
            && from.sbp.0[axis] != *sbp
        {
            kinds.push(kind);
        }
    }
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// An entry of the queue; the cheapest, then the one with fewest steps, then the first by name comes out first.
struct Entry {
    seconds: f64,
    steps: usize,
    sbp: NdSbp,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        let seconds = other.seconds.total_cmp(&self.seconds);
        seconds.then(other.steps.cmp(&self.steps)).then_with(|| other.sbp.cmp(&self.sbp))
    }
}

/// The cheapest ways from one layout to every SBP of its mesh.
fn shortest(prices: Prices<'_>, edges: &mut Edges, from: &Layout, kinds: &[ReduceKind]) -> Tree {
    let start = Reached { seconds: 0.0, steps: 0, local: true, last: None };
    let mut reached = BTreeMap::from([(from.sbp.clone(), start)]);
    let mut queue = BinaryHeap::from([Entry { seconds: 0.0, steps: 0, sbp: from.sbp.clone() }]);
    let mut before = from.clone();
    while let Some(entry) = queue.pop() {
        let known = &reached[&entry.sbp];
        if (known.seconds, known.steps) != (entry.seconds, entry.steps) {
            continue;
        }
        let was_local = known.local;
        before.sbp = entry.sbp;
        for (step, sbp, cost, bytes) in edges_of(prices, edges, &before, kinds) {
            let (seconds, steps) = (entry.seconds + cost, entry.steps + 1);
            let better = reached.get(sbp).is_none_or(|r| (seconds, steps) < (r.seconds, r.steps));
            if better {
                let last = Some((*step, before.sbp.clone(), *cost, *bytes));
                let local = was_local && is_local(*step);
                reached.insert(sbp.clone(), Reached { seconds, steps, local, last });
                queue.push(Entry { seconds, steps, sbp: sbp.clone() });
            }
        }
    }
    reached
}

/// The legal steps from a layout with their prices.
fn edges_of<'a>(
    prices: Prices<'_>,
    edges: &'a mut Edges,
    before: &Layout,
    kinds: &[ReduceKind],
) -> &'a [Edge] {
    if !edges.contains_key(&before.sbp) {
        edges.insert(before.sbp.clone(), Vec::new());
    }
    let known = edges.get_mut(&before.sbp).expect("it was just made sure");
    let index = known.iter().position(|(of, _)| of == kinds).unwrap_or_else(|| {
        let steps = legal_steps(&before.sbp, &before.hierarchy, before.shape.len(), kinds);
        let priced = steps.into_iter().map(|(step, sbp)| {
            let after = Layout { sbp, ..before.clone() };
            let (seconds, bytes) = price(prices, step, before, &after);
            (step, after.sbp, seconds, bytes)
        });
        known.push((kinds.to_vec(), priced.collect()));
        known.len() - 1
    });
    &known[index].1
}

fn is_local(step: BoxingStep) -> bool {
    matches!(step, BoxingStep::Slice { .. } | BoxingStep::Mask { .. })
}

fn walk(tree: &Tree, to: &Layout, seconds: f64) -> Route {
    let mut steps = Vec::new();
    let mut at = to.sbp.clone();
    while let Some((step, before, seconds, bytes)) = tree[&at].last.clone() {
        let layout_after = Layout { sbp: at, ..to.clone() };
        steps.push(RouteStep { step, layout_after, seconds, bytes });
        at = before;
    }
    steps.reverse();
    Route { steps, seconds }
}
