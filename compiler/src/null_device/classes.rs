//! Ranks that behave alike: simulated once.
//!
//! Two ranks see the same times if they run the same program and all whom they meet do, in turn. So ranks are coloured by
//! program, and colours are split until two ranks of one colour meet, in every collective and every channel, equally
//! many ranks of each colour over links of equal constants: the coarsest equitable partition (colour refinement, as in
//! Weisfeiler and Leman, 1968). Then every rank of a class finds itself, action by action, where the others of its class
//! are: by induction over the order of events, as what an action waits for, and how long it takes, depends on the classes
//! of those it meets alone. So one rank of each class is executed, with exact results; what ranks do unlike (uneven
//! splits, a slower link) puts them in classes of their own.

use std::collections::BTreeMap;

use graphc_ir::plan::{Action, Layout, Plan};

use super::exchanges::Exchanges;
use crate::cluster::link;

/// A partition of the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    /// The class of each rank; classes are numbered by their first rank.
    pub of: Vec<usize>,
    /// The first rank of each class, which is executed.
    pub first: Vec<u32>,
    /// The number of ranks of each class.
    pub size: Vec<usize>,
}

impl Classes {
    /// Every rank for itself.
    pub fn single(ranks: usize) -> Self {
        Self::numbered(&(0..ranks).map(|rank| vec![rank as u64]).collect::<Vec<_>>())
    }

    /// The coarsest partition in which ranks of a class see the same times.
    pub fn coarsest(plan: &Plan, exchanges: &Exchanges) -> Self {
        let meshes = meshes(plan);
        let programs = plan.ranks.iter().map(|entry| vec![entry.program.index() as u64]);
        let mut classes = Self::numbered(&programs.collect::<Vec<_>>());
        loop {
            let finer = classes.refined(plan, &meshes, exchanges);
            if finer.first.len() == classes.first.len() {
                return classes;
            }
            classes = finer;
        }
    }

    fn numbered(colours: &[Vec<u64>]) -> Self {
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

    /// Splits classes by whom their ranks meet.
    fn refined(&self, plan: &Plan, meshes: &[(&Layout, usize)], exchanges: &Exchanges) -> Self {
        let mut colours: Vec<Vec<u64>> = self.of.iter().map(|&class| vec![class as u64]).collect();
        for &(mesh, axis) in meshes {
            for group in groups(mesh, axis) {
                let mut met = self.classes_of(&group);
                met.extend(link(&plan.cluster, &group, Some(axis)).key());
                for &rank in &group {
                    colours[rank as usize].push(met.len() as u64);
                    colours[rank as usize].extend(&met);
                }
            }
        }
        for exchange in exchanges.all() {
            for (receiver, (senders, seconds)) in &exchange.sources {
                let met = self.classes_of(senders);
                let colour = &mut colours[*receiver as usize];
                colour.extend([met.len() as u64, seconds.to_bits()]);
                colour.extend(met);
            }
            for (sender, receivers) in &exchange.receivers {
                let met = self.classes_of(receivers);
                let colour = &mut colours[*sender as usize];
                colour.push(met.len() as u64);
                colour.extend(met);
            }
        }
        Self::numbered(&colours)
    }

    fn classes_of(&self, ranks: &[u32]) -> Vec<u64> {
        let mut classes: Vec<u64> =
            ranks.iter().map(|&rank| self.of[rank as usize] as u64).collect();
        classes.sort_unstable();
        classes
    }
}

/// The meshes and axes over which collectives go, each once.
fn meshes(plan: &Plan) -> Vec<(&Layout, usize)> {
    let mut known: BTreeMap<(&[u32], &[usize], usize), &Layout> = BTreeMap::new();
    let mut seen = vec![Vec::new(); plan.layouts.len()];
    for program in &plan.programs {
        for actor in &program.actors {
            let (Action::Collective { axis, .. }, Some(input)) =
                (&actor.action, actor.inputs.first())
            else {
                continue;
            };
            let layout = program.registers[input.index()].layout as usize;
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

/// The groups of a mesh that differ in one axis alone.
fn groups(mesh: &Layout, axis: usize) -> Vec<Vec<u32>> {
    let stride: usize = mesh.hierarchy[axis + 1..].iter().product();
    let extent = mesh.hierarchy[axis];
    let firsts =
        (0..mesh.ranks.len()).filter(|position| (position / stride).is_multiple_of(extent));
    firsts.map(|first| (0..extent).map(|i| mesh.ranks[first + i * stride]).collect()).collect()
}
