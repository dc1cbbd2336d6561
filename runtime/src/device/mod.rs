//! Devices: the memory, streams, events and launches of ranks.
//!
//! A device is what a rank computes on. Whatever touches a rank's memory (sessions, variables, feeds, fetches, channels,
//! checkpoints) does so through this room. No communication here: what crosses ranks is `communicator`'s.
//!
//! An actor is *prepared* once, when its plan is loaded, into a [`Launch`]: kernels, element types, extents and addresses
//! are known from then on. An action only launches it on a [`Stream`]. A launch may end later than the call that makes
//! it. [`Stream::record`] gives an [`Event`] that has come when all launches so far have ended. Another stream waits for
//! it by [`Stream::wait`], and the host by [`Stream::synchronize`]. During a step the host reaches memory through the
//! stream alone, which orders it behind what was launched; between steps through [`Memory`].
//!
//! There are two kinds of device, each a variant of these enums: the processor (`cpu`), on which launches have ended when
//! they return, and NVIDIA's cards (`cuda`). A third is one more variant of each, and the compiler then names every
//! function that it lacks. These are the functions, with their promises:
//!
//! - `Device::open`: the device of a rank, or an error that says what is missing.
//! - `Device::allocate`: memory in which a program's registers lie at the plan's offsets, aligned to 64 bytes; an error
//!   where there is not so much. A processor's is zeros, a card's has no content yet. `offered` is memory that the
//!   transport's peers can map; on a card its image on the host lies there.
//! - `Device::prepare`: does once all that can be done before the first step: finds the kernel for the element types of
//!   all operands, builds the program of a chain, looks up addresses. An error where there is no kernel.
//! - `Device::joins`, `prepare_joint`, `prepare_pair`: what the device does for several actors by one launch: updates by
//!   one rule, casts to one type, or a product and what goes with it.
//! - `load_kernels`: makes launches ready that were prepared on these devices. What must be compiled for them is compiled
//!   side by side.
//! - `Device::stream`: a queue whose launches begin in the order in which they are made. Its waits end where the job has.
//! - `Stream::begin_step`: launches from now on draw their random numbers for this step, and update by its learning rate.
//! - `Stream::launch`: computes on the contents that the turn (step, microbatch) says; allocates nothing; may return
//!   before it has ended. The same operands give the same bits, however many threads or streams there are.
//! - `Stream::record`, `record_at`: an event that has come when all launches so far have ended.
//! - `Stream::wait`: launches from now on begin after an event; the host goes on.
//! - `Stream::synchronize`: the host waits for all launches so far. A launch that failed is an error here at the latest.
//! - `Stream::read`, `fill`: the host sees, or fills, the bytes of a content in the order of the stream.
//! - `Stream::passage`, `begin_fill`, `begin_read`: copies between the host and a device whose memory it does not reach,
//!   for feeds and fetches. They go on while the host does.
//! - `Stream::host`, `written`: memory that the host and its peers reach in place, when all launches so far have ended,
//!   for the host's communicator; launches from now on see what was written there.
//! - `Device::records`, `Stream::begin_recording`, `end_recording`, `replay`: launches that are recorded once and begun
//!   again by one call, where the device has such (cards alone).
//! - `Stream::stopwatch`, `begin`, `end`: the time of what stands between two places of a stream.
//! - `Stream::rest`, `abort`: the end of waits where the job ends: for launches, and for other ranks.
//! - `Memory::read`, `write`: the host sees, or changes, bytes between steps, for variables and checkpoints.
//! - `Memory::begin_with_zeros`: bytes to which nothing was written hold zeros.
//!
//! A worker tells the others of its rank what it is done with together with an event. So a device whose launches end
//! later makes its streams wait for each other instead of the host.

mod call;
mod cpu;
pub mod cuda;
mod launch;
mod local;
mod memory;
mod port;
mod stream;

use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_kernels::CustomKernels;

use crate::error::RuntimeError;
use crate::memory::Offered;

pub(crate) use call::{Call, Pair, Unprepared, With};
pub(crate) use cuda::{Ended, Ranges, Registers, communicates_directly};
pub(crate) use launch::Launch;
pub(crate) use memory::Memory;
pub(crate) use port::{Port, Turn, lcm};
pub(crate) use stream::{Event, Passage, Recording, Stopwatch, Stream};

/// Makes launches ready that were prepared on these devices: compiles and loads their kernels, side by side.
///
/// # Errors
/// Where a kernel cannot be compiled or loaded.
pub(crate) fn load_kernels<'a>(
    devices: impl IntoIterator<Item = &'a Device>,
) -> Result<(), RuntimeError> {
    let card = |device: &'a Device| match device {
        Device::Cpu(_) => None,
        Device::Cuda(cuda) => Some(cuda),
    };
    cuda::load_kernels(&devices.into_iter().filter_map(card).collect::<Vec<_>>())
}

/// Threads of the host that a rank may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Threads {
    pub(crate) count: usize,
    /// Whether there is a core for each of those of all ranks here, so that one without work may keep its own a while.
    pub(crate) have_cores: bool,
}

#[cfg(test)]
impl Threads {
    pub(crate) const ONE: Self = Self { count: 1, have_cores: true };
}

/// The rank whose device is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    pub(crate) rank: u32,
    /// Its number among the ranks of this machine.
    pub(crate) local: usize,
    /// Whether cards communicate with each other directly.
    pub(crate) direct: bool,
}

impl Site {
    /// A rank whose device is the processor.
    pub(crate) fn host(rank: u32) -> Self {
        Self { rank, local: 0, direct: false }
    }
}

/// The device of one rank.
#[derive(Debug)]
pub(crate) enum Device {
    /// Cores of this machine's processors.
    Cpu(cpu::Cpu),
    /// A card.
    Cuda(cuda::Cuda),
}

impl Device {
    /// Opens the device of a rank, whose kernels may use these threads of the host. A processor has the kernels of the program's own ops.
    ///
    /// # Errors
    /// Where there is none of that kind.
    pub(crate) fn open(
        kind: DeviceKind,
        Site { rank, local, direct }: Site,
        threads: Threads,
        custom: &CustomKernels,
    ) -> Result<Self, RuntimeError> {
        match kind {
            DeviceKind::Cpu => Ok(Self::Cpu(cpu::Cpu::open(rank, threads, custom)?)),
            DeviceKind::Cuda => Ok(Self::Cuda(cuda::Cuda::open(rank, local, direct)?)),
        }
    }

    /// Whether its streams record launches.
    pub(crate) fn records(&self) -> bool {
        matches!(self, Self::Cuda(_))
    }

    /// Memory of so many bytes, zeros; of what a transport offers where its peers are to reach it in place.
    ///
    /// # Errors
    /// Where there is not so much.
    pub(crate) fn allocate(
        &self,
        bytes: u64,
        offered: Option<Offered>,
    ) -> Result<Memory, RuntimeError> {
        match self {
            Self::Cpu(cpu) => cpu.allocate(bytes, offered).map(Memory::Cpu),
            Self::Cuda(cuda) => cuda.allocate(bytes, offered).map(Memory::Cuda),
        }
    }

    /// Prepares what an actor of this name does, for any number of launches.
    ///
    /// # Errors
    /// Where the device has no kernel for it, or its registers do not fit each other.
    pub(crate) fn prepare(
        &self,
        actor: &str,
        call: Call<'_>,
        operands: Vec<Port>,
        results: Vec<Port>,
    ) -> Result<Launch, Unprepared> {
        match self {
            Self::Cpu(cpu) => cpu::Launch::prepare(cpu, call, operands, results).map(Launch::Cpu),
            Self::Cuda(cuda) => {
                cuda::Launch::prepare(cuda, actor, call, operands, results).map(Launch::Cuda)
            }
        }
    }

    /// How many operands of an update or a cast are its own, where those of several variables can be one launch; operands
    /// behind these they have in common.
    pub(crate) fn joins(&self, op: &Op) -> Option<usize> {
        match self {
            // There a launch is a call, and each of them is shared by all threads.
            Self::Cpu(_) => None,
            Self::Cuda(_) => graphc_kernels::cuda::joins(op),
        }
    }

    /// Prepares updates of several variables, of which the first has this name, as one launch.
    ///
    /// # Errors
    /// Where the device does not join them.
    pub(crate) fn prepare_joint(
        &self,
        actor: &str,
        op: &Op,
        members: Vec<Registers>,
    ) -> Result<Launch, Unprepared> {
        match self {
            Self::Cpu(_) => Err(Unprepared::Registers("is joined with others".into())),
            Self::Cuda(cuda) => {
                cuda::Launch::prepare_joint(cuda, actor, op, members).map(Launch::Cuda)
            }
        }
    }

    /// Prepares a matrix product of this name and what goes with it as one launch; `None` where the device does not join them.
    pub(crate) fn prepare_pair(&self, actor: &str, pair: Pair<'_>) -> Option<Launch> {
        match self {
            Self::Cpu(_) => cpu::Launch::prepare_pair(pair).map(Launch::Cpu),
            Self::Cuda(cuda) => cuda::Launch::prepare_pair(cuda, actor, pair).map(Launch::Cuda),
        }
    }

    /// The ranges that tell a profiler of the device who launches, by the actors' numbers.
    pub(crate) fn ranges(&self, names: impl FnOnce() -> Vec<Option<String>>) -> Ranges {
        match self {
            Self::Cpu(_) => Ranges::default(),
            Self::Cuda(_) => Ranges::of(names),
        }
    }

    /// A stream, on which launches begin in the order in which they are made. Random numbers are drawn by `seed`; a wait
    /// ends where `ended` says that the job has.
    ///
    /// # Errors
    /// Where the device makes none.
    pub(crate) fn stream(&self, seed: u64, ended: cuda::Ended) -> Result<Stream, RuntimeError> {
        match self {
            Self::Cpu(cpu) => Ok(Stream::Cpu(cpu.stream(seed))),
            Self::Cuda(cuda) => Ok(Stream::Cuda(Box::new(cuda.stream(seed, ended)?))),
        }
    }
}
