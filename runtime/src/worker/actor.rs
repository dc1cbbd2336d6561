//! One physical op with everything that it needs, and its execution.

use std::time::Duration;

use super::edge::{FeedWork, FetchWork};
use super::step::StepState;
use crate::communicator::{Collective, Receive, Send};
use crate::device::{DeviceLaunch, DeviceMemory, DeviceStream, Port, Turn};
use crate::error::Cause;

/// An actor's work, ready to run.
pub(crate) enum PreparedWork {
    /// Something that the device computes.
    Kernel(DeviceLaunch),
    /// No work of its own: the launch of the actor of this number does it too.
    Joined(u32),
    /// A local change of layout, by the device too.
    Local(DeviceLaunch),
    Collective(Collective),
    Send(Send),
    Receive(Receive),
    Feed(FeedWork),
    Fetch(FetchWork),
}

impl PreparedWork {
    /// Whether it computes, for the account of time.
    pub(crate) fn is_kernel(&self) -> bool {
        matches!(self, Self::Kernel(_) | Self::Joined(_))
    }

    /// Whether all that it does is launched on a device, the same in each step but for what lies in memory. So are feeds
    /// and fetches of one whose memory the host does not reach: these copy between it and memory of the host, which
    /// stays.
    pub(crate) fn is_launched(&self) -> bool {
        match self {
            Self::Kernel(_) | Self::Joined(_) | Self::Local(_) | Self::Feed(_) | Self::Fetch(_) => {
                true
            }
            Self::Collective(collective) => collective.is_launched(),
            Self::Send(send) => send.is_launched(),
            Self::Receive(receive) => receive.is_launched(),
        }
    }

    /// Returns the number of steps after which its registers' slots come again.
    pub(crate) fn slot_period(&self, microbatches: u64) -> u64 {
        let of = |port| Port::period_of(std::iter::once(port), microbatches);
        match self {
            Self::Kernel(launch) | Self::Local(launch) => launch.slot_period(microbatches),
            Self::Collective(collective) => collective.slot_period(microbatches),
            Self::Joined(_) => 1,
            Self::Send(send) => send.port().map_or(1, of),
            Self::Receive(receive) => receive.port().map_or(1, of),
            Self::Feed(feed) => of(feed.port()),
            Self::Fetch(fetch) => of(fetch.port()),
        }
    }

    /// Puts the step's content where a recorded copy takes it from.
    pub(crate) fn stage_feed(&mut self, turn: Turn, step: &StepState) {
        if let Self::Feed(feed) = self {
            feed.stage_feed(turn, step);
        }
    }

    /// Has the content of every other step go its own way to the device, so that it may be staged while the step before goes on.
    pub(crate) fn alternate_feeds(&mut self) {
        if let Self::Feed(feed) = self {
            feed.alternate_passages();
        }
    }

    /// Gives what was copied from a device, all launches of which have ended. Returns how long the host has waited.
    pub(crate) fn deliver_fetch(
        &mut self,
        turn: Turn,
        step: &StepState,
    ) -> Result<Duration, Cause> {
        match self {
            Self::Fetch(fetch) => Ok(fetch.deliver_fetch(turn, step)?),
            _ => Ok(Duration::ZERO),
        }
    }

    /// Has the stream wait for what goes on beside it.
    pub(crate) fn fence_stream(&mut self, stream: &DeviceStream) -> Result<(), Cause> {
        match self {
            Self::Send(send) => send.fence_stream(stream),
            _ => Ok(()),
        }
    }

    /// Ends what waits for other ranks, which the end of the job keeps from coming.
    pub(crate) fn abort(&mut self) {
        match self {
            Self::Send(send) => send.abort(),
            Self::Receive(receive) => receive.abort(),
            _ => {}
        }
    }

    /// Joins the peers of a channel, before a session's first step. Actors are called in the order of their channels'
    /// numbers.
    pub(crate) fn join_peers(&mut self, stream: &DeviceStream) -> Result<(), Cause> {
        match self {
            Self::Send(send) => send.join_peers(stream),
            Self::Receive(receive) => receive.join_peers(stream),
            _ => Ok(()),
        }
    }

    /// Begins one action. Returns how long the host has waited.
    pub(crate) fn run(
        &mut self,
        stream: &mut DeviceStream,
        memory: &DeviceMemory,
        turn: Turn,
        step: &StepState,
    ) -> Result<Duration, Cause> {
        match self {
            Self::Kernel(launch) | Self::Local(launch) => stream.launch(launch, memory, turn)?,
            Self::Joined(_) => {}
            Self::Collective(collective) => return collective.run(stream, memory, turn),
            Self::Send(send) => return send.run(stream, memory, turn),
            Self::Receive(receive) => return receive.run(stream, memory, turn),
            Self::Feed(work) => work.run(stream, memory, turn, step)?,
            Self::Fetch(work) => return work.run(stream, memory, turn, step),
        }
        Ok(Duration::ZERO)
    }
}
