//! Global tensors, each as one rank sees it.
//!
//! Every rank has the whole of what is known of a tensor (type, layout, placement) and one shard or none. So all ranks
//! alike find what does not fit, before anything is sent, and later calls may succeed. `ShardedTensor` of the runtime is
//! another thing: the shards of all ranks in one process, for the edges of a session. Operations stand in `methods` and
//! `arithmetic`.

use std::sync::Arc;

use graphc_ir::mesh::Placement;
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::DType;
use graphc_runtime::HostTensor;

use crate::context::Eager;
use crate::spots::Spot;

/// A tensor that lies on the ranks of a placement in some layout, seen from one rank: which holds its shard, or nothing where it
/// is not of the placement. Clones share the shard.
///
/// Operations take operands in any layouts of one placement and are called by all ranks. Where layouts do not go together
/// operands are boxed, as is cheapest. What an operation makes of partial sums is whole.
#[derive(Clone)]
pub struct GlobalTensor {
    eager: Eager,
    spot: Arc<Spot>,
    local: Option<HostTensor>,
}

/// # What it is
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

    /// The extent of each dim of the whole tensor.
    pub fn shape(&self) -> &[usize] {
        &self.spot.layout.shape
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.spot.layout.dtype
    }

    /// The ranks that it lies on, in their mesh.
    pub fn placement(&self) -> &Placement {
        &self.spot.placement
    }

    /// How it lies over the axes of the mesh.
    pub fn sbp(&self) -> &NdSbp {
        &self.spot.layout.sbp
    }

    /// This rank's shard; `None` where the rank is not of the placement. Nothing is communicated.
    pub fn to_local(&self) -> Option<&HostTensor> {
        self.local.as_ref()
    }
}
