//! Prices the layers of a short model on the submesh of one stage: it plans the model whole, and sums the costs layer
//! by layer.
//!
//! The sums are those of the independent check ([`account_by_node`]). Each layer has seconds, in
//! which what happens once a step is spread over the microbatches. It has resident bytes (weights, states,
//! gradients), bytes that are stashed from the forward to the backward pass, and transient bytes.

use std::collections::BTreeSet;

use graphc_ir::ids::LayerId;
use graphc_ir::mesh::Placement;
use graphc_plan::{Cluster, CompileOptions, Schedule};

use super::cuts::LayerCost;
use super::short::Short;
use crate::boxing::Router;
use crate::compile::forms::{Form, best_form_below, prepare_forms};
use crate::decisions::{Decisions, Phase, Sharding, ValueRate};
use crate::error::CompileError;
use crate::pipeline::prepare_layers;
use crate::planner::{Purpose, UNLIMITED, account_by_node};

/// Costs of the layers of a short model.
pub(super) struct LayerPrices {
    /// The cost of each layer.
    pub layers: Vec<LayerCost>,
    /// The seconds of sending one microbatch over the boundary before each layer, forward and backward.
    pub boundaries: Vec<f64>,
    /// The bytes at the peak of the short model's plan.
    pub peak: u64,
}

/// The limits within which prices are of interest.
#[derive(Clone, Copy)]
pub(super) struct PriceLimits {
    /// The bytes of a rank, if they are limited. Then each tensor may have another layout for the backward pass, as in whole plans when memory is
    /// short.
    pub memory: Option<u64>,
    /// The seconds that all layers take for a step of all microbatches. The search for a plan ends where it is proven that none takes less.
    pub seconds: f64,
}

impl PriceLimits {
    /// No limits.
    pub(super) const NONE: Self = Self { memory: None, seconds: f64::INFINITY };
}

/// Plans a short model on the submesh of a stage. `None` if no plan was found that keeps within the seconds.
///
/// # Errors
/// Returns an error if a pin cannot be fulfilled, or if the memory does not suffice.
pub(super) fn price_layers(
    model: &Short,
    options: &CompileOptions,
    cluster: &Cluster,
    limits: PriceLimits,
) -> Result<Option<LayerPrices>, CompileError> {
    let PriceLimits { memory, seconds: ceiling } = limits;
    let mut mesh = options.mesh.clone();
    if let Some(first) = mesh.first_mut() {
        *first /= options.stages;
    }
    let alone = CompileOptions {
        mesh,
        stages: 1,
        schedule: Schedule::OneForwardOneBackward,
        memory: Some(memory.unwrap_or(UNLIMITED)),
        ..options.clone()
    };
    // Numbers of stages are priced side by side already.
    let mut forms = prepare_forms(&model.graph, &alone, None, |options| {
        let machines = (options, cluster);
        prepare_layers(model.graph.clone(), &model.layer_of, machines, memory.is_some())
    })?;
    let decided: Vec<&Decisions> = forms.iter().map(|form| &form.decisions).collect();
    let (at, planned) = best_form_below(&decided, &alone, cluster, (ceiling, Purpose::Prices))?;
    if planned.report.objective_seconds >= ceiling {
        return Ok(None);
    }
    let Form { decisions, with: layer_of, .. } = forms.swap_remove(at);
    let account = account_by_node(&decisions, &planned.sharding, cluster, &alone);
    let count = model.stands.iter().max().map_or(0, |last| last + 1);
    let mut layers = vec![LayerCost::default(); count];
    for (node, layer) in layer_of.iter().enumerate() {
        let cost = &mut layers[layer.index()];
        cost.seconds += account.seconds[node] / options.microbatches as f64;
        cost.resident += account.resident[node];
        cost.stashed += account.stashed[node];
        cost.transient = cost.transient.max(account.transient[node]);
    }
    let boundaries =
        price_boundaries(&decisions, &planned.sharding, &layer_of, options, cluster, count);
    let peak = planned.memory.iter().copied().max().unwrap_or(0);
    Ok(Some(LayerPrices { layers, boundaries, peak }))
}

/// Returns the seconds of moving what each layer reads of earlier layers from one stage to the next, and its gradient back.
fn price_boundaries(
    decisions: &Decisions,
    sharding: &Sharding,
    layer_of: &[LayerId],
    options: &CompileOptions,
    cluster: &Cluster,
    count: usize,
) -> Vec<f64> {
    let mut seconds = vec![0.0; count];
    let mesh = Placement::mesh(&options.mesh).ok().filter(|_| options.stages > 1);
    let stage = |index: usize| mesh.as_ref()?.slice_stage(index, options.stages);
    let (Some(here), Some(there)) = (stage(0), stage(1)) else { return seconds };
    let mut router = Router::new(cluster, options.microbatches);
    let mut seen = BTreeSet::new();
    let graph = decisions.graph();
    for (reader, node) in graph.nodes.iter().enumerate() {
        for (&value, to) in node.operands.iter().zip(&sharding.nodes[reader].operands) {
            let made = graph.value(value);
            let producer = made.producer.index();
            let layer = layer_of[reader];
            let forward = decisions.training.phases[reader] == Phase::Forward;
            let stays = graph.nodes[producer].op.is_given()
                || options.microbatches > 1
                    && decisions.rates.values[value.index()] == ValueRate::Step;
            if !forward || stays || layer_of[producer] >= layer || !seen.insert((value, layer)) {
                continue;
            }
            let from = &sharding.nodes[producer].results[made.index];
            let from = decisions.layout(value, &here, from);
            let to = decisions.layout(value, &there, to);
            let ways = if made.ty.dtype.is_float() { 2.0 } else { 1.0 };
            seconds[layer.index()] += ways * router.find_route(&from, &to).seconds;
        }
    }
    seconds
}
