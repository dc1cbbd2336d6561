//! The search for the cheapest route: over single-axis steps of one mesh, or by an exchange.
//!
//! Between meshes whose ranks hold copies on both sides, the senders may send parts, which the receivers gather among themselves.
//! This is taken if it takes less time (scatter and gather, Narayanan et al., arXiv 2104.04473, section 4.1).

use std::collections::BTreeMap;

use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_plan::{Cluster, Layout};

use super::apart::ApartExchanges;
use super::patterns::ExchangePatterns;
use super::space::{Cost, Space, exchange_route};
use super::{Code, Prices, Route};

/// Finds the cheapest route between two layouts of one tensor. `microbatches` is the number of parts into which layouts with a microbatch dim are
/// cut; seconds and bytes are those of one part.
pub fn find_route(from: &Layout, to: &Layout, cluster: &Cluster, microbatches: usize) -> Route {
    Router::new(cluster, microbatches).find_route(from, to)
}

/// Finds routes between layouts, and searches each once.
pub struct Router<'a> {
    prices: Prices<'a>,
    /// The space of each tensor type on each mesh. The layouts of a space differ in their SBP alone.
    spaces: Vec<Space<'a>>,
    /// Indices into `spaces`, by a layout without SBP.
    index: BTreeMap<Layout, usize>,
    /// The space that was asked for last. A planner asks for the same one many times in a row.
    last: usize,
    crossings: BTreeMap<(Layout, Layout), Route>,
    patterns: ExchangePatterns,
    apart: ApartExchanges,
}

/// The identifier of a tensor type on a mesh that a router knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceId(usize);

impl<'a> Router<'a> {
    /// Makes a router for a cluster.
    pub fn new(cluster: &'a Cluster, microbatches: usize) -> Self {
        let prices = Prices { cluster, microbatches };
        let (spaces, index, crossings) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let (patterns, apart) = (ExchangePatterns::default(), ApartExchanges::default());
        Self { prices, spaces, index, last: 0, crossings, patterns, apart }
    }

    /// Finds the cheapest route; see [`Space::find_route`].
    pub fn find_route(&mut self, from: &Layout, to: &Layout) -> Route {
        if from.ranks == to.ranks && from.hierarchy == to.hierarchy {
            let space = self.find_space(to);
            return self.spaces[space.0].find_route(&from.sbp, &to.sbp, &mut self.patterns);
        }
        if same_shards(from, to, self.prices.microbatches) {
            return Route::default();
        }
        if let Some(known) = self.crossings.get(&(from.clone(), to.clone())) {
            return known.clone();
        }
        let crossing = self.find_crossing(from, to);
        self.crossings.insert((from.clone(), to.clone()), crossing.clone());
        crossing
    }

    /// Finds the space of a layout, or adds it.
    pub(crate) fn find_space(&mut self, layout: &Layout) -> SpaceId {
        if !self.spaces.get(self.last).is_some_and(|space| space.holds(layout)) {
            let place = Layout { sbp: NdSbp(Vec::new()), ..layout.clone() };
            let (prices, spaces) = (self.prices, &mut self.spaces);
            self.last = *self.index.entry(place).or_insert_with_key(|place| {
                spaces.push(Space::new(prices, place));
                spaces.len() - 1
            });
        }
        SpaceId(self.last)
    }

    /// Returns the number of an SBP in a space.
    pub(crate) fn encode_sbp(&self, space: SpaceId, sbp: &NdSbp) -> Code {
        self.spaces[space.0].encode_sbp(sbp)
    }

    /// Returns the cost of boxing in a space.
    pub(crate) fn price_boxing(&mut self, space: SpaceId, from: Code, to: Code) -> Cost {
        self.spaces[space.0].price_boxing(from, to, &mut self.patterns)
    }

    /// Finds the route between two meshes. It is an exchange; or, if ranks along an axis hold copies on both sides, an exchange of parts, which the
    /// receivers gather among themselves over links that are faster than those between the meshes (Narayanan et al., arXiv 2104.04473, section 4.1:
    /// scatter and gather).
    fn find_crossing(&mut self, from: &Layout, to: &Layout) -> Route {
        let (seconds, bytes) = self.apart.price(self.prices, from, to);
        let mut best = exchange_route(to, seconds, bytes);
        for axis in (0..from.hierarchy.len()).rev() {
            let Some([from_parts, to_parts]) = in_parts(from, to, axis, self.prices.microbatches)
            else {
                continue;
            };
            let (seconds, bytes) = self.apart.price(self.prices, &from_parts, &to_parts);
            if seconds >= best.seconds {
                continue;
            }
            let mut steps = self.find_route(from, &from_parts).steps;
            steps.extend(exchange_route(&to_parts, seconds, bytes).steps);
            steps.extend(self.find_route(&to_parts, to).steps);
            let seconds = steps.iter().map(|step| step.seconds).sum();
            if seconds < best.seconds {
                best = Route { steps, seconds };
            }
        }
        best
    }
}

/// Returns both layouts with their copies along an axis cut into equal parts of one dim. `None` if there are no copies on both sides, or no dim can
/// be cut.
fn in_parts(from: &Layout, to: &Layout, axis: usize, microbatches: usize) -> Option<[Layout; 2]> {
    let extent = from.hierarchy[axis];
    let copies = |layout: &Layout| layout.sbp.0.get(axis) == Some(&Sbp::Broadcast);
    let plain = |layout: &Layout| !layout.sbp.is_partial();
    let alike = from.hierarchy == to.hierarchy && plain(from) && plain(to);
    if extent < 2 || !alike || !copies(from) || !copies(to) {
        return None;
    }
    let (here, there) = (from.uniform_extents(microbatches)?, to.uniform_extents(microbatches)?);
    // Splits of one dim nest in the order of the axes: a later one would be cut anew.
    let later = |layout: &Layout, dim: usize| layout.sbp.0[axis + 1..].contains(&Sbp::Split(dim));
    let fits = |&dim: &usize| {
        here[dim].is_multiple_of(extent)
            && there[dim].is_multiple_of(extent)
            && !later(from, dim)
            && !later(to, dim)
    };
    let dim = (0..here.len()).find(fits)?;
    Some([from, to].map(|layout| {
        let mut parts = layout.clone();
        parts.sbp.0[axis] = Sbp::Split(dim);
        parts
    }))
}

/// Whether every rank of two different meshes holds in `from` what it needs in `to`: the rectangles are equal, and nothing is partial.
fn same_shards(from: &Layout, to: &Layout, microbatches: usize) -> bool {
    from.ranks == to.ranks
        && !has_wide_partials(from)
        && !has_wide_partials(to)
        && from
            .ranks
            .iter()
            .all(|&rank| from.rect(rank, 0, microbatches) == to.rect(rank, 0, microbatches))
}

/// Whether an axis of extent above 1 is partial.
fn has_wide_partials(layout: &Layout) -> bool {
    let axes = layout.sbp.0.iter().copied().zip(&layout.hierarchy);
    axes.into_iter().any(|(sbp, &extent): (Sbp, _)| sbp.is_partial() && extent > 1)
}
