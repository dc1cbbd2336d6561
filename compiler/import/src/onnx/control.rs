//! Branches and loops. A loop is unrolled: the number of its turns must be known when the model is imported. Of a branch whose
//! condition is known one graph is left, of any other both, and a choice between their results.

use graphc_ir::op::Op;
use graphc_ir::ops::{Concat, Where};
use graphc_ir::types::DType;
use rten_onnx::onnx::GraphProto;

use super::known::KnownValue;
use super::lower::{Lowering, Val};
use super::node::{LoweringProblem, NodeCall, Res, fail_with, resolve_axis};
use super::{model, tensor};

/// A loop that goes on longer than this is not unrolled.
const MOST_TURNS: usize = 1 << 14;

/// The branch that the condition names, or both where the condition is computed.
pub(super) fn lower_if(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let condition = cx.operand(call, 0)?;
    let (yes, no) = (call.graph("then_branch")?, call.graph("else_branch")?);
    if let Val::Tensor(_) = condition {
        return select_branch(cx, &condition, [yes, no]);
    }
    let graph = if read_truth(cx, &condition)? { yes } else { no };
    cx.lower_inner_graph(graph, &[])
}

/// The results of both graphs, one of them taken by a condition: no op has effects, so that nothing is wrong with the other.
fn select_branch(cx: &mut Lowering, condition: &Val, graphs: [&GraphProto; 2]) -> Res<Vec<Val>> {
    let ty = cx.ty(condition)?;
    if ty.dtype != DType::Bool || ty.elements() != 1 {
        return fail_with(format!("the condition of a branch must be one truth value, not {ty}"));
    }
    let condition = cx.reshape(condition, &[])?;
    let [yes, no] = [cx.lower_inner_graph(graphs[0], &[])?, cx.lower_inner_graph(graphs[1], &[])?];
    if yes.len() != no.len() {
        return fail_with(format!("its branches have {} and {} results", yes.len(), no.len()));
    }
    let mut results = Vec::new();
    for (yes, no) in yes.into_iter().zip(no) {
        let (of_yes, of_no) = (cx.ty(&yes)?, cx.ty(&no)?);
        if of_yes != of_no {
            return fail_with(format!(
                "its condition is computed, and its branches make {of_yes} and {of_no}: the type of a result must not depend on data"
            ));
        }
        results.push(cx.apply(Op::Where(Where {}), &[condition.clone(), yes, no])?);
    }
    Ok(results)
}

/// Lowers a loop, turn by turn: as many turns as the trip count says, or fewer if the condition ends it.
pub(super) fn lower_loop(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let body = call.graph("body")?;
    let turns = match cx.optional_operand(call, 0)? {
        Some(count) => Some(cx.known_integer(&count, "the number of turns of a loop")?),
        None => None,
    };
    let mut goes_on = match cx.optional_operand(call, 1)? {
        Some(condition) => read_truth(cx, &condition)?,
        None => true,
    };
    let first = (2..call.proto.input.len()).map(|position| cx.operand(call, position));
    let mut carried = first.collect::<Res<Vec<_>>>()?;
    let mut stacked: Vec<Vec<Val>> = Vec::new();
    let mut turn = 0;
    while goes_on && turns.is_none_or(|turns| (turn as i64) < turns) {
        if turn >= MOST_TURNS {
            return fail_with(too_long());
        }
        let mut given = vec![
            Val::Known(KnownValue::from_integer(turn as i64)),
            Val::Known(KnownValue::from_truth(true)),
        ];
        given.append(&mut carried);
        let count = given.len() - 1;
        let mut made = cx.lower_inner_graph(body, &given)?;
        if made.len() < count {
            return fail_with(format!(
                "its body gives {} values, not {count} at least",
                made.len()
            ));
        }
        let rest = made.split_off(count);
        carried = made.split_off(1);
        goes_on = read_truth(cx, &made[0])?;
        stacked.resize_with(rest.len(), Vec::new);
        stacked.iter_mut().zip(rest).for_each(|(all, value)| all.push(value));
        turn += 1;
    }
    for all in stacked {
        carried.push(cx.stack_values(&all, 0)?);
    }
    Ok(carried)
}

/// Lowers a scan: a turn for each element along a dim of the inputs that are scanned. The body takes the values that are carried and these elements.
pub(super) fn lower_scan(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    if call.opset < 9 {
        return fail_with(
            "before version 9 of the operators it is not supported: export for a later one",
        );
    }
    let body = call.graph("body")?;
    let operands = cx.operands(call)?;
    let scanned = usize::try_from(call.int("num_scan_inputs", 0)?).unwrap_or(0);
    let Some(count) = operands.len().checked_sub(scanned).filter(|_| scanned > 0) else {
        return fail_with(format!("it has {} operands, and scans {scanned}", operands.len()));
    };
    let (mut carried, inputs) = (operands[..count].to_vec(), &operands[count..]);
    let at = |name: &str, index: usize| -> Res<i64> {
        Ok(call.ints(name)?.and_then(|all| all.get(index)).copied().unwrap_or(0))
    };
    let mut dims = Vec::new();
    for (index, input) in inputs.iter().enumerate() {
        dims.push(resolve_axis(at("scan_input_axes", index)?, cx.shape(input)?.len())?);
    }
    let turns = cx.shape(&inputs[0])?[dims[0]];
    check_turns(turns)?;
    let mut stacked: Vec<Vec<Val>> = Vec::new();
    for turn in 0..turns {
        let mut given = std::mem::take(&mut carried);
        for (index, input) in inputs.iter().enumerate() {
            let back = at("scan_input_directions", index)? != 0;
            given.push(cx.slice_element(
                input,
                dims[index],
                if back { turns - 1 - turn } else { turn },
            )?);
        }
        let mut made = cx.lower_inner_graph(body, &given)?;
        if made.len() < count {
            return fail_with(format!(
                "its body gives {} values, not {count} at least",
                made.len()
            ));
        }
        let rest = made.split_off(count);
        carried = made;
        stacked.resize_with(rest.len(), Vec::new);
        stacked.iter_mut().zip(rest).for_each(|(all, value)| all.push(value));
    }
    for (index, mut all) in stacked.into_iter().enumerate() {
        if at("scan_output_directions", index)? != 0 {
            all.reverse();
        }
        let dim = resolve_axis(at("scan_output_axes", index)?, cx.shape(&all[0])?.len() + 1)?;
        carried.push(cx.stack_values(&all, dim)?);
    }
    Ok(carried)
}

fn check_turns(turns: usize) -> Res<()> {
    match turns {
        0 => fail_with("it scans nothing: what it makes of nothing has no shape"),
        turns if turns > MOST_TURNS => fail_with(too_long()),
        _ => Ok(()),
    }
}

fn too_long() -> String {
    format!(
        "the loop goes on for more than {MOST_TURNS} turns, and each of them becomes ops of its own: export the model with \
         fewer steps, or with an op that takes all of them (LSTM, GRU, RNN, CumSum)"
    )
}

/// A truth value that is known.
fn read_truth(cx: &Lowering, value: &Val) -> Res<bool> {
    let known =
        cx.require_known(value, "the condition of a loop").map_err(|LoweringProblem(reason)| {
            LoweringProblem(format!("{reason}: give a loop its number of turns"))
        })?;
    match known.elements()[..] {
        [one] => Ok(one != 0.0),
        _ => fail_with("the condition of a branch or loop must be one truth value"),
    }
}

impl Lowering {
    /// Lowers a graph within a node, and gives its outputs. It sees all values there are so far.
    fn lower_inner_graph(&mut self, graph: &GraphProto, inputs: &[Val]) -> Res<Vec<Val>> {
        if graph.input.len() != inputs.len() {
            return fail_with(format!(
                "its graph takes {} values, not {}",
                graph.input.len(),
                inputs.len()
            ));
        }
        let problem = |error: crate::ImportError| LoweringProblem(error.to_string());
        let order = model::inner_order(graph).map_err(problem)?;
        let source = self.source.clone();
        let name = |name: &Option<String>| name.clone().unwrap_or_default();
        for (info, value) in graph.input.iter().zip(inputs) {
            self.values.insert(name(&info.name), value.clone());
        }
        for proto in &graph.initializer {
            let read = tensor::read_tensor(proto, &self.base_dir).map_err(problem)?;
            let value = self.add_constant(&name(&proto.name), read)?;
            self.values.insert(name(&proto.name), value);
        }
        for index in order {
            self.lower_node(&graph.node[index]).map_err(problem)?;
        }
        self.source = source;
        graph.output.iter().map(|output| self.find_value(&name(&output.name))).collect()
    }

    /// An element along a dim, which goes.
    fn slice_element(&mut self, x: &Val, dim: usize, at: usize) -> Res<Val> {
        let mut shape = self.shape(x)?;
        if at >= shape[dim] {
            return fail_with(format!(
                "what is scanned together has {} elements and fewer",
                at + 1
            ));
        }
        let part = self.slice(x, dim, at, at + 1, 1)?;
        shape.remove(dim);
        self.reshape(&part, &shape)
    }

    /// Values one after the other along a new dim.
    fn stack_values(&mut self, values: &[Val], dim: usize) -> Res<Val> {
        let mut rows = Vec::new();
        for value in values {
            let mut shape = self.shape(value)?;
            if dim > shape.len() {
                return fail_with("what its turns make differs in rank");
            }
            shape.insert(dim, 1);
            rows.push(self.reshape(value, &shape)?);
        }
        match &rows[..] {
            [one] => Ok(one.clone()),
            _ => self.apply(Op::Concat(Concat { axis: dim }), &rows),
        }
    }
}
