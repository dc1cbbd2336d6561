//! NVIDIA's cards, through CUDA's driver.
//!
//! A rank has one card, a stream for each of the plan's streams, and one piece of memory, in which its registers lie at the
//! plan's offsets. Launches are queued. Events say which stream waits for which, so the host waits for nothing but the end of a
//! step and for what leaves the card. It waits by asking, so that a job that ends elsewhere ends here too.
//!
//! - Driver: `driver` is the one file that calls it, with `mark` for its events, and gives back what it takes. `library` finds
//!   NVIDIA's libraries as the program runs; nothing here needs them to be built.
//! - Kernels come as sources from `graphc_kernels::cuda` and are compiled for the card (`compile`), all of a plan side by side
//!   (`kernels`), and kept (`cache`).
//! - Products of matrices are cuBLASLt's (`product`) where the library takes them (`ways`), by the algorithm that was found to be
//!   the fastest (`trial`, `choice`). Those of `f32` are made in full precision.
//! - Checks: a kernel that finds an index out of range writes it to an account in the card's memory. The host reads the account
//!   at the end of the step. The error names the actor and the index (`known`), as on the processor.

mod cache;
mod choice;
mod compile;
mod driver;
mod ended;
mod functions;
mod joint;
mod kernels;
mod known;
mod launch;
mod library;
mod line;
mod mark;
mod memory;
mod moves;
mod nccl;
mod notes;
mod nvtx;
mod product;
mod site;
mod staging;
mod stream;
mod trial;
mod ways;
mod workbench;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use graphc_comm::TransportError;
use graphc_comm::memory::{HostArena, Offered};
use graphc_ir::learning_rate::GivenRate;
use graphc_kernels::cuda::Numbers;

use self::compile::Arch;
use self::driver::{CardBuffer, CardContext, DriverMissing, Trouble};
use self::kernels::WantedKernel;
use self::known::RememberedCall;
use self::nccl::NcclError;
use self::product::{Multiplier, MultiplierError};
use crate::error::{Cause, RuntimeError};

pub use driver::Card;
pub(crate) use driver::{CardRecording, Pinned};
pub(crate) use ended::Ended;
pub(crate) use joint::Registers;
pub use kernels::PrepareError;
pub(crate) use kernels::{load_kernels, prepare_kernels};
pub(crate) use launch::CardLaunch;
pub use library::{Found, Library, NotFound};
pub(crate) use line::{IncomingLine, OutgoingLine};
pub(crate) use memory::CardMemory;
pub(crate) use moves::{CardFill, CardMove};
pub(crate) use nccl::{Id, NcclOperation, new_id};
pub use notes::take_notes;
pub(crate) use nvtx::ActorRanges;
pub(crate) use stream::{CardEvent, CardStopwatch, CardStream};
pub use workbench::{Content, Workbench, WorkbenchError};

/// Lists the cards of this machine, by their numbers.
///
/// # Errors
/// Why there is none: no driver, or one that cannot be used.
pub fn list_cards() -> Result<Vec<Card>, String> {
    driver::list_cards().map_err(|missing| missing.to_string())
}

/// The first architecture for which there are kernels.
const LEAST: (i32, i32) = (8, 0);

/// The card of one rank.
#[derive(Debug)]
pub(crate) struct Cuda {
    rank: u32,
    /// The card; none where kernels are only to be known.
    card: Option<Card>,
    /// Whether products are launched apart from their neighbours, where there is no card to ask.
    refuses: bool,
    /// Whether it communicates with other cards directly.
    pub(crate) direct: bool,
    shared: Arc<CardShared>,
}

/// The state that the rank's streams, memory and launches share.
#[derive(Debug)]
struct CardShared {
    /// The context; none where there is no card.
    context: Option<Arc<CardContext>>,
    arch: Arch,
    wanted: Mutex<Vec<WantedKernel>>,
    multiplier: OnceLock<Result<Multiplier, MultiplierError>>,
    tables: Mutex<Tables>,
    failed: OnceLock<Trouble>,
}

/// The records of all calls, by their numbers.
#[derive(Debug, Default)]
struct Tables {
    known: Vec<RememberedCall>,
    numbers: Vec<Numbers>,
    numbers_len: usize,
    scratch: usize,
}

impl Cuda {
    /// Opens the card of a rank, of which `local` is the number among those of this machine; ranks beyond the cards share them.
    /// `direct`: whether it communicates with other cards directly.
    ///
    /// # Errors
    /// Where there is no card.
    pub(super) fn open(rank: u32, local: usize, direct: bool) -> Result<Self, RuntimeError> {
        let missing = |missing: DriverMissing| RuntimeError::NoCard { reason: missing.to_string() };
        let cards = driver::list_cards().map_err(missing)?;
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
        let context = CardContext::of_card(card.ordinal).map_err(device)?;
        let shared = Arc::new(CardShared::new(Some(context), Arch { major, minor }));
        Ok(Self { rank, card: Some(card.clone()), refuses: false, direct, shared })
    }

    /// Returns the context of its card.
    fn context(&self) -> Result<&Arc<CardContext>, Trouble> {
        self.shared.context()
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
            Some(offered) => HostArena::from_provided(offered.0),
            None => HostArena::new(bytes),
        };
        let image = image.ok_or(RuntimeError::NoMemory { rank, bytes })?;
        let device = |trouble: Trouble| RuntimeError::Device { rank, reason: trouble.to_string() };
        let context = self.context().map_err(device)?;
        let buffer = CardBuffer::new(context, bytes as usize);
        let free = || context.free_memory().unwrap_or(0);
        let buffer = buffer.map_err(|_| RuntimeError::CardMemory { rank, bytes, free: free() })?;
        Ok(CardMemory { buffer, image, shared: Arc::clone(&self.shared) })
    }

    /// # Errors
    /// Where the driver makes none.
    pub(super) fn new_stream(&self, seed: u64, ended: Ended) -> Result<CardStream, RuntimeError> {
        let rank = self.rank;
        CardStream::new(self, seed, ended)
            .map_err(|trouble| RuntimeError::Device { rank, reason: trouble.to_string() })
    }

    /// Has streams keep so much memory to work in.
    pub(crate) fn reserve_scratch(&self, bytes: usize) {
        let mut tables = self.shared.lock_tables();
        tables.scratch = tables.scratch.max(bytes);
    }
}

impl CardShared {
    fn new(context: Option<Arc<CardContext>>, arch: Arch) -> Self {
        Self {
            context,
            arch,
            wanted: Mutex::default(),
            multiplier: OnceLock::new(),
            tables: Mutex::default(),
            failed: OnceLock::new(),
        }
    }

    fn context(&self) -> Result<&Arc<CardContext>, Trouble> {
        self.context.as_ref().ok_or_else(|| Trouble::from_text("there is no card".into()))
    }

    fn lock_tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the numbers of all calls in a step, as bytes, and bytes to work in.
    fn step_needs(&self, step: u64, rate: Option<GivenRate>) -> (Vec<u8>, usize) {
        let tables = self.lock_tables();
        let numbers = tables.numbers.iter().flat_map(|numbers| numbers.at_step(step, rate));
        (numbers.flat_map(f32::to_ne_bytes).collect(), tables.scratch)
    }

    fn find_call(&self, call: u32) -> Option<RememberedCall> {
        self.lock_tables().known.get(call as usize).cloned()
    }

    fn multiplier(&self) -> Result<&Multiplier, MultiplierError> {
        let open = || {
            let context = self.context().map_err(|e| MultiplierError::Unusable(e.to_string()))?;
            Multiplier::new(context)
        };
        let multiplier = self.multiplier.get_or_init(open);
        multiplier.as_ref().map_err(Clone::clone)
    }

    fn record_failure(&self, trouble: Trouble) {
        // Of several the first says why.
        let _ = self.failed.set(trouble);
    }

    fn first_failure(&self) -> Option<Trouble> {
        self.failed.get().cloned()
    }
}

/// Whether so many ranks of this machine communicate from card to card: each has a card of its own, and there is NCCL. Otherwise they
/// communicate through the memory of the host.
pub(crate) fn communicates_directly(ranks: usize) -> bool {
    driver::list_cards().is_ok_and(|cards| ranks <= cards.len()) && nccl::is_there()
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
