//! The processor: launches run on the worker's thread, and end before they return.

mod launch;

use std::sync::Arc;
use std::time::Duration;

use graphc_comm::memory::{HostArena, Offered};
use graphc_ir::learning_rate::GivenRate;
use graphc_kernels::{
    CustomKernels, KernelContext, KernelError, Prepared, Scratch, ThreadPool, View, ViewMut,
};

use super::Threads;
use super::port::{Port, Turn};
use crate::device::views::{view, view_mut};
use crate::error::RuntimeError;

pub(crate) use launch::CpuLaunch;

/// The cores that one rank has.
#[derive(Debug)]
pub(crate) struct Cpu {
    rank: u32,
    threads: usize,
    pool: Option<Arc<ThreadPool>>,
    custom: CustomKernels,
}

impl Cpu {
    /// # Errors
    /// Where the system gives no threads.
    pub(super) fn open(
        rank: u32,
        threads: Threads,
        custom: &CustomKernels,
    ) -> Result<Self, RuntimeError> {
        let pool = start_pool(rank, threads)?;
        Ok(Self { rank, threads: threads.count, pool, custom: custom.clone() })
    }

    /// # Errors
    /// Where there is no such memory.
    pub(super) fn allocate(
        &self,
        bytes: u64,
        offered: Option<Offered>,
    ) -> Result<HostArena, RuntimeError> {
        let arena = match offered {
            Some(offered) => HostArena::from_provided(offered.0),
            None => HostArena::new(bytes),
        };
        arena.ok_or(RuntimeError::NoMemory { rank: self.rank, bytes })
    }

    pub(super) fn new_stream(&self, seed: u64) -> CpuStream {
        CpuStream {
            step: 0,
            rate: None,
            seed,
            threads: self.threads,
            pool: self.pool.clone(),
            scratch: Scratch::new(),
            operands: Vec::new(),
            results: Vec::new(),
        }
    }
}

/// The time for which a thread without work looks for some before it sleeps: longer than most kernels that have one part, so
/// that it is awake for the next that has several.
const SPIN: Duration = Duration::from_micros(200);

fn start_pool(rank: u32, threads: Threads) -> Result<Option<Arc<ThreadPool>>, RuntimeError> {
    if threads.count == 1 {
        return Ok(None);
    }
    let spin = if threads.have_cores { SPIN } else { Duration::ZERO };
    let name = |index| format!("rank {rank} thread {index}");
    let pool = ThreadPool::new(threads.count, spin, name);
    pool.map(|pool| Some(Arc::new(pool)))
        .map_err(|error| RuntimeError::from_thread_error(rank, error))
}

/// The state of launches, kept from one to the next so that none allocates.
pub(crate) struct CpuStream {
    /// The training step, from 0.
    pub(super) step: u64,
    /// The learning rate that was given for it.
    pub(super) rate: Option<GivenRate>,
    seed: u64,
    threads: usize,
    pool: Option<Arc<ThreadPool>>,
    scratch: Scratch,
    operands: Vec<View<'static>>,
    results: Vec<ViewMut<'static>>,
}

impl CpuStream {
    /// # Errors
    /// Where the kernel refuses its operands.
    #[inline]
    pub(super) fn launch(
        &mut self,
        launch: &CpuLaunch,
        arena: &HostArena,
        turn: Turn,
    ) -> Result<(), KernelError> {
        launch.run(self, arena, turn)
    }

    /// Calls a kernel on contents of registers.
    fn call_kernel(
        &mut self,
        arena: &HostArena,
        (operands, results): (&[Port], &[Port]),
        turn: Turn,
        prepared: &Prepared,
    ) -> Result<(), KernelError> {
        let microbatch = turn.microbatch;
        let mut views: Vec<View<'_>> = std::mem::take(&mut self.operands);
        let mut places: Vec<ViewMut<'_>> = std::mem::take(&mut self.results);
        views.extend(
            operands.iter().map(|p| view(arena, p.content_range(turn), p.shape(microbatch))),
        );
        places.extend(
            results.iter().map(|p| view_mut(arena, p.content_range(turn), p.shape(microbatch))),
        );
        let mut cx = KernelContext {
            seed: self.seed,
            step: self.step,
            rate: self.rate,
            threads: self.threads,
            pool: self.pool.as_deref(),
            scratch: &mut self.scratch,
        };
        let result = prepared.launch(&views, &mut places, &mut cx);
        // Emptied, the lists outlive what they pointed to; the standard library keeps their memory.
        views.clear();
        places.clear();
        self.operands = views.into_iter().map(|_| unreachable!("the list is empty")).collect();
        self.results = places.into_iter().map(|_| unreachable!("the list is empty")).collect();
        result
    }
}
