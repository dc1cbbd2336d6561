//! The errors of passes. Each names the op, where the user wrote it, and what meets there.

use graphc_ir::builder::BuildErrors;
use graphc_ir::graph::Source;
use graphc_ir::learning_rate::LrScheduleError;
use graphc_ir::mesh::{Placement, PlacementError, format_mesh};
use graphc_ir::op::OpError;
use graphc_ir::text::suggest_name;
use graphc_ir::types::{DType, TensorType};
use graphc_ir::verify::VerifyErrors;
use graphc_plan::Schedule;

use super::LOSS;
use crate::schedule::MOST_MICROBATCHES;

/// The error of a pass.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// A graph that breaks an invariant: the user's, or what a pass made of it.
    #[error("after {pass} the graph does not hold together:\n{errors}")]
    Verify {
        /// The pass, or `input`.
        pass: &'static str,
        /// All that is wrong.
        errors: VerifyErrors,
    },
    /// An op that does not take what a pass gives it.
    #[error("{pass}: {error}")]
    Op {
        /// The pass.
        pass: &'static str,
        /// The operands that do not fit.
        error: OpError,
    },
    /// A precision that products cannot be computed in.
    #[error("the precision is f32, bf16, f16 or f8e4m3, not {dtype}")]
    Precision {
        /// The type asked for.
        dtype: DType,
    },
    /// A decay of moving averages that is no share.
    #[error("the decay of moving averages is at least 0 and below 1, not {decay}")]
    Average {
        /// The decay asked for.
        decay: f64,
    },
    /// Ops that do not take what a pass gives them.
    #[error("{pass}: {errors}")]
    Build {
        /// The pass.
        pass: &'static str,
        /// The operands that do not fit.
        errors: BuildErrors,
    },
    /// A schedule with chunks of layers for each stage that does not fit stages or microbatches.
    #[error(
        "the schedule {schedule} needs at least 2 stages, and microbatches in groups of as many as there are stages, but there are {stages} stages and {microbatches} microbatches"
    )]
    Interleaved {
        /// The schedule.
        schedule: Schedule,
        /// Number of stages.
        stages: usize,
        /// Number of microbatches.
        microbatches: usize,
    },
    /// A plan whose graph cannot be read.
    #[error("the plan's graph: {error}")]
    PlanGraph {
        /// The place and the reason.
        error: String,
    },
    /// A graph that computes nothing that anyone sees.
    #[error(
        "the graph has no output, and no variable that a step replaces, so there is nothing to compute: declare an output"
    )]
    NothingComputed,
    /// A training request for a graph without outputs.
    #[error("the graph has no output, so there is nothing to train: declare one")]
    NoOutput,
    /// A training request without a loss for a graph whose first output is no scalar.
    #[error(
        "the first output `{output}` is {ty}, not a scalar loss: choose a loss (cross_entropy, nll, mse, bce, huber, l1, sum, or output:NAME on the command line)"
    )]
    NotScalar {
        /// The output.
        output: String,
        /// Its type.
        ty: TensorType,
    },
    /// An output that is to be the loss and that the graph does not have.
    #[error("the model has no output `{name}`: its outputs are {}", outputs.join(", "))]
    LossUnknown {
        /// The output.
        name: String,
        /// All outputs.
        outputs: Vec<String>,
    },
    /// A loss that the first output has no shape for.
    #[error("{loss} cannot take the first output `{output}` of {ty}: {reason}")]
    LossShape {
        /// The loss.
        loss: &'static str,
        /// The output.
        output: String,
        /// Its type.
        ty: TensorType,
        /// The reason.
        reason: String,
    },
    /// A name that a pass needs and the graph uses for something else.
    #[error("the name `{name}` is taken ({source_of}), but {pass} needs it{}", advise_on_name(.name))]
    NameTaken {
        /// The pass.
        pass: &'static str,
        /// The name.
        name: String,
        /// The place where the user wrote its owner.
        source_of: Source,
    },
    /// A graph that an optimizer cannot change.
    #[error("no trainable variable reaches the loss `{loss}`: there is nothing to train")]
    NothingToTrain {
        /// The loss.
        loss: String,
    },
    /// An op of the user's without a gradient between trained variables and the loss.
    #[error(
        "the loss depends on `{value}` through the op `{op}` ({place}), which has no gradient, so nothing before it would learn: say \
         `differentiable()` of it and give its backward pass, or `detach` what it reads"
    )]
    CustomGradient {
        /// The op's name.
        op: String,
        /// The operand that trained variables reach.
        value: String,
        /// The place where the user wrote the op.
        place: Source,
    },
    /// A graph of updates alone that lacks a gradient.
    #[error(
        "the graph has no input `{name}` ({ty}), which is to be the gradient of a trained variable"
    )]
    GradientMissing {
        /// The input.
        name: String,
        /// Its type, which is the variable's.
        ty: TensorType,
    },
    /// A mesh that is none.
    #[error("the mesh {mesh:?}: {error}")]
    Mesh {
        /// The extents asked for.
        mesh: Vec<usize>,
        /// The reason.
        error: PlacementError,
    },
    /// Stages that do not divide the mesh.
    #[error(
        "{stages} stages do not divide the first axis of the mesh {}: {} fit",
        format_mesh(.mesh), format_choices(.fitting)
    )]
    StagesDivide {
        /// The mesh.
        mesh: Vec<usize>,
        /// The stages asked for.
        stages: usize,
        /// The numbers of stages that would fit.
        fitting: Vec<usize>,
    },
    /// A graph whose own stages are not as many as asked for.
    #[error(
        "the graph has {declared} stages of its own, but {} asked for: ask for as many, --stages {declared}",
        if *.stages == 1 { "1 is".to_owned() } else { format!("{} are", .stages) }
    )]
    StageCount {
        /// The graph's.
        declared: usize,
        /// The number asked for.
        stages: usize,
    },
    /// A node in a stage that does not exist.
    #[error(
        "{op} ({place}) is in stage {stage}, but there are stages 0..{stages}: ask for more, --stages {} at least",
        .stage + 1
    )]
    StageRange {
        /// The op.
        op: &'static str,
        /// The place where the user wrote it.
        place: Source,
        /// Its stage.
        stage: usize,
        /// The number of stages.
        stages: usize,
    },
    /// A graph with fewer ops than stages.
    #[error("{ops} ops cannot be cut into {stages} stages")]
    TooManyStages {
        /// Ops that compute.
        ops: usize,
        /// The stages asked for.
        stages: usize,
    },
    /// A placement that names a rank which the job does not have.
    #[error("{what} is placed on {placement}, but the mesh {} has ranks 0..{ranks}", format_mesh(.mesh))]
    RankRange {
        /// The op with its place, or the stage.
        what: String,
        /// Its placement.
        placement: Placement,
        /// The mesh.
        mesh: Vec<usize>,
        /// The number of its ranks.
        ranks: usize,
    },
    /// A pin of a tensor that the graph does not have.
    #[error("no tensor has a name like `{pattern}`, which is to be pinned{}", suggest_name(.nearest.as_deref()))]
    PinUnknown {
        /// The pattern.
        pattern: String,
        /// The name most like it.
        nearest: Option<String>,
    },
    /// A gradient of something that the graph does not have.
    #[error("no tensor of floating-point numbers has a name like `{pattern}`, whose gradient is to be an output{}", suggest_name(.nearest.as_deref()))]
    GradientUnknown {
        /// The pattern.
        pattern: String,
        /// The name most like it.
        nearest: Option<String>,
    },
    /// A gradient of something of which the loss is not computed.
    #[error("the loss `{loss}` does not depend on `{tensor}`, whose gradient is to be an output")]
    GradientUnreached {
        /// The tensor.
        tensor: String,
        /// The loss.
        loss: String,
    },
    /// An output that the graph does not have.
    #[error("no output has a name like `{pattern}`, which is to be fetched: the outputs are {}", outputs.join(", "))]
    OutputUnknown {
        /// The pattern.
        pattern: String,
        /// All outputs.
        outputs: Vec<String>,
    },
    /// A group of parameters without any.
    #[error("no trained variable has a name like `{pattern}`, which is to be a group of its own{}", suggest_name(.nearest.as_deref()))]
    GroupUnknown {
        /// The pattern.
        pattern: String,
        /// The name most like it.
        nearest: Option<String>,
    },
    /// Running statistics that the graph does not have.
    #[error("no batch norm has running statistics with a name like `{pattern}`, which are to be kept{}", suggest_name(.nearest.as_deref()))]
    StatisticsUnknown {
        /// The pattern.
        pattern: String,
        /// The name most like it.
        nearest: Option<String>,
    },
    /// A batch norm whose statistics are those of a single value.
    #[error(
        "batch_norm ({place}) normalizes {ty} by the statistics of {}, which has one value per channel: training needs more than 1; take a larger batch{}, or keep the running statistics as they are (--keep-statistics)",
        describe_batch_part(*.microbatches), suggest_fewer_microbatches(*.microbatches)
    )]
    OneValue {
        /// The place where the user wrote it.
        place: Source,
        /// The type that is normalized, of the whole batch.
        ty: TensorType,
        /// Parts of a step's batch.
        microbatches: usize,
    },
    /// A batch norm whose running statistics would not take in a share of each batch.
    #[error(
        "batch_norm ({place}) keeps a share of {momentum} of its running statistics at each step, which is not at least 0 and below 1{}",
        explain_momentum(*.momentum)
    )]
    Momentum {
        /// The place where the user wrote it.
        place: Source,
        /// The share that stays.
        momentum: f64,
    },
    /// A number of the options that makes no sense.
    #[error("{what} is a number {expected}, not {value}")]
    Number {
        /// The meaning of the number.
        what: &'static str,
        /// The number.
        value: f64,
        /// The values that it may have.
        expected: &'static str,
    },
    /// A schedule of the learning rate that makes no sense.
    #[error("{error}")]
    LrSchedule {
        /// The reason.
        error: LrScheduleError,
    },
    /// An option that only losses with labels have.
    #[error("{what} needs a loss that compares scores with labels: {expected}, not {}", .loss.unwrap_or("the graph's own"))]
    NeedsLabels {
        /// The option.
        what: &'static str,
        /// The losses that have it.
        expected: &'static str,
        /// The loss that was asked for.
        loss: Option<&'static str>,
    },
    /// A number of microbatches that is none.
    #[error("a step's batch cannot be cut into 0 microbatches")]
    NoMicrobatches,
    /// More microbatches than any step has.
    #[error(
        "a step's batch cannot be cut into {microbatches} microbatches: at most {MOST_MICROBATCHES} make sense"
    )]
    ManyMicrobatches {
        /// Parts of a step's batch.
        microbatches: usize,
    },
    /// An input that the microbatches do not divide.
    #[error(
        "dim {dim} of the input `{input}` has extent {extent}, which {microbatches} microbatches do not divide: {} do",
        format_choices(&divisors(*.extent))
    )]
    Microbatches {
        /// The input.
        input: String,
        /// The dim that counts its samples.
        dim: usize,
        /// The extent of that dim.
        extent: usize,
        /// Parts of a step's batch.
        microbatches: usize,
    },
    /// An op that cannot be computed microbatch by microbatch.
    #[error(
        "{op} ({place}) cannot be cut into {microbatches} microbatches: {reason}; what it makes of several samples together needs them all at once: take one microbatch (--microbatches 1), and where memory is short more ranks or --recompute full"
    )]
    CannotCut {
        /// The op.
        op: &'static str,
        /// The place where the user wrote it.
        place: Source,
        /// Parts of a step's batch.
        microbatches: usize,
        /// The operands, and how they are split.
        reason: String,
    },
    /// A name that no pass has.
    #[error("there is no pass `{pass}`; the passes are {}", .passes.join(", "))]
    UnknownPass {
        /// The name asked for.
        pass: String,
        /// The passes.
        passes: Vec<&'static str>,
    },
}

graphc_ir::readable_debug!(PassError);

/// The part of the batch that statistics are taken of.
fn describe_batch_part(microbatches: usize) -> String {
    if microbatches > 1 {
        format!("each of {microbatches} microbatches")
    } else {
        "the batch".into()
    }
}

/// The numbers that divide an extent, in order.
fn divisors(extent: usize) -> Vec<usize> {
    (1..=extent).filter(|part| extent.is_multiple_of(*part)).collect()
}

/// The way to train on a loss that the graph has itself.
fn advise_on_name(name: &str) -> &'static str {
    match name == LOSS {
        true => {
            "; if it is the loss that the graph computes itself, ask for none (`loss: None`, or --loss output:loss), else give it another name"
        }
        false => "",
    }
}

/// The other way to give each microbatch more samples.
fn suggest_fewer_microbatches(microbatches: usize) -> &'static str {
    if microbatches > 1 { " or fewer microbatches" } else { "" }
}

/// The usual cause of a share of 1.
fn explain_momentum(momentum: f64) -> &'static str {
    match momentum == 1.0 {
        true => {
            ": PyTorch's exporters write 1 for momentum=None, the mean over all batches, which is not supported; export it with a momentum, or keep the statistics as they are (--keep-statistics)"
        }
        false => "",
    }
}

fn format_choices(numbers: &[usize]) -> String {
    let (last, rest) = match numbers.split_last() {
        Some((last, rest)) if !rest.is_empty() => (last, rest),
        _ => return numbers.first().map_or_else(String::new, usize::to_string),
    };
    format!("{} or {last}", rest.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))
}
