//! Plans one operation, by the compiler's planner.
//!
//! An operation is a graph of one op. Each input is followed by a `to_global` to the operand's layout, which the planner takes as given. It chooses
//! the signature that costs least with the boxing around it; lowering and the checks of the plan are those of any plan. Afterwards the inputs are
//! given that layout directly, even a partial one, which no planner would choose for an input.
//!
//! Results are fetched, so an operation that makes partial sums also sums them up. To convert a tensor to a partial layout, the plan makes it whole,
//! and the runtime then masks what the other ranks hold. Placements may be any ranks in any grid, because each node of a plan has its own.

use graphc_compiler::boxing::fetched;
use graphc_compiler::cluster::preset;
use graphc_compiler::compile::{Header, assemble_plan};
use graphc_compiler::decisions::{Decisions, Sharding};
use graphc_compiler::error::CompileError;
use graphc_compiler::pipeline::prepare_graph;
use graphc_compiler::planner::{self, plan_signatures};
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::ids::NodeId;
use graphc_ir::op::Op;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{Action, CompileOptions, Layout, Plan};

use crate::error::EagerError;
use crate::operation::EagerOperation;
use crate::spots::Spot;

/// The plan of an operation, and the layout of its result.
pub(crate) struct OperationPlan {
    pub(crate) plan: VerifiedPlan,
    pub(crate) result: Layout,
}

/// Plans an operation for a group of `world` ranks. It takes the signature that costs least with the boxing from the layouts of the operands. Partial
/// sums are summed up, unless a partial layout is asked for. The plan is the same on all ranks.
///
/// # Errors
/// Returns an error if the operation does not take the operands, or if the machine does not have the memory for it.
pub(crate) fn plan_operation(
    operation: &EagerOperation,
    operands: &[&Spot],
    world: usize,
    call: &str,
) -> Result<OperationPlan, EagerError> {
    let graph = build_graph(operation, operands)
        .map_err(|reason| EagerError::Operands { call: call.to_owned(), reason })?;
    let plan = compile_graph(&graph, world)
        .map_err(|error| EagerError::Compile { call: call.to_owned(), error: Box::new(error) })?;
    let given = fetched_layout(&plan).filter(|_| feeds_lie_as(&plan, operands)).cloned();
    let given = given.ok_or_else(|| EagerError::Fault { call: call.to_owned() })?;
    // Where each rank keeps what it has nothing is moved, and what is fetched is what was fed, in the grid from which it comes.
    let result = match operation {
        EagerOperation::ToGlobal(to, sbp) => Layout {
            sbp: sbp.clone(),
            ranks: to.ranks.clone(),
            hierarchy: to.hierarchy.clone(),
            ..given
        },
        _ => given,
    };
    Ok(OperationPlan { plan, result })
}

fn compile_graph(graph: &Graph, world: usize) -> Result<VerifiedPlan, CompileError> {
    let cluster = preset("cpu").expect("a preset");
    let options = CompileOptions { mesh: vec![world], ..CompileOptions::default() };
    let mut decisions = prepare_graph(graph.clone(), &options)?;
    let planner::Planned { mut sharding, report: planner, .. } =
        plan_signatures(&decisions, &options, &cluster)?;
    feed_as_it_lies(&mut decisions, &mut sharding);
    let header = Header { graph, options: &options, cluster: &cluster, weights: None, planner };
    let (plan, _) = assemble_plan(header, &decisions, &sharding)?;
    Ok(VerifiedPlan::check(plan)?)
}

/// Builds the graph: inputs, each of which is brought to the layout of its operand, and the operation on them.
fn build_graph(operation: &EagerOperation, operands: &[&Spot]) -> Result<Graph, String> {
    let g = GraphBuilder::new("eager");
    let input = |(index, spot): (usize, &&Spot)| {
        let Layout { shape, dtype, sbp, .. } = &spot.layout;
        g.on(&spot.placement, || {
            let fed = g.input(&index.to_string(), *dtype, shape.clone());
            fed.to_global(&spot.placement, sbp.clone())
        })
    };
    let inputs: Vec<_> = operands.iter().enumerate().map(input).collect();
    // What a partial layout is made of is whole: the runtime masks it.
    let whole = match operation {
        EagerOperation::ToGlobal(placement, sbp) => {
            Some(EagerOperation::ToGlobal(placement.clone(), fetched(sbp)))
        }
        _ => None,
    };
    let operation = whole.as_ref().unwrap_or(operation);
    let result = g.on(&operands[0].placement, || operation.append_node(&inputs));
    g.output("result", &result);
    g.finish().map_err(|errors| {
        let messages: Vec<String> = errors.0.into_iter().map(|error| error.message).collect();
        messages.join("; ")
    })
}

/// Gives each input the layout to which it is brought, even a partial one, which no planner would choose for an input.
fn feed_as_it_lies(decisions: &mut Decisions, sharding: &mut Sharding) {
    let graph = decisions.graph();
    let mut fed: Vec<(NodeId, NodeId)> = Vec::new();
    for (id, node) in graph.iter() {
        let Op::ToGlobal(_) = &node.op else { continue };
        let producer = graph.value(node.operands[0]).producer;
        if matches!(graph.node(producer).op, Op::Input(_)) {
            fed.push((producer, id));
        }
    }
    for (input, reader) in fed {
        let brought = sharding.nodes[reader.index()].clone();
        sharding.nodes[input.index()].choices = brought.choices;
        sharding.nodes[input.index()].results = brought.results;
        let placement = decisions.staging.placement[reader.index()].clone();
        decisions.staging.placement[input.index()] = placement;
    }
}

/// Whether the plan takes every operand in the layout that it has.
fn feeds_lie_as(plan: &Plan, operands: &[&Spot]) -> bool {
    plan.programs.iter().all(|program| {
        program.actors.iter().all(|actor| {
            let Action::Feed { input, .. } = &actor.action else { return true };
            let register = actor.outputs.first().and_then(|id| program.registers.get(id.index()));
            let layout = register.and_then(|register| plan.layouts.get(register.layout.index()));
            let operand = input.parse().ok().and_then(|index: usize| operands.get(index));
            layout == operand.map(|spot| &spot.layout)
        })
    })
}

/// Returns the layout of the tensor that is fetched.
fn fetched_layout(plan: &Plan) -> Option<&Layout> {
    plan.programs.iter().find_map(|program| {
        let is_fetch = |action: &Action| matches!(action, Action::Fetch { .. });
        let fetch = program.actors.iter().find(|actor| is_fetch(&actor.action))?;
        let register = program.registers.get(fetch.inputs.first()?.index())?;
        plan.layouts.get(register.layout.index())
    })
}
