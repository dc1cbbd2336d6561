//! On processors, puts each update right behind what gives its gradient, where a step takes no more memory for it.
//!
//! Gradients of all variables then do not live at one time. A gradient that is a matrix product need not come to memory at all:
//! the update takes it from the cache, part by part (`kernels/src/updated.rs`). A product whose neighbour reads the variable,
//! which the update must wait for, goes behind that neighbour.
//!
//! This is the case on one rank and where axes split models, with one microbatch. Gradients that are summed over ranks, or
//! clipped by their common norm, wait for the others. The planner counts all gradients at the end of the backward pass there too.
//! So a plan takes less memory than the planner says, never more.
//!
//! Cards keep updates together, where all of them are one launch.

use graphc_ir::op::Op;
use graphc_plan::Action;

use super::before_updates::stage_peaks;
use crate::decisions::Phase;
use crate::lower::LowerError;
use crate::lower::tasks::task_graph::{Task, TaskGraph, TaskId};

/// The most tasks by which a product is put off. Its factors live on for so long.
const PUT_OFF: usize = 4;

/// The key by which tasks are sorted: the place behind which it goes, the place of the gradient if several pairs go there, and whether it is the
/// update, which comes behind its gradient.
type Key = (usize, usize, bool);

/// Moves updates ahead, if no stage takes more memory then. Tasks are sorted.
///
/// # Errors
/// Returns an error if tasks wait for each other in a circle.
pub(in crate::lower) fn move_up(graph: &mut TaskGraph) -> Result<(), LowerError> {
    let all = graph.list_edges();
    let (mut before, mut after) = (vec![Vec::new(); graph.tasks.len()], vec![0; graph.tasks.len()]);
    for edge in &all {
        before[edge.to].push(edge.from);
        after[edge.from] += 1;
    }
    let mut keys: Vec<Key> = (0..graph.tasks.len()).map(|place| (place, 0, false)).collect();
    for update in 0..graph.tasks.len() {
        let Some(gradient) = find_gradient(graph, update) else { continue };
        let others = before[update].iter().copied().filter(|&other| other != gradient);
        let behind = others.max().unwrap_or(0).max(gradient);
        if is_product(&graph.tasks[gradient])
            && after[gradient] == 1
            && behind - gradient <= PUT_OFF
        {
            keys[gradient] = (behind, gradient, false);
        }
        keys[update] = (behind, gradient, true);
    }
    let order = graph.topological_order(&all, |task| keys[task])?;
    let (tasks, before) = (graph.tasks.clone(), stage_peaks(graph));
    graph.put_in_order(&order);
    if stage_peaks(graph).iter().zip(&before).any(|(peak, before)| peak > before) {
        graph.replace_tasks(tasks);
    }
    Ok(())
}

/// Returns the task that makes the gradient of an update, if it computes in the same segment, at the same rate and on the same ranks.
fn find_gradient(graph: &TaskGraph, update: usize) -> Option<usize> {
    let task = &graph.tasks[update];
    let Action::Compute { op, .. } = &task.action else { return None };
    if task.phase != Phase::Update || task.updates.is_empty() || op.operation().updates().is_empty()
    {
        return None;
    }
    let first = graph.buffers[task.inputs.first()?.0].producer?;
    let TaskId(gradient) = first;
    let given = &graph.tasks[gradient];
    let is_near =
        (given.segment, given.rate, &given.ranks) == (task.segment, task.rate, &task.ranks);
    (is_near && matches!(given.action, Action::Compute { .. } | Action::Fused(_)))
        .then_some(gradient)
}

fn is_product(task: &Task) -> bool {
    matches!(&task.action, Action::Compute { op: Op::MatMul(_), .. })
}

#[cfg(test)]
mod tests {
    use graphc_ir::ops::{MatMul, SgdUpdate};
    use graphc_plan::OperandSource;

    use super::*;
    use crate::lower::tasks::task_graph::BufferId;

    /// A task that multiplies, or of the update phase one that updates.
    fn task(
        graph: &mut TaskGraph,
        name: &str,
        reads: &[BufferId],
        gives: &[BufferId],
        at: (Phase, usize),
    ) {
        let updates = at.0 == Phase::Update;
        let op = match updates {
            true => Op::SgdUpdate(SgdUpdate::default()),
            false => Op::MatMul(MatMul { transpose_a: true, transpose_b: false }),
        };
        let operands = vec![OperandSource::Input(0); reads.len()];
        let [outputs, updated] = if updates { [&[][..], gives] } else { [gives, &[]] };
        graph.add_task(Task {
            name: name.into(),
            inputs: reads.to_vec(),
            outputs: outputs.to_vec(),
            updates: updated.to_vec(),
            phase: at.0,
            anchor: at.1,
            ..Task::on_one_rank(Action::Compute { op, operands })
        });
    }

    /// The order of the backward pass of two layers; one factor of the first product has so many elements, and nothing
    /// else reads it.
    fn moved(of_factor: usize) -> Vec<String> {
        let mut graph = TaskGraph::new(1);
        let weights = [1, 2].map(|_| graph.numbers(64, true));
        let gradients = [1, 2].map(|_| graph.numbers(64, false));
        let extents = [16, 200, of_factor, 16, 16];
        let [top, middle, first, second, below] = extents.map(|n| graph.numbers(n, false));
        task(&mut graph, "start", &[], &[top, first, second], (Phase::Forward, 0));
        task(&mut graph, "product 1", &[top, first], &[gradients[0]], (Phase::Backward, 1));
        task(&mut graph, "below 1", &[top, weights[0]], &[middle], (Phase::Backward, 2));
        task(&mut graph, "product 2", &[middle, second], &[gradients[1]], (Phase::Backward, 3));
        task(&mut graph, "below 2", &[middle, weights[1]], &[below], (Phase::Backward, 4));
        for (index, name) in ["update 1", "update 2"].iter().enumerate() {
            task(&mut graph, name, &[gradients[index]], &[weights[index]], (Phase::Update, index));
        }
        graph.sort_tasks().expect("no circle");
        move_up(&mut graph).expect("no circle");
        graph.tasks.into_iter().map(|task| task.name).collect()
    }

    #[test]
    fn updates_stand_behind_their_gradients_and_what_reads_their_variables() {
        let order =
            ["start", "below 1", "product 1", "update 1", "below 2", "product 2", "update 2"];
        assert_eq!(moved(16), order);
    }

    #[test]
    fn updates_stay_where_a_step_would_take_more_memory() {
        // Put off, the first product keeps its factor while what comes below it is made.
        let order =
            ["start", "product 1", "below 1", "product 2", "below 2", "update 1", "update 2"];
        assert_eq!(moved(200), order);
    }

    #[test]
    fn updates_that_need_something_else_stay() {
        let mut graph = TaskGraph::new(1);
        let [gradient, factor] = [64, 1].map(|n| graph.numbers(n, false));
        let weight = graph.numbers(64, true);
        task(&mut graph, "product", &[], &[gradient], (Phase::Forward, 0));
        for index in 1..6 {
            let given = graph.numbers(1, false);
            task(&mut graph, "other", &[], &[given], (Phase::Backward, index));
        }
        task(&mut graph, "factor", &[], &[factor], (Phase::Backward, 6));
        task(&mut graph, "update", &[gradient, factor], &[weight], (Phase::Update, 0));
        graph.sort_tasks().expect("no circle");
        move_up(&mut graph).expect("no circle");
        let names: Vec<&str> = graph.tasks.iter().map(|task| task.name.as_str()).collect();
        assert_eq!(names[0], "product");
        assert_eq!(names[6..], ["factor", "update"]);
    }
}
