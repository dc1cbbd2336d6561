//! The processor: launches run on the worker's thread, and end before they return.

mod launch;

use std::sync::Arc;
use std::time::Duration;

use graphc_ir::learning_rate::GivenRate;
use graphc_kernels::{
    CustomKernels, KernelContext, KernelError, Prepared, Scratch, ThreadPool, View, ViewMut,
};

use super::Threads;
use super::port::{Port, Turn};
use crate::error::RuntimeError;
use crate::memory::{Arena, Offered};

pub(crate) use launch::Launch;

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
        let pool = pool(rank, threads)?;
        Ok(Self { rank, threads: threads.count, pool, custom: custom.clone() })
    }

    /// # Errors
    /// Where there is no such memory.
    pub(super) fn allocate(
        &self,
        bytes: u64,
        offered: Option<Offered>,
    ) -> Result<Arena, RuntimeError> {
        let arena = match offered {
            Some(offered) => Arena::of(offered),
            None => Arena::new(bytes),
        };
        arena.ok_or(RuntimeError::NoMemory { rank: self.rank, bytes })
    }

    pub(super) fn stream(&self, seed: u64) -> Stream {
        Stream {
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

/// How long a thread without work looks for some before it sleeps: longer than most kernels that have one part, so that it is
/// awake for the next that has several.
const SPIN: Duration = Duration::from_micros(200);

fn pool(rank: u32, threads: Threads) -> Result<Option<Arc<ThreadPool>>, RuntimeError> {
    if threads.count == 1 {
        return Ok(None);
    }
    let spin = if threads.have_cores { SPIN } else { Duration::ZERO };
    let name = |index| format!("rank {rank} thread {index}");
    let pool = ThreadPool::new(threads.count, spin, name);
    pool.map(|pool| Some(Arc::new(pool))).map_err(|error| RuntimeError::thread(rank, error))
}

/// What launches work with, kept from one to the next so that none allocates.
pub(crate) struct Stream {
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

impl Stream {
    /// # Errors
    /// Where the kernel refuses its operands.
    #[inline]
    pub(super) fn launch(
        &mut self,
        launch: &Launch,
        arena: &Arena,
        turn: Turn,
    ) -> Result<(), KernelError> {
        launch.run(self, arena, turn)
    }

    /// Calls a kernel on contents of registers.
    fn call(
        &mut self,
        arena: &Arena,
        (operands, results): (&[Port], &[Port]),
        turn: Turn,
        prepared: &Prepared,
    ) -> Result<(), KernelError> {
        let microbatch = turn.microbatch;
        let mut views: Vec<View<'_>> = std::mem::take(&mut self.operands);
        let mut places: Vec<ViewMut<'_>> = std::mem::take(&mut self.results);
        views.extend(operands.iter().map(|p| arena.view(p.place(turn), p.shape(microbatch))));
        places.extend(results.iter().map(|p| arena.view_mut(p.place(turn), p.shape(microbatch))));
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
