//! Interned layouts, and what boxing between them costs: each pair is priced once.

use std::collections::{BTreeMap, HashMap};

use graphc_ir::ids::ValueId;
use graphc_ir::mesh::Placement;
use graphc_ir::plan::{Cluster, Layout};
use graphc_ir::sbp::NdSbp;

use crate::boxing::{Router, shard_bytes};
use crate::decisions::Decisions;

/// An interned N-D SBP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SbpId(pub u32);

/// An interned placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlacementId(pub u32);

/// All that a layout tells but the SBP: type, rate and placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u32);

/// What boxing costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    /// Seconds, each time.
    pub seconds: f64,
    /// Bytes of the boxed copy on the busiest rank; 0 where nothing is to be done.
    pub copy: u64,
    /// Bytes of the largest layout on the way.
    pub scratch: u64,
}

/// The interner.
pub struct Layouts<'a> {
    router: Router<'a>,
    microbatches: usize,
    sbps: Vec<NdSbp>,
    sbp_ids: BTreeMap<NdSbp, SbpId>,
    placements: Vec<Placement>,
    classes: Vec<Layout>,
    class_ids: BTreeMap<Layout, ClassId>,
    prices: HashMap<(ClassId, SbpId, ClassId, SbpId), Price>,
    bytes: HashMap<(ClassId, SbpId), u64>,
}

impl<'a> Layouts<'a> {
    /// An empty interner.
    pub fn new(cluster: &'a Cluster, microbatches: usize) -> Self {
        Self {
            router: Router::new(cluster, microbatches),
            microbatches,
            sbps: Vec::new(),
            sbp_ids: BTreeMap::new(),
            placements: Vec::new(),
            classes: Vec::new(),
            class_ids: BTreeMap::new(),
            prices: HashMap::new(),
            bytes: HashMap::new(),
        }
    }

    /// The id of an SBP.
    pub fn intern(&mut self, sbp: &NdSbp) -> SbpId {
        if let Some(&id) = self.sbp_ids.get(sbp) {
            return id;
        }
        let id = SbpId(self.sbps.len() as u32);
        self.sbps.push(sbp.clone());
        self.sbp_ids.insert(sbp.clone(), id);
        id
    }

    /// The SBP of an id.
    pub fn sbp(&self, id: SbpId) -> &NdSbp {
        &self.sbps[id.0 as usize]
    }

    /// The id of a placement.
    pub fn placement(&mut self, placement: &Placement) -> PlacementId {
        let known = self.placements.iter().position(|known| known == placement);
        let index = known.unwrap_or_else(|| {
            self.placements.push(placement.clone());
            self.placements.len() - 1
        });
        PlacementId(index as u32)
    }

    /// All placements, by id.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }

    /// The class of a value on a placement.
    pub fn class(
        &mut self,
        decisions: &Decisions,
        value: ValueId,
        placement: PlacementId,
    ) -> ClassId {
        let placement = &self.placements[placement.0 as usize];
        let template = decisions.layout(value, placement, &NdSbp(Vec::new()));
        if let Some(&id) = self.class_ids.get(&template) {
            return id;
        }
        let id = ClassId(self.classes.len() as u32);
        self.classes.push(template.clone());
        self.class_ids.insert(template, id);
        id
    }

    fn layout(&self, class: ClassId, sbp: SbpId) -> Layout {
        let sbp = self.sbps[sbp.0 as usize].clone();
        Layout { sbp, ..self.classes[class.0 as usize].clone() }
    }

    /// Bytes of a shard on the rank that holds most.
    pub fn bytes(&mut self, class: ClassId, sbp: SbpId) -> u64 {
        if let Some(&bytes) = self.bytes.get(&(class, sbp)) {
            return bytes;
        }
        let bytes = shard_bytes(&self.layout(class, sbp), self.microbatches);
        self.bytes.insert((class, sbp), bytes);
        bytes
    }

    /// What boxing from one layout to another costs, once.
    pub fn price(&mut self, from: (ClassId, SbpId), to: (ClassId, SbpId)) -> Price {
        if from == to {
            return Price::default();
        }
        let key = (from.0, from.1, to.0, to.1);
        if let Some(&price) = self.prices.get(&key) {
            return price;
        }
        let route = self.router.route(&self.layout(from.0, from.1), &self.layout(to.0, to.1));
        let on_the_way = route.steps.len().saturating_sub(1);
        let scratch = route.steps[..on_the_way]
            .iter()
            .map(|step| shard_bytes(&step.layout_after, self.microbatches))
            .max();
        let copy = if route.steps.is_empty() { 0 } else { self.bytes(to.0, to.1) };
        let price = Price { seconds: route.seconds, copy, scratch: scratch.unwrap_or(0) };
        self.prices.insert(key, price);
        price
    }
}
