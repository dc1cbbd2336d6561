//! One physical op with everything that it needs, and its execution.

use std::time::Duration;

use super::edge::{FeedWork, FetchWork};
use super::step::StepState;
use crate::communicator::{Collective, Receive, Send};
use crate::device::{Launch, Memory, Stream, Turn};
use crate::error::Cause;

/// What an actor does, ready to run.
pub(crate) enum Work {
    /// Something that the device computes.
    Kernel(Launch),
    /// Nothing any more: the launch of an actor that stands before it did it too.
    Joined,
    /// A local change of layout, by the device too.
    Local(Launch),
    Collective(Collective),
    Send(Send),
    Receive(Receive),
    Feed(FeedWork),
    Fetch(FetchWork),
}

impl Work {
    /// Whether it computes, for the account of time.
    pub(crate) fn is_kernel(&self) -> bool {
        matches!(self, Self::Kernel(_) | Self::Joined)
    }

    /// Whether all that it does is launched on the device, the same in each step but for what lies in the device's memory.
    pub(crate) fn is_launched(&self) -> bool {
        match self {
            Self::Kernel(_) | Self::Joined | Self::Local(_) => true,
            Self::Collective(collective) => collective.is_launched(),
            Self::Send(_) | Self::Receive(_) | Self::Feed(_) | Self::Fetch(_) => false,
        }
    }

    /// Steps after which its registers' slots come again.
    pub(crate) fn period(&self, microbatches: u64) -> u64 {
        match self {
            Self::Kernel(launch) | Self::Local(launch) => launch.period(microbatches),
            Self::Collective(collective) => collective.period(microbatches),
            Self::Joined | Self::Send(_) | Self::Receive(_) | Self::Feed(_) | Self::Fetch(_) => 1,
        }
    }

    /// What comes before a session's first step. Actors are called in the order of their channels' numbers.
    pub(crate) fn join(&mut self, stream: &Stream) -> Result<(), Cause> {
        match self {
            Self::Send(send) => send.join(stream),
            Self::Receive(receive) => receive.join(stream),
            _ => Ok(()),
        }
    }

    /// Begins one action. Returns how long the host has waited.
    pub(crate) fn run(
        &mut self,
        stream: &mut Stream,
        memory: &Memory,
        turn: Turn,
        step: &StepState,
    ) -> Result<Duration, Cause> {
        match self {
            Self::Kernel(launch) | Self::Local(launch) => stream.launch(launch, memory, turn)?,
            Self::Joined => {}
            Self::Collective(collective) => return collective.run(stream, memory, turn),
            Self::Send(send) => return send.run(stream, memory, turn),
            Self::Receive(receive) => return receive.run(stream, memory, turn),
            Self::Feed(work) => work.run(stream, memory, turn, step),
            Self::Fetch(work) => return Ok(work.run(stream, memory, turn, step)?),
        }
        Ok(Duration::ZERO)
    }
}
