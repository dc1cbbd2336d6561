//! The start of a session: from a plan to workers that wait for steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded, unbounded};
use graphc_comm::job::Job;
use graphc_comm::transport::Patience;
use graphc_comm::transport::Transport;
use graphc_comm::transport::in_process::Hub;
use graphc_host::tensor::HostTensor;
use graphc_host::threads;
use graphc_ir::enter_span;
use graphc_ir::mesh::DeviceKind;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::machine::Machine;
use graphc_plan::{Action, Actor, Plan, Program};

use super::agreement::agree_on_session;
use super::collect::OutputCollector;
use super::edges::Sockets;
use super::variables::Variables;
use super::{Session, SessionOptions, WorkerSeat, free_memory};
use crate::device::{
    Device, DeviceEvent, DeviceMemory, Ended, Port, Site, Threads, communicates_directly,
    load_kernels,
};
use crate::error::RuntimeError;
use crate::worker::{
    self, ActionStopwatches, ActorResolver, Edges, PreparedWork, RankPart, Replay, Report, Worker,
    WorkerRequest, WorkerSettings, WorkerShare, find_sending_actors,
};

/// Ranks that may be threads of one process: each has a mailbox for each.
const MOST_THREADS: usize = 1024;

/// Starts a session whose ranks are threads of this process, or, with a job, processes of which this is one.
pub(super) fn start_session(
    plan: &VerifiedPlan,
    weights: &BTreeMap<String, HostTensor>,
    options: SessionOptions,
    job: Option<Arc<Job>>,
) -> Result<Session, RuntimeError> {
    let _span = enter_span!("open_session", plan = plan.name.as_str());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (transports, neighbours): (Vec<Arc<dyn Transport>>, _) = match &job {
        None if plan.world_size > MOST_THREADS => {
            let (ranks, most) = (plan.world_size, MOST_THREADS);
            return Err(RuntimeError::Ranks { ranks, most });
        }
        None => {
            let hub = Hub::new(choose_patience(plan, cores, &options));
            let ranks = 0..plan.world_size as u32;
            (ranks.map(|rank| hub.new_transport(rank)).collect(), plan.world_size)
        }
        Some(job) => {
            agree_on_session(job, plan, weights, &options)?;
            check_job(plan, job)?;
            (vec![job.new_transport(options.timeout)], job.neighbours())
        }
    };
    let own: Vec<u32> = transports.iter().map(|transport| transport.rank()).collect();
    let count = options.threads_per_rank.unwrap_or(cores / neighbours.max(1)).max(1);
    let threads = Threads { count, have_cores: count * neighbours <= cores };
    let settings = WorkerSettings {
        seed: options.seed,
        timeout: options.timeout,
        shuffle_delays: options.shuffle_delays,
        replay: options.replay,
    };
    let kind = options.device.unwrap_or(plan.cluster.device.kind);
    if kind == DeviceKind::Cpu {
        free_memory::check_free_memory(plan, &own, neighbours)?;
    }
    let local = |rank: u32| job.as_ref().map_or(rank, |job| job.local_rank()) as usize;
    let direct = kind == DeviceKind::Cuda && communicates_directly(neighbours);
    let open = |transport: &Arc<dyn Transport>| {
        let rank = transport.rank();
        Device::open(kind, Site { rank, local: local(rank), direct }, threads, &options.custom)
    };
    let devices = transports.iter().map(open).collect::<Result<Vec<Device>, _>>()?;
    let sockets = Sockets::from_plan(plan, &own);
    let edges = sockets.edges(job.as_ref().map(|_| options.outputs_at));
    let mut variables = Variables::from_plan(plan)?;
    let mut ranks = Vec::new();
    let collector = match &job {
        None => None,
        Some(_) => {
            let names = &sockets.output_names;
            variables.join_processes(plan, &transports[0])?;
            Some(OutputCollector::new(plan, names, &transports[0], options.outputs_at)?)
        }
    };
    let mut resolved = Vec::new();
    for (transport, device) in transports.into_iter().zip(devices) {
        resolved.push(Resolved::new(plan, device, transport, &edges)?);
    }
    // Before memory is taken: where a kernel is missing it is said at once.
    load_kernels(resolved.iter().map(|rank| &rank.device))?;
    for rank in resolved {
        ranks.push(rank.load(plan, &mut variables)?);
    }
    variables.order_shards(&own)?;
    variables.fill_initial(weights, options.seed)?;
    let outputs = sockets.outputs.len();
    let mut session = Session {
        aside: BTreeMap::new(),
        sockets,
        variables,
        transports: ranks.iter().map(|rank| Arc::clone(&rank.transport)).collect(),
        workers: Vec::new(),
        collector: None,
        job,
        seed: options.seed,
        first_step: options.first_step,
        begun: 0,
        rates: super::rate::RateSource::default(),
        parts: vec![0; outputs],
        fetched: vec![true; outputs].into(),
        last: None,
        plan: plan.clone(),
    };
    // Where one thread cannot be started the session is dropped and ends those that were.
    for rank in ranks {
        rank.start_workers(plan, settings, options.queue.max(1), &mut session)?;
    }
    if let Some(collector) = collector.filter(|collector| !collector.is_idle()) {
        collector.count_parts(&mut session.parts);
        session.collector = Some(seat_collector(collector, options.queue.max(1))?);
    }
    Ok(session)
}

/// Checks that all processes run one plan.
fn check_job(plan: &Plan, job: &Job) -> Result<(), RuntimeError> {
    let (world, job) = (plan.world_size, job.world_size());
    if world == job as usize {
        return Ok(());
    }
    Err(RuntimeError::invalid_plan(format!(
        "it is for {world} ranks, and the job has {job} processes"
    )))
}

fn seat_collector(collector: OutputCollector, queue: usize) -> Result<WorkerSeat, RuntimeError> {
    let (sender, requests) = bounded(queue);
    let rank = collector.rank();
    let thread =
        threads::start_thread(format!("rank {rank} outputs"), move || collector.run(&requests));
    let thread = thread.map_err(|error| RuntimeError::from_thread_error(rank, error))?;
    Ok(WorkerSeat { rank: rank as usize, requests: Some(sender), thread: Some(thread) })
}

/// Chooses how waits spin: it pays where every worker has a core; otherwise it keeps the peer from answering.
fn choose_patience(plan: &Plan, cores: usize, options: &SessionOptions) -> Patience {
    let streams = |rank: usize| plan.program_of(rank as u32).streams.len();
    let workers: usize = (0..plan.world_size).map(streams).sum();
    let spin = if workers <= cores { Duration::from_micros(3) } else { Duration::from_micros(1) };
    Patience { timeout: options.timeout, spin }
}

/// A rank whose actors are prepared.
struct Resolved {
    device: Device,
    transport: Arc<dyn Transport>,
    ports: Vec<Port>,
    part: RankPart,
}

impl Resolved {
    fn new(
        plan: &Plan,
        device: Device,
        transport: Arc<dyn Transport>,
        edges: &Edges,
    ) -> Result<Self, RuntimeError> {
        let program = plan.program_of(transport.rank());
        let resolver = ActorResolver::new(plan, program, edges, &device, &transport)?;
        let (part, ports) = (resolver.resolve()?, resolver.ports().to_vec());
        Ok(Self { device, transport, ports, part })
    }

    /// Takes memory.
    fn load(self, plan: &Plan, variables: &mut Variables) -> Result<LoadedRank, RuntimeError> {
        let Self { device, transport, ports, part } = self;
        let rank = transport.rank();
        let program = plan.program_of(rank);
        let offered = transport.offer_memory(program.arena_bytes)?;
        let memory = Arc::new(device.allocate(program.arena_bytes, offered)?);
        variables.add_rank(plan, rank, &ports, &memory)?;
        Ok(LoadedRank { device, transport, memory, part })
    }
}

/// A rank that is loaded.
struct LoadedRank {
    device: Device,
    transport: Arc<dyn Transport>,
    memory: Arc<DeviceMemory>,
    part: RankPart,
}

impl LoadedRank {
    fn start_workers(
        self,
        plan: &Plan,
        settings: WorkerSettings,
        queue: usize,
        session: &mut Session,
    ) -> Result<(), RuntimeError> {
        let rank = self.transport.rank();
        for (stream, (worker, sender)) in
            self.build_workers(plan, settings, queue)?.into_iter().enumerate()
        {
            worker.count_parts(&mut session.parts);
            let name = format!("rank {rank} stream {stream}");
            let thread = threads::start_thread(name, move || worker.run());
            let thread =
                Some(thread.map_err(|error| RuntimeError::from_thread_error(rank, error))?);
            session.workers.push(WorkerSeat {
                rank: rank as usize,
                requests: Some(sender),
                thread,
            });
        }
        Ok(())
    }

    /// Builds one worker per stream, and the queue of its requests.
    fn build_workers(
        self,
        plan: &Plan,
        settings: WorkerSettings,
        queue: usize,
    ) -> Result<Vec<(Worker, Sender<WorkerRequest>)>, RuntimeError> {
        let mut workers = Vec::new();
        let rank = self.transport.rank();
        let program = plan.program_of(rank);
        let shares = self.part.into_shares(program, self.device.can_record());
        let ears: Vec<_> = shares.iter().map(|_| unbounded()).collect();
        for (worker, share) in shares.into_iter().enumerate() {
            let WorkerShare { mut actors, order, lanes, streams } = share;
            let (sender, requests) = bounded(queue);
            let others = ears.iter().enumerate().filter(|&(other, _)| other != worker);
            let stream =
                || self.device.new_stream(settings.seed, build_ended_check(&self.transport));
            let streams = (0..streams).map(|_| stream()).collect::<Result<Vec<_>, _>>()?;
            let (alone, microbatches) = (ears.len() == 1, plan.microbatches as u64);
            let replay = match alone && settings.replay && self.device.can_record() {
                true => Replay::new(&actors, &order, microbatches),
                false => Replay::default(),
            };
            let stages_ahead = alone && self.device.can_record() && replay.may_alternate();
            if stages_ahead {
                actors.iter_mut().flatten().for_each(PreparedWork::alternate_feeds);
            }
            let next = Worker {
                transport: Arc::clone(&self.transport),
                memory: Arc::clone(&self.memory),
                streams,
                replay,
                settings,
                machine: Machine::new(program, plan.microbatches),
                microbatches: plan.microbatches as u64,
                beside: find_sending_actors(&actors, &order, &lanes),
                edges: worker::find_edge_actions(&actors, &order),
                ranges: self.device.profiler_ranges(|| range_names(program, &actors)),
                report: Report::from_actors(&actors),
                apart: ActionStopwatches::default(),
                actors,
                joins: order_channel_actors(program),
                names: actor_names(program),
                registers: program.registers.iter().map(|r| r.name.clone()).collect(),
                events: vec![DeviceEvent::Past; order.len()],
                met: 0,
                order,
                lanes,
                requests,
                stages_ahead,
                next: None,
                tell: others.map(|(_, ear)| ear.0.clone()).collect(),
                hear: ears[worker].1.clone(),
                activity: self
                    .transport
                    .new_activity(format!("stream {worker}"), actor_names(program)),
            };
            workers.push((next, sender));
        }
        Ok(workers)
    }
}

#[cfg(test)]
#[path = "../../tests/common/mod.rs"]
#[allow(dead_code, reason = "shared by several tests")]
mod common;
#[cfg(test)]
mod explored;
#[cfg(test)]
mod unanswered;

/// Asks whether the job has ended.
fn build_ended_check(transport: &Arc<dyn Transport>) -> Ended {
    let transport = Arc::clone(transport);
    Arc::new(move || transport.end_reason().is_some())
}

/// The actors of channels, by the channels' numbers.
fn order_channel_actors(program: &Program) -> Vec<usize> {
    let channel = |actor: &Actor| match actor.action {
        Action::Send { channel } | Action::Receive { channel } => Some(channel),
        _ => None,
    };
    let actors = program.actors.iter().enumerate();
    let channels = actors.filter_map(|(index, actor)| Some((channel(actor)?, index)));
    let mut channels: Vec<_> = channels.collect();
    channels.sort();
    channels.into_iter().map(|(_, index)| index).collect()
}

fn actor_names(program: &Program) -> Vec<String> {
    program.actors.iter().map(|actor| actor.name.clone()).collect()
}

/// The ranges that a profiler reads where actors launch: their names, and how many others the same launch does.
fn range_names(program: &Program, actors: &[Option<PreparedWork>]) -> Vec<Option<String>> {
    let joined = Report::from_actors(actors).joined;
    let name = |(index, actor): (usize, &Actor)| {
        let others = joined.iter().filter(|launched| **launched == Some(index as u32)).count();
        match (joined[index], others) {
            (Some(_), _) => None,
            (None, 0) => Some(actor.name.clone()),
            (None, others) => Some(format!("{} and {others} more", actor.name)),
        }
    };
    program.actors.iter().enumerate().map(name).collect()
}
