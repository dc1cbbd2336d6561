//! A queue of messages between two ranks: a ring of buffers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::wait::{ParkingSpot, WaitReason};
use super::{Hub, Receiver, Sender, TransportError};
use crate::explore::point;

/// The ring. Its two ends are used by one thread each; a buffer's lock is never contended.
#[derive(Debug)]
pub(super) struct Ring {
    buffers: Vec<Mutex<Vec<u8>>>,
    /// Messages sent so far.
    filled: AtomicU64,
    /// Messages received so far.
    emptied: AtomicU64,
    sender: ParkingSpot,
    receiver: ParkingSpot,
}

impl Ring {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            buffers: (0..slots.max(1)).map(|_| Mutex::default()).collect(),
            filled: AtomicU64::new(0),
            emptied: AtomicU64::new(0),
            sender: ParkingSpot::default(),
            receiver: ParkingSpot::default(),
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.buffers.len()
    }

    /// Calls `work` with the buffer of a message; a message keeps its buffer's memory from one use to the next.
    fn with_buffer<R>(&self, message: u64, work: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let index = (message % self.buffers.len() as u64) as usize;
        work(&mut self.buffers[index].lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The sending end.
pub(super) struct RingSender {
    hub: Arc<Hub>,
    ring: Arc<Ring>,
    tag: u32,
    from: u32,
    to: u32,
}

impl RingSender {
    pub(super) fn new(hub: Arc<Hub>, ring: Arc<Ring>, tag: u32, (from, to): (u32, u32)) -> Self {
        Self { hub, ring, tag, from, to }
    }
}

impl Sender for RingSender {
    fn is_ready(&self) -> bool {
        let ring = &*self.ring;
        let filled = ring.filled.load(Ordering::Relaxed);
        filled - ring.emptied.load(Ordering::Acquire) < ring.slots() as u64
    }

    fn send(
        &mut self,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Duration, TransportError> {
        let ring = &*self.ring;
        let message = ring.filled.load(Ordering::Relaxed);
        let slots = ring.slots() as u64;
        let wait = WaitReason {
            hub: &self.hub,
            rank: self.from,
            peer: self.to,
            sleeper: &ring.sender,
            tag: self.tag,
            what: "to make room in channel",
        };
        let waited = wait.wait_until(|| message - ring.emptied.load(Ordering::Acquire) < slots)?;
        ring.with_buffer(message, |buffer| {
            buffer.resize(bytes, 0);
            fill(buffer);
        });
        point();
        ring.filled.store(message + 1, Ordering::Release);
        ring.receiver.wake();
        self.hub.bell.ring();
        Ok(waited)
    }
}

/// The receiving end.
pub(super) struct RingReceiver {
    hub: Arc<Hub>,
    ring: Arc<Ring>,
    tag: u32,
    from: u32,
    to: u32,
}

impl RingReceiver {
    pub(super) fn new(hub: Arc<Hub>, ring: Arc<Ring>, tag: u32, (from, to): (u32, u32)) -> Self {
        Self { hub, ring, tag, from, to }
    }
}

impl Receiver for RingReceiver {
    fn is_ready(&self) -> bool {
        self.ring.filled.load(Ordering::Acquire) > self.ring.emptied.load(Ordering::Relaxed)
    }

    fn receive(&mut self, read: &mut dyn FnMut(&[u8])) -> Result<Duration, TransportError> {
        let ring = &*self.ring;
        let message = ring.emptied.load(Ordering::Relaxed);
        let wait = WaitReason {
            hub: &self.hub,
            rank: self.to,
            peer: self.from,
            sleeper: &ring.receiver,
            tag: self.tag,
            what: "to send on channel",
        };
        let waited = wait.wait_until(|| ring.filled.load(Ordering::Acquire) > message)?;
        ring.with_buffer(message, |buffer| read(buffer));
        point();
        ring.emptied.store(message + 1, Ordering::Release);
        ring.sender.wake();
        self.hub.bell.ring();
        Ok(waited)
    }
}
