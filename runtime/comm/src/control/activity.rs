//! The activity of a process, for the account of a job that ends: each worker says which action it is in, and each wait
//! that takes long says for whom and for what.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

/// The activity of one thread.
#[derive(Debug)]
pub struct Activity {
    name: String,
    /// Names of the actions that it may be in.
    actions: Vec<String>,
    /// The step and the action, each plus one; 0 between steps.
    at: [AtomicU64; 2],
    wait: Mutex<Option<(Instant, String)>>,
}

impl Activity {
    /// Notes which action of which step has begun.
    #[inline]
    pub fn begin_action(&self, step: u64, action: usize) {
        self.at[0].store(step + 1, Ordering::Relaxed);
        self.at[1].store(action as u64 + 1, Ordering::Relaxed);
    }

    /// Notes that no action is under way.
    pub fn note_idle(&self) {
        self.at[1].store(0, Ordering::Relaxed);
    }

    fn status_line(&self) -> String {
        let [step, action] = [0, 1].map(|i| self.at[i].load(Ordering::Relaxed));
        let named = (action as usize).checked_sub(1).and_then(|a| self.actions.get(a));
        let mut line = match (step.checked_sub(1), named) {
            (Some(step), Some(action)) => format!("{}: step {step}, {action}", self.name),
            (Some(step), None) => format!("{}: after step {step}", self.name),
            (None, _) => format!("{}: before its first step", self.name),
        };
        if let Some((since, what)) = &*self.wait.lock().unwrap_or_else(PoisonError::into_inner) {
            line += &format!(", waiting {what} for {:.1} s", since.elapsed().as_secs_f64());
        }
        line
    }
}

/// The activities of a process.
#[derive(Debug, Default)]
pub(crate) struct Activities {
    all: Mutex<Vec<Weak<Activity>>>,
}

impl Activities {
    /// Adds an activity, e.g. `stream 0`.
    pub(crate) fn add(&self, name: String, actions: Vec<String>) -> Arc<Activity> {
        let (at, wait) = ([AtomicU64::new(0), AtomicU64::new(0)], Mutex::default());
        let activity = Arc::new(Activity { name, actions, at, wait });
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|activity| activity.strong_count() > 0);
        all.push(Arc::downgrade(&activity));
        activity
    }

    /// Returns a line for each activity.
    pub(crate) fn status_lines(&self) -> Vec<String> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).map(|activity| activity.status_line()).collect()
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Activity>>> = const { RefCell::new(None) };
}

/// Makes this thread's waits `activity`'s from now on.
pub fn enter_activity(activity: Arc<Activity>) {
    CURRENT.with(|current| *current.borrow_mut() = Some(activity));
}

/// Notes that this thread waits, until the returned value is dropped.
pub(crate) fn note_waiting(what: impl FnOnce() -> String) -> WaitGuard {
    let activity = CURRENT.with(|current| current.borrow().clone());
    if let Some(activity) = &activity {
        let mut wait = activity.wait.lock().unwrap_or_else(PoisonError::into_inner);
        *wait = Some((Instant::now(), what()));
    }
    WaitGuard(activity)
}

/// A wait under way.
pub(crate) struct WaitGuard(Option<Arc<Activity>>);

impl Drop for WaitGuard {
    fn drop(&mut self) {
        if let Some(activity) = &self.0 {
            *activity.wait.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}
