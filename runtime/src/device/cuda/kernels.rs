//! The kernels of a plan: remembered while its calls are prepared, then compiled side by side and loaded, before the first
//! launch.
//!
//! Preparing a call only asks for its kernels. When the calls of all ranks of a process are prepared, each source is compiled
//! once, by as many threads as the process may use. Kernels are loaded in the order in which they were asked for, so an error is
//! the same each time.
//!
//! Kernels can be known without a card as well, and compiled for a machine that has one ([`Cuda::without_card`], used by `graphc
//! kernels`). Such a device prepares calls as every other does, but launches nothing. What cuBLASLt would say is not known there.
//! So it asks twice, as if the library took every product with its neighbours and as if it took none, and each time for the
//! kernels of all ways to make a product.

use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError};

use graphc_kernels::cuda::Kernel;

use super::cache::CacheFolder;
use super::compile::{self, Arch, KernelBinary, compile_again, compile_all, prepare_all};
use super::driver::{self, CardContext, FunctionPlace, KernelFunction, Loaded};
use super::library::Library;
use super::notes::note_of_cache;
use super::{CardShared, Cuda, LEAST};
use crate::error::RuntimeError;

/// A kernel that launches of a device are of.
#[derive(Debug)]
pub(super) struct WantedKernel {
    source: String,
    entry: String,
    /// Bytes of shared memory besides what the source declares.
    shared: u32,
    place: FunctionPlace,
}

impl Cuda {
    /// Makes the stand-in for the card of a rank where there is none: calls are prepared to know their kernels. What the library of
    /// products would say cannot be asked, so the kernels of all ways to make a product are known. `refuses` says whether products
    /// and their neighbours are launched apart, as where the library does not compute them together.
    pub(crate) fn without_card(rank: u32, (major, minor): (i32, i32), refuses: bool) -> Self {
        let shared = Arc::new(CardShared::new(None, Arch { major, minor }));
        // Communication from card to card has kernels, and through the host none.
        Self { rank, card: None, refuses, direct: true, shared }
    }

    pub(super) fn has_card(&self) -> bool {
        self.shared.context.is_some()
    }

    /// Requests a kernel, to be launched as it says once [`load_kernels`] has loaded it.
    pub(super) fn request_kernel(&self, kernel: &Kernel) -> Loaded {
        static NONE: OnceLock<KernelFunction> = OnceLock::new();
        let Kernel { ref source, ref entry, grid, block, shared, .. } = *kernel;
        let place =
            self.shared.context.as_ref().map_or(&NONE, |of| of.function_place(source, entry));
        if place.get().is_none() {
            let mut wanted = self.shared.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            wanted.push(WantedKernel {
                source: source.clone(),
                entry: entry.clone(),
                shared,
                place,
            });
        }
        Loaded { function: place, grid, block, shared }
    }

    /// Takes the kernels that were asked for since this was called last, in order.
    fn take_wanted(&self) -> Vec<WantedKernel> {
        std::mem::take(&mut self.shared.wanted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the sources of the kernels that were asked for.
    pub(crate) fn take_sources(&self) -> Vec<String> {
        self.take_wanted().into_iter().map(|wanted| wanted.source).collect()
    }
}

impl CardShared {
    /// Compiles and loads a kernel at once, to be launched as it says: one that is needed after all.
    ///
    /// # Errors
    /// Why it cannot be compiled or loaded.
    pub(super) fn load_at_once(&self, kernel: &Kernel) -> Result<Loaded, String> {
        let Kernel { ref source, ref entry, grid, block, shared, .. } = *kernel;
        let place = self.context()?.function_place(source, entry);
        let wanted = WantedKernel { source: source.clone(), entry: entry.clone(), shared, place };
        let binary = compile::find_binary(source, self.arch).map_err(|error| error.to_string())?;
        self.load_wanted(&wanted, &binary)?;
        Ok(Loaded { function: place, grid, block, shared })
    }

    fn load_wanted(&self, wanted: &WantedKernel, binary: &KernelBinary) -> Result<(), String> {
        let context = self.context()?;
        context.load_to(wanted.place, || match wanted.load(context, binary) {
            Err(refused) if binary.was_kept => {
                note_of_cache(format!(
                    "the driver does not take kernel `{}` as it was kept, and it is compiled again: {refused}",
                    wanted.entry
                ));
                // Without a compiler it is the driver that has the last word.
                let again = compile_again(&wanted.source, self.arch).map_err(|_| refused)?;
                wanted.load(context, &again)
            }
            result => result,
        })
    }
}

impl WantedKernel {
    fn load(&self, context: &CardContext, binary: &KernelBinary) -> Result<KernelFunction, String> {
        let function = KernelFunction::load(context, &binary.bytes, &self.entry);
        let function = function.and_then(|function| match self.shared {
            0 => Ok(function),
            bytes => function.allow_shared(bytes).map(|()| function),
        });
        function.map_err(|error| format!("{error}{}", older_driver()))
    }
}

/// Compiles all kernels that calls of these cards launch, side by side, and loads them.
///
/// # Errors
/// Where there is no compiler, or a kernel cannot be compiled or loaded: the first in the order in which calls were prepared.
pub(crate) fn load_kernels(cards: &[&Cuda]) -> Result<(), RuntimeError> {
    let all: Vec<(&Cuda, Vec<WantedKernel>)> =
        cards.iter().map(|card| (*card, card.take_wanted())).collect();
    let sources = all.iter().flat_map(|(card, wanted)| {
        wanted.iter().map(|wanted| (wanted.source.as_str(), card.shared.arch))
    });
    let binaries = compile_all(sources);
    for (card, wanted) in &all {
        for kernel in wanted {
            let binary = &binaries[&(kernel.source.as_str(), card.shared.arch)];
            let loaded = match binary {
                Ok(binary) => card.shared.load_wanted(kernel, binary),
                Err(error) => Err(error.to_string()),
            };
            let failed = |reason| {
                let reason = format!("kernel `{}`: {reason}", kernel.entry);
                RuntimeError::Device { rank: card.rank, reason }
            };
            loaded.map_err(failed)?;
        }
    }
    Ok(())
}

/// Why kernels cannot be compiled for another machine.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The card is too old: there are no kernels for it.
    #[error("kernels are for cards of capability {}.{} and later, not for {major}.{minor}", LEAST.0, LEAST.1)]
    Old {
        /// Major number of the capability.
        major: i32,
        /// Minor number.
        minor: i32,
    },
    /// The folder cannot be used.
    #[error("cannot keep kernels in {folder}: {reason}")]
    Folder {
        /// Its path.
        folder: String,
        /// The reason.
        reason: String,
    },
    /// A kernel cannot be compiled.
    #[error("{reason}")]
    Compile {
        /// The compiler's message.
        reason: String,
    },
    /// A plan cannot be executed.
    #[error(transparent)]
    Plan(#[from] RuntimeError),
}

/// Compiles kernels for cards of a capability, which need not be there, and keeps them in a folder. Gives how many were not there yet.
///
/// # Errors
/// As [`PrepareError`] says.
pub(crate) fn prepare_kernels(
    sources: &[String],
    capability @ (major, minor): (i32, i32),
    folder: &Path,
) -> Result<usize, PrepareError> {
    if capability < LEAST {
        return Err(PrepareError::Old { major, minor });
    }
    let failed = |error: std::io::Error| PrepareError::Folder {
        folder: folder.display().to_string(),
        reason: error.to_string(),
    };
    let folder = CacheFolder::open_or_make(folder).map_err(failed)?;
    let made = prepare_all(sources, Arch { major, minor }, &folder);
    made.map_err(|error| PrepareError::Compile { reason: error.to_string() })
}

/// Returns what to add to an error of the driver where it is older than the compiler.
fn older_driver() -> String {
    if Library::Nvrtc.find().is_err() {
        return String::new();
    }
    let ((driver, of_driver), (compiler, of_compiler)) =
        (driver::cuda_version(), compile::compiler_version());
    if compiler <= driver {
        return String::new();
    }
    format!(
        "; the driver is for CUDA {driver}.{of_driver} and the compiler library of CUDA {compiler}.{of_compiler}: install a newer \
         driver, or the compiler library of CUDA {driver} (`pip install nvidia-cuda-nvrtc-cu{driver}`) in place of this one"
    )
}
