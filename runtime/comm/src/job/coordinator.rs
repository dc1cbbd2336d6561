//! The coordinator: rank 0's service that brings the processes of a job together. When one of them fails, dies or falls
//! silent, it ends the job on all of them with one account.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use graphc_host::threads;

use super::JobOptions;
use crate::control::{ControlMessage, Door, Member, read_message, write_message};
use crate::standstill::Looks;

/// The time that members have to say what they were doing when the job ended.
const ACCOUNT: Duration = Duration::from_millis(800);
/// The longest time that a write to a member may take.
const WRITE: Duration = Duration::from_secs(2);
/// The time between two looks of the watch.
const LOOK: Duration = Duration::from_millis(50);

/// The service. Dropping it waits until all members have left.
#[derive(Debug)]
pub(super) struct Coordinator {
    shared: Arc<CoordinatorShared>,
    door: Arc<Door>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct CoordinatorShared {
    world: u32,
    heartbeat: Duration,
    /// The beginning of the wait for all, and how long it may take.
    join: (Instant, Duration),
    state: Mutex<CoordinatorState>,
    changed: Condvar,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct CoordinatorState {
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
    /// The member said goodbye.
    left: bool,
    /// The member is dead or silent.
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
        let shared = Arc::new(CoordinatorShared {
            world: options.world_size,
            heartbeat: options.heartbeat_timeout,
            join: (Instant::now(), options.join_timeout),
            state: Mutex::default(),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let (host, watch, served) = (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&door));
        let threads = vec![
            start_thread("coordinator door", move || {
                served.serve(|stream, rank| host.admit_rank(stream, rank))
            })?,
            start_thread("coordinator watch", move || watch.watch_members())?,
        ];
        Ok(Self { shared, door, threads })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.door.address()
    }
}

fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    threads::start_thread(name, work)
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

impl CoordinatorShared {
    fn lock_state(&self) -> MutexGuard<'_, CoordinatorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Admits a rank of this job. Where there is no thread for it, it is told so.
    fn admit_rank(self: &Arc<Self>, stream: TcpStream, rank: u32) {
        let (shared, answer) = (Arc::clone(self), stream.try_clone());
        let serving =
            start_thread("coordinator connection", move || shared.serve_connection(stream, rank));
        if let (Err(error), Ok(mut answer)) = (serving, answer) {
            let report = format!("rank 0 has no thread for rank {rank}: {error}");
            // Where it is gone it needs to hear nothing.
            let _ = write_message(&mut answer, &ControlMessage::Ended { report }, &[]);
        }
    }

    /// Serves one connection until it closes.
    fn serve_connection(&self, mut stream: TcpStream, rank: u32) {
        let _ = stream.set_write_timeout(Some(WRITE));
        let member = loop {
            match read_message(&mut stream) {
                Ok((ControlMessage::Join(member), _)) => break member,
                Ok((ControlMessage::Beat, _)) => {}
                _ => return,
            }
        };
        if let Err(report) = self.join_member(rank, member, &stream) {
            let _ = write_message(&mut stream, &ControlMessage::Ended { report }, &[]);
            return;
        }
        self.check_version(rank);
        while let Ok((message, bytes)) = read_message(&mut stream) {
            self.accept_message(rank, message, bytes);
        }
        let mut state = self.lock_state();
        let peer = state.peers.get_mut(&rank);
        let Some(peer) = peer.filter(|peer| !peer.left && !peer.lost) else { return };
        peer.lost = true;
        let who = format!("rank {rank} (process {} on {})", peer.member.pid, peer.member.address);
        state.begin_ending(format!("{who} has died: its connection closed without a word"));
        self.report_when_complete(&mut state);
    }

    fn join_member(&self, rank: u32, mut member: Member, stream: &TcpStream) -> Result<(), String> {
        let mut state = self.lock_state();
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
            state.tell_all(&ControlMessage::Roster(roster), &[]);
        }
        Ok(())
    }

    /// Ends a job whose ranks run different versions.
    fn check_version(&self, rank: u32) {
        let mut state = self.lock_state();
        let of = |rank: u32| Some(state.peers.get(&rank)?.member.version.clone());
        // Rank 0 need not be the first to come.
        let first = state.peers.keys().next().copied();
        if let (Some((first, Some(one))), Some(other)) =
            (first.map(|first| (first, of(first))), of(rank))
            && one != other
        {
            state.begin_ending(format!(
                "the ranks run different versions of graphc: rank {first} {one}; rank {rank} {other}"
            ));
        }
        self.report_when_complete(&mut state);
    }

    fn accept_message(&self, rank: u32, message: ControlMessage, bytes: Vec<u8>) {
        let mut state = self.lock_state();
        if let Some(peer) = state.peers.get_mut(&rank) {
            peer.heard = Instant::now();
        }
        match message {
            ControlMessage::Ready { shares } => {
                state.ready.insert(rank, shares);
                if state.ready.len() == self.world as usize {
                    let shares = state.ready.values().copied().collect();
                    state.tell_all(&ControlMessage::Go { shares }, &[]);
                }
            }
            ControlMessage::Gather { key } => self.add_to_gather(&mut state, rank, key, bytes),
            ControlMessage::Failed { reason } => state.begin_ending(reason),
            ControlMessage::Doing { lines } => {
                if let Some(ending) = &mut state.ending {
                    ending.doing.insert(rank, lines);
                }
            }
            ControlMessage::Bye => {
                if let Some(peer) = state.peers.get_mut(&rank) {
                    peer.left = true;
                }
                state.tell_all(&ControlMessage::Left { rank }, &[]);
                state.end_gathers_of_who_left();
            }
            // The others are not for the coordinator; a beat has been heard.
            _ => {}
        }
        self.report_when_complete(&mut state);
    }

    fn add_to_gather(&self, state: &mut CoordinatorState, rank: u32, key: String, bytes: Vec<u8>) {
        if state.ending.is_some() {
            return;
        }
        let parts = state.gathers.entry(key.clone()).or_default();
        parts.insert(rank, bytes);
        if parts.len() == self.world as usize {
            let parts = state.gathers.remove(&key).unwrap_or_default();
            let lengths = parts.values().map(|part| part.len() as u64).collect();
            let whole: Vec<u8> = parts.into_values().flatten().collect();
            state.tell_all(&ControlMessage::Gathered { key, lengths }, &whole);
        }
        state.end_gathers_of_who_left();
    }

    /// Sends the account once all have given theirs.
    fn report_when_complete(&self, state: &mut CoordinatorState) {
        let CoordinatorState { peers, ending, ended, .. } = state;
        if let Some(ending) = ending
            && !*ended
        {
            let silent =
                |(rank, peer): (&u32, &Peer)| !peer.lost && !ending.doing.contains_key(rank);
            if ending.begun.elapsed() > ACCOUNT || !peers.iter().any(silent) {
                let report = ending.report(peers);
                *ended = true;
                state.tell_all(&ControlMessage::Ended { report }, &[]);
            }
        }
        self.changed.notify_all();
    }

    /// Looks for silence, and lets the members hear that rank 0 lives.
    fn watch_members(&self) {
        let beat = (self.heartbeat / 4).min(Duration::from_secs(1));
        let (mut beaten, mut looks) = (Instant::now(), Looks::new(self.heartbeat));
        let mut still = Duration::ZERO;
        while !self.is_stopped() {
            std::thread::sleep(LOOK.min(beat));
            let mut state = self.lock_state();
            let now = Instant::now();
            if let Some(stood) = looks.look(now) {
                // Nobody could be heard meanwhile, and the others may have stood still as well: for that time, and no longer.
                state.peers.values_mut().for_each(|peer| peer.heard = now.min(peer.heard + stood));
                still += stood;
            }
            if beaten.elapsed() >= beat {
                state.tell_all(&ControlMessage::Beat, &[]);
                beaten = Instant::now();
                looks.skip_wait();
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
                state.begin_ending(reason);
            }
            if now.saturating_duration_since(self.join.0) > self.join.1 + still {
                self.end_if_missing(&mut state);
            }
            self.report_when_complete(&mut state);
        }
    }

    /// Ends a job that somebody has not come to.
    fn end_if_missing(&self, state: &mut CoordinatorState) {
        let missing = |rank: &u32| !state.peers.contains_key(rank);
        let missing: Vec<String> =
            (0..self.world).filter(missing).map(|rank| rank.to_string()).collect();
        if !missing.is_empty() {
            let (seconds, missing) = (self.join.1.as_secs_f64(), missing.join(", "));
            state.begin_ending(format!("after {seconds:.0} s the job still lacks rank {missing}"));
        }
    }

    fn wait_for_goodbyes(&self) {
        let mut state = self.lock_state();
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

impl CoordinatorState {
    /// Sends a message to all. A write that fails is noticed by the reader of the same connection.
    fn tell_all(&mut self, message: &ControlMessage, bytes: &[u8]) {
        for peer in self.peers.values_mut().filter(|peer| !peer.lost) {
            let _ = write_message(&mut peer.stream, message, bytes);
        }
    }

    /// Begins to end the job; the first reason stays.
    fn begin_ending(&mut self, reason: String) {
        if self.ending.is_none() {
            let doing = BTreeMap::new();
            self.ending = Some(Ending { reason, begun: Instant::now(), doing });
            self.tell_all(&ControlMessage::Ending, &[]);
        }
    }

    fn end_gathers_of_who_left(&mut self) {
        let Self { gathers, peers, .. } = &*self;
        let left = |parts: &BTreeMap<u32, Vec<u8>>| {
            peers.iter().find(|(rank, peer)| peer.left && !parts.contains_key(rank))
        };
        let stuck = gathers.iter().find_map(|(key, parts)| Some((key, left(parts)?)));
        if let Some((key, (rank, _))) = stuck {
            self.begin_ending(format!(
                "rank {rank} has left the job while others wait for it in {key}"
            ));
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
