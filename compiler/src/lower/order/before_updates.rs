//! Moves what updates wait for in front of all updates. This is boxing, that is reductions of gradients, and slices of variables of which each rank
//! updates its own part. For LAMB it is also the directions of steps and the sums of squares by which each finds its rate.
//!
//! If each stood right before its update, a card would launch updates one by one; behind all of it they are one launch
//! for all variables. What they wait for then lives at one time, so that it is done only where a step takes no more
//! memory for it: all, or boxing alone.

use graphc_ir::op::Op;
use graphc_plan::{Action, Rate};

use super::background::is_boxing;
use crate::decisions::Phase;
use crate::lower::LowerError;
use crate::lower::tasks::task_graph::{Task, TaskGraph, TaskId};

/// Moves the tasks that updates wait for, and that wait for no update, in front of the update phase. Tasks are sorted.
///
/// # Errors
/// Returns an error if tasks wait for each other in a circle.
pub(in crate::lower) fn move_ahead(graph: &mut TaskGraph) -> Result<(), LowerError> {
    let all = of_updates(graph, |task| is_boxing(task) || is_direction(task) || is_sum(task));
    let boxing = of_updates(graph, is_boxing);
    let several = all.len() > boxing.len();
    if !(several && in_front(graph, &all)?) {
        in_front(graph, &boxing)?;
    }
    Ok(())
}

/// Moves these tasks in front of the update phase if that takes no more memory, and returns whether it has.
fn in_front(graph: &mut TaskGraph, moved: &[usize]) -> Result<bool, LowerError> {
    // Sums behind all directions, so that these stand together.
    put_in_front(graph, moved, |task| (task.phase, usize::from(is_sum(task))))
}

/// Moves these tasks to the places that `place` gives, if they are several and no stage takes more memory then. Returns whether it has.
///
/// # Errors
/// Returns an error if tasks wait for each other in a circle.
pub(in crate::lower) fn put_in_front(
    graph: &mut TaskGraph,
    moved: &[usize],
    place: impl Fn(&Task) -> (Phase, usize),
) -> Result<bool, LowerError> {
    if moved.len() < 2 {
        return Ok(false);
    }
    let (tasks, before) = (graph.tasks.clone(), stage_peaks(graph));
    for &task in moved {
        (graph.tasks[task].phase, graph.tasks[task].anchor) = place(&graph.tasks[task]);
    }
    graph.sort_tasks()?;
    let more = stage_peaks(graph).iter().zip(&before).any(|(peak, before)| peak > before);
    if more {
        graph.replace_tasks(tasks);
    }
    Ok(!more)
}

fn is_direction(task: &Task) -> bool {
    matches!(&task.action, Action::Compute { op: Op::LambDirection(_), .. })
}

fn is_sum(task: &Task) -> bool {
    matches!(&task.action, Action::Compute { op: Op::SquareSum(_), .. })
}

/// Returns the tasks of the update phase that are of a kind and wait for none of another kind there.
fn of_updates(graph: &TaskGraph, moves: impl Fn(&Task) -> bool) -> Vec<usize> {
    let updates = |task: &Task| task.phase == Phase::Update && task.rate == Rate::Step;
    let mut waits = vec![false; graph.tasks.len()];
    let mut moved = Vec::new();
    for (index, task) in graph.tasks.iter().enumerate().filter(|(_, task)| updates(task)) {
        let mut producers = task.inputs.iter().filter_map(|input| graph.buffers[input.0].producer);
        waits[index] = !moves(task) || producers.any(|TaskId(before)| waits[before]);
        if !waits[index] && task.background.is_none() {
            moved.push(index);
        }
    }
    moved
}

/// Returns, for each stage, the most bytes that live at one time, in the order of the tasks and of one microbatch. Variables, which always live, do
/// not count.
pub(in crate::lower) fn stage_peaks(graph: &TaskGraph) -> Vec<u64> {
    let mut last: Vec<usize> = vec![0; graph.buffers.len()];
    for (place, task) in graph.tasks.iter().enumerate() {
        task.inputs.iter().for_each(|input| last[input.0] = place);
    }
    let stages = graph.tasks.iter().map(|task| task.stage + 1).max().unwrap_or(0);
    let (mut live, mut peaks) = (vec![0; stages], vec![0; stages]);
    let mut ending = vec![Vec::new(); graph.tasks.len()];
    for (place, task) in graph.tasks.iter().enumerate() {
        for &output in &task.outputs {
            let bytes = graph.bytes(output);
            live[task.stage] += bytes;
            ending[last[output.0].max(place)].push((task.stage, bytes));
        }
        peaks[task.stage] = peaks[task.stage].max(live[task.stage]);
        for (stage, bytes) in ending[place].drain(..) {
            live[stage] -= bytes;
        }
    }
    peaks
}

#[cfg(test)]
mod tests {
    use graphc_ir::ops::SgdUpdate;
    use graphc_plan::{BoxingKind, OperandSource};

    use super::*;
    use crate::lower::tasks::task_graph::BufferId;

    fn task(action: Action, inputs: &[BufferId], outputs: &[BufferId], at: (Phase, usize)) -> Task {
        Task {
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
            phase: at.0,
            anchor: at.1,
            ..Task::on_one_rank(action)
        }
    }

    /// A forward pass that takes so many elements, then three slices with an update of 16 elements behind each. Whether slices
    /// come first.
    fn slices_first(forward: usize) -> bool {
        let mut graph = TaskGraph::new(1);
        let activation = graph.numbers(forward, false);
        graph.add_task(task(Action::Assign, &[], &[activation], (Phase::Forward, 0)));
        let update = Op::SgdUpdate(SgdUpdate { lr: 0.1.into(), ..SgdUpdate::default() });
        for anchor in 1..4 {
            let weight = graph.numbers(16, true);
            let [part, updated] = [false, false].map(|_| graph.numbers(16, false));
            let at = (Phase::Update, anchor);
            graph.add_task(task(Action::Local { kind: BoxingKind::Slice }, &[weight], &[part], at));
            let update =
                Action::Compute { op: update.clone(), operands: vec![OperandSource::Input(0); 2] };
            graph.add_task(task(update, &[part], &[updated], at));
        }
        graph.sort_tasks().expect("no circle");
        move_ahead(&mut graph).expect("no circle");
        let local: Vec<_> =
            graph.tasks.iter().map(|task| matches!(task.action, Action::Local { .. })).collect();
        match local[..] {
            [false, true, true, true, false, false, false] => true,
            [false, true, false, true, false, true, false] => false,
            _ => panic!("no such order: {local:?}"),
        }
    }

    #[test]
    fn slices_come_first_where_the_step_has_the_memory_for_them() {
        assert!(slices_first(64));
        assert!(!slices_first(63));
    }
}
