//! What a plan is made for: the request of the user, which nothing edits, and the choice that a search tries out.

use graphc_ir::graph::{Graph, Part};
use graphc_ir::ids::StageId;
use graphc_plan::{
    Cluster, CompileOptions, CrossEntropyForm, PipelineReport, Recompute, Strategy, WeightsSource,
};

use super::limits;
use crate::passes::error::PassError;
use crate::passes::layers::{Layers, find_layers};
use crate::passes::loss::attach_loss;

/// What the user asks for.
pub(super) struct CompileRequest<'a> {
    /// The graph as the user wrote it.
    pub graph: &'a Graph,
    /// The options, which may leave decisions open.
    pub options: &'a CompileOptions,
    /// The machines.
    pub cluster: &'a Cluster,
    /// The source of weights.
    pub weights: Option<WeightsSource>,
}

impl CompileRequest<'_> {
    /// Returns the options that decide as a choice does.
    pub(super) fn resolve(&self, choice: &Choice) -> CompileOptions {
        choice.resolve(self.options)
    }

    /// Returns the bytes that the planner may count for each rank.
    pub(super) fn memory_limit(&self, choice: &Choice) -> u64 {
        choice.memory.or(self.options.memory).unwrap_or(self.cluster.device.memory)
    }

    /// Returns the bytes of each rank.
    pub(super) fn memory(&self) -> u64 {
        self.memory_limit(&Choice::default())
    }

    /// Whether the number of stages or of microbatches is to be chosen.
    pub(super) fn leaves_pipeline_open(&self) -> bool {
        self.options.auto_stages || self.options.auto_microbatches
    }

    /// Whether whole plans of several choices are made, whatever they cost by their layers.
    pub(super) fn is_small(&self) -> bool {
        limits::is_small(self.graph, self.options)
    }

    /// Whether a plan is made so quickly that many may be tried.
    pub(super) fn is_tiny(&self) -> bool {
        limits::is_tiny(self.graph, self.options)
    }
}

/// Decisions of which a plan is made. Where one is `None`, it is as the user's options say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Choice {
    /// The mesh of ranks.
    pub mesh: Option<Vec<usize>>,
    /// The number of stages.
    pub stages: Option<usize>,
    /// The number of microbatches.
    pub microbatches: Option<usize>,
    /// The number of layers of each range of a stage. Empty if the graph is cut by the user, or by layers of equal FLOPs.
    pub layers: Vec<usize>,
    /// What is computed again.
    pub recompute: Option<Recompute>,
    /// The form of cross entropy.
    pub cross_entropy: Option<CrossEntropyForm>,
    /// The strategy by which layouts are chosen.
    pub strategy: Option<Strategy>,
    /// The bytes that the planner may count for each rank.
    pub memory: Option<u64>,
    /// Whether memory is known to be short for the plan of fewest seconds, which is then not searched for.
    pub memory_is_short: bool,
}

impl Choice {
    /// Makes the choice of these numbers of stages and microbatches.
    pub(super) fn of_pipeline(stages: usize, microbatches: usize) -> Self {
        Self { stages: Some(stages), microbatches: Some(microbatches), ..Self::default() }
    }

    /// Makes the choice that a report names.
    pub(super) fn of_report(report: &PipelineReport) -> Self {
        let layers = report.layers.clone();
        Self { layers, ..Self::of_pipeline(report.stages, report.microbatches) }
    }

    /// Makes the choice of a form of cross entropy; that of the options if it is [`CrossEntropyForm::Auto`].
    pub(super) fn of_form(form: CrossEntropyForm) -> Self {
        Self { cross_entropy: Some(form).filter(|form| !form.is_auto()), ..Self::default() }
    }

    /// Makes the choice of these bytes for the planner.
    pub(super) fn of_memory(memory: u64) -> Self {
        Self::default().with_memory(memory)
    }

    /// Returns the same choice with these bytes for the planner.
    pub(super) fn with_memory(&self, memory: u64) -> Self {
        Self { memory: Some(memory), ..self.clone() }
    }

    /// Returns options that decide as this choice does.
    pub(super) fn resolve(&self, options: &CompileOptions) -> CompileOptions {
        let Self { mesh, recompute, cross_entropy, strategy, .. } = self;
        CompileOptions {
            mesh: mesh.as_ref().unwrap_or(&options.mesh).clone(),
            stages: self.stages.unwrap_or(options.stages),
            microbatches: self.microbatches.unwrap_or(options.microbatches),
            auto_stages: options.auto_stages && self.stages.is_none(),
            auto_microbatches: options.auto_microbatches && self.microbatches.is_none(),
            recompute: recompute.unwrap_or(options.recompute),
            cross_entropy: cross_entropy.unwrap_or(options.cross_entropy),
            strategy: strategy.unwrap_or(options.strategy),
            memory: self.memory.or(options.memory),
            ..options.clone()
        }
    }

    /// Cuts a graph into the stages of this choice. If the user's nodes have stages, they keep them.
    ///
    /// # Errors
    /// Returns an error if the loss does not fit the graph.
    pub(super) fn cut_graph(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Graph, PassError> {
        let mut graph = graph.clone();
        let is_cut = graph.nodes.iter().any(|node| node.stage().is_some());
        if self.layers.is_empty() || is_cut || self.stages.is_none_or(|stages| stages == 1) {
            return Ok(graph);
        }
        let Layers { of, .. } = find_layers(&attach_loss(graph.clone(), options)?, |_| true);
        let ranges = self.layers.iter().enumerate();
        let range_of: Vec<usize> =
            ranges.flat_map(|(range, &count)| std::iter::repeat_n(range, count)).collect();
        for (node, layer) in graph.nodes.iter_mut().zip(of) {
            let range = layer.and_then(|layer| range_of.get(layer.index()).copied());
            node.part = range.map(StageId::new).map(Part::Stage);
        }
        graph.stages = vec![None; self.layers.len()];
        Ok(graph)
    }
}
