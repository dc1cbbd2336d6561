//! Runs a group's collectives one after the other: on the caller's thread while nothing is under way, otherwise on the
//! group's own.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use graphc_comm::JobEnd;
use graphc_comm::{Activity, enter_activity};
use graphc_host::threads;
use graphc_ir::types::DType;

use super::ends::{CollectiveEnds, GroupMembers};
use super::error::DistError;
use super::header::{GroupCall, GroupOp};
use super::reduce::ReduceOp;
use super::work::PendingWork;

/// A group's collectives.
pub(super) struct CollectiveEngine {
    state: Mutex<EngineState>,
    /// Collectives that were started and are not done.
    pending: Mutex<usize>,
    idle: Condvar,
}

struct EngineState {
    ends: CollectiveEnds,
    number: u64,
    /// The failure after which nothing goes any more: the queues hold half a collective.
    failed: Option<DistError>,
    activity: Option<Arc<Activity>>,
}

/// The description of a collective, without its number.
#[derive(Clone, Copy)]
pub(super) struct What {
    pub(super) op: GroupOp,
    pub(super) reduce: Option<ReduceOp>,
    pub(super) dtype: DType,
    pub(super) root: Option<usize>,
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CollectiveEngine {
    pub(super) fn new(members: GroupMembers) -> Arc<Self> {
        let name = format!("group of {} ranks", members.len());
        let activity = members.transport.new_activity(name, GroupOp::all_names());
        let state =
            EngineState { ends: CollectiveEnds::new(members), number: 0, failed: None, activity };
        Arc::new(Self { state: Mutex::new(state), pending: Mutex::new(0), idle: Condvar::new() })
    }

    /// Runs a collective here, after those under way.
    pub(super) fn run_collective<R>(
        &self,
        what: What,
        work: impl FnOnce(&mut CollectiveEnds, GroupCall) -> Result<R, DistError>,
    ) -> Result<R, DistError> {
        let mut pending = lock_mutex(&self.pending);
        while *pending > 0 {
            pending = self.idle.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
        drop(pending);
        self.perform_collective(what, work)
    }

    /// Waits until nothing is under way, at most so long. Whether nothing is.
    pub(super) fn wait_idle(&self, grace: Duration) -> bool {
        let busy = |pending: &mut usize| *pending > 0;
        let waited = self.idle.wait_timeout_while(lock_mutex(&self.pending), grace, busy);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }

    fn perform_collective<R>(
        &self,
        what: What,
        work: impl FnOnce(&mut CollectiveEnds, GroupCall) -> Result<R, DistError>,
    ) -> Result<R, DistError> {
        let state = &mut *lock_mutex(&self.state);
        if let Some(failed) = &state.failed {
            return Err(failed.clone());
        }
        let What { op, reduce, dtype, root } = what;
        let call = GroupCall { op, reduce, dtype, root, number: state.number };
        state.number += 1;
        if let Some(activity) = &state.activity {
            activity.begin_action(call.number, op.index());
            enter_activity(Arc::clone(activity));
        }
        let result = work(&mut state.ends, call);
        if let Some(activity) = &state.activity {
            activity.note_idle();
        }
        if let Err(error) = &result {
            state.failed = Some(error.clone());
            state.ends.withdraw_loans();
            // The others would wait for what this rank does not send any more.
            let reason = JobEnd::Program { reason: error.to_string() };
            state.ends.members.transport.end_job(reason);
        }
        result
    }
}

type Task = Box<dyn FnOnce() + Send>;

/// The thread of collectives that were started without waiting. Dropped, it waits until they are done.
#[derive(Default)]
pub(super) struct BackgroundThread {
    thread: Mutex<Option<(crossbeam_channel::Sender<Task>, JoinHandle<()>)>>,
}

impl BackgroundThread {
    /// Starts a collective.
    pub(super) fn start_collective<R: Send + 'static>(
        &self,
        engine: &Arc<CollectiveEngine>,
        what: What,
        work: impl FnOnce(&mut CollectiveEnds, GroupCall) -> Result<R, DistError> + Send + 'static,
    ) -> Result<PendingWork<R>, DistError> {
        let (handle, promise) = PendingWork::new(what.op.name());
        let engine = Arc::clone(engine);
        *lock_mutex(&engine.pending) += 1;
        let done = CollectiveDone(Arc::clone(&engine));
        let task = Box::new(move || {
            let result = engine.perform_collective(what, work);
            drop(done);
            promise.fulfill(result);
        });
        self.hand_over(task)?;
        Ok(handle)
    }

    fn hand_over(&self, task: Task) -> Result<(), DistError> {
        let mut thread = lock_mutex(&self.thread);
        if thread.is_none() {
            let (sender, receiver) = crossbeam_channel::unbounded::<Task>();
            let run = move || receiver.iter().for_each(|task| task());
            let started = threads::start_thread("collectives", run);
            *thread = Some((sender, started.map_err(DistError::from_thread_error)?));
        }
        let sent = thread.as_ref().map(|(sender, _)| sender.send(task));
        // A thread that has panicked takes no tasks; dropping the task says so to who waits for it.
        drop(sent);
        Ok(())
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        if let Some((sender, thread)) = lock_mutex(&self.thread).take() {
            drop(sender);
            // A panic there was told to who waited.
            let _ = thread.join();
        }
    }
}

/// Counts a collective as done, however it ends.
struct CollectiveDone(Arc<CollectiveEngine>);

impl Drop for CollectiveDone {
    fn drop(&mut self) {
        *lock_mutex(&self.0.pending) -= 1;
        self.0.idle.notify_all();
    }
}
