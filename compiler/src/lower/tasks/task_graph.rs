//! The graph of tasks: what all ranks do, before it is split into programs. Tasks (one physical op each, on all ranks that take part) read and write buffers
//! (one tensor in one layout each).

use std::collections::BTreeMap;

use graphc_ir::ids::LayoutId;
use graphc_ir::ops::Init;
use graphc_ir::types::TensorType;
use graphc_plan::{Action, BoxingEntry, Channel, Layout, Rate, TensorKind};

use crate::boxing::shard_bytes;
use crate::decisions::Phase;

/// The index of a buffer of the graph of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::lower) struct BufferId(pub usize);

/// The index of a task of the graph of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::lower) struct TaskId(pub usize);

/// A tensor in one layout: a register on each of the layout's ranks.
#[derive(Clone, Debug)]
pub(in crate::lower) struct Buffer {
    /// The tensor's name.
    pub name: String,
    /// Index into [`TaskGraph::layouts`].
    pub layout: LayoutId,
    /// The rate at which it is filled.
    pub rate: Rate,
    /// The variable, if it is one.
    pub variable: Option<VariableOf>,
    /// The task that fills it. Updates of a variable do not count.
    pub producer: Option<TaskId>,
}

/// The facts about a variable that its register holds.
#[derive(Clone, Debug)]
pub(in crate::lower) struct VariableOf {
    /// The variable's name.
    pub name: String,
    /// The variable's first content.
    pub init: Init,
    /// The kind of tensor, a parameter or a state.
    pub role: TensorKind,
}

/// One physical op on all ranks that take part.
#[derive(Clone, Debug)]
pub(in crate::lower) struct Task {
    /// Op and tensor, for reports.
    pub name: String,
    /// Its action; sequence numbers are given last.
    pub action: Action,
    /// The buffers that it reads.
    pub inputs: Vec<BufferId>,
    /// The buffers that it fills.
    pub outputs: Vec<BufferId>,
    /// Variables that it overwrites.
    pub updates: Vec<BufferId>,
    /// The rate at which it acts.
    pub rate: Rate,
    /// The phase of the step to which it belongs.
    pub phase: Phase,
    /// The pipeline stage.
    pub stage: usize,
    /// The chunk of its stage.
    pub chunk: usize,
    /// The ranks that take part.
    pub ranks: Vec<u32>,
    /// The place that it wants in the order: that of the node that it serves, among all nodes.
    pub anchor: usize,
    /// The segment of the step: even ones run once a step, odd ones for every microbatch.
    pub segment: usize,
    /// The floating-point operations of a kernel on the busiest rank.
    pub flops: f64,
    /// Bytes that it moves through the memory of the busiest rank; 0 for communication.
    pub bytes: f64,
    /// Seconds on the busiest rank; 0 for communication.
    pub seconds: f64,
    /// Its kind on the second stream, beside kernels; `None` on the first. Without a second stream it marks the collectives that scatter early.
    pub background: Option<Background>,
    /// The seconds that a collective is expected to take.
    pub expected: f64,
    /// The index into [`TaskGraph::boxing`] of a step of boxing; for an exchange, its send has it.
    pub boxing: Option<usize>,
}

impl Task {
    /// Whether it stands in the backward half of its segment.
    pub(in crate::lower) fn is_backward(&self) -> bool {
        self.phase != Phase::Forward
    }

    /// Makes a task of one rank, with defaults for all but its action.
    #[cfg(test)]
    pub(in crate::lower) fn on_one_rank(action: Action) -> Self {
        Self {
            name: String::new(),
            action,
            inputs: Vec::new(),
            outputs: Vec::new(),
            updates: Vec::new(),
            rate: Rate::Step,
            phase: Phase::Forward,
            stage: 0,
            chunk: 0,
            ranks: vec![0],
            anchor: 0,
            segment: 0,
            flops: 0.0,
            bytes: 0.0,
            seconds: 0.0,
            background: None,
            expected: 0.0,
            boxing: None,
        }
    }
}

/// The kind of a task of the second stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::lower) enum Background {
    /// Boxing of a variable from its layout at rest.
    Gather,
    /// Boxing of tensors that accumulations and updates read, and tasks that go on with it.
    Gradient,
    /// Boxing of the results of updates.
    Home,
}

/// All that ranks do in a step.
#[derive(Clone, Debug, Default)]
pub(in crate::lower) struct TaskGraph {
    /// The layouts, each once.
    pub layouts: Vec<Layout>,
    /// The tensors.
    pub buffers: Vec<Buffer>,
    /// The tasks, in the order in which every rank acts, once [`TaskGraph::sort_tasks`] has run.
    pub tasks: Vec<Task>,
    /// The exchanges.
    pub channels: Vec<Channel>,
    /// The boxing that was inserted.
    pub boxing: Vec<BoxingEntry>,
    /// Number of microbatches.
    pub microbatches: usize,
    /// The index of each layout.
    known_layouts: BTreeMap<Layout, LayoutId>,
}

impl TaskGraph {
    /// Makes an empty graph.
    pub(in crate::lower) fn new(microbatches: usize) -> Self {
        Self { microbatches, ..Self::default() }
    }

    /// Returns the index of a layout, which is added if it is new.
    pub(in crate::lower) fn intern_layout(&mut self, layout: Layout) -> LayoutId {
        if let Some(&known) = self.known_layouts.get(&layout) {
            return known;
        }
        let index = LayoutId::new(self.layouts.len());
        self.layouts.push(layout.clone());
        self.known_layouts.insert(layout, index);
        index
    }

    /// Adds a buffer.
    pub(in crate::lower) fn add_buffer(&mut self, buffer: Buffer) -> BufferId {
        self.buffers.push(buffer);
        BufferId(self.buffers.len() - 1)
    }

    /// Adds a task and makes it the producer of its outputs.
    pub(in crate::lower) fn add_task(&mut self, task: Task) -> TaskId {
        let id = TaskId(self.tasks.len());
        for output in &task.outputs {
            self.buffers[output.0].producer = Some(id);
        }
        self.tasks.push(task);
        id
    }

    /// Replaces all tasks and finds the producers again.
    pub(in crate::lower) fn replace_tasks(&mut self, tasks: Vec<Task>) {
        for buffer in &mut self.buffers {
            buffer.producer = None;
        }
        for (index, task) in tasks.iter().enumerate() {
            for output in &task.outputs {
                self.buffers[output.0].producer = Some(TaskId(index));
            }
        }
        self.tasks = tasks;
    }

    /// Puts all tasks in this order.
    pub(in crate::lower) fn put_in_order(&mut self, order: &[usize]) {
        let tasks = in_order(std::mem::take(&mut self.tasks), order);
        self.replace_tasks(tasks);
    }

    /// Returns the bytes of a buffer on the rank that holds most.
    pub(in crate::lower) fn bytes(&self, buffer: BufferId) -> u64 {
        self.bytes_of(&self.layouts[self.buffers[buffer.0].layout.index()])
    }

    /// Returns the bytes of a tensor in this layout on the rank that holds most.
    pub(in crate::lower) fn bytes_of(&self, layout: &Layout) -> u64 {
        shard_bytes(layout, self.microbatches)
    }

    /// Returns the type of a buffer's shard on the first rank that holds it, which holds most.
    pub(in crate::lower) fn first_shard(&self, buffer: BufferId) -> Option<TensorType> {
        let layout = &self.layouts[self.buffers[buffer.0].layout.index()];
        let rect = layout.rect(*layout.ranks.first()?, 0, self.microbatches)?;
        Some(TensorType::new(layout.dtype, rect.extent))
    }

    /// Returns the tasks that read each buffer, each once.
    pub(in crate::lower) fn readers(&self) -> Vec<Vec<TaskId>> {
        let mut readers: Vec<Vec<TaskId>> = vec![Vec::new(); self.buffers.len()];
        for (index, task) in self.tasks.iter().enumerate() {
            for input in &task.inputs {
                if readers[input.0].last() != Some(&TaskId(index)) {
                    readers[input.0].push(TaskId(index));
                }
            }
        }
        readers
    }
}

/// Returns the tasks in another order, in which each stands once.
pub(in crate::lower) fn in_order(tasks: Vec<Task>, order: &[usize]) -> Vec<Task> {
    let mut tasks: Vec<Option<Task>> = tasks.into_iter().map(Some).collect();
    order.iter().map(|&task| tasks[task].take().expect("each task stands once")).collect()
}

#[cfg(test)]
impl TaskGraph {
    /// Makes a buffer of so many numbers on rank 0, of a variable or not: for tests.
    pub(in crate::lower) fn numbers(&mut self, elements: usize, variable: bool) -> BufferId {
        use graphc_ir::sbp::{NdSbp, Sbp};
        let layout = self.intern_layout(Layout {
            shape: vec![elements],
            dtype: graphc_ir::types::DType::F32,
            microbatch_dim: None,
            ranks: vec![0],
            hierarchy: vec![1],
            sbp: NdSbp(vec![Sbp::Broadcast]),
        });
        let name = String::from("w");
        let of =
            VariableOf { name: name.clone(), init: Init::Weights, role: TensorKind::Parameter };
        let variable = variable.then_some(of);
        self.add_buffer(Buffer { name, layout, rate: Rate::Step, variable, producer: None })
    }
}
