//! Collectives in modelled time. They begin when the last class of the group has come.

use std::collections::BTreeMap;
use std::rc::Rc;

use graphc_ir::ids::{LayoutId, RegisterId};
use graphc_plan::{Actor, BoxingKind, Layout, Plan, Program};

use super::classes::Classes;
use crate::cluster::{Link, find_link};
use crate::cost::collective_seconds;

/// The ranks that take part in a collective.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Party {
    /// Their classes, in ascending order, each once.
    pub classes: Vec<usize>,
    /// The number of ranks.
    pub ranks: usize,
    /// The link between them.
    pub link: Link,
}

/// The key of a meeting: sequence number, first class, step, microbatch.
pub(super) type Meeting = (u32, usize, u64, u32);

/// A class that has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Arrival {
    /// The class.
    pub class: usize,
    /// Its stream.
    pub stream: usize,
    /// The time when it came.
    pub time: f64,
    /// The bytes that it brings or takes away, whichever is more.
    pub bytes: u64,
}

/// The classes that wait in collectives.
#[derive(Default)]
pub(super) struct Rendezvous {
    open: BTreeMap<Meeting, Vec<Arrival>>,
    /// The parties, by class, layout of the first input and axis.
    parties: BTreeMap<(usize, Option<LayoutId>, usize), Rc<Party>>,
}

/// A collective to which all classes have come.
pub(super) struct Met {
    /// The time when it begins.
    pub start: f64,
    /// The time when it ends.
    pub end: f64,
    /// The classes that take part.
    pub arrivals: Vec<Arrival>,
}

impl Rendezvous {
    /// Records that a class comes, and returns the collective if all of its party have come.
    pub(super) fn arrive(
        &mut self,
        plan: &Plan,
        meeting: Meeting,
        party: &Party,
        kind: BoxingKind,
        arrival: Arrival,
    ) -> Option<Met> {
        let arrivals = self.open.entry(meeting).or_default();
        arrivals.push(arrival);
        if arrivals.len() < party.classes.len() {
            return None;
        }
        let arrivals = self.open.remove(&meeting)?;
        let start = arrivals.iter().map(|arrival| arrival.time).fold(0.0, f64::max);
        let bytes = arrivals.iter().map(|arrival| arrival.bytes).max().unwrap_or(0);
        let end = start + meeting_seconds(plan, party, kind, bytes);
        Some(Met { start, end, arrivals })
    }

    /// Returns the classes that have come to a meeting that has not begun.
    pub(super) fn present_classes(&self, meeting: Meeting) -> Vec<usize> {
        self.open.get(&meeting).into_iter().flatten().map(|arrival| arrival.class).collect()
    }

    /// Finds the classes that a class meets in a collective, by the layout of its first input.
    pub(super) fn find_party(
        &mut self,
        plan: &Plan,
        classes: &Classes,
        class: usize,
        (program, actor, axis): (&Program, &Actor, usize),
    ) -> Rc<Party> {
        let layout = actor.inputs.first().map(|input| program.registers[input.index()].layout);
        let party = self.parties.entry((class, layout, axis)).or_insert_with(|| {
            let layout = layout.map(|id| &plan.layouts[id.index()]);
            let layout = layout.filter(|layout| axis < layout.hierarchy.len());
            let rank = classes.first[class];
            let group =
                layout.and_then(|layout| layout.axis_group(rank, axis)).unwrap_or(vec![rank]);
            let mut met: Vec<usize> = group.iter().map(|&rank| classes.of[rank as usize]).collect();
            met.sort_unstable();
            met.dedup();
            let link = find_link(&plan.cluster, &group, Some(axis));
            Rc::new(Party { classes: met, ranks: group.len(), link })
        });
        Rc::clone(party)
    }
}

/// The bytes of a single number, as the scale of a tensor is.
const ONE_NUMBER: u64 = 4;

/// Returns the seconds of a collective after all have come.
pub(super) fn meeting_seconds(plan: &Plan, party: &Party, kind: BoxingKind, bytes: u64) -> f64 {
    let is_scale = kind == BoxingKind::AllReduce && bytes <= ONE_NUMBER;
    if is_scale && plan.cluster.framework.local_scales {
        return 0.0;
    }
    collective_seconds(&plan.cluster, &party.link, kind, bytes as f64)
}

/// Returns the bytes that a collective moves on a rank: for each tensor the larger of input and output.
pub(super) fn moved_bytes(layouts: &[Layout], program: &Program, actor: &Actor) -> u64 {
    let size = |id: &RegisterId| {
        let register = &program.registers[id.index()];
        let elements: usize = register.shape.iter().product();
        (elements * layouts[register.layout.index()].dtype.size()) as u64
    };
    actor.inputs.iter().zip(&actor.outputs).map(|(i, o)| size(i).max(size(o))).sum()
}
