//! Sending and receiving of host memory through channels.

use std::time::Duration;

use graphc_comm::transport::{Receiver, Sender, Transport, TransportError};
use graphc_ir::ids::LayoutId;
use graphc_ir::sbp::ReduceKind;
use graphc_ir::shard::Rect;
use graphc_kernels::narrow_to_halves;
use graphc_plan::{Channel, Plan};

use crate::device::{DeviceMemory, DeviceStream, Port, Turn};
use crate::error::RuntimeError;
use crate::rectangles::{
    Contribution, Move, fill_identity, list_contributions, masked_kind, sums_wide,
};

/// A rank's sends of one channel.
pub(crate) struct HostSend {
    input: Port,
    peers: Vec<SendTo>,
}

struct SendTo {
    sender: Box<dyn Sender>,
    /// The messages, per microbatch or one for all: the bytes of each and how it is packed.
    messages: Vec<(usize, Move)>,
}

/// A rank's receives of one channel.
pub(crate) struct HostReceive {
    output: Port,
    /// The reduction whose identity the output holds, where this rank has no summand of a partial layout.
    identity: Option<ReduceKind>,
    peers: Vec<ReceiveFrom>,
    /// The sums of 16-bit numbers until all have come; empty where there are none.
    wide: Vec<f32>,
}

struct ReceiveFrom {
    receiver: Box<dyn Receiver>,
    combine: Option<ReduceKind>,
    messages: Vec<Move>,
}

/// The data that both ends of a channel have in common.
pub(super) struct ChannelEnds<'a> {
    pub(super) plan: &'a Plan,
    pub(super) channel: &'a Channel,
    pub(super) tag: u32,
    pub(super) transport: &'a dyn Transport,
}

impl ChannelEnds<'_> {
    /// Returns the contributions that `to` receives, in the order in which they are combined.
    pub(super) fn contributions_to(
        &self,
        to: u32,
        microbatch: usize,
    ) -> Result<Vec<Contribution>, RuntimeError> {
        let layout = |id: LayoutId| {
            self.plan.layouts.get(id.index()).ok_or(RuntimeError::invalid_plan("a missing layout"))
        };
        let (from, target) = (layout(self.channel.from)?, layout(self.channel.to)?);
        list_contributions(from, target, to, microbatch, self.plan.microbatches.max(1))
            .map_err(|reason| self.channel_error(&reason))
    }

    pub(super) fn channel_error(&self, reason: &str) -> RuntimeError {
        RuntimeError::invalid_plan(format!("channel of `{}`: {reason}", self.channel.tensor))
    }

    pub(super) fn receivers(&self) -> &[u32] {
        self.plan.layouts.get(self.channel.to.index()).map_or(&[], |layout| &layout.ranks)
    }

    pub(super) fn count_variants(&self) -> usize {
        let layouts = [self.channel.from, self.channel.to];
        let cut = |id: &LayoutId| {
            let layout = self.plan.layouts.get(id.index());
            layout.is_some_and(|layout| layout.microbatch_dim.is_some())
        };
        if layouts.iter().any(cut) { self.plan.microbatches.max(1) } else { 1 }
    }

    /// Whether a rank is of both ends, and may send to itself.
    pub(super) fn have_common_rank(&self) -> bool {
        let ranks = |id: LayoutId| {
            self.plan.layouts.get(id.index()).map_or(&[][..], |layout| &layout.ranks)
        };
        let to = ranks(self.channel.to);
        ranks(self.channel.from).iter().any(|rank| to.contains(rank))
    }

    pub(super) fn slots(&self) -> usize {
        self.channel.slots.max(1) as usize
    }
}

impl HostSend {
    pub(super) fn new(ends: &ChannelEnds<'_>, input: Port) -> Result<Self, RuntimeError> {
        let me = ends.transport.rank();
        let mut peers = Vec::new();
        for &to in ends.receivers() {
            let mut messages = Vec::new();
            for microbatch in 0..ends.count_variants() {
                let all = ends.contributions_to(to, microbatch)?;
                let mine = all.iter().find(|part| part.source == me);
                let message = |part: &Contribution| {
                    let bytes = part.part.elements() * input.dtype.size();
                    (bytes, Move::new_pack(input.dtype, &part.part, input.rect(microbatch), 0))
                };
                messages.extend(mine.map(message));
            }
            if messages.is_empty() {
                continue;
            }
            if messages.len() != ends.count_variants() {
                return Err(ends.channel_error("a rank sends in some microbatches only"));
            }
            let sender = ends.transport.open_sender(ends.tag, to, ends.slots());
            peers.push(SendTo {
                sender: sender.map_err(|e| ends.channel_error(&e.to_string()))?,
                messages,
            });
        }
        Ok(Self { input, peers })
    }

    pub(super) fn run(
        &mut self,
        stream: &mut DeviceStream,
        memory: &DeviceMemory,
        turn: Turn,
    ) -> Result<Duration, TransportError> {
        let place = self.input.content_range(turn);
        let content = stream.sync_to_host(memory, &[place]).read(place);
        let mut waited = Duration::ZERO;
        for peer in &mut self.peers {
            let (bytes, pack) = &peer.messages[turn.microbatch % peer.messages.len()];
            waited += peer.sender.send(*bytes, &mut |message| pack.copy(content, message))?;
        }
        Ok(waited)
    }
}

impl HostReceive {
    pub(super) fn new(ends: &ChannelEnds<'_>, output: Port) -> Result<Self, RuntimeError> {
        let me = ends.transport.rank();
        let layout = ends.plan.layouts.get(ends.channel.to.index());
        let identity = layout.and_then(|layout| masked_kind(layout, me));
        let first = ends.contributions_to(me, 0)?;
        let mut peers = Vec::new();
        for part in &first {
            let receiver = ends.transport.open_receiver(ends.tag, part.source, ends.slots());
            let receiver = receiver.map_err(|e| ends.channel_error(&e.to_string()))?;
            peers.push(ReceiveFrom { receiver, combine: part.combine, messages: Vec::new() });
        }
        for microbatch in 0..ends.count_variants() {
            let parts = ends.contributions_to(me, microbatch)?;
            let same = |(a, b): (&Contribution, &Contribution)| a.source == b.source;
            if parts.len() != first.len() || !parts.iter().zip(&first).all(same) {
                return Err(ends.channel_error("a rank sends in some microbatches only"));
            }
            for (peer, part) in peers.iter_mut().zip(parts) {
                let target: &Rect = output.rect(microbatch);
                peer.messages.push(Move::new_unpack(output.dtype, &part.part, target, 0));
            }
        }
        let sums = peers.iter().any(|peer| sums_wide(output.dtype, peer.combine));
        let wide = if sums { vec![0.0; output.rect(0).elements()] } else { Vec::new() };
        Ok(Self { output, identity, peers, wide })
    }

    pub(super) fn run(
        &mut self,
        stream: &mut DeviceStream,
        memory: &DeviceMemory,
        turn: Turn,
    ) -> Result<Duration, TransportError> {
        let (place, dtype) = (self.output.content_range(turn), self.output.dtype);
        let content = stream.sync_to_host(memory, &[]).write(place);
        if let Some(kind) = self.identity {
            fill_identity(self.output.dtype, kind, content);
        }
        let mut waited = Duration::ZERO;
        for peer in &mut self.peers {
            let unpack = &peer.messages[turn.microbatch % peer.messages.len()];
            let (combine, wide) = (peer.combine, &mut self.wide);
            let mut read = |message: &[u8]| match wide.is_empty() {
                true => unpack.apply(combine, message, content),
                false => unpack.sum_wide(combine.is_some(), message, wide),
            };
            waited += peer.receiver.receive(&mut read)?;
        }
        if !self.wide.is_empty() {
            narrow_to_halves(dtype, &self.wide, content);
        }
        stream.sync_from_host(memory, &[place]);
        Ok(waited)
    }
}
