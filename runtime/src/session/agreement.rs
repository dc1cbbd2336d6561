//! The agreement of a session's processes, compared before its first step.

use std::collections::BTreeMap;

use graphc_comm::job::{Agreement, Job};
use graphc_host::tensor::HostTensor;
use graphc_ir::mesh::DeviceKind;
use graphc_plan::Plan;

use super::SessionOptions;
use crate::device::communicates_directly;
use crate::error::RuntimeError;

/// Tells all ranks where they differ.
pub(super) fn agree_on_session(
    job: &Job,
    plan: &Plan,
    weights: &BTreeMap<String, HostTensor>,
    options: &SessionOptions,
) -> Result<(), RuntimeError> {
    let weights: Vec<String> =
        weights.iter().map(|(name, tensor)| format!("{name} {}", tensor.ty())).collect();
    let kind = options.device.unwrap_or(plan.cluster.device.kind);
    // Where the weights' file lies, and what was predicted, may differ.
    let agreement = Agreement::new()
        .and("the plan's name", &plan.name)
        .and("the plan's version", plan.version)
        .and("the plan's mesh", format!("{:?}", plan.mesh))
        .and("the plan's stages", plan.stages)
        .and("the plan's microbatches", plan.microbatches)
        .and_digest("the plan's options", &plan.options)
        .and_digest("the plan's graph", &plan.graph)
        .and_digest("the plan's layouts", &plan.layouts)
        .and_digest("the plan's channels", &plan.channels)
        .and_digest("the plan's programs", &(&plan.programs, &plan.ranks))
        .and("the names and types of the weights", weights.join(", "))
        .and("the device", kind)
        .and("how cards communicate", communication_path(kind, job))
        .and("the seed", options.seed)
        .and("the first step", options.first_step)
        .and("who gets the outputs", format!("{:?}", options.outputs_at));
    Ok(job.agree(&format!("session {}", job.next_session()), &agreement)?)
}

/// Machines of which one has no NCCL, or fewer cards than ranks, would wait for each other.
fn communication_path(kind: DeviceKind, job: &Job) -> &'static str {
    match kind == DeviceKind::Cuda && communicates_directly(job.neighbours()) {
        true => "from card to card (NCCL)",
        false => "through the host",
    }
}
