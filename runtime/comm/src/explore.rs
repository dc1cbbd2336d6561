//! Points at which a test may switch between threads.
//!
//! In tests that explore, threads are those of shuttle, one of which runs at a time, and every point lets its scheduler
//! choose who goes on. Between two points nobody else runs; so points stand before each change that another thread may
//! see, and sleeping is going from point to point until somebody wakes the sleeper. A wake-up that gets lost is then a
//! test that never ends, which shuttle reports with the schedule. Memory orders are not explored. Without the feature
//! `explore`, which tests of other crates switch on, a point is nothing.

#[cfg(any(test, feature = "explore"))]
pub use points::explore;
pub use points::{exploring, point};

#[cfg(not(any(test, feature = "explore")))]
mod points {
    /// A point.
    #[inline(always)]
    pub fn point() {}

    /// Whether threads are a test's that explores.
    #[inline(always)]
    pub const fn exploring() -> bool {
        false
    }
}

#[cfg(any(test, feature = "explore"))]
mod points {
    use std::cell::Cell;

    thread_local! {
        static EXPLORING: Cell<bool> = const { Cell::new(false) };
    }

    /// A point.
    pub fn point() {
        if exploring() {
            shuttle::thread::yield_now();
        }
    }

    /// Whether threads are a test's that explores.
    pub fn exploring() -> bool {
        EXPLORING.get()
    }

    /// Runs `work` under so many schedules.
    pub fn explore(schedules: usize, work: impl Fn() + Send + Sync + 'static) {
        EXPLORING.set(true);
        let work = std::sync::Arc::new(work);
        let random = std::sync::Arc::clone(&work);
        shuttle::check_random(move || random(), schedules / 2);
        shuttle::check_pct(move || work(), schedules / 2, 3);
        EXPLORING.set(false);
    }
}
