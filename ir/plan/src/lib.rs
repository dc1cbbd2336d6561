//! The plan: the only thing that crosses from the compiler to the runtime. Versioned JSON of plain structs,
//! byte-identical for the same input. [`check`] proves that a plan is sound, and [`machine`] is the state machine of its
//! actors, which the null device and the runtime drive.
//!
//! A plan holds a *program* for each set of ranks that do the same. A program is *actors* (one physical op each) that
//! read and write *registers* (buffers at fixed offsets of the rank's arena, with slots as credits), and *streams*
//! that execute actors in a fixed order. What differs between ranks of one program (shard origins, peers) follows
//! from the rank's coordinates in each layout. Start reading with [`Plan`], then [`Program`].
//! Here is no clock, no network, no environment, no file and no thread.

#![warn(unreachable_pub)]

use std::collections::BTreeSet;

use graphc_ir::ids::{ActorId, ChannelId, LayoutId, ProgramId, RegisterId};
use graphc_ir::op::Op;
use graphc_ir::ops::Init;
use graphc_ir::sbp::{NdSbp, ReduceKind};
use graphc_ir::types::{DType, Samples};
use serde::{Deserialize, Serialize};

pub mod check;
mod composed;
mod file;
pub mod in_place;
mod layout;
pub mod machine;
mod machines;
mod operand;
mod options;
mod pretty;
mod ranks;
mod runs;
mod strategy;
pub mod streams;
mod training;

pub use composed::*;
pub use file::*;
pub use layout::*;
pub use machines::*;
pub use operand::*;
pub use options::*;
pub use strategy::*;
pub use training::*;

/// The version of the schema that this build reads and writes.
pub const PLAN_VERSION: u32 = 3;

/// A compiled job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`PLAN_VERSION`] of the build that wrote it.
    pub version: u32,
    /// The graph's name.
    pub name: String,
    /// Number of ranks.
    pub world_size: usize,
    /// All ranks, row-major.
    pub mesh: Vec<usize>,
    /// Number of pipeline stages.
    pub stages: usize,
    /// Parts of a step's batch.
    pub microbatches: usize,
    /// The ops that are computed again in the backward pass, where that was the compiler's choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recomputed: Vec<RecomputedOps>,
    /// Whether memory was short, so that each tensor which the backward pass reads again has a layout of its own for it: it is kept
    /// from the forward pass, or gathered again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub regathered: bool,
    /// Whether cross entropy is one op in it, where that was the compiler's choice.
    #[serde(default, skip_serializing_if = "CrossEntropyForm::is_auto")]
    pub cross_entropy: CrossEntropyForm,
    /// Whether logits, and the weights that make them, lie padded in memory: products of rows that are odd are slow on the machines.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub padded: bool,
    /// Whether it trains (updates variables).
    pub training: bool,
    /// The options with which it was compiled.
    pub options: CompileOptions,
    /// The machines that it was planned for.
    pub cluster: Cluster,
    /// The logical graph as the user wrote it, in the text format, line by line.
    pub graph: Vec<String>,
    /// Where the weights of `Init::Weights` variables come from.
    pub weights: Option<WeightsSource>,
    /// Parameters, inputs and activations of the logical graph.
    pub tensors: Vec<TensorEntry>,
    /// Every inserted communication step.
    pub boxing: Vec<BoxingEntry>,
    /// The quality of the plan.
    pub planner: PlannerReport,
    /// The grounds of the choice of stages and microbatches, where it was the compiler's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<PipelineReport>,
    /// The predictions of the null device.
    pub predicted: Predicted,
    /// Layouts that registers refer to.
    pub layouts: Vec<Layout>,
    /// Buffered point-to-point exchanges.
    pub channels: Vec<Channel>,
    /// The programs that ranks execute.
    pub programs: Vec<Program>,
    /// The program of each rank.
    pub ranks: Vec<RankEntry>,
}

impl Plan {
    /// The program of a rank.
    pub fn program_of(&self, rank: u32) -> &Program {
        &self.programs[self.ranks[rank as usize].program.index()]
    }

    /// The names of all variables.
    pub fn variable_names(&self) -> BTreeSet<&str> {
        let registers = self.programs.iter().flat_map(|program| &program.registers);
        registers.filter_map(Register::variable_name).collect()
    }

    /// The names of the variables that steps change: parameters that are trained, states, running statistics.
    pub fn updated_variables(&self) -> BTreeSet<&str> {
        let updated = self.programs.iter().flat_map(|program| {
            let updates = program.actors.iter().flat_map(|actor| &actor.updates);
            updates.map(|register| &program.registers[register.index()])
        });
        updated.filter_map(Register::variable_name).collect()
    }
}

/// Ops of blocks that are computed again in the backward pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecomputedOps {
    /// The numbers of the blocks, in the order of the graph over all stages. They have the same ops.
    pub blocks: Vec<usize>,
    /// The ops, in order.
    pub ops: Vec<RecomputedOp>,
}

/// An op that is computed again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecomputedOp {
    /// Its place among the ops of its block that may be computed again.
    pub place: usize,
    /// Its name.
    pub op: String,
}

/// A weights file by path and content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsSource {
    /// The model file, as the user named it.
    pub path: String,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
}

/// Where a tensor of the logical graph lies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// The user's name, or the value's id.
    pub name: String,
    /// `parameter`, `table`, `input`, `output`, `state`, `activation`, `gradient`.
    pub kind: TensorKind,
    /// Global shape.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// Ranks that hold it, row-major over `hierarchy`. In a file numbers, of 128 ranks or more runs
    /// `[first, count, stride]`.
    #[serde(with = "ranks")]
    pub ranks: Vec<u32>,
    /// Extents of the mesh axes.
    pub hierarchy: Vec<usize>,
    /// One SBP per mesh axis.
    pub sbp: NdSbp,
    /// Pipeline stage.
    pub stage: usize,
}

/// The purpose of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorKind {
    /// A trainable weight or another variable of the model.
    Parameter,
    /// A variable that begins as a table, which no step changes and no file holds.
    Table,
    /// Fed by the user.
    Input,
    /// Given back by the graph.
    Output,
    /// A state of the optimizer.
    State,
    /// Made in the forward pass.
    Activation,
    /// Made in the backward pass.
    Gradient,
}

impl TensorKind {
    /// The name in plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parameter => "parameter",
            Self::Table => "table",
            Self::Input => "input",
            Self::Output => "output",
            Self::State => "state",
            Self::Activation => "activation",
            Self::Gradient => "gradient",
        }
    }
}

/// One inserted step of communication (or local slice).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoxingEntry {
    /// The tensor's name.
    pub tensor: String,
    /// Layout before.
    pub from: NdSbp,
    /// Layout after.
    pub to: NdSbp,
    /// The kind of the step.
    pub kind: BoxingKind,
    /// The mesh axis, for single-axis steps.
    pub axis: Option<usize>,
    /// Bytes that the busiest rank sends or copies.
    pub bytes: u64,
    /// The rate at which it happens.
    pub rate: Rate,
}

/// Kinds of boxing steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoxingKind {
    /// Partial to broadcast.
    AllReduce,
    /// Partial to split.
    ReduceScatter,
    /// Split to broadcast.
    AllGather,
    /// Split to split of another dim.
    AllToAll,
    /// Broadcast to split: local.
    Slice,
    /// Broadcast to partial: all ranks but the first hold the identity; local.
    Mask,
    /// Any layout to any layout on any ranks, point to point.
    SendRecv,
}

impl BoxingKind {
    /// The name in plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::AllToAll => "all_to_all",
            Self::Slice => "slice",
            Self::Mask => "mask",
            Self::SendRecv => "send_recv",
        }
    }
}

/// The rate at which something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    /// Once per microbatch.
    Microbatch,
    /// Once per step.
    Step,
}

impl Rate {
    /// The name in plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Microbatch => "microbatch",
            Self::Step => "step",
        }
    }
}

/// The result of the planner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannerReport {
    /// Whether the objective is proven.
    pub status: PlannerStatus,
    /// (objective - bound) / objective; 0 where optimal.
    pub gap: f64,
    /// Cost of the plan in seconds, by the planner's model.
    pub objective_seconds: f64,
    /// Proven lower bound in seconds.
    pub bound_seconds: f64,
    /// Variables of the integer programme.
    pub variables: usize,
    /// Constraints of the integer programme.
    pub constraints: usize,
    /// Mesh axes for which every node that is not pinned chose as for the axis before, because there are too many axes to plan
    /// each by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tied_axes: Vec<usize>,
}

/// A choice of stages and microbatches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PipelineReport {
    /// Number of stages.
    pub stages: usize,
    /// Number of microbatches.
    pub microbatches: usize,
    /// Layers of each stage, or of each chunk of all stages in the order of the model.
    pub layers: Vec<usize>,
    /// Seconds of a step, sum(t) + (M-1) max(t) over stages, by the costs of single layers on a stage's submesh.
    pub seconds: f64,
    /// A bound below which no other number of stages, of microbatches and no other cut that was looked at goes, by the same
    /// costs of layers, whatever the memory.
    pub bound_seconds: f64,
}

/// Whether a plan is proven best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlannerStatus {
    /// Bound equals objective to 1e-6.
    Optimal,
    /// A proven gap remains, or the strategy is fixed.
    Gap,
}

/// The predictions of the null device for one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// Seconds per step.
    pub step_seconds: f64,
    /// Share of rank time that pipeline stages wait.
    pub bubble_fraction: f64,
    /// Peak bytes of each program's arena.
    pub peak_memory_bytes: Vec<u64>,
}

/// A program: what ranks that do the same execute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Its pipeline stage.
    pub stage: usize,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// The greatest number of bytes of registers alive at one time in the streams' order: what no placement in the
    /// arena can beat.
    pub live_bytes: u64,
    /// Buffers.
    pub registers: Vec<Register>,
    /// Physical ops.
    pub actors: Vec<Actor>,
    /// Who executes what in which order; a program has at least one stream. Stream 0 computes and does the
    /// communication that computing waits for at once; stream 1, where there is one, what may happen meanwhile.
    pub streams: Vec<Stream>,
}

/// A buffer of a fixed shape at a fixed offset of the arena.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Register {
    /// The tensor's name, for reports.
    pub name: String,
    /// The tensor's layout: index into [`Plan::layouts`].
    pub layout: LayoutId,
    /// Extents of the shard on ranks of this program (equal for all microbatches).
    pub shape: Vec<usize>,
    /// Bytes from the arena's start to slot 0; a multiple of 64.
    pub offset: u64,
    /// Bytes from slot to slot; a multiple of 64 (0 where the shard is empty).
    pub slot_bytes: u64,
    /// Credits: how many contents exist at once. The content of fill `n` lies in slot `n % slots`.
    pub slots: u32,
    /// The rate at which it is filled.
    pub rate: Rate,
    /// The content.
    pub kind: RegisterKind,
    /// The register whose memory it shares because its producer writes in place: both have the same offset, slots
    /// and slot bytes, and the other was made first.
    pub shares: Option<RegisterId>,
}

impl Register {
    /// The name of the variable that it holds.
    pub fn variable_name(&self) -> Option<&str> {
        match &self.kind {
            RegisterKind::Variable { name, .. } => Some(name),
            RegisterKind::Activation => None,
        }
    }
}

/// The content of a register.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegisterKind {
    /// A variable: filled before the first step, then by the actor that updates it, if any. One slot.
    Variable {
        /// The variable's name.
        name: String,
        /// Its first content.
        init: Init,
        /// The purpose: parameter, table or state.
        role: TensorKind,
    },
    /// A tensor that an actor makes and others read.
    Activation,
}

/// One physical op.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Actor {
    /// For reports: op and tensor.
    pub name: String,
    /// The action.
    pub action: Action,
    /// Registers that it reads.
    pub inputs: Vec<RegisterId>,
    /// Registers that it fills.
    pub outputs: Vec<RegisterId>,
    /// Variables that it reads and overwrites (an update). Not listed among `inputs` or `outputs`.
    pub updates: Vec<RegisterId>,
    /// An actor of the same rate on another stream that acts before it, in each microbatch or step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<ActorId>,
    /// The rate at which it acts. A step-rate actor may read step-rate registers only. A microbatch-rate actor may
    /// read a step-rate register: it reads it for every microbatch and frees it after the last. A microbatch-rate
    /// actor fills step-rate registers only as [`Action::Accumulate`] and [`Action::Fetch`] do: over all microbatches.
    pub rate: Rate,
    /// Seconds that it takes by the cost model, per action; 0 for communication that the null device prices.
    pub seconds: f64,
    /// Floating-point operations of one action, of which other machines make other seconds.
    #[serde(default)]
    pub flops: f64,
    /// Bytes of device memory that one action moves; 0 for communication.
    #[serde(default)]
    pub bytes: f64,
}

/// The action of an actor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A kernel. Operand i of the op is input n where `operands[i]` is n, and update n where it is -1-n. Operands
    /// of ops other than updates are all inputs, in the op's order (one register twice where the op reads it twice:
    /// `[0, 0]`). Of an update op, a result that takes the place of an operand among `updates` is written there;
    /// every other result fills the next of `outputs`, which may share the memory of the operand it replaces.
    Compute {
        /// The op.
        op: Op,
        /// Where each operand comes from.
        operands: Vec<OperandSource>,
    },
    /// A chain of elementwise ops, and sums of what they give.
    Fused(FusedOp),
    /// A collective over one mesh axis of the inputs' layouts; with several inputs, all in one message. Input i
    /// becomes output i.
    Collective {
        /// The kind, one of the five collectives.
        kind: BoxingKind,
        /// The reduction by which partial values become one.
        reduce: Option<ReduceKind>,
        /// The mesh axis.
        axis: usize,
        /// The same number on all ranks that take part. Within a block, collectives and sends stand in ascending
        /// order of their numbers; a receive stands where its content is first needed.
        sequence: u32,
    },
    /// A local change of layout: slice or mask.
    Local {
        /// Slice or mask.
        kind: BoxingKind,
    },
    /// Sends this rank's part of a channel.
    Send {
        /// The channel.
        channel: ChannelId,
    },
    /// Receives this rank's part of a channel (with what it sends itself, through the channel too).
    Receive {
        /// The channel.
        channel: ChannelId,
    },
    /// Adds each microbatch's input into the step-rate output; the first overwrites. With one microbatch the output
    /// may share the input's memory: then it is there already.
    Accumulate,
    /// Copies the input into the variable that it updates: the way home of an update computed in another layout than
    /// that in which the variable is kept.
    Assign,
    /// Copies this rank's shard of what the user feeds (the microbatch's rows) into the output.
    Feed {
        /// Name of the graph's input.
        input: String,
        /// The dim of it that counts samples: the first, where nothing is said.
        #[serde(default, skip_serializing_if = "Samples::is_first")]
        samples: Samples,
    },
    /// Gives this rank's shard of an output to the user.
    Fetch {
        /// Name of the graph's output.
        output: String,
        /// The dim of it that counts samples, in a plan of inference: the first, where nothing is said.
        #[serde(default, skip_serializing_if = "Samples::is_first")]
        samples: Samples,
    },
}

/// A chain of elementwise ops evaluated block by block; operands broadcast to the result's shape. It may end in sums and means of
/// what steps give, over all dims around those that stay: outputs that no step reads. One that does not may begin with an op whose
/// kernels have an epilogue ([`graphc_ir::op::Operation::begins_chain`]), which reads operands alone and computes its value in the place
/// of an output of that type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FusedOp {
    /// In order of evaluation.
    pub steps: Vec<FusedStep>,
    /// The steps whose values are results, in the order of the actor's outputs.
    pub outputs: Vec<usize>,
}

impl FusedOp {
    /// The op that the chain begins with, where it is one whose kernels have an epilogue.
    pub fn chain_head(&self) -> Option<&FusedStep> {
        self.steps.iter().find(|step| step.op.operation().begins_chain())
    }
}

/// One op of a chain: unary, binary, where or cast, a reduction at its end, or a convolution at its beginning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FusedStep {
    /// The op.
    pub op: Op,
    /// Its operands.
    pub args: Vec<FusedArg>,
}

/// An operand of a fused step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FusedArg {
    /// An operand of the chain.
    Operand(usize),
    /// The value of an earlier step.
    Step(usize),
}

/// A worker's order. An item runs all actors of a block for one microbatch; step-rate actors stand in blocks that
/// appear once per step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Lists of actors.
    pub blocks: Vec<Vec<ActorId>>,
    /// The blocks of one step, in order.
    pub order: Vec<StreamItem>,
}

/// A block for a microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamItem {
    /// Index into [`Stream::blocks`].
    pub block: u32,
    /// The microbatch; 0 for step-rate blocks.
    pub microbatch: u32,
}

/// A buffered exchange between two layouts of one tensor: ranks of `from` send, ranks of `to` receive, rectangle by
/// rectangle. A send waits only where `slots` contents are under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Channel {
    /// The tensor's name.
    pub tensor: String,
    /// Index into [`Plan::layouts`].
    pub from: LayoutId,
    /// Index into [`Plan::layouts`].
    pub to: LayoutId,
    /// Contents under way at once.
    pub slots: u32,
    /// The rate at which it happens.
    pub rate: Rate,
    /// Place of the send in the total order of communication; no collective has the same.
    pub sequence: u32,
}

/// A rank's part in the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankEntry {
    /// Its program.
    pub program: ProgramId,
}
