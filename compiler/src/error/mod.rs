//! The errors of a compilation: those of all its parts, as one type.

use graphc_ir::types::format_bytes;
use graphc_plan::check::PlanErrors;

use crate::lower::LowerError;
use crate::null_device::NullDeviceError;
use crate::passes::error::PassError;
use crate::planner::PlannerError;

mod conflict;

pub use conflict::{Asked, Conflict};

/// The error of a compilation.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The graph and the options do not fit.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// A pin cannot be fulfilled, or the memory does not suffice.
    #[error(transparent)]
    Plan(#[from] PlannerError),
    /// The seconds of a step on these machines are no number.
    #[error(
        "the plan found takes {seconds} seconds a step: a fault of the compiler's, or of the cluster's figures"
    )]
    NotFinite {
        /// The seconds that the planner reports.
        seconds: f64,
    },
    /// Passes contradict each other.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The plan would hang.
    #[error(transparent)]
    NullDevice(#[from] NullDeviceError),
    /// The plan does not hold together: a fault of the compiler's.
    #[error("the compiler made a plan that does not hold together:\n{0}")]
    Invariants(#[from] PlanErrors),
    /// The arena of a rank does not fit in its memory.
    #[error(
        "rank {rank} needs {} of memory but has {}, {} too little: take more ranks or microbatches, or raise the limit; its \
         largest tensors are {}",
        format_bytes(*.needed), format_bytes(*.limit), format_bytes(.needed - .limit), format_tensors(.largest)
    )]
    Memory {
        /// The rank.
        rank: usize,
        /// Bytes of its arena.
        needed: u64,
        /// Bytes that it may use.
        limit: u64,
        /// The largest registers, with all their slots.
        largest: Vec<(String, u64)>,
    },
    /// No cut into stages fits.
    #[error(
        "no number of stages that divides the first mesh axis and no number of microbatches that divides the batch has a cut of the {layers} layers that fits the memory of its ranks: give each more memory, take more ranks or a smaller batch, or, if that is not asked for yet, `--recompute auto`{}",
        .cause.as_ref().map_or(String::new(), |cause| format!(" ({cause})"))
    )]
    NoPipeline {
        /// Layers that the graph has.
        layers: usize,
        /// The reason why the layers cannot be priced.
        cause: Option<Box<CompileError>>,
    },
    /// Pins, the strategy and the limit of memory cannot all be kept.
    #[error("{cause}\n{conflict}")]
    Conflict {
        /// The wishes that conflict.
        conflict: Conflict,
        /// The error when only these wishes are asked for.
        cause: Box<CompileError>,
    },
}

graphc_ir::readable_debug!(CompileError);

impl CompileError {
    /// Whether more memory would help.
    pub fn is_memory(&self) -> bool {
        match self {
            Self::Memory { .. } | Self::Plan(PlannerError::Memory { .. }) => true,
            Self::Conflict { cause, .. } => cause.is_memory(),
            _ => false,
        }
    }

    /// Returns the error that reports the smaller need of memory, or `self` if one of the two is not about memory.
    #[must_use]
    pub fn leaner(self, other: Self) -> Self {
        match (self.memory_needed(), other.memory_needed()) {
            (Some(own), Some(others)) if others < own => other,
            _ => self,
        }
    }

    /// Returns the error that reports the smaller need of memory, of this one and an earlier one, if there is one.
    #[must_use]
    pub(crate) fn or_leaner(self, known: Option<Self>) -> Self {
        match known {
            Some(known) => known.leaner(self),
            None => self,
        }
    }

    /// Lowers the reported limit of a rank's memory to `bytes`, if it is higher.
    #[must_use]
    pub(crate) fn cap_limit(mut self, bytes: u64) -> Self {
        if let Self::Memory { limit, .. } | Self::Plan(PlannerError::Memory { limit, .. }) =
            &mut self
        {
            *limit = bytes.min(*limit);
        }
        self
    }

    /// Returns the bytes that the leanest plan found needs on its busiest rank, if the error is that this is too much.
    pub(crate) fn memory_needed(&self) -> Option<u64> {
        match self {
            Self::Memory { needed, .. } | Self::Plan(PlannerError::Memory { needed, .. }) => {
                Some(*needed)
            }
            Self::Conflict { cause, .. } => cause.memory_needed(),
            _ => None,
        }
    }

    /// Returns the bytes below which the planner has proven that no plan goes, if the error is about memory and there is a proof.
    pub(crate) fn memory_proven(&self) -> Option<u64> {
        match self {
            Self::Plan(PlannerError::Memory { least, .. }) => *least,
            Self::Conflict { cause, .. } => cause.memory_proven(),
            _ => None,
        }
    }
}

fn format_tensors(largest: &[(String, u64)]) -> String {
    let name = |(name, bytes): &(String, u64)| format!("`{name}` {}", format_bytes(*bytes));
    largest.iter().map(name).collect::<Vec<_>>().join(", ")
}
