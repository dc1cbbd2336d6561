//! Actors that are one launch with their neighbours, where the rank's device has such launches (see `neighbours`).

mod kept;
mod products;
mod updates;

use std::collections::HashMap;

use graphc_ir::op::Op;
use graphc_ir::plan::{Action, Actor};

use super::super::actor::Work;
use super::super::neighbours::{Orders, Pairs, runs};
use super::Resolver;
use crate::error::RuntimeError;
use products::Products;

impl Resolver<'_> {
    /// The work of actors that are one launch with others: of one of them the launch of all.
    pub(super) fn joint(&self, orders: &Orders) -> Result<HashMap<u32, Work>, RuntimeError> {
        let mut products = Products::new(self, Pairs::new(self.program));
        products.join()?;
        let (mut works, moved) = products.finish()?;
        // Updates read what casts give, so each have runs of their own.
        for casts in [false, true] {
            let joins = |actor: &Actor| match &actor.action {
                Action::Compute { op, .. } => {
                    matches!(op, Op::Cast(_)) == casts && self.device.joins(op).is_some()
                }
                _ => false,
            };
            for stream in 0..orders.len() {
                for run in runs(self.program, orders, stream, &moved, joins) {
                    self.join_run(&run, &mut works)?;
                }
            }
        }
        Ok(works)
    }

    /// Joins those of a run that are alike.
    fn join_run(&self, run: &[u32], works: &mut HashMap<u32, Work>) -> Result<(), RuntimeError> {
        for members in self.alike(run)? {
            let launched = members[0].0;
            works.insert(launched, Work::Kernel(self.join(&members)?));
            let others = members[1..].iter();
            works.extend(others.map(|&(actor, _)| (actor, Work::Joined(launched))));
        }
        Ok(())
    }
}
