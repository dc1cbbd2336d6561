//! Moves casts of variables in front of all that computes, and casts that give gradients to updates in front of all updates, as mixed precision has
//! them. On a card, those that stand together are one launch.
//!
//! What they give then lives longer, so that it is done only where a step takes no more memory for it: with all of them, or
//! with those of biases and the like alone.

use std::collections::BTreeSet;

use graphc_ir::op::Op;
use graphc_plan::{Action, Rate};

use super::before_updates::put_in_front;
use crate::decisions::Phase;
use crate::lower::LowerError;
use crate::lower::tasks::task_graph::{BufferId, Task, TaskGraph, TaskId};

/// The most bytes of a small cast's result. To move them takes less time than a launch.
const SMALL: u64 = 64 << 10;

/// Puts casts of variables in front of the forward pass, and those of gradients in front of the update phase. Tasks are sorted.
///
/// # Errors
/// Returns an error if tasks wait for each other in a circle.
pub(in crate::lower) fn put_together(graph: &mut TaskGraph) -> Result<(), LowerError> {
    for (phase, moves) in
        [(Phase::Forward, is_of_variable as Moves), (Phase::Update, is_for_update)]
    {
        let all = find_casts(graph, moves);
        let small: Vec<usize> = (all.iter().copied())
            .filter(|&task| graph.bytes(graph.tasks[task].outputs[0]) <= SMALL)
            .collect();
        let fewer = small.len() < all.len();
        let place = |_: &Task| (phase, 0);
        if !put_in_front(graph, &all, place)? && fewer {
            put_in_front(graph, &small, place)?;
        }
    }
    Ok(())
}

/// A predicate that selects the casts to be put together.
type Moves = fn(&BufferUses<'_>, &Task) -> bool;

/// The uses of buffers by tasks.
struct BufferUses<'a> {
    graph: &'a TaskGraph,
    readers: Vec<Vec<TaskId>>,
    /// Variables that are brought back to their layout beside kernels. The first kernels of the next step do not wait for all of them.
    home: BTreeSet<BufferId>,
}

/// Returns the casts of a kind that act once a step on the stream of kernels.
fn find_casts(graph: &TaskGraph, moves: Moves) -> Vec<usize> {
    let beside = graph.tasks.iter().filter(|task| task.background.is_some());
    let home = beside.flat_map(|task| task.updates.iter().copied()).collect();
    let uses = BufferUses { graph, readers: graph.readers(), home };
    let is_cast = |task: &Task| {
        matches!(&task.action, Action::Compute { op: Op::Cast(_), .. })
            && task.rate == Rate::Step
            && task.background.is_none()
    };
    let moved = |task: &Task| is_cast(task) && moves(&uses, task);
    (0..graph.tasks.len()).filter(|&task| moved(&graph.tasks[task])).collect()
}

/// Whether it casts a variable for the forward pass.
fn is_of_variable(uses: &BufferUses<'_>, task: &Task) -> bool {
    let is_there = |input: &BufferId| {
        uses.graph.buffers[input.0].variable.is_some() && !uses.home.contains(input)
    };
    task.phase == Phase::Forward && task.inputs.iter().all(is_there)
}

/// Whether only updates read its result.
fn is_for_update(uses: &BufferUses<'_>, task: &Task) -> bool {
    let updates = |&TaskId(reader): &TaskId| !uses.graph.tasks[reader].updates.is_empty();
    let mut readers = task.outputs.iter().flat_map(|output| &uses.readers[output.0]).peekable();
    task.phase == Phase::Backward && readers.peek().is_some() && readers.all(updates)
}

#[cfg(test)]
mod tests {
    use graphc_ir::ops::{Cast, MatMul, SgdUpdate};
    use graphc_ir::types::DType;
    use graphc_plan::OperandSource;

    use super::*;

    fn task(
        graph: &mut TaskGraph,
        op: Op,
        reads: &[BufferId],
        gives: BufferId,
        at: (Phase, usize),
    ) {
        let operands = vec![OperandSource::Input(0); reads.len()];
        let updates = at.0 == Phase::Update;
        let (outputs, updates) =
            if updates { (vec![], vec![gives]) } else { (vec![gives], vec![]) };
        graph.add_task(Task {
            inputs: reads.to_vec(),
            outputs,
            updates,
            phase: at.0,
            anchor: at.1,
            ..Task::on_one_rank(Action::Compute { op, operands })
        });
    }

    /// The ops of a training of two layers in order, by their initials. A weight's copy has so many elements, and the first
    /// layer's is read in the forward pass alone.
    fn order(copy: usize) -> String {
        let mut graph = TaskGraph::new(1);
        let cast = || Op::Cast(Cast { dtype: DType::BF16 });
        let product = || Op::MatMul(MatMul { transpose_a: false, transpose_b: false });
        let weights = [1, 2].map(|_| graph.numbers(64, true));
        let copies = [1, 2].map(|_| graph.numbers(copy, false));
        let values = [1, 2].map(|_| graph.numbers(64, false));
        for layer in [0, 1] {
            let at = (Phase::Forward, 10 * layer + 1);
            task(&mut graph, cast(), &[weights[layer]], copies[layer], at);
            let mut reads = vec![copies[layer]];
            reads.extend((layer > 0).then(|| values[0]));
            task(&mut graph, product(), &reads, values[layer], (Phase::Forward, 10 * layer + 2));
        }
        for layer in [1, 0] {
            let [product_of, gradient] = [(); 2].map(|()| graph.numbers(64, false));
            let at = 100 - 10 * layer;
            task(&mut graph, product(), &[values[layer]], product_of, (Phase::Backward, at));
            task(&mut graph, cast(), &[product_of], gradient, (Phase::Backward, at + 1));
            let update = Op::SgdUpdate(SgdUpdate::default());
            task(&mut graph, update, &[gradient], weights[layer], (Phase::Update, layer));
        }
        graph.sort_tasks().expect("no circle");
        put_together(&mut graph).expect("no circle");
        let initial = |task: &Task| match &task.action {
            Action::Compute { op, .. } => op.name().chars().next().expect("a name"),
            _ => '?',
        };
        graph.tasks.iter().map(initial).collect()
    }

    #[test]
    fn casts_stand_together_where_the_step_has_the_memory_for_them() {
        assert_eq!(order(1), "ccmmmmccss");
        // Both copies at one time are more than what lives at the end of the backward pass.
        assert_eq!(order(1000), "cmcmmmccss");
    }
}
