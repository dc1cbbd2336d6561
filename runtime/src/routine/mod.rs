//! Routines: plans of a few actions that a program calls again and again, executed by the thread that calls them.
//!
//! A session hands each step to workers, which pays where steps are long. A routine is done before a worker would be
//! awake: a hand-over to a thread that sleeps costs more than all the rest. So it has no thread, no machine of credits
//! and one stream, whose order is all that there is to its execution. Its actors are resolved as for a session. Its
//! operands are this rank's shards, and so is its result.
//!
//! Ranks execute one routine after the other, in the same order. So all routines of a rank share one device and its
//! endpoints (`ends`), and plans come and go without endpoints. Every call is compared with that of the other ranks
//! (`calls`). Start reading with [`Routines`], then `run`.

mod calls;
mod ends;
mod run;

use std::sync::Arc;

use graphc_comm::JobEnd;
use graphc_comm::transport::{Transport, TransportError};
use graphc_host::tensor::HostTensor;
use graphc_ir::mesh::DeviceKind;
use graphc_plan::Layout;
use graphc_plan::check::VerifiedPlan;

use crate::device::{Device, DeviceStream, Site, Threads};
use crate::dist::{DistError, Group};
use crate::error::{Cause, RuntimeError};
use calls::Calls;
pub use calls::RoutineCall;
use ends::SharedEnds;
pub use run::Routine;

/// The routines of a rank, with all that they have in common. All ranks of its group make the same calls in the same order.
pub struct Routines {
    calls: Calls,
    ends: Arc<SharedEnds>,
    device: Device,
    stream: DeviceStream,
    /// The group, whose tags are kept by it.
    group: Group,
}

impl std::fmt::Debug for Routines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Routines({:?})", self.group)
    }
}

impl Routines {
    /// Routines for the ranks of a group, all of which call this.
    ///
    /// # Errors
    /// Where a rank does something else, the job ends, or the system gives no thread.
    pub fn new(group: &Group) -> Result<Self, RuntimeError> {
        let all: Vec<usize> = (0..group.world_size()).collect();
        let own = group.new_group(&all).map_err(of_group)?;
        let group = own.expect("this rank is among all");
        let members = group.members().clone();
        let neighbours = group.job().map_or(group.world_size(), |job| job.neighbours());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let count = (cores / neighbours.max(1)).max(1);
        let threads = Threads { count, have_cores: count * neighbours <= cores };
        let device = Device::open(
            DeviceKind::Cpu,
            Site::on_host(members.rank()),
            threads,
            &Default::default(),
        )?;
        let stream = device.new_stream(0, Arc::new(|| false))?;
        let calls = Calls::new(members.clone());
        let ends = Arc::new(SharedEnds::new(members));
        Ok(Self { calls, ends, device, stream, group })
    }

    /// Returns this rank's index in the group.
    pub fn rank(&self) -> u32 {
        self.group.rank() as u32
    }

    /// Returns the number of ranks of the group.
    pub fn world_size(&self) -> usize {
        self.group.world_size()
    }

    /// Compares what this rank is about to do with what the others do. `ranks` take part in it, in this order; the others
    /// note it. Every difference is seen by one of the ranks that take part, and ends the job on all.
    ///
    /// # Errors
    /// Where this rank differs from the one before it, or the job has ended.
    pub fn compare_call(
        &mut self,
        call: RoutineCall<'_>,
        ranks: &[u32],
    ) -> Result<(), RuntimeError> {
        if let Some(ended) = self.ends.end_reason() {
            return Err(ended.into());
        }
        let compared = self.calls.compare_call(call, ranks);
        compared.map_err(|error| self.fail(error))
    }

    /// Gathers the bytes that each rank brings, in the order of the ranks, behind a call in which all take part.
    ///
    /// # Errors
    /// Where the job ends.
    pub fn gather_bytes(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, RuntimeError> {
        let gathered = self.calls.gather_bytes(bytes);
        gathered.map_err(|error| self.fail(error.into()))
    }

    /// Loads this rank's part of a plan whose ranks are those of the group, and whose inputs are the operands by name, with
    /// one output. All ranks load the same plans in the same order, also those that have no part in them. `result` is the
    /// output's layout, partial perhaps where the plan's is whole.
    ///
    /// # Errors
    /// Where there is no kernel for it; and where this machine has not the memory, or a peer cannot be reached: then the job
    /// ends on all ranks.
    pub fn load(&mut self, plan: &VerifiedPlan, result: &Layout) -> Result<Routine, RuntimeError> {
        self.ends.learn_plan(plan);
        let transport: Arc<dyn Transport> = self.ends.clone();
        let routine = Routine::load(plan, &self.device, &transport, result);
        routine.map_err(|error| match error {
            RuntimeError::NoKernel { .. } => error,
            error => self.fail(error),
        })
    }

    /// Executes a routine on this rank's shards of its operands. This rank's shard of the result; `None` where it has none.
    ///
    /// # Errors
    /// Where an operand has another size, a kernel refuses its operands, a peer does not come or the job ends. Then the job
    /// ends on all ranks.
    pub fn run(
        &mut self,
        routine: &mut Routine,
        operands: &[Option<&HostTensor>],
    ) -> Result<Option<HostTensor>, RuntimeError> {
        let result = routine.run(&mut self.stream, operands);
        result.map_err(|cause| match cause {
            Cause::Transport(error) => self.fail(error.into()),
            cause => self.fail(JobEnd::Program { reason: cause.to_string() }.into()),
        })
    }

    /// Ends the job, unless it has ended already; why it has.
    pub fn fail(&self, error: RuntimeError) -> RuntimeError {
        if error != RuntimeError::Transport(TransportError::Ended) {
            if self.ends.end_reason().is_none() {
                self.ends.end_job(JobEnd::Program { reason: error.to_string() });
            }
            return error;
        }
        self.ends.end_reason().map_or(error, RuntimeError::from)
    }
}

/// Puts a failure of the group into the runtime's words.
fn of_group(error: DistError) -> RuntimeError {
    match error {
        DistError::Ended { reason, .. } => reason.into(),
        error => JobEnd::Program { reason: error.to_string() }.into(),
    }
}
