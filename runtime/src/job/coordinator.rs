//! The coordinator: rank 0's service that brings the processes of a job together. When one of them fails, dies or falls
//! silent, it ends the job on all of them with one account.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::JobOptions;
use super::door::Door;
use super::wire::{Member, Message, read, write};
use crate::standstill::Looks;
use crate::threads;

/// How long members may take to say what they were doing when the job ended.
const ACCOUNT: Duration = Duration::from_millis(800);
/// How long a write to a member may take.
const WRITE: Duration = Duration::from_secs(2);
/// How often the watch looks.
const LOOK: Duration = Duration::from_millis(50);

/// The service. Dropping it waits until all members have left.
#[derive(Debug)]
pub(super) struct Coordinator {
    shared: Arc<Shared>,
    door: Arc<Door>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    world: u32,
    heartbeat: Duration,
    /// Since when all are waited for, and how long.
    join: (Instant, Duration),
    state: Mutex<State>,
    changed: Condvar,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    peers: BTreeMap<u32, Peer>,
    ready: BTreeMap<u32, bool>,
    gathers: BTreeMap<String, BTreeMap<u32, Vec<u8>>>,
    ending: Option<Ending>,
    ended: bool,
}

#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    member: Member,
    heard: Instant,
    /// It said goodbye.
    left: bool,
    /// It is dead or silent.
    lost: bool,
}

#[derive(Debug)]
struct Ending {
    reason: String,
    begun: Instant,
    doing: BTreeMap<u32, Vec<String>>,
}

impl Coordinator {
    /// Serves on `listener`.
    pub(super) fn start(listener: TcpListener, options: &JobOptions) -> io::Result<Self> {
        let door = Arc::new(Door::new(listener, &options.token)?);
        let shared = Arc::new(Shared {
            world: options.world_size,
            heartbeat: options.heartbeat_timeout,
            join: (Instant::now(), options.join_timeout),
            state: Mutex::default(),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let (host, watch, served) = (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&door));
        let threads = vec![
            thread("coordinator door", move || {
                served.serve(|stream, rank| host.admit(stream, rank))
            })?,
            thread("coordinator watch", move || watch.watch())?,
        ];
        Ok(Self { shared, door, threads })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.door.address()
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    threads::start(name, work)
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.shared.wait_for_goodbyes();
        self.shared.stop.store(true, Ordering::SeqCst);
        self.door.close();
        for thread in self.threads.drain(..) {
            // A panic there is a fault of graphc; the job is over anyway.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Somebody of this job has come. Where there is no thread for it that is said to it.
    fn admit(self: &Arc<Self>, stream: TcpStream, rank: u32) {
        let (shared, answer) = (Arc::clone(self), stream.try_clone());
        let serving = thread("coordinator connection", move || shared.serve(stream, rank));
        if let (Err(error), Ok(mut answer)) = (serving, answer) {
            let report = format!("rank 0 has no thread for rank {rank}: {error}");
            // Where it is gone it needs to hear nothing.
            let _ = write(&mut answer, &Message::Ended { report }, &[]);
        }
    }

    /// Serves one connection until it closes.
    fn serve(&self, mut stream: TcpStream, rank: u32) {
        let _ = stream.set_write_timeout(Some(WRITE));
        let member = loop {
            match read(&mut stream) {
                Ok((Message::Join(member), _)) => break member,
                Ok((Message::Beat, _)) => {}
                _ => return,
            }
        };
        if let Err(report) = self.join(rank, member, &stream) {
            let _ = write(&mut stream, &Message::Ended { report }, &[]);
            return;
        }
        self.check_version(rank);
        while let Ok((message, bytes)) = read(&mut stream) {
            self.hear(rank, message, bytes);
        }
        let mut state = self.state();
        let peer = state.peers.get_mut(&rank);
        let Some(peer) = peer.filter(|peer| !peer.left && !peer.lost) else { return };
        peer.lost = true;
        let who = format!("rank {rank} (process {} on {})", peer.member.pid, peer.member.address);
        state.end(format!("{who} has died: its connection closed without a word"));
        self.settle(&mut state);
    }

    fn join(&self, rank: u32, mut member: Member, stream: &TcpStream) -> Result<(), String> {
        let mut state = self.state();
        if member.rank != rank || rank >= self.world || member.world_size != self.world {
            return Err(format!(
                "rank {rank} of {} does not belong to this job of {}",
                member.world_size, self.world
            ));
        }
        if state.peers.contains_key(&rank) {
            return Err(format!("there are two processes of rank {rank}"));
        }
        let address = stream.peer_addr().map_err(|e| e.to_string())?;
        let stream = stream.try_clone().map_err(|e| e.to_string())?;
        member.address = address.ip().to_string();
        let heard = Instant::now();
        state.peers.insert(rank, Peer { stream, member, heard, left: false, lost: false });
        if state.peers.len() == self.world as usize {
            let roster = state.peers.values().map(|peer| peer.member.clone()).collect();
            state.tell_all(&Message::Roster(roster), &[]);
        }
        Ok(())
    }

    /// Ends a job whose ranks run different versions.
    fn check_version(&self, rank: u32) {
        let mut state = self.state();
        let of = |rank: u32| Some(state.peers.get(&rank)?.member.version.clone());
        // Rank 0 need not be the first to come.
        let first = state.peers.keys().next().copied();
        if let (Some((first, Some(one))), Some(other)) =
            (first.map(|first| (first, of(first))), of(rank))
            && one != other
        {
            state.end(format!(
                "the ranks run different versions of graphc: rank {first} {one}; rank {rank} {other}"
            ));
        }
        self.settle(&mut state);
    }

    fn hear(&self, rank: u32, message: Message, bytes: Vec<u8>) {
        let mut state = self.state();
        if let Some(peer) = state.peers.get_mut(&rank) {
            peer.heard = Instant::now();
        }
        match message {
            Message::Ready { shares } => {
                state.ready.insert(rank, shares);
                if state.ready.len() == self.world as usize {
                    let shares = state.ready.values().copied().collect();
                    state.tell_all(&Message::Go { shares }, &[]);
                }
            }
            Message::Gather { key } => self.gather(&mut state, rank, key, bytes),
            Message::Failed { reason } => state.end(reason),
            Message::Doing { lines } => {
                if let Some(ending) = &mut state.ending {
                    ending.doing.insert(rank, lines);
                }
            }
            Message::Bye => {
                if let Some(peer) = state.peers.get_mut(&rank) {
                    peer.left = true;
                }
                state.tell_all(&Message::Left { rank }, &[]);
                state.end_gathers_of_who_left();
            }
            // The others are not for the coordinator; a beat has been heard.
            _ => {}
        }
        self.settle(&mut state);
    }

    fn gather(&self, state: &mut State, rank: u32, key: String, bytes: Vec<u8>) {
        if state.ending.is_some() {
            return;
        }
        let parts = state.gathers.entry(key.clone()).or_default();
        parts.insert(rank, bytes);
        if parts.len() == self.world as usize {
            let parts = state.gathers.remove(&key).unwrap_or_default();
            let lengths = parts.values().map(|part| part.len() as u64).collect();
            let whole: Vec<u8> = parts.into_values().flatten().collect();
            state.tell_all(&Message::Gathered { key, lengths }, &whole);
        }
        state.end_gathers_of_who_left();
    }

    /// Sends the account once all have given theirs.
    fn settle(&self, state: &mut State) {
        let State { peers, ending, ended, .. } = state;
        if let Some(ending) = ending
            && !*ended
        {
            let silent =
                |(rank, peer): (&u32, &Peer)| !peer.lost && !ending.doing.contains_key(rank);
            if ending.begun.elapsed() > ACCOUNT || !peers.iter().any(silent) {
                let report = ending.report(peers);
                *ended = true;
                state.tell_all(&Message::Ended { report }, &[]);
            }
        }
        self.changed.notify_all();
    }

    /// Looks for silence, and lets the members hear that rank 0 lives.
    fn watch(&self) {
        let beat = (self.heartbeat / 4).min(Duration::from_secs(1));
        let (mut beaten, mut looks) = (Instant::now(), Looks::new(self.heartbeat));
        let mut still = Duration::ZERO;
        while !self.stopped() {
            std::thread::sleep(LOOK.min(beat));
            let mut state = self.state();
            let now = Instant::now();
            if let Some(stood) = looks.look(now) {
                // Nobody could be heard meanwhile, and the others may have stood still as well: for that time, and no longer.
                state.peers.values_mut().for_each(|peer| peer.heard = now.min(peer.heard + stood));
                still += stood;
            }
            if beaten.elapsed() >= beat {
                state.tell_all(&Message::Beat, &[]);
                beaten = Instant::now();
                looks.skip();
            }
            let silence = |peer: &Peer| now.saturating_duration_since(peer.heard);
            let silent = |peer: &Peer| !peer.left && !peer.lost && silence(peer) > self.heartbeat;
            let found = state.peers.iter_mut().find(|(_, peer)| silent(peer));
            if let Some((rank, peer)) = found {
                peer.lost = true;
                let reason = format!(
                    "rank {rank} (process {} on {}) has given no sign of life for {:.1} s",
                    peer.member.pid,
                    peer.member.address,
                    silence(peer).as_secs_f64()
                );
                state.end(reason);
            }
            if now.saturating_duration_since(self.join.0) > self.join.1 + still {
                self.miss(&mut state);
            }
            self.settle(&mut state);
        }
    }

    /// Ends a job that somebody has not come to.
    fn miss(&self, state: &mut State) {
        let missing = |rank: &u32| !state.peers.contains_key(rank);
        let missing: Vec<String> =
            (0..self.world).filter(missing).map(|rank| rank.to_string()).collect();
        if !missing.is_empty() {
            let (seconds, missing) = (self.join.1.as_secs_f64(), missing.join(", "));
            state.end(format!("after {seconds:.0} s the job still lacks rank {missing}"));
        }
    }

    fn wait_for_goodbyes(&self) {
        let mut state = self.state();
        let begun = Instant::now();
        loop {
            let here = state.peers.values().any(|peer| !peer.left && !peer.lost);
            let late = state.ending.is_some() && begun.elapsed() > 2 * ACCOUNT;
            let began = state.peers.len() == self.world as usize;
            if !here || late || !began || state.ended {
                return;
            }
            let wait = self.changed.wait_timeout(state, LOOK);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    /// A write that fails is noticed by the reader of the same connection.
    fn tell_all(&mut self, message: &Message, bytes: &[u8]) {
        for peer in self.peers.values_mut().filter(|peer| !peer.lost) {
            let _ = write(&mut peer.stream, message, bytes);
        }
    }

    /// Begins to end the job; the first reason stays.
    fn end(&mut self, reason: String) {
        if self.ending.is_none() {
            let doing = BTreeMap::new();
            self.ending = Some(Ending { reason, begun: Instant::now(), doing });
            self.tell_all(&Message::Ending, &[]);
        }
    }

    fn end_gathers_of_who_left(&mut self) {
        let Self { gathers, peers, .. } = &*self;
        let left = |parts: &BTreeMap<u32, Vec<u8>>| {
            peers.iter().find(|(rank, peer)| peer.left && !parts.contains_key(rank))
        };
        let stuck = gathers.iter().find_map(|(key, parts)| Some((key, left(parts)?)));
        if let Some((key, (rank, _))) = stuck {
            self.end(format!("rank {rank} has left the job while others wait for it in {key}"));
        }
    }
}

impl Ending {
    fn report(&self, peers: &BTreeMap<u32, Peer>) -> String {
        let mut report = self.reason.clone();
        for (rank, peer) in peers {
            let lines = match (self.doing.get(rank), peer.lost, peer.left) {
                (Some(lines), ..) if lines.is_empty() => &["between two pieces of work".to_owned()],
                (Some(lines), ..) => lines.as_slice(),
                (None, true, _) => continue, // the reason speaks of it
                (None, _, true) => &["has left the job".to_owned()],
                (None, ..) => &["has not answered".to_owned()],
            };
            for line in lines {
                report += &format!("\n  rank {rank}: {line}");
            }
        }
        report
    }
}
