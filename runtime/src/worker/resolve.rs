//! From a rank's part of a plan to actors that are ready to run.

use std::collections::BTreeMap;
use std::sync::Arc;

use graphc_ir::ids::{ActorId, RegisterId};
use graphc_ir::plan::{Action, Actor, BoxingKind, Layout, Plan, Program, Stream};

use super::actor::{CollectiveWork, CopyWork, KernelWork, Work};
use super::channel::{Ends, ReceiveWork, SendWork};
use super::edge::{FeedWork, FetchWork, LocalWork};
use super::kernel::Call;
use super::port::Port;
use crate::collectives::{Change, Scope, group_of, plan as plan_collective};
use crate::error::RuntimeError;
use crate::session::{OutputsAt, output_tag, readers};
use crate::transport::Transport;

/// The names under which tensors go in and out, in the order of a step's feeds and outputs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edges {
    pub(crate) inputs: BTreeMap<String, usize>,
    pub(crate) outputs: BTreeMap<String, usize>,
    /// Where ranks are processes: which of them want outputs.
    pub(crate) remote: Option<OutputsAt>,
}

/// What one rank executes.
pub(crate) struct RankPart {
    /// Per stream: the actors, at their ids.
    pub(crate) actors: Vec<Vec<Option<Work>>>,
    /// Per stream: (actor, microbatch) in order.
    pub(crate) orders: Vec<Vec<(u32, u32)>>,
}

/// Resolves the actors of one rank.
pub(crate) struct Resolver<'a> {
    plan: &'a Plan,
    program: &'a Program,
    edges: &'a Edges,
    transport: &'a Arc<dyn Transport>,
    ports: Vec<Port>,
}

impl<'a> Resolver<'a> {
    /// # Errors
    /// Where a register does not fit its layout or the arena.
    pub(crate) fn new(
        plan: &'a Plan,
        program: &'a Program,
        edges: &'a Edges,
        transport: &'a Arc<dyn Transport>,
    ) -> Result<Self, RuntimeError> {
        let rank = transport.rank();
        let port = |register| Port::new(plan, register, rank, program.arena_bytes);
        let ports = program.registers.iter().map(port).collect::<Result<_, _>>()?;
        Ok(Self { plan, program, edges, transport, ports })
    }

    /// The registers, at their ids.
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
        for stream in &self.program.streams {
            let order = self.order(stream)?;
            let mut actors: Vec<Option<Work>> = self.program.actors.iter().map(|_| None).collect();
            for &(actor, _) in &order {
                let place = &mut actors[actor as usize];
                if place.is_some() {
                    continue;
                }
                let definition = &self.program.actors[actor as usize];
                let actors = self.program.actors.len();
                if definition.after.is_some_and(|before| before.index() >= actors) {
                    return Err(
                        self.fail(definition, "stands behind an actor that the program lacks")
                    );
                }
                if std::mem::replace(&mut owned[actor as usize], true) {
                    return Err(self.fail(definition, "stands in two streams"));
                }
                *place = Some(self.actor(definition)?);
            }
            part.orders.push(order);
            part.actors.push(actors);
        }
        Ok(part)
    }

    fn order(&self, stream: &Stream) -> Result<Vec<(u32, u32)>, RuntimeError> {
        let mut order = Vec::new();
        for item in &stream.order {
            let block = stream.blocks.get(item.block as usize);
            let block = block.ok_or(RuntimeError::plan("a stream's order names no block"))?;
            if item.microbatch as usize >= self.plan.microbatches.max(1) {
                return Err(RuntimeError::plan("a stream's order names no microbatch"));
            }
            if block.iter().any(|actor| actor.index() >= self.program.actors.len()) {
                return Err(RuntimeError::plan("a stream's block names no actor"));
            }
            order.extend(block.iter().map(|&ActorId(actor)| (actor, item.microbatch)));
        }
        Ok(order)
    }

    fn fail(&self, actor: &Actor, reason: impl std::fmt::Display) -> RuntimeError {
        let rank = self.transport.rank();
        RuntimeError::plan(format!("rank {rank}, actor `{}` {reason}", actor.name))
    }

    fn port(&self, actor: &Actor, register: RegisterId) -> Result<Port, RuntimeError> {
        let port = self.ports.get(register.index()).cloned();
        port.ok_or_else(|| self.fail(actor, "has a register that the program lacks"))
    }

    fn ports_of(&self, actor: &Actor, all: &[RegisterId]) -> Result<Vec<Port>, RuntimeError> {
        all.iter().map(|&register| self.port(actor, register)).collect()
    }

    /// The only register of a list.
    fn only(&self, actor: &Actor, all: &[RegisterId]) -> Result<Port, RuntimeError> {
        match all {
            [register] => self.port(actor, *register),
            _ => Err(self.fail(actor, format_args!("has {} registers for one", all.len()))),
        }
    }

    fn layout(&self, actor: &Actor, register: RegisterId) -> Result<&'a Layout, RuntimeError> {
        let register = self.program.registers.get(register.index());
        let layout = register.and_then(|r| self.plan.layouts.get(r.layout as usize));
        layout.ok_or_else(|| self.fail(actor, "has a register without layout"))
    }

    fn actor(&self, actor: &Actor) -> Result<Work, RuntimeError> {
        Ok(match &actor.action {
            Action::Compute { .. } | Action::Fused(_) => Work::Kernel(self.kernel(actor)?),
            Action::Collective { kind, axis, sequence, .. } => {
                Work::Collective(Box::new(self.collective(actor, *kind, *axis, *sequence)?))
            }
            Action::Local { .. } => Work::Local(self.local(actor)?),
            Action::Send { channel } => {
                let input = self.only(actor, &actor.inputs)?;
                Work::Send(SendWork::new(&self.ends(actor, channel.0)?, input)?)
            }
            Action::Receive { channel } => {
                let output = self.only(actor, &actor.outputs)?;
                Work::Receive(ReceiveWork::new(&self.ends(actor, channel.0)?, output)?)
            }
            Action::Accumulate => Work::Accumulate(self.copy(actor, &actor.outputs)?),
            Action::Assign => Work::Assign(self.copy(actor, &actor.updates)?),
            Action::Feed { input } => {
                let index = self.edges.inputs.get(input).copied();
                let index = index.ok_or_else(|| self.fail(actor, "feeds nothing"))?;
                Work::Feed(FeedWork::new(index, self.only(actor, &actor.outputs)?))
            }
            Action::Fetch { output } => Work::Fetch(self.fetch(actor, output)?),
        })
    }

    fn kernel(&self, actor: &Actor) -> Result<KernelWork, RuntimeError> {
        let call = Call::of(self.plan, self.program, actor);
        let call = call.map_err(|reason| self.fail(actor, reason))?;
        let prepared = call.prepare();
        let prepared = prepared.map_err(|error| self.fail(actor, format_args!("has {error}")))?;
        let operands = self.ports_of(actor, &call.operands)?;
        let results = self.ports_of(actor, &call.results)?;
        Ok(KernelWork { prepared, operands, results })
    }

    fn copy(&self, actor: &Actor, to: &[RegisterId]) -> Result<CopyWork, RuntimeError> {
        let (input, output) = (self.only(actor, &actor.inputs)?, self.only(actor, to)?);
        let bytes = |port: &Port| (port.dtype, port.rect(0).elements());
        if bytes(&input) != bytes(&output) {
            return Err(self.fail(actor, "copies into a register of another size"));
        }
        Ok(CopyWork { input, output })
    }

    fn local(&self, actor: &Actor) -> Result<LocalWork, RuntimeError> {
        let (input, output) = (self.only(actor, &actor.inputs)?, self.only(actor, &actor.outputs)?);
        let from = self.layout(actor, actor.inputs[0])?;
        let to = self.layout(actor, actor.outputs[0])?;
        let work = LocalWork::new(input, output, (from, to), self.transport.rank());
        work.map_err(|reason| self.fail(actor, format_args!("cannot be local: {reason}")))
    }

    fn fetch(&self, actor: &Actor, output: &str) -> Result<FetchWork, RuntimeError> {
        let index = self.edges.outputs.get(output).copied();
        let index = index.ok_or_else(|| self.fail(actor, "fetches nothing"))?;
        let input = self.only(actor, &actor.inputs)?;
        let layout = self.layout(actor, actor.inputs[0])?;
        let (rank, mut senders) = (self.transport.rank(), Vec::new());
        if let Some(outputs_at) = self.edges.remote {
            let (readers, messages) = readers(self.plan, rank, output, outputs_at);
            for to in readers {
                let sender = self.transport.sender(output_tag(index), to, 2 * messages);
                senders.push(
                    sender.map_err(|error| self.fail(actor, format_args!("fails: {error}")))?,
                );
            }
        }
        let replicas = self.edges.remote.is_some();
        let work = FetchWork::new(index, input, (layout, rank, replicas), senders);
        work.map_err(|reason| self.fail(actor, format_args!("is {reason}")))
    }

    fn ends(&self, actor: &Actor, channel: u32) -> Result<Ends<'a>, RuntimeError> {
        let found = self.plan.channels.get(channel as usize);
        let transport: &'a dyn Transport = &**self.transport;
        found
            .map(|found| Ends { plan: self.plan, channel: found, tag: channel, transport })
            .ok_or_else(|| self.fail(actor, "has a channel that the plan lacks"))
    }

    fn collective(
        &self,
        actor: &Actor,
        kind: BoxingKind,
        axis: usize,
        sequence: u32,
    ) -> Result<CollectiveWork, RuntimeError> {
        let inputs = self.ports_of(actor, &actor.inputs)?;
        let outputs = self.ports_of(actor, &actor.outputs)?;
        if inputs.len() != outputs.len() || inputs.is_empty() {
            return Err(self.fail(actor, "needs an output for each input"));
        }
        let mut changes = Vec::new();
        for (index, (&input, &output)) in actor.inputs.iter().zip(&actor.outputs).enumerate() {
            let target = outputs[index].span();
            let in_place = inputs.iter().any(|port| port.span().overlaps(target));
            let own = inputs[index].span().offset == target.offset;
            if in_place && !own && kind == BoxingKind::AllReduce {
                return Err(self.fail(actor, "writes over an operand of another result"));
            }
            let (from, to) = (self.layout(actor, input)?, self.layout(actor, output)?);
            changes.push(Change { from, to, in_place });
        }
        let staged = changes.iter().any(|change| change.in_place);
        changes.iter_mut().for_each(|change| change.in_place = staged);
        let microbatches = self.plan.microbatches.max(1);
        let rank = self.transport.rank();
        let ports = || inputs.iter().chain(&outputs);
        let count = ports().map(Port::variants).max().unwrap_or(1);
        let fail = |reason: String| self.fail(actor, format_args!("cannot run: {reason}"));
        let scope =
            |direct| move |microbatch| Scope { rank, axis, microbatch, microbatches, direct };
        let group = group_of(&changes, scope(true)(0)).map_err(fail)?;
        let scope = scope(self.transport.direct(&group));
        let variants = (0..count).map(|m| plan_collective(kind, &changes, scope(m)));
        let variants = variants.collect::<Result<Vec<_>, _>>().map_err(fail)?;
        let staged = |output| variants.iter().flatten().map(|stage| stage.staged(output)).max();
        let staging = (0..outputs.len()).map(|output| vec![0; staged(output).unwrap_or(0)]);
        let staging = staging.collect();
        let wide = outputs.iter().map(|_| Vec::new()).collect();
        let group = self.transport.group(sequence, &group).map_err(|e| fail(e.to_string()))?;
        Ok(CollectiveWork {
            group,
            inputs,
            outputs,
            variants,
            staging,
            wide,
            packed: Vec::new(),
            input_places: Vec::new(),
            output_places: Vec::new(),
        })
    }
}
