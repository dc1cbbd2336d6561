//! The thread that executes what streams are given: one operation at a time, of a stream that the seed chooses.

use std::ffi::c_void;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::streams::Operation;
use super::task::Pointer;
use super::{Copy, End, Machine, SHARED, Task};
use crate::code::Code;
use crate::kernel::{self, Launch, Stats};
use crate::memory::Access;
use crate::settings::Settings;
use crate::work::Poll;

/// The time for which streams rest that wait for other processes.
const REST: Duration = Duration::from_micros(50);

/// The result of a turn.
enum Turn {
    /// Something was done.
    Done,
    /// A function of the host program is to be called, outside of the lock.
    Call(u32, Operation),
    /// All that could be done waits for somebody else.
    Waits,
    /// There is nothing to do.
    Idle,
}

/// The result of an operation.
enum Outcome {
    Done,
    NotYet,
    Failed(Code, String),
}

/// Ends the process if the executor ends, because streams would wait for it for ever.
struct Last;

impl Drop for Last {
    fn drop(&mut self) {
        eprintln!("gpu double: the executor has ended, which is an error of the double");
        std::process::abort();
    }
}

/// Executes until the process ends.
pub(super) fn run() {
    let _last = Last;
    loop {
        while SHARED.calls.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        let mut machine = SHARED.machine.lock().unwrap_or_else(|poison| poison.into_inner());
        match machine.turn() {
            Turn::Done => SHARED.news.notify_all(),
            Turn::Idle => drop(SHARED.news.wait(machine)),
            Turn::Waits => drop(SHARED.news.wait_timeout(machine, REST)),
            Turn::Call(stream, operation) => {
                drop(machine);
                call_back(stream, operation);
            }
        }
    }
}

/// Calls a function of the host program, which then knows what came before it.
fn call_back(stream: u32, operation: Operation) {
    if let Task::Callback(function, Pointer(data)) = operation.task {
        invoke(function, data);
    }
    let mut machine = SHARED.machine.lock().unwrap_or_else(|poison| poison.into_inner());
    machine.finish(stream, operation.tick);
    SHARED.news.notify_all();
}

fn invoke(function: extern "C" fn(*mut c_void), data: *mut c_void) {
    function(data);
}

impl Machine {
    /// Executes the next operation of a stream that can go on.
    fn turn(&mut self) -> Turn {
        let mut ready = self.ready();
        if ready.is_empty() {
            return Turn::Idle;
        }
        while !ready.is_empty() {
            let chosen = self.choose(ready.len());
            let stream = ready.swap_remove(chosen);
            let queue = &mut self.streams[stream as usize].queue;
            let operation = queue.pop_front().expect("a ready stream has an operation");
            if matches!(operation.task, Task::Callback(..)) {
                self.told(&operation.clock);
                return Turn::Call(stream, operation);
            }
            if self.attempt(stream, operation) {
                return Turn::Done;
            }
        }
        Turn::Waits
    }

    /// Streams whose next operation waits for nothing.
    fn ready(&self) -> Vec<u32> {
        let streams = (0..).zip(&self.streams);
        let ready = streams.filter(|(_, stream)| {
            stream.queue.front().is_some_and(|operation| {
                let done = |(other, tick): &(u32, u32)| self.streams[*other as usize].done >= *tick;
                operation.waits.iter().all(done) && operation.tick == stream.done + 1
            })
        });
        ready.map(|(number, _)| number).collect()
    }

    /// Whether the operation was done; one that waits for others goes back to its place.
    fn attempt(&mut self, stream: u32, mut operation: Operation) -> bool {
        self.streams[stream as usize].time += 2000;
        match self.execute(stream, &mut operation) {
            Outcome::Done => self.finish(stream, operation.tick),
            Outcome::NotYet => {
                self.streams[stream as usize].queue.push_front(operation);
                return false;
            }
            Outcome::Failed(code, text) => {
                let name = self.space.operations().describe(operation.number);
                self.fail(code, &format!("{name}: {text}"));
            }
        }
        true
    }

    fn finish(&mut self, stream: u32, tick: u32) {
        crate::work::advance();
        let chosen = &mut self.streams[stream as usize];
        chosen.done = chosen.done.max(tick);
    }

    fn execute(&mut self, stream: u32, operation: &mut Operation) -> Outcome {
        let device = self.streams[stream as usize].device;
        let number = operation.number;
        match &mut operation.task {
            Task::Nothing | Task::Callback(..) => Outcome::Done,
            Task::Reach(event) => {
                self.reach(*event, stream, operation.tick);
                Outcome::Done
            }
            Task::Free(address) => outcome(self.space.free(*address, &operation.clock)),
            Task::Copy(copy) => {
                if let End::Memory(to) = copy.to {
                    self.release(to, copy.bytes);
                }
                let memory = self.access(number, &operation.clock, None);
                outcome(copy_bytes(copy, memory))
            }
            Task::Fill { to, pattern, times } => {
                let memory = self.access(number, &operation.clock, Some(device));
                outcome(fill(*to, pattern, *times, memory))
            }
            Task::Work(work) => {
                let mut memory = self.access(number, &operation.clock, Some(device));
                match work.poll(&mut memory) {
                    Poll::Done => {
                        self.streams[stream as usize].time += work.nanoseconds();
                        let name = work.accounted();
                        name.into_iter().for_each(|name| write(&self.settings, &name));
                        Outcome::Done
                    }
                    Poll::NotYet => Outcome::NotYet,
                    Poll::Failed(text) => Outcome::Failed(Code::LaunchFailed, text),
                }
            }
            Task::Launch(launch) => {
                let seed = (self.choose(1 << 31) as u64) << 32 | self.choose(1 << 31) as u64;
                let mut memory = self.access(number, &operation.clock, Some(device));
                match kernel::run(launch, &mut memory, seed) {
                    Ok(stats) => {
                        self.streams[stream as usize].time += stats.instructions / 100;
                        account(&self.settings, launch, &stats);
                        Outcome::Done
                    }
                    Err(report) => Outcome::Failed(report.code(), report.to_string()),
                }
            }
        }
    }

    fn access<'a>(
        &'a mut self,
        operation: u32,
        clock: &'a crate::memory::Clock,
        device: Option<i32>,
    ) -> Access<'a> {
        Access { space: &mut self.space, operation, clock, device }
    }
}

/// A line for a kernel that was executed: its name, blocks, instructions, and the sectors of loads and
/// stores beside the least that they could be.
fn account(settings: &Settings, launch: &Launch, stats: &Stats) {
    let Stats { instructions, loads, stores } = stats;
    let blocks: u32 = launch.grid.iter().product();
    let line = format!(
        "{} {blocks} {instructions} {} {} {} {}",
        launch.name, loads.sectors, loads.least, stores.sectors, stores.least
    );
    write(settings, &line);
}

/// Writes a line of the account, where somebody wants it.
fn write(settings: &Settings, line: &str) {
    let Some(path) = &settings.account else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    if let Err(error) = file.and_then(|mut file| writeln!(file, "{line}")) {
        eprintln!("gpu double: {} is not written: {error}", path.display());
    }
}

fn outcome(result: Result<(), String>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(text) => Outcome::Failed(Code::IllegalAddress, text),
    }
}

fn copy_bytes(copy: &Copy, mut memory: Access<'_>) -> Result<(), String> {
    let taken;
    let from = match &copy.from {
        End::Memory(from) => {
            taken = memory.read(*from, copy.bytes)?.to_vec();
            &taken
        }
        End::Taken(bytes) => bytes,
        End::Host(_) => return Err(String::from("a copy reads what was not taken")),
    };
    match &copy.to {
        End::Memory(to) => memory.write(*to, copy.bytes)?.copy_from_slice(from),
        End::Host(to) => to.put(from),
        End::Taken(_) => return Err(String::from("a copy writes what was taken")),
    }
    Ok(())
}

fn fill(to: u64, pattern: &[u8], times: usize, mut memory: Access<'_>) -> Result<(), String> {
    let bytes = memory.write(to, pattern.len() * times)?;
    bytes.chunks_exact_mut(pattern.len()).for_each(|place| place.copy_from_slice(pattern));
    Ok(())
}
