//! From a plan to workers that wait for steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded, unbounded};
use graphc_ir::machine::Machine;
use graphc_ir::plan::{PLAN_VERSION, Plan, Program};

use super::collect::Collector;
use super::edges::Sockets;
use super::variables::Variables;
use super::{Seat, Session, SessionOptions, room};
use crate::error::RuntimeError;
use crate::job::Job;
use crate::memory::Arena;
use crate::tensor::HostTensor;
use crate::transport::Transport;
use crate::transport::in_process::{Hub, Patience};
use crate::worker::{Edges, Job as WorkerJob, RankPart, Report, Resolver, Settings, Worker};

/// Ranks that may be threads of one process: each has a mailbox for each.
const MOST_THREADS: usize = 1024;

/// A session whose ranks are threads of this process, or, with a job, processes of which this is one.
pub(super) fn session(
    plan: Arc<Plan>,
    weights: &BTreeMap<String, HostTensor>,
    options: SessionOptions,
    job: Option<Arc<Job>>,
) -> Result<Session, RuntimeError> {
    check(&plan)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (transports, neighbours) = match &job {
        None if plan.world_size > MOST_THREADS => {
            let (ranks, most) = (plan.world_size, MOST_THREADS);
            return Err(RuntimeError::Ranks { ranks, most });
        }
        None => {
            let hub = Hub::new(patience(&plan, cores, &options));
            let ranks = 0..plan.world_size as u32;
            (ranks.map(|rank| hub.transport(rank)).collect(), plan.world_size)
        }
        Some(job) => {
            check_job(&plan, job)?;
            (vec![job.transport(options.timeout)], job.neighbours())
        }
    };
    let own: Vec<u32> = transports.iter().map(|transport| transport.rank()).collect();
    room::check(&plan, &own, neighbours)?;
    let threads = options.threads_per_rank.unwrap_or(cores / neighbours.max(1)).max(1);
    let settings = Settings {
        seed: options.seed,
        threads,
        timeout: options.timeout,
        first_step: options.first_step,
        shuffle_delays: options.shuffle_delays,
    };
    let sockets = Sockets::of(&plan);
    let edges = sockets.edges(job.as_ref().map(|_| options.outputs_at));
    let mut variables = Variables::of(&plan)?;
    let mut ranks = Vec::new();
    let collector = match &job {
        None => None,
        Some(_) => {
            let names = &sockets.output_names;
            variables.join(&plan, &transports[0])?;
            Some(Collector::new(&plan, names, &transports[0], options.outputs_at)?)
        }
    };
    for transport in transports {
        ranks.push(Rank::load(&plan, transport, &edges, &mut variables)?);
    }
    variables.complete(&own)?;
    variables.fill(weights, options.seed)?;
    let outputs = sockets.outputs.len();
    let mut session = Session {
        sockets,
        variables,
        transports: ranks.iter().map(|rank| Arc::clone(&rank.transport)).collect(),
        workers: Vec::new(),
        collector: None,
        job,
        seed: options.seed,
        first_step: options.first_step,
        begun: 0,
        parts: vec![0; outputs],
        last: None,
        plan: Arc::clone(&plan),
    };
    // Where one thread cannot be started the session is dropped and ends those that were.
    for rank in ranks {
        rank.start(&plan, settings, options.queue.max(1), &mut session)?;
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
    let thread = std::thread::Builder::new()
        .name(format!("rank {rank} outputs"))
        .spawn(move || collector.run(&jobs));
    let fail = |e: std::io::Error| RuntimeError::Thread { rank, reason: e.to_string() };
    Ok(Seat { rank: rank as usize, jobs: Some(sender), thread: Some(thread.map_err(fail)?) })
}

/// Spinning pays where every worker has a core; otherwise it keeps the peer from answering.
fn patience(plan: &Plan, cores: usize, options: &SessionOptions) -> Patience {
    let streams = |rank: usize| {
        let program = plan.programs.get(plan.ranks[rank].program.index());
        program.map_or(1, |program| program.streams.len())
    };
    let workers: usize = (0..plan.world_size).map(streams).sum();
    let spin = if workers <= cores { Duration::from_micros(3) } else { Duration::from_micros(1) };
    Patience { timeout: options.timeout, spin }
}

fn check(plan: &Plan) -> Result<(), RuntimeError> {
    if plan.version != PLAN_VERSION {
        let (found, own) = (plan.version, PLAN_VERSION);
        return Err(RuntimeError::plan(format!("it has version {found}, this build reads {own}")));
    }
    if plan.world_size == 0 || plan.ranks.len() != plan.world_size {
        let reason = format!("{} ranks for a world of {}", plan.ranks.len(), plan.world_size);
        return Err(RuntimeError::plan(reason));
    }
    for layout in &plan.layouts {
        let size: usize = layout.hierarchy.iter().product();
        if layout.sbp.0.len() != layout.hierarchy.len() || size != layout.ranks.len() {
            return Err(RuntimeError::plan(format!(
                "a layout of {} is not of its mesh",
                layout.ty()
            )));
        }
        let dims = layout.sbp.0.iter().filter_map(|sbp| match sbp {
            graphc_ir::sbp::Sbp::Split(dim) => Some(*dim),
            _ => None,
        });
        if dims.chain(layout.microbatch_dim).any(|dim| dim >= layout.shape.len()) {
            return Err(RuntimeError::plan(format!(
                "a layout splits a dim that {} lacks",
                layout.ty()
            )));
        }
    }
    for program in &plan.programs {
        check_program(program)?;
    }
    super::kernels::check(plan)
}

/// The machine takes register ids as they are.
fn check_program(program: &Program) -> Result<(), RuntimeError> {
    let registers = program.registers.len();
    for actor in &program.actors {
        let mut all = actor.inputs.iter().chain(&actor.outputs).chain(&actor.updates);
        if all.any(|register| register.index() >= registers) {
            let reason = format!("actor `{}` has a register that the program lacks", actor.name);
            return Err(RuntimeError::plan(reason));
        }
    }
    if program.streams.is_empty() {
        return Err(RuntimeError::plan("a program has no stream"));
    }
    Ok(())
}

/// A rank that is loaded.
struct Rank {
    transport: Arc<dyn Transport>,
    arena: Arc<Arena>,
    part: RankPart,
}

impl Rank {
    fn load(
        plan: &Plan,
        transport: Arc<dyn Transport>,
        edges: &Edges,
        variables: &mut Variables,
    ) -> Result<Self, RuntimeError> {
        let rank = transport.rank();
        let program = program_of(plan, rank)?;
        let resolver = Resolver::new(plan, program, edges, &transport)?;
        let bytes = program.arena_bytes;
        let arena = transport.allocate(bytes).ok_or(RuntimeError::NoMemory { rank, bytes })?;
        let arena = Arc::new(arena);
        variables.add(plan, rank, resolver.ports(), &arena)?;
        let part = resolver.resolve()?;
        Ok(Self { transport, arena, part })
    }

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
            let thread = std::thread::Builder::new().name(name).spawn(move || worker.run());
            let fail = |e: std::io::Error| RuntimeError::Thread { rank, reason: e.to_string() };
            let thread = Some(thread.map_err(fail)?);
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
        let program = program_of(plan, rank)?;
        let pool = pool(rank, settings.threads)?;
        let ears: Vec<_> = self.part.actors.iter().map(|_| unbounded()).collect();
        let streams = self.part.actors.into_iter().zip(self.part.orders).enumerate();
        for (stream, (actors, order)) in streams {
            let (sender, jobs) = bounded(queue);
            let others = ears.iter().enumerate().filter(|&(other, _)| other != stream);
            let worker = Worker {
                transport: Arc::clone(&self.transport),
                arena: Arc::clone(&self.arena),
                pool: pool.clone(),
                settings,
                machine: Machine::new(program, plan.microbatches.max(1)),
                microbatches: plan.microbatches.max(1) as u64,
                actors,
                names: names(program),
                registers: program.registers.iter().map(|r| r.name.clone()).collect(),
                order,
                jobs,
                tell: others.map(|(_, ear)| ear.0.clone()).collect(),
                hear: ears[stream].1.clone(),
                activity: self.transport.activity(format!("stream {stream}"), names(program)),
                report: Report::default(),
            };
            workers.push((worker, sender));
        }
        Ok(workers)
    }
}

#[cfg(test)]
mod explored;

fn names(program: &Program) -> Vec<String> {
    program.actors.iter().map(|actor| actor.name.clone()).collect()
}

pub(super) fn program_of(plan: &Plan, rank: u32) -> Result<&Program, RuntimeError> {
    let program = plan.programs.get(plan.ranks[rank as usize].program.index());
    program.ok_or_else(|| RuntimeError::plan(format!("rank {rank} has no program")))
}

fn pool(rank: u32, threads: usize) -> Result<Option<Arc<rayon::ThreadPool>>, RuntimeError> {
    if threads == 1 {
        return Ok(None);
    }
    let name = move |index| format!("rank {rank} thread {index}");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build();
    pool.map(|pool| Some(Arc::new(pool)))
        .map_err(|e| RuntimeError::Thread { rank, reason: e.to_string() })
}
