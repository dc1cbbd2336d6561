//! The cheapest route: Dijkstra over N-D SBPs, or an exchange.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use graphc_ir::plan::{Cluster, Layout};
use graphc_ir::sbp::{NdSbp, ReduceKind, Sbp};

use super::steps::{legal_steps, price};
use super::{BoxingStep, Prices, Route, RouteStep, exchange};

/// The cheapest route between two layouts of one tensor. `microbatches` is the number of parts in which layouts with
/// a microbatch dim are cut; seconds and bytes are of one part.
pub fn route(from: &Layout, to: &Layout, cluster: &Cluster, microbatches: usize) -> Route {
    Router::new(cluster, microbatches).route(from, to)
}

/// Routes between layouts, each searched once.
pub struct Router<'a> {
    prices: Prices<'a>,
    /// By the layout from which they start, without its splits on axes of extent 1.
    trees: BTreeMap<(Layout, Vec<ReduceKind>), BTreeMap<NdSbp, Reached>>,
    crossings: BTreeMap<(Layout, Layout), (f64, u64)>,
}

/// How an SBP is reached.
#[derive(Clone)]
struct Reached {
    seconds: f64,
    steps: usize,
    last: Option<(BoxingStep, NdSbp, f64, u64)>,
}

impl<'a> Router<'a> {
    /// A router of a cluster.
    pub fn new(cluster: &'a Cluster, microbatches: usize) -> Self {
        let prices = Prices { cluster, microbatches };
        Self { prices, trees: BTreeMap::new(), crossings: BTreeMap::new() }
    }

    /// The cheapest route. A partial value is made whole by collectives alone on its own mesh: they sum in a fixed
    /// order and can be fused. Otherwise an exchange takes the place of two steps or more that cost as much or more.
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
        let Some(end) = reached.get(&to.sbp).cloned() else {
            let (seconds, bytes) = self.crossing(&from, to);
            return exchanged(to, seconds, bytes);
        };
        if end.steps > 1 && !from.sbp.is_partial() {
            let (seconds, bytes) = self.crossing(&from, to);
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

    fn tree(&mut self, from: &Layout, kinds: &[ReduceKind]) -> &BTreeMap<NdSbp, Reached> {
        let prices = self.prices;
        self.trees
            .entry((from.clone(), kinds.to_vec()))
            .or_insert_with(|| shortest(prices, from, kinds))
    }

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
fn shortest(prices: Prices<'_>, from: &Layout, kinds: &[ReduceKind]) -> BTreeMap<NdSbp, Reached> {
    let start = Reached { seconds: 0.0, steps: 0, last: None };
    let mut reached = BTreeMap::from([(from.sbp.clone(), start)]);
    let mut queue = BinaryHeap::from([Entry { seconds: 0.0, steps: 0, sbp: from.sbp.clone() }]);
    let at = |sbp: &NdSbp| Layout { sbp: sbp.clone(), ..from.clone() };
    while let Some(entry) = queue.pop() {
        let known = &reached[&entry.sbp];
        if (known.seconds, known.steps) != (entry.seconds, entry.steps) {
            continue;
        }
        let before = at(&entry.sbp);
        for (step, sbp) in legal_steps(&entry.sbp, &from.hierarchy, from.shape.len(), kinds) {
            let (cost, bytes) = price(prices, step, &before, &at(&sbp));
            let (seconds, steps) = (entry.seconds + cost, entry.steps + 1);
            let better = reached.get(&sbp).is_none_or(|r| (seconds, steps) < (r.seconds, r.steps));
            if better {
                let last = Some((step, entry.sbp.clone(), cost, bytes));
                reached.insert(sbp.clone(), Reached { seconds, steps, last });
                queue.push(Entry { seconds, steps, sbp });
            }
        }
    }
    reached
}

fn walk(tree: &BTreeMap<NdSbp, Reached>, to: &Layout, seconds: f64) -> Route {
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
