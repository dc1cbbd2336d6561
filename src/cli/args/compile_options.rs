//! The options of the command line for the compiler.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use graphc_compiler::passes::LOSS;
use graphc_plan::{
    AdafactorOptions, AdamOptions, CompileOptions, ComposedOptions, CrossEntropyForm, MuonOptions,
    MuonRate, Optimizer, ParameterGroup, RmspropOptions, Schedule, StepRule, Strategy,
};

use super::{Count, LossChoice, OptimizerName, SharedArgs, value_name};
use crate::cli::world::world_size;

/// The compiler's options; `dims` are the values of the model's symbolic dims.
pub(crate) fn compile_options(
    args: &SharedArgs,
    dims: BTreeMap<String, usize>,
) -> Result<CompileOptions> {
    let mut options = CompileOptions {
        mesh: choose_mesh(args)?,
        stages: count_or_one(args.stages),
        microbatches: count_or_one(args.microbatches),
        auto_stages: args.stages == Some(Count::Auto),
        auto_microbatches: args.microbatches == Some(Count::Auto),
        schedule: args.schedule.unwrap_or(Schedule::OneForwardOneBackward),
        dims,
        loss: args.loss.as_ref().and_then(LossChoice::attached_loss),
        fetch: fetched_outputs(args),
        optimizer: choose_optimizer(args)?,
        maximize: args.maximize,
        own_counts: args.own_counts,
        ema: args.ema,
        gradients: false,
        gradients_of: args.gradients_of.clone(),
        strategy: args.strategy.unwrap_or(Strategy::Auto),
        recompute: args.recompute.unwrap_or_default(),
        cross_entropy: CrossEntropyForm::Auto,
        keep_attention: args.keep_attention,
        keep_order: args.keep_order,
        precision: args.precision.map(|asked| asked.dtype),
        float8_recipe: args.precision.map(|asked| asked.float8_recipe).unwrap_or_default(),
        pins: args.pins.clone(),
        memory: args.memory,
        effort: args.effort.filter(|&percent| percent < 100),
        ..CompileOptions::default()
    };
    args.hyperparameters.apply(&mut options)?;
    let by_adamw = groups_by_adamw(args, options.optimizer.as_ref());
    options.groups = [by_adamw, options.groups].concat();
    Ok(options)
}

/// The groups that AdamW updates beside Muon.
fn groups_by_adamw(args: &SharedArgs, optimizer: Option<&Optimizer>) -> Vec<ParameterGroup> {
    let Some(Optimizer::Muon(muon)) = optimizer else { return Vec::new() };
    let adamw = Optimizer::AdamW(muon.of_others());
    args.by_adamw.iter().map(|pattern| ParameterGroup::updated_by(pattern, adamw)).collect()
}

/// The outputs that are asked for: a training on an output of the model gives the others where somebody asks for them.
fn fetched_outputs(args: &SharedArgs) -> Vec<String> {
    let trains_on_output =
        matches!(args.loss, Some(LossChoice::Output(_))) && args.optimizer.is_some();
    if trains_on_output && args.fetch.is_empty() { vec![LOSS.into()] } else { args.fetch.clone() }
}

/// A number that was given; 1 where none was, or it is the compiler's choice.
fn count_or_one(count: Option<Count>) -> usize {
    match count {
        Some(Count::Of(number)) => number,
        Some(Count::Auto) | None => 1,
    }
}

/// The mesh: that of the command line, or one axis of all processes that a launcher has started.
fn choose_mesh(args: &SharedArgs) -> Result<Vec<usize>> {
    let world = world_size()?;
    let mesh = args.mesh.as_ref().map_or(vec![world.unwrap_or(1)], |mesh| mesh.0.clone());
    let ranks: usize = mesh.iter().product();
    if let Some(world) = world {
        ensure!(
            ranks == world,
            "--mesh has {ranks} ranks, and the launcher has started {world} (WORLD_SIZE): they must be the same"
        );
    }
    Ok(mesh)
}

/// The learning rate where none is given: torch.optim's, of Lion its authors'.
fn usual_rate(optimizer: OptimizerName) -> f64 {
    use OptimizerName::{
        Adadelta, Adafactor, Adagrad, Adam, Adamax, Adamw, Lamb, Lion, Muon, Nadam, Radam, Rmsprop,
        Sgd,
    };
    match optimizer {
        Rmsprop | Adagrad | Adafactor => 1e-2,
        Adadelta => 1.0,
        Adamax | Nadam => 2e-3,
        Sgd | Adam | Adamw | Lamb | Muon | Radam => 1e-3,
        Lion => 1e-4,
    }
}

/// The text about the learning rate, where none is given.
pub(crate) fn default_rate(optimizer: OptimizerName) -> String {
    let rate = usual_rate(optimizer);
    let name = value_name(&optimizer);
    format!("no --lr is given: {name} takes its default, {rate}")
}

/// The optimizer with torch.optim's defaults for what is unset; of LAMB those of NVIDIA's Apex.
fn choose_optimizer(args: &SharedArgs) -> Result<Option<Optimizer>> {
    let Some(name) = args.optimizer else {
        return refuse_numbers(args).map(|()| None);
    };
    check_owners(args, name)?;
    if args.nesterov && args.momentum.unwrap_or(0.0) <= 0.0 {
        bail!("--nesterov needs --momentum above 0");
    }
    ensure!(
        args.dampening.is_none_or(|of| of == 0.0) || !args.nesterov && args.momentum.is_some(),
        "--dampening needs --momentum without --nesterov"
    );
    let lr = args.lr.unwrap_or(usual_rate(name));
    let set = |defaults: AdamOptions| AdamOptions {
        lr: defaults.lr,
        beta1: args.beta1.unwrap_or(defaults.beta1),
        beta2: args.beta2.unwrap_or(defaults.beta2),
        eps: args.eps.unwrap_or(defaults.eps),
        weight_decay: args.weight_decay.unwrap_or(defaults.weight_decay),
    };
    let composed = |defaults| Optimizer::Composed(set_composed(args, defaults));
    Ok(Some(match name {
        OptimizerName::Sgd if args.dampening.is_some_and(|of| of > 0.0) => {
            composed(ComposedOptions::damped(lr, 0.0, 0.0))
        }
        OptimizerName::Adam if args.amsgrad => composed(ComposedOptions::amsgrad(lr)),
        OptimizerName::Adamw if args.amsgrad => composed(ComposedOptions {
            decoupled: true,
            weight_decay: AdamOptions::adamw(lr).weight_decay,
            ..ComposedOptions::amsgrad(lr)
        }),
        OptimizerName::Adagrad => composed(ComposedOptions::adagrad(lr)),
        OptimizerName::Adadelta => composed(ComposedOptions::adadelta(lr)),
        OptimizerName::Adamax => composed(ComposedOptions::adamax(lr)),
        OptimizerName::Nadam => composed(ComposedOptions::nadam(lr)),
        OptimizerName::Radam => composed(ComposedOptions::radam(lr)),
        OptimizerName::Lion => composed(ComposedOptions::lion(lr)),
        OptimizerName::Adafactor => composed(ComposedOptions::adafactor(lr)),
        OptimizerName::Sgd => Optimizer::Sgd {
            lr,
            momentum: args.momentum.unwrap_or(0.0),
            nesterov: args.nesterov,
            weight_decay: args.weight_decay.unwrap_or(0.0),
        },
        OptimizerName::Adam => Optimizer::Adam(set(AdamOptions::adam(lr))),
        OptimizerName::Adamw => Optimizer::AdamW(set(AdamOptions::adamw(lr))),
        OptimizerName::Lamb => Optimizer::Lamb(set(AdamOptions::lamb(lr))),
        OptimizerName::Rmsprop => Optimizer::Rmsprop(set_rmsprop(args, RmspropOptions::new(lr))),
        OptimizerName::Muon => Optimizer::Muon(set_muon(args, MuonOptions::new(lr))),
    }))
}

/// Refuses options of an optimizer where none is asked for.
fn refuse_numbers(args: &SharedArgs) -> Result<()> {
    let given = [
        ("--lr", args.lr.is_some()),
        ("--weight-decay", args.weight_decay.is_some()),
        ("--momentum", args.momentum.is_some()),
        ("--nesterov", args.nesterov),
        ("--beta1", args.beta1.is_some()),
        ("--beta2", args.beta2.is_some()),
        ("--eps", args.eps.is_some()),
        ("--alpha", args.alpha.is_some()),
        ("--centered", args.centered),
        ("--maximize", args.maximize),
        ("--own-counts", args.own_counts),
        ("--dampening", args.dampening.is_some()),
        ("--amsgrad", args.amsgrad),
        ("--decoupled", args.decoupled),
        ("--momentum-decay", args.momentum_decay.is_some()),
        ("--lr-decay", args.lr_decay.is_some()),
        ("--initial-accumulator", args.initial_accumulator.is_some()),
        ("--decay-exponent", args.decay_exponent.is_some()),
        ("--least-scale", args.least_scale.is_some()),
        ("--clip-step", args.clip_step.is_some()),
        ("--fixed-rate", args.fixed_rate),
        ("--unscaled", args.unscaled),
        ("--adjust-lr", args.adjust_lr.is_some()),
        ("--by-adamw", !args.by_adamw.is_empty()),
        ("--plain-momentum", args.plain_momentum),
        ("--iterations", args.iterations.is_some()),
        ("--coefficients", args.coefficients.is_some()),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => {
            bail!("{option} belongs to an optimizer: say which with --optimizer")
        }
        None => Ok(()),
    }
}

/// RMSprop's numbers that the command line gives, and the defaults of the others.
fn set_rmsprop(args: &SharedArgs, defaults: RmspropOptions) -> RmspropOptions {
    RmspropOptions {
        lr: defaults.lr,
        alpha: args.alpha.unwrap_or(defaults.alpha),
        eps: args.eps.unwrap_or(defaults.eps),
        weight_decay: args.weight_decay.unwrap_or(defaults.weight_decay),
        momentum: args.momentum.unwrap_or(defaults.momentum),
        centered: args.centered,
    }
}

/// Muon's numbers that the command line gives, and the defaults of the others.
fn set_muon(args: &SharedArgs, defaults: MuonOptions) -> MuonOptions {
    MuonOptions {
        momentum: args.momentum.unwrap_or(defaults.momentum),
        weight_decay: args.weight_decay.unwrap_or(defaults.weight_decay),
        eps: args.eps.unwrap_or(defaults.eps),
        rate: args.adjust_lr.map_or(defaults.rate, MuonRate::from),
        nesterov: !args.plain_momentum,
        iterations: args.iterations.unwrap_or(defaults.iterations),
        coefficients: args.coefficients.map_or(defaults.coefficients, |of| of.0),
        ..defaults
    }
}

/// The numbers of a composed optimizer that the command line gives, and the defaults of the others.
fn set_composed(args: &SharedArgs, defaults: ComposedOptions) -> ComposedOptions {
    let beta1 = |default| args.beta1.unwrap_or(default);
    let beta2 = |default| args.beta2.unwrap_or(default);
    let epsilon = |default| args.eps.unwrap_or(default);
    let rule = match defaults.rule {
        StepRule::Damped { momentum, dampening } => StepRule::Damped {
            momentum: args.momentum.unwrap_or(momentum),
            dampening: args.dampening.unwrap_or(dampening),
        },
        StepRule::Amsgrad { beta1: first, beta2: second, eps } => {
            StepRule::Amsgrad { beta1: beta1(first), beta2: beta2(second), eps: epsilon(eps) }
        }
        StepRule::Adamax { beta1: first, beta2: second, eps } => {
            StepRule::Adamax { beta1: beta1(first), beta2: beta2(second), eps: epsilon(eps) }
        }
        StepRule::Radam { beta1: first, beta2: second, eps } => {
            StepRule::Radam { beta1: beta1(first), beta2: beta2(second), eps: epsilon(eps) }
        }
        StepRule::Nadam { beta1: first, beta2: second, eps, momentum_decay } => StepRule::Nadam {
            beta1: beta1(first),
            beta2: beta2(second),
            eps: epsilon(eps),
            momentum_decay: args.momentum_decay.unwrap_or(momentum_decay),
        },
        StepRule::Adagrad { lr_decay, initial, eps } => StepRule::Adagrad {
            lr_decay: args.lr_decay.unwrap_or(lr_decay),
            initial: args.initial_accumulator.unwrap_or(initial),
            eps: epsilon(eps),
        },
        StepRule::Adadelta { rho, eps } => {
            StepRule::Adadelta { rho: args.alpha.unwrap_or(rho), eps: epsilon(eps) }
        }
        StepRule::Lion { beta1: first, beta2: second } => {
            StepRule::Lion { beta1: beta1(first), beta2: beta2(second) }
        }
        StepRule::Adafactor(of) => StepRule::Adafactor(AdafactorOptions {
            decay_exponent: args.decay_exponent.unwrap_or(of.decay_exponent),
            eps: epsilon(if args.fixed_rate { 1e-30 } else { of.eps }),
            least_scale: args.least_scale.unwrap_or(of.least_scale),
            clip: args.clip_step.unwrap_or(of.clip),
            fixed_rate: args.fixed_rate,
            unscaled: args.unscaled,
        }),
    };
    ComposedOptions {
        rule,
        weight_decay: args.weight_decay.unwrap_or(defaults.weight_decay),
        decoupled: defaults.decoupled || args.decoupled,
        ..defaults
    }
}

/// Refuses numbers of other optimizers.
fn check_owners(args: &SharedArgs, name: OptimizerName) -> Result<()> {
    use OptimizerName::{
        Adadelta, Adafactor, Adagrad, Adam, Adamax, Adamw, Lamb, Lion, Muon, Nadam, Radam, Rmsprop,
        Sgd,
    };
    let of_moments = [Adam, Adamw, Lamb, Adamax, Nadam, Radam, Lion];
    let moments = "adam, adamw, lamb, adamax, nadam, radam and lion";
    let of_eps =
        [Adam, Adamw, Lamb, Rmsprop, Muon, Adagrad, Adadelta, Adamax, Nadam, Radam, Adafactor];
    let owners: [(&str, bool, &[OptimizerName], &str); 23] = [
        ("--momentum", args.momentum.is_some(), &[Sgd, Rmsprop, Muon], "sgd, rmsprop and muon"),
        ("--nesterov", args.nesterov, &[Sgd], "sgd"),
        ("--dampening", args.dampening.is_some(), &[Sgd], "sgd"),
        ("--beta1", args.beta1.is_some(), &of_moments, moments),
        ("--beta2", args.beta2.is_some(), &of_moments, moments),
        ("--eps", args.eps.is_some(), &of_eps, "all but sgd and lion"),
        ("--alpha", args.alpha.is_some(), &[Rmsprop, Adadelta], "rmsprop and adadelta"),
        ("--centered", args.centered, &[Rmsprop], "rmsprop"),
        ("--amsgrad", args.amsgrad, &[Adam, Adamw], "adam and adamw"),
        ("--decoupled", args.decoupled, &[Nadam, Radam], "nadam and radam"),
        ("--momentum-decay", args.momentum_decay.is_some(), &[Nadam], "nadam"),
        ("--lr-decay", args.lr_decay.is_some(), &[Adagrad], "adagrad"),
        ("--initial-accumulator", args.initial_accumulator.is_some(), &[Adagrad], "adagrad"),
        ("--decay-exponent", args.decay_exponent.is_some(), &[Adafactor], "adafactor"),
        ("--least-scale", args.least_scale.is_some(), &[Adafactor], "adafactor"),
        ("--clip-step", args.clip_step.is_some(), &[Adafactor], "adafactor"),
        ("--fixed-rate", args.fixed_rate, &[Adafactor], "adafactor"),
        ("--unscaled", args.unscaled, &[Adafactor], "adafactor"),
        ("--adjust-lr", args.adjust_lr.is_some(), &[Muon], "muon"),
        ("--by-adamw", !args.by_adamw.is_empty(), &[Muon], "muon"),
        ("--plain-momentum", args.plain_momentum, &[Muon], "muon"),
        ("--iterations", args.iterations.is_some(), &[Muon], "muon"),
        ("--coefficients", args.coefficients.is_some(), &[Muon], "muon"),
    ];
    for (flag, given, of, names) in owners {
        let own = value_name(&name);
        ensure!(!given || of.contains(&name), "{flag} is an option of {names}, not of {own}");
    }
    Ok(())
}
