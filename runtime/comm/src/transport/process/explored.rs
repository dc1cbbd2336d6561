//! Queues and groups in shared memory under many schedules of their two ends.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::arenas::{allocate_in_outbox, offer_segment};
use super::group::ProcessGroup;
use super::outbox::{Outbox, PeerMemory};
use super::shared::{SharedQueueReceiver, SharedQueueSender};
use super::wait::{HasBell, Waiter};
use super::{ReceiveEnd, SendEnd};
use crate::control::JobLine;
use crate::explore::explore;
use crate::memory::{ArenaRange, HostArena};
use crate::transport::Patience;
use crate::transport::{Body, ExchangeGroup, Offer};

/// A process: its memory, and that memory as its peer maps it.
#[derive(Clone)]
struct ExploredProcess {
    rank: u32,
    outbox: Arc<Outbox>,
    /// As each of three ranks maps the memory.
    mapped: [Arc<PeerMemory>; 3],
    line: Arc<JobLine>,
}

impl ExploredProcess {
    fn new(rank: u32, stream: &TcpStream) -> Self {
        let outbox = Arc::new(Outbox::new().expect("shared memory"));
        let (descriptor, bytes) = (outbox.segment.descriptor(), outbox.segment.len() as u64);
        let pid = std::process::id();
        let open = |reader| PeerMemory::open(reader, pid, descriptor, bytes).expect("a mapping");
        let line = JobLine::start(stream, rank, Duration::from_secs(1000)).expect("threads");
        Self { rank, outbox, mapped: [0, 1, 2].map(open).map(Arc::new), line }
    }

    fn new_waiter(&self) -> Waiter {
        let patience = Patience { timeout: Duration::from_secs(1000), spin: Duration::ZERO };
        let bell = Arc::clone(&self.outbox) as Arc<dyn HasBell>;
        Waiter { rank: self.rank, line: Arc::clone(&self.line), bell, patience }
    }

    fn new_sender(&self, to: &Self, key: u64, slots: u64) -> SharedQueueSender {
        let name = (key, to.rank, key as u32);
        let sender = SharedQueueSender::new(
            &self.outbox,
            &to.mapped[self.rank as usize],
            self.new_waiter(),
            name,
            slots,
        );
        sender.expect("room in the directory")
    }

    fn new_receiver(&self, from: &Self, key: u64, slots: u64) -> SharedQueueReceiver {
        let mapped = &from.mapped[self.rank as usize];
        SharedQueueReceiver::new(mapped, self.new_waiter(), (key, from.rank, key as u32), slots)
    }
}

/// Processes, and what keeps their line to a coordinator open.
fn new_processes<const N: usize>() -> ([ExploredProcess; N], TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let stream = TcpStream::connect(listener.local_addr().expect("an address"));
    let stream = stream.expect("a connection");
    (std::array::from_fn(|rank| ExploredProcess::new(rank as u32, &stream)), listener)
}

/// Keys that no schedule before has used.
fn fresh_key() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn messages_arrive_in_order_under_every_schedule() {
    let (sides, _listener) = new_processes::<2>();
    explore(10_000, move || {
        let [a, b] = sides.clone();
        let (key, slots) = (fresh_key(), 1 + fresh_key() % 2);
        let sending = shuttle::thread::spawn({
            let (a, b) = (a.clone(), b.clone());
            move || {
                let mut sender = a.new_sender(&b, key, slots);
                for message in 0..4u8 {
                    let bytes = 3 + usize::from(message) * 50;
                    sender.send(bytes, &mut |target| target.fill(message)).expect("room");
                }
                sender.settle_loans().expect("the peer reads");
            }
        });
        let mut receiver = b.new_receiver(&a, key, slots);
        for message in 0..4u8 {
            let read = &mut |pieces: &[&[u8]]| {
                assert_eq!(pieces, [vec![message; 3 + usize::from(message) * 50]]);
            };
            receiver.receive(read).expect("the peer sends");
        }
        sending.join().expect("no panic");
    });
}

#[test]
fn heads_arrive_with_bodies_in_the_slot_in_the_outbox_and_lent() {
    let (sides, _listener) = new_processes::<2>();
    explore(6_000, move || {
        let [a, b] = sides.clone();
        let (key, slots) = (fresh_key(), 1 + fresh_key() % 3);
        let body = |message: u8| vec![message; [0, 64, 65, 300, 1000][usize::from(message)]];
        let sending = shuttle::thread::spawn({
            let (a, b) = (a.clone(), b.clone());
            move || {
                let mut sender = a.new_sender(&b, key, slots);
                for message in 0..5 {
                    let mut body = body(message);
                    let head = [message; 32];
                    let head = if message % 2 == 0 { &head[..] } else { &[] };
                    sender.send_headed(head, &body, message >= 3).expect("room");
                    if message >= 3 {
                        // What was lent is the sender's again once all is read.
                        sender.settle_loans().expect("the peer reads");
                        body.fill(0);
                    }
                }
            }
        });
        let mut receiver = b.new_receiver(&a, key, slots);
        for message in 0..5 {
            let mut into = vec![9; body(message).len()];
            let read = &mut |head: &[u8], found: Body<'_>| {
                assert_eq!(head, &[message; 32][..if message % 2 == 0 { 32 } else { 0 }]);
                assert_eq!(found.len(), into.len());
                // Until the receiver was seen to be able to read it, what is lent is copied as well.
                match found {
                    Body::Here(found) => into.copy_from_slice(found),
                    Body::There(_, copy) => copy(&mut into),
                }
            };
            receiver.receive_headed(read).expect("the peer sends");
            assert_eq!(into, body(message));
        }
        sending.join().expect("no panic");
    });
}

#[test]
fn what_was_lent_by_a_sender_that_gives_up_is_an_error() {
    let (sides, _listener) = new_processes::<2>();
    let [a, b] = &sides;
    let key = fresh_key();
    let (mut sender, mut receiver) = (a.new_sender(b, key, 4), b.new_receiver(a, key, 4));
    sender.send_headed(&[], &[1], false).expect("room");
    receiver.receive_headed(&mut |_, _| {}).expect("it was sent");
    assert!(sender.can_lend(), "this process can read its own memory");
    let mut body = vec![1; 1000];
    sender.send_headed(&[], &body, true).expect("room");
    sender.withdraw_loans();
    body.fill(2);
    let mut into = vec![0; 1000];
    let failed = receiver.receive_headed(&mut |_, body| match body {
        Body::There(_, copy) => copy(&mut into),
        Body::Here(_) => panic!("it was copied"),
    });
    let error = failed.expect_err("it was withdrawn").to_string();
    assert!(error.contains("rank 1 has lost its connection with rank 0"), "{error}");
}

/// Queues whose two ends go in either order, some never used: their memory is used again, and entries are too.
#[test]
fn queues_come_and_go_in_the_same_memory_under_every_schedule() {
    let (sides, _listener) = new_processes::<2>();
    let outbox = Arc::clone(&sides[0].outbox);
    explore(2_000, {
        let sides = sides.clone();
        move || {
            let [a, b] = sides.clone();
            let keys: Vec<u64> = (0..6).map(|_| fresh_key()).collect();
            let sending = shuttle::thread::spawn({
                let (a, b, keys) = (a.clone(), b.clone(), keys.clone());
                move || {
                    for &key in &keys {
                        let mut sender = a.new_sender(&b, key, 2);
                        if key % 3 > 0 {
                            sender.send(100, &mut |target| target.fill(key as u8)).expect("room");
                        }
                    }
                }
            });
            for &key in &keys {
                let mut receiver = b.new_receiver(&a, key, 2);
                if key % 3 > 1 {
                    let read = &mut |pieces: &[&[u8]]| assert_eq!(pieces, [[key as u8; 100]]);
                    receiver.receive(read).expect("it was sent");
                }
            }
            sending.join().expect("no panic");
        }
    });
    // 12,000 queues of 1 KiB would be beyond it.
    let extent = outbox.extent() - Outbox::new().expect("shared memory").extent();
    assert!(extent < 64 << 10, "{extent} bytes");
}

#[test]
fn what_two_peers_read_in_one_place_is_not_overwritten_under_any_schedule() {
    let (sides, _listener) = new_processes::<3>();
    explore(6_000, move || {
        let [a, b, c] = sides.clone();
        let (key, slots) = (fresh_key(), 1 + (fresh_key() % 2) as usize);
        let reading = [b.clone(), c.clone()].map(|side| {
            let mut receiver = side.new_receiver(&a, key, slots as u64);
            shuttle::thread::spawn(move || {
                for message in 0..5u8 {
                    let read = &mut |_: &[u8], body: Body<'_>| {
                        body.read(|body| assert_eq!(body, [message; 100]));
                    };
                    receiver.receive_headed(read).expect("the peer sends");
                }
            })
        });
        // As many places as a queue has slots, used in turn.
        let stage = allocate_in_outbox(100 * slots as u64, &a.outbox).expect("memory");
        let mut senders = [&b, &c].map(|to| a.new_sender(to, key, slots as u64));
        for message in 0..5 {
            for sender in &senders {
                sender.wait_for_slot().expect("the peer reads");
            }
            let place = ArenaRange { offset: message % slots * 100, bytes: 100 };
            stage.write(place).fill(message as u8);
            for sender in &mut senders {
                sender.send_headed(&[], stage.read(place), true).expect("room");
            }
        }
        for sender in &senders {
            sender.settle_loans().expect("the peer reads");
        }
        reading.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

#[test]
fn arenas_are_read_and_written_in_place_under_every_schedule() {
    let (sides, _listener) = new_processes::<2>();
    let offered = sides.clone().map(|side| offer_segment(256, &side.outbox).expect("memory"));
    let arenas =
        offered.map(|offered| HostArena::from_provided(offered.0).expect("it lies somewhere"));
    let arenas = Arc::new(arenas);
    explore(4_000, move || {
        let key = fresh_key();
        let rank = |me: usize| {
            let (sides, arenas) = (sides.clone(), Arc::clone(&arenas));
            move || {
                let (own, other) = (&sides[me], &sides[1 - me]);
                let ends = (own.new_sender(other, key, 2), own.new_receiver(other, key, 2));
                let ends = (SendEnd::Shared(ends.0), ReceiveEnd::Shared(ends.1));
                let mut ends = vec![None, Some(ends)];
                ends.rotate_left(me);
                exchange_halves(&mut ProcessGroup::new(ends), &arenas[me], me);
            }
        };
        let threads = [0, 1].map(|me| shuttle::thread::spawn(rank(me)));
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

/// Each rank shows a half of its arena, then adds one to the other half of both.
fn exchange_halves(group: &mut ProcessGroup, arena: &HostArena, me: usize) {
    let half = |rank: usize| ArenaRange { offset: rank * 128, bytes: 128 };
    arena.write(ArenaRange { offset: 0, bytes: 256 }).fill(10 + me as u8);
    let offers = [Offer { peer: 1 - me, pieces: 0..1 }];
    let shown = [arena.read(half(me))];
    let read = &mut |_: usize, pieces: &[&[u8]]| {
        assert_eq!(pieces, [&[10 + (1 - me) as u8; 128]]);
    };
    group.exchange(&shown, &offers, &[1 - me], read).expect("the peer comes");
    let own = [arena.lend(ArenaRange { offset: 0, bytes: 256 })];
    let lending = group.as_lending().expect("shared memory");
    let add = |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte += 1);
    let mine = me * 128..me * 128 + 128;
    let both = lending.lend(&own, &mut |lent| {
        (0..2).for_each(|rank| add(lent(rank)[0].write(&mine)));
    });
    both.expect("the peer comes");
    assert_eq!(arena.read(ArenaRange { offset: 0, bytes: 256 }), [11 + me as u8; 256]);
}
