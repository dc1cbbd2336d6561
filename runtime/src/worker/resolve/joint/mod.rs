//! Actors that are one launch with their neighbours, where the rank's device has such launches (see `neighbours`).

mod kept;
mod products;
mod updates;

use std::collections::HashMap;

use graphc_ir::op::Op;
use graphc_plan::{Action, Actor};

use super::super::actor::PreparedWork;
use super::super::neighbours::{ActorPairs, Orders, find_runs};
use super::ActorResolver;
use crate::error::RuntimeError;
use products::JoinedProducts;

impl ActorResolver<'_> {
    /// Joins actors that are one launch with others, and returns their work: of one of them the launch of all.
    pub(super) fn join_actors(
        &self,
        orders: &Orders,
    ) -> Result<HashMap<u32, PreparedWork>, RuntimeError> {
        let mut products = JoinedProducts::new(self, ActorPairs::new(self.program));
        products.join_all()?;
        let (mut works, moved) = products.finish()?;
        // Updates read what casts give, so each have runs of their own.
        for casts in [false, true] {
            let joins = |actor: &Actor| match &actor.action {
                Action::Compute { op, .. } => {
                    matches!(op, Op::Cast(_)) == casts && self.device.joinable_tensors(op).is_some()
                }
                _ => false,
            };
            for stream in 0..orders.len() {
                for run in find_runs(self.program, orders, stream, &moved, joins) {
                    self.join_run(&run, &mut works)?;
                }
            }
        }
        Ok(works)
    }

    /// Joins those of a run that are alike.
    fn join_run(
        &self,
        run: &[u32],
        works: &mut HashMap<u32, PreparedWork>,
    ) -> Result<(), RuntimeError> {
        for members in self.group_alike_updates(run)? {
            let launched = members[0].0;
            works.insert(launched, PreparedWork::Kernel(self.join_updates(&members)?));
            let others = members[1..].iter();
            works.extend(others.map(|&(actor, _)| (actor, PreparedWork::Joined(launched))));
        }
        Ok(())
    }
}
