//! Collectives of host memory.

use std::time::Duration;

use graphc_comm::memory::ArenaRange;
use graphc_comm::transport::{ExchangeGroup, Transport, TransportError};
use graphc_plan::BoxingKind;

use super::CollectiveCall;
use crate::collectives::{
    Buffers, CollectiveScope, CollectiveStage, LayoutChange, StageLists, group_of, plan_collective,
};
use crate::device::{DeviceMemory, DeviceStream, Port, Turn};

/// A collective of one rank.
pub(crate) struct HostCollective {
    group: Box<dyn ExchangeGroup>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// The stages, per microbatch or one for all.
    variants: Vec<Vec<CollectiveStage>>,
    staging: Vec<Vec<u8>>,
    wide: Vec<Vec<f32>>,
    packed: Vec<u8>,
    input_places: Vec<ArenaRange>,
    output_places: Vec<ArenaRange>,
    lists: StageLists,
}

impl HostCollective {
    /// # Errors
    /// Where the layouts do not fit what it does, or the group cannot be joined.
    pub(super) fn new(transport: &dyn Transport, call: CollectiveCall<'_>) -> Result<Self, String> {
        let changes = list_layout_changes(&call)?;
        let CollectiveCall { kind, axis, sequence, microbatches, inputs, outputs, .. } = call;
        let scope = |direct| {
            let rank = transport.rank();
            move |microbatch| CollectiveScope { rank, axis, microbatch, microbatches, direct }
        };
        let group = group_of(&changes, scope(true)(0))?;
        let scope = scope(transport.is_direct(&group));
        let count = inputs.iter().chain(&outputs).map(Port::count_variants).max().unwrap_or(1);
        let variants = (0..count).map(|m| plan_collective(kind, &changes, scope(m)));
        let variants = variants.collect::<Result<Vec<_>, _>>()?;
        let staged =
            |output| variants.iter().flatten().map(|stage| stage.staged_bytes(output)).max();
        let staging = (0..outputs.len()).map(|output| vec![0; staged(output).unwrap_or(0)]);
        let staging = staging.collect();
        let wide = outputs.iter().map(|_| Vec::new()).collect();
        let group = transport.join_group(sequence, &group).map_err(|error| error.to_string())?;
        let (input_places, output_places) = (Vec::new(), Vec::new());
        let (packed, lists) = (Vec::new(), StageLists::default());
        Ok(Self {
            group,
            inputs,
            outputs,
            variants,
            staging,
            wide,
            packed,
            input_places,
            output_places,
            lists,
        })
    }

    pub(super) fn run(
        &mut self,
        stream: &mut DeviceStream,
        memory: &DeviceMemory,
        turn: Turn,
    ) -> Result<Duration, TransportError> {
        let places = |ports: &[Port], places: &mut Vec<ArenaRange>| {
            places.clear();
            places.extend(ports.iter().map(|port| port.content_range(turn)));
        };
        places(&self.inputs, &mut self.input_places);
        places(&self.outputs, &mut self.output_places);
        let mut buffers = Buffers {
            arena: stream.sync_to_host(memory, &self.input_places),
            inputs: &self.input_places,
            outputs: &self.output_places,
            staging: &mut self.staging,
            wide: &mut self.wide,
            packed: &mut self.packed,
        };
        let stages = &self.variants[turn.microbatch % self.variants.len()];
        let mut waited = Duration::ZERO;
        for stage in stages {
            waited += stage.run(&mut *self.group, &mut buffers, &mut self.lists)?;
        }
        stream.sync_from_host(memory, &self.output_places);
        Ok(waited)
    }
}

/// Lists the change of layout of each tensor. If one result is made in place all of them go through staging buffers.
fn list_layout_changes<'a>(call: &CollectiveCall<'a>) -> Result<Vec<LayoutChange<'a>>, String> {
    let CollectiveCall { inputs, outputs, layouts, kind, .. } = call;
    if inputs.len() != outputs.len() || inputs.is_empty() || layouts.len() != inputs.len() {
        return Err("needs an output for each input".into());
    }
    let mut staged = false;
    for (input, output) in inputs.iter().zip(outputs) {
        let target = output.span();
        let in_place = inputs.iter().any(|port| port.span().overlaps(target));
        if in_place && input.span().offset != target.offset && *kind == BoxingKind::AllReduce {
            return Err("writes over an operand of another result".into());
        }
        staged |= in_place;
    }
    let change = |&(from, to): &(&'a _, &'a _)| LayoutChange { from, to, in_place: staged };
    Ok(layouts.iter().map(change).collect())
}
