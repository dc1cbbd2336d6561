//! What is recomputed and gathered again, as options ask for it.

use graphc_plan::{CompileOptions, Recompute};

use super::count_ranks;
use crate::passes::recompute::Extent;
use crate::passes::regather::Regathered;

/// The recomputation and gathering that the last passes decide, as options ask for it, or as planning has chosen.
#[derive(Clone, Copy)]
pub(super) struct RecomputeRequest<'a> {
    /// The extent of recomputation.
    pub extent: Option<Extent<'a>>,
    /// The tensors that are gathered again.
    pub gathered: Regathered,
}

impl RecomputeRequest<'_> {
    pub(super) fn from_options(options: &CompileOptions) -> Self {
        let extent = match options.recompute {
            Recompute::Full => Some(Extent::Full),
            Recompute::Selective => Some(Extent::Selective),
            Recompute::None | Recompute::Auto => None,
        };
        let gathered = match options.recompute {
            // Where memory decides what is computed again, that has to be known first.
            Recompute::Auto => Regathered::Nothing,
            Recompute::None | Recompute::Selective | Recompute::Full => of_strategy(options),
        };
        Self { extent, gathered }
    }
}

/// Returns the tensors that the strategy gathers again for the backward pass, whatever the memory.
pub(super) fn of_strategy(options: &CompileOptions) -> Regathered {
    // One rank has nothing to gather.
    if count_ranks(options) < 2 {
        Regathered::Nothing
    } else {
        Regathered::from_strategy(options.strategy)
    }
}
