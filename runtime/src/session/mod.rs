//! Sessions: a plan that has been loaded and takes step after step.

mod agreement;
mod checkpoint;
mod collect;
mod edges;
mod free_memory;
mod handle;
mod kernels;
mod options;
mod rate;
mod start;
mod statistics;
mod variables;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use graphc_comm::JobEnd;
use graphc_comm::transport::Transport;
use graphc_host::FeedTypes;
use graphc_host::tensor::HostTensor;
use graphc_ir::types::{Samples, TensorType};
use graphc_plan::TensorKind;
use graphc_plan::check::VerifiedPlan;

use crate::error::RuntimeError;
use crate::worker::{StepState, WorkerRequest};
use edges::order_feeds;
use rate::RateSource;
use variables::Variables;
pub use variables::known_weights;

pub use crate::worker::OutputsAt;
pub(crate) use edges::Sockets;
pub use handle::StepHandle;
pub use kernels::{PreparedKernels, prepare_kernels};
pub use options::SessionOptions;
pub use statistics::{ActorStatistics, RankStatistics, RegisterStatistics, Statistics};

/// A loaded plan: one arena per rank, filled with variables, and workers that wait for steps.
///
/// Dropping a session abandons the steps under way; [`Session::shutdown`] finishes them.
pub struct Session {
    plan: VerifiedPlan,
    sockets: Sockets,
    variables: Variables,
    /// Tensors of the model that no step reads.
    aside: BTreeMap<String, HostTensor>,
    /// One per rank.
    transports: Vec<Arc<dyn Transport>>,
    /// One per worker, with its rank.
    workers: Vec<WorkerSeat>,
    /// Takes in outputs from other processes, where there are any.
    collector: Option<WorkerSeat>,
    /// The job whose processes are the ranks; none where they are threads.
    job: Option<Arc<graphc_comm::job::Job>>,
    seed: u64,
    first_step: u64,
    begun: u64,
    /// The source of the learning rate.
    rates: RateSource,
    /// The number of parts of each output, in the order of the plan's outputs.
    parts: Vec<usize>,
    /// The flags of the outputs that the next step fetches, in that order.
    fetched: Arc<[bool]>,
    last: Option<Arc<StepState>>,
}

/// The session's end of a worker.
struct WorkerSeat {
    rank: usize,
    /// The sender of requests, none when the worker is to end.
    requests: Option<Sender<WorkerRequest>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (plan, ranks) = (&self.plan.name, self.transports.len());
        write!(f, "Session({plan} on {ranks} ranks, {} steps begun)", self.begun)
    }
}

impl Session {
    /// Loads a plan: allocates arenas, fills variables, starts workers. The compiler gives plans that are verified; one
    /// that was read from a file, or changed, goes through [`VerifiedPlan::check`]. `weights` holds what variables begin
    /// with, whole, by name: all that are `Init::Weights` must be among them, and any other may be, instead of what its
    /// initialization says.
    ///
    /// # Errors
    /// Where this machine cannot execute the plan, a weight is missing, of another type or of no variable of the plan, or
    /// there is no thread to be had.
    pub fn new(
        plan: &VerifiedPlan,
        weights: &BTreeMap<String, HostTensor>,
        options: SessionOptions,
    ) -> Result<Self, RuntimeError> {
        start::start_session(plan, weights, options, None)
    }

    /// Loads this process's part of a plan whose ranks are the processes of a job. All of them make the session, run the
    /// same steps, and read and write the same variables, in the same order. Feeds are whole tensors, the same on all, or
    /// the rows that a process reads ([`Session::feed_rows`]); outputs ([`SessionOptions::outputs_at`]) and variables are whole.
    ///
    /// # Errors
    /// As [`Session::new`]; where the job has another number of processes than the plan has ranks, or has ended; and, before
    /// the first step, on all ranks where they differ in plan, seed, first step or the names and types of weights.
    pub fn on(
        job: &Arc<graphc_comm::job::Job>,
        plan: &VerifiedPlan,
        weights: &BTreeMap<String, HostTensor>,
        options: SessionOptions,
    ) -> Result<Self, RuntimeError> {
        let session = start::start_session(plan, weights, options, Some(Arc::clone(job)));
        if let Err(error) = &session {
            job.fail(error);
        }
        session
    }

    /// Starts a session as [`Session::on`] with a job, as [`Session::new`] without: for a program that runs alone and under
    /// the launcher alike, with the job of [`Job::from_environment`](graphc_comm::job::Job::from_environment).
    ///
    /// # Errors
    /// As theirs.
    pub fn with_job(
        job: Option<&Arc<graphc_comm::job::Job>>,
        plan: &VerifiedPlan,
        weights: &BTreeMap<String, HostTensor>,
        options: SessionOptions,
    ) -> Result<Self, RuntimeError> {
        match job {
            Some(job) => Self::on(job, plan, weights, options),
            None => Self::new(plan, weights, options),
        }
    }

    /// Whether rank 0 is here: where there are several processes, one of them prints and writes.
    pub fn leads(&self) -> bool {
        self.ranks().any(|rank| rank == 0)
    }

    /// Returns the ranks of the plan that this session executes.
    pub fn ranks(&self) -> impl Iterator<Item = u32> {
        self.transports.iter().map(|transport| transport.rank())
    }

    /// Returns the types of the inputs that must be fed, by name.
    pub fn inputs(&self) -> &BTreeMap<String, TensorType> {
        &self.sockets.inputs
    }

    /// Returns the dim of each input that counts samples.
    pub fn samples(&self) -> &BTreeMap<String, Samples> {
        &self.sockets.samples
    }

    /// Returns the rows of each input with a dim of samples that the ranks of this session read, as ascending ranges. Where
    /// the ranks are processes, each may be fed these rows alone, one after the other, instead of the whole tensor.
    pub fn feed_rows(&self) -> BTreeMap<String, Vec<Range<usize>>> {
        let rows = self.sockets.rows.iter();
        rows.map(|(name, fed)| (name.clone(), fed.rows.clone())).collect()
    }

    /// Returns the types of a step's outputs, by name, whether or not [`Session::fetch_only`] leaves some out.
    pub fn outputs(&self) -> &BTreeMap<String, TensorType> {
        &self.sockets.outputs
    }

    /// Returns the dim of each output that counts samples, in a plan of inference.
    pub fn output_samples(&self) -> &BTreeMap<String, Samples> {
        &self.sockets.output_samples
    }

    /// Returns all variables, by name: parameters, tables and states of the optimizer.
    pub fn variables(&self) -> BTreeMap<String, (TensorKind, TensorType)> {
        self.variables.list()
    }

    /// Tensors of the model that no step reads, by name: checkpoints hold them as they are.
    pub fn unread_tensors(&self) -> &BTreeMap<String, HostTensor> {
        &self.aside
    }

    /// Puts tensors of the model aside that the plan has no variables for. All processes are given the same.
    pub fn set_aside(&mut self, tensors: BTreeMap<String, HostTensor>) {
        self.aside.extend(tensors);
    }

    /// Has the steps that are begun from now on give these outputs alone; a session begins with all. What is not fetched
    /// is not copied to the host, nor sent to other processes. Where ranks are processes, all of them ask for the same.
    /// On a card the first step of each set of outputs is not replayed; the four sets that were asked for last are
    /// remembered.
    ///
    /// # Errors
    /// Where the plan does not give such an output.
    pub fn fetch_only<'a>(
        &mut self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), RuntimeError> {
        let mut fetched = vec![false; self.fetched.len()];
        for name in names {
            let outputs = || self.sockets.output_names.to_vec();
            let unknown = || RuntimeError::OutputUnknown { name: name.into(), outputs: outputs() };
            let place = self.sockets.output_names.iter().position(|output| output == name);
            fetched[place.ok_or_else(unknown)?] = true;
        }
        self.fetched = fetched.into();
        Ok(())
    }

    /// Returns the number of the step that is begun next.
    pub fn next_step(&self) -> u64 {
        self.first_step + self.begun
    }

    /// Has the next step be that of this number, for a session that takes over from another: schedules, random numbers and the
    /// corrections of optimizers go by it. Where ranks are processes, all of them say the same.
    ///
    /// # Errors
    /// Where a step of this number was begun before.
    pub fn skip_to(&mut self, step: u64) -> Result<(), RuntimeError> {
        match step.checked_sub(self.next_step()) {
            Some(further) => {
                self.first_step += further;
                Ok(())
            }
            None => Err(RuntimeError::StepPassed { step, next: self.next_step() }),
        }
    }

    /// Begins a step; waits only where [`SessionOptions::queue`] steps are under way. Steps run in order. A feed is the whole
    /// tensor, or the rows of [`Session::feed_rows`].
    ///
    /// # Errors
    /// Where the feeds are not the graph's inputs, or a rank has failed.
    pub fn step(
        &mut self,
        feeds_by_name: BTreeMap<String, HostTensor>,
    ) -> Result<StepHandle, RuntimeError> {
        self.begin_step(feeds_by_name, |state| state)
    }

    /// Begins a step as [`Session::step`], and times each action ([`ActorStatistics::apart`]): on cards launches are
    /// given one by one instead of being replayed, and nothing else is launched meanwhile, unless ranks send to each
    /// other; on processors the clock tells, and streams go on beside each other. The step computes what any step does,
    /// bit for bit.
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn step_apart(
        &mut self,
        feeds_by_name: BTreeMap<String, HostTensor>,
    ) -> Result<StepHandle, RuntimeError> {
        self.begin_step(feeds_by_name, StepState::taken_apart)
    }

    /// Begins a step as [`Session::step`], and calls `ready` with each output, by name, as soon as it is whole, while the
    /// step goes on. It is called on a worker's thread, which computes nothing meanwhile, once for each output that is
    /// fetched and comes to this process. The order is the plan's: an output is fetched right after it was computed,
    /// where the graph has no updates.
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn step_watched(
        &mut self,
        feeds_by_name: BTreeMap<String, HostTensor>,
        ready: impl Fn(&str, &HostTensor) + Send + Sync + 'static,
    ) -> Result<StepHandle, RuntimeError> {
        let names = Arc::clone(&self.sockets.output_names);
        let watch = move |output: usize, tensor: &HostTensor| ready(&names[output], tensor);
        let parts = self.parts.clone();
        self.begin_step(feeds_by_name, |state| state.with_watch(&parts, Box::new(watch)))
    }

    fn begin_step(
        &mut self,
        feeds_by_name: BTreeMap<String, HostTensor>,
        kind: impl FnOnce(StepState) -> StepState,
    ) -> Result<StepHandle, RuntimeError> {
        self.check_alive()?;
        let feeds = order_feeds(&self.plan, &self.sockets, feeds_by_name)?;
        let rate = self.given_rate()?;
        let zeros = |(ty, &is_fetched): (&TensorType, &bool)| match is_fetched {
            true => HostTensor::zeros(ty.dtype, ty.shape.clone()),
            false => HostTensor::zeros(ty.dtype, [0]),
        };
        let outputs = self.sockets.outputs.values().zip(self.fetched.iter()).map(zeros).collect();
        let outputs = (outputs, Arc::clone(&self.fetched));
        let numbers = (self.begun, self.next_step());
        let state = StepState::new(numbers, feeds, outputs, self.count_seats()).at_rate(rate);
        let state = Arc::new(kind(state));
        for seat in self.workers.iter().chain(&self.collector) {
            let step = WorkerRequest::Step(Arc::clone(&state));
            let sent = seat.requests.as_ref().is_some_and(|requests| requests.send(step).is_ok());
            if !sent {
                return Err(self.end_error());
            }
        }
        self.last = Some(Arc::clone(&state));
        let number = self.next_step();
        self.begun += 1;
        Ok(StepHandle { number, state, names: Arc::clone(&self.sockets.output_names) })
    }

    /// Gathers the content of a variable after all steps begun so far.
    ///
    /// # Errors
    /// Where there is none of that name, or a rank has failed.
    pub fn variable(&mut self, name: &str) -> Result<HostTensor, RuntimeError> {
        self.wait_idle()?;
        self.variables.read(name)
    }

    /// Gathers the model's own variables, trained and not, and the tensors that no step reads, by name: what a file of weights holds. States of the
    /// optimizer are not among them. Where ranks are processes, all of them call it together.
    ///
    /// # Errors
    /// As [`Session::variable`].
    pub fn weights(&mut self) -> Result<BTreeMap<String, HostTensor>, RuntimeError> {
        let mut weights = self.aside.clone();
        for (name, (kind, _)) in self.variables() {
            if kind == TensorKind::Parameter {
                weights.insert(name.clone(), self.variable(&name)?);
            }
        }
        Ok(weights)
    }

    /// Calls `read` once with the elements of a variable after all steps begun so far; where a rank of this process holds
    /// the whole of it, they are not copied.
    ///
    /// # Errors
    /// As [`Session::variable`].
    pub fn with_variable(
        &mut self,
        name: &str,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RuntimeError> {
        self.wait_idle()?;
        self.variables.with_whole(name, read)
    }

    /// Overwrites a variable, after all steps begun so far.
    ///
    /// # Errors
    /// Where there is none of that name, its type is another, or a rank has failed.
    pub fn set_variable(&mut self, name: &str, value: &HostTensor) -> Result<(), RuntimeError> {
        self.wait_idle()?;
        self.variables.write(name, value)
    }

    /// Sets variables to what those of their names are in another session, after all steps that both have begun. Both are
    /// of one job, or of none.
    ///
    /// # Errors
    /// As [`Session::variable`] of the other and [`Session::set_variable`] of this one.
    pub fn copy_variables<'a>(
        &mut self,
        from: &mut Session,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), RuntimeError> {
        self.wait_idle()?;
        from.wait_idle()?;
        names.into_iter().try_for_each(|name| self.variables.copy_from(&mut from.variables, name))
    }

    /// Returns the measurements of all steps begun so far.
    ///
    /// # Errors
    /// Where a rank has failed.
    pub fn statistics(&mut self) -> Result<Statistics, RuntimeError> {
        self.wait_idle()?;
        let mut statistics = statistics::empty_statistics(&self.plan, self.begun);
        for seat in &self.workers {
            let (sender, receiver) = crossbeam_channel::bounded(1);
            let requests = seat.requests.as_ref().ok_or(JobEnd::ShutDown)?;
            let asked = requests.send(WorkerRequest::Report(sender)).is_ok();
            let report = asked.then(|| receiver.recv().ok()).flatten();
            let report = report.ok_or_else(|| self.end_error())?;
            statistics.ranks[seat.rank].add_report(&report);
        }
        Ok(statistics)
    }

    /// Finishes all steps and ends the workers. Dropping a session instead abandons steps under way.
    ///
    /// # Errors
    /// Where a rank has failed.
    pub fn shutdown(mut self) -> Result<(), RuntimeError> {
        let result = self.wait_idle();
        self.join_threads();
        result
    }

    /// Waits for all steps begun so far: workers do them in order, so that the last is the last.
    fn wait_idle(&mut self) -> Result<(), RuntimeError> {
        if let Some(last) = &self.last {
            last.wait()?;
        }
        self.check_alive()
    }

    fn check_alive(&self) -> Result<(), RuntimeError> {
        match self.transports.iter().find_map(|transport| transport.end_reason()) {
            Some(ended) => Err(ended.into()),
            None => Ok(()),
        }
    }

    fn end_error(&self) -> RuntimeError {
        self.check_alive().err().unwrap_or(JobEnd::ShutDown.into())
    }

    fn count_seats(&self) -> usize {
        self.workers.len() + usize::from(self.collector.is_some())
    }

    fn join_threads(&mut self) {
        let mut all: Vec<_> = self.workers.iter_mut().chain(&mut self.collector).collect();
        all.iter_mut().for_each(|seat| seat.requests = None);
        for thread in all.iter_mut().filter_map(|seat| seat.thread.take()) {
            // Workers catch panics and say so in their steps' results.
            let _ = thread.join();
        }
    }
}

impl From<&Session> for FeedTypes {
    fn from(session: &Session) -> Self {
        Self {
            inputs: session.inputs().clone(),
            samples: session.samples().clone(),
            rows: session.feed_rows(),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Processes go on with their job after a session that has done all its steps.
        let idle = self.last.as_ref().is_none_or(|last| last.is_done());
        if self.job.is_none() || !idle {
            for transport in &self.transports {
                transport.end_job(JobEnd::ShutDown);
            }
        }
        self.join_threads();
    }
}
