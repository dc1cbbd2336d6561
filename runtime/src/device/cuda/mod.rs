//! NVIDIA's cards, through CUDA's driver.
//!
//! A rank has one card, a stream for each of the plan's streams, and one piece of memory, in which its registers lie at the plan's
//! offsets. Launches are queued; which stream waits for which is said by events, so the host waits for nothing but the end of a
//! step and for what leaves the card. `library` finds NVIDIA's libraries as the program runs; nothing here needs them to be
//! built. `driver` is the one file that calls the driver. Kernels come as sources from `graphc_kernels::cuda` and are compiled for
//! the card (`compile`); products of matrices are cuBLASLt's (`product`).

mod compile;
mod driver;
mod ended;
mod joint;
mod known;
mod launch;
mod library;
mod line;
mod mark;
mod memory;
mod moves;
mod nccl;
mod nvtx;
mod product;
mod stream;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use graphc_kernels::cuda::{Kernel, Numbers, Product};

use self::compile::{Arch, compile};
use self::driver::{Buffer, Context, DriverMissing, Function, Loaded, Trouble};
use self::known::Known;
use self::nccl::NcclError;
use self::product::{Described, Multiplier, ProductError};
use super::call::Unprepared;
use crate::error::{Cause, RuntimeError};
use crate::memory::{Arena, Offered};
use crate::transport::TransportError;

pub use driver::Card;
pub(crate) use driver::{Pinned, Recording};
pub(crate) use ended::Ended;
pub(crate) use joint::Registers;
pub(crate) use launch::Launch;
pub use library::{Found, Library, NotFound};
pub(crate) use line::{Incoming, Outgoing};
pub(crate) use memory::CardMemory;
pub(crate) use moves::{CardFill, CardMove};
pub(crate) use nccl::{Id, Operation, new_id};
pub(crate) use nvtx::Ranges;
pub(crate) use stream::{Event, Stopwatch, Stream};

/// The cards of this machine, by their numbers.
///
/// # Errors
/// Why there is none: no driver, or one that cannot be used.
pub fn cards() -> Result<Vec<Card>, String> {
    driver::cards().map_err(|missing| missing.to_string())
}

/// The first architecture for which there are kernels.
const LEAST: (i32, i32) = (8, 0);

/// The card of one rank.
#[derive(Debug)]
pub(crate) struct Cuda {
    rank: u32,
    arch: Arch,
    /// Whether it communicates with other cards directly.
    pub(crate) direct: bool,
    shared: Arc<Shared>,
}

/// What the rank's streams, memory and launches have in common.
#[derive(Debug)]
struct Shared {
    context: Arc<Context>,
    multiplier: OnceLock<Result<Multiplier, ProductError>>,
    tables: Mutex<Tables>,
    failed: OnceLock<Trouble>,
}

/// What is known of all calls, by their numbers.
#[derive(Debug, Default)]
struct Tables {
    known: Vec<Known>,
    numbers: Vec<Numbers>,
    numbers_len: usize,
    scratch: usize,
}

impl Cuda {
    /// The card of a rank, of which `local` is the number among those of this machine; ranks beyond the cards share them. `direct`:
    /// whether it communicates with other cards directly.
    ///
    /// # Errors
    /// Where there is no card.
    pub(super) fn open(rank: u32, local: usize, direct: bool) -> Result<Self, RuntimeError> {
        let missing = |missing: DriverMissing| RuntimeError::NoCard { reason: missing.to_string() };
        let cards = driver::cards().map_err(missing)?;
        let none = || RuntimeError::NoCard { reason: "the driver finds no card".into() };
        let card = cards.get(local % cards.len().max(1)).ok_or_else(none)?;
        let (major, minor) = card.capability;
        if card.capability < LEAST {
            let (least, _) = LEAST;
            let Card { ordinal, name, .. } = card;
            let reason = format!(
                "cuda:{ordinal}, {name}, is of architecture {major}.{minor}, and kernels are for {least}.0 and later"
            );
            return Err(RuntimeError::NoCard { reason });
        }
        let device = |trouble: Trouble| RuntimeError::Device { rank, reason: trouble.to_string() };
        let shared = Shared {
            context: Context::of(card.ordinal).map_err(device)?,
            multiplier: OnceLock::new(),
            tables: Mutex::default(),
            failed: OnceLock::new(),
        };
        let arch = Arch { major, minor };
        Ok(Self { rank, arch, direct, shared: Arc::new(shared) })
    }

    /// # Errors
    /// Where the card has not so much memory.
    pub(super) fn allocate(
        &self,
        bytes: u64,
        offered: Option<Offered>,
    ) -> Result<CardMemory, RuntimeError> {
        let rank = self.rank;
        let image = match offered {
            Some(offered) => Arena::of(offered),
            None => Arena::new(bytes),
        };
        let image = image.ok_or(RuntimeError::NoMemory { rank, bytes })?;
        let buffer = Buffer::new(&self.shared.context, bytes as usize);
        let free = || self.shared.context.free_memory().unwrap_or(0);
        let buffer = buffer.map_err(|_| RuntimeError::CardMemory { rank, bytes, free: free() })?;
        Ok(CardMemory { buffer, image, shared: Arc::clone(&self.shared) })
    }

    /// # Errors
    /// Where the driver makes none.
    pub(super) fn stream(&self, seed: u64, ended: Ended) -> Result<Stream, RuntimeError> {
        let rank = self.rank;
        Stream::new(self, seed, ended)
            .map_err(|trouble| RuntimeError::Device { rank, reason: trouble.to_string() })
    }

    /// Has streams keep so much memory to work in.
    pub(crate) fn reserve(&self, bytes: usize) {
        let mut tables = self.shared.tables();
        tables.scratch = tables.scratch.max(bytes);
    }

    /// A kernel, to be launched as it says.
    fn load(&self, kernel: &Kernel) -> Result<Loaded, Unprepared> {
        let Kernel { grid, block, shared, .. } = *kernel;
        let function = self.function(&kernel.source, &kernel.entry, shared)?;
        Ok(Loaded { function, grid, block, shared })
    }

    /// A kernel, compiled and loaded once.
    fn function(&self, source: &str, entry: &str, shared: u32) -> Result<Function, Unprepared> {
        let context = &self.shared.context;
        context.function((source, entry), || {
            let binary =
                compile(source, self.arch).map_err(|e| Unprepared::Device(e.to_string()))?;
            let function =
                Function::load(context, &binary, entry).and_then(|function| match shared {
                    0 => Ok(function),
                    bytes => function.allow_shared(bytes).map(|()| function),
                });
            function.map_err(|e| Unprepared::Device(format!("{e}{}", older_driver())))
        })
    }

    fn describe(&self, product: &Product) -> Result<Described, Unprepared> {
        let multiplier = self.shared.multiplier();
        let described = multiplier.and_then(|multiplier| multiplier.describe(product));
        described.map_err(|error| Unprepared::Device(error.to_string()))
    }
}

/// What is said where the driver does not take what the compiler has made: that it is older.
fn older_driver() -> String {
    let ((driver, of_driver), (compiler, of_compiler)) = (driver::version(), compile::version());
    if compiler <= driver {
        return String::new();
    }
    format!(
        "; the driver is for CUDA {driver}.{of_driver} and the compiler library of CUDA {compiler}.{of_compiler}: install a newer \
         driver, or the compiler library of CUDA {driver} (`pip install nvidia-cuda-nvrtc-cu{driver}`) in place of this one"
    )
}

impl Shared {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of all calls in a step, as bytes, and bytes to work in.
    fn needs(&self, step: u64) -> (Vec<u8>, usize) {
        let tables = self.tables();
        let numbers = tables.numbers.iter().flat_map(|numbers| numbers.at(step));
        (numbers.flat_map(f32::to_ne_bytes).collect(), tables.scratch)
    }

    fn known(&self, call: u32) -> Option<Known> {
        self.tables().known.get(call as usize).cloned()
    }

    fn multiplier(&self) -> Result<&Multiplier, ProductError> {
        let multiplier = self.multiplier.get_or_init(|| Multiplier::new(&self.context));
        multiplier.as_ref().map_err(Clone::clone)
    }

    fn fail(&self, trouble: Trouble) {
        // Of several the first says why.
        let _ = self.failed.set(trouble);
    }

    fn failed(&self) -> Option<Trouble> {
        self.failed.get().cloned()
    }
}

/// Whether so many ranks of this machine communicate from card to card: each has a card of its own, and there is NCCL. Otherwise they
/// communicate through the memory of the host.
pub(crate) fn communicates_directly(ranks: usize) -> bool {
    driver::cards().is_ok_and(|cards| ranks <= cards.len()) && nccl::is_there()
}

impl From<NcclError> for Cause {
    fn from(error: NcclError) -> Self {
        match error {
            NcclError::Ended => Self::Transport(TransportError::Ended),
            error => Self::Device(error.to_string()),
        }
    }
}

impl From<Trouble> for Cause {
    fn from(trouble: Trouble) -> Self {
        Self::Device(trouble.to_string())
    }
}
