//! Collectives in modelled time: they begin when the last rank of the group has come.

use std::collections::BTreeMap;

use graphc_ir::plan::{Actor, Layout, Plan, Program};

use crate::cluster::alpha_beta;
use crate::cost::collective_seconds;
use graphc_ir::plan::BoxingKind;

/// One meeting of a group: sequence number, first rank, step, microbatch.
pub type Meeting = (u32, u32, u64, u32);

/// A rank that has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// The rank.
    pub rank: u32,
    /// Its stream.
    pub stream: usize,
    /// When.
    pub time: f64,
    /// Bytes that it brings or takes away, whichever is more.
    pub bytes: u64,
}

/// Everybody who waits in a collective.
#[derive(Default)]
pub struct Rendezvous {
    open: BTreeMap<Meeting, Vec<Arrival>>,
}

/// A collective that everybody has come to.
pub struct Met {
    /// When it begins.
    pub start: f64,
    /// When it ends.
    pub end: f64,
    /// Who takes part.
    pub arrivals: Vec<Arrival>,
}

impl Rendezvous {
    /// A rank comes. The collective takes place once all of `group` have come.
    pub fn arrive(
        &mut self,
        plan: &Plan,
        meeting: Meeting,
        group: &[u32],
        (kind, axis): (BoxingKind, usize),
        arrival: Arrival,
    ) -> Option<Met> {
        let arrivals = self.open.entry(meeting).or_default();
        arrivals.push(arrival);
        if arrivals.len() < group.len() {
            return None;
        }
        let arrivals = self.open.remove(&meeting)?;
        let start = arrivals.iter().map(|arrival| arrival.time).fold(0.0, f64::max);
        let bytes = arrivals.iter().map(|arrival| arrival.bytes).max().unwrap_or(0);
        let link = alpha_beta(&plan.cluster, group, Some(axis));
        let bytes = bytes as f64;
        let seconds = collective_seconds(&plan.cluster, link, kind, group.len(), bytes);
        let end = start + seconds;
        Some(Met { start, end, arrivals })
    }

    /// Who has come to a meeting that has not begun.
    pub fn present(&self, meeting: Meeting) -> Vec<u32> {
        self.open.get(&meeting).into_iter().flatten().map(|arrival| arrival.rank).collect()
    }
}

/// The group of a collective that a rank takes part in: of the layout of its first input.
pub fn group(plan: &Plan, program: &Program, actor: &Actor, rank: u32, axis: usize) -> Vec<u32> {
    let layout = actor.inputs.first().map(|input| {
        let register = &program.registers[input.index()];
        &plan.layouts[register.layout as usize]
    });
    let group = layout.filter(|layout| axis < layout.hierarchy.len()).map(|l| l.group(rank, axis));
    group.flatten().unwrap_or_else(|| vec![rank])
}

/// Bytes that a collective moves on a rank: of each tensor the larger of what goes in and what comes out.
pub fn bytes(layouts: &[Layout], program: &Program, actor: &Actor) -> u64 {
    let size = |id: &graphc_ir::ids::RegisterId| {
        let register = &program.registers[id.index()];
        let elements: usize = register.shape.iter().product();
        (elements * layouts[register.layout as usize].dtype.size()) as u64
    };
    actor.inputs.iter().zip(&actor.outputs).map(|(i, o)| size(i).max(size(o))).sum()
}
