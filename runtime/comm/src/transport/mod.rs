//! Communication of one rank with the others.
//!
//! A [`Transport`] hands out endpoints when a job starts: a [`ExchangeGroup`] for each collective, a [`Sender`] and a
//! [`Receiver`] for each pair of ranks of a channel. So nothing is looked up while a step runs, and what one endpoint
//! waits for never holds up another. All waiting ends: with the peer's answer, with the job's failure, or with
//! [`TransportError::Timeout`].
//!
//! Where ranks are threads ([`in_process`]) or processes of one host (`process`) they read and write each other's memory
//! in place ([`Transport::is_direct`]). The memory that they share is offered by the transport and owned by the device
//! ([`Transport::offer_memory`]). Between hosts messages are packed, which the callers do alike on every transport.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::control::Activity;
use crate::end::JobEnd;
pub use crate::error::TransportError;
use crate::memory::HostArena;
pub use crate::memory::{Lent, Offered};

pub mod in_process;
mod links;
mod patience;
pub(crate) mod process;

pub use links::TransportLinks;
pub use patience::Patience;

/// Reads the bytes that a peer sends and returns how many frames they are, for those who try what a process does with
/// nonsense.
///
/// # Errors
/// Where they are none.
#[doc(hidden)]
pub fn count_frames(bytes: &[u8]) -> std::io::Result<usize> {
    process::count_frames(bytes)
}

/// The tag of the group in which the shards of variables are brought together: beyond those of collectives.
pub const VARIABLES: u32 = u32::MAX;

/// Describes the channel or the collective of a tag, for an error: behind `to send in`, say.
pub(crate) fn describe_tag(tag: u32) -> String {
    match tag {
        VARIABLES => "the exchange of a variable, which all ranks read together (`Session::variable`, `with_variable`), or none".into(),
        tag => tag.to_string(),
    }
}

/// Communication of one rank. `tag`s name endpoints: both ends ask with the same tag.
pub trait Transport: Send + Sync {
    /// Returns this rank.
    fn rank(&self) -> u32;

    /// Whether [`ExchangeGroup::exchange`] among `ranks` shows a receiver the sender's memory in place. Then a rank offers whole
    /// shards and the receiver reads the rectangles that it wants, and [`ExchangeGroup::as_lending`] gives a group; otherwise a rank
    /// offers packed messages.
    fn is_direct(&self, ranks: &[u32]) -> bool;

    /// Offers memory of so many bytes, zeros, for a device of the host: where those that this rank exchanges with can
    /// reach it in place. `None` where they reach whatever memory the process has, or none at all.
    ///
    /// # Errors
    /// Where the system gives no more.
    fn offer_memory(&self, _bytes: u64) -> Result<Option<Offered>, TransportError> {
        Ok(None)
    }

    /// Allocates memory of arbitrary content from which peers of the same host read what [`Sender::lend`] gives them, so that
    /// what goes to all of them is copied once. `None` where there is none.
    fn allocate_staging(&self, _bytes: u64) -> Option<HostArena> {
        None
    }

    /// Joins the exchanges between `ranks`, of which this rank is one.
    ///
    /// # Errors
    /// Where the group cannot be joined.
    fn join_group(&self, tag: u32, ranks: &[u32])
    -> Result<Box<dyn ExchangeGroup>, TransportError>;

    /// Opens the sending end of a queue of at most `slots` messages to `to` (perhaps this rank itself).
    ///
    /// # Errors
    /// Where no connection can be made.
    fn open_sender(
        &self,
        tag: u32,
        to: u32,
        slots: usize,
    ) -> Result<Box<dyn Sender>, TransportError>;

    /// Opens the receiving end of a queue of at most `slots` messages from `from`.
    ///
    /// # Errors
    /// Where no connection can be made.
    fn open_receiver(
        &self,
        tag: u32,
        from: u32,
        slots: usize,
    ) -> Result<Box<dyn Receiver>, TransportError>;

    /// Waits for `peer` until `ready`, which looks at several endpoints.
    ///
    /// # Errors
    /// Where the job has ended or the peer does not come.
    fn wait_until(
        &self,
        peer: u32,
        what: &str,
        ready: &dyn Fn() -> bool,
    ) -> Result<(), TransportError>;

    /// Has this rank's threads in [`Transport::wait_until`] look again, because this rank has changed something.
    fn wake_waiters(&self);

    /// Makes the activity of a worker, for the account of a job that ends; `None` where nobody asks.
    fn new_activity(&self, _name: String, _actions: Vec<String>) -> Option<Arc<Activity>> {
        None
    }

    /// Ends the job on every rank; the first reason given stays. All waits end soon after.
    fn end_job(&self, reason: JobEnd);

    /// Returns the reason why the job has ended, if it has.
    fn end_reason(&self) -> Option<JobEnd>;
}

/// The pieces that a rank offers to one peer in an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The peer's index in the group.
    pub peer: usize,
    /// The range of the exchange's pieces that are for it.
    pub pieces: Range<usize>,
}

/// A rendezvous of the ranks of a group, used for one exchange after the other.
pub trait ExchangeGroup: Send {
    /// Shows `pieces` to the peers named in `offers` and calls `read(i, pieces)` with those of each peer `takes[i]`, in
    /// the order of `takes`. Every take has its offer and every offer its take. When it returns all peers have read:
    /// the memory may be written again. Returns how long it has waited.
    ///
    /// # Errors
    /// Where the job has ended or a peer does not come.
    fn exchange(
        &mut self,
        pieces: &[&[u8]],
        offers: &[Offer],
        takes: &[usize],
        read: &mut dyn FnMut(usize, &[&[u8]]),
    ) -> Result<Duration, TransportError>;

    /// Returns the group as one whose ranks write each other's memory; `None` where messages are packed.
    fn as_lending(&mut self) -> Option<&mut dyn Lending> {
        None
    }
}

/// The work of a rank on memory that all have lent: given the rank's index in the group, what it has lent.
pub type Work<'w> = dyn for<'l> FnMut(&(dyn Fn(usize) -> &'l [Lent<'l>] + 'l)) + 'w;

/// A group whose ranks write each other's memory.
pub trait Lending {
    /// Lends `own` to all peers and does `work` once every rank has lent as many pieces. Ranks must touch disjoint parts.
    /// When it returns all ranks are done. Returns how long it has waited.
    ///
    /// # Errors
    /// Where the job has ended or a peer does not come.
    fn lend(&mut self, own: &[Lent<'_>], work: &mut Work<'_>) -> Result<Duration, TransportError>;
}

/// The longest head of a message.
pub const HEAD: usize = 32;

/// The body of a message, as its receiver finds it.
pub enum Body<'a> {
    /// Bytes in this process's memory.
    Here(&'a [u8]),
    /// So many bytes in the sender's own memory, from which the system copies the first of them to where it is told.
    There(usize, &'a dyn Fn(&mut [u8])),
}

impl Body<'_> {
    /// Returns its number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::There(bytes, _) => *bytes,
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets `read` read it.
    pub fn read<R>(self, read: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Here(bytes) => read(bytes),
            Self::There(bytes, copy) => {
                let mut own = vec![0; bytes];
                copy(&mut own);
                read(&own)
            }
        }
    }
}

/// The sending end of a queue of messages. Messages have a head of at most [`HEAD`] bytes, or none, and both ends know which.
pub trait Sender: Send {
    /// Whether [`Sender::send`] would not wait.
    fn is_ready(&self) -> bool;

    /// Lets `fill` write a message of `bytes` bytes, whose content is arbitrary before; waits while the queue is full.
    /// Returns how long it has waited.
    ///
    /// # Errors
    /// Where the job has ended or the peer does not make room.
    fn send(
        &mut self,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Duration, TransportError>;

    /// Sends a message of a head and a body, for [`Receiver::receive_headed`].
    ///
    /// # Errors
    /// As [`Sender::send`].
    fn send_headed(&mut self, head: &[u8], body: &[u8]) -> Result<Duration, TransportError> {
        self.send(head.len() + body.len(), &mut |message| {
            let (first, rest) = message.split_at_mut(head.len());
            first.copy_from_slice(head);
            rest.copy_from_slice(body);
        })
    }

    /// Sends as [`Sender::send_headed`], a body that stays as it is until [`Sender::settle_loans`]: the receiver may read it where
    /// it lies.
    ///
    /// # Errors
    /// As [`Sender::send`].
    fn lend(&mut self, head: &[u8], body: &[u8]) -> Result<Duration, TransportError> {
        self.send_headed(head, body)
    }

    /// Whether the receiver is known to read what is lent where it lies; otherwise it is copied.
    fn can_lend(&self) -> bool {
        false
    }

    /// Waits until bodies that were lent have been read.
    ///
    /// # Errors
    /// As [`Sender::send`].
    fn settle_loans(&mut self) -> Result<Duration, TransportError> {
        Ok(Duration::ZERO)
    }

    /// Withdraws loans, instead of [`Sender::settle_loans`], where the sender has failed: bodies that were lent may change, and a
    /// receiver that reads one gets an error.
    fn withdraw_loans(&mut self) {}

    /// Whether [`Sender::settle_loans`] would not wait.
    fn is_settled(&self) -> bool {
        true
    }

    /// Waits until there is room for a message: where the queue has `slots`, all but the last `slots - 1` have been read.
    ///
    /// # Errors
    /// As [`Sender::send`].
    fn wait_for_slot(&mut self) -> Result<Duration, TransportError> {
        Ok(Duration::ZERO)
    }
}

/// The receiving end of a queue of messages.
pub trait Receiver: Send {
    /// Whether [`Receiver::receive`] would not wait.
    fn is_ready(&self) -> bool;

    /// Lets `read` read the next message; waits while there is none. Returns how long it has waited.
    ///
    /// # Errors
    /// Where the job has ended or the peer does not send.
    fn receive(&mut self, read: &mut dyn FnMut(&[u8])) -> Result<Duration, TransportError>;

    /// Lets `read` read the next message, sent by [`Sender::send_headed`] or [`Sender::lend`] with a head of `head` bytes.
    ///
    /// # Errors
    /// As [`Receiver::receive`]; and where a body that was lent cannot be read, after `read` has seen arbitrary content.
    fn receive_headed(
        &mut self,
        head: usize,
        read: &mut dyn FnMut(&[u8], Body<'_>),
    ) -> Result<Duration, TransportError> {
        self.receive(&mut |message| {
            let (head, body) = message.split_at(head.min(message.len()));
            read(head, Body::Here(body));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_waits_for_a_variable_says_so() {
        let what = format!("to send in {}", describe_tag(VARIABLES));
        let error = TransportError::Timeout { rank: 0, peer: 1, what, seconds: 30.0 }.to_string();
        assert!(error.contains("which all ranks read together (`Session::variable`"), "{error}");
        assert_eq!(describe_tag(7), "7");
    }
}
