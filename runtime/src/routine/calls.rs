//! The comparison of what ranks call.
//!
//! The ranks that take part in a call form a ring. Before the call each tells the next one the number of the call and a
//! digest of all so far, and hears the same from the one before it. Where ranks differ there are neighbours that differ,
//! one of which ends the job on all ranks, with both calls by name. So a call costs one message each way, whatever the
//! number of ranks.
//!
//! It is done for calls that communicate nothing as well, because otherwise ranks that compute different things would go
//! on. A rank that lets go of its tensors says so, which ends the wait of who still calls. One that fails or dies ends
//! the job as it does elsewhere.

use std::time::{Duration, Instant};

use graphc_comm::JobEnd;
use graphc_comm::transport::{Receiver, Sender, TransportError};

use crate::dist::{GroupLane, GroupMembers};
use crate::error::RuntimeError;

/// The call of a rank.
#[derive(Clone, Copy, Debug)]
pub struct RoutineCall<'a> {
    /// The text for people: `add(f32[4, 4] S(0), f32[4, 4] B)`.
    pub text: &'a str,
    /// The digest of all of it, numbers among the arguments included.
    pub digest: u64,
}

/// Bytes before the text of a message: how many calls there were, and what stands for all of them.
const HEAD: usize = 16;
/// Bytes of a text that are sent: that of a mesh of many ranks is long.
const MOST_TEXT: usize = 512;
/// The number of a rank that makes no more calls.
const LEFT: u64 = u64::MAX;

/// The time that a rank that has left may take to say that it has failed.
const GRACE: Duration = Duration::from_millis(500);

/// The calls of one rank so far.
pub(super) struct Calls {
    members: GroupMembers,
    count: u64,
    history: u64,
    senders: Vec<Option<Box<dyn Sender>>>,
    receivers: Vec<Option<Box<dyn Receiver>>>,
}

impl Calls {
    pub(super) fn new(members: GroupMembers) -> Self {
        let n = members.len();
        let senders = (0..n).map(|_| None).collect();
        let receivers = (0..n).map(|_| None).collect();
        Self { members, count: 0, history: 0, senders, receivers }
    }

    /// Notes a call, and compares it with that of the rank before this one among `ranks`.
    ///
    /// # Errors
    /// Where the two differ, or a neighbour does not answer.
    pub(super) fn compare_call(
        &mut self,
        call: RoutineCall<'_>,
        ranks: &[u32],
    ) -> Result<(), RuntimeError> {
        self.count += 1;
        self.history = mix_digest(self.history, call.digest);
        let n = ranks.len();
        let me = ranks.iter().position(|&rank| rank as usize == self.members.me);
        let Some(me) = me.filter(|_| n > 1) else { return Ok(()) };
        let (next, before) = (ranks[(me + 1) % n] as usize, ranks[(me + n - 1) % n] as usize);
        self.tell_peer(next, self.count, call.text)?;
        self.hear_peer(before, call.text)
    }

    fn tell_peer(&mut self, peer: usize, count: u64, text: &str) -> Result<(), TransportError> {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&count.to_le_bytes());
        head[8..].copy_from_slice(&self.history.to_le_bytes());
        let text = &text.as_bytes()[..text.len().min(MOST_TEXT)];
        self.sender_to(peer)?.send_headed(&head, text).map(drop)
    }

    /// Hears what the peer calls, which is to be the same.
    fn hear_peer(&mut self, peer: usize, text: &str) -> Result<(), RuntimeError> {
        let (count, history) = (self.count, self.history);
        let mut differs = None;
        self.receiver_from(peer)?.receive_headed(HEAD, &mut |head, body| {
            let word = |at: usize| {
                head.get(at..at + 8)
                    .and_then(<[u8]>::first_chunk)
                    .map_or(0, |b| u64::from_le_bytes(*b))
            };
            if (word(0), word(8)) != (count, history) {
                let theirs = body.read(|text| String::from_utf8_lossy(text).into_owned());
                differs = Some((word(0), theirs));
            }
        })?;
        match differs {
            None => Ok(()),
            Some((LEFT, _)) if self.ends_soon() => Err(TransportError::Ended.into()),
            Some(theirs) => Err(self.difference_error(text, peer, &theirs)),
        }
    }

    /// Whether the job ends, as it does where a rank has left because of an error: that error is the one to tell of.
    fn ends_soon(&self) -> bool {
        let begun = Instant::now();
        while self.members.transport.end_reason().is_none() {
            if begun.elapsed() > GRACE {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    fn difference_error(
        &self,
        mine: &str,
        peer: usize,
        (number, theirs): &(u64, String),
    ) -> RuntimeError {
        let ranks = [self.members.me, peer].map(|index| self.members.ranks[index]);
        let line = |rank: u32, number: u64, text: &str| match number {
            LEFT => format!("  rank {rank} {text}"),
            number => format!("  rank {rank} calls {text} as call {number}"),
        };
        let mut fields = vec![
            (ranks[0], line(ranks[0], self.count, mine)),
            (ranks[1], line(ranks[1], *number, theirs)),
        ];
        fields.sort();
        let mut fields: Vec<String> = fields.into_iter().map(|(_, line)| line).collect();
        if (*number, theirs.as_str()) == (self.count, mine) {
            fields.push("  with other numbers, or after other calls before it".to_owned());
        }
        let what = "the calls of global tensors".to_owned();
        JobEnd::Differ { what, fields: fields.join("\n") }.into()
    }

    /// Gathers the bytes that each rank brings, in their order.
    ///
    /// # Errors
    /// Where a rank does not answer.
    pub(super) fn gather_bytes(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, TransportError> {
        let (n, me) = (self.members.len(), self.members.me);
        for peer in (0..n).filter(|&peer| peer != me) {
            self.sender_to(peer)?.send_headed(&[], bytes)?;
        }
        let mut all = vec![Vec::new(); n];
        for (peer, brought) in all.iter_mut().enumerate() {
            if peer == me {
                *brought = bytes.to_vec();
                continue;
            }
            self.receiver_from(peer)?.receive_headed(0, &mut |_, body| {
                *brought = body.read(<[u8]>::to_vec);
            })?;
        }
        Ok(all)
    }

    fn sender_to(&mut self, peer: usize) -> Result<&mut dyn Sender, TransportError> {
        let made = match self.senders[peer].take() {
            Some(sender) => sender,
            None => self.members.open_sender(GroupLane::First, peer)?,
        };
        Ok(self.senders[peer].insert(made).as_mut())
    }

    fn receiver_from(&mut self, peer: usize) -> Result<&mut dyn Receiver, TransportError> {
        let made = match self.receivers[peer].take() {
            Some(receiver) => receiver,
            None => self.members.open_receiver(GroupLane::First, peer)?,
        };
        Ok(self.receivers[peer].insert(made).as_mut())
    }
}

/// Tells the ranks that wait for this one that it makes no more calls.
impl Drop for Calls {
    fn drop(&mut self) {
        if self.members.transport.end_reason().is_some() || std::thread::panicking() {
            return;
        }
        let text = format!("has let go of its global tensors after {} calls", self.count);
        let me = self.members.me;
        for peer in (0..self.members.len()).filter(|&peer| peer != me) {
            // Where the queue is full or broken the peer has something else to find.
            if self.sender_to(peer).is_ok_and(|sender| sender.is_ready()) {
                let _ = self.tell_peer(peer, LEFT, &text);
            }
        }
    }
}

/// Returns the digest of a list of numbers, from that of all but the last.
fn mix_digest(history: u64, digest: u64) -> u64 {
    let mixed = (history.rotate_left(5) ^ digest).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ mixed >> 29
}
