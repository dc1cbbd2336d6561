//! The wishes of a user that cannot be fulfilled together.

use std::fmt;

use graphc_ir::ids::ValueId;
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::format_bytes;
use graphc_plan::{Pin, Strategy};

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
        /// Whether this is the memory of the device, because no other limit was given.
        device: bool,
        /// Bytes with which all wishes can be fulfilled, if a plan with so much is known.
        enough: Option<u64>,
        /// Bytes that every plan that fulfills the other wishes needs, if this is proven to be more than the limit.
        least: Option<u64>,
    },
}

/// Wishes that cannot be fulfilled together. If any one of them is left out, the rest can.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict {
    /// The wishes, at least two.
    pub members: Vec<Asked>,
    /// Whether it is known that no smaller set of wishes conflicts. Otherwise none of these can be left out, but a smaller set of others may
    /// conflict.
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
    /// Returns the wish in words, e.g. the pin `w=S(0)`.
    pub fn describe_wish(&self) -> String {
        match self {
            Self::Pin(Pin { pattern, sbp }) => format!("the pin `{pattern}={sbp}`"),
            Self::GraphPin { tensor, sbp, .. } => {
                format!("the graph's pin of `{tensor}` to ({sbp})")
            }
            Self::Strategy(strategy) => {
                format!("the strategy {strategy}")
            }
            Self::Memory { limit, device: true, .. } => {
                format!("the device's memory of {}", format_bytes(*limit))
            }
            Self::Memory { limit, device: false, .. } => {
                format!("the limit of memory of {}", format_bytes(*limit))
            }
        }
    }

    /// Returns advice what to ask for instead.
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

/// Describes the bytes that would suffice, and the bytes that every plan needs, as far as they are known.
fn more_memory(enough: Option<u64>, least: Option<u64>) -> String {
    let wanted = match (enough, least) {
        (Some(enough), _) => format!("{enough} bytes ({}) would do", format_bytes(enough)),
        (None, Some(_)) => "raise it".into(),
        (None, None) => "raise it, or take more ranks or microbatches".into(),
    };
    let proof = least.map(|least| format!(", less than {} cannot", format_bytes(least)));
    wanted + &proof.unwrap_or_default()
}
