//! Prices boxing that is fused: collectives of the update phase travel in buckets, so tensors share their latency.
//!
//! The update phase boxes the gradients that updates take, and the variables that go back to their layout. Lowering puts those that are reduced alike
//! into one message of up to [`BUCKET_BYTES`] (`lower/fuse/buckets.rs`). Each tensor pays its bytes. Of the latency it pays the share of a bucket that it
//! fills, but no less than if all variables of its mesh shared one bucket. Without this rule plans would avoid many small gradients that together
//! cost one message.

use graphc_ir::ids::NodeId;
use graphc_ir::mesh::Placement;

use crate::decisions::{Decisions, Phase};

/// The least bytes of a gradient that is scattered as soon as it is made, so that it is not kept whole until the updates. Smaller gradients wait and
/// share a message.
pub(crate) const SCATTERED_BYTES: usize = 4 << 20;

/// The approximate bytes of a rank's inputs that travel in one message.
pub(crate) const BUCKET_BYTES: usize = 64 << 20;

/// The number of tensors that may share a bucket: the variables of a mesh that are updated in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fusion {
    tensors: usize,
}

impl Fusion {
    /// Counts the variables that are updated on a mesh.
    pub(crate) fn for_placement(decisions: &Decisions, placement: &Placement) -> Self {
        let here = |node: NodeId| decisions.staging.placement[node.index()] == *placement;
        let nodes = decisions.graph().iter().filter(|(node, _)| here(*node));
        let tensors = nodes.map(|(_, node)| node.op.operation().updates().len().min(1)).sum();
        Self { tensors }
    }

    /// Returns the seconds of a route whose latency is shared. Of its `seconds`, `latency` do not depend on the bytes; a rank has `bytes` of the
    /// tensor.
    pub(crate) fn discount_latency(self, seconds: f64, latency: f64, bytes: u64) -> f64 {
        let full = bytes as f64 / BUCKET_BYTES as f64;
        let share = full.max(1.0 / self.tensors.max(1) as f64).min(1.0);
        seconds - latency * (1.0 - share)
    }
}

/// Whether a tensor that is boxed once a step (`per_step`) for these readers is boxed in the update phase.
pub(crate) fn is_fused(decisions: &Decisions, per_step: bool, readers: &[NodeId]) -> bool {
    let updates = |&node: &NodeId| decisions.training.phases[node.index()] == Phase::Update;
    per_step && !readers.is_empty() && readers.iter().all(updates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_shared_by_what_fits_in_a_bucket() {
        let fusion = Fusion { tensors: 10 };
        let of = |bytes| fusion.discount_latency(3.0, 2.0, bytes);
        assert_eq!(of(BUCKET_BYTES as u64), 3.0, "a bucket of its own");
        assert_eq!(of(BUCKET_BYTES as u64 / 2), 2.0, "half of a bucket");
        assert_eq!(of(8), 1.2, "all variables share one");
        assert_eq!(Fusion { tensors: 0 }.discount_latency(3.0, 2.0, 8), 3.0);
    }
}
