//! Small plans, made by hand: every rank has a program of its own.

use graphc_ir::ids::{ActorId, ChannelId, LayoutId, ProgramId, RegisterId};
use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_ir::ops::Init;
use graphc_ir::types::{DType, Samples};
use graphc_plan::check::VerifiedPlan;
use graphc_plan::*;

/// A tensor of the plan under construction: one register on each rank of its layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tensor(usize);

/// A plan under construction.
pub(super) struct Builder {
    pub plan: Plan,
    /// Per tensor: its register on each rank.
    registers: Vec<Vec<Option<RegisterId>>>,
    sequence: u32,
}

/// A layout of whole tensors.
pub(super) fn layout(
    shape: &[usize],
    dtype: DType,
    ranks: &[u32],
    hierarchy: &[usize],
    sbp: &str,
) -> Layout {
    Layout {
        shape: shape.to_vec(),
        dtype,
        microbatch_dim: None,
        ranks: ranks.to_vec(),
        hierarchy: hierarchy.to_vec(),
        sbp: sbp.parse().expect("an SBP"),
    }
}

/// A layout of f32 on one axis.
pub(super) fn f32s(shape: &[usize], ranks: &[u32], sbp: &str) -> Layout {
    layout(shape, DType::F32, ranks, &[ranks.len()], sbp)
}

/// Feeds x in `layouts[0]`, goes through the others, and fetches it.
pub(super) fn tour(layouts: &[Layout], steps: &[BoxingKind]) -> Builder {
    let ranks = layouts.iter().flat_map(|l| &l.ranks).max().expect("a rank") + 1;
    let mut builder = Builder::new(ranks as usize, 1);
    let mut at = builder.tensor(&layouts[0], Rate::Step, 1);
    builder.feed("x", at, Rate::Step);
    for (layout, &kind) in layouts[1..].iter().zip(steps) {
        let next = builder.tensor(layout, Rate::Step, 1);
        match kind {
            BoxingKind::Slice | BoxingKind::Mask => {
                builder.actor("local", Action::Local { kind }, Rate::Step, [&[at], &[next], &[]]);
            }
            BoxingKind::SendRecv => builder.channel(at, next, Rate::Step, 1),
            _ => builder.collective(kind, 0, &[at], &[next], Rate::Step),
        }
        at = next;
    }
    builder.fetch("y", at, Rate::Step);
    builder
}

/// A layout of which microbatches take rows.
pub(super) fn by_rows(layout: Layout) -> Layout {
    Layout { microbatch_dim: Some(0), ..layout }
}

fn program() -> Program {
    Program {
        stage: 0,
        arena_bytes: 0,
        live_bytes: 0,
        registers: Vec::new(),
        actors: Vec::new(),
        streams: vec![Stream { blocks: Vec::new(), order: Vec::new() }],
    }
}

impl Builder {
    pub(super) fn new(ranks: usize, microbatches: usize) -> Self {
        let device = Device {
            kind: DeviceKind::Cpu,
            memory: 1 << 30,
            flops: Default::default(),
            matmul_efficiency: Vec::new(),
            matmul_efficiency_of: Default::default(),
            matmul_unaligned: 1.0,
            attention: None,
            convolution: None,
            bandwidth: 1e9,
            bandwidth_share: 1.0,
            launch: 0.0,
            dispatch: 0.0,
            overlap: false,
            shared_by: None,
        };
        let (levels, axes) = Default::default();
        let framework = Default::default();
        let cluster = Cluster { name: "test".into(), device, levels, axes, framework };
        let planner = PlannerReport {
            status: PlannerStatus::Gap,
            gap: 0.0,
            objective_seconds: 0.0,
            bound_seconds: 0.0,
            variables: 0,
            constraints: 0,
            tied_axes: Vec::new(),
        };
        let predicted =
            Predicted { step_seconds: 0.0, bubble_fraction: 0.0, peak_memory_bytes: Vec::new() };
        let plan = Plan {
            version: PLAN_VERSION,
            name: "test".into(),
            world_size: ranks,
            mesh: vec![ranks],
            stages: 1,
            microbatches,
            recomputed: Vec::new(),
            regathered: false,
            cross_entropy: graphc_plan::CrossEntropyForm::Auto,
            padded: false,
            training: false,
            options: CompileOptions::default(),
            cluster,
            graph: Vec::new(),
            weights: None,
            tensors: Vec::new(),
            boxing: Vec::new(),
            planner,
            pipeline: None,
            predicted,
            layouts: Vec::new(),
            channels: Vec::new(),
            programs: (0..ranks).map(|_| program()).collect(),
            ranks: (0..ranks).map(|r| RankEntry { program: ProgramId::new(r) }).collect(),
        };
        Self { plan, registers: Vec::new(), sequence: 0 }
    }

    /// The plan, with what follows from the rest of it.
    pub(super) fn plan(mut self) -> Plan {
        let bytes = self.plan.programs.iter().map(|program| program.arena_bytes);
        self.plan.predicted.peak_memory_bytes = bytes.collect();
        self.plan
    }

    /// The plan, for a session.
    pub(super) fn verified(self) -> VerifiedPlan {
        VerifiedPlan::check(self.plan()).expect("a sound plan")
    }

    fn layout(&mut self, layout: &Layout) -> LayoutId {
        let known = self.plan.layouts.iter().position(|l| l == layout);
        LayoutId::new(known.unwrap_or_else(|| {
            self.plan.layouts.push(layout.clone());
            self.plan.layouts.len() - 1
        }))
    }

    /// A tensor with a register of this many slots on each rank of the layout.
    pub(super) fn tensor(&mut self, layout: &Layout, rate: Rate, slots: u32) -> Tensor {
        self.register("t", layout, rate, slots, RegisterKind::Activation)
    }

    pub(super) fn variable(&mut self, name: &str, layout: &Layout, init: Init) -> Tensor {
        let kind = RegisterKind::Variable { name: name.into(), init, role: TensorKind::Parameter };
        self.register(name, layout, Rate::Step, 1, kind)
    }

    fn register(
        &mut self,
        name: &str,
        layout: &Layout,
        rate: Rate,
        slots: u32,
        kind: RegisterKind,
    ) -> Tensor {
        let index = self.layout(layout);
        let mut registers = vec![None; self.plan.world_size];
        for &rank in &layout.ranks {
            let program = &mut self.plan.programs[rank as usize];
            let rect = layout.rect(rank, 0, self.plan.microbatches).expect("a rank of the layout");
            let bytes = rect.elements() * layout.dtype.size();
            let slot_bytes = bytes.next_multiple_of(64) as u64;
            registers[rank as usize] = Some(RegisterId::new(program.registers.len()));
            program.registers.push(Register {
                name: format!("{name}{}", self.registers.len()),
                layout: index,
                shape: rect.extent,
                offset: program.arena_bytes,
                slot_bytes,
                slots,
                rate,
                kind: kind.clone(),
                shares: None,
            });
            program.arena_bytes += slot_bytes * u64::from(slots);
        }
        self.registers.push(registers);
        Tensor(self.registers.len() - 1)
    }

    /// An actor on each rank that has all its registers. Without registers it is on no rank.
    pub(super) fn actor(
        &mut self,
        name: &str,
        action: Action,
        rate: Rate,
        [inputs, outputs, updates]: [&[Tensor]; 3],
    ) {
        let microbatches = if rate == Rate::Step { 1 } else { self.plan.microbatches };
        for rank in 0..self.plan.world_size {
            let find = |tensors: &[Tensor]| -> Option<Vec<RegisterId>> {
                tensors.iter().map(|t| self.registers[t.0][rank]).collect()
            };
            let found = (find(inputs), find(outputs), find(updates));
            let (Some(inputs), Some(outputs), Some(updates)) = found else { continue };
            let program = &mut self.plan.programs[rank];
            let id = ActorId::new(program.actors.len());
            let (name, action) = (name.to_owned(), action.clone());
            program.actors.push(Actor {
                name,
                action,
                inputs,
                outputs,
                updates,
                after: None,
                rate,
                seconds: 0.0,
                flops: 0.0,
                bytes: 0.0,
            });
            let stream = &mut program.streams[0];
            let block = stream.blocks.len() as u32;
            stream.blocks.push(vec![id]);
            let items = (0..microbatches as u32).map(|microbatch| StreamItem { block, microbatch });
            stream.order.extend(items);
        }
    }

    pub(super) fn feed(&mut self, name: &str, to: Tensor, rate: Rate) {
        let action = Action::Feed { input: name.into(), samples: Samples::First };
        self.actor(&format!("feed {name}"), action, rate, [&[], &[to], &[]]);
    }

    pub(super) fn fetch(&mut self, name: &str, from: Tensor, rate: Rate) {
        let action = Action::Fetch { output: name.into(), samples: Samples::First };
        self.actor(&format!("fetch {name}"), action, rate, [&[from], &[], &[]]);
    }

    pub(super) fn compute(&mut self, op: Op, inputs: &[Tensor], output: Tensor, rate: Rate) {
        let operands = (0..inputs.len()).map(OperandSource::Input).collect();
        let name = op.name();
        self.actor(name, Action::Compute { op, operands }, rate, [inputs, &[output], &[]]);
    }

    pub(super) fn collective(
        &mut self,
        kind: BoxingKind,
        axis: usize,
        inputs: &[Tensor],
        outputs: &[Tensor],
        rate: Rate,
    ) {
        let sequence = self.sequence;
        self.sequence += 1;
        let action = Action::Collective { kind, reduce: None, axis, sequence };
        self.actor("collective", action, rate, [inputs, outputs, &[]]);
    }

    pub(super) fn channel(&mut self, from: Tensor, to: Tensor, rate: Rate, slots: u32) {
        let layout_of = |builder: &Self, tensor: Tensor| {
            let (rank, register) = builder.registers[tensor.0]
                .iter()
                .enumerate()
                .find_map(|(rank, register)| register.map(|r| (rank, r)))
                .expect("a tensor has a register");
            builder.plan.programs[rank].registers[register.index()].layout
        };
        let channel = ChannelId::new(self.plan.channels.len());
        let (before, after) = (layout_of(self, from), layout_of(self, to));
        self.plan.channels.push(Channel {
            tensor: "t".into(),
            from: before,
            to: after,
            slots,
            rate,
            sequence: self.sequence,
        });
        self.sequence += 1;
        self.actor("send", Action::Send { channel }, rate, [&[from], &[], &[]]);
        self.actor("receive", Action::Receive { channel }, rate, [&[], &[to], &[]]);
    }

    /// Moves all communication actors of every rank to a second stream.
    pub(super) fn communicate_apart(&mut self) {
        for program in &mut self.plan.programs {
            let mut streams = [0, 1].map(|_| Stream { blocks: Vec::new(), order: Vec::new() });
            let Stream { blocks, order } = &program.streams[0];
            let mut places = Vec::new();
            for actors in blocks {
                let apart = matches!(
                    program.actors[actors[0].index()].action,
                    Action::Collective { .. } | Action::Send { .. } | Action::Receive { .. }
                );
                let stream = &mut streams[usize::from(apart)];
                places.push((usize::from(apart), stream.blocks.len() as u32));
                stream.blocks.push(actors.clone());
            }
            for item in order {
                let (stream, block) = places[item.block as usize];
                streams[stream].order.push(StreamItem { block, microbatch: item.microbatch });
            }
            program.streams = streams.into();
        }
    }
}
