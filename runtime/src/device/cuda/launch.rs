//! Launches of actors on a card.

use graphc_ir::sbp::ReduceKind;
use graphc_ir::shard::Rect;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::cuda::{
    self, Argument, Call as KernelCall, CallRegister, LaunchMemory as Where, Shard,
};

use super::super::call::{DeviceCall, Unprepared};
use super::super::local::LocalBoxing;
use super::super::port::{Port, Turn};
use super::driver::{CardBuffer, Loaded};
use super::known::RememberedCall;
use super::moves::reduction_identity;
use super::site::LaunchSite;
use super::stream::CardStream;
use super::ways::Ways;
use super::{CardShared, Cuda};
use crate::device::cuda::memory::CardMemory;
use crate::error::Cause;

/// The routines of an actor, and the registers of its operands and results.
pub(crate) struct CardLaunch {
    routines: Vec<CardRoutine>,
    choice: RoutineChoice,
    operands: Vec<Port>,
    results: Vec<Port>,
}

/// The rule by which an action's routine is chosen.
#[derive(Clone, Copy)]
enum RoutineChoice {
    /// One for all, or one for each microbatch.
    ByMicrobatch,
    /// One for the first microbatch and one for the others.
    FirstAndLater,
    /// Like `FirstAndLater`; nothing where operand and result are the same memory.
    Accumulation,
}

/// The launches of one action.
struct CardRoutine {
    steps: Vec<LaunchStep>,
    /// The number of this call among those of the device.
    call: u32,
    /// The index of its first number among the numbers of the device.
    numbers: usize,
    /// The table of kernels of several actors, where it has some.
    table: Option<CardBuffer>,
}

/// One launch.
enum LaunchStep {
    Kernel { loaded: Loaded, arguments: Vec<Argument> },
    Product(Box<Ways>),
    Clear { place: Where, bytes: usize },
    Copy { bytes: usize },
}

impl CardLaunch {
    /// # Errors
    /// Where there is no kernel, or registers do not fit each other.
    pub(crate) fn prepare(
        device: &Cuda,
        actor: &str,
        call: DeviceCall<'_>,
        operands: Vec<Port>,
        results: Vec<Port>,
    ) -> Result<Self, Unprepared> {
        let (from, to) = (describe_shards(&operands), describe_shards(&results));
        let choice = match call {
            DeviceCall::Accumulate => RoutineChoice::Accumulation,
            _ => RoutineChoice::ByMicrobatch,
        };
        let calls = match call {
            DeviceCall::Op(op) => vec![cuda::prepare_op(op, &from, &to)?],
            DeviceCall::Fused(op) => vec![cuda::prepare_fused(op, &from, &to)?],
            DeviceCall::Copy => vec![build_copy_call(&operands, &results)?],
            DeviceCall::Accumulate => {
                build_copy_call(&operands, &results)?;
                cuda::prepare_accumulation(&to[0]).into()
            }
            DeviceCall::Local { rank, from, to } => {
                LocalBoxing::new((&operands, &results), (from, to), rank)?.kernel_calls(&results[0])
            }
        };
        Self::of_calls(device, actor, calls, choice, [operands, results])
    }

    /// Prepares a call for the first microbatch and one for the others.
    pub(super) fn of_two(
        device: &Cuda,
        actor: &str,
        calls: [KernelCall; 2],
        ports: [Vec<Port>; 2],
    ) -> Result<Self, Unprepared> {
        Self::of_calls(device, actor, calls, RoutineChoice::FirstAndLater, ports)
    }

    /// Prepares one call for all actions.
    pub(super) fn of_one(
        device: &Cuda,
        actor: &str,
        call: KernelCall,
        table: Option<CardBuffer>,
        [operands, results]: [Vec<Port>; 2],
    ) -> Result<Self, Unprepared> {
        let routine = CardRoutine { table, ..CardRoutine::new(device, actor, call)? };
        Ok(Self { routines: vec![routine], choice: RoutineChoice::ByMicrobatch, operands, results })
    }

    /// Prepares several calls, of which each action has one.
    fn of_calls(
        device: &Cuda,
        actor: &str,
        calls: impl IntoIterator<Item = KernelCall>,
        choice: RoutineChoice,
        [operands, results]: [Vec<Port>; 2],
    ) -> Result<Self, Unprepared> {
        let routines = calls.into_iter().map(|call| CardRoutine::new(device, actor, call));
        let routines = routines.collect::<Result<_, _>>()?;
        Ok(Self { routines, choice, operands, results })
    }

    pub(crate) fn slot_period(&self, microbatches: u64) -> u64 {
        Port::period_of(self.operands.iter().chain(&self.results), microbatches)
    }

    #[inline]
    pub(crate) fn run(
        &self,
        stream: &mut CardStream,
        memory: &CardMemory,
        turn: Turn,
    ) -> Result<(), Cause> {
        stream.begin_launches()?;
        let index = match self.choice {
            RoutineChoice::ByMicrobatch => turn.microbatch % self.routines.len(),
            RoutineChoice::Accumulation
                if self.operands[0].content_range(turn) == self.results[0].content_range(turn) =>
            {
                return Ok(()); // it is there already
            }
            RoutineChoice::FirstAndLater | RoutineChoice::Accumulation => turn.microbatch.min(1),
        };
        let routine = &self.routines[index];
        let Self { operands, results, .. } = self;
        let CardRoutine { call, numbers, ref table, .. } = *routine;
        let table = table.as_ref();
        let site = LaunchSite { operands, results, memory, turn, call, numbers, table };
        routine.steps.iter().try_for_each(|step| step.run(stream, &site))
    }
}

impl CardRoutine {
    fn new(device: &Cuda, actor: &str, call: KernelCall) -> Result<Self, Unprepared> {
        let (number, numbers) = device.shared.register_call(actor, &call);
        let steps = call.launches.into_iter().map(|launch| LaunchStep::new(device, launch));
        let steps = steps.collect::<Result<_, _>>()?;
        Ok(Self { steps, call: number, numbers, table: None })
    }
}

impl LaunchStep {
    fn new(device: &Cuda, launch: cuda::Launch) -> Result<Self, Unprepared> {
        Ok(match launch {
            cuda::Launch::Kernel(kernel) => {
                Self::Kernel { loaded: device.request_kernel(&kernel), arguments: kernel.arguments }
            }
            cuda::Launch::Product(product) => Self::Product(Box::new(Ways::new(device, product)?)),
            cuda::Launch::Clear { place, bytes } => Self::Clear { place, bytes },
            cuda::Launch::Copy { bytes } => Self::Copy { bytes },
        })
    }

    #[inline]
    fn run(&self, stream: &mut CardStream, site: &LaunchSite<'_>) -> Result<(), Cause> {
        match self {
            Self::Kernel { loaded, arguments } => site.launch(stream, *loaded, arguments),
            Self::Product(ways) => ways.run(stream, site),
            Self::Clear { place, bytes } => {
                let address = site.address(*place, stream);
                Ok(stream.queue.clear(address, *bytes)?)
            }
            Self::Copy { bytes } => {
                let [from, to] =
                    [CallRegister::Operand(0), CallRegister::Result(0)].map(Where::Slot);
                let [from, to] = [from, to].map(|place| site.address(place, stream));
                match from == to || *bytes == 0 {
                    true => Ok(()), // shared memory: it is there already
                    false => Ok(stream.queue.copy(from, to, *bytes)?),
                }
            }
        }
    }
}

impl CardShared {
    /// Takes a call into the account; its number, and where its numbers begin.
    fn register_call(&self, actor: &str, call: &KernelCall) -> (u32, usize) {
        let mut tables = self.lock_tables();
        let numbers = tables.numbers_len;
        tables.numbers_len += call.numbers.at_step(0, None).len();
        tables.numbers.push(call.numbers.clone());
        tables.scratch = tables.scratch.max(call.scratch);
        tables.known.push(RememberedCall { actor: actor.into(), checked: call.checked.clone() });
        (tables.known.len() as u32 - 1, numbers)
    }
}

/// Describes the registers as kernels know them.
pub(super) fn describe_shards(ports: &[Port]) -> Vec<Shard> {
    let shard = |port: &Port| Shard {
        ty: TensorType::new(port.dtype, port.rect(0).extent.clone()),
        global: port.global_shape().to_vec(),
    };
    ports.iter().map(shard).collect()
}

impl LocalBoxing {
    /// Returns one call for all actions, or one for each microbatch.
    fn kernel_calls(&self, result: &Port) -> Vec<KernelCall> {
        let fill = |kind: ReduceKind| {
            cuda::prepare_fill(
                result.dtype,
                result.rect(0).elements(),
                reduction_identity(result.dtype, kind),
            )
        };
        match self.identity {
            Some(kind) => vec![fill(kind)],
            None => self
                .rects
                .iter()
                .map(|(held, kept)| build_slice_call(result.dtype, held, kept))
                .collect(),
        }
    }
}

/// Builds the call that copies the kept part of a held rectangle.
fn build_slice_call(dtype: DType, held: &Rect, kept: &Rect) -> KernelCall {
    let start: Vec<usize> =
        kept.origin.iter().zip(&held.origin).map(|(kept, held)| kept - held).collect();
    let beginning = vec![0; start.len()];
    let extent = &kept.extent;
    cuda::copy_rectangle(dtype, &held.extent, &start, extent, &beginning, extent, None)
}

/// Copies one register to another of as many elements of one type.
fn build_copy_call(operands: &[Port], results: &[Port]) -> Result<KernelCall, Unprepared> {
    let size = |port: &Port| (port.dtype, port.rect(0).elements());
    match (operands, results) {
        ([operand], [result]) if size(operand) == size(result) => {
            let (dtype, elements) = size(result);
            let bytes = elements * dtype.size();
            Ok(KernelCall::copy_bytes(bytes))
        }
        _ => Err(Unprepared::Registers("copies between registers of different sizes".into())),
    }
}
