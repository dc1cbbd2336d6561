//! The threads that share a rank's kernels: one for each core that the rank has, of which the caller is the first.
//!
//! A kernel is some microseconds of work, so handing it over must take less: it takes a few hundred nanoseconds and allocates
//! nothing. The helpers look for work for a while before they sleep (200 us in the runtime), so that the next kernel of a step
//! finds them awake. If ranks have more threads than there are cores, helpers yield a few times and then sleep. Nobody waits for
//! a thread that has not begun.
//!
//! A kernel cuts its work into parts, by shape and number of threads, between rows or blocks whose results are independent. The
//! way of a task:
//!
//! 1. The caller writes down where the work is and which parts each thread begins with. It opens the [`gate`] and wakes sleepers.
//! 2. A helper that sees the gate open enters, which is counted. It takes its own parts first, because its cache has the data of
//!    the same part of the kernel before. Then it takes parts that others have not come to.
//! 3. The caller does the same. When no part is left it shuts the gate, and waits until all who entered have left.
//!
//! A part computes the same whoever does it. The tests explore the hand-over under many schedules (`explored`). Start reading
//! with [`ThreadPool::run`].

mod gate;
mod parts;
mod sleeper;

#[cfg(test)]
mod explored;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::explore::{exploring, point};
use gate::TaskGate;
use parts::ThreadParts;
use sleeper::PoolSleeper;

/// The number of times that a wait yields before it sleeps.
const YIELDS: u32 = 16;
/// Looks between two readings of the clock, which cost as much as some of them.
const LOOKS: u32 = 16;

/// Threads that work on one thing at a time together with their caller.
#[derive(Debug)]
pub struct ThreadPool {
    crew: Arc<Crew>,
    helpers: Vec<JoinHandle<()>>,
}

/// The state that the threads share.
#[derive(Debug)]
struct Crew {
    /// Held by the caller whose work it is.
    calling: Mutex<()>,
    gate: TaskGate,
    parts: ThreadParts,
    /// The [`Work`] of the open task, which lies on the caller's stack.
    work: AtomicPtr<()>,
    /// The waiting points of the helpers.
    sleepers: Box<[PoolSleeper]>,
    /// The time for which a thread looks for work before it yields.
    spin: Duration,
}

/// A task, as threads find it.
struct Work<'a> {
    of_part: &'a (dyn Fn(usize) + Sync),
}

impl ThreadPool {
    /// Starts a pool of so many threads, the caller of [`ThreadPool::run`] included. A helper looks for work for `spin` before it sleeps: 0
    /// where others need the cores. Helpers are named by their numbers, from 1.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread.
    pub fn new(
        threads: usize,
        spin: Duration,
        name: impl Fn(usize) -> String,
    ) -> std::io::Result<Self> {
        let crew = Arc::new(Crew::new(threads, spin));
        let mut pool = Self { crew, helpers: Vec::new() };
        for index in 1..threads {
            let crew = Arc::clone(&pool.crew);
            let helper = std::thread::Builder::new().name(name(index));
            // Where one cannot be started the pool is dropped and ends those that were.
            pool.helpers.push(helper.spawn(move || crew.help(index))?);
        }
        Ok(pool)
    }

    /// Returns the number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.crew.parts.threads()
    }

    /// Calls `work` once with each number below `count`, and returns when all calls have. Where the threads are at work
    /// for another caller, or this is one of the calls, the caller does everything itself.
    ///
    /// # Panics
    /// With what a call panics with, after all others have returned.
    pub fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        self.crew.run(count, work);
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.crew.end();
        for helper in self.helpers.drain(..) {
            // Helpers catch what calls panic with.
            let _ = helper.join();
        }
    }
}

impl Crew {
    fn new(threads: usize, spin: Duration) -> Self {
        Self {
            calling: Mutex::new(()),
            gate: TaskGate::default(),
            parts: ThreadParts::for_threads(threads.max(1)),
            work: AtomicPtr::default(),
            sleepers: (1..threads).map(|_| PoolSleeper::default()).collect(),
            spin,
        }
    }

    fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        let calling = match self.calling.try_lock() {
            Ok(calling) => calling,
            Err(TryLockError::Poisoned(calling)) => calling.into_inner(),
            Err(TryLockError::WouldBlock) => return (0..count).for_each(work),
        };
        let panicked: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
        let of_part = |part: usize| {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(part))) {
                panicked.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
        };
        self.share(count, &Work { of_part: &of_part });
        drop(calling);
        if let Some(panic) = panicked.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }

    /// Has all parts done; `work` does not panic.
    fn share(&self, count: usize, work: &Work<'_>) {
        self.parts.deal(count);
        self.work.store(std::ptr::from_ref(work).cast_mut().cast(), Ordering::Relaxed);
        point();
        self.gate.open();
        for sleeper in self.sleepers.iter().take(count.saturating_sub(1)) {
            sleeper.wake();
        }
        self.parts.take_each(0, work.of_part);
        point();
        self.gate.shut();
        self.until(|| self.gate.is_empty());
    }

    /// The loop of a helper until the pool ends.
    fn help(&self, index: usize) {
        let sleeper = &self.sleepers[index - 1];
        let mut seen = 0;
        while let Some(task) = self.next_task(seen, sleeper) {
            seen = task;
            if self.gate.enter(task) {
                self.help_with(index);
                self.gate.leave();
            }
        }
    }

    /// Takes parts of the open task, whose gate this thread has entered.
    fn help_with(&self, index: usize) {
        let work = self.work.load(Ordering::Relaxed).cast::<Work<'_>>();
        // SAFETY: the caller has written the address of its task before it opened the gate, which entering has seen; the
        // task lives, unchanged, until the caller has shut the gate and seen all leave, and this thread has not left.
        let work = unsafe { &*work };
        self.parts.take_each(index, work.of_part);
    }

    /// The number of the first task after `seen` that this thread comes to; `None` where the pool has ended.
    fn next_task(&self, seen: u64, sleeper: &PoolSleeper) -> Option<u64> {
        let is_other = || self.gate.last_task() != seen;
        self.look(self.spin, YIELDS, &is_other);
        while !is_other() {
            sleeper.sleep(&is_other);
        }
        Some(self.gate.last_task()).filter(|&task| task != TaskGate::ENDED)
    }

    fn end(&self) {
        self.gate.end();
        self.sleepers.iter().for_each(PoolSleeper::wake);
    }

    /// Waits until those who are at work are done, which are parts of a kernel.
    fn until(&self, ready: impl Fn() -> bool) {
        while !ready() {
            self.look(self.spin, YIELDS, &ready);
        }
    }

    /// Looks for some time whether it is so, then lets other threads have the core in between.
    fn look(&self, time: Duration, yields: u32, ready: &dyn Fn() -> bool) {
        if exploring() {
            return point();
        }
        let begun = Instant::now();
        while begun.elapsed() < time {
            for _ in 0..LOOKS {
                if ready() {
                    return;
                }
                std::hint::spin_loop();
            }
        }
        for _ in 0..yields {
            if ready() {
                return;
            }
            std::thread::yield_now();
        }
    }
}
