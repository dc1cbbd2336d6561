//! What a user asks for that cannot be had together.

use std::fmt;

use graphc_ir::ids::ValueId;
use graphc_ir::plan::{Pin, Strategy};
use graphc_ir::sbp::NdSbp;

use crate::planner::bytes;

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

/// What cannot be had together, though it can without any one of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict {
    /// At least two.
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
        match self {
            Self::Pin(Pin { pattern, sbp }) => {
                write!(f, "the pin `{pattern}={sbp}`: leave it out, or ask for another layout")
            }
            Self::GraphPin { tensor, sbp, .. } => {
                write!(
                    f,
                    "the graph's pin of `{tensor}` to ({sbp}): leave it out, or ask for another layout"
                )
            }
            Self::Strategy(strategy) => {
                let name = format!("{strategy:?}").to_lowercase();
                write!(
                    f,
                    "the strategy {name}: take `auto`, or another that keeps less on each rank"
                )
            }
            Self::Memory { limit, device, enough, least } => {
                let whose = if *device { "the device's memory" } else { "the limit of memory" };
                write!(f, "{whose} of {}: ", bytes(*limit))?;
                match (enough, least) {
                    (Some(enough), _) => write!(f, "{enough} bytes ({}) would do", bytes(*enough))?,
                    (None, Some(_)) => write!(f, "raise it")?,
                    (None, None) => write!(f, "raise it, or take more ranks or microbatches")?,
                }
                least.map_or(Ok(()), |least| write!(f, ", less than {} cannot", bytes(least)))
            }
        }
    }
}
