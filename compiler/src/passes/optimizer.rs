//! Appends the optimizer: an update of each trained variable and of its states, once a step.
//!
//! The schedule of the learning rate is part of the update's payload (`ir/src/learning_rate.rs`). The update
//! evaluates it at the number of the step, so a schedule costs no operand and keeps nothing.
//!
//! LAMB is two ops with sums of squares between them, because its step needs norms of whole tensors. Muon's products are ops of
//! the graph ([`super::muon`]), and so are all of those that [`super::composed`] has.

use graphc_ir::graph::Output;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::learning_rate::LearningRate;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{AdamUpdate, LambDirection, LambUpdate, RmspropUpdate, SgdUpdate, SquareSum};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::{AdamOptions, CompileOptions, Optimizer, RmspropOptions, StepRule, TensorKind};

use super::append::{Scalars, push_node, push_state, push_value};
use super::clipping::{GRAD_NORM, clip_norm};
use super::composed::{append_composed, counts_updates};
use super::groups::group_of;
use super::loss_scale::{SKIPPED, Scaled, check_gradients};
use super::muon::{append_muon, has_matrices, product_dtype};
use super::name_is_free;
use super::skipping::{StepGuard, push_guard, push_number};
use super::update_ops::Ops;
use crate::decisions::TrainingGraph;
use crate::passes::error::PassError;

const PASS: &str = "optimizer";

/// Appends updates to the training graph. States are variables named `state.<what>.<variable>`, 0 at first, of f32 whatever the precision of their
/// variable, in its stage and on its placement. If the loss is scaled or gradients are clipped by their norm, updates get the factor as an operand.
///
/// # Errors
/// Returns an error if a number of the options makes no sense, a name is taken, or an update does not take its variable, such as one without
/// floating-point numbers.
pub(crate) fn append_updates(
    mut training: TrainingGraph,
    options: &CompileOptions,
) -> Result<TrainingGraph, PassError> {
    check_numbers(options)?;
    let names = [(GRAD_NORM, options.clip_norm.is_some()), (SKIPPED, options.skip_non_finite)];
    for (name, _) in names.iter().filter(|(_, given)| *given && options.trains_variables()) {
        name_is_free(PASS, &training.graph, name)?;
    }
    append_all(&mut training, options).map_err(|error| PassError::Op { pass: PASS, error })?;
    Ok(training)
}

/// Checks the options that all optimizers have in common.
fn check_numbers(options: &CompileOptions) -> Result<(), PassError> {
    options.optimizer.map_or(Ok(()), check_optimizer)?;
    options.lr_schedule.check().map_err(|error| PassError::LrSchedule { error })?;
    for (what, value) in [("clip_norm", options.clip_norm), ("clip_value", options.clip_value)] {
        check_number(what, value, "above 0", |value| value > 0.0)?;
    }
    for group in &options.groups {
        group.optimizer.map_or(Ok(()), check_optimizer)?;
        let numbers = [
            ("the learning rate of a group", Some(group.lr)),
            ("the weight decay of a group", group.weight_decay),
        ];
        for (what, value) in numbers {
            check_number(what, value, "of at least 0", |value| value >= 0.0)?;
        }
    }
    Ok(())
}

/// Checks the numbers of an optimizer, as torch.optim does. What multiplies an average is a share of it that is less than all.
fn check_optimizer(optimizer: Optimizer) -> Result<(), PassError> {
    let (numbers, shares) = match optimizer {
        Optimizer::Sgd { lr, momentum, weight_decay, nesterov } => {
            let momentum_of = Some(momentum).filter(|_| nesterov);
            check_number("Nesterov's momentum", momentum_of, "above 0", |value| value > 0.0)?;
            (vec![("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)], Vec::new())
        }
        Optimizer::Adam(of) | Optimizer::AdamW(of) | Optimizer::Lamb(of) => (
            vec![("lr", of.lr), ("eps", of.eps), ("weight_decay", of.weight_decay)],
            vec![("beta1", of.beta1), ("beta2", of.beta2)],
        ),
        Optimizer::Rmsprop(of) => {
            let numbers = [("lr", of.lr), ("eps", of.eps), ("weight_decay", of.weight_decay)];
            ([&numbers[..], &[("momentum", of.momentum)]].concat(), vec![("alpha", of.alpha)])
        }
        Optimizer::Muon(of) => {
            for coefficient in of.coefficients {
                check_number("a coefficient of Muon", Some(coefficient), "that is finite", |_| {
                    true
                })?;
            }
            let iterations = Some(f64::from(of.iterations));
            let holds = |value| (1.0..100.0).contains(&value);
            check_number("iterations", iterations, "of at least 1 and below 100", holds)?;
            let numbers = vec![("lr", of.lr), ("eps", of.eps), ("weight_decay", of.weight_decay)];
            (numbers, vec![("momentum", of.momentum)])
        }
        Optimizer::Composed(of) => {
            if let StepRule::Adafactor(of) = of.rule {
                check_number("clip_step", Some(of.clip), "above 0", |value| value > 0.0)?;
            }
            let own = of.rule.numbers();
            let (shares, numbers): (Vec<_>, Vec<_>) =
                own.into_iter().partition(|&(_, _, is_share)| is_share);
            let plain = |(name, value, _)| (name, value);
            let numbers = numbers.into_iter().map(plain);
            let all = [("lr", of.lr), ("weight_decay", of.weight_decay)];
            (all.into_iter().chain(numbers).collect(), shares.into_iter().map(plain).collect())
        }
    };
    for (what, value) in numbers {
        check_number(what, Some(value), "of at least 0", |value| value >= 0.0)?;
    }
    for (what, value) in shares {
        let holds = |value| (0.0..1.0).contains(&value);
        check_number(what, Some(value), "of at least 0 and below 1", holds)?;
    }
    Ok(())
}

fn check_number(
    what: &'static str,
    value: Option<f64>,
    expected: &'static str,
    holds: impl Fn(f64) -> bool,
) -> Result<(), PassError> {
    match value.filter(|value| !value.is_finite() || !holds(*value)) {
        None => Ok(()),
        Some(value) => Err(PassError::Number { what, value, expected }),
    }
}

fn append_all(training: &mut TrainingGraph, options: &CompileOptions) -> Result<(), OpError> {
    let guard = if options.trains_variables() { push_guard(training, options)? } else { None };
    let scaled = match options.optimizer {
        Some(_) => check_gradients(training, guard)?,
        None => None,
    };
    if let (None, Some(guard)) = (scaled, guard) {
        training.graph.outputs.push(Output { name: SKIPPED.into(), value: guard.skipped });
    }
    // Where gradients alone are asked for, only the graph's own states are updated.
    let Some(optimizer) = options.optimizer else { return Ok(()) };
    let mut scalars = match (scaled, guard) {
        (Some(Scaled { factor, step }), _) | (None, Some(StepGuard { factor, step, .. })) => {
            Scalars { factor: Some(factor), made: Some(factor), step: Some(step), number: None }
        }
        (None, None) => Scalars { factor: None, made: None, step: None, number: None },
    };
    scalars.number = match scalars.step {
        None if !options.own_counts && asks_for_number(options) => push_number(training)?,
        step => step,
    };
    if let Some(max) = options.clip_norm {
        scalars.factor = clip_norm(training, max, scalars.factor)?.or(scalars.factor);
    }
    for (variable, gradient) in training.gradients.clone() {
        let group = group_of(&training.graph, variable, options);
        let decay = group.and_then(|group| group.weight_decay);
        let optimizer = group.and_then(|group| group.optimizer).unwrap_or(optimizer);
        let optimizer = decay.map_or(optimizer, |decay| optimizer.with_weight_decay(decay));
        let base = optimizer.lr() * group.map_or(1.0, |group| group.lr);
        let lr = LearningRate { base: base.into(), schedule: options.lr_schedule.clone() };
        let clip = options.clip_value.map(Scalar);
        let scalars = own_scalars(training, variable, (&optimizer, options), scalars)?;
        if let Optimizer::Composed(composed) = optimizer {
            append_composed(training, &composed, (lr, clip), (variable, gradient), scalars)?;
            continue;
        }
        if let Optimizer::Muon(muon) = optimizer
            && has_matrices(&training.graph, variable)
        {
            let dtype = product_dtype(options.precision, training.graph.value(variable).ty.dtype);
            append_muon(training, (&muon, dtype), (lr, clip), (variable, gradient), scalars)?;
            continue;
        }
        let update = optimizer_update(optimizer, lr.clone(), clip);
        let node = append_update(training, update, (variable, gradient), scalars)?;
        if let Optimizer::Lamb(_) = optimizer {
            append_lamb_step(training, lr, variable, node)?;
        }
    }
    Ok(())
}

/// Whether a rule of a variable's optimizer asks for the number of the update.
fn asks_for_number(options: &CompileOptions) -> bool {
    let groups = options.groups.iter().filter_map(|group| group.optimizer);
    let asks = |of| matches!(of, Optimizer::Composed(composed) if counts_updates(composed.rule));
    options.optimizer.into_iter().chain(groups).any(asks)
}

/// The scalars of a variable's update: where the loss is to grow gradients point the other way, and it may count its own updates.
fn own_scalars(
    training: &mut TrainingGraph,
    variable: ValueId,
    (optimizer, options): (&Optimizer, &CompileOptions),
    scalars: Scalars,
) -> Result<Scalars, OpError> {
    let mut ops = Ops { training, variable, scalars };
    let mut own = scalars;
    if options.maximize {
        own.factor = Some(match own.factor {
            Some(factor) => ops.scale(factor, -1.0)?,
            None => ops.constant(-1.0)?,
        });
    }
    if options.own_counts && counts(optimizer, has_matrices(&ops.training.graph, variable)) {
        let (state, one) = (ops.number_state("step", 0.0)?, ops.constant(1.0)?);
        own.number = Some(ops.average(state, one, [1.0, 1.0])?);
        own.step = own.number;
        own.factor = own.factor.or(Some(one));
    }
    Ok(own)
}

/// Whether an update depends on its number, of a variable of matrices or another.
fn counts(optimizer: &Optimizer, has_matrices: bool) -> bool {
    match optimizer {
        Optimizer::Sgd { .. } | Optimizer::Rmsprop(_) => false,
        Optimizer::Adam(_) | Optimizer::AdamW(_) | Optimizer::Lamb(_) => true,
        Optimizer::Muon(_) => !has_matrices,
        Optimizer::Composed(composed) => counts_updates(composed.rule),
    }
}

/// The update of an optimizer, or of LAMB its direction, and of Muon that of variables without matrices; and what its states are called.
fn optimizer_update(
    optimizer: Optimizer,
    lr: LearningRate,
    clip: Option<Scalar>,
) -> (Op, Vec<&'static str>) {
    let moments = vec!["exp_avg", "exp_avg_sq"];
    match optimizer {
        Optimizer::Sgd { momentum, nesterov, weight_decay, .. } => {
            let [momentum, weight_decay] = [momentum, weight_decay].map(Scalar);
            let states = if momentum.0 != 0.0 { vec!["momentum"] } else { Vec::new() };
            (Op::SgdUpdate(SgdUpdate { lr, momentum, nesterov, weight_decay, clip }), states)
        }
        Optimizer::Adam(options) => (adam_update(options, lr, clip, false), moments),
        Optimizer::AdamW(options) => (adam_update(options, lr, clip, true), moments),
        Optimizer::Lamb(options) => {
            let direction = LambDirection {
                beta1: Scalar(options.beta1),
                beta2: Scalar(options.beta2),
                epsilon: Scalar(options.eps),
                weight_decay: Scalar(options.weight_decay),
                clip,
            };
            (Op::LambDirection(direction), moments)
        }
        Optimizer::Rmsprop(options) => rmsprop_update(options, lr, clip),
        Optimizer::Muon(options) => (adam_update(options.of_others(), lr, clip, true), moments),
        Optimizer::Composed(_) => unreachable!("its ops are appended elsewhere"),
    }
}

fn adam_update(
    options: AdamOptions,
    lr: LearningRate,
    clip: Option<Scalar>,
    decoupled: bool,
) -> Op {
    Op::AdamUpdate(AdamUpdate {
        lr,
        beta1: Scalar(options.beta1),
        beta2: Scalar(options.beta2),
        epsilon: Scalar(options.eps),
        weight_decay: Scalar(options.weight_decay),
        decoupled,
        clip,
    })
}

fn rmsprop_update(
    options: RmspropOptions,
    lr: LearningRate,
    clip: Option<Scalar>,
) -> (Op, Vec<&'static str>) {
    let update = RmspropUpdate {
        lr,
        alpha: Scalar(options.alpha),
        epsilon: Scalar(options.eps),
        weight_decay: Scalar(options.weight_decay),
        momentum: Scalar(options.momentum),
        centered: options.centered,
        clip,
    };
    let further = [(update.centered, "grad_avg"), (update.has_momentum(), "momentum")];
    let further = further.into_iter().filter(|(has, _)| *has).map(|(_, name)| name);
    let states = ["square_avg"].into_iter().chain(further).collect();
    (Op::RmspropUpdate(update), states)
}

/// Appends the update of a variable, with its states.
fn append_update(
    training: &mut TrainingGraph,
    (op, states): (Op, Vec<&str>),
    (variable, gradient): (ValueId, ValueId),
    scalars: Scalars,
) -> Result<NodeId, OpError> {
    let home = training.graph.value(variable).producer;
    let name = training.graph.display_name(variable);
    let shape = training.graph.value(variable).ty.shape.clone();
    let ty = TensorType::new(DType::F32, shape);
    let mut operands = vec![variable, gradient];
    // A direction is no variable.
    let mut kinds = match op {
        Op::LambDirection(_) => vec![TensorKind::Gradient],
        _ => vec![TensorKind::Parameter],
    };
    for state in states {
        operands.push(push_state(training, format!("state.{state}.{name}"), ty.clone(), home)?);
        kinds.push(TensorKind::State);
    }
    operands.extend(scalars.operands_for(&op));
    push_node(training, op, operands, home, &kinds)
}

/// Appends the step of LAMB along a direction, scaled by the norms of the whole variable and of the whole direction.
fn append_lamb_step(
    training: &mut TrainingGraph,
    lr: LearningRate,
    variable: ValueId,
    direction: NodeId,
) -> Result<(), OpError> {
    let home = training.graph.value(variable).producer;
    let direction = training.graph.node(direction).results[0];
    let mut operands = vec![variable, direction];
    for tensor in [variable, direction] {
        operands.push(push_value(training, Op::SquareSum(SquareSum {}), vec![tensor], home)?);
    }
    let update = Op::LambUpdate(LambUpdate { lr });
    push_node(training, update, operands, home, &[TensorKind::Parameter])?;
    Ok(())
}
