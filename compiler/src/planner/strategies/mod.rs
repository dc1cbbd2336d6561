//! Fixed plans to compare with: data parallelism and the stages of ZeRO (Rajbhandari et al., arXiv 1910.02054).
//!
//! A strategy is a filter of candidates. Inputs are split along the batch over all mesh axes, and the rest follows,
//! node by node. Each node takes the signature whose operands stay where they are, or are summed over the ranks, and
//! which communicates least. Strategies differ in how variables are kept and updated:
//!
//! | strategy | parameters | states | gradients |
//! |---|---|---|---|
//! | data | whole | whole | all-reduced once a step |
//! | zero1 | whole | S(0) | summed whole over microbatches, reduce-scattered once a step |
//! | zero2 | whole | S(0) | S(0): those of each microbatch are reduce-scattered |
//! | zero3 | S(0), gathered for the forward and again for the backward pass | S(0) | S(0) |
//!
//! In mixed precision a variable is cast as it lies, so it is gathered in half precision. Gradients are reduced as the
//! frameworks' own strategies do it. zero2 and zero3 reduce-scatter them in half precision (FSDP's `MixedPrecision`
//! with `param_dtype` alone). The others cast them to f32 first (DDP under autocast). Sums over
//! microbatches are f32.
//!
//! An update works where its states lie, if a pin says where: ranks of some axes alone may share them, and the others
//! keep the same.
//!
//! An axis that splits sequences (context parallelism) is no fixed plan: [`super::asked`] lays out inputs, parameters and states alone, and the
//! planner the rest.
//!
//! With a strategy for each axis, each of these holds along its axis: `data,zero3` keeps a copy of the shards for each place of
//! the outer axis, and gradients are summed over it in shards.
//!
//! [`megatron`] also splits the model over one axis. What is computed again in the backward pass lies as it did in
//! the forward pass.

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Movement, Op};
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_plan::{AxisStrategy, Strategy, TensorKind};

use super::asked::wished_sbp;
use super::error::PlannerError;
use super::problem::Problem;
use super::problem::candidates::Candidate;
use super::problem::layouts::SbpId;
use crate::decisions::Phase;
use crate::passes::float8::{find_rounding, quantized_source};

mod experts;
mod gradients;
mod megatron;
mod sequences;
mod shards;

use experts::PinnedExperts;
use gradients::GradientLayouts;
use sequences::SequenceAxes;

/// Returns the strategy's signature for each node, as an index into its candidates.
///
/// # Errors
/// Returns an error if the model does not fit the strategy.
pub(super) fn assign_strategy(
    problem: &Problem<'_>,
    strategy: Strategy,
) -> Result<Vec<usize>, PlannerError> {
    if strategy.splits_model() {
        let sequences = strategy.over_axes(1) == [AxisStrategy::MegatronSp];
        let mut chosen = megatron::assign_megatron(problem, sequences)?;
        shards::shard_over_data(problem, strategy, &mut chosen);
        return Ok(chosen);
    }
    let decisions = problem.decisions;
    let graph = decisions.graph();
    let gradients = GradientLayouts::of_problem(problem);
    let pinned = PinnedWays {
        experts: PinnedExperts::of_problem(problem),
        sequences: SequenceAxes::of_problem(problem),
    };
    let rounded = rounded_weights(graph);
    let mut assignment: Vec<usize> = Vec::new();
    for (id, node) in graph.iter() {
        if let Some(original) = decisions.recomputed[id.index()] {
            assignment.push(choose_as_original(
                problem,
                id,
                original,
                assignment[original.index()],
            ));
            continue;
        }
        let axes = strategy.over_axes(decisions.staging.placement[id.index()].hierarchy.len());
        let training = &decisions.training;
        let counts = matches!(node.op, Op::NonFinite(_) | Op::SquareSum(_));
        let wished = match training.phases[id.index()] {
            // What is counted in an activation is counted where that lies.
            Phase::Forward | Phase::Backward if counts => None,
            _ => wished_layout(problem, &axes, node, training.kinds[node.results[0].index()]),
        };
        let home = match wished {
            Some(_) => pinned_state(problem, node),
            None => None,
        };
        let chosen = match (home.or(wished), of_variable(graph, node).or(rounded[id.index()])) {
            (Some(layout), _) => choose_by_layout(problem, id, layout),
            (None, Some(variable)) => {
                let at_rest =
                    problem.candidates_of(variable)[assignment[variable.index()]].results[0];
                match node.op {
                    Op::Reduce(_) => choose_by_operand(problem, id, at_rest),
                    _ => choose_by_layout(problem, id, at_rest),
                }
            }
            (None, None) => match gradients.wished_layout(problem, &axes, node, &assignment) {
                Some(layout) => choose_by_layout(problem, id, layout),
                None => follow_operands(problem, id, node, &assignment, &pinned),
            },
        };
        assignment.push(chosen);
    }
    Ok(assignment)
}

/// The wishes of pins for more than the tensors that they name.
struct PinnedWays {
    experts: PinnedExperts,
    sequences: SequenceAxes,
}

/// Returns the layout in which an update works if the user pins one of its states: that of the state.
fn pinned_state(problem: &Problem<'_>, node: &Node) -> Option<SbpId> {
    if node.op.operation().updates().is_empty() {
        return None;
    }
    let decisions = problem.decisions;
    let is_state = |value: &&ValueId| decisions.training.kinds[value.index()] == TensorKind::State;
    let state = decisions.graph().value(*node.operands.iter().find(is_state)?);
    // Unless it is pinned, a state may lie as any tensor, so there are several ways on several ranks.
    match &problem.candidates_of(state.producer)[..] {
        [only] => only.results.get(state.index).copied(),
        _ => None,
    }
}

/// Returns the node of the variable that determines a node's layout: one that it casts or gathers again, or a state that it blends with something
/// new.
fn of_variable(graph: &Graph, node: &Node) -> Option<NodeId> {
    match node.op {
        Op::Blend(_) => Some(graph.value(node.operands[0]).producer),
        _ => at_rest(graph, node),
    }
}

/// Returns the node of the variable that a node gives in its layout at rest, cast or not, if it does so.
fn at_rest(graph: &Graph, node: &Node) -> Option<NodeId> {
    let producer = graph.value(*node.operands.first()?).producer;
    match (&node.op, &graph.node(producer).op) {
        (Op::Binary(_), Op::Variable(_)) if quantized_source(node).is_some() => Some(producer),
        (Op::Binary(_), Op::Cast(_)) if quantized_source(node).is_some() => {
            at_rest(graph, graph.node(producer))
        }
        (Op::Cast(_) | Op::Regather(_), Op::Variable(_)) => Some(producer),
        (Op::Regather(_), _) => at_rest(graph, graph.node(producer)),
        _ => None,
    }
}

/// Returns, for each node that reads a weight only to round it to 8 bits, the node of the variable: such nodes work on the weight as it lies, and what is
/// gathered are the 8 bits.
fn rounded_weights(graph: &Graph) -> Vec<Option<NodeId>> {
    let mut all = vec![None; graph.nodes.len()];
    for (id, node) in graph.iter() {
        let Some(rounding) = find_rounding(graph, id) else { continue };
        let variable = at_rest(graph, node);
        rounding.into_iter().for_each(|id| all[id.index()] = variable);
    }
    all
}

/// Chooses the candidate of a node that computes another again: that of the other. If it is pinned by itself and has not got that one, it is the
/// one whose result lies most like the other's.
fn choose_as_original(
    problem: &Problem<'_>,
    node: NodeId,
    original: NodeId,
    chosen: usize,
) -> usize {
    let wanted = &problem.candidates_of(original)[chosen];
    let is_wanted = |own: &Candidate| own.choices == wanted.choices;
    let own = problem.candidates_of(node);
    if own.get(chosen).is_some_and(is_wanted) {
        return chosen;
    }
    let same = own.iter().position(is_wanted);
    same.unwrap_or_else(|| choose_by_layout(problem, node, wanted.results[0]))
}

/// Chooses a candidate that takes the first operand in a layout; the first if there is none.
fn choose_by_operand(problem: &Problem<'_>, node: NodeId, wished: SbpId) -> usize {
    let takes = |candidate: &Candidate| candidate.operands.first() == Some(&wished);
    problem.candidates_of(node).iter().position(takes).unwrap_or(0)
}

/// Returns the layout that strategies of axes give to the first result of a node, or `None` if it follows from the operands.
fn wished_layout(
    problem: &Problem<'_>,
    axes: &[AxisStrategy],
    node: &Node,
    kind: TensorKind,
) -> Option<SbpId> {
    let sbps = axes.iter().map(|&axis| wished_sbp(axis, node, kind));
    Some(problem.layouts.intern_sbp(&NdSbp(sbps.collect::<Option<_>>()?)))
}

/// Chooses the candidate whose first result has this layout on the most axes, and among those the one with most axes whole.
fn choose_by_layout(problem: &Problem<'_>, node: NodeId, wished: SbpId) -> usize {
    let wished = problem.layouts.sbp(wished);
    let score = |candidate: &Candidate| {
        let sbp = problem.layouts.sbp(candidate.results[0]);
        let equal = sbp.0.iter().zip(&wished.0).filter(|(a, b)| a == b).count();
        (equal, sbp.0.iter().filter(|&&sbp| sbp == Sbp::Broadcast).count())
    };
    let candidates = problem.candidates_of(node);
    (0..candidates.len())
        .max_by_key(|&label| (score(&candidates[label]), std::cmp::Reverse(label)))
        .unwrap_or(0)
}

/// Chooses the candidate for which the fewest operands move otherwise than by an all-reduce; of those the one whose operands take the least
/// communication, then the least local boxing, then the least computing. So a tensor that is split along the batch stays so, and statistics of a
/// batch are summed by all ranks: to gather the former or to scatter the latter may cost less here, but not for the readers of the result. A
/// parameter, cast or not, counts as whole: if it is kept in shards, it is gathered.
fn follow_operands(
    problem: &Problem<'_>,
    id: NodeId,
    node: &Node,
    assignment: &[usize],
    pinned: &PinnedWays,
) -> usize {
    if node.operands.is_empty() || moves_one_number(problem.decisions.graph(), node) {
        let axes = problem.decisions.staging.placement[id.index()].hierarchy.len();
        let whole = problem.layouts.intern_sbp(&NdSbp::broadcast(axes));
        return choose_by_layout(problem, id, whole);
    }
    let price = |label: usize| {
        let candidate = problem.candidates_of(id)[label].clone();
        let (mut others, mut moved, mut local) = (0.0, 0.0, 0.0);
        for (position, &target) in candidate.operands.iter().enumerate() {
            let (seconds, movement) =
                price_operand(problem, id, node, position, target, assignment);
            *if movement == BoxingEffect::Local { &mut local } else { &mut moved } += seconds;
            others += f64::from(u8::from(movement == BoxingEffect::Changed));
        }
        if pinned.experts.exchanges_tokens(id) {
            let (_, choices) = find_source(problem, node, 1, assignment);
            let left = pinned.experts.seconds_left(problem, id, &candidate, Some(choices));
            return [0.0, moved + local + left + candidate.seconds, 0.0, 0.0];
        }
        [others, moved, local, candidate.seconds]
    };
    choose_cheapest(worth_pricing(problem, id, node, assignment, pinned), price)
}

/// Whether a node moves a tensor of one element, as scales of 8 bits are. It takes that whole, as other readers do: each shape of it would else be
/// reduced by itself.
fn moves_one_number(graph: &Graph, node: &Node) -> bool {
    let moves = node.op.operation().movement() == Some(Movement::Rearranged);
    moves && graph.value(node.results[0]).ty.elements() == 1
}

/// Returns the first of the candidates with the least price: the least first number, of those the least second one, and so on; 0 where there are
/// no candidates.
fn choose_cheapest<const N: usize>(
    labels: Vec<usize>,
    price: impl FnMut(usize) -> [f64; N],
) -> usize {
    let prices: Vec<[f64; N]> = labels.iter().copied().map(price).collect();
    let cheapest = prices.iter().zip(labels).min_by(|(a, _), (b, _)| {
        let pairs = a.iter().zip(*b).map(|(a, b)| a.total_cmp(b));
        pairs.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
    });
    cheapest.map_or(0, |(_, label)| label)
}

/// Returns the candidates for which `is_wanted` holds, or all where it holds for none.
fn prefer(labels: Vec<usize>, is_wanted: impl FnMut(&usize) -> bool) -> Vec<usize> {
    let wanted: Vec<usize> = labels.iter().copied().filter(is_wanted).collect();
    if wanted.is_empty() { labels } else { wanted }
}

/// Returns the candidates that take all operands without communication, or all candidates if there are none. So no routes on large meshes are
/// searched for candidates that are not taken.
fn worth_pricing(
    problem: &Problem<'_>,
    id: NodeId,
    node: &Node,
    assignment: &[usize],
    pinned: &PinnedWays,
) -> Vec<usize> {
    let all =
        pinned.experts.keep_apart(problem, id, (0..problem.candidates_of(id).len()).collect());
    let sources: Vec<_> = (0..node.operands.len())
        .map(|position| find_source(problem, node, position, assignment))
        .collect();
    let made: Vec<SbpId> = sources.iter().map(|&(_, made)| made).collect();
    let all = pinned.sequences.add_up(problem, id, &made, all);
    if pinned.experts.exchanges_tokens(id) {
        return all;
    }
    prefer(all, |&label| {
        let operands = &problem.candidates_of(id)[label].operands;
        let mut pairs = sources.iter().zip(operands);
        pairs.all(|(&(producer, source), &to)| is_local(problem, (producer, id), source, to))
    })
}

/// Returns the node that makes an operand, and the layout in which it counts as made.
fn find_source(
    problem: &Problem<'_>,
    node: &Node,
    position: usize,
    assignment: &[usize],
) -> (NodeId, SbpId) {
    let decisions = problem.decisions;
    let value = decisions.graph().value(node.operands[position]);
    let producer = value.producer;
    let made = decisions.graph().node(producer);
    if matches!(made.op, Op::Variable(_)) || at_rest(decisions.graph(), made).is_some() {
        let axes = decisions.staging.placement[producer.index()].hierarchy.len();
        return (producer, problem.layouts.intern_sbp(&NdSbp::broadcast(axes)));
    }
    (producer, problem.candidates_of(producer)[assignment[producer.index()]].results[value.index])
}

/// The effect of boxing on an operand.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BoxingEffect {
    /// Ranks do not communicate.
    Local,
    /// It goes to other ranks in its layout, or is a sum that is all-reduced.
    Kept,
    /// It is gathered, scattered or split in another way.
    Changed,
}

/// Whether boxing from one node to another takes no communication.
fn is_local(problem: &Problem<'_>, nodes: (NodeId, NodeId), source: SbpId, target: SbpId) -> bool {
    boxing_effect(problem, nodes, source, target) == BoxingEffect::Local
}

/// Returns the effect of boxing from one node to another.
fn boxing_effect(
    problem: &Problem<'_>,
    nodes: (NodeId, NodeId),
    source: SbpId,
    target: SbpId,
) -> BoxingEffect {
    let placement = &problem.decisions.staging.placement;
    let (source, target) = (problem.layouts.sbp(source), problem.layouts.sbp(target));
    let of_axis = |(source, target): (&Sbp, &Sbp)| match (source, target) {
        (Sbp::Broadcast, _) => BoxingEffect::Local,
        _ if source == target => BoxingEffect::Local,
        (Sbp::Partial(_), Sbp::Broadcast) => BoxingEffect::Kept,
        _ => BoxingEffect::Changed,
    };
    let stays = placement[nodes.0.index()] == placement[nodes.1.index()];
    let begin = if stays { BoxingEffect::Local } else { BoxingEffect::Kept };
    source.0.iter().zip(&target.0).map(of_axis).fold(begin, BoxingEffect::max)
}

/// Returns the seconds of a step for boxing an operand to `target`, and the effect of that.
fn price_operand(
    problem: &Problem<'_>,
    id: NodeId,
    node: &Node,
    position: usize,
    target: SbpId,
    assignment: &[usize],
) -> (f64, BoxingEffect) {
    let value = node.operands[position];
    let (producer, source) = find_source(problem, node, position, assignment);
    let layouts = &problem.layouts;
    let [from, to] = [producer, id].map(|node| layouts.class(value, layouts.placement_of(node)));
    let seconds = layouts.price((from, source), (to, target)).seconds;
    let all = seconds * problem.decisions.times_boxed(value) as f64;
    (all, boxing_effect(problem, (producer, id), source, target))
}
