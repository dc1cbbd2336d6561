//! The planning problem as data: candidates of every node, tensors that are boxed for their readers, variables that
//! updates write back, and lifetimes.
//!
//! A problem never changes once it is made, so every part of the planner takes `&Problem`. Some results are found on
//! the way and remembered behind a `RefCell` each: sizes and prices of layouts (`layouts`), and what boxing between
//! candidates costs (`boxed`). Both are functions of the problem.
//!
//! A problem with fewer labels is another problem ([`Problem::with_candidates`]), which shares everything that does
//! not depend on candidates. The restricted master of the search within a limit is one. So is what a fixed strategy
//! leaves to price.

use std::rc::Rc;

use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::sbp::NdSbp;
use graphc_plan::{Cluster, CompileOptions};
use graphc_solver::meter::Meter;

use super::error::PlannerError;
use crate::boxing::{Fusion, Hidden, HidingWindow, fetched, unhidden_seconds};
use crate::decisions::{Decisions, Sharding};
use crate::planner::asked::check_axes;
use boxed::KnownBoxing;
use candidates::{Candidate, CandidateList, Candidates};
use layouts::{ClassId, Layouts, PlacementId, Price, SbpId};
use lifetimes::{Lifetimes, Span};
use tensors::Tensors;
use tied::Tied;

pub(super) mod boxed;
pub mod candidates;
pub(super) mod layouts;
pub(super) mod lifetimes;
pub mod size;
mod tensors;
mod tied;
pub(super) mod usage;

/// A tensor and its readers on one placement. It is boxed once to each layout that some of them take.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    /// The tensor.
    pub value: ValueId,
    /// The node that makes it.
    pub producer: NodeId,
    /// The index of the tensor among the results of that node.
    pub index: usize,
    /// The tensor where it is made.
    pub from: ClassId,
    /// The tensor where it is read.
    pub to: ClassId,
    /// The placement where it is read.
    pub placement: PlacementId,
    /// The nodes that read it, each with the operands that it is.
    pub readers: Vec<(NodeId, Vec<usize>)>,
    /// Whether the user reads it too: in the layout in which it is made, with partial values summed up.
    pub fetched: bool,
    /// The number of times that it is boxed in a step.
    pub times: f64,
    /// The message in which it is boxed together with others, in the update phase.
    pub fusion: Option<Fusion>,
    /// The window that it hides under each time.
    pub hides: HidingWindow,
    /// The time for which boxed copies are kept.
    pub span: Span,
    /// The span in which it is made, if it is boxed at once when that makes it smaller.
    pub scattered: Option<Span>,
    /// Whether copies take memory of their own (those for a `to_global` are its result).
    pub counts: bool,
}

impl Demand {
    /// Returns the spans in which something may be kept for boxing it: the moment at which boxing begins, and the time for which copies are kept.
    /// Three more are for a tensor that is boxed as soon as it is made: the moment at which it has been made, the time of copies from then on, and
    /// that of what is left in place after that. Without `scattered` these three are equal to the second.
    pub(crate) fn spans(&self) -> [Span; 5] {
        let moment = |at: usize| Span { start: at, end: at, others: 0 };
        let (begun, whole) = (moment(self.span.start), self.span);
        match self.scattered {
            None => [begun, whole, whole, whole, whole],
            Some(made) => {
                let from = Span { start: made.end, ..whole };
                let later = Span { start: made.end + 1, ..whole };
                [begun, whole, moment(made.end), from, later]
            }
        }
    }
}

/// A result of an update that replaces a variable. It goes back to the variable's layout.
#[derive(Clone, Debug)]
pub(crate) struct WriteBack {
    /// The update.
    pub update: NodeId,
    /// The index of the result among those of the update.
    pub result: usize,
    /// The result where it is made.
    pub from: ClassId,
    /// The variable's node.
    pub variable: NodeId,
    /// The result where the variable lives.
    pub to: ClassId,
    /// The placement where the update is computed.
    pub placement: PlacementId,
    /// The message in which it is boxed together with others, if it stays on its mesh.
    pub fusion: Option<Fusion>,
    /// The span of its boxing.
    pub span: Span,
    /// Whether others read the result, so that it takes memory of its own, which [`Problem::made`] counts.
    pub is_read: bool,
}

impl WriteBack {
    /// Returns the bytes that are kept for it if the result is made as `source`.
    pub(crate) fn kept_bytes(&self, layouts: &Layouts<'_>, source: SbpId, price: Price) -> u64 {
        let in_place = price.copy == 0 || self.is_read;
        let kept = if in_place { 0 } else { layouts.bytes(self.from, source) };
        price.copy + kept + price.scratch
    }
}

/// A tensor where it is made.
#[derive(Clone, Debug)]
pub struct Made {
    /// The tensor.
    pub value: ValueId,
    /// The node that makes it.
    pub producer: NodeId,
    /// The index of the tensor among the results of that node.
    pub index: usize,
    /// The type and the place.
    pub(crate) class: ClassId,
    /// The placement where it is made.
    pub(crate) placement: PlacementId,
    /// The time for which it is kept.
    pub span: Span,
    /// The result of another node that is kept anyway, by node and index, if there is one. In the same layout this tensor takes no memory.
    pub beside: Option<(NodeId, usize)>,
}

impl Made {
    /// Returns its bytes if it is made as `sbp`, and the result `beside` is made as `other`.
    pub fn kept_bytes(&self, layouts: &Layouts<'_>, sbp: SbpId, other: Option<SbpId>) -> u64 {
        if other == Some(sbp) { 0 } else { layouts.bytes(self.class, sbp) }
    }
}

/// All data of planning. It never changes: results that are computed from it, such as prices of boxing, are functions of it that are remembered in
/// [`Layouts`] and [`KnownBoxing`] and nowhere else. Clones share all of it, so they cost next to nothing.
#[derive(Clone)]
pub struct Problem<'a> {
    /// The decisions of the passes.
    pub decisions: &'a Decisions,
    /// Interned layouts and their prices.
    pub layouts: Rc<Layouts<'a>>,
    /// The candidates of each node.
    pub candidates: Rc<[CandidateList]>,
    /// Tensors with readers.
    pub(crate) demands: Rc<[Demand]>,
    /// Variables that are written back.
    pub(crate) write_backs: Rc<[WriteBack]>,
    /// Tensors that take memory where they are made.
    pub made: Rc<[Made]>,
    /// The order of nodes, and the spans in which tensors are kept.
    pub(crate) lifetimes: Rc<Lifetimes>,
    /// Bytes that a rank may use.
    pub limit: u64,
    /// The options. Their effort limits the work.
    pub options: &'a CompileOptions,
    /// The work of planning.
    pub(crate) meter: Meter,
    /// The axes that are tied, if planning each axis by itself would have been too much.
    pub tied: Option<Tied>,
    hidden: Rc<Hidden>,
    boxing: Rc<KnownBoxing>,
}

impl<'a> Problem<'a> {
    /// Builds the problem of these decisions.
    ///
    /// # Errors
    /// Returns an error if a pin cannot be fulfilled, or if a node has no signature.
    pub fn new(
        decisions: &'a Decisions,
        options: &'a CompileOptions,
        cluster: &'a Cluster,
    ) -> Result<Self, PlannerError> {
        tied::build_problem(decisions, options, cluster)
    }

    /// Builds the problem in which nodes choose for the axes of `tied` as for the axis before, unless they are pinned.
    ///
    /// # Errors
    /// Returns an error if a pin cannot be fulfilled, if a node has no signature, or if it has too many.
    pub fn with_tied_axes(
        decisions: &'a Decisions,
        options: &'a CompileOptions,
        cluster: &'a Cluster,
        tied: &[usize],
    ) -> Result<Self, PlannerError> {
        let meter = Meter::default();
        let layouts = Layouts::new(decisions, cluster, meter.clone());
        check_axes(options.strategy, layouts.placements())?;
        let candidates =
            Candidates::new(decisions, options, cluster, tied).list_candidates(&layouts)?;
        let lifetimes = Lifetimes::new(decisions, options.schedule);
        let hidden = Hidden::from_decisions(decisions, cluster);
        let tensors = Tensors::new(decisions, &layouts, &lifetimes, &hidden);
        let (made, demands) = (tensors.list_made(), tensors.list_demands());
        let write_backs = tensors.write_backs();
        Ok(Self {
            decisions,
            candidates: candidates.into(),
            demands: demands.into(),
            write_backs: write_backs.into(),
            made: made.into(),
            // Shares of the limit are numbers, of none at all too.
            limit: options.memory.unwrap_or(cluster.device.memory).max(1),
            options,
            meter,
            tied: None,
            boxing: Rc::default(),
            layouts: Rc::new(layouts),
            lifetimes: Rc::new(lifetimes),
            hidden: Rc::new(hidden),
        })
    }

    /// Returns the candidates of a node.
    pub fn candidates_of(&self, node: NodeId) -> &CandidateList {
        &self.candidates[node.index()]
    }

    /// Returns the problem with other candidates of nodes. Nothing is known yet of boxing between these.
    pub fn with_candidates(&self, candidates: Rc<[CandidateList]>) -> Self {
        Self { candidates, boxing: Rc::default(), ..self.clone() }
    }

    /// Returns the layout in which a candidate of the producer makes a demanded tensor.
    pub(crate) fn source_layout(&self, demand: &Demand, candidate: usize) -> SbpId {
        self.candidates_of(demand.producer)[candidate].results[demand.index]
    }

    /// Returns the layouts in which a candidate of a reader takes it, each once.
    pub(crate) fn target_layouts(
        &self,
        reader: &(NodeId, Vec<usize>),
        candidate: usize,
    ) -> Vec<SbpId> {
        let candidate = &self.candidates_of(reader.0)[candidate];
        let mut targets: Vec<SbpId> =
            reader.1.iter().map(|&position| candidate.operands[position]).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// Returns the layout in which the user takes what is made as `source`, or `None` if it is taken as it is.
    pub(crate) fn fetch_target(&self, demand: &Demand, source: SbpId) -> Option<SbpId> {
        if !demand.fetched {
            return None;
        }
        let target = fetched(&self.layouts.sbp(source));
        Some(self.layouts.intern_sbp(&target)).filter(|&target| target != source)
    }

    /// Returns the price of boxing a demanded tensor, each time, without the seconds that are hidden.
    pub(crate) fn price_demand(&self, demand: &Demand, source: SbpId, target: SbpId) -> Price {
        let price = self.layouts.price((demand.from, source), (demand.to, target));
        let price = self.discount_latency(demand.fusion, price, (demand.from, source));
        Price { seconds: unhidden_seconds(price.seconds, demand.hides), ..price }
    }

    /// Returns the seconds of boxing a value each time for these readers on its mesh, without those that are hidden.
    pub(crate) fn boxed_for(
        &self,
        value: ValueId,
        readers: &[NodeId],
        from: SbpId,
        to: SbpId,
    ) -> f64 {
        let producer = self.decisions.graph().value(value).producer;
        let class = self.layouts.class(value, self.layouts.placement_of(producer));
        let price = self.layouts.price((class, from), (class, to));
        unhidden_seconds(price.seconds, self.hidden.find_window(self.decisions, value, readers))
    }

    /// Returns the candidate of each node that a sharding has, or `None` if a node has no such candidate.
    pub(crate) fn find_labels(&self, sharding: &Sharding) -> Option<Vec<usize>> {
        let mut labels = Vec::new();
        for (all, node) in self.candidates.iter().zip(&sharding.nodes) {
            let intern = |sbps: &[NdSbp]| -> Vec<SbpId> {
                sbps.iter().map(|sbp| self.layouts.intern_sbp(sbp)).collect()
            };
            let (operands, results) = (intern(&node.operands), intern(&node.results));
            let is_it = |one: &Candidate| one.operands == operands && one.results == results;
            labels.push(all.iter().position(is_it)?);
        }
        (labels.len() == self.candidates.len()).then_some(labels)
    }

    /// Returns the bytes that are kept for boxing a demanded tensor at this price, each with one of its [`Demand::spans`].
    pub(crate) fn kept_bytes(
        &self,
        demand: &Demand,
        source: SbpId,
        target: SbpId,
        price: Price,
    ) -> [(Span, u64); 3] {
        let [begun, whole, made, from, later] = demand.spans();
        let copy = if demand.counts { price.copy } else { 0 };
        if demand.scattered.is_none() {
            return [(begun, price.scratch), (whole, copy), (whole, 0)];
        }
        let bytes = self.layouts.bytes(demand.from, source);
        if source == target || copy >= bytes {
            return [(begun, price.scratch), (whole, copy), (later, bytes)];
        }
        [(made, price.scratch), (from, copy), (later, 0)]
    }

    /// Returns the price of boxing an update's result back to its variable.
    pub(crate) fn back_price(&self, back: &WriteBack, source: SbpId, target: SbpId) -> Price {
        let price = self.layouts.price((back.from, source), (back.to, target));
        self.discount_latency(back.fusion, price, (back.from, source))
    }

    fn discount_latency(
        &self,
        with: Option<Fusion>,
        price: Price,
        from: (ClassId, SbpId),
    ) -> Price {
        let Some(fusion) = with.filter(|_| price.latency > 0.0) else { return price };
        let bytes = self.layouts.bytes(from.0, from.1);
        Price { seconds: fusion.discount_latency(price.seconds, price.latency, bytes), ..price }
    }

    /// Returns the signature of each node under an assignment of candidates.
    pub fn chosen_candidates(&self, assignment: &[usize]) -> Vec<&Candidate> {
        self.candidates.iter().zip(assignment).map(|(all, &chosen)| &all[chosen]).collect()
    }
}

/// Returns a bound of the problem that is found at once: the least seconds of computing of all nodes.
pub(crate) fn compute_bound(problem: &Problem<'_>) -> f64 {
    let least = |all: &CandidateList| {
        all.iter().map(|candidate| candidate.seconds).fold(f64::INFINITY, f64::min)
    };
    problem.candidates.iter().map(least).sum()
}
