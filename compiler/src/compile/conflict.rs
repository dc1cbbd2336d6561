//! Explains why there is no plan, by a smallest set of the user's wishes that cannot be fulfilled together.
//!
//! The wishes are the pins (of options and of the graph), the strategy and the limit of memory. To test a set, the
//! planner leaves the rest free and looks for any plan (`planner::check_feasible`). Without a limit of memory, signatures
//! for every node suffice; with one it searches up to the first plan that fits.
//!
//! Halves are left out in turn (Junker, "QuickXplain", AAAI 2004), so that no wish of the set found can be left out.
//! Then all smaller sets are tried, unless they are many. If the wishes conflict without the limit, their candidates
//! alone tell them apart. Otherwise the limit is in every set.
//!
//! Nothing here plans: start reading with [`explain_conflict`].

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::graph::Graph;
use graphc_ir::ids::ValueId;
use graphc_plan::{Cluster, CompileOptions, Recompute, Strategy};

use super::choice::{Choice, CompileRequest};
use super::limits;
use super::once::Draft;
use super::stages::{apply_choice, choose_stages};
use crate::error::{Asked, CompileError, Conflict};
use crate::passes::recompute::Extent;
use crate::pipeline::{decide_recomputed, decide_regathered, prepare_graph};
use crate::planner::{PlannerError, UNLIMITED, check_feasible};

/// Adds the wishes that conflict to the error of a compilation, if they are more than one. Otherwise the error is that of the one wish that cannot be
/// fulfilled, whatever else is asked for.
pub(super) fn explain_conflict(
    graph: &Graph,
    options: &CompileOptions,
    cluster: &Cluster,
    error: CompileError,
) -> CompileError {
    let may_conflict = match &error {
        CompileError::Plan(_) | CompileError::NoPipeline { .. } => true,
        other => other.is_memory(),
    };
    let asked = collect_wishes(graph, options, cluster);
    if !may_conflict || asked.len() < 2 {
        return error;
    }
    Inquiry { graph, options, cluster, asked, known: BTreeMap::new() }.explain_error(error)
}

/// Lists all wishes of the user, the limit of memory last.
fn collect_wishes(graph: &Graph, options: &CompileOptions, cluster: &Cluster) -> Vec<Asked> {
    let pinned = graph.values.iter().enumerate();
    let pinned = pinned.filter_map(|(at, value)| Some((ValueId::new(at), value.pin.clone()?)));
    let of_graph = pinned.map(|(value, sbp)| {
        let tensor = graph.display_name(value);
        Asked::GraphPin { value, tensor, sbp }
    });
    let strategy = Some(options.strategy).filter(|&strategy| strategy != Strategy::Auto);
    let memory = Asked::Memory {
        limit: options.memory.unwrap_or(cluster.device.memory),
        device: options.memory.is_none(),
        enough: None,
        least: None,
    };
    let pins = options.pins.iter().cloned().map(Asked::Pin);
    pins.chain(of_graph).chain(strategy.map(Asked::Strategy)).chain([memory]).collect()
}

/// A set of members of `Inquiry::asked`, in order.
type Set = BTreeSet<usize>;

struct Inquiry<'a> {
    graph: &'a Graph,
    options: &'a CompileOptions,
    cluster: &'a Cluster,
    asked: Vec<Asked>,
    /// The sets that were tried, with the error of those that cannot be fulfilled.
    known: BTreeMap<Set, Result<(), CompileError>>,
}

impl Inquiry<'_> {
    fn explain_error(mut self, error: CompileError) -> CompileError {
        let memory = self.asked.len() - 1;
        let others: Vec<usize> = (0..memory).collect();
        let without_limit: Set = others.iter().copied().collect();
        let base = match self.has_conflict(&without_limit) {
            true => Set::new(),
            false => Set::from([memory]),
        };
        let all: Set = without_limit.union(&base).copied().collect();
        // What fits by the planner's count may still not fit as lowered: then there is nothing to be found here.
        if !self.has_conflict(&all) {
            return error;
        }
        let (found, smallest) = self.find_smallest(&base, &others);
        let Some(Err(cause)) = self.known.remove(&found) else { return error };
        if found.len() < 2 {
            return cause;
        }
        if found.contains(&memory) {
            self.tell_memory(&error, &cause);
        }
        let members = found.iter().map(|&at| self.asked[at].clone()).collect();
        CompileError::Conflict { conflict: Conflict { members, smallest }, cause: Box::new(cause) }
    }

    /// Returns `base` with members of `others` of which none can be left out, and whether no fewer of them conflict with `base`.
    fn find_smallest(&mut self, base: &Set, others: &[usize]) -> (Set, bool) {
        if self.has_conflict(base) {
            return (base.clone(), true);
        }
        let found = self.quick_xplain(base, false, others);
        let with = |some: &Set| base.union(some).copied().collect::<Set>();
        // Where memory need not be short for a conflict it may be short all the same.
        let all: Vec<usize> = (0..self.asked.len()).filter(|at| !base.contains(at)).collect();
        let smaller = (1..found.len()).flat_map(|size| subsets_of_size(&all, size));
        let smaller: Vec<Set> =
            smaller.take(limits::CONFLICT_SETS + 1).map(|some| with(&some)).collect();
        if smaller.len() > limits::CONFLICT_SETS {
            return (with(&found), false);
        }
        let first = smaller.into_iter().find(|set| self.has_conflict(set));
        (first.unwrap_or_else(|| with(&found)), true)
    }

    /// Finds members of `others` that conflict with `base` and of which none can be left out. `grown` tells whether `base` has just got more members.
    fn quick_xplain(&mut self, base: &Set, grown: bool, others: &[usize]) -> Set {
        if grown && self.has_conflict(base) {
            return Set::new();
        }
        if others.len() <= 1 {
            return others.iter().copied().collect();
        }
        let (first, second) = others.split_at(others.len() / 2);
        let with_first: Set = base.iter().chain(first).copied().collect();
        let of_second = self.quick_xplain(&with_first, true, second);
        let with_found: Set = base.union(&of_second).copied().collect();
        let of_first = self.quick_xplain(&with_found, !of_second.is_empty(), first);
        of_first.union(&of_second).copied().collect()
    }

    /// Whether there is no plan for these wishes alone.
    fn has_conflict(&mut self, kept: &Set) -> bool {
        if let Some(known) = self.known.get(kept) {
            return known.is_err();
        }
        let (graph, options) = self.keep_only(kept);
        let found = has_plan(&graph, &options, self.cluster);
        let conflicts = found.is_err();
        self.known.insert(kept.clone(), found);
        conflicts
    }

    /// Returns the graph and the options with these wishes alone.
    fn keep_only(&self, kept: &Set) -> (Graph, CompileOptions) {
        let mut graph = self.graph.clone();
        graph.values.iter_mut().for_each(|value| value.pin = None);
        let mut options = CompileOptions {
            pins: Vec::new(),
            strategy: Strategy::Auto,
            memory: Some(UNLIMITED),
            ..self.options.clone()
        };
        for &at in kept {
            match &self.asked[at] {
                Asked::Pin(pin) => options.pins.push(pin.clone()),
                Asked::GraphPin { value, sbp, .. } => {
                    graph.values[value.index()].pin = Some(sbp.clone());
                }
                Asked::Strategy(strategy) => options.strategy = *strategy,
                Asked::Memory { limit, .. } => options.memory = Some(*limit),
            }
        }
        (graph, options)
    }

    /// Adds the memory that would suffice for all wishes, and the least memory for the set alone, to the wish for memory.
    fn tell_memory(&mut self, error: &CompileError, cause: &CompileError) {
        let proven = match cause {
            CompileError::Plan(PlannerError::Memory { least, .. }) => *least,
            _ => None,
        };
        let Some(Asked::Memory { limit, .. }) = self.asked.last() else { return };
        let low = proven.unwrap_or(*limit);
        let known = error.memory_needed().and_then(|needed| self.find_enough_memory(low, needed));
        if let Some(Asked::Memory { enough, least, .. }) = self.asked.last_mut() {
            (*enough, *least) = (known, proven);
        }
    }

    /// Finds an amount of memory with which there is a plan for all wishes. By the planner's count `high` bytes suffice, and less than `low` is too
    /// little.
    fn find_enough_memory(&self, low: u64, high: u64) -> Option<u64> {
        let with = |memory: u64| Choice::of_memory(memory).resolve(self.options);
        let fits = |memory: u64| has_plan(self.graph, &with(memory), self.cluster).is_ok();
        if !fits(high) {
            // Tensors of the plan that needs so much share memory, which the planner does not count.
            let (graph, options, cluster) = (self.graph, &with(high), self.cluster);
            let request = CompileRequest { graph, options, cluster, weights: None };
            return request.find_best_plan(&mut |_| ()).is_ok().then_some(high);
        }
        let (mut low, mut high) = (low, high);
        // A fixed strategy needs what it needs.
        let halvings =
            if self.options.strategy.is_planned() { limits::CONFLICT_HALVINGS } else { 0 };
        for _ in 0..halvings {
            let middle = low.midpoint(high);
            *(if fits(middle) { &mut high } else { &mut low }) = middle;
        }
        // Buffers are aligned, and leave gaps between them.
        for _ in 0..limits::CONFLICT_PLANS {
            match try_compile(self.graph, &with(high), self.cluster) {
                Ok(()) => return Some(high),
                Err(error) => high = error.memory_needed().filter(|&needed| needed > high)?,
            }
        }
        None
    }
}

/// Lists all subsets of a size, in order.
fn subsets_of_size(of: &[usize], size: usize) -> Box<dyn Iterator<Item = Set> + '_> {
    let Some(rest) = size.checked_sub(1) else { return Box::new([Set::new()].into_iter()) };
    let begun = move |(at, &first): (usize, &usize)| {
        subsets_of_size(&of[at + 1..], rest)
            .map(move |set| set.into_iter().chain([first]).collect::<Set>())
    };
    Box::new(of.iter().enumerate().flat_map(begun))
}

/// Checks that there is a plan, by the planner's count of memory.
fn has_plan(
    graph: &Graph,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<(), CompileError> {
    if !options.auto_stages && !options.auto_microbatches {
        return staged_has_plan(graph.clone(), options, cluster);
    }
    let mut choices = choose_stages(graph, options, cluster)?;
    let mut failed = choices.none.take();
    for choice in choices.choices_to_plan(options) {
        let (staged, resolved) = apply_choice(graph, options, choice)?;
        match staged_has_plan(staged, &resolved, cluster) {
            Err(error) if error.is_memory() => failed = failed.or(Some(error)),
            other => return other,
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Checks that there is a plan if stages and microbatches are decided. If memory decides what is recomputed, everything is.
pub(super) fn staged_has_plan(
    graph: Graph,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<(), CompileError> {
    let mut decisions = prepare_graph(graph, options)?;
    if options.recompute == Recompute::Auto {
        decisions = decide_recomputed(&decisions, options, Extent::Full)?;
    }
    let decisions = decide_regathered(&decisions, options)?.unwrap_or(decisions);
    Ok(check_feasible(&decisions, options, cluster)?)
}

/// Checks that there is a whole plan. Its error is not explained.
fn try_compile(
    graph: &Graph,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<(), CompileError> {
    let request = CompileRequest { graph, options, cluster, weights: None };
    request.find_plan_within_memory(&mut |_| ()).and_then(Draft::check_plan).map(drop)
}
