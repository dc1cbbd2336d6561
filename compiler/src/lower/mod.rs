//! Lowering: from decisions to programs.
//!
//! `tasks` lists what all ranks do. The table of `steps` takes these tasks to the order in which ranks act: it cuts the step into
//! parts that run once and parts that run for every microbatch, joins tasks (`fuse`), and moves them (`order`). `program` turns one
//! rank's part into registers at fixed offsets, actors, and streams with a fixed order, and `memory` finds slots and offsets for
//! them. Start reading with [`lower`]. Nothing here chooses a layout or a stage.
//!
//! # Where memory is short
//!
//! Two streams need more memory than one, because what runs beside kernels lives longer (`background` says what that is).
//! Where a plan does not fit, it is lowered again with [`RunAhead::ByTime`]. That changes no layout, so the planner's
//! objective and bound stay those of what runs:
//!
//! - gathers begin as late as they may if all are to be there in time (`background`, `second_stream`);
//! - better places are looked for, until everything fits (`memory`);
//! - a stream may take memory that the other gives back before it knows of it, and then waits for it (`places`, `reuse`).
//!
//! Where it still does not fit, it is lowered with [`RunAhead::ByBytes`]: few bytes are gathered before they are read, and
//! computing waits for gradients that are not scattered yet (`in_flight`).
//!
//! Where two streams do not fit even so, the plan has one. If a step then takes 2 % longer than the planner says, or not
//! even one stream fits, `compile::fit` plans layouts again with less memory, twice at most, and takes the faster plan.

use std::collections::BTreeMap;

use graphc_ir::cycle::format_cycle;
use graphc_ir::enter_span;
use graphc_ir::ids::ProgramId;
use graphc_plan::{
    BoxingEntry, Channel, Cluster, CompileOptions, Layout, Program, RankEntry, TensorEntry,
};

use crate::cost::add_sums_in_products;
use crate::decisions::{Decisions, Sharding};
use crate::side_by_side::map_side_by_side;

mod fuse;
mod memory;
mod order;
mod program;
mod steps;
mod tasks;
#[cfg(test)]
mod tests;

pub use program::tables::collective_counts;

/// The result of lowering, from which a plan is made.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The layouts of tensors.
    pub tensors: Vec<TensorEntry>,
    /// The boxing that was inserted.
    pub boxing: Vec<BoxingEntry>,
    /// The layouts to which registers refer.
    pub layouts: Vec<Layout>,
    /// The exchanges.
    pub channels: Vec<Channel>,
    /// The programs that ranks execute.
    pub programs: Vec<Program>,
    /// The program of each rank.
    pub ranks: Vec<RankEntry>,
}

/// An error of lowering. Each is a contradiction between passes, not a fault of the user's.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LowerError {
    /// A value is read before it is made.
    #[error("{value} is read before it is made")]
    BeforeMade {
        /// The value.
        value: String,
    },
    /// A task that acts once a step reads what is made for every microbatch.
    #[error("{task} acts once a step, but reads or overwrites what is made for every microbatch")]
    Rates {
        /// The task.
        task: String,
    },
    /// Tasks that wait for each other.
    #[error("these wait for each other: {}", format_cycle(.tasks))]
    Circle {
        /// The tasks, each before one that waits for it; the first waits for the last.
        tasks: Vec<String>,
    },
    /// A node is placed on a rank that the job does not have.
    #[error("{task} is placed on rank {rank}, but the graph has ranks 0..{world}")]
    Rank {
        /// The task.
        task: String,
        /// The rank.
        rank: u32,
        /// The number of ranks.
        world: usize,
    },
}

graphc_ir::readable_debug!(LowerError);

/// The options of lowering.
#[derive(Clone, Copy, Debug)]
pub struct LoweringOptions {
    /// Whether registers get places in memory. Without offsets a plan cannot run, but tells how long a step takes.
    pub placed: bool,
    /// The stream of communication that nothing waits for at once.
    pub streams: Streams,
    /// How far the streams of a rank may run ahead of each other.
    pub ahead: RunAhead,
}

/// How far the two streams of a rank may run ahead of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunAhead {
    /// So far that communication is hidden: there is memory enough.
    Far,
    /// Memory is short. Nothing of the second stream begins sooner than it must, and a stream waits for the other if it takes memory that the other
    /// gives back. Places in memory are looked for until all fit, or for longer.
    ByTime,
    /// Like `ByTime`, and neither stream has tensors of more than a few bytes ready for the other. This costs time only where communication takes
    /// longer than kernels.
    ByBytes,
}

impl RunAhead {
    /// Whether memory is short.
    pub fn is_short(self) -> bool {
        self != Self::Far
    }
}

/// The stream of communication that nothing waits for at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// The stream of kernels.
    One,
    /// A stream of its own, on which the tensor that is needed soonest comes first.
    ByDue,
}

impl Streams {
    /// Returns the choice that suits these machines best if memory suffices.
    pub fn best(cluster: &Cluster) -> Self {
        if cluster.overlaps() { Self::ByDue } else { Self::One }
    }
}

/// Turns decisions into programs.
///
/// # Errors
/// Returns an error if decisions contradict each other.
pub fn lower(
    decisions: &Decisions,
    sharding: &Sharding,
    options: &CompileOptions,
    cluster: &Cluster,
    how: LoweringOptions,
) -> Result<Lowered, LowerError> {
    let _span = enter_span!("lower");
    let world: usize = options.mesh.iter().product();
    let mut graph = tasks::collect::collect_tasks(decisions, sharding, cluster)?;
    check_ranks(&graph, world)?;
    steps::run_steps(&mut graph, &steps::StepContext { cluster, how })?;
    let schedule =
        order::schedule::BlockSchedule::new(&graph, options.schedule, decisions.staging.stages);
    let cx = program::build::Context {
        graph: &graph,
        schedule: &schedule,
        placed: how.placed,
        overlap: how.streams != Streams::One,
        ahead: how.ahead,
        memory: options.memory.unwrap_or(cluster.device.memory),
    };
    let (mut programs, ranks) = programs(&cx, world, decisions.staging.stages);
    programs.iter_mut().for_each(|program| add_sums_in_products(cluster, &graph.layouts, program));
    let tensors = program::tables::tensor_entries(decisions, sharding);
    let tasks::task_graph::TaskGraph { boxing, layouts, channels, .. } = graph;
    Ok(Lowered { tensors, boxing, layouts, channels, programs, ranks })
}

/// Builds the programs, in order of the first rank that runs each.
fn programs(
    cx: &program::build::Context<'_>,
    world: usize,
    stages: usize,
) -> (Vec<Program>, Vec<RankEntry>) {
    let mut known: BTreeMap<&program::build::ProgramPart, ProgramId> = BTreeMap::new();
    let mut distinct = Vec::new();
    let (parts, part_of) = program::build::find_parts(cx.graph, world, stages);
    let mut program_of = Vec::new();
    for part in &parts {
        program_of.push(*known.entry(part).or_insert_with(|| {
            distinct.push(part);
            ProgramId::new(distinct.len() - 1)
        }));
    }
    // Side by side: those of different stages have nothing in common.
    let programs = map_side_by_side(distinct, |part| program::build::build_program(cx, part));
    let ranks = part_of.into_iter().map(|part| RankEntry { program: program_of[part] }).collect();
    (programs, ranks)
}

fn check_ranks(graph: &tasks::task_graph::TaskGraph, world: usize) -> Result<(), LowerError> {
    for task in &graph.tasks {
        if let Some(&rank) = task.ranks.iter().find(|&&rank| rank as usize >= world) {
            return Err(LowerError::Rank { task: task.name.clone(), rank, world });
        }
    }
    Ok(())
}
