//! Branches and loops. What they depend on must be known when the model is imported: of a branch one graph is left, and a loop is
//! unrolled.

use graphc_ir::op::Op;
use graphc_ir::ops::Concat;
use rten_onnx::onnx::GraphProto;

use super::known::Known;
use super::lower::{Lowering, Val};
use super::node::{Call, Problem, Res, fail};
use super::{model, tensor};

/// A loop that goes on longer than this is not unrolled.
const MOST_TURNS: usize = 1 << 14;

/// The branch that the condition names.
pub(super) fn branch(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let name = match truth(cx, &cx.operand(call, 0)?)? {
        true => "then_branch",
        false => "else_branch",
    };
    cx.inner(call.graph(name)?, &[])
}

/// As many turns as the trip count says, or fewer where the condition ends it.
pub(super) fn repeat(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let body = call.graph("body")?;
    let turns = match cx.optional(call, 0)? {
        Some(count) => Some(cx.integer(&count, "the number of turns of a loop")?),
        None => None,
    };
    let mut goes_on = match cx.optional(call, 1)? {
        Some(condition) => truth(cx, &condition)?,
        None => true,
    };
    let first = (2..call.proto.input.len()).map(|position| cx.operand(call, position));
    let mut carried = first.collect::<Res<Vec<_>>>()?;
    let mut stacked: Vec<Vec<Val>> = Vec::new();
    let mut turn = 0;
    while goes_on && turns.is_none_or(|turns| (turn as i64) < turns) {
        if turn >= MOST_TURNS {
            return fail(format!(
                "the loop goes on for more than {MOST_TURNS} turns, and each of them becomes ops of its own: export the model with \
                 fewer steps, or with an op that takes all of them (LSTM, GRU, RNN, CumSum)"
            ));
        }
        let mut given =
            vec![Val::Known(Known::integer(turn as i64)), Val::Known(Known::truth(true))];
        given.append(&mut carried);
        let count = given.len() - 1;
        let mut made = cx.inner(body, &given)?;
        if made.len() < count {
            return fail(format!("its body gives {} values, not {count} at least", made.len()));
        }
        let rest = made.split_off(count);
        carried = made.split_off(1);
        goes_on = truth(cx, &made[0])?;
        stacked.resize_with(rest.len(), Vec::new);
        stacked.iter_mut().zip(rest).for_each(|(all, value)| all.push(value));
        turn += 1;
    }
    for all in stacked {
        carried.push(cx.stacked(&all)?);
    }
    Ok(carried)
}

/// A truth value that is known.
fn truth(cx: &Lowering, value: &Val) -> Res<bool> {
    let known = cx.known(value, "the condition of a branch or loop").map_err(|Problem(reason)| {
        Problem(format!("{reason}: let the model compute both branches and choose with Where, or give a loop its number of turns"))
    })?;
    match known.elements()[..] {
        [one] => Ok(one != 0.0),
        _ => fail("the condition of a branch or loop must be one truth value"),
    }
}

impl Lowering {
    /// Lowers a graph within a node, and gives its outputs. It sees all values there are so far.
    fn inner(&mut self, graph: &GraphProto, inputs: &[Val]) -> Res<Vec<Val>> {
        if graph.input.len() != inputs.len() {
            return fail(format!(
                "its graph takes {} values, not {}",
                graph.input.len(),
                inputs.len()
            ));
        }
        let problem = |error: crate::import::ImportError| Problem(error.to_string());
        let order = model::inner_order(graph).map_err(problem)?;
        let source = self.source.clone();
        let name = |name: &Option<String>| name.clone().unwrap_or_default();
        for (info, value) in graph.input.iter().zip(inputs) {
            self.values.insert(name(&info.name), value.clone());
        }
        for proto in &graph.initializer {
            let read = tensor::read(proto, &self.base_dir).map_err(problem)?;
            let value = self.constant(&name(&proto.name), read)?;
            self.values.insert(name(&proto.name), value);
        }
        for index in order {
            self.node(&graph.node[index]).map_err(problem)?;
        }
        self.source = source;
        graph.output.iter().map(|output| self.value(&name(&output.name))).collect()
    }

    /// Values one after the other along a new first dim.
    fn stacked(&mut self, values: &[Val]) -> Res<Val> {
        let mut rows = Vec::new();
        for value in values {
            let shape = [&[1], &self.shape(value)?[..]].concat();
            rows.push(self.reshape(value, &shape)?);
        }
        match &rows[..] {
            [one] => Ok(one.clone()),
            _ => self.apply(Op::Concat(Concat { axis: 0 }), &rows),
        }
    }
}
