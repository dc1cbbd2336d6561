//! A plan on other machines, and how much of their peak it uses.

use std::collections::BTreeMap;

use graphc_ir::graph::Graph;
use graphc_ir::ids::RegisterId;
use graphc_ir::op::Arithmetic;
use graphc_ir::plan::{Action, Actor, Cluster, Layout, OperandSource, Plan, Program};
use graphc_ir::text;
use graphc_ir::types::{DType, TensorType};

use super::{NodeWork, has_odd_rows, peak_flops, roofline};

/// The plan as it would run on another cluster: the same actors on the same ranks, each with the seconds that it takes
/// there. What was predicted of it no longer holds: simulate it.
pub fn on_cluster(plan: &Plan, cluster: &Cluster) -> Plan {
    let mut moved = plan.clone();
    moved.cluster = cluster.clone();
    for program in &mut moved.programs {
        let seconds: Vec<f64> = (program.actors.iter())
            .map(|actor| actor_seconds(cluster, &plan.layouts, program, actor))
            .collect();
        for (actor, seconds) in program.actors.iter_mut().zip(seconds) {
            actor.seconds = seconds;
        }
    }
    moved
}

fn actor_seconds(cluster: &Cluster, layouts: &[Layout], program: &Program, actor: &Actor) -> f64 {
    let mut unaligned = false;
    let (dtype, arithmetic) = match &actor.action {
        Action::Collective { .. } | Action::Send { .. } | Action::Receive { .. } => return 0.0,
        Action::Compute { op, operands } => {
            let whole = |register: RegisterId| {
                let layout = &layouts[program.registers[register.index()].layout as usize];
                TensorType::new(layout.dtype, layout.shape.clone())
            };
            let row = |register: &RegisterId| {
                let extent = program.registers[register.index()].shape.last()?;
                Some((whole(*register).dtype, *extent))
            };
            let rows = actor.inputs.iter().chain(&actor.outputs).filter_map(row);
            unaligned = has_odd_rows(op, rows);
            let result = actor.outputs.first().or(actor.updates.first());
            let dtype = result.map_or(DType::F32, |&register| whole(register).dtype);
            let of = |operand: &OperandSource| actor.inputs.get(operand.input()?);
            // Of updates operands are among `updates` too; none of them multiplies.
            let types: Vec<TensorType> =
                operands.iter().filter_map(of).map(|&register| whole(register)).collect();
            (dtype, op.operation().arithmetic(&types.iter().collect::<Vec<_>>()))
        }
        _ => (DType::F32, Arithmetic::Elementwise),
    };
    let work = NodeWork { flops: actor.flops, bytes: actor.bytes, unaligned };
    roofline(cluster, dtype, arithmetic, work)
}

/// FLOPs of the matrix products of one step by element type of the result: of the forward pass, and of training twice as
/// many for the gradients of both operands. What is computed again in the backward pass is not counted.
pub fn model_flops(graph: &Graph, training: bool) -> BTreeMap<DType, f64> {
    let mut flops = BTreeMap::new();
    for node in graph.nodes.iter().filter(|node| node.op.operation().multiplies_matrices()) {
        let operands: Vec<&TensorType> = graph.operand_types(node);
        let Ok(rule) = node.op.operation().rule(&operands) else { continue };
        let dtype = graph.value(node.results[0]).ty.dtype;
        let forward = node.op.operation().flops(&rule);
        *flops.entry(dtype).or_default() += if training { 3.0 * forward } else { forward };
    }
    flops
}

/// The share of the machines' peak that the model's own FLOPs take in a step of so many seconds (model FLOPs
/// utilization: Chowdhery et al., arXiv 2204.02311, appendix B). `None` where the plan's graph cannot be read.
pub fn utilization(plan: &Plan, step_seconds: f64) -> Option<f64> {
    let graph = text::parse(&plan.graph.join("\n")).ok()?;
    let at_peak: f64 = model_flops(&graph, plan.training)
        .into_iter()
        .map(|(dtype, flops)| flops / peak_flops(&plan.cluster, dtype))
        .sum();
    (step_seconds > 0.0).then(|| at_peak / (step_seconds * plan.world_size as f64))
}
