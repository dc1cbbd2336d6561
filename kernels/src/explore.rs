//! Points at which a test may switch between threads, as in the runtime.
//!
//! In tests that explore, threads are those of shuttle, one of which runs at a time, and every point lets its scheduler
//! choose who goes on; sleeping is going from point to point until somebody wakes the sleeper. Memory orders are not
//! explored. Elsewhere a point is nothing.

#[cfg(test)]
pub(crate) use points::explore;
pub(crate) use points::{exploring, point};

#[cfg(not(test))]
mod points {
    /// A point.
    #[inline(always)]
    pub(crate) fn point() {}

    /// Whether threads are a test's that explores.
    #[inline(always)]
    pub(crate) const fn exploring() -> bool {
        false
    }
}

#[cfg(test)]
mod points {
    use std::cell::Cell;

    thread_local! {
        static EXPLORING: Cell<bool> = const { Cell::new(false) };
    }

    /// A point.
    pub(crate) fn point() {
        if exploring() {
            shuttle::thread::yield_now();
        }
    }

    /// Whether threads are a test's that explores.
    pub(crate) fn exploring() -> bool {
        EXPLORING.get()
    }

    /// Runs `work` under so many schedules.
    pub(crate) fn explore(schedules: usize, work: impl Fn() + Send + Sync + 'static) {
        EXPLORING.set(true);
        let work = std::sync::Arc::new(work);
        let random = std::sync::Arc::clone(&work);
        shuttle::check_random(move || random(), schedules / 2);
        shuttle::check_pct(move || work(), schedules / 2, 3);
        EXPLORING.set(false);
    }
}
