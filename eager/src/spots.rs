//! Spots: tensor types in layouts on placements. Each exists once, and has a number for as long as a tensor or a plan holds it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use graphc_ir::mesh::{DeviceKind, Placement};
use graphc_plan::Layout;

/// A tensor type in a layout on a placement.
#[derive(Debug)]
pub(crate) struct Spot {
    /// The number of this spot in its context: equal numbers are equal layouts.
    pub(crate) number: u64,
    pub(crate) layout: Layout,
    pub(crate) placement: Placement,
}

impl fmt::Display for Spot {
    /// Writes text such as `f32[4, 4] S(0) on cpu [0, 1] as 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} on {}", self.layout.ty(), self.layout.sbp, self.placement)
    }
}

/// The spots that tensors or plans hold. Spots that nothing holds any more may also be listed, until they are forgotten.
#[derive(Debug, Default)]
pub(crate) struct Spots {
    known: HashMap<Layout, Weak<Spot>>,
    /// The number of spots that were ever made; no spot gets the number of another.
    met: u64,
    /// The number of spots that may be listed before unused ones are forgotten.
    room: usize,
}

impl Spots {
    pub(crate) fn find_spot(&mut self, layout: &Layout) -> Arc<Spot> {
        if let Some(known) = self.known.get(layout).and_then(Weak::upgrade) {
            return known;
        }
        self.forget_unused();
        let placement = Placement {
            device: DeviceKind::Cpu,
            ranks: layout.ranks.clone(),
            hierarchy: layout.hierarchy.clone(),
        };
        let spot = Arc::new(Spot { number: self.met, layout: layout.clone(), placement });
        self.met += 1;
        self.known.insert(layout.clone(), Arc::downgrade(&spot));
        spot
    }

    /// Forgets the spots that nothing holds any more, once more than `room` are listed. Then there is room for twice as many as are left, and a few.
    fn forget_unused(&mut self) {
        const FEW: usize = 64;
        if self.known.len() > self.room {
            self.known.retain(|_, spot| spot.strong_count() > 0);
            self.room = 2 * self.known.len() + FEW;
        }
    }
}
