//! The parts of a task that are still to be done.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::explore::point;

/// The parts of each thread, which are neighbours.
#[derive(Debug)]
pub(super) struct ThreadParts {
    count: AtomicUsize,
    next: Box<[Next]>,
}

/// The first part of a thread that nobody has taken; cache lines of their own, and of the line that comes with them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Next(AtomicUsize);

impl ThreadParts {
    /// Makes the state for so many threads.
    pub(super) fn for_threads(threads: usize) -> Self {
        Self { count: AtomicUsize::new(0), next: (0..threads).map(|_| Next::default()).collect() }
    }

    pub(super) fn threads(&self) -> usize {
        self.next.len()
    }

    /// Deals out so many parts, while nobody takes any.
    pub(super) fn deal(&self, count: usize) {
        self.count.store(count, Ordering::Relaxed);
        for (thread, next) in self.next.iter().enumerate() {
            next.0.store(self.first_of(thread, count), Ordering::Relaxed);
        }
    }

    /// Takes parts until none is left: those of a thread, then those of the others in turn.
    pub(super) fn take_each(&self, thread: usize, work: &dyn Fn(usize)) {
        let count = self.count.load(Ordering::Relaxed);
        for of in (thread..self.threads()).chain(0..thread) {
            let end = self.first_of(of + 1, count);
            loop {
                point();
                let part = self.next[of].0.fetch_add(1, Ordering::Relaxed);
                if part >= end {
                    break;
                }
                work(part);
            }
        }
    }

    fn first_of(&self, thread: usize, count: usize) -> usize {
        thread * count / self.threads()
    }
}
