//! The errors of the planner.

use graphc_ir::graph::Source;
use graphc_ir::mesh::format_mesh;
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::format_bytes;

/// The error of the planner.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlannerError {
    /// A pin that no signature fulfils.
    #[error(
        "`{tensor}` of shape {shape:?} cannot be pinned to ({pin}) on a mesh of {}: {}",
        format_mesh(.mesh), format_choices(.candidates)
    )]
    Pin {
        /// The tensor.
        tensor: String,
        /// The layout asked for.
        pin: NdSbp,
        /// The tensor's shape.
        shape: Vec<usize>,
        /// The extents of the mesh axes.
        mesh: Vec<usize>,
        /// The layouts that it may have.
        candidates: Vec<NdSbp>,
    },
    /// An op that no signature is left for.
    #[error(
        "{op} ({place}) has no layout on a mesh of {} that splits microbatches as decided",
        format_mesh(.mesh)
    )]
    NoSignature {
        /// The op.
        op: &'static str,
        /// The place where the user wrote it.
        place: Source,
        /// The extents of the mesh axes.
        mesh: Vec<usize>,
    },
    /// An op with more signatures than can be planned.
    #[error(
        "{op} ({place}) has more than {most} signatures on a mesh of {}: with fewer axes there are fewer, e.g. 4x4 in \
         the place of 2x2x2x2",
        format_mesh(.mesh)
    )]
    Signatures {
        /// The op.
        op: &'static str,
        /// The place where the user wrote it.
        place: Source,
        /// The extents of the mesh axes.
        mesh: Vec<usize>,
        /// Signatures that an op may have.
        most: usize,
    },
    /// Attention whose heads the axis that splits the model cannot share.
    #[error(
        "{op} ({place}): {ranks} ranks, the innermost axis of {}, {cause}",
        format_mesh(.mesh)
    )]
    Heads {
        /// The op.
        op: &'static str,
        /// The place where the user wrote it.
        place: Source,
        /// The reason why they cannot.
        cause: Box<HeadsReason>,
        /// Ranks that share them.
        ranks: usize,
        /// The extents of the mesh axes.
        mesh: Vec<usize>,
    },
    /// A strategy that names more axes than a mesh has.
    #[error(
        "the strategy {strategy} names {count} axes, and the ranks of a stage lie on a mesh of {}, {}: give a mesh that leaves each stage {count} \
         axes, or one name for all",
        .mesh.len(), format_mesh(.mesh)
    )]
    Axes {
        /// The strategy.
        strategy: String,
        /// The axes that it names.
        count: usize,
        /// The extents of the mesh axes.
        mesh: Vec<usize>,
    },
    /// Too little memory.
    #[error(
        "rank {rank} (stage {stage}) needs {} of memory but has {}, {} too little, even with the leanest plan found{}: \
         take more ranks or microbatches, or raise the limit; the largest tensors are {}",
        format_bytes(*.needed), format_bytes(*.limit), format_bytes(.needed - .limit), format_proof(*.least), format_tensors(.largest)
    )]
    Memory {
        /// The first rank that is over its memory.
        rank: u32,
        /// Its stage.
        stage: usize,
        /// Bytes at the peak of the plan that needs least.
        needed: u64,
        /// Bytes that it may use.
        limit: u64,
        /// Bytes that every plan needs, if they are proven to be above the limit. As everywhere in the planner, each tensor has memory of its own; if
        /// tensors share memory, as a chain's result and its operand do, a plan needs less.
        least: Option<u64>,
        /// The largest tensors at that peak, at most five.
        largest: Vec<(String, u64)>,
    },
}

graphc_ir::readable_debug!(PlannerError);

/// The reason why ranks cannot share the heads of attention.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HeadsReason {
    /// There are so many.
    #[error(
        "do not divide {heads} heads of attention: the strategy megatron needs an innermost axis that divides them"
    )]
    Heads {
        /// Number of heads.
        heads: usize,
    },
    /// There are so many of keys and values.
    #[error(
        "do not divide {keys} heads of keys and values, which {heads} heads of queries share: the strategy megatron needs an \
         innermost axis that divides both"
    )]
    Keys {
        /// Heads of keys and values.
        keys: usize,
        /// Heads of queries.
        heads: usize,
    },
    /// A stage begins with heads that are not split.
    #[error(
        "cannot share the {heads} heads of attention, as `{tensor}` comes whole from another stage, which ends inside this \
         layer: the strategy megatron needs stages that end between layers; take fewer stages, or say where they end"
    )]
    Stage {
        /// Number of heads.
        heads: usize,
        /// The tensor that crosses.
        tensor: String,
    },
    /// An operand is not split along heads.
    #[error(
        "cannot share the {heads} heads of attention, as `{tensor}` is not made by heads: the strategy megatron needs \
         queries, keys and values that are"
    )]
    Whole {
        /// Number of heads.
        heads: usize,
        /// The operand.
        tensor: String,
    },
}

fn format_choices(candidates: &[NdSbp]) -> String {
    if candidates.is_empty() {
        return "it has no layout there".into();
    }
    const MOST: usize = 9;
    let names: Vec<String> = candidates.iter().take(MOST).map(|sbp| format!("({sbp})")).collect();
    let more = match candidates.len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("it can be {}{more}", names.join(", "))
}

fn format_tensors(largest: &[(String, u64)]) -> String {
    let name = |(name, size): &(String, u64)| format!("`{name}` {}", format_bytes(*size));
    largest.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn format_proof(least: Option<u64>) -> String {
    least.map_or(String::new(), |least| {
        format!(
            " (no plan needs less than {} where each tensor has memory of its own)",
            format_bytes(least)
        )
    })
}
