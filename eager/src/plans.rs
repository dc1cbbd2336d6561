//! Plans of operations that were called, kept for calls to come.
//!
//! All ranks make them, by operation and layouts, which takes about a millisecond. They see the same calls, so they keep
//! the same plans. Numbers are operands like others, and not part of a plan.

use std::collections::HashMap;
use std::sync::Arc;

use graphc_runtime::Routine;

use crate::operation::EagerOperation;
use crate::spots::Spot;

/// Plans that are kept: beyond, the one that was not called for longest goes. All ranks keep the same.
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

/// An operation that can be executed.
pub(crate) struct PreparedOperation {
    pub(crate) routine: Routine,
    /// The spots of the operands: their numbers mean this as long as the plan is kept.
    pub(crate) _operands: Vec<Arc<Spot>>,
    pub(crate) result: Arc<Spot>,
    pub(crate) ranks: Vec<u32>,
    pub(crate) text: String,
    pub(crate) digest: u64,
    /// The number of the last call.
    pub(crate) called: u64,
}

impl Plans {
    /// Makes room where there are more than are kept.
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
