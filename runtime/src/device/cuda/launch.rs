//! Launches of actors on a card.

use graphc_ir::sbp::ReduceKind;
use graphc_ir::shard::Rect;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::cuda::{self, Argument, Call as KernelCall, Place as Where, Shard, Slot};

use super::super::call::{Call, Unprepared};
use super::super::local::Local;
use super::super::port::{Port, Turn};
use super::driver::{Buffer, Loaded};
use super::known::Known;
use super::moves::identity;
use super::site::Site;
use super::stream::Stream;
use super::ways::Ways;
use super::{Cuda, Shared};
use crate::device::cuda::memory::CardMemory;
use crate::error::Cause;

/// The routines of an actor, and the registers of its operands and results.
pub(crate) struct Launch {
    routines: Vec<Routine>,
    choice: Choice,
    operands: Vec<Port>,
    results: Vec<Port>,
}

/// Which of the routines an action is.
#[derive(Clone, Copy)]
enum Choice {
    /// One for all, or one for each microbatch.
    ByMicrobatch,
    /// One for the first microbatch and one for the others; nothing where operand and result are the same memory.
    Accumulation,
}

/// The launches of one action.
struct Routine {
    steps: Vec<Step>,
    /// Which of the device's calls it is.
    call: u32,
    /// Where its numbers begin among those of the device.
    numbers: usize,
    /// The table of kernels of several actors, where it has some.
    table: Option<Buffer>,
}

/// One launch.
enum Step {
    Kernel { loaded: Loaded, arguments: Vec<Argument> },
    Product(Box<Ways>),
    Clear { place: Where, bytes: usize },
    Copy { bytes: usize },
}

impl Launch {
    /// # Errors
    /// Where there is no kernel, or registers do not fit each other.
    pub(crate) fn prepare(
        device: &Cuda,
        actor: &str,
        call: Call<'_>,
        operands: Vec<Port>,
        results: Vec<Port>,
    ) -> Result<Self, Unprepared> {
        let (from, to) = (shards(&operands), shards(&results));
        let choice = match call {
            Call::Accumulate => Choice::Accumulation,
            _ => Choice::ByMicrobatch,
        };
        let calls = match call {
            Call::Op(op) => vec![cuda::prepare(op, &from, &to)?],
            Call::Fused(op) => vec![cuda::prepare_fused(op, &from, &to)?],
            Call::Copy => vec![copy(&operands, &results)?],
            Call::Accumulate => {
                copy(&operands, &results)?;
                cuda::accumulate(&to[0]).into()
            }
            Call::Local { rank, from, to } => {
                Local::new((&operands, &results), (from, to), rank)?.calls(&results[0])
            }
        };
        let routines = calls.into_iter().map(|call| Routine::new(device, actor, call));
        let routines = routines.collect::<Result<_, _>>()?;
        Ok(Self { routines, choice, operands, results })
    }

    /// One call for all actions.
    pub(super) fn of_one(
        device: &Cuda,
        actor: &str,
        call: KernelCall,
        table: Option<Buffer>,
        [operands, results]: [Vec<Port>; 2],
    ) -> Result<Self, Unprepared> {
        let routine = Routine { table, ..Routine::new(device, actor, call)? };
        Ok(Self { routines: vec![routine], choice: Choice::ByMicrobatch, operands, results })
    }

    pub(crate) fn period(&self, microbatches: u64) -> u64 {
        Port::period_of(self.operands.iter().chain(&self.results), microbatches)
    }

    #[inline]
    pub(crate) fn run(
        &self,
        stream: &mut Stream,
        memory: &CardMemory,
        turn: Turn,
    ) -> Result<(), Cause> {
        stream.begin_launches()?;
        let index = match self.choice {
            Choice::ByMicrobatch => turn.microbatch % self.routines.len(),
            Choice::Accumulation if self.operands[0].place(turn) == self.results[0].place(turn) => {
                return Ok(()); // it is there already
            }
            Choice::Accumulation => turn.microbatch.min(1),
        };
        let routine = &self.routines[index];
        let Self { operands, results, .. } = self;
        let Routine { call, numbers, ref table, .. } = *routine;
        let table = table.as_ref();
        let site = Site { operands, results, memory, turn, call, numbers, table };
        routine.steps.iter().try_for_each(|step| step.run(stream, &site))
    }
}

impl Routine {
    fn new(device: &Cuda, actor: &str, call: KernelCall) -> Result<Self, Unprepared> {
        let (number, numbers) = device.shared.register(actor, &call);
        let steps = call.launches.into_iter().map(|launch| Step::new(device, launch));
        let steps = steps.collect::<Result<_, _>>()?;
        Ok(Self { steps, call: number, numbers, table: None })
    }
}

impl Step {
    fn new(device: &Cuda, launch: cuda::Launch) -> Result<Self, Unprepared> {
        Ok(match launch {
            cuda::Launch::Kernel(kernel) => {
                Self::Kernel { loaded: device.load(&kernel), arguments: kernel.arguments }
            }
            cuda::Launch::Product(product) => Self::Product(Box::new(Ways::new(device, product)?)),
            cuda::Launch::Clear { place, bytes } => Self::Clear { place, bytes },
            cuda::Launch::Copy { bytes } => Self::Copy { bytes },
        })
    }

    #[inline]
    fn run(&self, stream: &mut Stream, site: &Site<'_>) -> Result<(), Cause> {
        match self {
            Self::Kernel { loaded, arguments } => site.launch(stream, *loaded, arguments),
            Self::Product(ways) => ways.run(stream, site),
            Self::Clear { place, bytes } => {
                let address = site.address(*place, stream);
                Ok(stream.queue.clear(address, *bytes)?)
            }
            Self::Copy { bytes } => {
                let [from, to] = [Slot::Operand(0), Slot::Result(0)].map(Where::Slot);
                let [from, to] = [from, to].map(|place| site.address(place, stream));
                match from == to || *bytes == 0 {
                    true => Ok(()), // shared memory: it is there already
                    false => Ok(stream.queue.copy(from, to, *bytes)?),
                }
            }
        }
    }
}

impl Shared {
    /// Takes a call into the account; its number, and where its numbers begin.
    fn register(&self, actor: &str, call: &KernelCall) -> (u32, usize) {
        let mut tables = self.tables();
        let numbers = tables.numbers_len;
        tables.numbers_len += call.numbers.at(0, None).len();
        tables.numbers.push(call.numbers.clone());
        tables.scratch = tables.scratch.max(call.scratch);
        tables.known.push(Known { actor: actor.into(), checked: call.checked.clone() });
        (tables.known.len() as u32 - 1, numbers)
    }
}

/// The registers as kernels know them.
pub(super) fn shards(ports: &[Port]) -> Vec<Shard> {
    let shard = |port: &Port| Shard {
        ty: TensorType::new(port.dtype, port.rect(0).extent.clone()),
        global: port.global().to_vec(),
    };
    ports.iter().map(shard).collect()
}

impl Local {
    /// One call for all actions, or one for each microbatch.
    fn calls(&self, result: &Port) -> Vec<KernelCall> {
        let fill = |kind: ReduceKind| {
            cuda::fill(result.dtype, result.rect(0).elements(), identity(result.dtype, kind))
        };
        match self.identity {
            Some(kind) => vec![fill(kind)],
            None => self.rects.iter().map(|(held, kept)| slice(result.dtype, held, kept)).collect(),
        }
    }
}

/// Copies what is kept of what is held.
fn slice(dtype: DType, held: &Rect, kept: &Rect) -> KernelCall {
    let start: Vec<usize> =
        kept.origin.iter().zip(&held.origin).map(|(kept, held)| kept - held).collect();
    let beginning = vec![0; start.len()];
    let extent = &kept.extent;
    cuda::copy_rectangle(dtype, &held.extent, &start, extent, &beginning, extent, None)
}

/// Copies one register to another of as many elements of one type.
fn copy(operands: &[Port], results: &[Port]) -> Result<KernelCall, Unprepared> {
    let size = |port: &Port| (port.dtype, port.rect(0).elements());
    match (operands, results) {
        ([operand], [result]) if size(operand) == size(result) => {
            let (dtype, elements) = size(result);
            let bytes = elements * dtype.size();
            Ok(KernelCall::copy(bytes))
        }
        _ => Err(Unprepared::Registers("copies between registers of different sizes".into())),
    }
}
