//! The part of its operand that a rank keeps where a layout changes without communication: a slice, or a mask.

use graphc_ir::sbp::{ReduceKind, Sbp};
use graphc_ir::shard::Rect;
use graphc_plan::Layout;

use super::call::Unprepared;
use super::port::Port;
use crate::rectangles::masked_kind;

/// A slice or a mask, worked out for one rank.
pub(super) struct LocalBoxing {
    /// The reduction whose identity the result holds, where that is this rank's part of a partial layout.
    pub(super) identity: Option<ReduceKind>,
    /// The rectangles that are held and those kept of them, per microbatch or one for all.
    pub(super) rects: Vec<(Rect, Rect)>,
}

impl LocalBoxing {
    /// # Errors
    /// Where a rank is to keep what it does not hold.
    pub(super) fn new(
        (operands, results): (&[Port], &[Port]),
        (from, to): (&Layout, &Layout),
        rank: u32,
    ) -> Result<Self, Unprepared> {
        let unfit = |reason| Err(Unprepared::Registers(format!("cannot be local: {reason}")));
        let ([operand], [result]) = (operands, results) else {
            return unfit("it has several operands or results".to_owned());
        };
        let mut rects = Vec::new();
        for microbatch in 0..operand.count_variants().max(result.count_variants()) {
            let (held, kept) = (operand.rect(microbatch), result.rect(microbatch));
            let inside = kept.elements() == 0 || held.intersect(kept).as_ref() == Some(kept);
            if !inside {
                return unfit(format!("rank {rank} keeps {kept:?} of {held:?}"));
            }
            // An empty part may lie outside of what is held.
            let held = if kept.elements() == 0 { kept } else { held };
            rects.push((held.clone(), kept.clone()));
        }
        // Axes that are partial before as well keep each rank's value.
        let fresh = from.sbp.0.iter().zip(&to.sbp.0).map(|(before, after)| match before {
            Sbp::Partial(_) => Sbp::Broadcast,
            _ => *after,
        });
        let mut made = to.clone();
        made.sbp.0 = fresh.collect();
        Ok(Self { identity: masked_kind(&made, rank), rects })
    }
}
