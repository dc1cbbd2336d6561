//! The loop of one worker.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use graphc_comm::JobEnd;
use graphc_comm::explore::{exploring, point};
use graphc_comm::standstill::WaitingTime;
use graphc_comm::transport::{Transport, TransportError};
use graphc_comm::{Activity, enter_activity};
use graphc_ir::ids::ActorId;
use graphc_plan::machine::{ActionId, Blocked, Machine};

use super::actor::PreparedWork;
use super::apart::ActionStopwatches;
use super::lanes::Lanes;
use super::replay::Replay;
use super::report::Report;
use super::step::StepState;
use crate::device::{ActorRanges, DeviceEvent, DeviceMemory, DeviceRecording, DeviceStream, Turn};
use crate::error::{Cause, Failure, RuntimeError};

/// A request of a session to a worker.
pub(crate) enum WorkerRequest {
    /// Run a step.
    Step(Arc<StepState>),
    /// Say what was measured so far.
    Report(Sender<Report>),
}

/// The settings by which a session runs its workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerSettings {
    pub(crate) seed: u64,
    pub(crate) timeout: Duration,
    pub(crate) shuffle_delays: Option<u64>,
    /// Whether launches are recorded and replayed, on devices that do that.
    pub(crate) replay: bool,
}

/// One worker: a stream of a rank, or all of its streams.
pub(crate) struct Worker {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) memory: Arc<DeviceMemory>,
    pub(crate) streams: Vec<DeviceStream>,
    pub(crate) settings: WorkerSettings,
    pub(crate) machine: Machine,
    pub(crate) microbatches: u64,
    /// Actors of these streams; none at the ids of others.
    pub(crate) actors: Vec<Option<PreparedWork>>,
    /// The actors that have peers to join before the first step, in order.
    pub(crate) joins: Vec<usize>,
    pub(crate) names: Vec<String>,
    /// The ranges that tell a profiler which actor launches.
    pub(crate) ranges: ActorRanges,
    pub(crate) registers: Vec<String>,
    /// The actions that feed or fetch.
    pub(crate) edges: Vec<usize>,
    /// The actions beside which something goes on, with their streams.
    pub(crate) beside: Vec<(usize, usize)>,
    /// The recordings that later steps replay at once.
    pub(crate) replay: Replay,
    /// The stopwatches of the actions in steps that are taken apart.
    pub(crate) apart: ActionStopwatches,
    /// (actor, microbatch) of a step, in order.
    pub(crate) order: Vec<(ActorId, u32)>,
    /// The stream that each action is on, and the actions of others that it waits for.
    pub(crate) lanes: Lanes,
    /// The events of this step, at the places of actions that another stream waits for.
    pub(crate) events: Vec<DeviceEvent>,
    /// The first action of the step that follows where all streams last met.
    pub(crate) met: usize,
    pub(crate) requests: Receiver<WorkerRequest>,
    /// Whether what the next step feeds may be staged while a step goes on.
    pub(crate) stages_ahead: bool,
    /// A request that was taken before its turn.
    pub(crate) next: Option<WorkerRequest>,
    /// The senders to the other workers of the rank, for actions that are done here.
    pub(crate) tell: Vec<Sender<FinishedAction>>,
    /// The receiver of actions that other workers have done; nobody tells anything where the rank has one worker.
    pub(crate) hear: Receiver<FinishedAction>,
    /// The activity of the rank, for the account when a job of processes ends.
    pub(crate) activity: Option<Arc<Activity>>,
    pub(crate) report: Report,
}

/// An action that a worker is done with: what it has launched has ended when the event has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FinishedAction {
    action: ActionId,
    event: DeviceEvent,
}

/// The position of a worker, for the account of a panic.
#[derive(Clone, Copy)]
struct WorkerPosition {
    action: Option<ActionId>,
}

impl Worker {
    /// Counts the parts of each output that it writes in a step.
    pub(crate) fn count_parts(&self, parts: &mut [usize]) {
        for &(actor, _) in &self.order {
            let work = self.actors.get(actor.index()).and_then(Option::as_ref);
            if let Some(PreparedWork::Fetch(fetch)) = work
                && let Some(output) = fetch.output()
            {
                parts[output] += 1;
            }
        }
    }

    /// Executes requests until the session hangs up.
    pub(crate) fn run(mut self) {
        if let Some(activity) = &self.activity {
            enter_activity(Arc::clone(activity));
        }
        while let Some(request) = self.next.take().or_else(|| self.requests.recv().ok()) {
            match request {
                WorkerRequest::Step(step) => {
                    let result = self.run_guarded(&step);
                    step.finish(result);
                }
                WorkerRequest::Report(to) => {
                    // Where the session is gone nobody wants it.
                    let _ = to.send(self.measured_report());
                }
            }
        }
        self.wind_down();
    }

    /// Ends what goes on, before memory is given back, for which a device waits until all of it has ended. Recordings end
    /// first, as a communicator does not end before those of its operations.
    fn wind_down(&mut self) {
        self.replay = Replay::default();
        self.streams.iter().for_each(DeviceStream::wait_unless_ended);
        if self.transport.end_reason().is_some() {
            self.actors.iter_mut().flatten().for_each(PreparedWork::abort);
            self.streams.iter_mut().for_each(DeviceStream::abort);
        }
    }

    /// Runs a step; a failure, even a panic, ends the job on all ranks.
    fn run_guarded(&mut self, step: &StepState) -> Result<(), RuntimeError> {
        if let Some(ended) = self.transport.end_reason() {
            return Err(ended.into());
        }
        let mut here = WorkerPosition { action: None };
        let run = AssertUnwindSafe(|| self.run_step(step, &mut here));
        let result =
            catch_unwind(run).unwrap_or_else(|panic| Err(Cause::Panic(panic_text(&*panic))));
        let Err(cause) = result else { return Ok(()) };
        if cause != Cause::Transport(TransportError::Ended) {
            let failure = RuntimeError::from(self.build_failure(here.action, step, cause));
            self.transport.end_job(failure.into());
        }
        Err(self.transport.end_reason().unwrap_or(JobEnd::ShutDown).into())
    }

    fn run_step(&mut self, step: &StepState, here: &mut WorkerPosition) -> Result<(), Cause> {
        self.receive_done();
        self.join_channels()?;
        for stream in &mut self.streams {
            stream.begin_step(step.number, step.rate);
        }
        self.replay.begin_step(step.index, &step.fetched);
        self.met = 0;
        let begun = Instant::now();
        let (mut counted, mut index) = (begun, 0);
        while index < self.order.len() {
            match self.replay_run(index, step)? {
                Some(end) => (index, counted) = (end, Instant::now()),
                None => {
                    counted = self.run_action(index, step, here, counted)?;
                    index += 1;
                }
            }
        }
        self.stage_next();
        self.end_step(step)?;
        if step.apart {
            self.read_times()?;
        }
        if let Some(activity) = &self.activity {
            activity.note_idle();
        }
        self.report.actions += self.order.len() as u64;
        self.report.steps += counted - begun;
        Ok(())
    }

    /// Does an action of the order as soon as nothing blocks it. The report accounts for all time up to `counted`; returns up to when it does
    /// behind the action.
    #[inline]
    fn run_action(
        &mut self,
        index: usize,
        step: &StepState,
        here: &mut WorkerPosition,
        mut counted: Instant,
    ) -> Result<Instant, Cause> {
        let (actor, microbatch) = self.order[index];
        let action = ActionId { actor, step: step.index, microbatch };
        here.action = Some(action);
        if let Some(activity) = &self.activity {
            activity.begin_action(step.number, actor.index());
        }
        if let Some(blocked) = self.machine.find_blocker(action) {
            self.wait_unblocked(action, blocked)?;
            counted = self.waited_since(counted);
        }
        if let Some(seed) = self.settings.shuffle_delays {
            std::thread::sleep(shuffle_delay(seed, self.transport.rank(), action));
            counted = Instant::now();
        }
        let waited = match step.apart {
            true => self.act_timed(index, step)?,
            false => self.begin_action(index, step)?,
        };
        let now = Instant::now();
        let busy = (now - counted).saturating_sub(waited);
        self.report.waiting += waited;
        self.report.actors[actor.index()] += busy;
        match self.actors[actor.index()].as_ref().is_some_and(PreparedWork::is_kernel) {
            true => self.report.kernels += busy,
            false => self.report.communication += busy,
        }
        self.finish_action(action);
        Ok(now)
    }

    /// Begins an action of the order. Returns how long the host has waited.
    #[inline]
    fn begin_action(&mut self, index: usize, step: &StepState) -> Result<Duration, Cause> {
        self.wait_for_streams(index);
        self.launch_action(index, step)
    }

    /// Has an action's stream wait for what the action needs of another one.
    #[inline]
    pub(super) fn wait_for_streams(&mut self, index: usize) {
        if let Some(before) = self.lanes.awaited_by(index).filter(|&before| before >= self.met) {
            self.streams[self.lanes.stream_of(index)].wait_event(self.events[before]);
        }
    }

    /// Launches an action on its stream. Returns how long the host has waited.
    #[inline]
    pub(super) fn launch_action(
        &mut self,
        index: usize,
        step: &StepState,
    ) -> Result<Duration, Cause> {
        let lane = self.lanes.stream_of(index);
        let (actor, turn) = (self.order[index].0, self.turn_of(index, step));
        let Some(work) = &mut self.actors[actor.index()] else { return Ok(Duration::ZERO) };
        let _range = self.ranges.begin_actor(actor);
        let waited = work.run(&mut self.streams[lane], &self.memory, turn, step)?;
        if self.lanes.is_awaited(index) {
            self.events[index] = self.streams[lane].record_at(index);
        }
        Ok(waited)
    }

    #[inline]
    fn turn_of(&self, index: usize, step: &StepState) -> Turn {
        let microbatch = self.order[index].1 as usize;
        Turn { step: step.index, microbatch, microbatches: self.microbatches }
    }

    /// Waits until the step has ended on the device, and gives what it was asked for.
    fn end_step(&mut self, step: &StepState) -> Result<(), Cause> {
        self.fence_streams()?;
        self.streams.iter_mut().try_for_each(DeviceStream::synchronize)?;
        for at in 0..self.edges.len() {
            let index = self.edges[at];
            let turn = self.turn_of(index, step);
            if let Some(work) = &mut self.actors[self.order[index].0.index()] {
                self.report.waiting += work.deliver_fetch(turn, step)?;
            }
        }
        Ok(())
    }

    /// Begins the run of actions that begins here, recorded in an earlier step or now; where it ends. `None` where none begins.
    #[inline]
    fn replay_run(&mut self, index: usize, step: &StepState) -> Result<Option<usize>, Cause> {
        let found = self.replay.run_from(index, step.index).filter(|_| !step.apart);
        let Some((run, actions)) = found else {
            return Ok(None);
        };
        let begun = Instant::now();
        self.fence_streams()?;
        self.join_streams(actions.start);
        if self.replay.find_recording(run, step.index).is_none() {
            let recording = self.record_run(actions.clone(), step)?;
            self.replay.keep_recording(run, step.index, recording);
        }
        self.stage_feeds(actions.clone(), step);
        if let Some(recording) = self.replay.find_recording(run, step.index) {
            self.streams[0].replay(recording)?;
        }
        self.met = actions.end;
        self.fork_streams(actions.end);
        let (end, first) = (actions.end, self.order[actions.start].0);
        for &(actor, microbatch) in &self.order[actions] {
            self.machine.finish_action(ActionId { actor, step: step.index, microbatch });
        }
        let busy = begun.elapsed();
        self.report.actors[first.index()] += busy;
        self.report.kernels += busy;
        Ok(Some(end))
    }

    /// Puts what a step feeds where recorded copies take it from.
    fn stage_feeds(&mut self, actions: Range<usize>, step: &StepState) {
        let first = self.edges.partition_point(|&edge| edge < actions.start);
        for at in first..self.edges.len() {
            let index = self.edges[at];
            if index >= actions.end {
                return;
            }
            let turn = self.turn_of(index, step);
            if let Some(work) = &mut self.actors[self.order[index].0.index()] {
                work.stage_feed(turn, step);
            }
        }
    }

    /// Stages what the next step feeds, if that step has been begun, while a device goes on with this one.
    fn stage_next(&mut self) {
        if !self.stages_ahead {
            return;
        }
        self.next = self.next.take().or_else(|| self.requests.try_recv().ok());
        if let Some(WorkerRequest::Step(next)) = &self.next {
            let next = Arc::clone(next);
            self.stage_feeds(0..self.order.len(), &next);
        }
    }

    /// Records a run of actions of all streams, which have met.
    fn record_run(
        &mut self,
        actions: Range<usize>,
        step: &StepState,
    ) -> Result<DeviceRecording, Cause> {
        self.met = actions.start;
        self.streams[0].begin_recording()?;
        self.fork_streams(actions.start);
        let launched =
            actions.clone().try_for_each(|index| self.begin_action(index, step).map(drop));
        let rejoined = self.fence_streams();
        self.join_streams(actions.end);
        // A recording that was begun is ended, whatever happened.
        let recording = self.streams[0].end_recording();
        launched.and(rejoined).and(recording)
    }

    /// Has streams wait for what goes on beside them.
    fn fence_streams(&mut self) -> Result<(), Cause> {
        for &(actor, stream) in &self.beside {
            if let Some(work) = &mut self.actors[actor] {
                work.fence_stream(&self.streams[stream])?;
            }
        }
        Ok(())
    }

    /// Has the first stream wait for the others; `place` is an action of the step.
    fn join_streams(&mut self, place: usize) {
        if let [first, others @ ..] = &mut self.streams[..] {
            for other in others {
                first.wait_event(other.record_at(self.order.len() + place));
            }
        }
    }

    /// Has the other streams wait for the first.
    fn fork_streams(&mut self, place: usize) {
        if let [first, others @ ..] = &mut self.streams[..]
            && !others.is_empty()
        {
            let event = first.record_at(self.order.len() + place);
            others.iter_mut().for_each(|other| other.wait_event(event));
        }
    }

    /// Has channels join their peers, once.
    fn join_channels(&mut self) -> Result<(), Cause> {
        for actor in std::mem::take(&mut self.joins) {
            if let Some(work) = &mut self.actors[actor] {
                work.join_peers(&self.streams[0])?;
            }
        }
        Ok(())
    }

    fn waited_since(&mut self, since: Instant) -> Instant {
        let now = Instant::now();
        self.report.waiting += now - since;
        now
    }

    fn finish_action(&mut self, action: ActionId) {
        self.machine.finish_action(action);
        point();
        if self.tell.is_empty() {
            return;
        }
        let event = self.streams[0].record_event();
        for other in &self.tell {
            // A worker that is gone has failed, which its end of the job says.
            let _ = other.send(FinishedAction { action, event });
        }
    }

    /// Counts what other workers of the rank are done with meanwhile.
    fn receive_done(&mut self) {
        while let Ok(done) = self.hear.try_recv() {
            self.accept_done(done);
        }
    }

    /// Accepts an action of another worker as done: what is launched here from now on may rely on it.
    fn accept_done(&mut self, FinishedAction { action, event }: FinishedAction) {
        self.streams[0].wait_event(event);
        self.machine.finish_action(action);
    }

    /// Waits until an action may begin: another worker of the rank has to finish something first.
    #[cold]
    fn wait_unblocked(&mut self, action: ActionId, mut blocked: Blocked) -> Result<(), Cause> {
        let mut wait = WaitingTime::begin(self.settings.timeout);
        loop {
            if self.tell.is_empty() {
                return Err(Cause::Blocked(self.describe_blocked(blocked)));
            }
            match self.hear_something() {
                Ok(done) => self.accept_done(done),
                Err(RecvTimeoutError::Disconnected) => return Err(TransportError::Ended.into()),
                Err(RecvTimeoutError::Timeout) if self.transport.end_reason().is_some() => {
                    return Err(TransportError::Ended.into());
                }
                Err(RecvTimeoutError::Timeout) if wait.elapsed() > self.settings.timeout => {
                    let seconds = wait.elapsed().as_secs_f64();
                    let what = self.describe_blocked(blocked);
                    return Err(Cause::Blocked(format!("{what}, since {seconds:.1} s")));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.receive_done();
            match self.machine.find_blocker(action) {
                None => return Ok(()),
                Some(still) => blocked = still,
            }
        }
    }

    /// Waits a little for news of another worker.
    fn hear_something(&self) -> Result<FinishedAction, RecvTimeoutError> {
        while exploring() {
            point();
            if let Ok(done) = self.hear.try_recv() {
                return Ok(done);
            }
            if self.transport.end_reason().is_some() {
                return Err(RecvTimeoutError::Timeout);
            }
        }
        self.hear.recv_timeout(Duration::from_millis(20))
    }

    fn describe_blocked(&self, blocked: Blocked) -> String {
        let actor = |id: ActorId| self.names.get(id.index()).map_or("nobody", String::as_str);
        match blocked {
            Blocked::Empty { register, producer } => {
                let producer = producer.map_or("nobody", actor);
                let name = &self.registers[register.index()];
                format!("`{name}` is empty: {producer} has not filled it")
            }
            Blocked::Full { register, reader } => {
                let (name, reader) = (&self.registers[register.index()], actor(reader));
                format!("`{name}` is full: {reader} has not read it")
            }
            Blocked::Behind { actor: before } => format!("`{}` has not acted", actor(before)),
            Blocked::Step => "another stream has not ended the step before".into(),
        }
    }

    fn build_failure(&self, action: Option<ActionId>, step: &StepState, cause: Cause) -> Failure {
        let name = |action: ActionId| {
            let name = &self.names[action.actor.index()];
            match self.microbatches {
                1 => name.clone(),
                _ => format!("{name} (microbatch {})", action.microbatch),
            }
        };
        let (rank, step) = (self.transport.rank(), step.number);
        match cause {
            // What is found later is not the fault of what is being done now.
            Cause::Found { actor, error } => {
                Failure { rank, step, actor, cause: Cause::Kernel(*error) }
            }
            cause => {
                Failure { rank, step, actor: action.map_or("no actor".to_owned(), name), cause }
            }
        }
    }

    fn measured_report(&mut self) -> Report {
        self.receive_done();
        let registers = (0..self.registers.len()).map(graphc_ir::ids::RegisterId::new);
        self.report.high_water = registers.map(|r| self.machine.high_water(r)).collect();
        self.report.clone()
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let message = panic.downcast_ref::<String>().cloned();
    let literal = || panic.downcast_ref::<&str>().map(|&text| text.to_owned());
    message.or_else(literal).unwrap_or_else(|| "a panic without a message".to_owned())
}

/// Draws a delay of up to a quarter of a millisecond, by rank and action; none for half of all actions.
fn shuffle_delay(seed: u64, rank: u32, action: ActionId) -> Duration {
    let stream = graphc_ir::random::RandomStream { seed, key: u64::from(rank), step: action.step };
    let element = u64::from(action.actor.0) << 32 | u64::from(action.microbatch);
    let [coin, length, ..] = stream.words(element);
    if coin & 1 == 0 { Duration::ZERO } else { Duration::from_nanos(u64::from(length >> 14)) }
}
