//! The start of a session: from a plan to workers that wait for steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded, unbounded};
use graphc_ir::check::VerifiedPlan;
use graphc_ir::machine::Machine;
use graphc_ir::mesh::DeviceKind;
use graphc_ir::plan::{Action, Actor, Plan, Program};

use super::agreement::agree;
use super::collect::Collector;
use super::edges::Sockets;
use super::variables::Variables;
use super::{Seat, Session, SessionOptions, room};
use crate::device::{
    Device, Ended, Event, Memory, Port, Site, Threads, communicates_directly, load_kernels,
};
use crate::error::RuntimeError;
use crate::job::Job;
use crate::tensor::HostTensor;
use crate::threads;
use crate::transport::Transport;
use crate::transport::in_process::{Hub, Patience};
use crate::worker::{
    self, Apart, Edges, Job as WorkerJob, RankPart, Replay, Report, Resolver, Settings, Share,
    Work, Worker, beside,
};

/// Ranks that may be threads of one process: each has a mailbox for each.
const MOST_THREADS: usize = 1024;

/// A session whose ranks are threads of this process, or, with a job, processes of which this is one.
pub(super) fn session(
    plan: &VerifiedPlan,
    weights: &BTreeMap<String, HostTensor>,
    options: SessionOptions,
    job: Option<Arc<Job>>,
) -> Result<Session, RuntimeError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (transports, neighbours): (Vec<Arc<dyn Transport>>, _) = match &job {
        None if plan.world_size > MOST_THREADS => {
            let (ranks, most) = (plan.world_size, MOST_THREADS);
            return Err(RuntimeError::Ranks { ranks, most });
        }
        None => {
            let hub = Hub::new(patience(plan, cores, &options));
            let ranks = 0..plan.world_size as u32;
            (ranks.map(|rank| hub.transport(rank)).collect(), plan.world_size)
        }
        Some(job) => {
            agree(job, plan, weights, &options)?;
            check_job(plan, job)?;
            (vec![job.transport(options.timeout)], job.neighbours())
        }
    };
    let own: Vec<u32> = transports.iter().map(|transport| transport.rank()).collect();
    let count = options.threads_per_rank.unwrap_or(cores / neighbours.max(1)).max(1);
    let threads = Threads { count, have_cores: count * neighbours <= cores };
    let settings = Settings {
        seed: options.seed,
        timeout: options.timeout,
        shuffle_delays: options.shuffle_delays,
        replay: options.replay,
    };
    let kind = options.device.unwrap_or(plan.cluster.device.kind);
    if kind == DeviceKind::Cpu {
        room::check(plan, &own, neighbours)?;
    }
    let local = |rank: u32| job.as_ref().map_or(rank, |job| job.local_rank()) as usize;
    let direct = kind == DeviceKind::Cuda && communicates_directly(neighbours);
    let open = |transport: &Arc<dyn Transport>| {
        let rank = transport.rank();
        Device::open(kind, Site { rank, local: local(rank), direct }, threads, &options.custom)
    };
    let devices = transports.iter().map(open).collect::<Result<Vec<Device>, _>>()?;
    let sockets = Sockets::of(plan, &own);
    let edges = sockets.edges(job.as_ref().map(|_| options.outputs_at));
    let mut variables = Variables::of(plan)?;
    let mut ranks = Vec::new();
    let collector = match &job {
        None => None,
        Some(_) => {
            let names = &sockets.output_names;
            variables.join(plan, &transports[0])?;
            Some(Collector::new(plan, names, &transports[0], options.outputs_at)?)
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
    variables.complete(&own)?;
    variables.fill(weights, options.seed)?;
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
        rates: super::rate::Rates::default(),
        parts: vec![0; outputs],
        fetched: vec![true; outputs].into(),
        last: None,
        plan: plan.clone(),
    };
    // Where one thread cannot be started the session is dropped and ends those that were.
    for rank in ranks {
        rank.start(plan, settings, options.queue.max(1), &mut session)?;
    }
    if let Some(collector) = collector.filter(|collector| !collector.is_idle()) {
        collector.count_parts(&mut session.parts);
        session.collector = Some(seat_collector(collector, options.queue.max(1))?);
    }
    Ok(session)
}

/// All processes must run one plan.
fn check_job(plan: &Plan, job: &Job) -> Result<(), RuntimeError> {
    let (world, job) = (plan.world_size, job.world_size());
    if world == job as usize {
        return Ok(());
    }
    Err(RuntimeError::plan(format!("it is for {world} ranks, and the job has {job} processes")))
}

fn seat_collector(collector: Collector, queue: usize) -> Result<Seat, RuntimeError> {
    let (sender, jobs) = bounded(queue);
    let rank = collector.rank();
    let thread = threads::start(format!("rank {rank} outputs"), move || collector.run(&jobs));
    let thread = thread.map_err(|error| RuntimeError::thread(rank, error))?;
    Ok(Seat { rank: rank as usize, jobs: Some(sender), thread: Some(thread) })
}

/// Spinning pays where every worker has a core; otherwise it keeps the peer from answering.
fn patience(plan: &Plan, cores: usize, options: &SessionOptions) -> Patience {
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
        let resolver = Resolver::new(plan, program, edges, &device, &transport)?;
        let (part, ports) = (resolver.resolve()?, resolver.ports().to_vec());
        Ok(Self { device, transport, ports, part })
    }

    /// Takes memory.
    fn load(self, plan: &Plan, variables: &mut Variables) -> Result<Rank, RuntimeError> {
        let Self { device, transport, ports, part } = self;
        let rank = transport.rank();
        let program = plan.program_of(rank);
        let offered = transport.offer(program.arena_bytes)?;
        let memory = Arc::new(device.allocate(program.arena_bytes, offered)?);
        variables.add(plan, rank, &ports, &memory)?;
        Ok(Rank { device, transport, memory, part })
    }
}

/// A rank that is loaded.
struct Rank {
    device: Device,
    transport: Arc<dyn Transport>,
    memory: Arc<Memory>,
    part: RankPart,
}

impl Rank {
    fn start(
        self,
        plan: &Plan,
        settings: Settings,
        queue: usize,
        session: &mut Session,
    ) -> Result<(), RuntimeError> {
        let rank = self.transport.rank();
        for (stream, (worker, sender)) in
            self.workers(plan, settings, queue)?.into_iter().enumerate()
        {
            worker.count_parts(&mut session.parts);
            let name = format!("rank {rank} stream {stream}");
            let thread = threads::start(name, move || worker.run());
            let thread = Some(thread.map_err(|error| RuntimeError::thread(rank, error))?);
            session.workers.push(Seat { rank: rank as usize, jobs: Some(sender), thread });
        }
        Ok(())
    }

    /// One worker per stream, and the queue of its jobs.
    fn workers(
        self,
        plan: &Plan,
        settings: Settings,
        queue: usize,
    ) -> Result<Vec<(Worker, Sender<WorkerJob>)>, RuntimeError> {
        let mut workers = Vec::new();
        let rank = self.transport.rank();
        let program = plan.program_of(rank);
        let shares = self.part.shares(program, self.device.records());
        let ears: Vec<_> = shares.iter().map(|_| unbounded()).collect();
        for (worker, share) in shares.into_iter().enumerate() {
            let Share { mut actors, order, lanes, streams } = share;
            let (sender, jobs) = bounded(queue);
            let others = ears.iter().enumerate().filter(|&(other, _)| other != worker);
            let stream = || self.device.stream(settings.seed, ended(&self.transport));
            let streams = (0..streams).map(|_| stream()).collect::<Result<Vec<_>, _>>()?;
            let (alone, microbatches) = (ears.len() == 1, plan.microbatches as u64);
            let replay = match alone && settings.replay && self.device.records() {
                true => Replay::new(&actors, &order, microbatches),
                false => Replay::default(),
            };
            let stages_ahead = alone && self.device.records() && replay.alternates();
            if stages_ahead {
                actors.iter_mut().flatten().for_each(Work::alternate);
            }
            let next = Worker {
                transport: Arc::clone(&self.transport),
                memory: Arc::clone(&self.memory),
                streams,
                replay,
                settings,
                machine: Machine::new(program, plan.microbatches),
                microbatches: plan.microbatches as u64,
                beside: beside(&actors, &order, &lanes),
                edges: worker::edges(&actors, &order),
                ranges: self.device.ranges(|| ranges(program, &actors)),
                report: Report::of(&actors),
                apart: Apart::default(),
                actors,
                joins: joins(program),
                names: names(program),
                registers: program.registers.iter().map(|r| r.name.clone()).collect(),
                events: vec![Event::Past; order.len()],
                met: 0,
                order,
                lanes,
                jobs,
                stages_ahead,
                next: None,
                tell: others.map(|(_, ear)| ear.0.clone()).collect(),
                hear: ears[worker].1.clone(),
                activity: self.transport.activity(format!("stream {worker}"), names(program)),
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
fn ended(transport: &Arc<dyn Transport>) -> Ended {
    let transport = Arc::clone(transport);
    Arc::new(move || transport.ended().is_some())
}

/// The actors of channels, by the channels' numbers.
fn joins(program: &Program) -> Vec<usize> {
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

fn names(program: &Program) -> Vec<String> {
    program.actors.iter().map(|actor| actor.name.clone()).collect()
}

/// The ranges that a profiler reads where actors launch: their names, and how many others the same launch does.
fn ranges(program: &Program, actors: &[Option<Work>]) -> Vec<Option<String>> {
    let joined = Report::of(actors).joined;
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
