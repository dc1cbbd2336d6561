//! One routine: its memory, and what it does in order.

use std::sync::Arc;

use graphc_comm::transport::Transport;
use graphc_host::tensor::HostTensor;
use graphc_ir::sbp::ReduceKind;
use graphc_ir::types::TensorType;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{Action, Actor, Layout};

use crate::communicator::{Collective, Receive, Send};
use crate::device::{Device, DeviceLaunch, DeviceMemory, DeviceStream, Port, Turn};
use crate::error::{Cause, RuntimeError};
use crate::rectangles::{fill_identity, masked_kind};
use crate::session::Sockets;
use crate::worker::{ActorResolver, PreparedWork};

/// This rank's part of a plan, to be called again and again: [`Routines::run`](super::Routines::run).
pub struct Routine {
    memory: DeviceMemory,
    steps: Vec<RoutineStep>,
    /// The number of runs so far.
    turns: u64,
    result: ResultShard,
}

/// A rank's part of the result.
struct ResultShard {
    ty: TensorType,
    /// The reduction whose identity this rank holds, where another rank holds the value.
    identity: Option<ReduceKind>,
}

/// One action.
enum RoutineStep {
    /// The operand of this index comes in.
    Take(usize, Port),
    Launch(DeviceLaunch),
    Collective(Collective),
    Send(Send),
    Receive(Receive),
    /// The result goes out.
    Give(Port),
}

impl std::fmt::Debug for Routine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Routine({} actions, run {} times)", self.steps.len(), self.turns)
    }
}

impl Routine {
    pub(super) fn load(
        plan: &VerifiedPlan,
        device: &Device,
        transport: &Arc<dyn Transport>,
        result: &Layout,
    ) -> Result<Self, RuntimeError> {
        let rank = transport.rank();
        let program = plan.program_of(rank);
        let edges = Sockets::from_plan(plan, &[rank]).edges(None);
        let part = ActorResolver::new(plan, program, &edges, device, transport)?.resolve()?;
        // Peers reach into it in collectives alone, and what they can reach is scarce: a descriptor each.
        let joins = |actor: &Actor| matches!(actor.action, Action::Collective { .. });
        let offered = match program.actors.iter().any(joins) {
            true => transport.offer_memory(program.arena_bytes)?,
            false => None,
        };
        let memory = device.allocate(program.arena_bytes, offered)?;
        let mut steps = Vec::new();
        for (mut actors, order) in part.actors.into_iter().zip(part.orders) {
            if !steps.is_empty() {
                return Err(RuntimeError::invalid_plan("a routine has one stream"));
            }
            let works = order.into_iter().filter_map(|(actor, _)| actors[actor.index()].take());
            steps.extend(works.filter_map(build_step));
        }
        let extent = result.rect(rank, 0, 1).map_or_else(|| vec![0], |rect| rect.extent);
        let ty = TensorType::new(result.dtype, extent);
        let result = ResultShard { ty, identity: masked_kind(result, rank) };
        Ok(Self { memory, steps, turns: 0, result })
    }

    /// # Errors
    /// Where an operand is missing or of another size, a kernel refuses, or a peer does not come.
    pub(super) fn run(
        &mut self,
        stream: &mut DeviceStream,
        operands: &[Option<&HostTensor>],
    ) -> Result<Option<HostTensor>, Cause> {
        let Self { memory, steps, turns, result } = self;
        let turn = Turn { step: *turns, microbatch: 0, microbatches: 1 };
        let mut given = None;
        for step in steps {
            match step {
                RoutineStep::Take(index, port) => {
                    let operand = operands.get(*index).copied().flatten();
                    let bytes = operand.map_or(&[][..], HostTensor::bytes);
                    let place = port.content_range(turn);
                    if bytes.len() != place.bytes {
                        let (found, needed) = (bytes.len(), place.bytes);
                        let what = format!("operand {index} has {found} bytes, not {needed}");
                        return Err(Cause::Blocked(what));
                    }
                    stream.fill(memory, place, |into| into.copy_from_slice(bytes));
                }
                RoutineStep::Launch(launch) => stream.launch(launch, memory, turn)?,
                RoutineStep::Collective(collective) => drop(collective.run(stream, memory, turn)?),
                RoutineStep::Send(send) => drop(send.run(stream, memory, turn)?),
                RoutineStep::Receive(receive) => drop(receive.run(stream, memory, turn)?),
                RoutineStep::Give(port) => {
                    given =
                        Some(stream.read(memory, port.content_range(turn), |bytes| {
                            result.to_tensor(bytes)
                        }));
                }
            }
        }
        stream.synchronize()?;
        *turns += 1;
        Ok(given)
    }
}

impl ResultShard {
    fn to_tensor(&self, bytes: &[u8]) -> HostTensor {
        let mut bytes = bytes.to_vec();
        if let Some(kind) = self.identity {
            fill_identity(self.ty.dtype, kind, &mut bytes);
        }
        let shard = HostTensor::new(self.ty.dtype, self.ty.shape.clone(), bytes);
        shard.expect("the register has the shard's size")
    }
}

/// Builds the step of an actor, if it leaves anything to do.
fn build_step(work: PreparedWork) -> Option<RoutineStep> {
    Some(match work {
        PreparedWork::Kernel(launch) | PreparedWork::Local(launch) => RoutineStep::Launch(launch),
        PreparedWork::Joined(_) => return None,
        PreparedWork::Collective(collective) => RoutineStep::Collective(collective),
        PreparedWork::Send(send) => RoutineStep::Send(send),
        PreparedWork::Receive(receive) => RoutineStep::Receive(receive),
        PreparedWork::Feed(feed) => {
            let (index, port) = feed.into_port();
            RoutineStep::Take(index, port)
        }
        PreparedWork::Fetch(fetch) => RoutineStep::Give(fetch.into_port()),
    })
}
