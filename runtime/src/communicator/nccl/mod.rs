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

use graphc_ir::plan::{BoxingKind, Layout};
use graphc_ir::sbp::{ReduceKind, Sbp};
use graphc_ir::shard::Rect;
use graphc_ir::types::DType;

use super::CollectiveCall;
use crate::collectives::{Change, Scope, check, group_of};
use crate::device::cuda::{CardMemory, CardMove, Cuda, Id, Operation, Stream};
use crate::device::{Port, Turn};
use crate::error::Cause;
use crate::memory::Place;
use crate::rectangles::{Contribution, along_axis};
use crate::transport::{Offer, Transport};

pub(crate) use channel::{NcclReceive, NcclSend};

/// A collective of one rank.
pub(crate) struct NcclCollective {
    transport: Arc<dyn Transport>,
    sequence: u32,
    group: Vec<u32>,
    own: usize,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// Per microbatch, or one for all.
    variants: Vec<Stage>,
}

/// The steps of one action.
#[derive(Default)]
struct Stage {
    /// Before anything is sent.
    packs: Vec<Step>,
    operations: Vec<(Planned, DType)>,
    /// After all has come.
    unpacks: Vec<Step>,
}

/// A copy between two places of the rank's memory.
struct Step {
    from: Where,
    to: Where,
    copy: CardMove,
}

/// Bytes of the card's memory.
#[derive(Clone, Copy, Debug)]
enum Where {
    Input(usize, usize),
    Output(usize, usize),
    Staging(usize),
}

/// An operation of the library, on places.
enum Planned {
    AllReduce { tensor: usize, count: usize, kind: ReduceKind },
    ReduceScatter { tensor: usize, count: usize, kind: ReduceKind },
    AllGather { tensor: usize, count: usize },
    Send { from: Where, count: usize, peer: usize },
    Receive { to: Where, count: usize, peer: usize },
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
        let change = |&(from, to)| Change { from, to, in_place: false };
        let changes: Vec<Change<'_>> = call.layouts.iter().map(change).collect();
        if call.inputs.len() != call.outputs.len() || changes.len() != call.inputs.len() {
            return Err("needs an output for each input".into());
        }
        let (axis, microbatches) = (call.axis, call.microbatches);
        let scope = |microbatch| Scope { rank, axis, microbatch, microbatches, direct: false };
        check(call.kind, &changes, scope(0))?;
        let group = group_of(&changes, scope(0))?;
        let own = group.iter().position(|&member| member == rank).unwrap_or(0);
        let ports = call.inputs.iter().chain(&call.outputs);
        let count = ports.map(Port::variants).max().unwrap_or(1);
        let stage = |microbatch| {
            let mut builder = Builder::new(device, &call, &group, own, microbatch);
            (0..changes.len()).try_for_each(|tensor| builder.tensor(tensor, &changes[tensor]))?;
            builder.finish()
        };
        let variants = (0..count).map(stage).collect::<Result<_, String>>()?;
        let (sequence, inputs, outputs) = (call.sequence, call.inputs, call.outputs);
        let transport = Arc::clone(transport);
        Ok(Self { transport, sequence, group, own, inputs, outputs, variants })
    }

    pub(super) fn period(&self, microbatches: u64) -> u64 {
        Port::period_of(self.inputs.iter().chain(&self.outputs), microbatches)
    }

    pub(super) fn run(
        &mut self,
        stream: &mut Stream,
        memory: &CardMemory,
        turn: Turn,
    ) -> Result<Duration, Cause> {
        let Self { transport, sequence, group, own, .. } = self;
        if !stream.has_communicator(group) {
            let id = name(&**transport, *sequence, group, *own)?;
            stream.join(group, *own, id)?;
        }
        let stage = &self.variants[turn.microbatch % self.variants.len()];
        let site = Site { inputs: &self.inputs, outputs: &self.outputs, memory, turn };
        for step in &stage.packs {
            step.run(stream, &site)?;
        }
        let operation =
            |(planned, dtype): &(Planned, DType)| (site.operation(planned, stream), *dtype);
        let operations: Vec<(Operation, DType)> = stage.operations.iter().map(operation).collect();
        stream.communicate(&self.group, &operations)?;
        for step in &stage.unpacks {
            step.run(stream, &site)?;
        }
        Ok(Duration::ZERO)
    }
}

/// The name of a new communicator, which the first rank of the group makes and the others are told.
fn name(transport: &dyn Transport, tag: u32, group: &[u32], own: usize) -> Result<Id, Cause> {
    let mut endpoint = transport.group(tag, group)?;
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
struct Builder<'a> {
    device: &'a Cuda,
    call: &'a CollectiveCall<'a>,
    group: &'a [u32],
    own: usize,
    microbatch: usize,
    stage: Stage,
    /// Bytes of memory for rectangles.
    staging: usize,
    /// The parts of this rank's results that it has itself, copied when all has been packed.
    moves: Vec<Step>,
}

impl<'a> Builder<'a> {
    fn new(
        device: &'a Cuda,
        call: &'a CollectiveCall<'a>,
        group: &'a [u32],
        own: usize,
        microbatch: usize,
    ) -> Self {
        let (stage, moves) = (Stage::default(), Vec::new());
        Self { device, call, group, own, microbatch, stage, staging: 0, moves }
    }

    fn finish(mut self) -> Result<Stage, String> {
        self.device.reserve(self.staging);
        self.stage.unpacks.splice(0..0, self.moves);
        Ok(self.stage)
    }

    fn tensor(&mut self, tensor: usize, change: &Change<'_>) -> Result<(), String> {
        let dtype = change.to.dtype;
        match self.whole(tensor, change)? {
            Some(planned) => {
                self.stage.operations.push((planned, dtype));
                Ok(())
            }
            None => self.rectangles(tensor, change),
        }
    }

    /// The library's collective for a tensor whose parts stand side by side and are alike on all ranks.
    fn whole(&self, tensor: usize, change: &Change<'_>) -> Result<Option<Planned>, String> {
        let (axis, kind) = (self.call.axis, self.call.kind);
        let (input, output) = (self.elements(change.from)?, self.elements(change.to)?);
        let [input_place, output_place] =
            [&self.call.inputs[tensor], &self.call.outputs[tensor]].map(Port::span);
        let apart = !input_place.overlaps(output_place);
        Ok(match (kind, change.from.sbp.0[axis], change.to.sbp.0[axis]) {
            (BoxingKind::AllReduce, Sbp::Partial(kind), Sbp::Broadcast)
                if apart || input_place == output_place =>
            {
                Some(Planned::AllReduce { tensor, count: input, kind })
            }
            (BoxingKind::AllGather, Sbp::Split(_), Sbp::Broadcast)
                if apart && self.side_by_side(change.from, change.to, input)? =>
            {
                Some(Planned::AllGather { tensor, count: input })
            }
            (BoxingKind::ReduceScatter, Sbp::Partial(kind), Sbp::Split(_))
                if apart && self.side_by_side(change.to, change.from, output)? =>
            {
                Some(Planned::ReduceScatter { tensor, count: output, kind })
            }
            _ => None,
        })
    }

    fn elements(&self, layout: &Layout) -> Result<usize, String> {
        Ok(self.rect(layout, self.group[self.own])?.elements())
    }

    fn rect(&self, layout: &Layout, rank: u32) -> Result<Rect, String> {
        let rect = layout.rect(rank, self.microbatch, self.call.microbatches.max(1));
        rect.ok_or_else(|| format!("rank {rank} holds nothing"))
    }

    /// Whether the parts of all ranks are `count` elements and follow each other in what each rank has of `whole`.
    fn side_by_side(&self, parts: &Layout, whole: &Layout, count: usize) -> Result<bool, String> {
        let around = self.rect(whole, self.group[self.own])?;
        for (place, &rank) in self.group.iter().enumerate() {
            let part = self.rect(parts, rank)?;
            let run = CardMove::run(parts.dtype, &part, &around, &part);
            let bytes = count * parts.dtype.size();
            if part.elements() != count || run != Some((place * bytes, 0, bytes)) {
                return Ok(false);
            }
        }
        Ok(count > 0)
    }

    /// Rectangles: what others take of this rank's, then what it takes.
    fn rectangles(&mut self, tensor: usize, change: &Change<'_>) -> Result<(), String> {
        let me = self.group[self.own];
        let source = self.rect(change.from, me)?;
        let (group, own) = (self.group, self.own);
        for (peer, &rank) in group.iter().enumerate().filter(|&(peer, _)| peer != own) {
            for part in self.taken(change, rank)?.iter().filter(|part| part.source == me) {
                let count = part.part.elements();
                if count == 0 {
                    continue;
                }
                let from = self.packed(tensor, change.from.dtype, &part.part, &source)?;
                let send = Planned::Send { from, count, peer };
                self.stage.operations.push((send, change.from.dtype));
            }
        }
        let target = self.rect(change.to, me)?;
        for part in self.taken(change, me)? {
            self.take(tensor, change.to.dtype, &part, (&source, &target))?;
        }
        Ok(())
    }

    fn taken(&self, change: &Change<'_>, rank: u32) -> Result<Vec<Contribution>, String> {
        let microbatches = self.call.microbatches.max(1);
        along_axis(change.from, change.to, self.call.axis, rank, self.microbatch, microbatches)
    }

    /// Where a rectangle of an input stands by itself: where it lies, or packed.
    fn packed(
        &mut self,
        tensor: usize,
        dtype: DType,
        part: &Rect,
        source: &Rect,
    ) -> Result<Where, String> {
        if let Some((from, _, _)) = CardMove::run(dtype, part, source, part) {
            return Ok(Where::Input(tensor, from));
        }
        let to = self.room(part.elements() * dtype.size());
        let copy = CardMove::new(self.device, dtype, (part, source, part), None)?;
        self.stage.packs.push(Step { from: Where::Input(tensor, 0), to, copy });
        Ok(to)
    }

    /// Takes a part, of this rank's own input or of another's.
    fn take(
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
                let to = self.room(count * dtype.size());
                let copy = CardMove::new(self.device, dtype, (rect, source, rect), None)?;
                self.stage.packs.push(Step { from: Where::Input(tensor, 0), to, copy });
                to
            }
            false => {
                let peer = self.group.iter().position(|&rank| rank == part.source).unwrap_or(0);
                let to = self.room(count * dtype.size());
                self.stage.operations.push((Planned::Receive { to, count, peer }, dtype));
                to
            }
        };
        let copy = CardMove::new(self.device, dtype, (rect, rect, target), part.combine)?;
        self.stage.unpacks.push(Step { from, to: Where::Output(tensor, 0), copy });
        Ok(())
    }

    fn room(&mut self, bytes: usize) -> Where {
        let start = self.staging.next_multiple_of(256);
        self.staging = start + bytes;
        Where::Staging(start)
    }
}

/// Where the places of an action lie.
struct Site<'a> {
    inputs: &'a [Port],
    outputs: &'a [Port],
    memory: &'a CardMemory,
    turn: Turn,
}

impl Site<'_> {
    fn address(&self, place: Where, stream: &Stream) -> u64 {
        let of = |port: &Port, byte: usize| {
            let Place { offset, bytes } = port.place(self.turn);
            self.memory.address(Place { offset: offset + byte, bytes: bytes - byte })
        };
        match place {
            Where::Input(tensor, byte) => of(&self.inputs[tensor], byte),
            Where::Output(tensor, byte) => of(&self.outputs[tensor], byte),
            Where::Staging(byte) => stream.scratch_address(byte),
        }
    }

    fn operation(&self, planned: &Planned, stream: &Stream) -> Operation {
        let [from, to] = match *planned {
            Planned::AllReduce { tensor, .. }
            | Planned::ReduceScatter { tensor, .. }
            | Planned::AllGather { tensor, .. } => {
                [Where::Input(tensor, 0), Where::Output(tensor, 0)]
            }
            Planned::Send { from, .. } => [from, from],
            Planned::Receive { to, .. } => [to, to],
        }
        .map(|place| self.address(place, stream));
        match *planned {
            Planned::AllReduce { count, kind, .. } => {
                Operation::AllReduce { from, to, count, kind }
            }
            Planned::ReduceScatter { count, kind, .. } => {
                Operation::ReduceScatter { from, to, count, kind }
            }
            Planned::AllGather { count, .. } => Operation::AllGather { from, to, count },
            Planned::Send { count, peer, .. } => Operation::Send { from, count, peer },
            Planned::Receive { count, peer, .. } => Operation::Receive { to, count, peer },
        }
    }
}

impl Step {
    fn run(&self, stream: &mut Stream, site: &Site<'_>) -> Result<(), Cause> {
        let (from, to) = (site.address(self.from, stream), site.address(self.to, stream));
        stream.copy_rectangle(&self.copy, from, to)
    }
}
