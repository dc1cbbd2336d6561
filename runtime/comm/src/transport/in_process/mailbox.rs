//! Exchanges in which a rank reads another's memory in place, or writes it. The `unsafe` of this file lends slices to
//! another thread for the time of one exchange: nobody returns from [`ExchangeGroup::exchange`] or [`Lending::lend`] while a peer
//! works on what it has offered.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::wait::{ParkingSpot, WaitReason};
use super::{ExchangeGroup, Hub, TransportError};
use crate::explore::point;
use crate::transport::{Lending, Lent, Offer, Work};

const EMPTY: u32 = 0;
const FULL: u32 = 1;
const READING: u32 = 2;

/// A box shows one thing at a time: ranks that disagree on which find nothing instead of what was shown before.
const NOTHING: *const [&[u8]] = &[];
const NOTHING_LENT: *const [Lent<'_>] = &[];

/// The mail of one group: a box for each (from, to).
#[derive(Debug)]
pub(super) struct Mail {
    ranks: Vec<u32>,
    boxes: Vec<Mailbox>,
    sleepers: Vec<ParkingSpot>,
    joined: Vec<AtomicBool>,
}

impl Mail {
    pub(super) fn new(ranks: &[u32]) -> Self {
        let n = ranks.len();
        Self {
            ranks: ranks.to_vec(),
            boxes: (0..n * n).map(|_| Mailbox::default()).collect(),
            sleepers: (0..n).map(|_| ParkingSpot::default()).collect(),
            joined: (0..n).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    fn mailbox(&self, from: usize, to: usize) -> &Mailbox {
        &self.boxes[from * self.ranks.len() + to]
    }
}

/// The pieces that one rank shows another. On cache lines of its own, because two cores pass it to and fro.
#[derive(Debug)]
#[repr(align(128))]
struct Mailbox {
    state: AtomicU32,
    /// The pieces, written by the sender while `EMPTY`, read by the receiver while `READING`.
    pieces: UnsafeCell<*const [&'static [u8]]>,
    /// The same pieces, of memory that the receiver may also write.
    lent: UnsafeCell<*const [Lent<'static>]>,
}

// SAFETY: the pointer passes from thread to thread with `state`, which says whose turn it is; what it points to are
// shared slices of bytes, which the sender keeps alive (see `Mailbox::put_pieces`).
unsafe impl Send for Mailbox {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mailbox {}

impl Default for Mailbox {
    fn default() -> Self {
        let (pieces, lent) = (UnsafeCell::new(NOTHING), UnsafeCell::new(NOTHING_LENT));
        Self { state: AtomicU32::new(EMPTY), pieces, lent }
    }
}

impl Mailbox {
    /// Shows pieces to the receiver.
    ///
    /// # Safety
    /// The box is empty, the caller is its only sender, and it calls [`Mailbox::withdraw`] before `pieces` end to live
    /// or are written again.
    unsafe fn put_pieces(&self, pieces: &[&[u8]]) {
        // SAFETY: the lifetime is erased; that it holds is the caller's promise. While the box is empty nobody else
        // touches the cell.
        unsafe {
            *self.pieces.get() =
                std::mem::transmute::<*const [&[u8]], *const [&'static [u8]]>(pieces);
            *self.lent.get() = NOTHING_LENT;
        }
        point();
        self.state.store(FULL, Ordering::Release);
    }

    /// Shows memory that the receiver may also write.
    ///
    /// # Safety
    /// As for [`Mailbox::put_pieces`].
    unsafe fn put_lent(&self, lent: &[Lent<'_>]) {
        // SAFETY: as in `put_pieces`.
        unsafe {
            *self.lent.get() =
                std::mem::transmute::<*const [Lent<'_>], *const [Lent<'static>]>(lent);
            *self.pieces.get() = NOTHING;
        }
        point();
        self.state.store(FULL, Ordering::Release);
    }

    /// Begins to read what is shown; whoever begins calls [`Mailbox::release`]. `false` where nothing is shown.
    fn begin_read(&self) -> bool {
        point();
        let turn = self.state.compare_exchange(FULL, READING, Ordering::Acquire, Ordering::Relaxed);
        turn.is_ok()
    }

    fn release(&self) {
        point();
        self.state.store(EMPTY, Ordering::Release);
    }

    /// Lets `read` read what is shown; the box is empty afterwards. `false` where nothing is shown.
    fn take_pieces(&self, read: impl FnOnce(&[&[u8]])) -> bool {
        if !self.begin_read() {
            return false;
        }
        let done = MailboxReading(self);
        // SAFETY: the state was `FULL`, so the sender has written the cell and keeps the pieces alive until the state is
        // `EMPTY` again, which `done` makes it when reading has ended, even by a panic.
        read(unsafe { &**self.pieces.get() });
        drop(done);
        true
    }

    /// Takes back what was not read, and waits for a reader who has begun: reading never waits for anybody.
    fn withdraw(&self) {
        if self.is_empty() {
            return; // nobody else fills it
        }
        let back =
            || self.state.compare_exchange(FULL, EMPTY, Ordering::Acquire, Ordering::Acquire);
        while back() == Err(READING) {
            point();
            std::thread::yield_now();
        }
    }

    fn is_full(&self) -> bool {
        self.state.load(Ordering::Acquire) == FULL
    }

    fn is_empty(&self) -> bool {
        self.state.load(Ordering::Acquire) == EMPTY
    }
}

struct MailboxReading<'a>(&'a Mailbox);

impl Drop for MailboxReading<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// The memory that all peers have lent to a rank, which they get back when this is dropped.
struct HeldMail<'a> {
    mail: &'a Mail,
    position: usize,
    /// The number of ranks whose boxes are held, this rank's place among them.
    ranks: usize,
}

impl<'a> HeldMail<'a> {
    /// Holds the boxes of all ranks; `None` where a peer took its offer back, because the job ends.
    fn hold_all(mail: &'a Mail, position: usize) -> Option<Self> {
        let mut held = Self { mail, position, ranks: 0 };
        while held.ranks < mail.ranks.len() {
            if held.ranks != position && !mail.mailbox(held.ranks, position).begin_read() {
                return None;
            }
            held.ranks += 1;
        }
        Some(held)
    }

    fn lent_by(&self, peer: usize) -> &[Lent<'_>] {
        assert!(peer < self.ranks && peer != self.position, "a peer whose box is held");
        // SAFETY: the box is `READING`, so the sender has written the cell and keeps what it points to alive until this
        // is dropped.
        unsafe { &**self.mail.mailbox(peer, self.position).lent.get() }
    }
}

impl Drop for HeldMail<'_> {
    fn drop(&mut self) {
        for peer in (0..self.ranks).filter(|&peer| peer != self.position) {
            self.mail.mailbox(peer, self.position).release();
        }
    }
}

/// Withdraws everything that a rank has offered, however an exchange ends.
struct OfferedMail<'a> {
    mail: &'a Mail,
    position: usize,
}

impl Drop for OfferedMail<'_> {
    fn drop(&mut self) {
        for to in 0..self.mail.ranks.len() {
            self.mail.mailbox(self.position, to).withdraw();
        }
    }
}

/// One rank's end.
pub(super) struct MailGroup {
    hub: Arc<Hub>,
    mail: Arc<Mail>,
    position: usize,
    tag: u32,
}

impl MailGroup {
    /// Joins as the rank at `position`; `None` where it is taken.
    pub(super) fn join(hub: Arc<Hub>, mail: Arc<Mail>, position: usize, tag: u32) -> Option<Self> {
        let taken = mail.joined[position].swap(true, Ordering::Relaxed);
        (!taken).then_some(Self { hub, mail, position, tag })
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.position;
        (0..self.mail.ranks.len()).filter(move |&peer| peer != me)
    }

    fn wait_for(&self, peer: usize, what: &'static str) -> WaitReason<'_> {
        let ranks = &self.mail.ranks;
        WaitReason {
            hub: &self.hub,
            rank: ranks[self.position],
            peer: ranks[peer],
            sleeper: &self.mail.sleepers[self.position],
            tag: self.tag,
            what,
        }
    }
}

impl ExchangeGroup for MailGroup {
    fn exchange(
        &mut self,
        pieces: &[&[u8]],
        offers: &[Offer],
        takes: &[usize],
        read: &mut dyn FnMut(usize, &[&[u8]]),
    ) -> Result<Duration, TransportError> {
        let (mail, me) = (&*self.mail, self.position);
        let mut waited = Duration::ZERO;
        let offered = OfferedMail { mail, position: me };
        for offer in offers {
            let mailbox = mail.mailbox(me, offer.peer);
            assert!(mailbox.is_empty(), "one offer to each peer in an exchange");
            // SAFETY: the box is empty, `&mut self` is the only end at this position (see `join`), and `offered`
            // withdraws before `pieces`, a borrow that outlives this call, can end.
            unsafe { mailbox.put_pieces(&pieces[offer.pieces.clone()]) };
            mail.sleepers[offer.peer].wake();
        }
        for (index, &from) in takes.iter().enumerate() {
            let mailbox = mail.mailbox(from, me);
            loop {
                waited +=
                    self.wait_for(from, "to join collective").wait_until(|| mailbox.is_full())?;
                // A peer that fails takes its offer back; then the next wait says so.
                if mailbox.take_pieces(|pieces| read(index, pieces)) {
                    break;
                }
            }
            mail.sleepers[from].wake();
        }
        for offer in offers {
            let mailbox = mail.mailbox(me, offer.peer);
            waited += self
                .wait_for(offer.peer, "to read in collective")
                .wait_until(|| mailbox.is_empty())?;
        }
        drop(offered);
        Ok(waited)
    }

    fn as_lending(&mut self) -> Option<&mut dyn Lending> {
        Some(self)
    }
}

impl Lending for MailGroup {
    fn lend(&mut self, own: &[Lent<'_>], work: &mut Work<'_>) -> Result<Duration, TransportError> {
        let (mail, me) = (&*self.mail, self.position);
        let offered = OfferedMail { mail, position: me };
        for peer in self.peers() {
            let mailbox = mail.mailbox(me, peer);
            assert!(mailbox.is_empty(), "one offer to each peer in an exchange");
            // SAFETY: as in `exchange`.
            unsafe { mailbox.put_lent(own) };
            mail.sleepers[peer].wake();
        }
        let mut waited = Duration::ZERO;
        let held = loop {
            for peer in self.peers() {
                let mailbox = mail.mailbox(peer, me);
                waited +=
                    self.wait_for(peer, "to join collective").wait_until(|| mailbox.is_full())?;
            }
            // A peer that fails takes its offer back; then the next wait says so.
            if let Some(held) = HeldMail::hold_all(mail, me) {
                break held;
            }
        };
        work(&|rank| if rank == me { own } else { held.lent_by(rank) });
        drop(held);
        for peer in self.peers() {
            mail.sleepers[peer].wake();
            let mailbox = mail.mailbox(me, peer);
            waited +=
                self.wait_for(peer, "to write in collective").wait_until(|| mailbox.is_empty())?;
        }
        drop(offered);
        Ok(waited)
    }
}
