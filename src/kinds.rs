//! Names of kinds of communication.

use graphc_ir::plan::BoxingKind;

/// The name of a kind in a plan's JSON.
pub fn kind_name(kind: BoxingKind) -> &'static str {
    match kind {
        BoxingKind::AllReduce => "all_reduce",
        BoxingKind::ReduceScatter => "reduce_scatter",
        BoxingKind::AllGather => "all_gather",
        BoxingKind::AllToAll => "all_to_all",
        BoxingKind::Slice => "slice",
        BoxingKind::Mask => "mask",
        BoxingKind::SendRecv => "send_recv",
    }
}
