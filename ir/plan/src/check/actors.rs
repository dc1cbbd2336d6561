//! Checks of actors: each has registers of the right number, rate and extent for what it does.

use graphc_ir::ids::{LayoutId, RegisterId};
use graphc_ir::op::Op;
use graphc_ir::types::TensorType;

use super::ErrorCollector;
use crate::{
    Action, Actor, BoxingKind, FusedArg, FusedOp, FusedStep, Layout, OperandSource, Plan, Program,
    Rate, RegisterKind,
};

/// Checks that everything that an actor names exists.
pub(super) fn check_references(
    plan: &Plan,
    program: &Program,
    actor: &Actor,
    place: &str,
    errors: &mut ErrorCollector,
) {
    let registers = actor.inputs.iter().chain(&actor.outputs).chain(&actor.updates);
    for register in registers.filter(|register| register.index() >= program.registers.len()) {
        errors.add(place, format!("there is no register {register}"));
    }
    if let Action::Send { channel } | Action::Receive { channel } = &actor.action {
        let known = channel.index() < plan.channels.len();
        errors.require(known, place, || format!("there is no {channel}"));
    }
    if let Some(before) = actor.after {
        let alike =
            program.actors.get(before.index()).is_some_and(|other| other.rate == actor.rate);
        errors.require(alike, place, || {
            format!("stands behind {before}, which is no actor of the same rate")
        });
    }
}

/// Checks an actor whose registers exist.
pub(super) fn check_actor(
    plan: &Plan,
    program: &Program,
    actor: &Actor,
    place: &str,
    errors: &mut ErrorCollector,
) {
    check_rates(program, actor, place, errors);
    let cx = ActorContext { plan, program, actor };
    if let Some(message) = cx.check_action() {
        errors.add(place, message);
    }
}

fn check_rates(program: &Program, actor: &Actor, place: &str, errors: &mut ErrorCollector) {
    let rate = |register: &RegisterId| program.registers[register.index()].rate;
    let variable = |register: &RegisterId| {
        matches!(program.registers[register.index()].kind, RegisterKind::Variable { .. })
    };
    let accumulates = matches!(actor.action, Action::Accumulate);
    let filled = if accumulates { Rate::Step } else { actor.rate };
    let outputs = actor.outputs.iter().all(|output| rate(output) == filled && !variable(output));
    errors.require(outputs, place, || "fills a register of another rate, or a variable".into());
    let reads = actor.rate == Rate::Microbatch
        || !accumulates && actor.inputs.iter().all(|input| rate(input) == Rate::Step);
    errors.require(reads, place, || "acts once a step on what microbatches make".into());
    let updates = actor.updates.iter().all(variable)
        && !actor.updates.iter().any(|u| actor.inputs.contains(u));
    let once = actor.updates.is_empty() || actor.rate == Rate::Step;
    errors.require(updates && once, place, || {
        "may update variables alone, once a step, and not read them besides".into()
    });
}

struct ActorContext<'a> {
    plan: &'a Plan,
    program: &'a Program,
    actor: &'a Actor,
}

impl ActorContext<'_> {
    /// The fault of the actor's action, if there is one.
    fn check_action(&self) -> Option<String> {
        match &self.actor.action {
            Action::Compute { op, operands } => self.check_compute(op, operands),
            Action::Fused(fused) => {
                let counts = self.check_counts(None, Some(fused.outputs.len()), 0);
                counts.or_else(|| self.check_fused(fused).err())
            }
            Action::Collective { kind, axis, .. } => self.check_collective(*kind, *axis),
            Action::Local { kind } => {
                let local = matches!(kind, BoxingKind::Slice | BoxingKind::Mask);
                let wrong = (!local).then(|| format!("{kind:?} is not local"));
                self.check_counts(Some(1), Some(1), 0).or(wrong).or_else(|| self.same_tensor())
            }
            Action::Send { channel } => {
                let from = self.plan.channels[channel.index()].from;
                self.check_counts(Some(1), Some(0), 0)
                    .or_else(|| self.laid_out(self.actor.inputs[0], from))
            }
            Action::Receive { channel } => {
                let to = self.plan.channels[channel.index()].to;
                self.check_counts(Some(0), Some(1), 0)
                    .or_else(|| self.laid_out(self.actor.outputs[0], to))
            }
            Action::Accumulate => {
                let counts = self.check_counts(Some(1), Some(1), 0).or_else(|| self.same_tensor());
                counts.or_else(|| self.same_shard(self.actor.inputs[0], self.actor.outputs[0]))
            }
            Action::Assign => {
                self.check_counts(Some(1), Some(0), 1).or_else(|| self.check_assign())
            }
            Action::Feed { .. } => self.check_counts(Some(0), Some(1), 0),
            Action::Fetch { .. } => self.check_counts(Some(1), Some(0), 0),
        }
    }

    fn check_counts(
        &self,
        inputs: Option<usize>,
        outputs: Option<usize>,
        updates: usize,
    ) -> Option<String> {
        let actor = self.actor;
        let holds = inputs.is_none_or(|count| actor.inputs.len() == count)
            && outputs.is_none_or(|count| actor.outputs.len() == count)
            && actor.updates.len() == updates;
        (!holds).then(|| {
            let (i, o, u) = (actor.inputs.len(), actor.outputs.len(), actor.updates.len());
            format!("cannot have {i} inputs, {o} outputs and {u} updates")
        })
    }

    fn register_layout(&self, register: RegisterId) -> &Layout {
        &self.plan.layouts[self.program.registers[register.index()].layout.index()]
    }

    fn check_compute(&self, op: &Op, operands: &[OperandSource]) -> Option<String> {
        let actor = self.actor;
        let registers = operands.iter().map(|&operand| actor.operand_register(operand));
        let Some(registers) = registers.collect::<Option<Vec<_>>>() else {
            return Some("an operand is neither an input nor an update".into());
        };
        // Each is overwritten by one result, and read by nobody else meanwhile.
        let named = |update: usize| {
            operands.iter().filter(|&&other| other == OperandSource::Update(update)).count()
        };
        if (0..actor.updates.len()).any(|update| named(update) != 1) {
            return Some("a variable that it updates is not one operand".into());
        }
        let types: Vec<TensorType> =
            registers.iter().map(|&r| self.register_layout(r).ty()).collect();
        let results = match op.infer_types(&types.iter().collect::<Vec<_>>()) {
            Ok(results) => results,
            Err(error) => return Some(error.to_string()),
        };
        let pairs = op.operation().updates();
        let in_place = |result: usize| {
            pairs.iter().any(|p| p.0 == result && operands.get(p.1).is_some_and(|o| o.is_update()))
        };
        for &(result, operand) in pairs.iter().filter(|pair| in_place(pair.0)) {
            if results.get(result) != types.get(operand) {
                return Some(format!(
                    "result {result} is not of the type of the variable it updates"
                ));
            }
        }
        let made: Vec<TensorType> = results
            .into_iter()
            .enumerate()
            .filter(|(result, _)| !in_place(*result))
            .map(|(_, ty)| ty)
            .collect();
        if made.is_empty() && actor.updates.is_empty() {
            return Some("makes nothing".into());
        }
        let filled: Vec<TensorType> =
            actor.outputs.iter().map(|&r| self.register_layout(r).ty()).collect();
        (made != filled).then(|| format!("makes {made:?}, its outputs are {filled:?}"))
    }

    /// The types of a chain's steps follow from its inputs, and its outputs are of the types of theirs. Only outputs are
    /// reductions.
    fn check_fused(&self, fused: &FusedOp) -> Result<(), String> {
        let actor = self.actor;
        let no_chain = || "is no chain of elementwise ops on its inputs".to_owned();
        let whole = |register: RegisterId| self.register_layout(register).ty();
        let input = |operand: usize| actor.inputs.get(operand).copied();
        let types = step_types(fused, None, |operand| input(operand).map(whole))?;
        let part = |register: RegisterId| {
            let shape = self.program.registers[register.index()].shape.as_slice();
            TensorType::new(self.register_layout(register).dtype, shape)
        };
        let operand = |operand: usize| input(operand).map(part);
        // It lies where an output of its type will be.
        let made = fused
            .steps
            .iter()
            .position(|step| is_chain_start(fused, step))
            .map(|step| &types[step]);
        let dtype = |output: &&RegisterId| {
            Some(self.register_layout(**output).dtype) == made.map(|ty| ty.dtype)
        };
        let place = actor.outputs.iter().find(dtype).map(|&output| part(output));
        if made.is_some() && place.is_none() {
            return Err("begins with what has no output of its type".into());
        }
        let parts = step_types(fused, place.as_ref(), operand)?;
        if !one_shape(fused, operand, &parts) {
            return Err("sums what it cannot, or gives values of different shapes".into());
        }
        let register = |&output: &RegisterId| self.register_layout(output).ty();
        for (&step, filled) in fused.outputs.iter().zip(actor.outputs.iter().map(register)) {
            let made = types.get(step).ok_or_else(no_chain)?;
            if *made != filled {
                return Err(format!("step {step} makes {made}, its output is {filled}"));
            }
        }
        Ok(())
    }

    /// Input and output are the same part of a tensor.
    fn same_shard(&self, input: RegisterId, output: RegisterId) -> Option<String> {
        let shape = |r: RegisterId| &self.program.registers[r.index()].shape;
        let same = shape(input) == shape(output);
        (!same).then(|| format!("{input} and {output} are parts of different shapes"))
    }

    fn check_collective(&self, kind: BoxingKind, axis: usize) -> Option<String> {
        let actor = self.actor;
        let pairs = actor.inputs.len() == actor.outputs.len() && !actor.inputs.is_empty();
        if !pairs || !actor.updates.is_empty() {
            return Some("needs one output for each input".into());
        }
        let moves = matches!(
            kind,
            BoxingKind::AllReduce
                | BoxingKind::ReduceScatter
                | BoxingKind::AllGather
                | BoxingKind::AllToAll
        );
        let first = self.register_layout(actor.inputs[0]);
        let fits = |&register: &RegisterId| {
            let layout = self.register_layout(register);
            (&layout.ranks, &layout.hierarchy) == (&first.ranks, &first.hierarchy)
        };
        let meshes = actor.inputs.iter().chain(&actor.outputs).all(fits);
        if !moves || !meshes || axis >= first.hierarchy.len() {
            return Some(format!("{kind:?} over axis {axis} does not fit its registers"));
        }
        self.same_tensor()
    }

    /// Input i and output i are one tensor.
    fn same_tensor(&self) -> Option<String> {
        let mut pairs = self.actor.inputs.iter().zip(&self.actor.outputs);
        let differ = |pair: &(&RegisterId, &RegisterId)| {
            self.register_layout(*pair.0).ty() != self.register_layout(*pair.1).ty()
        };
        pairs.find(differ).map(|(i, o)| format!("{i} and {o} are not the same tensor"))
    }

    fn laid_out(&self, register: RegisterId, layout: LayoutId) -> Option<String> {
        let holds = self.program.registers[register.index()].layout == layout;
        (!holds).then(|| format!("{register} does not lie as its channel says"))
    }

    fn check_assign(&self) -> Option<String> {
        let [input, update] = [self.actor.inputs[0], self.actor.updates[0]];
        let shape = |r: RegisterId| &self.program.registers[r.index()].shape;
        let holds = self.register_layout(input).ty() == self.register_layout(update).ty()
            && shape(input) == shape(update);
        (!holds).then(|| format!("{input} does not lie as {update}"))
    }
}

/// The types of a chain's steps, of operands of these types: of whole tensors, or of the shards at hand. That of what the chain
/// begins with may be given.
fn step_types(
    fused: &FusedOp,
    given: Option<&TensorType>,
    operand: impl Fn(usize) -> Option<TensorType>,
) -> Result<Vec<TensorType>, String> {
    let no_chain = || "is no chain of elementwise ops on its inputs".to_owned();
    let mut types: Vec<TensorType> = Vec::new();
    for step in &fused.steps {
        let argument = |arg: &FusedArg| match *arg {
            FusedArg::Operand(index) => operand(index),
            FusedArg::Step(before) => types.get(before).cloned(),
        };
        let operands = step.args.iter().map(argument).collect::<Option<Vec<_>>>();
        let operands = operands.ok_or_else(no_chain)?;
        if is_chain_start(fused, step)
            && let Some(given) = given
        {
            types.push(given.clone());
            continue;
        }
        let found = step.op.infer_types(&operands.iter().collect::<Vec<_>>());
        let found = found.map_err(|error| error.to_string())?;
        match <[TensorType; 1]>::try_from(found) {
            Ok([ty])
                if step.op.operation().is_elementwise()
                    || is_chain_end(fused, types.len())
                    || is_chain_start(fused, step) =>
            {
                types.push(ty);
            }
            _ => return Err(no_chain()),
        }
    }
    Ok(types)
}

/// Whether all that a chain gives is of one shape, and so is what it sums, each sum of a kind that chains may end in.
fn one_shape(
    fused: &FusedOp,
    operand: impl Fn(usize) -> Option<TensorType>,
    types: &[TensorType],
) -> bool {
    let summed = |arg: &FusedArg| match *arg {
        FusedArg::Operand(index) => operand(index),
        FusedArg::Step(before) => types.get(before).cloned(),
    };
    let mut given = fused.outputs.iter().map(|&step| match &fused.steps.get(step)?.op {
        Op::Reduce(reduce) => {
            let ty = summed(fused.steps[step].args.first()?)?;
            reduce.run_extents(&ty).map(|_| ty.shape)
        }
        _ => types.get(step).map(|ty| ty.shape.clone()),
    });
    let first = given.next().flatten();
    first.is_some() && given.all(|shape| shape == first)
}

/// Whether a step is what the chain begins with: the only one of its kind, which reads operands of the chain, and nothing is
/// summed.
fn is_chain_start(fused: &FusedOp, step: &FusedStep) -> bool {
    let begins = |step: &&FusedStep| step.op.operation().begins_chain();
    begins(&step)
        && fused.steps.iter().filter(begins).count() == 1
        && step.args.iter().all(|arg| matches!(arg, FusedArg::Operand(_)))
        && !fused.steps.iter().any(|step| matches!(step.op, Op::Reduce(_)))
}

/// Whether a step is a reduction, an output that no step reads.
fn is_chain_end(fused: &FusedOp, step: usize) -> bool {
    let read = fused.steps.iter().any(|other| other.args.contains(&FusedArg::Step(step)));
    let output = fused.outputs.iter().filter(|&&output| output == step).count() == 1;
    matches!(fused.steps[step].op, Op::Reduce(_)) && !read && output
}
