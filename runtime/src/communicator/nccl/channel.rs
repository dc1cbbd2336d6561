//! Sending and receiving from card to card: each pair of ranks of a channel has a line of its own.
//!
//! Lines are joined before a session's first step, by each rank in the order of the channels' numbers, so none waits for another
//! that waits for it.

use std::time::Duration;

use graphc_comm::transport::{Receiver, Sender};
use graphc_ir::sbp::ReduceKind;

use crate::communicator::channel::ChannelEnds;
use crate::device::cuda::{
    CardFill, CardMemory, CardMove, CardStream, Cuda, Id, IncomingLine, OutgoingLine, new_id,
};
use crate::device::{Port, Turn};
use crate::error::{Cause, RuntimeError};
use crate::rectangles::masked_kind;

/// A rank's sends of one channel.
pub(crate) struct NcclSend {
    input: Port,
    slots: usize,
    peers: Vec<To>,
}

struct To {
    /// Tells the peer the name of the line.
    sender: Box<dyn Sender>,
    /// Elements of a content.
    count: usize,
    /// The copies that pack, per microbatch or one for all.
    packs: Vec<CardMove>,
    line: Option<OutgoingLine>,
}

/// A rank's receives of one channel.
pub(crate) struct NcclReceive {
    output: Port,
    identity: Option<CardFill>,
    peers: Vec<From>,
}

struct From {
    receiver: Box<dyn Receiver>,
    count: usize,
    unpacks: Vec<CardMove>,
    line: Option<IncomingLine>,
}

impl NcclSend {
    pub(in crate::communicator) fn new(
        device: &Cuda,
        ends: &ChannelEnds<'_>,
        input: Port,
    ) -> Result<Self, RuntimeError> {
        let me = ends.transport.rank();
        let fail = |reason: String| ends.channel_error(&reason);
        let mut peers = Vec::new();
        for &to in ends.receivers() {
            let mut packs = Vec::new();
            let mut count = 0;
            for microbatch in 0..ends.count_variants() {
                let all = ends.contributions_to(to, microbatch)?;
                let Some(mine) = all.iter().find(|part| part.source == me) else { continue };
                let (part, held) = (&mine.part, input.rect(microbatch));
                count = part.elements();
                if count > 0 {
                    let rects = (part, held, part);
                    packs.push(CardMove::new(device, input.dtype, rects, None).map_err(fail)?);
                }
            }
            if packs.is_empty() {
                continue;
            }
            if packs.len() != ends.count_variants() {
                return Err(ends.channel_error("a rank sends in some microbatches only"));
            }
            let sender = ends.transport.open_sender(ends.tag, to, ends.slots());
            let sender = sender.map_err(|error| ends.channel_error(&error.to_string()))?;
            peers.push(To { sender, count, packs, line: None });
        }
        Ok(Self { input, slots: ends.slots(), peers })
    }

    /// Joins the peers.
    pub(in crate::communicator) fn join_peers(&mut self, stream: &CardStream) -> Result<(), Cause> {
        let size = self.input.dtype.size();
        for peer in &mut self.peers {
            let id = new_id()?;
            peer.sender.send(id.len(), &mut |message| message.copy_from_slice(&id))?;
            let room = (peer.count * size, self.slots);
            peer.line = Some(OutgoingLine::join(stream, id, room)?);
        }
        Ok(())
    }

    /// Returns the register that is sent.
    pub(in crate::communicator) fn port(&self) -> &Port {
        &self.input
    }

    /// Has the stream wait for all that is under way.
    pub(in crate::communicator) fn fence_stream(
        &mut self,
        stream: &CardStream,
    ) -> Result<(), Cause> {
        let mut lines = self.peers.iter_mut().filter_map(|peer| peer.line.as_mut());
        Ok(lines.try_for_each(|line| line.fence_stream(stream))?)
    }

    /// Ends what waits for peers.
    pub(in crate::communicator) fn abort(&mut self) {
        self.peers.iter_mut().filter_map(|peer| peer.line.as_mut()).for_each(OutgoingLine::abort);
    }

    pub(in crate::communicator) fn run(
        &mut self,
        stream: &mut CardStream,
        memory: &CardMemory,
        turn: Turn,
    ) -> Result<Duration, Cause> {
        let (from, dtype) = (memory.address(self.input.content_range(turn)), self.input.dtype);
        for peer in &mut self.peers {
            let pack = &peer.packs[turn.microbatch % peer.packs.len()];
            let line = peer.line.as_mut().ok_or_else(unjoined_error)?;
            line.send(stream, (peer.count, dtype), |stream, to| {
                stream.copy_rectangle(pack, from, to)
            })?;
        }
        Ok(Duration::ZERO)
    }
}

impl NcclReceive {
    pub(in crate::communicator) fn new(
        device: &Cuda,
        ends: &ChannelEnds<'_>,
        output: Port,
    ) -> Result<Self, RuntimeError> {
        let me = ends.transport.rank();
        let fail = |reason: String| ends.channel_error(&reason);
        let layout = ends.plan.layouts.get(ends.channel.to.index());
        let identity = layout.and_then(|layout| masked_kind(layout, me));
        let elements = output.rect(0).elements();
        let fill = |kind: ReduceKind| CardFill::new(device, output.dtype, elements, kind);
        let identity = identity.map(fill).transpose().map_err(fail)?;
        let mut peers = Vec::new();
        for (index, part) in ends.contributions_to(me, 0)?.iter().enumerate() {
            let count = part.part.elements();
            if count == 0 {
                continue;
            }
            let unpack = |microbatch| {
                let parts = ends.contributions_to(me, microbatch)?;
                let same = parts.get(index).filter(|same| same.source == part.source);
                let same = same
                    .ok_or_else(|| ends.channel_error("a rank sends in some microbatches only"))?;
                let rects = (&same.part, &same.part, output.rect(microbatch));
                CardMove::new(device, output.dtype, rects, same.combine).map_err(fail)
            };
            let unpacks = (0..ends.count_variants()).map(unpack).collect::<Result<_, _>>()?;
            let receiver = ends.transport.open_receiver(ends.tag, part.source, ends.slots());
            let receiver = receiver.map_err(|error| ends.channel_error(&error.to_string()))?;
            peers.push(From { receiver, count, unpacks, line: None });
        }
        Ok(Self { output, identity, peers })
    }

    /// Joins the peers.
    pub(in crate::communicator) fn join_peers(&mut self, stream: &CardStream) -> Result<(), Cause> {
        let size = self.output.dtype.size();
        for peer in &mut self.peers {
            let mut id: Id = [0; 128];
            peer.receiver.receive(&mut |message| {
                if message.len() == id.len() {
                    id.copy_from_slice(message);
                }
            })?;
            peer.line = Some(IncomingLine::join(stream, id, peer.count * size)?);
        }
        Ok(())
    }

    /// Returns the register that is received into.
    pub(in crate::communicator) fn port(&self) -> &Port {
        &self.output
    }

    /// Ends what waits for peers.
    pub(in crate::communicator) fn abort(&mut self) {
        self.peers.iter_mut().filter_map(|peer| peer.line.as_mut()).for_each(IncomingLine::abort);
    }

    pub(in crate::communicator) fn run(
        &mut self,
        stream: &mut CardStream,
        memory: &CardMemory,
        turn: Turn,
    ) -> Result<Duration, Cause> {
        let (to, dtype) = (memory.address(self.output.content_range(turn)), self.output.dtype);
        if let Some(fill) = &self.identity {
            stream.fill_with(fill, to)?;
        }
        for peer in &mut self.peers {
            let unpack = &peer.unpacks[turn.microbatch % peer.unpacks.len()];
            let line = peer.line.as_mut().ok_or_else(unjoined_error)?;
            line.receive(stream, (peer.count, dtype), |stream, from| {
                stream.copy_rectangle(unpack, from, to)
            })?;
        }
        Ok(Duration::ZERO)
    }
}

fn unjoined_error() -> Cause {
    Cause::Device("a line between two cards was not joined".into())
}
