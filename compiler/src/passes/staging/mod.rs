//! Pipeline stages and placements: the user's, or an equal-cost cut of the forward ops.
//!
//! [`assign_stages`] writes them into the nodes before autodiff, which then puts each gradient beside the op that it
//! differentiates; [`collect_staging`] reads them back as data once all nodes exist.

use graphc_ir::graph::{Graph, Node, Part};
use graphc_ir::ids::StageId;
use graphc_ir::mesh::Placement;
use graphc_ir::op::Op;
use graphc_plan::CompileOptions;

use crate::decisions::Staging;
use crate::passes::error::PassError;

mod cut;
mod spread;

use spread::spread_generators;

/// Assigns a stage to every node, and a placement to those that do not lie on their stage's slice of the mesh. With chunks there is a stage for each
/// chunk: chunk `c` of all lies on stage `c mod S`. If the user gave stages or placements to some nodes only, the others follow what they read, and
/// sources go where they are read first. A tensor that is moved to the ranks of a later stage belongs to that stage. Values without operands are made
/// anew in each stage that reads them.
///
/// # Errors
/// Returns an error if stages do not divide the mesh, or the user's own stages or placements do not fit it.
pub(crate) fn assign_stages(graph: Graph, options: &CompileOptions) -> Result<Graph, PassError> {
    let mesh = make_mesh(options)?;
    check_divides(&mesh, options)?;
    check_interleaved(options)?;
    check_user(&graph, &mesh, options)?;
    let stages = choose_stages(&graph, options)?;
    let placements = choose_placements(&graph, &stages);
    let mut graph = graph;
    let staged = options.stages > 1 || !graph.stages.is_empty();
    graph.stages.resize(if staged { chunk_count(options) } else { 0 }, None);
    for (index, node) in graph.nodes.iter_mut().enumerate() {
        node.part = staged.then(|| Part::Stage(StageId::new(stages[index])));
        node.placement.clone_from(&placements[index]);
    }
    spread_generators(&graph).map_err(|error| PassError::Op { pass: "stages", error })
}

/// Collects the stages and placements of all nodes of a graph that [`assign_stages`] has seen.
///
/// # Errors
/// Returns an error if the mesh is not valid, or the stages do not divide it.
pub(crate) fn collect_staging(
    graph: &Graph,
    options: &CompileOptions,
) -> Result<Staging, PassError> {
    let mesh = make_mesh(options)?;
    let slices = check_divides(&mesh, options)?;
    let chunk_of = |node: &Node| node.stage().map_or(0, StageId::index);
    let stage_of = |node: &Node| chunk_of(node) % options.stages;
    let placement = |node: &Node| {
        let of_stage = graph.stages.get(chunk_of(node)).and_then(Option::as_ref);
        node.placement.as_ref().or(of_stage).unwrap_or(&slices[stage_of(node)]).clone()
    };
    Ok(Staging {
        stages: options.stages,
        stage: graph.nodes.iter().map(stage_of).collect(),
        chunk: graph.nodes.iter().map(|node| chunk_of(node) / options.stages).collect(),
        placement: graph.nodes.iter().map(placement).collect(),
    })
}

/// Puts so many nodes on one stage, the whole mesh.
///
/// # Errors
/// Returns an error if the mesh is not valid.
pub(crate) fn one_stage(nodes: usize, options: &CompileOptions) -> Result<Staging, PassError> {
    let (stage, chunk) = (vec![0; nodes], vec![0; nodes]);
    Ok(Staging { stages: 1, stage, chunk, placement: vec![make_mesh(options)?; nodes] })
}

fn make_mesh(options: &CompileOptions) -> Result<Placement, PassError> {
    let mesh = options.mesh.clone();
    Placement::mesh(&mesh).map_err(|error| PassError::Mesh { mesh, error })
}

/// Returns the slice of the mesh of each stage.
fn check_divides(mesh: &Placement, options: &CompileOptions) -> Result<Vec<Placement>, PassError> {
    let stages = options.stages;
    let slices: Option<Vec<Placement>> = (0..stages).map(|s| mesh.slice_stage(s, stages)).collect();
    slices.filter(|slices| !slices.is_empty()).ok_or_else(|| PassError::StagesDivide {
        mesh: options.mesh.clone(),
        stages,
        fitting: (1..=options.mesh[0]).filter(|&n| options.mesh[0].is_multiple_of(n)).collect(),
    })
}

/// Returns the number of chunks of layers of all stages.
fn chunk_count(options: &CompileOptions) -> usize {
    options.stages * options.schedule.chunks_per_stage()
}

/// Checks that a schedule with chunks fits stages and microbatches.
fn check_interleaved(options: &CompileOptions) -> Result<(), PassError> {
    let (stages, microbatches) = (options.stages, options.microbatches);
    let fits = stages > 1 && microbatches.is_multiple_of(stages);
    if options.schedule.chunks_per_stage() == 1 || fits {
        return Ok(());
    }
    Err(PassError::Interleaved { schedule: options.schedule, stages, microbatches })
}

/// Checks the stages and placements that the user gave.
fn check_user(graph: &Graph, mesh: &Placement, options: &CompileOptions) -> Result<(), PassError> {
    let stages = chunk_count(options);
    for node in &graph.nodes {
        if let Some(stage) = node.stage().map(StageId::index).filter(|&stage| stage >= stages) {
            let (op, place) = (node.op.name(), node.source.clone());
            return Err(PassError::StageRange { op, place, stage, stages });
        }
        if let Some(placement) = own_placement(node) {
            let what = || format!("{} ({})", node.op.name(), node.source);
            check_ranks(placement, mesh, what)?;
        }
    }
    for (stage, placement) in graph.stages.iter().enumerate() {
        if let Some(placement) = placement {
            check_ranks(placement, mesh, || format!("stage {stage}"))?;
        }
    }
    if !graph.stages.is_empty() && graph.stages.len() != stages {
        return Err(PassError::StageCount { declared: graph.stages.len(), stages });
    }
    Ok(())
}

fn check_ranks(
    placement: &Placement,
    mesh: &Placement,
    what: impl Fn() -> String,
) -> Result<(), PassError> {
    let ranks = mesh.size();
    if placement.ranks.iter().all(|&rank| (rank as usize) < ranks) {
        return Ok(());
    }
    let (placement, mesh) = (placement.clone(), mesh.hierarchy.clone());
    Err(PassError::RankRange { what: what(), placement, mesh, ranks })
}

/// Returns the placement that the user gave a node.
fn own_placement(node: &Node) -> Option<&Placement> {
    match &node.op {
        Op::ToGlobal(op) => Some(&op.placement),
        _ => node.placement.as_ref(),
    }
}

fn choose_stages(graph: &Graph, options: &CompileOptions) -> Result<Vec<usize>, PassError> {
    if options.stages == 1 {
        return Ok(vec![0; graph.nodes.len()]);
    }
    let given: Vec<Option<usize>> = if graph.nodes.iter().any(|node| node.stage().is_some()) {
        graph.nodes.iter().map(|node| node.stage().map(StageId::index)).collect()
    } else {
        cut::cut_stages(graph, chunk_count(options))?
    };
    let given = with_arrivals(graph, given, options)?;
    Ok(fill_from_neighbours(graph, given, 0))
}

/// Completes the stages that are given: a node that the user moves to the ranks of a later stage gets that stage.
fn with_arrivals(
    graph: &Graph,
    mut given: Vec<Option<usize>>,
    options: &CompileOptions,
) -> Result<Vec<Option<usize>>, PassError> {
    let slices = check_divides(&make_mesh(options)?, options)?;
    let place = |stage: usize| {
        let own = graph.stages.get(stage).and_then(Option::as_ref);
        own.unwrap_or(&slices[stage % options.stages])
    };
    let readers = graph.list_consumers();
    let mut stages = None;
    for (id, node) in graph.iter() {
        let Op::ToGlobal(op) = &node.op else { continue };
        if given[id.index()].is_some() {
            continue;
        }
        let inherited =
            stages.get_or_insert_with(|| fill_from_neighbours(graph, given.clone(), 0))[id.index()];
        if *place(inherited) == op.placement {
            continue;
        }
        let of_readers =
            readers[node.results[0].index()].iter().filter_map(|reader| given[reader.index()]);
        let end = of_readers.min().map_or(chunk_count(options), |first| first + 1);
        given[id.index()] = (inherited + 1..end).find(|&at| *place(at) == op.placement);
        // What is given changes what others inherit.
        stages = stages.filter(|_| given[id.index()].is_none());
    }
    Ok(given)
}

/// Gives every node a stage, or a layer: that which is given, else the last of those that it reads, else the first of those that read it, else the
/// first of all.
pub(crate) fn fill_from_neighbours<T: Copy + Ord>(
    graph: &Graph,
    given: Vec<Option<T>>,
    first: T,
) -> Vec<T> {
    let greater = |a: &mut T, b: &T| *a = (*a).max(*b);
    let lesser = |a: &mut T, b: &T| *a = (*a).min(*b);
    let parts = inherit_given(graph, given, |_, _| true, greater, lesser);
    parts.into_iter().map(|part| part.unwrap_or(first)).collect()
}

/// Returns the placement of each node that does not lie where its stage does.
fn choose_placements(graph: &Graph, stages: &[usize]) -> Vec<Option<Placement>> {
    let given = graph.nodes.iter().zip(stages).map(|(node, &stage)| {
        let of_stage = || graph.stages.get(stage).and_then(Option::as_ref);
        own_placement(node).or_else(of_stage).cloned()
    });
    // A stage without a placement has its own slice of the mesh, whatever those before it were given.
    let together = |a: usize, b: usize| stages[a] == stages[b];
    inherit_given(graph, given.collect(), together, |_, _| {}, |_, _| {})
}

/// Completes what was given to some nodes. A node without anything inherits it from its operands, joined, or if they have nothing, from its readers.
/// `along` says between which nodes something is inherited.
fn inherit_given<T: Clone>(
    graph: &Graph,
    mut given: Vec<Option<T>>,
    along: impl Fn(usize, usize) -> bool,
    join: impl Fn(&mut T, &T),
    join_readers: impl Fn(&mut T, &T),
) -> Vec<Option<T>> {
    let explicit: Vec<bool> = given.iter().map(Option::is_some).collect();
    for (id, node) in graph.iter().filter(|(id, _)| !explicit[id.index()]) {
        let producers = node.operands.iter().map(|&operand| graph.value(operand).producer.index());
        let producers = producers.filter(|&producer| along(id.index(), producer));
        let known = producers.filter_map(|producer| given[producer].clone());
        given[id.index()] = known.reduce(|mut a, b| {
            join(&mut a, &b);
            a
        });
    }
    let settled: Vec<bool> = given.iter().map(Option::is_some).collect();
    // Readers stand behind, so that going backwards all of a node's readers are settled.
    for (id, node) in graph.iter().rev() {
        let Some(own) = given[id.index()].clone() else { continue };
        for &operand in node.operands.iter().rev() {
            let producer = graph.value(operand).producer.index();
            if settled[producer] || !along(id.index(), producer) {
                continue;
            }
            let mut joined = own.clone();
            if let Some(other) = &given[producer] {
                join_readers(&mut joined, other);
            }
            given[producer] = Some(joined);
        }
    }
    given
}

#[cfg(test)]
mod tests;
