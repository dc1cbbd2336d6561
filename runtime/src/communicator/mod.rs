//! Communicators: what crosses ranks in a step.
//!
//! An actor's collective, send or receive is worked out once, when its plan is loaded, into a [`Collective`], a [`Send`]
//! or a [`Receive`], which then runs for each action. Which memory lies where is `device`'s. There are two kinds, each a
//! variant of these enums:
//!
//! - Exchanges of host memory over a [`Transport`] (`collective`, `channel`). They wait until what was launched has
//!   ended, and read and write the memory of the rank in place. On a card that is its image on the host.
//! - NCCL from card to card (`nccl`), where each rank of a machine has a card of its own and the library is there.
//!   Nothing waits on the host. A channel of which a rank is at both ends goes through the host all the same.
//!
//! These are the functions, with their promises:
//!
//! - `RankCommunicator::prepare_collective`, `send`, `receive`: works out once what an actor exchanges with whom. By host memory it
//!   joins the group or queue, too.
//! - `Send::join_peers`, `Receive::join_peers`: joins the peers before the first step, all ranks in the order of the channels'
//!   numbers. Collectives of cards join when they first run.
//! - `Collective::run`, `Send::run`, `Receive::run`: takes part once, behind what was launched on the stream; what is
//!   launched next sees the results. The host takes sums in the order of coordinates, cards in one order from run to run.
//!   A peer that does not come is an error, not a hang.
//! - `Collective::is_launched`, `Send::is_launched`, `Receive::is_launched`: whether all of it is launched on the device,
//!   so that a step can be recorded.
//! - `Send::fence_stream`: the stream waits for all sends that are under way.
//! - `Send::abort`, `Receive::abort`: ends what waits for peers on the device.

mod channel;
mod collective;
mod nccl;

use std::sync::Arc;
use std::time::Duration;

use graphc_comm::transport::Transport;
use graphc_plan::{BoxingKind, Channel, Layout, Plan};

use crate::device::{Device, DeviceMemory, DeviceStream, Port, Turn};
use crate::error::{Cause, RuntimeError};
use channel::ChannelEnds;

/// The way of one rank to the others.
pub(crate) enum RankCommunicator {
    /// Communication by exchanges of host memory.
    Host(Arc<dyn Transport>),
    /// Communication from card to card; names of communicators go by the transport.
    Cards(Arc<dyn Transport>),
}

/// A collective of an actor, as it stands in the plan.
pub(crate) struct CollectiveCall<'a> {
    pub(crate) kind: BoxingKind,
    /// The mesh axis.
    pub(crate) axis: usize,
    /// The number of the call, the same on all ranks that take part.
    pub(crate) sequence: u32,
    pub(crate) microbatches: usize,
    /// The layouts of each tensor before and after.
    pub(crate) layouts: Vec<(&'a Layout, &'a Layout)>,
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
}

impl RankCommunicator {
    /// Makes the communicator for memory of a device.
    pub(crate) fn new(device: &Device, transport: &Arc<dyn Transport>) -> Self {
        match device {
            Device::Cuda(cuda) if cuda.direct => Self::Cards(Arc::clone(transport)),
            Device::Cpu(_) | Device::Cuda(_) => Self::Host(Arc::clone(transport)),
        }
    }

    /// Prepares a collective. All ranks that take part do so with the same call.
    ///
    /// # Errors
    /// Where the layouts do not fit what it does, or the group cannot be joined.
    pub(crate) fn prepare_collective(
        &self,
        device: &Device,
        call: CollectiveCall<'_>,
    ) -> Result<Collective, String> {
        match (self, device) {
            (Self::Cards(transport), Device::Cuda(cuda)) => {
                let collective = nccl::NcclCollective::new(cuda, transport, call)?;
                Ok(Collective::Cards(Box::new(collective)))
            }
            (Self::Host(transport) | Self::Cards(transport), _) => {
                let collective = collective::HostCollective::new(&**transport, call)?;
                Ok(Collective::Host(Box::new(collective)))
            }
        }
    }

    /// Prepares this rank's sends of a channel.
    ///
    /// # Errors
    /// Where the two layouts of the channel do not fit, or a peer cannot be reached.
    pub(crate) fn prepare_send(
        &self,
        device: &Device,
        plan: &Plan,
        (tag, channel): (u32, &Channel),
        input: Port,
    ) -> Result<Send, RuntimeError> {
        let (Self::Host(transport) | Self::Cards(transport)) = self;
        let ends = ChannelEnds { plan, channel, tag, transport: &**transport };
        match (self, device) {
            (Self::Cards(_), Device::Cuda(cuda)) if !ends.have_common_rank() => {
                let send = nccl::NcclSend::new(cuda, &ends, input)?;
                Ok(Send::Cards(Box::new(send)))
            }
            _ => channel::HostSend::new(&ends, input).map(Send::Host),
        }
    }

    /// Prepares this rank's receives of a channel.
    ///
    /// # Errors
    /// As of [`RankCommunicator::prepare_send`].
    pub(crate) fn prepare_receive(
        &self,
        device: &Device,
        plan: &Plan,
        (tag, channel): (u32, &Channel),
        output: Port,
    ) -> Result<Receive, RuntimeError> {
        let (Self::Host(transport) | Self::Cards(transport)) = self;
        let ends = ChannelEnds { plan, channel, tag, transport: &**transport };
        match (self, device) {
            (Self::Cards(_), Device::Cuda(cuda)) if !ends.have_common_rank() => {
                let receive = nccl::NcclReceive::new(cuda, &ends, output)?;
                Ok(Receive::Cards(Box::new(receive)))
            }
            _ => channel::HostReceive::new(&ends, output).map(Receive::Host),
        }
    }
}

/// A collective of one rank, ready to run.
pub(crate) enum Collective {
    /// A collective by exchanges of host memory.
    Host(Box<collective::HostCollective>),
    /// A collective from card to card.
    Cards(Box<nccl::NcclCollective>),
}

impl Collective {
    /// Whether all that it does is launched on the device.
    pub(crate) fn is_launched(&self) -> bool {
        matches!(self, Self::Cards(_))
    }

    /// Returns the number of steps after which its registers' slots come again.
    pub(crate) fn slot_period(&self, microbatches: u64) -> u64 {
        match self {
            Self::Host(_) => 1,
            Self::Cards(collective) => collective.slot_period(microbatches),
        }
    }

    /// Takes part once, behind all that was launched on the stream; what is launched next sees the results. Returns how
    /// long the host has waited.
    ///
    /// # Errors
    /// Where the job has ended or a peer does not come.
    #[inline]
    pub(crate) fn run(
        &mut self,
        stream: &mut DeviceStream,
        memory: &DeviceMemory,
        turn: Turn,
    ) -> Result<Duration, Cause> {
        match self {
            Self::Host(collective) => Ok(collective.run(stream, memory, turn)?),
            Self::Cards(collective) => match (stream, memory) {
                (DeviceStream::Cuda(stream), DeviceMemory::Cuda(memory)) => {
                    collective.run(stream, memory, turn)
                }
                _ => Err(Cause::Device("a collective of another device".into())),
            },
        }
    }
}

/// A rank's sends of one channel, ready to run.
pub(crate) enum Send {
    /// A send from host memory.
    Host(channel::HostSend),
    /// A send from a card.
    Cards(Box<nccl::NcclSend>),
}

impl Send {
    /// Joins the peers, before the first step. All ranks join theirs in the order of the channels' numbers.
    ///
    /// # Errors
    /// Where the job has ended or a peer does not come.
    pub(crate) fn join_peers(&mut self, stream: &DeviceStream) -> Result<(), Cause> {
        match (self, stream) {
            (Self::Cards(send), DeviceStream::Cuda(stream)) => send.join_peers(stream),
            _ => Ok(()),
        }
    }

    /// Whether all that it does is launched on the device.
    pub(crate) fn is_launched(&self) -> bool {
        matches!(self, Self::Cards(_))
    }

    /// Returns the register that is sent from, where it is a card's.
    pub(crate) fn port(&self) -> Option<&Port> {
        match self {
            Self::Host(_) => None,
            Self::Cards(send) => Some(send.port()),
        }
    }

    /// Has the stream wait for all that is under way.
    ///
    /// # Errors
    /// Where the device has failed.
    pub(crate) fn fence_stream(&mut self, stream: &DeviceStream) -> Result<(), Cause> {
        match (self, stream) {
            (Self::Cards(send), DeviceStream::Cuda(stream)) => send.fence_stream(stream),
            _ => Ok(()),
        }
    }

    /// Ends what waits for peers on the device.
    pub(crate) fn abort(&mut self) {
        if let Self::Cards(send) = self {
            send.abort();
        }
    }

    /// Sends one content, behind all that was launched on the stream. Returns how long the host has waited.
    ///
    /// # Errors
    /// Where the job has ended or a peer does not make room.
    pub(crate) fn run(
        &mut self,
        stream: &mut DeviceStream,
        memory: &DeviceMemory,
        turn: Turn,
    ) -> Result<Duration, Cause> {
        match self {
            Self::Host(send) => Ok(send.run(stream, memory, turn)?),
            Self::Cards(send) => match (stream, memory) {
                (DeviceStream::Cuda(stream), DeviceMemory::Cuda(memory)) => {
                    send.run(stream, memory, turn)
                }
                _ => Err(Cause::Device("a channel of another device".into())),
            },
        }
    }
}

/// A rank's receives of one channel, ready to run.
pub(crate) enum Receive {
    /// A receive to host memory.
    Host(channel::HostReceive),
    /// A receive to a card.
    Cards(Box<nccl::NcclReceive>),
}

impl Receive {
    /// Joins the peers, before the first step. All ranks join theirs in the order of the channels' numbers.
    ///
    /// # Errors
    /// Where the job has ended or a peer does not come.
    pub(crate) fn join_peers(&mut self, stream: &DeviceStream) -> Result<(), Cause> {
        match (self, stream) {
            (Self::Cards(receive), DeviceStream::Cuda(stream)) => receive.join_peers(stream),
            _ => Ok(()),
        }
    }

    /// Whether all that it does is launched on the device.
    pub(crate) fn is_launched(&self) -> bool {
        matches!(self, Self::Cards(_))
    }

    /// Returns the register that is received to, where it is a card's.
    pub(crate) fn port(&self) -> Option<&Port> {
        match self {
            Self::Host(_) => None,
            Self::Cards(receive) => Some(receive.port()),
        }
    }

    /// Ends what waits for peers on the device.
    pub(crate) fn abort(&mut self) {
        if let Self::Cards(receive) = self {
            receive.abort();
        }
    }

    /// Receives one content; what is launched next sees it. Returns how long the host has waited.
    ///
    /// # Errors
    /// Where the job has ended or a peer does not send.
    pub(crate) fn run(
        &mut self,
        stream: &mut DeviceStream,
        memory: &DeviceMemory,
        turn: Turn,
    ) -> Result<Duration, Cause> {
        match self {
            Self::Host(receive) => Ok(receive.run(stream, memory, turn)?),
            Self::Cards(receive) => match (stream, memory) {
                (DeviceStream::Cuda(stream), DeviceMemory::Cuda(memory)) => {
                    receive.run(stream, memory, turn)
                }
                _ => Err(Cause::Device("a channel of another device".into())),
            },
        }
    }
}
