//! Resolution of a rank's part of a plan to actors that are ready to run.

mod joint;

use std::collections::BTreeMap;
use std::sync::Arc;

use graphc_comm::transport::Transport;
use graphc_ir::ids::{ActorId, RegisterId};
use graphc_ir::op::Op;
use graphc_plan::{
    Action, Actor, BoxingKind, Channel, Layout, OperandSource, Plan, Program, Stream,
};

use super::actor::PreparedWork;
use super::edge::{Fed, FeedWork, FetchWork};
use super::outputs::{OutputsAt, output_readers, output_tag};
use crate::communicator::{Collective, CollectiveCall, RankCommunicator};
use crate::device::{Device, DeviceCall, DeviceLaunch, Port, Unprepared};
use crate::error::RuntimeError;

/// The names under which tensors go in and out, in the order of a step's feeds and outputs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edges {
    pub(crate) inputs: BTreeMap<String, usize>,
    pub(crate) outputs: BTreeMap<String, usize>,
    /// The rows of each input with a first dim that the ranks of this process read.
    pub(crate) rows: BTreeMap<String, Fed>,
    /// The processes that want outputs, where ranks are processes.
    pub(crate) remote: Option<OutputsAt>,
}

/// The part of a plan that one rank executes.
pub(crate) struct RankPart {
    /// The actors of each stream, at their ids.
    pub(crate) actors: Vec<Vec<Option<PreparedWork>>>,
    /// The order of each stream: (actor, microbatch).
    pub(crate) orders: Vec<Vec<(ActorId, u32)>>,
}

/// Resolves the actors of one rank.
pub(crate) struct ActorResolver<'a> {
    plan: &'a Plan,
    program: &'a Program,
    edges: &'a Edges,
    device: &'a Device,
    transport: &'a Arc<dyn Transport>,
    communicator: RankCommunicator,
    ports: Vec<Port>,
}

impl<'a> ActorResolver<'a> {
    /// # Errors
    /// Where a register does not fit its layout or the arena.
    pub(crate) fn new(
        plan: &'a Plan,
        program: &'a Program,
        edges: &'a Edges,
        device: &'a Device,
        transport: &'a Arc<dyn Transport>,
    ) -> Result<Self, RuntimeError> {
        let rank = transport.rank();
        let port = |register| Port::new(plan, register, rank, program.arena_bytes);
        let ports = program.registers.iter().map(port).collect::<Result<_, _>>()?;
        let communicator = RankCommunicator::new(device, transport);
        Ok(Self { plan, program, edges, device, transport, communicator, ports })
    }

    /// Returns the registers, at their ids.
    pub(crate) fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Actors and orders of all streams.
    ///
    /// # Errors
    /// Where an actor cannot be executed as the plan says.
    pub(crate) fn resolve(&self) -> Result<RankPart, RuntimeError> {
        let mut part = RankPart { actors: Vec::new(), orders: Vec::new() };
        let mut owned = vec![false; self.program.actors.len()];
        let streams = self.program.streams.iter();
        let orders =
            streams.map(|stream| self.resolve_order(stream)).collect::<Result<Vec<_>, _>>()?;
        let mut joint = self.join_actors(&orders)?;
        for order in orders {
            let mut actors: Vec<Option<PreparedWork>> =
                self.program.actors.iter().map(|_| None).collect();
            for &(actor, _) in &order {
                let place = &mut actors[actor.index()];
                if place.is_some() {
                    continue;
                }
                let definition = &self.program.actors[actor.index()];
                let actors = self.program.actors.len();
                if definition.after.is_some_and(|before| before.index() >= actors) {
                    return Err(self
                        .actor_error(definition, "stands behind an actor that the program lacks"));
                }
                if std::mem::replace(&mut owned[actor.index()], true) {
                    return Err(self.actor_error(definition, "stands in two streams"));
                }
                *place = Some(match joint.remove(&actor.0) {
                    Some(work) => work,
                    None => self.resolve_actor(definition)?,
                });
            }
            part.orders.push(order);
            part.actors.push(actors);
        }
        Ok(part)
    }

    fn resolve_order(&self, stream: &Stream) -> Result<Vec<(ActorId, u32)>, RuntimeError> {
        let mut order = Vec::new();
        for item in &stream.order {
            let block = stream.blocks.get(item.block as usize);
            let block =
                block.ok_or(RuntimeError::invalid_plan("a stream's order names no block"))?;
            if item.microbatch as usize >= self.plan.microbatches.max(1) {
                return Err(RuntimeError::invalid_plan("a stream's order names no microbatch"));
            }
            if block.iter().any(|actor| actor.index() >= self.program.actors.len()) {
                return Err(RuntimeError::invalid_plan("a stream's block names no actor"));
            }
            order.extend(block.iter().map(|&actor| (actor, item.microbatch)));
        }
        Ok(order)
    }

    fn actor_error(&self, actor: &Actor, reason: impl std::fmt::Display) -> RuntimeError {
        let rank = self.transport.rank();
        RuntimeError::invalid_plan(format!("rank {rank}, actor `{}` {reason}", actor.name))
    }

    fn find_port(&self, actor: &Actor, register: RegisterId) -> Result<Port, RuntimeError> {
        let port = self.ports.get(register.index()).cloned();
        port.ok_or_else(|| self.actor_error(actor, "has a register that the program lacks"))
    }

    fn ports_of(&self, actor: &Actor, all: &[RegisterId]) -> Result<Vec<Port>, RuntimeError> {
        all.iter().map(|&register| self.find_port(actor, register)).collect()
    }

    /// Returns the only register of a list.
    fn only_port(&self, actor: &Actor, all: &[RegisterId]) -> Result<Port, RuntimeError> {
        match all {
            [register] => self.find_port(actor, *register),
            _ => Err(self.actor_error(actor, format_args!("has {} registers for one", all.len()))),
        }
    }

    fn register_layout(
        &self,
        actor: &Actor,
        register: RegisterId,
    ) -> Result<&'a Layout, RuntimeError> {
        let register = self.program.registers.get(register.index());
        let layout = register.and_then(|r| self.plan.layouts.get(r.layout.index()));
        layout.ok_or_else(|| self.actor_error(actor, "has a register without layout"))
    }

    fn resolve_actor(&self, actor: &Actor) -> Result<PreparedWork, RuntimeError> {
        Ok(match &actor.action {
            Action::Compute { op, operands } => {
                PreparedWork::Kernel(self.prepare_kernel(actor, op, operands)?)
            }
            Action::Fused(op) => PreparedWork::Kernel(self.prepare_actor(
                actor,
                DeviceCall::Fused(op),
                &actor.outputs,
            )?),
            Action::Collective { kind, axis, sequence, .. } => PreparedWork::Collective(
                self.prepare_collective(actor, (*kind, *axis), *sequence)?,
            ),
            Action::Local { .. } => PreparedWork::Local(self.prepare_local(actor)?),
            Action::Send { channel } => {
                let input = self.only_port(actor, &actor.inputs)?;
                let channel = self.find_channel(actor, channel.0)?;
                PreparedWork::Send(self.communicator.prepare_send(
                    self.device,
                    self.plan,
                    channel,
                    input,
                )?)
            }
            Action::Receive { channel } => {
                let output = self.only_port(actor, &actor.outputs)?;
                let channel = self.find_channel(actor, channel.0)?;
                PreparedWork::Receive(self.communicator.prepare_receive(
                    self.device,
                    self.plan,
                    channel,
                    output,
                )?)
            }
            Action::Accumulate => PreparedWork::Kernel(self.prepare_actor(
                actor,
                DeviceCall::Accumulate,
                &actor.outputs,
            )?),
            Action::Assign => {
                PreparedWork::Kernel(self.prepare_actor(actor, DeviceCall::Copy, &actor.updates)?)
            }
            Action::Feed { input, .. } => {
                let index = self.edges.inputs.get(input).copied();
                let index = index.ok_or_else(|| self.actor_error(actor, "feeds nothing"))?;
                let rows = self.edges.rows.get(input);
                PreparedWork::Feed(FeedWork::new(
                    index,
                    self.only_port(actor, &actor.outputs)?,
                    rows,
                ))
            }
            Action::Fetch { output, .. } => PreparedWork::Fetch(self.prepare_fetch(actor, output)?),
        })
    }

    /// Prepares what the device does with all inputs of an actor.
    fn prepare_actor(
        &self,
        actor: &Actor,
        call: DeviceCall<'_>,
        results: &[RegisterId],
    ) -> Result<DeviceLaunch, RuntimeError> {
        self.prepare_call(actor, call, &actor.inputs, results)
    }

    fn prepare_call(
        &self,
        actor: &Actor,
        call: DeviceCall<'_>,
        operands: &[RegisterId],
        results: &[RegisterId],
    ) -> Result<DeviceLaunch, RuntimeError> {
        let (operands, results) = (self.ports_of(actor, operands)?, self.ports_of(actor, results)?);
        let launch = self.device.prepare(&actor.name, call, operands, results);
        launch.map_err(|reason| self.unprepared_error(actor, reason))
    }

    fn unprepared_error(&self, actor: &Actor, reason: Unprepared) -> RuntimeError {
        match reason {
            Unprepared::Kernel(error) => {
                RuntimeError::NoKernel { actor: actor.name.clone(), error: Box::new(error) }
            }
            Unprepared::Registers(reason) => self.actor_error(actor, reason),
            Unprepared::Device(reason) => {
                let (rank, actor) = (self.transport.rank(), &actor.name);
                RuntimeError::Device { rank, reason: format!("actor `{actor}`: {reason}") }
            }
        }
    }

    fn prepare_kernel(
        &self,
        actor: &Actor,
        op: &Op,
        operands: &[OperandSource],
    ) -> Result<DeviceLaunch, RuntimeError> {
        let [registers, results] = self.op_registers(actor, op, operands)?;
        self.prepare_call(actor, DeviceCall::Op(op), &registers, &results)
    }

    /// Returns the registers of an op's operands and results.
    fn op_registers(
        &self,
        actor: &Actor,
        op: &Op,
        operands: &[OperandSource],
    ) -> Result<[Vec<RegisterId>; 2], RuntimeError> {
        let register = |&operand| {
            let found = actor.operand_register(operand);
            found.ok_or_else(|| self.actor_error(actor, "has an operand that it lacks"))
        };
        let registers = operands.iter().map(register).collect::<Result<Vec<_>, _>>()?;
        let results = self.result_registers(actor, op, operands, &registers)?;
        Ok([registers, results])
    }

    /// Returns the register of each result: a result that takes the place of a variable at rest is written there, the
    /// others fill the outputs one after the other.
    fn result_registers(
        &self,
        actor: &Actor,
        op: &Op,
        operands: &[OperandSource],
        registers: &[RegisterId],
    ) -> Result<Vec<RegisterId>, RuntimeError> {
        let replaced = |result: usize| {
            let pair = op.operation().updates().iter().find(|pair| pair.0 == result)?;
            let at_rest = operands.get(pair.1).is_some_and(|operand| operand.is_update());
            at_rest.then(|| registers[pair.1])
        };
        let mut outputs = actor.outputs.iter().copied();
        let mut results = Vec::new();
        while let Some(register) = replaced(results.len()).or_else(|| outputs.next()) {
            results.push(register);
        }
        if results.is_empty() {
            return Err(self.actor_error(actor, "has no result"));
        }
        Ok(results)
    }

    fn prepare_local(&self, actor: &Actor) -> Result<DeviceLaunch, RuntimeError> {
        self.only_port(actor, &actor.inputs)?;
        self.only_port(actor, &actor.outputs)?;
        let from = self.register_layout(actor, actor.inputs[0])?;
        let to = self.register_layout(actor, actor.outputs[0])?;
        let rank = self.transport.rank();
        self.prepare_actor(actor, DeviceCall::Local { rank, from, to }, &actor.outputs)
    }

    fn prepare_fetch(&self, actor: &Actor, output: &str) -> Result<FetchWork, RuntimeError> {
        let index = self.edges.outputs.get(output).copied();
        let index = index.ok_or_else(|| self.actor_error(actor, "fetches nothing"))?;
        let input = self.only_port(actor, &actor.inputs)?;
        let layout = self.register_layout(actor, actor.inputs[0])?;
        let (rank, mut senders) = (self.transport.rank(), Vec::new());
        if let Some(outputs_at) = self.edges.remote {
            let (readers, messages) = output_readers(self.plan, rank, output, outputs_at);
            for to in readers {
                let sender = self.transport.open_sender(output_tag(index), to, 2 * messages);
                senders
                    .push(sender.map_err(|error| {
                        self.actor_error(actor, format_args!("fails: {error}"))
                    })?);
            }
        }
        let replicas = self.edges.remote.is_some();
        let work = FetchWork::new(index, input, (layout, rank, replicas), senders);
        work.map_err(|reason| self.actor_error(actor, format_args!("is {reason}")))
    }

    fn find_channel(
        &self,
        actor: &Actor,
        channel: u32,
    ) -> Result<(u32, &'a Channel), RuntimeError> {
        let found = self.plan.channels.get(channel as usize);
        let found =
            found.ok_or_else(|| self.actor_error(actor, "has a channel that the plan lacks"))?;
        Ok((channel, found))
    }

    fn prepare_collective(
        &self,
        actor: &Actor,
        (kind, axis): (BoxingKind, usize),
        sequence: u32,
    ) -> Result<Collective, RuntimeError> {
        let inputs = self.ports_of(actor, &actor.inputs)?;
        let outputs = self.ports_of(actor, &actor.outputs)?;
        let pairs = actor.inputs.iter().zip(&actor.outputs);
        let layouts = pairs.map(|(&from, &to)| {
            Ok((self.register_layout(actor, from)?, self.register_layout(actor, to)?))
        });
        let layouts = layouts.collect::<Result<_, RuntimeError>>()?;
        let microbatches = self.plan.microbatches.max(1);
        let call = CollectiveCall { kind, axis, sequence, microbatches, layouts, inputs, outputs };
        let collective = self.communicator.prepare_collective(self.device, call);
        collective.map_err(|reason| self.actor_error(actor, format_args!("cannot run: {reason}")))
    }
}
