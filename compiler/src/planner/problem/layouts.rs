//! Interns layouts, and prices the boxing between each pair once.
//!
//! Sizes and prices are functions of the decisions and the cluster alone. They are found when they are asked for, and
//! remembered. So [`Layouts`] never changes as far as its users can tell. Its memory lies behind a `RefCell`, which
//! is borrowed within one call of a method and never longer.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::mesh::Placement;
use graphc_ir::sbp::NdSbp;
use graphc_plan::{Cluster, Layout};
use graphc_solver::meter::Meter;

use crate::boxing::{Code, Router, SpaceId, shard_bytes};
use crate::decisions::Decisions;

/// An interned N-D SBP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SbpId(pub u32);

/// An interned placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PlacementId(pub u32);

/// The identifier of a class of layouts that differ in their SBP alone: type, rate and placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClassId(pub u32);

/// The price of boxing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Price {
    /// The seconds of each time.
    pub seconds: f64,
    /// The part of these seconds that does not depend on the bytes; 0 except for collectives.
    pub latency: f64,
    /// The bytes of the boxed copy on the busiest rank; 0 if there is nothing to do.
    pub copy: u64,
    /// The bytes of the largest layout on the way.
    pub scratch: u64,
}

/// A class of layouts, with the sizes and prices that are known.
struct LayoutClass {
    /// The type, rate and placement; the SBP is empty.
    template: Layout,
    space: SpaceId,
    /// The number of each SBP in the space.
    codes: Vec<Option<Code>>,
    /// The bytes of each SBP.
    bytes: Vec<Option<u64>>,
    /// The index of each SBP in tables of prices, in the order in which prices were asked for. A tensor uses few of all SBPs, and a table has an
    /// entry for each pair.
    places: Vec<Option<u32>>,
    /// The number of SBPs that have an index.
    placed: u32,
    /// The prices, by the class of the target, the index of the source SBP and that of the target SBP.
    prices: BTreeMap<ClassId, Vec<Vec<Option<Price>>>>,
}

/// All layouts that tensors of a graph may have.
pub struct Layouts<'a> {
    decisions: &'a Decisions,
    placements: Vec<Placement>,
    /// The placement of each node.
    placement_of: Vec<PlacementId>,
    known: RefCell<KnownLayouts<'a>>,
}

impl<'a> Layouts<'a> {
    /// Prepares the layouts of these decisions, with a counter for the prices that are found.
    pub(crate) fn new(decisions: &'a Decisions, cluster: &'a Cluster, meter: Meter) -> Self {
        let mut placements: Vec<Placement> = Vec::new();
        let mut id = |placement: &Placement| {
            let known = placements.iter().position(|known| known == placement);
            let index = known.unwrap_or_else(|| {
                placements.push(placement.clone());
                placements.len() - 1
            });
            PlacementId(index as u32)
        };
        let placement_of = decisions.staging.placement.iter().map(&mut id).collect();
        let known = RefCell::new(KnownLayouts::new(cluster, decisions.rates.microbatches, meter));
        Self { decisions, placements, placement_of, known }
    }

    /// Returns the identifier of an SBP.
    pub(crate) fn intern_sbp(&self, sbp: &NdSbp) -> SbpId {
        self.known.borrow_mut().intern_sbp(sbp)
    }

    /// Returns the SBP of an identifier.
    pub fn sbp(&self, id: SbpId) -> Rc<NdSbp> {
        self.known.borrow().sbps[id.0 as usize].clone()
    }

    /// Returns the placement of a node.
    pub(crate) fn placement_of(&self, node: NodeId) -> PlacementId {
        self.placement_of[node.index()]
    }

    /// Returns the placement of an identifier.
    pub(crate) fn placement(&self, id: PlacementId) -> &Placement {
        &self.placements[id.0 as usize]
    }

    /// Returns all placements, by identifier.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }

    /// Returns the class of a value on a placement.
    pub(crate) fn class(&self, value: ValueId, placement: PlacementId) -> ClassId {
        let placement = self.placement(placement);
        let template = self.decisions.layout(value, placement, &NdSbp(Vec::new()));
        self.known.borrow_mut().intern_class(template)
    }

    /// Returns the bytes of a shard on the rank that holds most.
    pub(crate) fn bytes(&self, class: ClassId, sbp: SbpId) -> u64 {
        self.known.borrow_mut().bytes(class, sbp)
    }

    /// Returns the price of boxing from one layout to another, which is found once.
    pub(crate) fn price(&self, from: (ClassId, SbpId), to: (ClassId, SbpId)) -> Price {
        self.known.borrow_mut().price(from, to)
    }
}

/// The results that were found before.
struct KnownLayouts<'a> {
    router: Router<'a>,
    microbatches: usize,
    sbps: Vec<Rc<NdSbp>>,
    sbp_ids: BTreeMap<Rc<NdSbp>, SbpId>,
    classes: Vec<LayoutClass>,
    class_ids: BTreeMap<Layout, ClassId>,
    meter: Meter,
}

impl<'a> KnownLayouts<'a> {
    fn new(cluster: &'a Cluster, microbatches: usize, meter: Meter) -> Self {
        Self {
            router: Router::new(cluster, microbatches),
            microbatches,
            sbps: Vec::new(),
            sbp_ids: BTreeMap::new(),
            classes: Vec::new(),
            class_ids: BTreeMap::new(),
            meter,
        }
    }

    fn intern_sbp(&mut self, sbp: &NdSbp) -> SbpId {
        if let Some(&id) = self.sbp_ids.get(sbp) {
            return id;
        }
        let (id, sbp) = (SbpId(self.sbps.len() as u32), Rc::new(sbp.clone()));
        self.sbps.push(sbp.clone());
        self.sbp_ids.insert(sbp, id);
        id
    }

    fn intern_class(&mut self, template: Layout) -> ClassId {
        if let Some(&id) = self.class_ids.get(&template) {
            return id;
        }
        let id = ClassId(self.classes.len() as u32);
        let space = self.router.find_space(&template);
        self.classes.push(LayoutClass {
            template: template.clone(),
            space,
            codes: Vec::new(),
            bytes: Vec::new(),
            places: Vec::new(),
            placed: 0,
            prices: BTreeMap::new(),
        });
        self.class_ids.insert(template, id);
        id
    }

    fn layout(&self, class: ClassId, sbp: SbpId) -> Layout {
        let sbp = NdSbp::clone(&self.sbps[sbp.0 as usize]);
        Layout { sbp, ..self.classes[class.0 as usize].template.clone() }
    }

    fn bytes(&mut self, class: ClassId, sbp: SbpId) -> u64 {
        let known = &self.classes[class.0 as usize].bytes;
        if let Some(&Some(bytes)) = known.get(sbp.0 as usize) {
            return bytes;
        }
        let bytes = shard_bytes(&self.layout(class, sbp), self.microbatches);
        *entry_or_grow(&mut self.classes[class.0 as usize].bytes, sbp.0 as usize) = Some(bytes);
        bytes
    }

    fn price(&mut self, from: (ClassId, SbpId), to: (ClassId, SbpId)) -> Price {
        if from == to {
            return Price::default();
        }
        let [start, end] =
            [from, to].map(|(class, sbp)| self.classes[class.0 as usize].table_index(sbp));
        let known = self.classes[from.0.0 as usize].prices.get(&to.0);
        let row = known.and_then(|rows| rows.get(start));
        if let Some(&Some(price)) = row.and_then(|row| row.get(end)) {
            return price;
        }
        let price = self.find_price(from, to);
        let rows = self.classes[from.0.0 as usize].prices.entry(to.0).or_default();
        *entry_or_grow(entry_or_grow(rows, start), end) = Some(price);
        price
    }

    fn find_price(&mut self, from: (ClassId, SbpId), to: (ClassId, SbpId)) -> Price {
        self.meter.add(1);
        let space = self.classes[from.0.0 as usize].space;
        let (seconds, latency, scratch, nothing) = if space == self.classes[to.0.0 as usize].space {
            let (start, end) = (self.encode_sbp(from.0, from.1), self.encode_sbp(to.0, to.1));
            let cost = self.router.price_boxing(space, start, end);
            (cost.seconds, cost.latency, cost.scratch, cost.nothing)
        } else {
            let route =
                self.router.find_route(&self.layout(from.0, from.1), &self.layout(to.0, to.1));
            let on_the_way = route.steps[..route.steps.len().saturating_sub(1)].iter();
            let bytes = on_the_way.map(|step| shard_bytes(&step.layout_after, self.microbatches));
            (route.seconds, route.latency(), bytes.max().unwrap_or(0), route.steps.is_empty())
        };
        let copy = if nothing { 0 } else { self.bytes(to.0, to.1) };
        Price { seconds, latency, copy, scratch }
    }

    fn encode_sbp(&mut self, class: ClassId, sbp: SbpId) -> Code {
        let LayoutClass { space, codes, .. } = &mut self.classes[class.0 as usize];
        let (router, sbps) = (&self.router, &self.sbps);
        *entry_or_grow(codes, sbp.0 as usize)
            .get_or_insert_with(|| router.encode_sbp(*space, &sbps[sbp.0 as usize]))
    }
}

impl LayoutClass {
    /// Returns the index of an SBP in tables of prices.
    fn table_index(&mut self, sbp: SbpId) -> usize {
        let Self { places, placed, .. } = self;
        let place = *entry_or_grow(places, sbp.0 as usize).get_or_insert_with(|| {
            *placed += 1;
            *placed - 1
        });
        place as usize
    }
}

/// Returns an entry of a list, which grows if it is too short.
fn entry_or_grow<T: Default + Clone>(list: &mut Vec<T>, at: usize) -> &mut T {
    if list.len() <= at {
        list.resize(at + 1, T::default());
    }
    &mut list[at]
}
