//! Finds ranks that behave alike, so that one rank of each class is simulated for all.
//!
//! Two ranks see the same times if they run the same program, and if the ranks that they meet do so too, in turn. So ranks are coloured by program.
//! Colours are then split until ranks of one colour meet alike: in every collective and every channel they meet equally many ranks of each colour,
//! over links of equal constants. This is the coarsest equitable partition (colour refinement, as in Weisfeiler and Leman, 1968).
//!
//! By induction over the order of events, all ranks of a class see the same times, because the start and the duration of an action depend only on the
//! classes that it meets. So the results are exact. Ranks with uneven shards have other programs, and ranks that are farther apart have other links:
//! both become classes of their own.

use std::collections::BTreeMap;

use graphc_plan::{Action, Layout, Plan};

use super::exchanges::{Exchanges, Incoming};
use crate::cluster::find_link;

/// A partition of the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Classes {
    /// The class of each rank; classes are numbered by their first rank.
    pub of: Vec<usize>,
    /// The first rank of each class, which is executed.
    pub first: Vec<u32>,
    /// The number of ranks of each class.
    pub size: Vec<usize>,
}

impl Classes {
    /// Makes a class of each rank.
    pub(super) fn one_per_rank(ranks: usize) -> Self {
        Self::from_colours(&(0..ranks).map(|rank| vec![rank as u64]).collect::<Vec<_>>())
    }

    /// Finds the coarsest partition in which ranks of a class see the same times.
    pub(super) fn coarsest_partition(plan: &Plan, exchanges: &Exchanges) -> Self {
        let meshes = collective_meshes(plan);
        let programs = plan.ranks.iter().map(|entry| vec![entry.program.index() as u64]);
        let mut classes = Self::from_colours(&programs.collect::<Vec<_>>());
        loop {
            let finer = classes.split_by_meetings(plan, &meshes, exchanges);
            if finer.first.len() == classes.first.len() {
                return classes;
            }
            classes = finer;
        }
    }

    fn from_colours(colours: &[Vec<u64>]) -> Self {
        let mut known: BTreeMap<&[u64], usize> = BTreeMap::new();
        let mut classes = Self { of: Vec::new(), first: Vec::new(), size: Vec::new() };
        for (rank, colour) in colours.iter().enumerate() {
            let class = *known.entry(colour).or_insert_with(|| {
                classes.first.push(rank as u32);
                classes.size.push(0);
                classes.first.len() - 1
            });
            classes.of.push(class);
            classes.size[class] += 1;
        }
        classes
    }

    /// Splits classes by the ranks that their ranks meet. The ranks that a group meets are listed once, and each rank has the number of that list.
    /// Otherwise each rank would have a list as long as its group.
    fn split_by_meetings(
        &self,
        plan: &Plan,
        meshes: &[(&Layout, usize)],
        exchanges: &Exchanges,
    ) -> Self {
        let mut meetings = MeetingNumbers::default();
        let mut colours: Vec<Vec<u64>> = self.of.iter().map(|&class| vec![class as u64]).collect();
        for &(mesh, axis) in meshes {
            for group in axis_groups(mesh, axis) {
                let mut met = self.classes_of(&group);
                met.extend(find_link(&plan.cluster, &group, Some(axis)).key());
                let number = meetings.intern_meeting(met);
                group.iter().for_each(|&rank| colours[rank as usize].push(number));
            }
        }
        for exchange in exchanges.all() {
            for (receiver, incoming) in &exchange.incoming {
                let number = meetings.intern_meeting(self.classes_of(&incoming.senders));
                let Incoming { seconds, on_link, link, .. } = incoming;
                let times = [*seconds, *on_link, link.alpha, link.beta].map(f64::to_bits);
                colours[*receiver as usize].push(number);
                colours[*receiver as usize].extend(times);
            }
            for (sender, receivers) in &exchange.receivers {
                let number = meetings.intern_meeting(self.classes_of(receivers));
                colours[*sender as usize].push(number);
            }
        }
        Self::from_colours(&colours)
    }

    /// Lists how many classes these ranks belong to, then each class with the number of its ranks, in ascending order.
    fn classes_of(&self, ranks: &[u32]) -> Vec<u64> {
        let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
        for &rank in ranks {
            *counts.entry(self.of[rank as usize]).or_default() += 1;
        }
        let pairs = counts.iter().flat_map(|(&class, &count)| [class as u64, count]);
        std::iter::once(counts.len() as u64).chain(pairs).collect()
    }
}

/// The lists of ranks that others meet, each once.
#[derive(Default)]
struct MeetingNumbers {
    known: BTreeMap<Vec<u64>, u64>,
}

impl MeetingNumbers {
    fn intern_meeting(&mut self, met: Vec<u64>) -> u64 {
        let next = self.known.len() as u64;
        *self.known.entry(met).or_insert(next)
    }
}

/// Lists the meshes and axes of collectives, each once.
fn collective_meshes(plan: &Plan) -> Vec<(&Layout, usize)> {
    let mut known: BTreeMap<(&[u32], &[usize], usize), &Layout> = BTreeMap::new();
    let mut seen = vec![Vec::new(); plan.layouts.len()];
    for program in &plan.programs {
        for actor in &program.actors {
            let (Action::Collective { axis, .. }, Some(input)) =
                (&actor.action, actor.inputs.first())
            else {
                continue;
            };
            let layout = program.registers[input.index()].layout.index();
            if !seen[layout].contains(axis) {
                seen[layout].push(*axis);
                let of = &plan.layouts[layout];
                if *axis < of.hierarchy.len() {
                    known.insert((&of.ranks, &of.hierarchy, *axis), of);
                }
            }
        }
    }
    known.into_iter().map(|((_, _, axis), layout)| (layout, axis)).collect()
}

/// Lists the groups of ranks that differ in one axis alone.
fn axis_groups(mesh: &Layout, axis: usize) -> Vec<Vec<u32>> {
    let stride: usize = mesh.hierarchy[axis + 1..].iter().product();
    let extent = mesh.hierarchy[axis];
    let firsts =
        (0..mesh.ranks.len()).filter(|position| (position / stride).is_multiple_of(extent));
    firsts.map(|first| (0..extent).map(|i| mesh.ranks[first + i * stride]).collect()).collect()
}
