//! The wishes of a user that cannot be had together.

use std::fmt;

use graphc_ir::ids::ValueId;
use graphc_ir::plan::{Pin, Strategy};
use graphc_ir::sbp::NdSbp;

use crate::planner::format_bytes;

/// Something that the user asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// A pin among the options.
    Pin(Pin),
    /// A pin in the graph.
    GraphPin {
        /// The value in the user's graph.
        value: ValueId,
        /// Its name.
        tensor: String,
        /// The layout.
        sbp: NdSbp,
    },
    /// A strategy other than `auto`.
    Strategy(Strategy),
    /// The limit of memory.
    Memory {
        /// Bytes that a rank may use.
        limit: u64,
        /// Whether it is the device's, for want of another.
        device: bool,
        /// Bytes that do for all that is asked for, where a plan with so much is known.
        enough: Option<u64>,
        /// Bytes that no plan with the others goes below, where that is proven to be more.
        least: Option<u64>,
    },
}

/// Wishes that cannot be had together, though they can without any one of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict {
    /// The wishes, at least two.
    pub members: Vec<Asked>,
    /// Whether no smaller set conflicts; otherwise none of these can be left out, but others may be fewer.
    pub smallest: bool,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let proof =
            if self.smallest { "no fewer conflict" } else { "there may be fewer that conflict" };
        write!(
            f,
            "these cannot be had together, and without any one of them there is a plan ({proof}):"
        )?;
        self.members.iter().try_for_each(|member| write!(f, "\n  {member}"))
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.describe_wish(), self.advice())
    }
}

impl Asked {
    /// The wish in words, e.g. the pin `w=S(0)`.
    pub fn describe_wish(&self) -> String {
        match self {
            Self::Pin(Pin { pattern, sbp }) => format!("the pin `{pattern}={sbp}`"),
            Self::GraphPin { tensor, sbp, .. } => {
                format!("the graph's pin of `{tensor}` to ({sbp})")
            }
            Self::Strategy(strategy) => {
                format!("the strategy {}", strategy.name())
            }
            Self::Memory { limit, device: true, .. } => {
                format!("the device's memory of {}", format_bytes(*limit))
            }
            Self::Memory { limit, device: false, .. } => {
                format!("the limit of memory of {}", format_bytes(*limit))
            }
        }
    }

    /// The advice what to ask for instead.
    pub fn advice(&self) -> String {
        match self {
            Self::Pin(_) | Self::GraphPin { .. } => {
                "leave it out, or ask for another layout".into()
            }
            Self::Strategy(_) => "take `auto`, or another that keeps less on each rank".into(),
            Self::Memory { enough, least, .. } => more_memory(*enough, *least),
        }
    }
}

/// Bytes that would do, and bytes that no plan goes below, as far as they are known.
fn more_memory(enough: Option<u64>, least: Option<u64>) -> String {
    let wanted = match (enough, least) {
        (Some(enough), _) => format!("{enough} bytes ({}) would do", format_bytes(enough)),
        (None, Some(_)) => "raise it".into(),
        (None, None) => "raise it, or take more ranks or microbatches".into(),
    };
    let proof = least.map(|least| format!(", less than {} cannot", format_bytes(least)));
    wanted + &proof.unwrap_or_default()
}
