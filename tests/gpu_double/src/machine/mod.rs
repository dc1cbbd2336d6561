//! The cards with their streams: operations are appended by the driver's calls and executed by one thread, in an order
//! that a seed chooses among all that streams and events allow.
//!
//! The operations that come before another are known when it is appended. So whether two operations are in order does not depend on which
//! of them happened to be executed first. Everything is behind one lock ([`with`]); only callbacks of the host run outside of it. Start
//! reading with [`Machine`], then `execute`.

mod capture;
mod events;
mod execute;
mod graphs;
mod host;
mod modules;
mod streams;
mod task;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, Once};

use crate::account;
use crate::code::Code;
use crate::kernel::Loaded;
use crate::memory::{Clock, Space};
use crate::settings::Settings;

pub use capture::CaptureMode;
pub use task::{Copy, End, Pointer, Task};

use capture::Capture;
use events::Event;
use graphs::{Executable, Graph};
use host::Pledge;
use modules::Function;
use streams::Stream;

/// See the module.
pub struct Machine {
    /// Memory of all cards and pinned memory.
    pub space: Space,
    /// The settings of the cards, from the environment.
    pub settings: Settings,
    streams: Vec<Stream>,
    defaults: BTreeMap<i32, u32>,
    events: BTreeMap<u64, Event>,
    captures: BTreeMap<u64, Capture>,
    graphs: BTreeMap<u64, Graph>,
    executables: BTreeMap<u64, Executable>,
    modules: BTreeMap<u64, Loaded>,
    functions: BTreeMap<u64, Function>,
    pledges: Vec<Pledge>,
    handles: u64,
    /// The operations that the host program knows to be done.
    host: Clock,
    fault: Option<Code>,
    random: u64,
}

struct Shared {
    machine: Mutex<Machine>,
    /// The signal that something was appended, or done.
    news: Condvar,
    /// Calls that wait for the lock: they go before the next operation.
    calls: AtomicUsize,
}

static SHARED: LazyLock<Shared> = LazyLock::new(|| Shared {
    machine: Mutex::new(Machine::new(Settings::of_environment())),
    news: Condvar::new(),
    calls: AtomicUsize::new(0),
});

/// Does something with the machine, whose executor is told of it.
pub fn with<R>(action: impl FnOnce(&mut Machine) -> R) -> R {
    if account::is_empty() {
        return action(&mut lock());
    }
    start_executor();
    let mut machine = lock();
    let result = action(&mut machine);
    SHARED.news.notify_all();
    result
}

/// A driver call: refused with the sticky error after a fault.
pub fn call(action: impl FnOnce(&mut Machine) -> Result<(), Code>) -> i32 {
    let result = account::measured(|| {
        with(|machine| match machine.fault {
            Some(code) => Err(code),
            None => action(machine),
        })
    });
    result.map_or_else(|code| code as i32, |()| Code::Success as i32)
}

/// A place in a stream: an operation, and all that comes before it.
#[derive(Clone, Debug)]
pub struct Place {
    /// Number of the stream.
    pub stream: u32,
    /// Number of the operation there.
    pub tick: u32,
    /// The operations that come before it.
    pub clock: Clock,
}

/// A driver call that waits until the streams have come to the places that `action` names.
pub fn wait(action: impl FnOnce(&mut Machine) -> Result<Vec<Place>, Code>) -> i32 {
    if account::is_empty() {
        return call(|machine| action(machine).map(|_| ()));
    }
    account::measured(|| waited(action))
}

fn waited(action: impl FnOnce(&mut Machine) -> Result<Vec<Place>, Code>) -> i32 {
    start_executor();
    let mut machine = lock();
    let awaited = match machine.fault.map_or_else(|| action(&mut machine), Err) {
        Ok(awaited) => awaited,
        Err(code) => return code as i32,
    };
    SHARED.news.notify_all();
    while machine.fault.is_none() && !machine.all_done(&awaited) {
        machine = SHARED.news.wait(machine).unwrap_or_else(|poison| poison.into_inner());
    }
    machine.learn(&awaited);
    machine.fault.map_or(Code::Success as i32, |code| code as i32)
}

fn lock() -> MutexGuard<'static, Machine> {
    SHARED.calls.fetch_add(1, Ordering::SeqCst);
    let machine = SHARED.machine.lock().unwrap_or_else(|poison| poison.into_inner());
    SHARED.calls.fetch_sub(1, Ordering::SeqCst);
    machine
}

fn start_executor() {
    static START: Once = Once::new();
    START.call_once(|| {
        let executor = std::thread::Builder::new().name(String::from("gpu double"));
        executor.spawn(execute::run).expect("a process can have one more thread");
    });
}

impl Machine {
    fn new(settings: Settings) -> Machine {
        Machine {
            space: Space::default(),
            random: settings.seed,
            settings,
            streams: Vec::new(),
            defaults: BTreeMap::new(),
            events: BTreeMap::new(),
            captures: BTreeMap::new(),
            graphs: BTreeMap::new(),
            executables: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            pledges: Vec::new(),
            handles: 0,
            host: Clock::default(),
            fault: None,
        }
    }

    /// Ends all that the cards do: an error that stays. Printed once.
    pub fn fail(&mut self, code: Code, text: &str) {
        if self.fault.is_none() {
            eprintln!("gpu double: {text}");
            self.fault = Some(code);
        }
        self.streams.iter_mut().for_each(Stream::abandon);
    }

    /// Frees an allocation, which nothing may use any more.
    pub fn free(&mut self, address: u64) -> Result<(), Code> {
        let known = self.host.clone();
        self.space.free(address, &known).map_err(|text| {
            self.fail(Code::IllegalAddress, &text);
            Code::IllegalAddress
        })
    }

    /// Whether the streams have come to some places, of which the host program then knows.
    pub fn query(&mut self, places: &[Place]) -> Result<(), Code> {
        if !self.all_done(places) {
            return Err(Code::NotReady);
        }
        self.learn(places);
        self.fault.map_or(Ok(()), Err)
    }

    /// A handle that was never given before, and that is no address.
    fn handle(&mut self, kind: u64) -> u64 {
        self.handles += 1;
        kind << 48 | self.handles << 4
    }

    /// The next of the seed's numbers below `limit` (PCG's multiplier).
    fn choose(&mut self, limit: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) as usize % limit.max(1)
    }
}
