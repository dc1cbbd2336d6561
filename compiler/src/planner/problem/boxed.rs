//! Prices the boxing of a tensor by the layouts in which it is made and taken.
//!
//! Tensors that are alike, as those of equal layers are, share one result.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;

use graphc_ir::ids::NodeId;

use super::candidates::Candidate;
use super::layouts::{ClassId, PlacementId, Price, SbpId};
use super::{Demand, Problem};
use crate::boxing::Fusion;

/// The layouts in which a reader takes a tensor. Many candidates take the same ones.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    /// Different lists of layouts, each layout once.
    pub lists: Vec<Vec<SbpId>>,
    /// The index of each candidate's list.
    pub of_label: Vec<usize>,
}

impl Taken {
    /// Finds the layouts that each candidate takes by the operands at these places.
    fn new(candidates: &[Candidate], places: &[usize]) -> Self {
        let mut taken = Self { lists: Vec::new(), of_label: Vec::new() };
        let mut known: HashMap<Vec<SbpId>, usize> = HashMap::new();
        let mut targets = Vec::new();
        for candidate in candidates {
            targets.clear();
            targets.extend(places.iter().map(|&place| candidate.operands[place]));
            targets.sort_unstable();
            targets.dedup();
            let list = known.get(targets.as_slice()).copied().unwrap_or_else(|| {
                known.insert(targets.clone(), taken.lists.len());
                taken.lists.push(targets.clone());
                taken.lists.len() - 1
            });
            taken.of_label.push(list);
        }
        taken
    }

    /// Returns the layouts that a candidate takes.
    pub(crate) fn layouts_of_label(&self, label: usize) -> &[SbpId] {
        &self.lists[self.of_label[label]]
    }
}

/// The prices of boxing a tensor.
pub(crate) struct Boxed {
    /// The index into `sources` for each candidate of the producer.
    pub source_of: Vec<usize>,
    /// The layouts in which it is made, in order.
    pub sources: Vec<SbpId>,
    /// The layout in which the user takes each source, if that is another.
    pub fetch: Vec<Option<SbpId>>,
    /// All layouts in which readers take it, in order.
    pub read: Vec<SbpId>,
    /// All layouts in which it is taken, by the user too, in order.
    pub targets: Vec<SbpId>,
    /// The prices by source and target.
    pub prices: Vec<Vec<Price>>,
    /// The layouts that candidates take, by reader.
    pub taken: Vec<Rc<Taken>>,
}

/// A key that tells tensors apart. Lists of candidates are told apart by their addresses.
#[derive(PartialEq, Eq, Hash)]
struct BoxingKey {
    made: (*const Candidate, usize),
    classes: [ClassId; 2],
    fetched: bool,
    fusion: Option<Fusion>,
    hides: (u64, bool),
    taken: Vec<(*const Candidate, Vec<usize>)>,
}

/// Results by their keys.
type Remembered<K, T> = RefCell<HashMap<K, Rc<T>>>;

/// The boxing of the tensors of one problem, as far as it is known. The candidates of the problem never change, so known results stay right. Each
/// list of candidates stays at its address, so that addresses identify lists. Each `RefCell` is borrowed to look something up or to insert it, and
/// never while it is computed.
#[derive(Default)]
pub(crate) struct KnownBoxing {
    /// The layouts that are taken, by candidates and positions of operands.
    taken: Remembered<(*const Candidate, Vec<usize>), Taken>,
    of_alike: Remembered<BoxingKey, Boxed>,
    /// The prices, by producer, result and placement. No two demands share these.
    of_demand: Remembered<(NodeId, usize, PlacementId), Boxed>,
}

/// Returns the result for a key, and computes it if it is not known yet.
fn find_or_remember<K: Eq + Hash, T>(
    known: &Remembered<K, T>,
    key: K,
    find: impl FnOnce() -> Rc<T>,
) -> Rc<T> {
    if let Some(found) = known.borrow().get(&key) {
        return found.clone();
    }
    let found = find();
    known.borrow_mut().insert(key, found.clone());
    found
}

impl Problem<'_> {
    /// Prices the boxing of all demanded tensors in advance.
    pub(crate) fn price_boxing(&self) {
        self.demands.iter().for_each(|demand| drop(self.boxing_prices(demand)));
    }

    /// Returns the prices of boxing a demanded tensor.
    pub(crate) fn boxing_prices(&self, demand: &Demand) -> Rc<Boxed> {
        let own = (demand.producer, demand.index, demand.placement);
        find_or_remember(&self.boxing.of_demand, own, || {
            let key = self.boxing_key(demand);
            find_or_remember(&self.boxing.of_alike, key, || Rc::new(self.find_boxed(demand)))
        })
    }

    /// Returns the layouts in which each candidate of a reader takes it. For nodes that are alike they are found once.
    pub(crate) fn layouts_taken(&self, reader: &(NodeId, Vec<usize>)) -> Rc<Taken> {
        let (all, places) = (self.candidates_of(reader.0), &reader.1);
        let key = (all.as_ptr(), places.clone());
        find_or_remember(&self.boxing.taken, key, || Rc::new(Taken::new(all, places)))
    }

    fn boxing_key(&self, demand: &Demand) -> BoxingKey {
        let list = |node: NodeId| self.candidates_of(node).as_ptr();
        BoxingKey {
            made: (list(demand.producer), demand.index),
            classes: [demand.from, demand.to],
            fetched: demand.fetched,
            fusion: demand.fusion,
            hides: demand.hides.bits(),
            taken: demand.readers.iter().map(|(node, at)| (list(*node), at.clone())).collect(),
        }
    }

    fn find_boxed(&self, demand: &Demand) -> Boxed {
        let labels = 0..self.candidates_of(demand.producer).len();
        let made: Vec<SbpId> = labels.map(|label| self.source_layout(demand, label)).collect();
        let sources = sort_distinct(made.clone());
        let index =
            |sbp: &SbpId| sources.binary_search(sbp).expect("a source is among all sources");
        let source_of = made.iter().map(index).collect();
        let fetch: Vec<Option<SbpId>> =
            sources.iter().map(|&source| self.fetch_target(demand, source)).collect();
        let taken: Vec<Rc<Taken>> =
            demand.readers.iter().map(|reader| self.layouts_taken(reader)).collect();
        let read = sort_distinct(
            taken.iter().flat_map(|taken| taken.lists.iter().flatten()).copied().collect(),
        );
        let targets = sort_distinct(read.iter().chain(fetch.iter().flatten()).copied().collect());
        let row = |&source: &SbpId| {
            targets.iter().map(|&target| self.price_demand(demand, source, target)).collect()
        };
        let prices = sources.iter().map(row).collect();
        Boxed { source_of, sources, fetch, read, targets, prices, taken }
    }
}

/// Sorts layouts, and keeps each once.
fn sort_distinct(mut all: Vec<SbpId>) -> Vec<SbpId> {
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use graphc_ir::builder::{GraphBuilder, Tensor};
    use graphc_ir::ops::Init;
    use graphc_ir::types::DType;
    use graphc_plan::CompileOptions;

    use super::*;
    use crate::cluster::preset;
    use crate::pipeline::prepare_graph;
    use crate::planner::problem::candidates::CandidateList;

    #[test]
    fn layers_that_are_alike_have_one_list_of_candidates_and_one_of_prices() {
        let g = GraphBuilder::new("layers");
        let layer = |x: Tensor, i: usize| {
            x.matmul(&g.variable(&format!("w{i}"), DType::F32, [8, 8], Init::Weights)).relu()
        };
        g.output("y", &(0..3).fold(g.input("x", DType::F32, [8, 8]), layer));
        let options = CompileOptions { mesh: vec![2], ..CompileOptions::default() };
        let decisions = prepare_graph(g.finish().expect("fits"), &options).expect("fits");
        let cluster = preset("cpu").expect("a preset");
        let problem = Problem::new(&decisions, &options, &cluster).expect("fits");
        let demands = &problem.demands;
        let name = |node: NodeId| decisions.graph().node(node).op.name();
        let of_products: Vec<&Demand> =
            demands.iter().filter(|demand| name(demand.producer) == "matmul").collect();
        assert_eq!(of_products.len(), 3);
        let first = of_products[0];
        for demand in &of_products {
            let lists = [first, demand].map(|demand| problem.candidates_of(demand.producer));
            assert!(Rc::ptr_eq(lists[0], lists[1]));
            let [known, boxed] = [first, demand].map(|demand| problem.boxing_prices(demand));
            assert!(Rc::ptr_eq(&known, &boxed));
            for (source, prices) in boxed.sources.iter().zip(&boxed.prices) {
                for (target, &price) in boxed.targets.iter().zip(prices) {
                    assert_eq!(price, problem.price_demand(demand, *source, *target));
                }
            }
        }
        // What is known is of these candidates alone.
        let alone = problem.candidates.iter().map(|all| CandidateList::from([all[0].clone()]));
        let narrower = problem.with_candidates(alone.collect());
        assert_eq!(narrower.boxing_prices(first).sources.len(), 1);
        assert!(problem.boxing_prices(first).sources.len() > 1);
    }
}
