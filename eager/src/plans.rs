//! Plans of operations that were called, kept for calls to come.
//!
//! All ranks make them, by operation and layouts, which takes about a millisecond. They see the same calls, so they keep the same plans. Numbers are
//! operands like others, and not part of a plan.

use std::collections::HashMap;
use std::sync::Arc;

use graphc_runtime::Routine;

use crate::operation::EagerOperation;
use crate::spots::Spot;

/// The number of plans that are kept. If there are more, the plan that was not called for longest is dropped. All ranks keep the same.
const MOST_PLANS: usize = 256;

/// Plans by operation and layouts of operands.
#[derive(Default)]
pub(crate) struct Plans {
    pub(crate) by_call: HashMap<CallKey, PreparedOperation>,
    pub(crate) calls: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallKey {
    /// The operation.
    pub(crate) operation: EagerOperation,
    /// The numbers of the operands' spots.
    pub(crate) operands: [Option<u64>; 2],
}

/// An operation that has a plan and can be executed.
pub(crate) struct PreparedOperation {
    pub(crate) routine: Routine,
    /// The spots of the operands. As long as the plan holds them, their numbers in its key stay theirs.
    pub(crate) _operands: Vec<Arc<Spot>>,
    pub(crate) result: Arc<Spot>,
    pub(crate) ranks: Vec<u32>,
    pub(crate) text: String,
    pub(crate) digest: u64,
    /// The number of the last call of this plan.
    pub(crate) called: u64,
}

impl Plans {
    /// Drops the plan that was not called for longest, if there are more than are kept.
    pub(crate) fn evict_oldest(&mut self) {
        if self.by_call.len() <= MOST_PLANS {
            return;
        }
        let oldest = self.by_call.iter().min_by_key(|(_, plan)| plan.called);
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.by_call.remove(&key);
        }
    }
}
