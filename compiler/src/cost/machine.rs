//! Prices an existing plan for other machines, and computes the share of their peak that it uses.
//!
//! Actors have FLOPs and bytes beside seconds, so [`on_cluster`] needs no new planning. [`ActorWork`] is the work of a single op, or of a chain: that
//! of the op at its head, and that of the whole.
//!
//! Utilization (MFU) counts the matrix products of the graph that the plan was made of, gradients included. Each
//! counts against the peak of its precision. Nothing that is recomputed counts. The scores that attention's backward
//! pass computes again are such work, a fifth of it.

use std::collections::BTreeMap;

use graphc_ir::ids::RegisterId;
use graphc_ir::op::{Arithmetic, Op};
use graphc_ir::types::{DType, TensorType};
use graphc_plan::{
    Action, Actor, Cluster, FusedArg, FusedStep, Layout, OperandSource, Plan, Program,
};

use super::{
    LeastSeconds, NodeWork, add_sums_in_products, chain_seconds, has_odd_rows, least_seconds,
    node_work, peak_flops, roofline_seconds,
};
use crate::decisions::Decisions;

/// Returns the plan on another cluster: the same actors on the same ranks, each with the seconds that it takes there. The predictions in the plan no
/// longer hold: simulate it.
pub fn on_cluster(plan: &Plan, cluster: &Cluster) -> Plan {
    let mut moved = plan.clone();
    let cluster = &cluster.divide_among(plan.world_size);
    moved.cluster = cluster.clone();
    for program in &mut moved.programs {
        let seconds: Vec<f64> = (program.actors.iter())
            .map(|actor| actor_seconds(cluster, &plan.layouts, program, actor))
            .collect();
        for (actor, seconds) in program.actors.iter_mut().zip(seconds) {
            actor.seconds = seconds;
        }
        add_sums_in_products(cluster, &plan.layouts, program);
    }
    moved
}

fn actor_seconds(cluster: &Cluster, layouts: &[Layout], program: &Program, actor: &Actor) -> f64 {
    ActorWork::from_actor(layouts, program, actor).map_or(0.0, |work| work.seconds(cluster))
}

/// The work of an actor's action that computes or moves memory, in the terms of the cost model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActorWork {
    /// The work of a single op, or of the op at the head of a chain.
    head: Option<WorkPiece>,
    /// The work of the whole action.
    all: NodeWork,
}

/// Work of one kind in one element type.
#[derive(Clone, Copy, Debug, PartialEq)]
struct WorkPiece {
    precision: DType,
    arithmetic: Arithmetic,
    work: NodeWork,
}

impl ActorWork {
    /// Returns the work of an action of a program's actor, or `None` for communication, which is priced by links.
    pub fn from_actor(layouts: &[Layout], program: &Program, actor: &Actor) -> Option<Self> {
        let head = match &actor.action {
            Action::Collective { .. } | Action::Send { .. } | Action::Receive { .. } => {
                return None;
            }
            Action::Compute { op, operands } => {
                Some(find_op_work(layouts, program, actor, op, operands))
            }
            Action::Fused(fused) => {
                fused.chain_head().and_then(|head| find_head_work(layouts, program, actor, head))
            }
            Action::Local { .. }
            | Action::Accumulate
            | Action::Assign
            | Action::Feed { .. }
            | Action::Fetch { .. } => None,
        };
        let unaligned = head.is_some_and(|head| head.work.unaligned);
        let all = NodeWork { flops: actor.flops, bytes: actor.bytes, unaligned };
        Some(Self { head, all })
    }

    /// Whether it multiplies matrices.
    pub fn multiplies_matrices(&self) -> bool {
        self.head.is_some_and(|head| head.arithmetic != Arithmetic::Elementwise)
    }

    /// Returns the seconds of the kernel.
    pub fn seconds(&self, cluster: &Cluster) -> f64 {
        let of = |piece: WorkPiece| {
            (piece.work, roofline_seconds(cluster, piece.precision, piece.arithmetic, piece.work))
        };
        match self.head {
            Some(head) if head.work == self.all => of(head).1,
            head => chain_seconds(cluster, head.map(of), self.all),
        }
    }

    /// Returns the seconds of the op at the head of a chain alone, if there is one.
    pub(crate) fn head_seconds(&self, cluster: &Cluster) -> Option<f64> {
        let WorkPiece { precision, arithmetic, work } = self.head?;
        Some(roofline_seconds(cluster, precision, arithmetic, work))
    }

    /// Returns the least seconds that machines with these peaks take for it. If there is a head, the seconds of computing are those of the head
    /// alone, because few FLOPs are left behind it.
    pub fn least_seconds(&self, cluster: &Cluster) -> LeastSeconds {
        let elementwise = |work| least_seconds(cluster, DType::F32, Arithmetic::Elementwise, work);
        let Some(WorkPiece { precision, arithmetic, work }) = self.head else {
            return elementwise(self.all);
        };
        let head = least_seconds(cluster, precision, arithmetic, work);
        let rest = elementwise(self.all.subtract_part(work));
        LeastSeconds { computing: head.computing, moving: head.moving + rest.moving }
    }
}

/// Returns the work of a single op. Operands of updates are among `updates` too; no update multiplies matrices.
fn find_op_work(
    layouts: &[Layout],
    program: &Program,
    actor: &Actor,
    op: &Op,
    operands: &[OperandSource],
) -> WorkPiece {
    let whole =
        |&register: &RegisterId| layouts[program.registers[register.index()].layout.index()].ty();
    let inputs = operands.iter().filter_map(|operand| actor.inputs.get(operand.input_index()?));
    let operands: Vec<TensorType> = inputs.map(whole).collect();
    let operands: Vec<&TensorType> = operands.iter().collect();
    let row = |register: &RegisterId| {
        let extent = program.registers[register.index()].shape.last()?;
        Some((whole(register).dtype, *extent))
    };
    let [read, given] = [&actor.inputs, &actor.outputs].map(|list| list.iter().filter_map(row));
    let unaligned = has_odd_rows(op, read, given);
    let result = actor.outputs.first().or(actor.updates.first()).map(whole);
    let results: Vec<&TensorType> = result.iter().collect();
    WorkPiece {
        precision: op.compute_dtype(&operands, &results),
        arithmetic: op.operation().arithmetic(&operands),
        work: NodeWork { flops: actor.flops, bytes: actor.bytes, unaligned },
    }
}

/// Returns the part of the work of the op at the head of a chain, or `None` if its operands are not the chain's.
fn find_head_work(
    layouts: &[Layout],
    program: &Program,
    actor: &Actor,
    head: &FusedStep,
) -> Option<WorkPiece> {
    let shard = |arg: &FusedArg| {
        let FusedArg::Operand(index) = *arg else { return None };
        let register = &program.registers[actor.inputs.get(index)?.index()];
        let dtype = layouts[register.layout.index()].dtype;
        Some(TensorType::new(dtype, register.shape.clone()))
    };
    let operands: Vec<TensorType> = head.args.iter().map(shard).collect::<Option<_>>()?;
    let operands: Vec<&TensorType> = operands.iter().collect();
    let results = head.op.infer_types(&operands).ok()?;
    let results: Vec<&TensorType> = results.iter().collect();
    let rule = head.op.operation().rule(&operands).ok()?;
    Some(WorkPiece {
        precision: head.op.compute_dtype(&operands, &results),
        arithmetic: head.op.operation().arithmetic(&operands),
        work: node_work(&head.op, &rule, &operands, &results, &[]),
    })
}

/// Counts the FLOPs of the matrix products of one step, by the element type that they are computed in. They are the products of the graph that the
/// plan was made of: the model's without those that simplification removes, and in training those of its gradients. What is recomputed in the
/// backward pass is not counted.
pub(crate) fn model_flops(decisions: &Decisions) -> BTreeMap<DType, f64> {
    let (graph, mut flops) = (decisions.graph(), BTreeMap::new());
    for (id, node) in graph.iter() {
        let operation = node.op.operation();
        if !operation.multiplies_matrices() || decisions.recomputed[id.index()].is_some() {
            continue;
        }
        let operands = graph.operand_types(node);
        let Ok(rule) = operation.rule(&operands) else { continue };
        let own = operation.flops(&rule) * (1.0 - operation.repeated_share());
        *flops.entry(node.op.compute_dtype(&operands, &[])).or_default() += own;
    }
    flops
}

/// Returns the share of the machines' peak that the model's own FLOPs take in a step of this many seconds (model FLOPs utilization: Chowdhery et al.,
/// arXiv 2204.02311, appendix B). Each product counts against the peak of the element type that it is computed in. `None` for a step without time.
///
/// For a step that the null device predicts it is at most 1: every product counted here is computed by actors of the plan, whose seconds are at least
/// those of their FLOPs at that peak.
pub fn model_flops_utilization(
    plan: &Plan,
    decisions: &Decisions,
    step_seconds: f64,
) -> Option<f64> {
    let at_peak: f64 = model_flops(decisions)
        .into_iter()
        .map(|(dtype, flops)| flops / peak_flops(&plan.cluster, dtype))
        .sum();
    (step_seconds > 0.0).then(|| at_peak / (step_seconds * plan.world_size as f64))
}
