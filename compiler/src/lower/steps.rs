//! The way of tasks from the list that `collect` makes to the order in which ranks act.
//!
//! The table [`STEPS`] gives each step its name, the reason for its place, and its function. Between the steps, tasks are sorted: each step
//! that changes what waits for what sorts them again.

use graphc_ir::enter_span;
use graphc_ir::mesh::DeviceKind;
use graphc_plan::Cluster;

use super::fuse::{buckets, elementwise};
use super::order::{background, before_updates, casts, early_updates, second_stream};
use super::tasks::segments;
use super::tasks::task_graph::TaskGraph;
use super::{LowerError, LoweringOptions, Streams};

/// What steps may look at beside the tasks.
#[derive(Clone, Copy)]
pub(super) struct StepContext<'a> {
    /// The machines.
    pub cluster: &'a Cluster,
    /// The options of lowering.
    pub how: LoweringOptions,
}

impl StepContext<'_> {
    fn has_one_stream(&self) -> bool {
        self.how.streams == Streams::One
    }

    fn is_on_cards(&self) -> bool {
        self.cluster.device.kind == DeviceKind::Cuda
    }
}

/// A step.
struct LoweringStep {
    name: &'static str,
    /// The reason for its position in the order.
    why: &'static str,
    /// The plans that it acts on.
    applies: fn(&StepContext<'_>) -> bool,
    run: fn(&mut TaskGraph, &StepContext<'_>) -> Result<(), LowerError>,
}

/// All steps in their order.
const STEPS: &[LoweringStep] = &[
    LoweringStep {
        name: "segments",
        why: "what runs once and what runs for each microbatch never change places: all that follows sorts within them",
        applies: |_| true,
        run: |tasks, _| segments::assign_segments(tasks),
    },
    LoweringStep {
        name: "sort",
        why: "every later step moves tasks from an order in which each comes behind what it waits for",
        applies: |_| true,
        run: |tasks, _| tasks.sort_tasks(),
    },
    LoweringStep {
        name: "elementwise",
        why: "before anything is moved: chains are found where producers and readers stand side by side",
        applies: |_| true,
        run: |tasks, cx| elementwise::fuse_elementwise(tasks, cx.cluster),
    },
    LoweringStep {
        name: "early scatters",
        why: "before buckets, which join what stands together: with one stream whole gradients are not to wait for the update phase",
        applies: |cx| cx.has_one_stream(),
        run: |tasks, _| {
            background::scatter_early(tasks);
            Ok(())
        },
    },
    LoweringStep {
        name: "background",
        why: "before buckets, of which each is of one stream",
        applies: |cx| !cx.has_one_stream(),
        run: |tasks, _| {
            background::mark_background(tasks);
            Ok(())
        },
    },
    LoweringStep {
        name: "buckets",
        why: "behind what says which collectives travel together, and before single tasks are moved for what they wait for",
        applies: |cx| cx.cluster.framework.buckets,
        run: |tasks, cx| buckets::fuse_collectives(tasks, !cx.has_one_stream()),
    },
    LoweringStep {
        name: "before updates",
        why: "behind buckets, whose collectives updates wait for",
        applies: |_| true,
        run: |tasks, _| before_updates::move_ahead(tasks),
    },
    LoweringStep {
        name: "early updates",
        why: "behind the step before, which leaves nothing but updates in their phase: these go where their gradients are in the caches",
        applies: |cx| !cx.is_on_cards(),
        run: |tasks, _| early_updates::move_up(tasks),
    },
    LoweringStep {
        name: "casts",
        why: "at the end of what moves tasks of the first stream: a card casts small tensors in one launch where they stand side by side",
        applies: |cx| cx.is_on_cards(),
        run: |tasks, _| casts::put_together(tasks),
    },
    LoweringStep {
        name: "second stream",
        why: "when the first stream's order stands: what is due soonest by it goes first",
        applies: |cx| !cx.has_one_stream(),
        run: |tasks, cx| second_stream::reorder_second_stream(tasks, cx.how.ahead),
    },
    LoweringStep {
        name: "numbers of communication",
        why: "last: all ranks count exchanges in the final order",
        applies: |_| true,
        run: |tasks, _| {
            tasks.number_communication();
            Ok(())
        },
    },
];

/// Takes tasks through all steps that apply.
///
/// # Errors
/// Returns an error if tasks wait for each other in a circle.
pub(super) fn run_steps(tasks: &mut TaskGraph, cx: &StepContext<'_>) -> Result<(), LowerError> {
    for step in STEPS.iter().filter(|step| (step.applies)(cx)) {
        let _span = enter_span!("lowering step", name = step.name, why = step.why);
        (step.run)(tasks, cx)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn steps_have_names_of_their_own_and_reasons() {
        let names: BTreeSet<&str> = STEPS.iter().map(|step| step.name).collect();
        assert_eq!(names.len(), STEPS.len());
        assert!(STEPS.iter().all(|step| !step.why.is_empty()));
    }
}
