//! The hub of a communicator: a thread that listens for the ranks, one that reads what each says, and one state.
//!
//! It ends when all ranks have left. Until all are there it waits as long as [`patience`] says. It waits as long again
//! for a rank that others wait for, after the last thing that any rank said or did. Then it breaks the communicator, with
//! a sentence that names who waits for whom. Real NCCL would hang.

mod combine;
mod matching;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use matching::Matching;

use super::call::Call;
use super::wire::{Place, ToHub, ToMember, receive, send};

/// Returns the longest time for which somebody may be waited for: `GPU_DOUBLE_PATIENCE` seconds, 20 if unset.
pub fn patience() -> Duration {
    let seconds = std::env::var("GPU_DOUBLE_PATIENCE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(20.0))
}

/// Begins the hub of a communicator of so many ranks in a thread of its own.
pub fn start(listener: UnixListener, name: &str, ranks: usize) -> io::Result<()> {
    let name = name.to_string();
    listener.set_nonblocking(true)?;
    let thread = std::thread::Builder::new().name("nccl double's hub".into());
    thread.spawn(move || serve(&listener, name, ranks)).map(drop)
}

/// All that is known of the ranks.
struct State {
    name: String,
    /// Ends of those ranks that have come and not left, by rank.
    links: BTreeMap<usize, UnixStream>,
    cards: BTreeMap<usize, String>,
    dead: Vec<usize>,
    left: Vec<usize>,
    matching: Matching,
    splits: BTreeMap<usize, (i32, i32)>,
    broken: Option<String>,
    last_word: Instant,
    ranks: usize,
}

type Shared = Arc<Mutex<State>>;

fn lock(state: &Shared) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// The time after which the hub looks again whether somebody came.
const DOOR: Duration = Duration::from_millis(2);
/// The time after which it looks again whether somebody is waited for too long.
const LOOK: Duration = Duration::from_millis(50);

fn serve(listener: &UnixListener, name: String, ranks: usize) {
    let state = Arc::new(Mutex::new(State::new(name, ranks)));
    let begun = Instant::now();
    while lock(&state).links.len() < ranks {
        match listener.accept() {
            Ok((stream, _)) => admit(stream, &state),
            Err(_) => std::thread::sleep(DOOR),
        }
        if begun.elapsed() > patience() {
            return lock(&state).refuse();
        }
    }
    if lock(&state).broken.is_some() {
        return lock(&state).refuse();
    }
    for (rank, stream) in lock(&state).begin() {
        let state = state.clone();
        std::thread::spawn(move || listen(rank, stream, &state));
    }
    while !lock(&state).links.is_empty() {
        std::thread::sleep(LOOK);
        lock(&state).look();
    }
}

/// A rank comes and says which it is.
fn admit(mut stream: UnixStream, state: &Shared) {
    let hello = stream.set_nonblocking(false).and_then(|()| receive::<ToHub>(&mut stream));
    if let Ok((ToHub::Hello { rank, ranks, card }, _)) = hello {
        lock(state).admit(rank, ranks, card, stream);
    }
}

/// Hears a rank until it leaves or dies.
fn listen(rank: usize, mut stream: UnixStream, state: &Shared) {
    while let Ok((message, bytes)) = receive::<ToHub>(&mut stream) {
        let mut state = lock(state);
        state.last_word = Instant::now();
        match message {
            ToHub::Post { operation, calls } => state.post(rank, operation, calls, &bytes),
            ToHub::Split { color, key } => state.split(rank, color, key),
            ToHub::Pulse => {}
            ToHub::Goodbye => {
                state.left.push(rank);
                state.tell_all(&ToMember::Left { rank });
            }
            ToHub::Hello { .. } => break,
        }
    }
    lock(state).gone(rank);
}

impl State {
    fn new(name: String, ranks: usize) -> State {
        State {
            name,
            links: BTreeMap::new(),
            cards: BTreeMap::new(),
            dead: Vec::new(),
            left: Vec::new(),
            matching: Matching::new(ranks),
            splits: BTreeMap::new(),
            broken: None,
            last_word: Instant::now(),
            ranks,
        }
    }

    fn admit(&mut self, rank: usize, ranks: usize, card: String, stream: UnixStream) {
        let same = self.cards.iter().find(|(_, other)| **other == card);
        let problem = || {
            if ranks != self.ranks || rank >= ranks {
                return Some(format!(
                    "rank {rank} of {ranks} comes where there are {}",
                    self.ranks
                ));
            }
            if self.links.contains_key(&rank) {
                return Some(format!("two processes or threads are rank {rank}"));
            }
            same.map(|(other, _)| format!("ranks {other} and {rank} use one device, {card}"))
        };
        self.broken = self.broken.take().or_else(problem);
        // A rank that is none keeps its link, to hear why.
        let place = if self.links.contains_key(&rank) { ranks + rank } else { rank };
        self.links.insert(place, stream);
        self.cards.insert(place, card);
    }

    fn absent(&self) -> String {
        let absent = (0..self.ranks).filter(|rank| !self.links.contains_key(rank));
        let absent: Vec<String> = absent.map(|rank| rank.to_string()).collect();
        format!("ranks {} of {} have not come", absent.join(", "), self.ranks)
    }

    /// Refuses the communicator: because ranks contradict each other, or else because some have not come.
    fn refuse(&mut self) {
        let usage = self.broken.is_some();
        let reason = self.broken.take().unwrap_or_else(|| self.absent());
        self.tell_all(&ToMember::Refused { usage, reason });
        self.links.clear();
    }

    /// Begins the communicator when all ranks are there; gives the ends from which they are heard.
    fn begin(&mut self) -> Vec<(usize, UnixStream)> {
        self.tell_all(&ToMember::Welcome);
        self.last_word = Instant::now();
        let clones = self.links.iter().map(|(rank, link)| (*rank, link.try_clone()));
        clones.filter_map(|(rank, link)| Some((rank, link.ok()?))).collect()
    }

    /// Says something to all ranks, to rank 0 last: the hub may end with it.
    fn tell_all(&mut self, message: &ToMember) {
        for link in self.links.values_mut().rev() {
            // A rank that cannot be told is gone; who listens to it says so.
            let _ = send(link, message, &[]);
        }
    }

    fn tell(&mut self, rank: usize, message: &ToMember, bytes: &[u8]) {
        if let Some(link) = self.links.get_mut(&rank) {
            // As above.
            let _ = send(link, message, bytes);
        }
    }

    fn post(&mut self, rank: usize, operation: u64, calls: Vec<Call>, bytes: &[u8]) {
        if let Some(reason) = self.broken.clone() {
            return self.tell(rank, &ToMember::Broken { reason }, &[]);
        }
        match self.matching.post(rank, operation, calls, bytes) {
            Ok(finished) => {
                for done in finished {
                    let message = ToMember::Done { operation: done.operation };
                    self.tell(done.rank, &message, &done.bytes);
                }
            }
            Err(reason) => self.break_down(reason),
        }
    }

    /// Ends all that ranks do here, for a reason that is said once.
    fn break_down(&mut self, reason: String) {
        let reason = format!("communicator {}: {reason}", self.name);
        eprintln!("gpu double: nccl: {reason}");
        self.tell_all(&ToMember::Broken { reason: reason.clone() });
        self.broken = Some(reason);
    }

    /// Places ranks in new communicators, when all have said what they want.
    fn split(&mut self, rank: usize, color: i32, key: i32) {
        self.splits.insert(rank, (color, key));
        if self.splits.len() < self.ranks {
            return;
        }
        let wishes = std::mem::take(&mut self.splits);
        let mut groups: BTreeMap<i32, Vec<(i32, usize)>> = BTreeMap::new();
        for (rank, (color, key)) in &wishes {
            groups.entry(*color).or_default().push((*key, *rank));
        }
        for (color, mut members) in groups {
            members.sort_unstable();
            let name = super::init::fresh_name();
            for (place, (_, rank)) in members.iter().enumerate() {
                let ranks = members.len();
                let place = Place { name: name.clone(), rank: place, ranks };
                let place = (color >= 0).then_some(place);
                self.tell(*rank, &ToMember::Placed { place }, &[]);
            }
        }
    }

    /// A rank's end is closed: as it should, or because it died.
    fn gone(&mut self, rank: usize) {
        self.links.remove(&rank);
        if !self.left.contains(&rank) {
            self.dead.push(rank);
            self.tell_all(&ToMember::Dead { rank });
        }
    }

    /// Breaks the communicator if somebody waits for too long.
    fn look(&mut self) {
        if self.broken.is_some() || self.last_word.elapsed() < patience() {
            return;
        }
        let mut waits = self.matching.waits();
        waits.extend(self.splits.keys().map(|rank| format!("rank {rank} waits in CommSplit")));
        if waits.is_empty() {
            return;
        }
        let waited =
            format!("nothing was done for {:.1} s", self.last_word.elapsed().as_secs_f64());
        let others: Vec<String> = (0..self.ranks).filter_map(|rank| self.absence(rank)).collect();
        self.break_down(format!("{waited}: {}", [waits, others].concat().join("; ")));
    }

    /// Explains why a rank that does not wait might be waited for; `None` if it waits.
    fn absence(&self, rank: usize) -> Option<String> {
        if self.dead.contains(&rank) {
            return Some(format!("rank {rank} has died"));
        }
        if self.left.contains(&rank) {
            return Some(format!("rank {rank} has left"));
        }
        let called = self.matching.called(rank);
        let waits = self.matching.is_waiting(rank) || self.splits.contains_key(&rank);
        (!waits)
            .then(|| format!("rank {rank} has called {called} collectives here and waits in none"))
    }
}
