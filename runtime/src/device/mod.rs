//! Devices: the memory, streams, events and launches of ranks.
//!
//! A device is what a rank computes on. Whatever touches a rank's memory (sessions, variables, feeds, fetches, channels,
//! checkpoints) does so through this module. No communication here: what crosses ranks is `communicator`'s.
//!
//! An actor is *prepared* once, when its plan is loaded, into a [`DeviceLaunch`]: kernels, element types, extents and addresses
//! are known from then on. An action only launches it on a [`DeviceStream`]. A launch may end later than the call that makes
//! it. [`DeviceStream::record_event`] gives a [`DeviceEvent`] that has come when all launches so far have ended. Another stream waits for
//! it by [`DeviceStream::wait_event`], and the host by [`DeviceStream::synchronize`]. During a step the host reaches memory through the
//! stream alone, which orders it behind what was launched; between steps through [`DeviceMemory`].
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
//! - `Device::joinable_tensors`, `prepare_joint`, `prepare_pair`: what the device does for several actors by one launch: updates by
//!   one rule, casts to one type, or a product and what goes with it.
//! - `load_kernels`: makes launches ready that were prepared on these devices. What must be compiled for them is compiled
//!   side by side.
//! - `Device::new_stream`: a queue whose launches begin in the order in which they are made. Its waits end where the job has.
//! - `DeviceStream::begin_step`: launches from now on draw their random numbers for this step, and update by its learning rate.
//! - `DeviceStream::launch`: computes on the contents that the turn (step, microbatch) says; allocates nothing; may return
//!   before it has ended. The same operands give the same bits, however many threads or streams there are.
//! - `DeviceStream::record_event`, `record_at`: an event that has come when all launches so far have ended.
//! - `DeviceStream::wait_event`: launches from now on begin after an event; the host goes on.
//! - `DeviceStream::synchronize`: the host waits for all launches so far. A launch that failed is an error here at the latest.
//! - `DeviceStream::read`, `fill`: the host sees, or fills, the bytes of a content in the order of the stream.
//! - `DeviceStream::new_passage`, `begin_fill`, `begin_read`: copies between the host and a device whose memory it does not reach,
//!   for feeds and fetches. They go on while the host does.
//! - `DeviceStream::sync_to_host`, `sync_from_host`: memory that the host and its peers reach in place, when all launches so far have ended,
//!   for the host's communicator; launches from now on see what was written there.
//! - `Device::can_record`, `DeviceStream::begin_recording`, `end_recording`, `replay`: launches that are recorded once and begun
//!   again by one call, where the device has such (cards alone).
//! - `DeviceStream::new_stopwatch`, `begin_stopwatch`, `end_stopwatch`: the time of what stands between two places of a stream.
//! - `DeviceStream::wait_unless_ended`, `abort`: the end of waits where the job ends: for launches, and for other ranks.
//! - `DeviceMemory::read`, `write`: the host sees, or changes, bytes between steps, for variables and checkpoints.
//! - `DeviceMemory::begin_with_zeros`: bytes to which nothing was written hold zeros.
//!
//! A worker tells the others of its rank what it is done with together with an event. So a device whose launches end
//! later makes its streams wait for each other instead of the host.

mod call;
mod cpu;
pub(crate) mod cuda;
mod launch;
mod local;
mod memory;
mod port;
mod stream;
mod views;

use graphc_comm::memory::Offered;
use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_kernels::CustomKernels;

use crate::error::RuntimeError;

pub(crate) use call::{DeviceCall, ProductPair, Unprepared, With};
pub(crate) use cuda::{ActorRanges, Ended, Registers, communicates_directly};
pub(crate) use launch::DeviceLaunch;
pub(crate) use memory::DeviceMemory;
pub(crate) use port::{Port, Turn, least_common_multiple};
pub(crate) use stream::{DeviceEvent, DeviceRecording, DeviceStopwatch, DeviceStream, Passage};

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
    pub(crate) fn on_host(rank: u32) -> Self {
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
    pub(crate) fn can_record(&self) -> bool {
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
    ) -> Result<DeviceMemory, RuntimeError> {
        match self {
            Self::Cpu(cpu) => cpu.allocate(bytes, offered).map(DeviceMemory::Cpu),
            Self::Cuda(cuda) => cuda.allocate(bytes, offered).map(DeviceMemory::Cuda),
        }
    }

    /// Prepares what an actor of this name does, for any number of launches.
    ///
    /// # Errors
    /// Where the device has no kernel for it, or its registers do not fit each other.
    pub(crate) fn prepare(
        &self,
        actor: &str,
        call: DeviceCall<'_>,
        operands: Vec<Port>,
        results: Vec<Port>,
    ) -> Result<DeviceLaunch, Unprepared> {
        match self {
            Self::Cpu(cpu) => {
                cpu::CpuLaunch::prepare(cpu, call, operands, results).map(DeviceLaunch::Cpu)
            }
            Self::Cuda(cuda) => cuda::CardLaunch::prepare(cuda, actor, call, operands, results)
                .map(DeviceLaunch::Cuda),
        }
    }

    /// Returns how many operands of an update or a cast are its own, where those of several variables can be one launch;
    /// `None` where they cannot. The operands behind these they have in common.
    pub(crate) fn joinable_tensors(&self, op: &Op) -> Option<usize> {
        match self {
            // There a launch is a call, and each of them is shared by all threads.
            Self::Cpu(_) => None,
            Self::Cuda(_) => graphc_kernels::cuda::joinable_tensors(op),
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
    ) -> Result<DeviceLaunch, Unprepared> {
        match self {
            Self::Cpu(_) => Err(Unprepared::Registers("is joined with others".into())),
            Self::Cuda(cuda) => {
                cuda::CardLaunch::prepare_joint(cuda, actor, op, members).map(DeviceLaunch::Cuda)
            }
        }
    }

    /// Prepares a matrix product of this name and what goes with it as one launch; `None` where the device does not join them.
    pub(crate) fn prepare_pair(&self, actor: &str, pair: ProductPair<'_>) -> Option<DeviceLaunch> {
        match self {
            Self::Cpu(_) => cpu::CpuLaunch::prepare_pair(pair).map(DeviceLaunch::Cpu),
            Self::Cuda(cuda) => {
                cuda::CardLaunch::prepare_pair(cuda, actor, pair).map(DeviceLaunch::Cuda)
            }
        }
    }

    /// The ranges that tell a profiler of the device who launches, by the actors' numbers.
    pub(crate) fn profiler_ranges(
        &self,
        names: impl FnOnce() -> Vec<Option<String>>,
    ) -> ActorRanges {
        match self {
            Self::Cpu(_) => ActorRanges::default(),
            Self::Cuda(_) => ActorRanges::from_names(names),
        }
    }

    /// A stream, on which launches begin in the order in which they are made. Random numbers are drawn by `seed`; a wait
    /// ends where `ended` says that the job has.
    ///
    /// # Errors
    /// Where the device makes none.
    pub(crate) fn new_stream(
        &self,
        seed: u64,
        ended: cuda::Ended,
    ) -> Result<DeviceStream, RuntimeError> {
        match self {
            Self::Cpu(cpu) => Ok(DeviceStream::Cpu(cpu.new_stream(seed))),
            Self::Cuda(cuda) => Ok(DeviceStream::Cuda(Box::new(cuda.new_stream(seed, ended)?))),
        }
    }
}
