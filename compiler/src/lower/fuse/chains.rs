//! Determines whether tasks may be steps of one chain of elementwise ops.

use graphc_ir::op::Op;
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::types::{DType, TensorType};
use graphc_plan::{Action, Layout, Rate};

use crate::decisions::Phase;
use crate::lower::tasks::task_graph::{BufferId, Task, TaskGraph};

/// The least number of elements that each sum of a chain adds up. With fewer, its result would be no small part of its operand.
const LEAST_SUMMED: usize = 8;

/// The terms that ops of one group have in common.
#[derive(PartialEq, Eq)]
pub(in crate::lower) struct ChainKey {
    segment: usize,
    phase: Phase,
    rate: Rate,
    stage: usize,
    chunk: usize,
    ranks: Vec<u32>,
    /// The layout of the chain's values. For a reduction, it is that of its operand.
    pub(in crate::lower) shards: Layout,
}

impl ChainKey {
    /// Whether it equals another key in all but the part of the step.
    pub(in crate::lower) fn is_alike(&self, other: &Self) -> bool {
        let of = |key: &Self| (key.rate, key.stage, key.chunk);
        of(self) == of(other) && self.ranks == other.ranks && self.shards == other.shards
    }
}

/// Returns the key of an elementwise task, of one that may begin a chain, or of a reduction that may end one; `None` for others.
pub(in crate::lower) fn chain_key(graph: &TaskGraph, task: &Task) -> Option<ChainKey> {
    let Action::Compute { op, .. } = &task.action else { return None };
    let shards = match op {
        Op::Reduce(reduce) => {
            let types = [task.inputs[0], task.outputs[0]].map(|buffer| graph.first_shard(buffer));
            let [operand, result] = types.map(|ty| ty.unwrap_or(TensorType::new(DType::F32, [])));
            let runs = reduce.run_extents(&operand)?;
            if runs[0] == 1 && runs[1] > 1 || result.elements() * LEAST_SUMMED > operand.elements()
            {
                return None;
            }
            shard_layout(graph, task.inputs[0])
        }
        _ if op.operation().is_elementwise() || op.operation().begins_chain() => {
            shard_layout(graph, task.outputs[0])
        }
        _ => return None,
    };
    Some(ChainKey {
        segment: task.segment,
        phase: task.phase,
        rate: task.rate,
        stage: task.stage,
        chunk: task.chunk,
        ranks: task.ranks.clone(),
        shards,
    })
}

/// Returns the layout of a buffer, without its element type and with summands taken as whole tensors.
pub(in crate::lower) fn shard_layout(graph: &TaskGraph, buffer: BufferId) -> Layout {
    let layout = &graph.layouts[graph.buffers[buffer.0].layout.index()];
    let whole = |sbp: &Sbp| if sbp.is_partial() { Sbp::Broadcast } else { *sbp };
    let sbp = NdSbp(layout.sbp.0.iter().map(whole).collect());
    Layout { sbp, dtype: DType::F32, ..layout.clone() }
}

/// Whether a chain may begin with a task.
pub(in crate::lower) fn begins_chain(task: &Task) -> bool {
    matches!(&task.action, Action::Compute { op, .. } if op.operation().begins_chain())
}
