//! Recurrent layers. Of each direction the inputs of all steps are multiplied at once, and one op goes through the steps.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, Cell, Concat, Recurrence};
use graphc_ir::types::TensorType;

use super::known::KnownValue;
use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};

pub(super) fn lower_lstm(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    if call.int("input_forget", 0)? != 0 {
        return fail_with("input_forget=1, which ties two gates, is not supported");
    }
    if cx.optional_operand(call, 7)?.is_some() {
        return fail_with("peepholes (operand 7, `P`) are not supported");
    }
    check_activations(call, &["sigmoid", "tanh", "tanh"])?;
    lower_layer(cx, call, Cell::Lstm)
}

pub(super) fn lower_gru(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    if call.int("linear_before_reset", 0)? == 0 {
        return fail_with(
            "linear_before_reset=0 is not supported: only 1, where the reset gate multiplies what the state's weights \
             have made, as PyTorch and cuDNN have it",
        );
    }
    check_activations(call, &["sigmoid", "tanh"])?;
    lower_layer(cx, call, Cell::Gru)
}

pub(super) fn lower_rnn(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let relu =
        call.texts("activations")?.first().is_some_and(|name| name.eq_ignore_ascii_case("relu"));
    let (cell, name) = if relu { (Cell::Relu, "relu") } else { (Cell::Tanh, "tanh") };
    check_activations(call, &[name])?;
    lower_layer(cx, call, cell)
}

/// Checks that every direction has the usual activations, with nothing to bound or scale them.
fn check_activations(call: NodeCall<'_>, usual: &[&str]) -> Res<()> {
    let given = call.texts("activations")?;
    let same = |(at, name): (usize, &String)| name.eq_ignore_ascii_case(usual[at % usual.len()]);
    if !given.len().is_multiple_of(usual.len()) || !given.iter().enumerate().all(same) {
        return fail_with(format!(
            "the activations {} are not supported: only {} in each direction",
            given.join(", "),
            usual.join(", ")
        ));
    }
    match ["clip", "activation_alpha", "activation_beta"]
        .into_iter()
        .find(|name| call.has_attribute(name))
    {
        Some(name) => fail_with(format!("the attribute `{name}` is not supported")),
        None => Ok(()),
    }
}

/// Lowers a layer: to the states after all steps, the last ones, and the last of the values that the cell keeps, if it keeps any.
fn lower_layer(cx: &mut Lowering, call: NodeCall<'_>, cell: Cell) -> Res<Vec<Val>> {
    let layer = RecurrentLayer::from_call(cx, call, cell)?;
    let mut states = Vec::new();
    let mut last = vec![Vec::new(); if cell.keeps_values() { 2 } else { 1 }];
    for (direction, reverse) in layer.directions.clone().into_iter().enumerate() {
        let made = layer.lower_direction(cx, direction, reverse)?;
        let step = if reverse { 0 } else { layer.time - 1 };
        for (last, all) in last.iter_mut().zip(&made) {
            let state = cx.slice(all, 1, step, step + 1, 1)?;
            last.push(layer.first_or_last(cx, &state)?);
        }
        states.push(made[0].clone());
    }
    let mut results = vec![layer.arrange_states(cx, states)?];
    for states in last {
        results.push(join_values(cx, states, layer.direction_dim())?);
    }
    Ok(results)
}

/// A recurrent layer, as a node describes it.
struct RecurrentLayer {
    cell: Cell,
    /// [n, t, inputs]
    x: Val,
    batch: usize,
    time: usize,
    width: usize,
    /// For each direction, whether it goes from the last step to the first.
    directions: Vec<bool>,
    /// Whether the model's batch comes first.
    batch_first: bool,
    /// [directions, gates width, inputs]
    inputs: Val,
    /// [directions, gates width, width]
    recurrent: Val,
    /// [directions, 2 gates width]
    biases: Option<Val>,
    /// [directions, n, width], or of the batch first [n, directions, width], where they are not 0.
    first: [Option<Val>; 2],
}

impl RecurrentLayer {
    fn from_call(cx: &mut Lowering, call: NodeCall<'_>, cell: Cell) -> Res<Self> {
        let batch_first = match call.int("layout", 0)? {
            0 => false,
            1 => true,
            other => return fail_with(format!("there is no layout {other}")),
        };
        let mut x = cx.operand(call, 0)?;
        if cx.shape(&x)?.len() == 3 && !batch_first {
            x = cx.transpose(&x, vec![1, 0, 2])?;
        }
        let (inputs, recurrent) = (cx.operand(call, 1)?, cx.operand(call, 2)?);
        let (of_x, of_r) = (cx.shape(&x)?, cx.shape(&recurrent)?);
        let (&[batch, time, _], &[_, _, width]) = (&of_x[..], &of_r[..]) else {
            return fail_with(format!(
                "its inputs and weights need three dims, not {of_x:?} and {of_r:?}"
            ));
        };
        if time == 0 {
            return fail_with("the sequence has no steps");
        }
        if call.int("hidden_size", width as i64)? != width as i64 {
            return fail_with(format!("hidden_size is not the width of the weights {of_r:?}"));
        }
        same_lengths(cx, call, time)?;
        let directions = match call.text("direction", "forward")? {
            "forward" => vec![false],
            "reverse" => vec![true],
            "bidirectional" => vec![false, true],
            other => return fail_with(format!("there is no direction `{other}`")),
        };
        let biases = cx.optional_operand(call, 3)?;
        let first = [
            cx.optional_operand(call, 5)?,
            if cell.keeps_values() { cx.optional_operand(call, 6)? } else { None },
        ];
        let layer = Self {
            cell,
            x,
            batch,
            time,
            width,
            directions,
            batch_first,
            inputs,
            recurrent,
            biases,
            first,
        };
        layer.check_shapes(cx)?;
        Ok(layer)
    }

    fn gates_width(&self) -> usize {
        self.cell.count_gates() * self.width
    }

    /// Checks the shapes of the operands that are split by direction.
    fn check_shapes(&self, cx: &Lowering) -> Res<()> {
        let inputs = cx.shape(&self.x)?[2];
        let (directions, gates) = (self.directions.len(), self.gates_width());
        let mut state = vec![directions, self.batch, self.width];
        if self.batch_first {
            state.swap(0, 1);
        }
        let [of_state, of_kept] = [&self.first[0], &self.first[1]];
        for (name, value, expected) in [
            ("W", Some(&self.inputs), vec![directions, gates, inputs]),
            ("R", Some(&self.recurrent), vec![directions, gates, self.width]),
            ("B", self.biases.as_ref(), vec![directions, 2 * gates]),
            ("initial_h", of_state.as_ref(), state.clone()),
            ("initial_c", of_kept.as_ref(), state),
        ] {
            let Some(value) = value else { continue };
            let found = cx.shape(value)?;
            if found != expected {
                return fail_with(format!(
                    "its operand `{name}` must be {expected:?}, not {found:?}"
                ));
            }
        }
        Ok(())
    }

    /// Returns the dim of directions in first and last states.
    fn direction_dim(&self) -> usize {
        usize::from(self.batch_first)
    }

    /// Computes all states of a direction, and the values that the cell keeps, if it keeps any; each is [n, t, width].
    fn lower_direction(&self, cx: &mut Lowering, direction: usize, reverse: bool) -> Res<Vec<Val>> {
        let gates = self.gates_width();
        let weight = |cx: &mut Lowering, all: &Val| -> Res<Val> {
            let shape = cx.shape(all)?;
            let own = cx.slice(all, 0, direction, direction + 1, 1)?;
            cx.reshape(&own, &shape[1..])
        };
        let (inputs, recurrent) = (weight(cx, &self.inputs)?, weight(cx, &self.recurrent)?);
        let mut x = cx.matmul(&self.x, &inputs, false, true)?;
        let bias = match &self.biases {
            None => Val::Known(KnownValue::splat(TensorType::new(cx.ty(&x)?.dtype, [gates]), 0.0)),
            Some(biases) => {
                let both = weight(cx, biases)?;
                let of_x = cx.slice(&both, 0, 0, gates, 1)?;
                let of_state = cx.slice(&both, 0, gates, 2 * gates, 1)?;
                if self.cell == Cell::Gru {
                    x = cx.apply_binary(BinaryFunction::Add, &x, &of_x)?;
                    of_state
                } else {
                    cx.apply_binary(BinaryFunction::Add, &of_x, &of_state)?
                }
            }
        };
        let mut operands = vec![x, recurrent, bias, self.first_state(cx, 0, direction)?];
        if self.cell.keeps_values() {
            operands.push(self.first_state(cx, 1, direction)?);
        }
        cx.apply_all(Op::Recurrence(Recurrence { cell: self.cell, reverse }), &operands)
    }

    /// Returns a state before the first step, [n, width].
    fn first_state(&self, cx: &mut Lowering, which: usize, direction: usize) -> Res<Val> {
        let shape = [self.batch, self.width];
        match &self.first[which] {
            None => {
                let dtype = cx.ty(&self.x)?.dtype;
                Ok(Val::Known(KnownValue::splat(TensorType::new(dtype, shape), 0.0)))
            }
            Some(all) => {
                let own = cx.slice(all, self.direction_dim(), direction, direction + 1, 1)?;
                cx.reshape(&own, &shape)
            }
        }
    }

    /// A state [n, 1, width] as one of one direction in the model's order.
    fn first_or_last(&self, cx: &mut Lowering, state: &Val) -> Res<Val> {
        let mut shape = vec![1, self.batch, self.width];
        if self.batch_first {
            shape.swap(0, 1);
        }
        cx.reshape(state, &shape)
    }

    /// The states of all directions in the model's order: [t, directions, n, width] or [n, t, directions, width].
    fn arrange_states(&self, cx: &mut Lowering, states: Vec<Val>) -> Res<Val> {
        let count = states.len();
        let all = join_values(cx, states, 2)?;
        let all = cx.reshape(&all, &[self.batch, self.time, count, self.width])?;
        if self.batch_first { Ok(all) } else { cx.transpose(&all, vec![1, 2, 0, 3]) }
    }
}

fn join_values(cx: &mut Lowering, values: Vec<Val>, axis: usize) -> Res<Val> {
    match &values[..] {
        [one] => Ok(one.clone()),
        _ => cx.apply(Op::Concat(Concat { axis }), &values),
    }
}

/// Checks that all sequences have all steps.
fn same_lengths(cx: &Lowering, call: NodeCall<'_>, time: usize) -> Res<()> {
    let Some(lengths) = cx.optional_operand(call, 4)? else { return Ok(()) };
    let known = cx.known_integers(&lengths, "the lengths of sequences (operand 4)")?;
    match known.iter().find(|&&length| length != time as i64) {
        Some(length) => fail_with(format!(
            "sequences of different lengths are not supported: one has {length} of {time} steps"
        )),
        None => Ok(()),
    }
}
