//! The planning problem as data: candidates of every node, the tensors that are boxed for their readers, the
//! variables that updates write back, and how long everything is kept.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use graphc_ir::graph::Node;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::Op;
use graphc_ir::plan::{Cluster, CompileOptions};
use graphc_ir::sbp::NdSbp;

use super::error::PlanError;
use super::meter::Meter;
use crate::boxing::{Fusion, Hidden, Window, fetched, is_fused, left};
use crate::decisions::{Decisions, Sharding, ValueRate};
use boxed::KnownBoxed;
use candidates::{Candidate, CandidateList, Candidates};
use layouts::{ClassId, Layouts, PlacementId, Price, SbpId};
use lifetimes::{Lifetimes, Span};
use tied::Tied;

pub(super) mod boxed;
pub mod candidates;
pub(super) mod layouts;
pub(super) mod lifetimes;
pub mod size;
mod tied;
pub(super) mod usage;

/// A tensor and its readers on one placement: boxed to each layout that some of them take, once.
#[derive(Clone, Debug)]
pub struct Demand {
    /// The tensor.
    pub value: ValueId,
    /// The node that makes it.
    pub producer: usize,
    /// Which of the node's results it is.
    pub index: usize,
    /// The tensor where it is made.
    pub from: ClassId,
    /// The tensor where it is read.
    pub to: ClassId,
    /// Where it is read.
    pub placement: PlacementId,
    /// The nodes that read it, each with the operands that it is.
    pub readers: Vec<(usize, Vec<usize>)>,
    /// Whether the user reads it too: as it is made, partial values whole.
    pub fetched: bool,
    /// How often it is boxed in a step.
    pub times: f64,
    /// With what it is boxed together, in the update phase.
    pub fusion: Option<Fusion>,
    /// What it hides under each time.
    pub hides: Window,
    /// While boxed copies are kept.
    pub span: Span,
    /// Of what is boxed at once if that makes it smaller: while it is made.
    pub scattered: Option<Span>,
    /// Whether copies take memory of their own (those for a `to_global` are its result).
    pub counts: bool,
}

impl Demand {
    /// While something may be kept for boxing it: when that begins, and while copies are kept; of what is boxed at once when it has been made,
    /// copies from then on, and what is left in place after that. Without `scattered` these three are as the second.
    pub fn spans(&self) -> [Span; 5] {
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

/// The layouts in which a reader takes a tensor: many candidates take the same.
#[derive(Clone, Debug)]
pub struct Taken {
    /// Different lists of layouts, each layout once.
    pub lists: Vec<Vec<SbpId>>,
    /// By candidate: its list.
    pub of_label: Vec<usize>,
}

impl Taken {
    /// By candidate: the operands at these places.
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

    /// The layouts that a candidate takes.
    pub fn of(&self, label: usize) -> &[SbpId] {
        &self.lists[self.of_label[label]]
    }
}

/// By candidates, whose address is that of their list, and places of operands what is taken.
type KnownLists = RefCell<HashMap<(*const Candidate, Vec<usize>), Rc<Taken>>>;

/// A result of an update that takes the place of a variable: it goes back to the variable's layout.
#[derive(Clone, Debug)]
pub struct WriteBack {
    /// The update.
    pub update: usize,
    /// Which of its results.
    pub result: usize,
    /// The result where it is made.
    pub from: ClassId,
    /// The variable's node.
    pub variable: usize,
    /// The result where the variable lives.
    pub to: ClassId,
    /// Where the update is computed.
    pub placement: PlacementId,
    /// With what it is boxed together, where it stays on its mesh.
    pub fusion: Option<Fusion>,
    /// When.
    pub span: Span,
    /// Whether others read the result, so that it takes memory of its own, which [`Problem::made`] counts.
    pub is_read: bool,
}

impl WriteBack {
    /// Bytes that are kept for it where the result is made as `source`.
    pub fn bytes(&self, layouts: &mut Layouts<'_>, source: SbpId, price: Price) -> u64 {
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
    pub producer: usize,
    /// Which of the node's results it is.
    pub index: usize,
    /// Type and place.
    pub class: ClassId,
    /// Where it is made.
    pub placement: PlacementId,
    /// While it is kept.
    pub span: Span,
    /// The result of another node that is kept anyway, by node and index, if there is one: what lies as that takes no memory.
    pub beside: Option<(usize, usize)>,
}

impl Made {
    /// Bytes where it is made as `sbp`, and what it may lie beside is made as `other`.
    pub fn bytes(&self, layouts: &mut Layouts<'_>, sbp: SbpId, other: Option<SbpId>) -> u64 {
        if other == Some(sbp) { 0 } else { layouts.bytes(self.class, sbp) }
    }
}

/// All that planning needs to know.
pub struct Problem<'a> {
    /// What passes decided.
    pub decisions: &'a Decisions,
    /// Interned layouts and their prices.
    pub layouts: Layouts<'a>,
    /// By node. Others are put in their place by [`Problem::replace_candidates`] alone, as what is known of them goes by their addresses.
    pub candidates: Vec<CandidateList>,
    taken: KnownLists,
    boxed: KnownBoxed,
    /// Tensors with readers.
    pub demands: Vec<Demand>,
    /// Variables that are written back.
    pub write_backs: Vec<WriteBack>,
    /// Tensors that take memory where they are made.
    pub made: Vec<Made>,
    /// When things are kept.
    pub lifetimes: Lifetimes,
    /// Bytes that a rank may use.
    pub limit: u64,
    /// What planning takes.
    pub meter: Meter,
    /// What was done where all axes by themselves would have been too many.
    pub tied: Option<Tied>,
    fusions: BTreeMap<PlacementId, Fusion>,
    hidden: Hidden,
}

impl<'a> Problem<'a> {
    /// The problem of these decisions.
    ///
    /// # Errors
    /// Where a pin cannot be fulfilled, or a node has no signature.
    pub fn new(
        decisions: &'a Decisions,
        options: &'a CompileOptions,
        cluster: &'a Cluster,
    ) -> Result<Self, PlanError> {
        tied::problem(decisions, options, cluster)
    }

    /// The problem in which nodes choose for the axes of `tied` as for the axis before, unless they are pinned.
    ///
    /// # Errors
    /// Where a pin cannot be fulfilled, or a node has no signature, or too many.
    pub fn with(
        decisions: &'a Decisions,
        options: &'a CompileOptions,
        cluster: &'a Cluster,
        tied: &[usize],
    ) -> Result<Self, PlanError> {
        let meter = Meter::default();
        let mut layouts = Layouts::new(cluster, decisions.rates.microbatches, meter.clone());
        let candidates = Candidates::new(decisions, options, cluster, tied).all(&mut layouts)?;
        let lifetimes = Lifetimes::new(decisions, options.schedule);
        // Shares of the limit are numbers, of none at all too.
        let limit = options.memory.unwrap_or(cluster.device.memory).max(1);
        let mut problem = Self {
            decisions,
            layouts,
            candidates,
            taken: KnownLists::default(),
            boxed: KnownBoxed::default(),
            demands: Vec::new(),
            write_backs: Vec::new(),
            made: Vec::new(),
            lifetimes,
            limit,
            meter,
            tied: None,
            fusions: BTreeMap::new(),
            hidden: Hidden::of(decisions, cluster),
        };
        problem.find_made();
        problem.find_demands();
        problem.find_write_backs();
        Ok(problem)
    }

    fn placement(&mut self, node: usize) -> PlacementId {
        self.layouts.placement(&self.decisions.staging.placement[node])
    }

    /// Results of updates lie in their variables' memory, unless others read them; where they do not, the write-back counts them.
    fn find_made(&mut self) {
        let decisions = self.decisions;
        let readers = decisions.graph().consumers();
        for (id, node) in decisions.graph().iter() {
            let in_place = node.op.operation().updates();
            for (index, &value) in node.results.iter().enumerate() {
                let is_update = in_place.iter().any(|&(result, _)| result == index);
                if is_update && readers[value.index()].is_empty() {
                    continue;
                }
                let placement = self.placement(id.index());
                let class = self.layouts.class(decisions, value, placement);
                let producer = id.index();
                let (span, beside) = match node.op {
                    Op::Regather(_) => self.regathered(producer, node),
                    _ => (self.lifetimes.made(decisions, value), None),
                };
                self.made.push(Made { value, producer, index, class, placement, span, beside });
            }
        }
    }

    fn regathered(&self, id: usize, node: &Node) -> (Span, Option<(usize, usize)>) {
        let (span, is_kept) = self.lifetimes.regathered(self.decisions, id);
        let operand = self.decisions.graph().value(node.operands[0]);
        (span, is_kept.then_some((operand.producer.index(), operand.index)))
    }

    fn find_demands(&mut self) {
        let decisions = self.decisions;
        let graph = decisions.graph();
        let mut readers: Vec<BTreeMap<PlacementId, BTreeMap<usize, Vec<usize>>>> =
            vec![BTreeMap::new(); graph.values.len()];
        for (id, node) in graph.iter() {
            let placement = self.placement(id.index());
            for (position, operand) in node.operands.iter().enumerate() {
                let of_value = readers[operand.index()].entry(placement).or_default();
                of_value.entry(id.index()).or_default().push(position);
            }
        }
        for output in &graph.outputs {
            let placement = self.placement(graph.value(output.value).producer.index());
            readers[output.value.index()].entry(placement).or_default();
        }
        for (index, placements) in readers.into_iter().enumerate() {
            for (placement, nodes) in placements {
                self.demand(ValueId::new(index), placement, nodes.into_iter().collect());
            }
        }
    }

    fn demand(
        &mut self,
        value: ValueId,
        placement: PlacementId,
        readers: Vec<(usize, Vec<usize>)>,
    ) {
        let decisions = self.decisions;
        let graph = decisions.graph();
        let producer: NodeId = graph.value(value).producer;
        let home = self.placement(producer.index());
        let is_output = graph.outputs.iter().any(|output| output.value == value);
        let per_step = decisions.rates.values[value.index()] == ValueRate::Step;
        let moved = |&(node, _): &(usize, Vec<usize>)| graph.nodes[node].op.operation().acts();
        let nodes: Vec<usize> = readers.iter().map(|reader| reader.0).collect();
        let fused = placement == home && is_fused(decisions, per_step, &nodes);
        let fusion = fused.then(|| self.fusion(placement));
        let stays = placement == home;
        let hides = match stays {
            true => self.hidden.under(decisions, value, &nodes),
            false => Window::default(),
        };
        self.demands.push(Demand {
            value,
            producer: producer.index(),
            index: graph.value(value).index,
            from: self.layouts.class(decisions, value, home),
            to: self.layouts.class(decisions, value, placement),
            placement,
            fetched: is_output && placement == home,
            fusion,
            hides,
            times: if per_step { 1.0 } else { decisions.rates.microbatches as f64 },
            span: self.lifetimes.copy(decisions, value, &nodes),
            scattered: self
                .lifetimes
                .is_scattered(decisions, value)
                .then(|| self.lifetimes.made(decisions, value)),
            counts: readers.is_empty() || readers.iter().any(moved),
            readers,
        });
    }

    fn find_write_backs(&mut self) {
        let decisions = self.decisions;
        let graph = decisions.graph();
        let readers = graph.consumers();
        for (id, node) in graph.iter() {
            for &(result, operand) in node.op.operation().updates() {
                let placement = self.placement(id.index());
                let variable = graph.value(node.operands[operand]).producer.index();
                let home = self.placement(variable);
                let value = node.results[result];
                let fusion = (placement == home).then(|| self.fusion(placement));
                self.write_backs.push(WriteBack {
                    update: id.index(),
                    result,
                    from: self.layouts.class(decisions, value, placement),
                    variable,
                    to: self.layouts.class(decisions, value, home),
                    placement,
                    fusion,
                    span: self.lifetimes.moment(id.index()),
                    is_read: !readers[value.index()].is_empty(),
                });
            }
        }
    }

    /// The layout in which a candidate of the producer makes a demanded tensor.
    pub fn source(&self, demand: &Demand, candidate: usize) -> SbpId {
        self.candidates[demand.producer][candidate].results[demand.index]
    }

    /// Puts other candidates in the place of those that there are, which it returns.
    pub fn replace_candidates(&mut self, others: Vec<CandidateList>) -> Vec<CandidateList> {
        // Their addresses may become those of others.
        self.taken.borrow_mut().clear();
        self.boxed = KnownBoxed::default();
        std::mem::replace(&mut self.candidates, others)
    }

    /// The layouts in which each candidate of a reader takes it. Of nodes that are alike this is found out once.
    pub fn taken(&self, reader: &(usize, Vec<usize>)) -> Rc<Taken> {
        let (all, places) = (&self.candidates[reader.0], &reader.1);
        let mut known = self.taken.borrow_mut();
        let found = known.entry((all.as_ptr(), places.clone()));
        found.or_insert_with(|| Rc::new(Taken::new(all, places))).clone()
    }

    /// The layouts in which a candidate of a reader takes it, each once.
    pub fn targets(&self, reader: &(usize, Vec<usize>), candidate: usize) -> Vec<SbpId> {
        let candidate = &self.candidates[reader.0][candidate];
        let mut targets: Vec<SbpId> =
            reader.1.iter().map(|&position| candidate.operands[position]).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// The layout in which the user takes what is made as `source`; `None` where it is taken as it is.
    pub fn fetch_target(&mut self, demand: &Demand, source: SbpId) -> Option<SbpId> {
        if !demand.fetched {
            return None;
        }
        let target = fetched(self.layouts.sbp(source));
        Some(self.layouts.intern(&target)).filter(|&target| target != source)
    }

    /// What boxing a demanded tensor costs, each time: what is left where it hides.
    pub fn price(&mut self, demand: &Demand, source: SbpId, target: SbpId) -> Price {
        let price = self.layouts.price((demand.from, source), (demand.to, target));
        let price = self.fused(demand.fusion, price, (demand.from, source));
        Price { seconds: left(price.seconds, demand.hides), ..price }
    }

    /// Seconds that boxing a value takes each time for these readers on its mesh: what is left where it hides.
    pub fn boxed_for(&mut self, value: ValueId, readers: &[usize], from: SbpId, to: SbpId) -> f64 {
        let producer = self.decisions.graph().value(value).producer.index();
        let home = self.placement(producer);
        let class = self.layouts.class(self.decisions, value, home);
        let price = self.layouts.price((class, from), (class, to));
        left(price.seconds, self.hidden.under(self.decisions, value, readers))
    }

    /// The candidate of each node that a sharding has; `None` where a node has none like it.
    pub fn labels(&mut self, sharding: &Sharding) -> Option<Vec<usize>> {
        let mut labels = Vec::new();
        for (all, node) in self.candidates.iter().zip(&sharding.nodes) {
            let mut intern = |sbps: &[NdSbp]| -> Vec<SbpId> {
                sbps.iter().map(|sbp| self.layouts.intern(sbp)).collect()
            };
            let (operands, results) = (intern(&node.operands), intern(&node.results));
            let is_it = |one: &Candidate| one.operands == operands && one.results == results;
            labels.push(all.iter().position(is_it)?);
        }
        (labels.len() == self.candidates.len()).then_some(labels)
    }

    /// What is kept, and how long, for boxing a demanded tensor at this price: for some of its [`Demand::spans`].
    pub fn kept(
        &mut self,
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

    /// What bringing an update's result back to its variable costs.
    pub fn back_price(&mut self, back: &WriteBack, source: SbpId, target: SbpId) -> Price {
        let price = self.layouts.price((back.from, source), (back.to, target));
        self.fused(back.fusion, price, (back.from, source))
    }

    fn fused(&mut self, with: Option<Fusion>, price: Price, from: (ClassId, SbpId)) -> Price {
        let Some(fusion) = with.filter(|_| price.latency > 0.0) else { return price };
        let bytes = self.layouts.bytes(from.0, from.1);
        Price { seconds: fusion.seconds(price.seconds, price.latency, bytes), ..price }
    }

    /// The updates on a mesh, counted once.
    fn fusion(&mut self, placement: PlacementId) -> Fusion {
        let (decisions, layouts) = (self.decisions, &self.layouts);
        let of = || Fusion::of(decisions, &layouts.placements()[placement.0 as usize]);
        *self.fusions.entry(placement).or_insert_with(of)
    }

    /// The signature of each node under an assignment of candidates.
    pub fn assigned(&self, assignment: &[usize]) -> Vec<&Candidate> {
        self.candidates.iter().zip(assignment).map(|(all, &chosen)| &all[chosen]).collect()
    }
}

/// A bound of the same, at once: what the nodes compute at least.
pub fn compute_bound(problem: &Problem<'_>) -> f64 {
    let least = |all: &CandidateList| {
        all.iter().map(|candidate| candidate.seconds).fold(f64::INFINITY, f64::min)
    };
    problem.candidates.iter().map(least).sum()
}
