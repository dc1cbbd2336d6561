//! Orders the second stream, beside which kernels run on the first: what is needed soonest goes first.
//!
//! Communication of the backward pass is of two kinds. A gather is needed when computing comes to its reader. What it
//! gives takes memory until then, so it may begin only a while before. A reduction of gradients is needed by updates
//! alone, and by whoever wants its operand's memory.
//!
//! If gathers stood right before their readers, reductions that come from kernels shortly before would go first, and
//! computing would wait for both. So both streams of a block are played through with the seconds that everything is
//! expected to take. The second one takes whatever is due soonest of what may begin (Jackson's rule: J. R. Jackson,
//! *Scheduling a production line to minimize maximum tardiness*, 1955). Gathers for the layer to come so go before
//! reductions of the layer just passed.
//!
//! Where memory is short by bytes, computing waits for reductions in this simulation too. They are then due when it would wait.
//!
//! All ranks of a group must communicate in one order, so the order is that of the graph's tasks, the same for all ranks.

use std::collections::BTreeMap;

use super::background::Gate;
use super::block_clock::{BlockActors, BlockClock};
use super::in_flight::Hold;
use super::schedule::{BlockKey, block_key};
use crate::lower::tasks::sort::Edge;
use crate::lower::tasks::task_graph::{Background, TaskGraph};
use crate::lower::{LowerError, RunAhead};

/// Sorts the tasks of the second stream so that those due soonest come first. Tasks are sorted, and no task of the first stream changes its place
/// among those of its block.
///
/// # Errors
/// Returns an error if tasks wait for each other in a circle.
pub(in crate::lower) fn reorder_second_stream(
    graph: &mut TaskGraph,
    ahead: RunAhead,
) -> Result<(), LowerError> {
    let mut blocks: BTreeMap<(usize, BlockKey), Vec<usize>> = BTreeMap::new();
    for (index, task) in graph.tasks.iter().enumerate() {
        blocks.entry((task.stage, block_key(task))).or_default().push(index);
    }
    let mut all = graph.list_edges();
    let mut before = vec![Vec::new(); graph.tasks.len()];
    all.iter().filter(|edge| edge.segments == 0).for_each(|edge| before[edge.to].push(edge.from));
    for tasks in blocks.values().filter(|tasks| both_kinds(graph, tasks)) {
        let of_block = tasks.iter().map(|&task| &graph.tasks[task]).collect();
        let block = BlockActors { tasks: of_block, graph, ahead };
        let place = |task: &usize| tasks.binary_search(task).ok();
        let before = tasks.iter().map(|&task| before[task].iter().filter_map(place).collect());
        let played = Play::new(&block, before.collect()).into_order();
        let chain = played.windows(2);
        all.extend(chain.map(|w| Edge { from: tasks[w[0]], to: tasks[w[1]], segments: 0 }));
    }
    let order = graph.topological_order(&all, |task| task)?;
    graph.put_in_order(&order);
    Ok(())
}

/// Whether gathers and reductions of gradients compete in a block.
fn both_kinds(graph: &TaskGraph, tasks: &[usize]) -> bool {
    [Background::Gather, Background::Gradient]
        .iter()
        .all(|&kind| tasks.iter().any(|&task| graph.tasks[task].background == Some(kind)))
}

/// Returns the gate of each gather, and of each cast before one. If several gathers read one cast, it gets the gate that opens first.
fn find_gates(
    block: &BlockActors<'_>,
    clock: &BlockClock,
    before: &[Vec<usize>],
) -> Vec<Option<Gate>> {
    let mut own = vec![None; before.len()];
    block.find_gates(clock).into_iter().for_each(|(gather, gate)| own[gather] = Some(gate));
    let mut all = own.clone();
    for place in (0..before.len()).rev() {
        let leads = |at: &&usize| block.tasks[**at].background == Some(Background::Gather);
        let Some(gate) = all[place] else { continue };
        for &at in before[place].iter().filter(leads).filter(|&&at| own[at].is_none()) {
            let sooner = all[at].is_none_or(|known: Gate| gate.opens < known.opens);
            all[at] = if sooner { Some(gate) } else { all[at] };
        }
    }
    all
}

/// Sets the time by which each reduction must have ended that computing waits for, and those of the second stream before it.
fn set_due_of_holds(
    block: &BlockActors<'_>,
    clock: &BlockClock,
    holds: &[Hold],
    before: &[Vec<usize>],
    due: &mut [f64],
) {
    for hold in holds {
        due[hold.scatter] = due[hold.scatter].min(clock.begins[hold.held]);
    }
    for place in (0..before.len()).rev() {
        let own = due[place];
        for &at in &before[place] {
            if block.tasks[at].background == Some(Background::Gradient) {
                due[at] = due[at].min(own);
            }
        }
    }
}

/// A simulation of a block. Everything is by place in the block.
struct Play<'a> {
    block: &'a BlockActors<'a>,
    /// The time by which each place of the second stream should have ended; infinity where nothing waits for it.
    due: Vec<f64>,
    /// The places that may begin behind each place.
    after: Vec<Vec<usize>>,
    /// For each place, the number of those before it for which it still waits.
    missing: Vec<usize>,
    /// For each place, the time at which all before it have ended.
    free: Vec<f64>,
}

impl<'a> Play<'a> {
    fn new(block: &'a BlockActors<'a>, mut before: Vec<Vec<usize>>) -> Self {
        let clock = BlockClock::new(block);
        let gates = find_gates(block, &clock, &before);
        let mut due = vec![f64::INFINITY; before.len()];
        for (place, gate) in gates.iter().enumerate() {
            let Some(gate) = gate else { continue };
            due[place] = clock.begins[gate.reader];
            before[place].extend(block.find_place_behind_gate(&clock, *gate, gate.reader));
        }
        if block.ahead == RunAhead::ByBytes {
            let holds = block.bytes_holds(&clock);
            set_due_of_holds(block, &clock, &holds, &before, &mut due);
            holds.iter().for_each(|hold| before[hold.held].push(hold.scatter));
        }
        let mut after = vec![Vec::new(); before.len()];
        for (place, before) in before.iter().enumerate() {
            before.iter().for_each(|&at| after[at].push(place));
        }
        let missing = before.iter().map(Vec::len).collect();
        Self { block, due, after, missing, free: vec![0.0; before.len()] }
    }

    /// Returns the places in the order in which they begin.
    fn into_order(mut self) -> Vec<usize> {
        let first = |&place: &usize| self.block.tasks[place].background.is_none();
        let (computing, mut rest): (Vec<usize>, Vec<usize>) =
            (0..self.missing.len()).partition(first);
        let mut computing = computing.into_iter().peekable();
        let (mut now, mut order) = ([0.0f64; 2], Vec::with_capacity(self.missing.len()));
        loop {
            let next = computing.peek().copied().filter(|&place| self.missing[place] == 0);
            let begins = next.map(|place| now[0].max(self.free[place]));
            let second = self.soonest_due(&rest, now[1]);
            let place = match (next, second) {
                (Some(place), None) => place,
                (Some(place), Some((begin, _))) if begins < Some(begin) => place,
                (_, Some((_, at))) => rest.remove(at),
                (None, None) => return order,
            };
            let task = self.block.tasks[place];
            let stream = usize::from(task.background.is_some());
            if stream == 0 {
                computing.next();
            }
            now[stream] = now[stream].max(self.free[place]) + task.seconds + task.expected;
            for &later in &self.after[place] {
                self.missing[later] -= 1;
                self.free[later] = self.free[later].max(now[stream]);
            }
            order.push(place);
        }
    }

    /// Returns the next place of the second stream, which is free at `now`: of those that may begin first, the one due soonest. It is given by the
    /// time at which it begins, and its index.
    fn soonest_due(&self, rest: &[usize], now: f64) -> Option<(f64, usize)> {
        let ready = || rest.iter().enumerate().filter(|&(_, &place)| self.missing[place] == 0);
        let first = ready().map(|(_, &place)| self.free[place]).reduce(f64::min)?.max(now);
        let able = ready().filter(|&(_, &place)| self.free[place] <= first);
        let (index, _) = able.min_by(|a, b| self.due[*a.1].total_cmp(&self.due[*b.1]))?;
        Some((first, index))
    }
}

#[cfg(test)]
mod tests {
    use graphc_ir::ids::LayoutId;
    use graphc_ir::ops::Init;
    use graphc_ir::sbp::{NdSbp, ReduceKind, Sbp};
    use graphc_ir::types::DType;
    use graphc_plan::{Action, BoxingKind, Layout, Rate, TensorKind};

    use super::*;
    use crate::decisions::Phase;
    use crate::lower::tasks::task_graph::{Buffer, BufferId, Task, VariableOf};

    /// A task, given by its name, its seconds, its kind on the second stream, and the buffers that it reads and fills.
    type Given<'a> = (&'a str, f64, Option<Background>, &'a [usize], &'a [usize]);

    /// A graph of tasks on one rank.
    fn graph(tasks: &[Given<'_>], variables: &[usize]) -> TaskGraph {
        let mut graph = TaskGraph::new(2);
        graph.layouts.push(Layout {
            shape: vec![4],
            dtype: DType::F32,
            microbatch_dim: None,
            ranks: vec![0],
            hierarchy: vec![1],
            sbp: NdSbp(vec![Sbp::Broadcast]),
        });
        let last =
            tasks.iter().flat_map(|(_, _, _, inputs, outputs)| inputs.iter().chain(*outputs));
        for id in 0..=last.copied().max().unwrap_or(0) {
            let variable = VariableOf {
                name: id.to_string(),
                init: Init::Weights,
                role: TensorKind::Parameter,
            };
            graph.add_buffer(Buffer {
                name: id.to_string(),
                layout: LayoutId(0),
                rate: Rate::Microbatch,
                variable: variables.contains(&id).then_some(variable),
                producer: None,
            });
        }
        let ids = |all: &[usize]| all.iter().map(|&id| BufferId(id)).collect();
        for (anchor, &(name, seconds, background, inputs, outputs)) in tasks.iter().enumerate() {
            let second = background.is_some();
            graph.add_task(Task {
                name: name.into(),
                action: Action::Accumulate,
                inputs: ids(inputs),
                outputs: ids(outputs),
                updates: Vec::new(),
                rate: Rate::Microbatch,
                phase: Phase::Backward,
                stage: 0,
                chunk: 0,
                ranks: vec![0],
                anchor,
                segment: 1,
                flops: 0.0,
                bytes: 0.0,
                seconds: if second { 0.0 } else { seconds },
                background,
                expected: if second { seconds } else { 0.0 },
                boxing: None,
            });
        }
        graph
    }

    fn reordered(graph: TaskGraph) -> Vec<String> {
        reordered_where(RunAhead::Far, graph)
    }

    fn reordered_where(ahead: RunAhead, mut graph: TaskGraph) -> Vec<String> {
        reorder_second_stream(&mut graph, ahead).expect("no circle");
        graph.tasks.into_iter().map(|task| task.name).collect()
    }

    const GATHER: Option<Background> = Some(Background::Gather);
    const GRADIENT: Option<Background> = Some(Background::Gradient);

    #[test]
    fn a_gather_goes_before_a_reduction_that_it_would_wait_for() {
        let tasks: [Given<'_>; 6] = [
            ("first", 1.0, None, &[], &[0]),
            ("second", 1.0, None, &[0], &[1]),
            ("reduce", 4.0, GRADIENT, &[1], &[2]),
            ("third", 1.0, None, &[0], &[3]),
            ("gather", 2.0, GATHER, &[4], &[5]),
            ("reader", 1.0, None, &[3, 5], &[6]),
        ];
        let expected = ["gather", "first", "second", "reduce", "third", "reader"];
        assert_eq!(reordered(graph(&tasks, &[4])), expected);
    }

    #[test]
    fn a_short_gather_does_not_wait_for_a_long_reduction() {
        let tasks: [Given<'_>; 6] = [
            ("first", 1.0, None, &[], &[0]),
            ("reduce", 4.0, GRADIENT, &[0], &[1]),
            ("second", 1.0, None, &[0], &[2]),
            ("third", 1.0, None, &[2], &[3]),
            ("gather", 0.5, GATHER, &[4], &[5]),
            ("reader", 1.0, None, &[3, 5], &[6]),
        ];
        // It is read at 3 s. The reduction could begin at 1 s, and would end at 5.
        let expected = ["gather", "first", "reduce", "second", "third", "reader"];
        assert_eq!(reordered(graph(&tasks, &[4])), expected);
    }

    #[test]
    fn a_gather_begins_no_sooner_than_it_must() {
        let tasks: [Given<'_>; 6] = [
            ("long", 9.0, None, &[], &[0]),
            ("reduce", 4.0, GRADIENT, &[0], &[1]),
            ("short", 1.0, None, &[0], &[2]),
            ("cast", 0.0, GATHER, &[3], &[4]),
            ("gather", 2.0, GATHER, &[4], &[5]),
            ("reader", 1.0, None, &[2, 5], &[6]),
        ];
        // It takes 2 s and is read at 10 s: it may begin behind what begins 4 s before, as may the cast before it.
        let expected = ["long", "cast", "gather", "short", "reduce", "reader"];
        assert_eq!(reordered(graph(&tasks, &[3])), expected);
    }

    #[test]
    fn where_memory_is_short_gathers_begin_when_they_must() {
        let tasks: [Given<'_>; 9] = [
            ("first", 4.0, None, &[], &[0]),
            ("reduce", 1.0, GRADIENT, &[0], &[1]),
            ("second", 4.0, None, &[0], &[2]),
            ("third", 4.0, None, &[2], &[3]),
            ("small", 1.0, GATHER, &[10], &[4]),
            ("reader", 4.0, None, &[3, 4], &[5]),
            ("fourth", 4.0, None, &[5], &[6]),
            ("large", 8.0, GATHER, &[11], &[7]),
            ("last", 1.0, None, &[6, 7], &[8]),
        ];
        let all = graph(&tasks, &[10, 11]);
        let expected =
            ["small", "first", "large", "second", "third", "reduce", "reader", "fourth", "last"];
        assert_eq!(reordered(all.clone()), expected);
        // The large one is read at 20 s and the small one at 12: they begin at 12 and 11 s, and 1 s sooner in case that
        // a reduction is under way. The second product has ended by then, the third has not.
        let expected =
            ["first", "reduce", "second", "small", "third", "large", "reader", "fourth", "last"];
        assert_eq!(reordered_where(RunAhead::ByTime, all), expected);
    }

    #[test]
    fn where_memory_is_shorter_reductions_do_not_wait_until_the_end() {
        // Gathers take longer than what reads them: by time all begin at once, and every reduction comes behind them.
        const LAYERS: usize = 6;
        let names: Vec<[String; 3]> = (0..LAYERS)
            .map(|layer| ["gather", "layer", "scatter"].map(|what| format!("{what} {layer}")))
            .collect();
        let weights: Vec<usize> = (0..LAYERS).collect();
        // Each layer reads the one before, and what is gathered of its weight.
        let [gathered, output, reduced] = [1, 2, 3].map(|which| which * LAYERS);
        let buffers: Vec<[Vec<usize>; 2]> = (0..LAYERS)
            .map(|layer| {
                let before = layer.checked_sub(1).map(|before| output + before);
                let read = before.into_iter().chain([gathered + layer]).collect();
                [read, vec![gathered + layer, output + layer, reduced + layer]]
            })
            .collect();
        let mut tasks: Vec<Given<'_>> = Vec::new();
        for (layer, ([gather, compute, scatter], [read, made])) in
            names.iter().zip(&buffers).enumerate()
        {
            tasks.push((gather, 4.0, GATHER, &weights[layer..=layer], &made[..1]));
            tasks.push((compute, 1.0, None, read, &made[1..2]));
            tasks.push((scatter, 1.0, GRADIENT, &made[1..2], &made[2..]));
        }
        let mut all = graph(&tasks, &weights);
        for task in all.tasks.iter_mut().filter(|task| task.background == GRADIENT) {
            let (kind, reduce) = (BoxingKind::ReduceScatter, Some(ReduceKind::Sum));
            task.action = Action::Collective { kind, reduce, axis: 0, sequence: 0 };
        }
        let is_before = |order: &[String], one: &str, other: &str| {
            let place = |name| order.iter().position(|task| task == name).expect("it is there");
            place(one) < place(other)
        };
        let by_time = reordered_where(RunAhead::ByTime, all.clone());
        assert!(is_before(&by_time, "gather 5", "scatter 0"), "{by_time:?}");
        let by_bytes = reordered_where(RunAhead::ByBytes, all);
        // Two are in flight: the third gather begins behind the first layer, the fourth layer behind the first reduction.
        for later in 2..LAYERS {
            let [gather, read] = [format!("gather {later}"), format!("layer {}", later - 2)];
            assert!(is_before(&by_bytes, &read, &gather), "{by_bytes:?}");
        }
        for later in 3..LAYERS {
            let [scatter, held] = [format!("scatter {}", later - 3), format!("layer {later}")];
            assert!(is_before(&by_bytes, &scatter, &held), "{by_bytes:?}");
        }
    }

    #[test]
    fn what_has_no_gathers_stays() {
        let tasks: [Given<'_>; 3] = [
            ("first", 1.0, None, &[], &[0]),
            ("second", 1.0, None, &[0], &[1]),
            ("reduce", 4.0, GRADIENT, &[0], &[2]),
        ];
        assert_eq!(reordered(graph(&tasks, &[])), ["first", "second", "reduce"]);
    }
}
