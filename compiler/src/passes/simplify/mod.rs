//! Simplifies the graph by equality saturation (egg; Willsey et al., arXiv 2004.03082), and removes common
//! subexpressions and dead code.
//!
//! Ops without side effects and with one result are cut into regions of one part, placement and phase, and of bounded
//! size. Each region becomes an e-graph (`egraph`). The `rules` saturate it within limits of work. Then the cheapest
//! term of every value that others read is extracted (`extract`). A value with a name or a pin is a boundary: it is
//! computed by itself, and its readers do not look behind it.
//!
//! Rules compute payloads, such as a permutation made of two others. Patterns cannot do that, so the rules are a
//! table of functions on the graph. Limits are numbers of rounds and of terms, not time, so the same model always
//! gives the same plan.
//!
//! Of egg this uses the union-find, congruence, and the data of classes, which are their types. Egg's own extraction
//! counts a shared term more than once, so extraction is done here. Egg's explanations are not kept with a plan: a
//! plan and its graph are compared by compiling again. A test evaluates both sides of every rule on random tensors.

use std::collections::{BTreeMap, HashMap};

use egg::Id;
use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Op, OpError};

use super::rebuild::{Rebuild, live_nodes};
use crate::decisions::{Phase, TrainingGraph};
use crate::passes::error::PassError;

mod egraph;
mod extract;
mod movement;
mod rules;

use egraph::{EgraphRegion, Symbol};

/// The most nodes of one region. Extraction looks at every pair of an alternative and a node.
const REGION_NODES: usize = 192;

/// Simplifies the graph: the same outputs are computed by fewer and cheaper ops.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(crate) fn simplify_graph(training: TrainingGraph) -> Result<TrainingGraph, PassError> {
    rewrite_graph(&training).map_err(|error| PassError::Op { pass: "simplify", error })
}

fn rewrite_graph(training: &TrainingGraph) -> Result<TrainingGraph, OpError> {
    let plan = SimplifyPlan::new(training);
    let regions = plan.saturate_regions();
    let mut emitter = Emitter {
        plan: &plan,
        regions: &regions,
        rebuild: Rebuild::new(training),
        classes: HashMap::new(),
        known: HashMap::new(),
    };
    for (id, _) in training.graph.iter().filter(|(id, _)| plan.live[id.index()]) {
        emitter.visit_node(id)?;
    }
    Ok(emitter.rebuild.finish())
}

/// The division of a graph into regions, and the values that cross their boundaries.
struct SimplifyPlan<'a> {
    training: &'a TrainingGraph,
    live: Vec<bool>,
    /// For each node, a number of its phase, part and placement.
    place: Vec<usize>,
    /// The region of each node; `None` for those that are copied as they are.
    region: Vec<Option<usize>>,
    members: Vec<Vec<NodeId>>,
    /// Whether each value has a name or a pin.
    kept: Vec<bool>,
    /// Whether each value is read across a boundary, or observed.
    demanded: Vec<bool>,
}

/// A saturated region, with the classes of its nodes' values.
struct Saturated {
    region: EgraphRegion,
    class: BTreeMap<ValueId, Id>,
    /// The term that is extracted of each class.
    choice: HashMap<Id, egraph::ClassTerm>,
    /// The first node of the graph that each class stands for.
    origin: HashMap<Id, NodeId>,
}

impl<'a> SimplifyPlan<'a> {
    fn new(training: &'a TrainingGraph) -> Self {
        let graph = &training.graph;
        let kept = |value: &graphc_ir::graph::Value| value.name.is_some() || value.pin.is_some();
        let mut plan = Self {
            training,
            live: live_nodes(training),
            place: number_places(training),
            region: vec![None; graph.nodes.len()],
            members: Vec::new(),
            kept: graph.values.iter().map(kept).collect(),
            demanded: vec![false; graph.values.len()],
        };
        plan.assign_regions();
        plan.mark_demanded();
        plan
    }

    /// Puts nodes into the open region of their part, placement and phase.
    fn assign_regions(&mut self) {
        let graph = &self.training.graph;
        let mut open = BTreeMap::new();
        for (id, _) in graph.iter().filter(|(id, _)| self.live[id.index()]) {
            if !is_rewritable(graph, id) {
                continue;
            }
            let place = self.place[id.index()];
            let region = *open.entry(place).or_insert(self.members.len());
            let full = self.members.get(region).is_some_and(|nodes| nodes.len() >= REGION_NODES);
            let region = if full { self.members.len() } else { region };
            open.insert(place, region);
            self.members.resize(self.members.len().max(region + 1), Vec::new());
            self.members[region].push(id);
            self.region[id.index()] = Some(region);
        }
    }

    fn mark_demanded(&mut self) {
        let graph = &self.training.graph;
        let observed = graph.outputs.iter().map(|output| output.value);
        let gradients = self.training.gradients.iter().map(|&(_, gradient)| gradient);
        for value in observed.chain(gradients).chain(self.training.loss) {
            self.demanded[value.index()] = true;
        }
        for (id, node) in graph.iter().filter(|(id, _)| self.live[id.index()]) {
            for &operand in &node.operands {
                let producer = graph.value(operand).producer;
                if self.region[producer.index()] != self.region[id.index()] {
                    self.demanded[operand.index()] = true;
                }
            }
            for result in &node.results {
                self.demanded[result.index()] |= self.kept[result.index()];
            }
        }
    }

    fn saturate_regions(&self) -> Vec<Saturated> {
        (0..self.members.len()).map(|region| self.saturate_region(region)).collect()
    }

    fn saturate_region(&self, index: usize) -> Saturated {
        let graph = &self.training.graph;
        let mut region = EgraphRegion::new();
        let mut class: BTreeMap<ValueId, Id> = BTreeMap::new();
        for &id in &self.members[index] {
            let node = graph.node(id);
            let children = node.operands.iter().map(|operand| match class.get(operand) {
                Some(&class) if !self.kept[operand.index()] => class,
                _ => region.add_leaf(*operand, &graph.value(*operand).ty),
            });
            let children: Vec<Id> = children.collect();
            let ty = &graph.value(node.results[0]).ty;
            class.insert(node.results[0], region.add_op(&node.op, children, ty));
        }
        region.saturate(rules::RULES);
        let mut origin = HashMap::new();
        for (value, class) in &mut class {
            *class = region.find_class(*class);
            origin.entry(*class).or_insert(graph.value(*value).producer);
        }
        let roots: Vec<Id> = class
            .iter()
            .filter(|(value, _)| self.demanded[value.index()])
            .map(|(_, &class)| class)
            .collect();
        let choice = extract::extract_terms(&region, &roots);
        Saturated { region, class, choice, origin }
    }
}

fn number_places(training: &TrainingGraph) -> Vec<usize> {
    let mut numbers = BTreeMap::new();
    let number = |(node, phase): (&Node, &Phase)| {
        let next = numbers.len();
        *numbers.entry((*phase, node.part, node.placement.clone())).or_insert(next)
    };
    training.graph.nodes.iter().zip(&training.phases).map(number).collect()
}

/// Whether a node is a term of rules: one result, which depends on nothing but operands and payload.
fn is_rewritable(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    node.results.len() == 1 && node.op.operation().is_function()
}

/// A key that two nodes share if they compute the same at the same place.
type Key = (Op, Vec<ValueId>, usize);

struct Emitter<'a> {
    plan: &'a SimplifyPlan<'a>,
    regions: &'a [Saturated],
    rebuild: Rebuild<'a>,
    /// The new value of each class of each region.
    classes: HashMap<(usize, Id), ValueId>,
    /// Results of nodes that are there.
    known: HashMap<Key, Vec<ValueId>>,
}

impl Emitter<'_> {
    fn visit_node(&mut self, id: NodeId) -> Result<(), OpError> {
        let node = self.plan.training.graph.node(id);
        let Some(region) = self.plan.region[id.index()] else {
            let operands = node.operands.iter().map(|&v| self.rebuild.new_of(v)).collect();
            let alone =
                !node.op.operation().is_function() || node.results.iter().any(|&v| self.is_kept(v));
            let results = self.push_or_find(&node.op, operands, id, alone)?;
            for (&old, &new) in node.results.iter().zip(&results) {
                self.rebuild.replace_value(old, new);
            }
            return Ok(());
        };
        let result = node.results[0];
        if !self.plan.demanded[result.index()] {
            return Ok(());
        }
        let class = self.regions[region].class[&result];
        let new = match self.is_kept(result) {
            true => self.kept_value(region, class, id)?,
            false => self.class_value(region, class, id)?,
        };
        self.rebuild.replace_value(result, new);
        Ok(())
    }

    fn is_kept(&self, value: ValueId) -> bool {
        self.plan.kept[value.index()]
    }

    /// A value of its own for a name or a pin.
    fn kept_value(&mut self, region: usize, class: Id, id: NodeId) -> Result<ValueId, OpError> {
        let saturated = &self.regions[region];
        let chosen = &saturated.choice[&class];
        if self.classes.contains_key(&(region, class)) || saturated.region.op(chosen).is_none() {
            // Its class has a value already, perhaps one from outside: the node is kept as the user wrote it.
            let node = self.plan.training.graph.node(id);
            let mut operands = Vec::new();
            for operand in &node.operands {
                operands.push(match saturated.class.get(operand) {
                    Some(&class) if !self.is_kept(*operand) => {
                        self.class_value(region, class, id)?
                    }
                    _ => self.rebuild.new_of(*operand),
                });
            }
            return Ok(self.push_or_find(&node.op, operands, id, true)?[0]);
        }
        self.emit_term(region, class, id, true)
    }

    /// Returns the value of a class.
    fn class_value(&mut self, region: usize, class: Id, id: NodeId) -> Result<ValueId, OpError> {
        match self.classes.get(&(region, class)) {
            Some(&value) => Ok(value),
            None => self.emit_term(region, class, id, false),
        }
    }

    /// Appends the term that is extracted of a class.
    fn emit_term(
        &mut self,
        region: usize,
        class: Id,
        id: NodeId,
        alone: bool,
    ) -> Result<ValueId, OpError> {
        let saturated = &self.regions[region];
        let chosen = &saturated.choice[&class];
        let value = match saturated.region.op(chosen) {
            None => match chosen.symbol {
                Symbol::Leaf(leaf) => self.rebuild.new_of(saturated.region.leaf_value(leaf)),
                Symbol::Op(_) => unreachable!("an op has a payload"),
            },
            Some(op) => {
                let mut operands = Vec::new();
                for &child in &chosen.children {
                    operands.push(self.class_value(
                        region,
                        saturated.region.find_class(child),
                        id,
                    )?);
                }
                let like = saturated.origin.get(&class).copied().unwrap_or(id);
                self.push_or_find(op, operands, like, alone)?[0]
            }
        };
        self.classes.insert((region, class), value);
        Ok(value)
    }

    /// Appends a node, or finds one that computes the same at the same place; `alone` makes a new one in any case.
    fn push_or_find(
        &mut self,
        op: &Op,
        operands: Vec<ValueId>,
        like: NodeId,
        alone: bool,
    ) -> Result<Vec<ValueId>, OpError> {
        let place = self.plan.place[like.index()];
        let key = op.operation().is_function().then(|| (op.clone(), operands.clone(), place));
        if let Some(results) = key.as_ref().filter(|_| !alone).and_then(|key| self.known.get(key)) {
            return Ok(results.clone());
        }
        let results = self.rebuild.push(op.clone(), operands, like)?;
        if let Some(key) = key {
            self.known.entry(key).or_insert_with(|| results.clone());
        }
        Ok(results)
    }
}
