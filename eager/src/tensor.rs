//! Global tensors, each as one rank sees it.
//!
//! Every rank knows the type, layout and placement of each tensor, and holds one shard or none. So all ranks find in the same way what does not fit,
//! before anything is sent, and later calls may succeed. `ShardedTensor` of the runtime is another thing: it has the shards of all ranks in one
//! process, for the inputs and results of a session. Operations are in `methods` and `arithmetic`.

use std::sync::Arc;

use graphc_ir::mesh::Placement;
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::DType;
use graphc_runtime::HostTensor;

use crate::context::Eager;
use crate::spots::Spot;

/// A tensor that lies on the ranks of a placement in some layout, seen from one rank. The rank holds its shard, or nothing if it is not in the
/// placement. Clones share the shard.
///
/// Operations take operands in any layouts of one placement and are called by all ranks. If the layouts do not go together, operands are boxed in the
/// cheapest way. Partial sums that an operation makes are summed up before it returns.
#[derive(Clone)]
pub struct GlobalTensor {
    eager: Eager,
    spot: Arc<Spot>,
    local: Option<HostTensor>,
}

/// # Type, layout and shard
impl GlobalTensor {
    pub(crate) fn new(eager: &Eager, spot: Arc<Spot>, local: Option<HostTensor>) -> Self {
        Self { eager: eager.clone(), spot, local }
    }

    pub(crate) fn eager(&self) -> &Eager {
        &self.eager
    }

    pub(crate) fn spot(&self) -> &Arc<Spot> {
        &self.spot
    }

    pub(crate) fn into_local(self) -> Option<HostTensor> {
        self.local
    }

    /// Returns the extent of each dim of the whole tensor.
    pub fn shape(&self) -> &[usize] {
        &self.spot.layout.shape
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.spot.layout.dtype
    }

    /// Returns the ranks that it lies on, in their mesh.
    pub fn placement(&self) -> &Placement {
        &self.spot.placement
    }

    /// Returns its layout over the axes of the mesh.
    pub fn sbp(&self) -> &NdSbp {
        &self.spot.layout.sbp
    }

    /// Returns this rank's shard, or `None` if the rank is not in the placement. Nothing is communicated.
    pub fn to_local(&self) -> Option<&HostTensor> {
        self.local.as_ref()
    }
}
