//! Numbers the layouts of one tensor on one mesh, so that prices of boxing are tables over all of them.
//!
//! An N-D SBP is a number whose digits, the first axis first, are the SBPs of the axes in their order. So numbers are ordered as SBPs are, and a
//! property of SBPs is a table with an entry for each. Axes of extent 1 have no digit, because all SBPs mean the same there; so they do not make
//! tables longer.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use graphc_ir::sbp::{NdSbp, ReduceKind, Sbp};
use graphc_ir::shard::split_range;
use graphc_plan::Layout;

use super::exchange::{self, Traffic, are_very_many, exchange_traffic, received_first};
use super::patterns::ExchangePatterns;
use super::same_mesh::SameMesh;
use super::steps::{Links, legal_steps};
use super::{BoxingStep, Code, Prices, Route, RouteStep};

/// The cost of boxing, without its route.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// The seconds of each time.
    pub seconds: f64,
    /// The part of these seconds that does not depend on the bytes; 0 except for collectives.
    pub latency: f64,
    /// The bytes of the largest layout between the first and the last.
    pub scratch: u64,
    /// Whether there is nothing to do.
    pub nothing: bool,
}

/// The layouts of one tensor type on one mesh.
pub(super) struct Space<'a> {
    prices: Prices<'a>,
    /// The type and the mesh; the SBP is empty.
    place: Layout,
    links: Links,
    /// The bytes of the first rank's shard in each layout, once they are known.
    bytes: Vec<Option<u64>>,
    /// The legal steps from each layout, once they are known, by the kinds of partial values that may be made.
    edges: HashMap<u8, Vec<Option<Vec<StepEdge>>>>,
    trees: HashMap<(Code, u8), Vec<ReachedLayout>>,
    exchanges: HashMap<(Code, Code), (f64, u64)>,
}

/// A legal step: the layout that it leads to, its seconds, its latency and its bytes.
struct StepEdge {
    step: BoxingStep,
    to: Code,
    seconds: f64,
    latency: f64,
    bytes: u64,
}

/// A layout in the tree of shortest routes from a root, with the last step of its route.
#[derive(Clone, Copy)]
struct ReachedLayout {
    /// The seconds of the route; infinite if there is none.
    seconds: f64,
    latency: f64,
    steps: u32,
    /// Whether no rank communicates on the route.
    local: bool,
    /// The bytes of the largest layout between the root and this one.
    scratch: u64,
    /// The previous layout, and the index of its step that leads here.
    before: (Code, u32),
}

/// The most entries of trees that are kept. A caller that needs many routes from one layout asks for all of them in a row, so what is forgotten is
/// seldom asked for again.
const MOST_REACHED: usize = 1 << 21;

const UNREACHED: ReachedLayout = ReachedLayout {
    seconds: f64::INFINITY,
    latency: 0.0,
    steps: 0,
    local: true,
    scratch: 0,
    before: (0, 0),
};

/// The queue of Dijkstra's search: the cheapest comes first, then that of fewest steps, then the first. Costs are not negative, so their bits have
/// the same order.
type Queue = BinaryHeap<Reverse<(u64, u32, Code)>>;

/// The kind of the cheapest route: over single-axis steps, or an exchange.
enum CheapestWay {
    Steps,
    Exchange(f64, u64),
}

impl<'a> Space<'a> {
    /// Takes the layouts that differ from `place` in their SBP alone.
    pub(super) fn new(prices: Prices<'a>, place: &Layout) -> Self {
        let place = Layout { sbp: NdSbp(Vec::new()), ..place.clone() };
        let links = Links::new(prices.cluster, &place);
        let axes = place.hierarchy.iter().filter(|&&extent| extent > 1).count();
        let codes = (place.shape.len() + 4).pow(axes as u32);
        let (edges, trees, exchanges) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { prices, place, links, bytes: vec![None; codes], edges, trees, exchanges }
    }

    /// Whether a layout is one of these.
    pub(super) fn holds(&self, layout: &Layout) -> bool {
        let of = &self.place;
        of.shape == layout.shape
            && of.dtype == layout.dtype
            && of.microbatch_dim == layout.microbatch_dim
            && of.hierarchy == layout.hierarchy
            && of.ranks == layout.ranks
    }

    /// Returns the number of digits that an axis may have.
    fn digits_per_axis(&self) -> usize {
        self.place.shape.len() + 4
    }

    /// Returns the number of an SBP.
    pub(super) fn encode_sbp(&self, sbp: &NdSbp) -> Code {
        let rank = self.place.shape.len();
        let digit = |sbp: &Sbp| match *sbp {
            Sbp::Broadcast => 0,
            Sbp::Split(dim) => 1 + dim,
            Sbp::Partial(kind) => 1 + rank + kind as usize,
        };
        let axes = sbp.0.iter().zip(&self.place.hierarchy).filter(|(_, extent)| **extent > 1);
        axes.fold(0, |code, (sbp, _)| code * self.digits_per_axis() + digit(sbp)) as Code
    }

    fn decode_sbp(&self, code: Code) -> NdSbp {
        let mut rest = code as usize;
        let mut axes = vec![Sbp::Broadcast; self.place.hierarchy.len()];
        let named = axes.iter_mut().zip(&self.place.hierarchy).filter(|(_, extent)| **extent > 1);
        for (sbp, _) in named.rev() {
            *sbp = self.decode_digit(rest % self.digits_per_axis());
            rest /= self.digits_per_axis();
        }
        NdSbp(axes)
    }

    fn decode_digit(&self, digit: usize) -> Sbp {
        let rank = self.place.shape.len();
        match digit {
            0 => Sbp::Broadcast,
            dim if dim <= rank => Sbp::Split(dim - 1),
            kind if kind == rank + 1 => Sbp::Partial(ReduceKind::Sum),
            kind if kind == rank + 2 => Sbp::Partial(ReduceKind::Max),
            _ => Sbp::Partial(ReduceKind::Min),
        }
    }

    /// Returns the bytes of a shard on the rank that holds most, which is the first.
    pub(super) fn bytes(&mut self, code: Code) -> u64 {
        if let Some(bytes) = self.bytes[code as usize] {
            return bytes;
        }
        let extents = self.first_shard(code);
        let bytes = (extents.iter().product::<usize>() * self.place.dtype.size()) as u64;
        self.bytes[code as usize] = Some(bytes);
        bytes
    }

    /// Returns the extents of a microbatch of the tensor.
    fn microbatch_extents(&self) -> Vec<usize> {
        let mut extents = self.place.shape.clone();
        if let Some(dim) = self.place.microbatch_dim {
            extents[dim] = split_range(extents[dim], self.prices.microbatches, 0).len();
        }
        extents
    }

    fn first_shard(&self, code: Code) -> Vec<usize> {
        let mut extents = self.microbatch_extents();
        for (sbp, &parts) in self.decode_sbp(code).0.iter().zip(&self.place.hierarchy) {
            if let Sbp::Split(dim) = *sbp {
                extents[dim] = split_range(extents[dim], parts, 0).len();
            }
        }
        extents
    }

    fn layout(&self, code: Code) -> Layout {
        Layout { sbp: self.decode_sbp(code), ..self.place.clone() }
    }

    /// Returns the cost of the cheapest route. `patterns` has the exchanges that are known from all tensors.
    pub(super) fn price_boxing(
        &mut self,
        from: Code,
        to: Code,
        patterns: &mut ExchangePatterns,
    ) -> Cost {
        if from == to {
            return Cost { nothing: true, ..Cost::default() };
        }
        match self.choose_way(from, to, patterns) {
            CheapestWay::Exchange(seconds, _) => Cost { seconds, ..Cost::default() },
            CheapestWay::Steps => {
                let end = self.find_tree(from, self.partial_kinds(from, to))[to as usize];
                let ReachedLayout { seconds, latency, scratch, .. } = end;
                Cost { seconds, latency, scratch, nothing: false }
            }
        }
    }

    /// Finds the cheapest route. On axes of extent 1 its layouts have the SBPs of the target.
    pub(super) fn find_route(
        &mut self,
        from: &NdSbp,
        target: &NdSbp,
        patterns: &mut ExchangePatterns,
    ) -> Route {
        let (from, to) = (self.encode_sbp(from), self.encode_sbp(target));
        if from == to {
            return Route::default();
        }
        let mut route = match self.choose_way(from, to, patterns) {
            CheapestWay::Exchange(seconds, bytes) => {
                exchange_route(&self.layout(to), seconds, bytes)
            }
            CheapestWay::Steps => self.trace_route(from, to),
        };
        for step in &mut route.steps {
            let axes = step.layout_after.sbp.0.iter_mut().zip(&target.0);
            for ((sbp, &name), &extent) in axes.zip(&self.place.hierarchy) {
                if extent == 1 {
                    *sbp = name;
                }
            }
        }
        route
    }

    /// Chooses between steps and an exchange. A partial value is summed up by collectives alone on its own mesh, because they sum in a fixed order
    /// and can be fused. Otherwise an exchange replaces two steps or more, if not all of them are local and they cost more.
    fn choose_way(&mut self, from: Code, to: Code, patterns: &mut ExchangePatterns) -> CheapestWay {
        let kinds = self.partial_kinds(from, to);
        let end = self.find_tree(from, kinds)[to as usize];
        if end.seconds.is_finite() {
            let is_partial = self.decode_sbp(from).is_partial();
            let exchangeable = end.steps > 1 && !end.local && !is_partial;
            if !exchangeable || end.seconds <= self.least_exchange(from, to, patterns) {
                return CheapestWay::Steps;
            }
        }
        let (seconds, bytes) = self.price_exchange(from, to, patterns);
        if seconds < end.seconds {
            CheapestWay::Exchange(seconds, bytes)
        } else {
            CheapestWay::Steps
        }
    }

    /// Returns the kinds of partial values that may be made on the way, as bits. They are those of the target.
    fn partial_kinds(&self, from: Code, to: Code) -> u8 {
        let (mut from, mut to) = (from as usize, to as usize);
        let (base, first) = (self.digits_per_axis(), self.place.shape.len() + 1);
        let mut kinds = 0;
        while to > 0 {
            let digit = to % base;
            if digit >= first && from % base != digit {
                kinds |= 1 << (digit - first);
            }
            (from, to) = (from / base, to / base);
        }
        kinds
    }

    /// Returns the routes from a layout to all others.
    fn find_tree(&mut self, from: Code, kinds: u8) -> &[ReachedLayout] {
        if !self.trees.contains_key(&(from, kinds)) {
            if (self.trees.len() + 1) * self.bytes.len() > MOST_REACHED {
                self.trees.clear();
            }
            let tree = self.search_shortest(from, kinds);
            self.trees.insert((from, kinds), tree);
        }
        &self.trees[&(from, kinds)]
    }

    /// Finds the shortest routes by Dijkstra's algorithm.
    fn search_shortest(&mut self, from: Code, kinds: u8) -> Vec<ReachedLayout> {
        let mut reached = vec![UNREACHED; self.bytes.len()];
        reached[from as usize].seconds = 0.0;
        let mut queue = Queue::from([Reverse((0, 0, from))]);
        while let Some(Reverse((seconds, steps, at))) = queue.pop() {
            let known = reached[at as usize];
            if (known.seconds.to_bits(), known.steps) != (seconds, steps) {
                continue;
            }
            let here = if at == from { 0 } else { self.bytes(at) };
            let scratch = known.scratch.max(here);
            for (index, edge) in self.legal_edges(at, kinds).iter().enumerate() {
                let (seconds, steps) = (known.seconds + edge.seconds, known.steps + 1);
                let next = &mut reached[edge.to as usize];
                if (seconds, steps) < (next.seconds, next.steps) {
                    let local = known.local && is_local(edge.step);
                    let before = (at, index as u32);
                    let latency = known.latency + edge.latency;
                    *next = ReachedLayout { seconds, latency, steps, local, scratch, before };
                    queue.push(Reverse((seconds.to_bits(), steps, edge.to)));
                }
            }
        }
        reached
    }

    /// Returns the legal steps from a layout with their prices.
    fn legal_edges(&mut self, from: Code, kinds: u8) -> &[StepEdge] {
        let codes = self.bytes.len();
        let known = |edges: &HashMap<u8, Vec<Option<Vec<StepEdge>>>>| {
            edges.get(&kinds).is_some_and(|of| of[from as usize].is_some())
        };
        if !known(&self.edges) {
            let edges = self.find_edges(from, kinds);
            let of = self.edges.entry(kinds);
            let of = of.or_insert_with(|| (0..codes).map(|_| None).collect());
            of[from as usize] = Some(edges);
        }
        self.edges[&kinds][from as usize].as_deref().unwrap_or(&[])
    }

    fn find_edges(&mut self, from: Code, kinds: u8) -> Vec<StepEdge> {
        let all = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min];
        let kinds: Vec<ReduceKind> =
            all.into_iter().filter(|&kind| kinds >> kind as usize & 1 == 1).collect();
        let (sbp, rank) = (self.decode_sbp(from), self.place.shape.len());
        let steps = legal_steps(&sbp, &self.place.hierarchy, rank, &kinds);
        let priced = steps.into_iter().map(|(step, after)| {
            let to = self.encode_sbp(&after);
            let (before, after) = (self.bytes(from), self.bytes(to));
            let (seconds, latency, bytes) =
                self.links.price(self.prices.cluster, step, before, after);
            StepEdge { step, to, seconds, latency, bytes }
        });
        priced.collect()
    }

    fn trace_route(&mut self, from: Code, to: Code) -> Route {
        let kinds = self.partial_kinds(from, to);
        let tree = self.find_tree(from, kinds).to_vec();
        let (mut steps, mut at) = (Vec::new(), to);
        while at != from {
            let (before, index) = tree[at as usize].before;
            let layout_after = self.layout(at);
            let edge = &self.legal_edges(before, kinds)[index as usize];
            let StepEdge { step, seconds, latency, bytes, .. } = *edge;
            steps.push(RouteStep { step, layout_after, seconds, latency, bytes });
            at = before;
        }
        steps.reverse();
        Route { steps, seconds: tree[to as usize].seconds }
    }

    /// Returns a lower bound of the cost of an exchange, by the traffic of the first rank. Most exchanges are too expensive by that, and on many
    /// ranks it takes a thousandth of the time that a look at all of them takes.
    fn least_exchange(&mut self, from: Code, to: Code, patterns: &mut ExchangePatterns) -> f64 {
        let (start, end) = (self.layout(from), self.layout(to));
        let parts = self.prices.microbatches;
        let even = patterns.even_first((&start, from), (&end, to), parts);
        let traffic = even.unwrap_or_else(|| received_first(&start, &end, parts));
        exchange::price_traffic(self.prices, self.links.all, traffic).0
    }

    fn price_exchange(
        &mut self,
        from: Code,
        to: Code,
        patterns: &mut ExchangePatterns,
    ) -> (f64, u64) {
        if let Some(&known) = self.exchanges.get(&(from, to)) {
            return known;
        }
        let (start, end) = (self.layout(from), self.layout(to));
        let parts = self.prices.microbatches;
        let even = match start.sbp.is_partial() {
            true => None,
            false => patterns.even_traffic((&start, from), (&end, to), parts),
        };
        let traffic = even.unwrap_or_else(|| self.uneven_traffic(&start, &end));
        let price = exchange::price_traffic(self.prices, self.links.all, traffic);
        self.exchanges.insert((from, to), price);
        price
    }

    /// Returns the traffic of an exchange with uneven splits.
    fn uneven_traffic(&self, from: &Layout, to: &Layout) -> Traffic {
        if from.sbp.is_partial() || are_very_many(from, to) {
            return exchange_traffic(from, to, self.prices.microbatches);
        }
        let of = SameMesh::new(&from.hierarchy, &from.sbp, &to.sbp, &self.microbatch_extents());
        let Traffic { messages, bytes: elements } = of.busiest_traffic();
        Traffic { messages, bytes: elements * from.dtype.size() as u64 }
    }
}

/// Makes a route of one exchange.
pub(super) fn exchange_route(to: &Layout, seconds: f64, bytes: u64) -> Route {
    let (step, layout_after) = (BoxingStep::Exchange, to.clone());
    let step = RouteStep { step, layout_after, seconds, latency: 0.0, bytes };
    Route { steps: vec![step], seconds }
}

fn is_local(step: BoxingStep) -> bool {
    matches!(step, BoxingStep::Slice { .. } | BoxingStep::Mask { .. })
}
