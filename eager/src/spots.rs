//! Where tensors lie: types and layouts, each kept once and known by a number.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use graphc_ir::mesh::{DeviceKind, Placement};
use graphc_ir::plan::Layout;

/// A type in a layout on a placement.
#[derive(Debug)]
pub(crate) struct Spot {
    /// Of this context: equal numbers are equal layouts.
    pub(crate) number: u32,
    pub(crate) layout: Layout,
    pub(crate) placement: Placement,
}

impl fmt::Display for Spot {
    /// `f32[4, 4] S(0) on cpu [0, 1] as 2`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} on {}", self.layout.ty(), self.layout.sbp, self.placement)
    }
}

/// All that were met so far: as many as a program has types in layouts.
#[derive(Debug, Default)]
pub(crate) struct Spots(HashMap<Layout, Arc<Spot>>);

impl Spots {
    pub(crate) fn of(&mut self, layout: &Layout) -> Arc<Spot> {
        if let Some(known) = self.0.get(layout) {
            return Arc::clone(known);
        }
        let placement = Placement {
            device: DeviceKind::Cpu,
            ranks: layout.ranks.clone(),
            hierarchy: layout.hierarchy.clone(),
        };
        let number = self.0.len() as u32;
        let spot = Arc::new(Spot { number, layout: layout.clone(), placement });
        self.0.insert(layout.clone(), Arc::clone(&spot));
        spot
    }
}
