//! Collectives between cards, by NCCL, where each rank has a card of its own and the library is there.
//!
//! Whole registers that stand side by side go by the library's collectives. All else goes as rectangles: kernels pack them, one
//! grouped call sends and receives them, and kernels unpack or combine them in the order of the ranks' coordinates. Nothing waits
//! on the host.
//!
//! Ranks have a communicator for each group on each stream. It is made when the first collective of the group runs, at which all
//! its ranks are, in the plan's order. Its name goes by the transport.

mod channel;

use std::sync::Arc;
use std::time::Duration;

use graphc_comm::memory::ArenaRange;
use graphc_comm::transport::{Offer, Transport};
use graphc_ir::sbp::{ReduceKind, Sbp};
use graphc_ir::shard::Rect;
use graphc_ir::types::DType;
use graphc_plan::{BoxingKind, Layout};

use super::CollectiveCall;
use crate::collectives::{CollectiveScope, LayoutChange, check_collective, group_of};
use crate::device::cuda::{CardMemory, CardMove, CardStream, Cuda, Id, NcclOperation};
use crate::device::{Port, Turn};
use crate::error::Cause;
use crate::rectangles::{Contribution, along_axis};

pub(crate) use channel::{NcclReceive, NcclSend};

/// A collective of one rank.
pub(crate) struct NcclCollective {
    transport: Arc<dyn Transport>,
    sequence: u32,
    group: Vec<u32>,
    own: usize,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// The stages, per microbatch or one for all.
    variants: Vec<NcclStage>,
}

/// The steps of one action.
#[derive(Default)]
struct NcclStage {
    /// The copies before anything is sent.
    packs: Vec<CopyStep>,
    operations: Vec<(PlacedOperation, DType)>,
    /// The copies after all has come.
    unpacks: Vec<CopyStep>,
}

/// A copy between two places of the rank's memory.
struct CopyStep {
    from: CardLocation,
    to: CardLocation,
    copy: CardMove,
}

/// Bytes of the card's memory.
#[derive(Clone, Copy, Debug)]
enum CardLocation {
    Input(usize, usize),
    Output(usize, usize),
    Staging(usize),
}

/// An operation of the library, on places.
enum PlacedOperation {
    AllReduce { tensor: usize, count: usize, kind: ReduceKind },
    ReduceScatter { tensor: usize, count: usize, kind: ReduceKind },
    AllGather { tensor: usize, count: usize },
    Send { from: CardLocation, count: usize, peer: usize },
    Receive { to: CardLocation, count: usize, peer: usize },
}

impl NcclCollective {
    /// # Errors
    /// Where the layouts do not fit what it does, or a kernel is missing.
    pub(super) fn new(
        device: &Cuda,
        transport: &Arc<dyn Transport>,
        call: CollectiveCall<'_>,
    ) -> Result<Self, String> {
        let rank = transport.rank();
        let change = |&(from, to)| LayoutChange { from, to, in_place: false };
        let changes: Vec<LayoutChange<'_>> = call.layouts.iter().map(change).collect();
        if call.inputs.len() != call.outputs.len() || changes.len() != call.inputs.len() {
            return Err("needs an output for each input".into());
        }
        let (axis, microbatches) = (call.axis, call.microbatches);
        let scope =
            |microbatch| CollectiveScope { rank, axis, microbatch, microbatches, direct: false };
        check_collective(call.kind, &changes, scope(0))?;
        let group = group_of(&changes, scope(0))?;
        let own = group.iter().position(|&member| member == rank).unwrap_or(0);
        let ports = call.inputs.iter().chain(&call.outputs);
        let count = ports.map(Port::count_variants).max().unwrap_or(1);
        let stage = |microbatch| {
            let mut builder = NcclStageBuilder::new(device, &call, &group, own, microbatch);
            (0..changes.len())
                .try_for_each(|tensor| builder.plan_tensor(tensor, &changes[tensor]))?;
            builder.finish()
        };
        let variants = (0..count).map(stage).collect::<Result<_, String>>()?;
        let (sequence, inputs, outputs) = (call.sequence, call.inputs, call.outputs);
        let transport = Arc::clone(transport);
        Ok(Self { transport, sequence, group, own, inputs, outputs, variants })
    }

    pub(super) fn slot_period(&self, microbatches: u64) -> u64 {
        Port::period_of(self.inputs.iter().chain(&self.outputs), microbatches)
    }

    pub(super) fn run(
        &mut self,
        stream: &mut CardStream,
        memory: &CardMemory,
        turn: Turn,
    ) -> Result<Duration, Cause> {
        let Self { transport, sequence, group, own, .. } = self;
        if !stream.has_communicator(group) {
            let id = agree_on_id(&**transport, *sequence, group, *own)?;
            stream.join_group(group, *own, id)?;
        }
        let stage = &self.variants[turn.microbatch % self.variants.len()];
        let site = ActionSite { inputs: &self.inputs, outputs: &self.outputs, memory, turn };
        for step in &stage.packs {
            step.run(stream, &site)?;
        }
        let operation = |(planned, dtype): &(PlacedOperation, DType)| {
            (site.resolve_operation(planned, stream), *dtype)
        };
        let operations: Vec<(NcclOperation, DType)> =
            stage.operations.iter().map(operation).collect();
        stream.communicate(&self.group, &operations)?;
        for step in &stage.unpacks {
            step.run(stream, &site)?;
        }
        Ok(Duration::ZERO)
    }
}

/// Agrees on the name of a new communicator, which the first rank of the group makes and the others are told.
fn agree_on_id(
    transport: &dyn Transport,
    tag: u32,
    group: &[u32],
    own: usize,
) -> Result<Id, Cause> {
    let mut endpoint = transport.join_group(tag, group)?;
    if own == 0 {
        let id = crate::device::cuda::new_id()?;
        let offer = |peer| Offer { peer, pieces: 0..1 };
        let offers: Vec<Offer> = (1..group.len()).map(offer).collect();
        endpoint.exchange(&[&id], &offers, &[], &mut |_, _| {})?;
        return Ok(id);
    }
    let mut id: Id = [0; 128];
    endpoint.exchange(&[], &[], &[0], &mut |_, pieces| {
        if let Some(piece) = pieces.first().filter(|piece| piece.len() == id.len()) {
            id.copy_from_slice(piece);
        }
    })?;
    Ok(id)
}

/// Works out what one action does.
struct NcclStageBuilder<'a> {
    device: &'a Cuda,
    call: &'a CollectiveCall<'a>,
    group: &'a [u32],
    own: usize,
    microbatch: usize,
    stage: NcclStage,
    /// Bytes of memory for rectangles.
    staging: usize,
    /// The parts of this rank's results that it has itself, copied when all has been packed.
    moves: Vec<CopyStep>,
}

impl<'a> NcclStageBuilder<'a> {
    fn new(
        device: &'a Cuda,
        call: &'a CollectiveCall<'a>,
        group: &'a [u32],
        own: usize,
        microbatch: usize,
    ) -> Self {
        let (stage, moves) = (NcclStage::default(), Vec::new());
        Self { device, call, group, own, microbatch, stage, staging: 0, moves }
    }

    fn finish(mut self) -> Result<NcclStage, String> {
        self.device.reserve_scratch(self.staging);
        self.stage.unpacks.splice(0..0, self.moves);
        Ok(self.stage)
    }

    fn plan_tensor(&mut self, tensor: usize, change: &LayoutChange<'_>) -> Result<(), String> {
        let dtype = change.to.dtype;
        match self.plan_whole(tensor, change)? {
            Some(planned) => {
                self.stage.operations.push((planned, dtype));
                Ok(())
            }
            None => self.plan_rectangles(tensor, change),
        }
    }

    /// Plans the library's collective for a tensor whose parts are contiguous and alike on all ranks.
    fn plan_whole(
        &self,
        tensor: usize,
        change: &LayoutChange<'_>,
    ) -> Result<Option<PlacedOperation>, String> {
        let (axis, kind) = (self.call.axis, self.call.kind);
        let (input, output) = (self.count_elements(change.from)?, self.count_elements(change.to)?);
        let [input_place, output_place] =
            [&self.call.inputs[tensor], &self.call.outputs[tensor]].map(Port::span);
        let apart = !input_place.overlaps(output_place);
        Ok(match (kind, change.from.sbp.0[axis], change.to.sbp.0[axis]) {
            (BoxingKind::AllReduce, Sbp::Partial(kind), Sbp::Broadcast)
                if apart || input_place == output_place =>
            {
                Some(PlacedOperation::AllReduce { tensor, count: input, kind })
            }
            (BoxingKind::AllGather, Sbp::Split(_), Sbp::Broadcast)
                if apart && self.side_by_side(change.from, change.to, input)? =>
            {
                Some(PlacedOperation::AllGather { tensor, count: input })
            }
            (BoxingKind::ReduceScatter, Sbp::Partial(kind), Sbp::Split(_))
                if apart && self.side_by_side(change.to, change.from, output)? =>
            {
                Some(PlacedOperation::ReduceScatter { tensor, count: output, kind })
            }
            _ => None,
        })
    }

    fn count_elements(&self, layout: &Layout) -> Result<usize, String> {
        Ok(self.rank_rect(layout, self.group[self.own])?.elements())
    }

    fn rank_rect(&self, layout: &Layout, rank: u32) -> Result<Rect, String> {
        let rect = layout.rect(rank, self.microbatch, self.call.microbatches.max(1));
        rect.ok_or_else(|| format!("rank {rank} holds nothing"))
    }

    /// Returns whether the parts of all ranks are `count` elements and follow each other in what each rank has of
    /// `whole`.
    fn side_by_side(&self, parts: &Layout, whole: &Layout, count: usize) -> Result<bool, String> {
        let around = self.rank_rect(whole, self.group[self.own])?;
        for (place, &rank) in self.group.iter().enumerate() {
            let part = self.rank_rect(parts, rank)?;
            let run = CardMove::contiguous_run(parts.dtype, &part, &around, &part);
            let bytes = count * parts.dtype.size();
            if part.elements() != count || run != Some((place * bytes, 0, bytes)) {
                return Ok(false);
            }
        }
        Ok(count > 0)
    }

    /// Plans rectangles: first those that others take of this rank's, then those that it takes.
    fn plan_rectangles(&mut self, tensor: usize, change: &LayoutChange<'_>) -> Result<(), String> {
        let me = self.group[self.own];
        let source = self.rank_rect(change.from, me)?;
        let (group, own) = (self.group, self.own);
        for (peer, &rank) in group.iter().enumerate().filter(|&(peer, _)| peer != own) {
            for part in self.contributions_to(change, rank)?.iter().filter(|part| part.source == me)
            {
                let count = part.part.elements();
                if count == 0 {
                    continue;
                }
                let from = self.pack_rectangle(tensor, change.from.dtype, &part.part, &source)?;
                let send = PlacedOperation::Send { from, count, peer };
                self.stage.operations.push((send, change.from.dtype));
            }
        }
        let target = self.rank_rect(change.to, me)?;
        for part in self.contributions_to(change, me)? {
            self.take_part(tensor, change.to.dtype, &part, (&source, &target))?;
        }
        Ok(())
    }

    fn contributions_to(
        &self,
        change: &LayoutChange<'_>,
        rank: u32,
    ) -> Result<Vec<Contribution>, String> {
        let microbatches = self.call.microbatches.max(1);
        along_axis(change.from, change.to, self.call.axis, rank, self.microbatch, microbatches)
    }

    /// Returns where a rectangle of an input is contiguous: in the input itself, or packed.
    fn pack_rectangle(
        &mut self,
        tensor: usize,
        dtype: DType,
        part: &Rect,
        source: &Rect,
    ) -> Result<CardLocation, String> {
        if let Some((from, _, _)) = CardMove::contiguous_run(dtype, part, source, part) {
            return Ok(CardLocation::Input(tensor, from));
        }
        let to = self.reserve_staging(part.elements() * dtype.size());
        let copy = CardMove::new(self.device, dtype, (part, source, part), None)?;
        self.stage.packs.push(CopyStep { from: CardLocation::Input(tensor, 0), to, copy });
        Ok(to)
    }

    /// Takes a part, of this rank's own input or of another's.
    fn take_part(
        &mut self,
        tensor: usize,
        dtype: DType,
        part: &Contribution,
        (source, target): (&Rect, &Rect),
    ) -> Result<(), String> {
        let rect = &part.part;
        let count = rect.elements();
        if count == 0 {
            return Ok(());
        }
        let from = match part.source == self.group[self.own] {
            true => {
                // Apart from the output, which may be the input's memory.
                let to = self.reserve_staging(count * dtype.size());
                let copy = CardMove::new(self.device, dtype, (rect, source, rect), None)?;
                self.stage.packs.push(CopyStep { from: CardLocation::Input(tensor, 0), to, copy });
                to
            }
            false => {
                let peer = self.group.iter().position(|&rank| rank == part.source).unwrap_or(0);
                let to = self.reserve_staging(count * dtype.size());
                self.stage.operations.push((PlacedOperation::Receive { to, count, peer }, dtype));
                to
            }
        };
        let copy = CardMove::new(self.device, dtype, (rect, rect, target), part.combine)?;
        self.stage.unpacks.push(CopyStep { from, to: CardLocation::Output(tensor, 0), copy });
        Ok(())
    }

    fn reserve_staging(&mut self, bytes: usize) -> CardLocation {
        let start = self.staging.next_multiple_of(256);
        self.staging = start + bytes;
        CardLocation::Staging(start)
    }
}

/// The registers and the memory of an action.
struct ActionSite<'a> {
    inputs: &'a [Port],
    outputs: &'a [Port],
    memory: &'a CardMemory,
    turn: Turn,
}

impl ActionSite<'_> {
    fn address(&self, place: CardLocation, stream: &CardStream) -> u64 {
        let of = |port: &Port, byte: usize| {
            let ArenaRange { offset, bytes } = port.content_range(self.turn);
            self.memory.address(ArenaRange { offset: offset + byte, bytes: bytes - byte })
        };
        match place {
            CardLocation::Input(tensor, byte) => of(&self.inputs[tensor], byte),
            CardLocation::Output(tensor, byte) => of(&self.outputs[tensor], byte),
            CardLocation::Staging(byte) => stream.scratch_address(byte),
        }
    }

    fn resolve_operation(&self, planned: &PlacedOperation, stream: &CardStream) -> NcclOperation {
        let [from, to] = match *planned {
            PlacedOperation::AllReduce { tensor, .. }
            | PlacedOperation::ReduceScatter { tensor, .. }
            | PlacedOperation::AllGather { tensor, .. } => {
                [CardLocation::Input(tensor, 0), CardLocation::Output(tensor, 0)]
            }
            PlacedOperation::Send { from, .. } => [from, from],
            PlacedOperation::Receive { to, .. } => [to, to],
        }
        .map(|place| self.address(place, stream));
        match *planned {
            PlacedOperation::AllReduce { count, kind, .. } => {
                NcclOperation::AllReduce { from, to, count, kind }
            }
            PlacedOperation::ReduceScatter { count, kind, .. } => {
                NcclOperation::ReduceScatter { from, to, count, kind }
            }
            PlacedOperation::AllGather { count, .. } => {
                NcclOperation::AllGather { from, to, count }
            }
            PlacedOperation::Send { count, peer, .. } => NcclOperation::Send { from, count, peer },
            PlacedOperation::Receive { count, peer, .. } => {
                NcclOperation::Receive { to, count, peer }
            }
        }
    }
}

impl CopyStep {
    fn run(&self, stream: &mut CardStream, site: &ActionSite<'_>) -> Result<(), Cause> {
        let (from, to) = (site.address(self.from, stream), site.address(self.to, stream));
        stream.copy_rectangle(&self.copy, from, to)
    }
}
