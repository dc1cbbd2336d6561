//! A plan file has been compiled with its options: what is given beside it may repeat them, and not contradict them.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use anyhow::{Context, Result, bail};
use graphc_ir::graph::Graph;
use graphc_ir::mesh::format_mesh;
use graphc_ir::pattern::matches_pattern;
use graphc_plan::{
    Action, AdamOptions, CompileOptions, ComposedOptions, MuonOptions, MuonRate, Optimizer,
    ParameterGroup, Plan, RmspropOptions, StepRule,
};

use super::args::{
    Coefficients, Count, HyperparameterArgs, LossChoice, OnNan, OptimizerName, Precision,
    SharedArgs, value_name,
};
use super::clusters::{read_cluster, run_by};

/// Options that are given, as far as they were compared.
pub(super) struct Given<'a> {
    path: &'a Path,
}

/// Refuses the first option that a plan contradicts.
pub(super) fn check_options(path: &Path, plan: &Plan, args: &SharedArgs) -> Result<()> {
    let given = Given { path };
    check_machines(&given, plan, args)?;
    check_graph(&given, plan, args)?;
    check_optimizer(&given, plan, args)?;
    let own = &plan.options;
    check_training(&args.hyperparameters, &given, own)?;
    given.check_option("--strategy", args.strategy, own.strategy)?;
    given.check_option("--recompute", args.recompute, own.recompute)?;
    match (args.ema, own.ema) {
        (Some(ema), None) => given.refuse_option("--ema", &ema.to_string(), "without averages")?,
        (given_ema, own) => given.check_option("--ema", given_ema, own.unwrap_or_default())?,
    }
    let own_precision =
        own.precision.map(|dtype| Precision { dtype, float8_recipe: own.float8_recipe });
    if let Some(precision) = args.precision.filter(|&given| Some(given) != own_precision) {
        let own =
            own_precision.map_or("as the model is written".into(), |own| format!("with {own}"));
        given.refuse_option("--precision", &precision.to_string(), &own)?;
    }
    given.check_option("--effort", args.effort, own.effort.unwrap_or(100))?;
    given.check_option(
        "--memory",
        args.memory,
        own.memory.unwrap_or(plan.cluster.device.memory),
    )?;
    if let Some(pin) = args.pins.iter().find(|pin| !own.pins.contains(pin)) {
        let text = format!("{}={}", pin.pattern, pin.sbp);
        return given.refuse_option("--pin", &text, "without this pin");
    }
    Ok(())
}

impl Given<'_> {
    /// An option that is given is the plan's.
    pub(super) fn check_option<T: PartialEq + Display>(
        &self,
        option: &str,
        given: Option<T>,
        own: T,
    ) -> Result<()> {
        match given {
            Some(given) if given != own => {
                self.refuse_option(option, &given.to_string(), &format!("with {own}"))
            }
            _ => Ok(()),
        }
    }

    /// Says that an option is not what the plan was compiled with.
    pub(super) fn refuse_option(&self, option: &str, given: &str, own: &str) -> Result<()> {
        bail!(
            "{option} {given} contradicts {}, which was compiled {own}: leave the option out, or compile the model again \
             with it",
            self.path.display()
        )
    }
}

fn check_machines(given: &Given<'_>, plan: &Plan, args: &SharedArgs) -> Result<()> {
    if let Some(name) = &args.cluster {
        // What framework it names is judged below.
        let cluster = run_by(read_cluster(name)?, Some(&plan.cluster.framework));
        if cluster != plan.cluster {
            return given.refuse_option("--cluster", name, &format!("for `{}`", plan.cluster.name));
        }
    }
    if let Some(framework) = args.framework.as_ref().filter(|&f| *f != plan.cluster.framework) {
        let own = format!("as `{}` runs it", plan.cluster.framework.name);
        return given.refuse_option("--framework", &framework.name, &own);
    }
    let own = &plan.options;
    let mesh = args.mesh.as_ref().map(|mesh| format_mesh(&mesh.0));
    given.check_option("--mesh", mesh, format_mesh(&plan.mesh))?;
    given.check_option("--schedule", args.schedule, own.schedule)?;
    let counts = [
        ("--stages", args.stages, own.auto_stages, plan.stages),
        ("--microbatches", args.microbatches, own.auto_microbatches, plan.microbatches),
    ];
    for (option, count, auto, own) in counts {
        match count {
            None => {}
            Some(Count::Of(number)) => given.check_option(option, Some(number), own)?,
            Some(Count::Auto) if auto => {}
            Some(Count::Auto) => given.refuse_option(option, "auto", &format!("with {own}"))?,
        }
    }
    Ok(())
}

/// The samples of each input that is fed along a dim of them.
fn batch_sizes(plan: &Plan) -> Vec<usize> {
    let fed = plan.programs.iter().flat_map(|program| {
        program.actors.iter().filter_map(move |actor| match actor.action {
            Action::Feed { samples, .. } => {
                let register = &program.registers[actor.outputs.first()?.index()];
                samples.count_samples(&plan.layouts[register.layout.index()].shape)
            }
            _ => None,
        })
    });
    fed.collect()
}

/// The first pattern of `--fetch` that fits an output of the plan's model which the plan does not give, or none of them.
fn lacked_outputs<'a>(plan: &Plan, patterns: &'a [String]) -> Result<Option<&'a String>> {
    let model = model_of(plan)?;
    let given: BTreeSet<&str> = output_names(plan).collect();
    let is_given = |pattern: &&String| {
        let mut fitting = model
            .outputs
            .iter()
            .map(|output| output.name.as_str())
            .filter(|name| matches_pattern(pattern, name))
            .peekable();
        fitting.peek().is_some() && fitting.all(|name| given.contains(name))
    };
    Ok(patterns.iter().find(|pattern| !is_given(pattern)))
}

/// The names of what a plan gives.
fn output_names(plan: &Plan) -> impl Iterator<Item = &str> {
    let actors = plan.programs.iter().flat_map(|program| &program.actors);
    actors.filter_map(|actor| match &actor.action {
        Action::Fetch { output, .. } => Some(output.as_str()),
        _ => None,
    })
}

fn check_graph(given: &Given<'_>, plan: &Plan, args: &SharedArgs) -> Result<()> {
    for rows in batch_sizes(plan) {
        given.check_option("--batch", args.batch, rows)?;
    }
    for (name, value) in &args.dims {
        if let Some(&own) = plan.options.dims.get(name) {
            given.check_option(&format!("--dim {name}"), Some(*value), own)?;
        } else if name != "batch" {
            given.refuse_option("--dim", &format!("{name}={value}"), "without this dim")?;
        }
    }
    if let Some(loss) = &args.loss {
        self::check_loss(given, plan, loss)?;
    }
    if !args.fetch.is_empty()
        && let Some(pattern) = lacked_outputs(plan, &args.fetch)?
    {
        given.refuse_option("--fetch", pattern, "without such an output")?;
    }
    let gradients = &plan.options.gradients_of;
    if let Some(pattern) = args.gradients_of.iter().find(|pattern| !gradients.contains(pattern)) {
        given.refuse_option("--gradients-of", pattern, "without this gradient")?;
    }
    // The plan's graph says which weights are trained, not by which patterns.
    for (option, patterns) in [("--freeze", &args.freeze), ("--train", &args.train)] {
        if let Some(pattern) = patterns.first() {
            given.refuse_option(
                option,
                pattern,
                "with its weights frozen or trained as they are",
            )?;
        }
    }
    if let Some(pattern) = args.stop_gradient.first() {
        given.refuse_option("--stop-gradient", pattern, "with gradients that end where they do")?;
    }
    if args.keep_eval {
        given.refuse_option("--keep-eval", "", "in the mode that it has")?;
    }
    if args.keep_attention && !plan.options.keep_attention {
        given.refuse_option("--keep-attention", "", "with attention by one op")?;
    }
    if args.keep_order && !plan.options.keep_order {
        given.refuse_option(
            "--keep-order",
            "",
            "with sequences in chunks where ranks share them",
        )?;
    }
    Ok(())
}

fn check_loss(given: &Given<'_>, plan: &Plan, loss: &LossChoice) -> Result<()> {
    let trains_on_output = plan.options.loss.is_none() && plan.options.differentiates_loss();
    let outputs = if trains_on_output { model_of(plan)?.outputs } else { Vec::new() };
    let own = match (plan.options.loss, outputs.into_iter().next()) {
        (Some(loss), _) => Some(LossChoice::Of(loss)),
        (None, output) => output.map(|output| LossChoice::Output(output.name)),
    };
    if own.as_ref() == Some(loss) {
        return Ok(());
    }
    let own = own.map_or("without one".into(), |own| format!("with {own}"));
    given.refuse_option("--loss", &loss.to_string(), &own)
}

/// The graph of the model of which a plan was made.
fn model_of(plan: &Plan) -> Result<Graph> {
    graphc_ir::text::parse_graph(&plan.graph.join("\n")).context("the plan's graph cannot be read")
}

fn check_optimizer(given: &Given<'_>, plan: &Plan, args: &SharedArgs) -> Result<()> {
    let numbers = [
        ("--lr", args.lr),
        ("--momentum", args.momentum),
        ("--weight-decay", args.weight_decay),
        ("--beta1", args.beta1),
        ("--beta2", args.beta2),
        ("--eps", args.eps),
        ("--alpha", args.alpha),
        ("--dampening", args.dampening),
        ("--momentum-decay", args.momentum_decay),
        ("--lr-decay", args.lr_decay),
        ("--initial-accumulator", args.initial_accumulator),
        ("--decay-exponent", args.decay_exponent),
        ("--least-scale", args.least_scale),
        ("--clip-step", args.clip_step),
    ];
    let own = plan.options.optimizer;
    if let Some(optimizer) = args.optimizer
        && own.map(optimizer_name) != Some(optimizer)
    {
        let own = own.map_or("without one".into(), |own| {
            format!("with {}", value_name(&optimizer_name(own)))
        });
        given.refuse_option("--optimizer", &value_name(&optimizer), &own)?;
    }
    for (option, value) in numbers {
        let Some(value) = value else { continue };
        match own.and_then(|own| optimizer_number(&own, option)) {
            Some(own) => given.check_option(option, Some(value), own)?,
            None => given.refuse_option(option, &value.to_string(), "without such an option")?,
        }
    }
    let centered = matches!(own, Some(Optimizer::Rmsprop(RmspropOptions { centered: true, .. })));
    let composed = match own {
        Some(Optimizer::Composed(composed)) => Some(composed),
        _ => None,
    };
    let nesterov = matches!(own, Some(Optimizer::Sgd { nesterov: true, .. }));
    let amsgrad = composed.is_some_and(|of| matches!(of.rule, StepRule::Amsgrad { .. }));
    let adafactor = composed.and_then(|of| match of.rule {
        StepRule::Adafactor(of) => Some(of),
        _ => None,
    });
    let flags = [
        ("--fixed-rate", args.fixed_rate, adafactor.is_some_and(|of| of.fixed_rate)),
        ("--unscaled", args.unscaled, adafactor.is_some_and(|of| of.unscaled)),
        ("--nesterov", args.nesterov, nesterov),
        ("--centered", args.centered, centered),
        ("--amsgrad", args.amsgrad, amsgrad),
        ("--decoupled", args.decoupled, composed.is_some_and(|of| of.decoupled)),
        ("--maximize", args.maximize, plan.options.maximize),
        ("--own-counts", args.own_counts, plan.options.own_counts),
    ];
    if let Some((flag, _, _)) = flags.iter().find(|(_, given, own)| *given && !own) {
        given.refuse_option(flag, "", "without it")?;
    }
    check_muon(given, plan, args)
}

/// Refuses the first option of Muon that a plan contradicts.
fn check_muon(given: &Given<'_>, plan: &Plan, args: &SharedArgs) -> Result<()> {
    let own = plan.options.optimizer;
    let rate = args.adjust_lr.map(MuonRate::from);
    let is_own =
        |rate| matches!(own, Some(Optimizer::Muon(MuonOptions { rate: own, .. })) if own == rate);
    if let (Some(adjust), Some(rate)) = (args.adjust_lr, rate)
        && !is_own(rate)
    {
        given.refuse_option("--adjust-lr", &value_name(&adjust), "without it")?;
    }
    let muon = match own {
        Some(Optimizer::Muon(muon)) => Some(muon),
        _ => None,
    };
    if args.plain_momentum && muon.is_none_or(|muon| muon.nesterov) {
        given.refuse_option("--plain-momentum", "", "without it")?;
    }
    if let Some(iterations) = args.iterations.filter(|_| muon.is_none()) {
        given.refuse_option("--iterations", &iterations.to_string(), "without it")?;
    }
    if let Some(muon) = muon {
        given.check_option("--iterations", args.iterations, muon.iterations)?;
    }
    let own = muon.map(|muon| Coefficients(muon.coefficients));
    if let Some(coefficients) = args.coefficients.filter(|_| args.coefficients != own) {
        let own = own.map_or("without it".into(), |own| format!("with {own}"));
        given.refuse_option("--coefficients", &coefficients.to_string(), &own)?;
    }
    let is_own = |pattern: &&String| {
        let mut groups = plan.options.groups.iter().filter(|group| group.pattern == **pattern);
        groups.any(|group| matches!(group.optimizer, Some(Optimizer::AdamW(_))))
    };
    match args.by_adamw.iter().find(|pattern| !is_own(pattern)) {
        Some(pattern) => given.refuse_option("--by-adamw", pattern, "without this pattern"),
        None => Ok(()),
    }
}

/// Refuses the first option that a plan contradicts.
fn check_training(
    args: &HyperparameterArgs,
    given: &Given<'_>,
    own: &CompileOptions,
) -> Result<()> {
    let schedule = &own.lr_schedule;
    if let Some(curve) = args.lr_schedule.as_ref().filter(|curve| **curve != schedule.curve) {
        given.refuse_option("--lr-schedule", &curve.to_string(), &format!("with {schedule}"))?;
    }
    if let Some(warmup) = args.warmup.filter(|warmup| Some(*warmup) != schedule.warmup) {
        given.refuse_option("--warmup", &warmup.to_string(), &format!("with {schedule}"))?;
    }
    let clips = [
        ("--clip-norm", args.clip_norm, own.clip_norm),
        ("--clip-value", args.clip_value, own.clip_value),
    ];
    for (flag, value, own) in clips {
        let Some(value) = value.filter(|&value| Some(value) != own) else { continue };
        let own = own.map_or("without it".into(), |own| format!("with {own}"));
        given.refuse_option(flag, &value.to_string(), &own)?;
    }
    // What else is done about it is not the plan's.
    let skips = |on_nan: &OnNan| *on_nan == OnNan::Skip;
    if let Some(on_nan) = args.on_nan.filter(|on_nan| skips(on_nan) != own.skip_non_finite) {
        let own = if own.skip_non_finite { "with skip" } else { "without skip" };
        given.refuse_option("--on-nan", &value_name(&on_nan), own)?;
    }
    for pattern in &args.no_decay {
        if !own.groups.contains(&ParameterGroup::no_decay(pattern)) {
            given.refuse_option("--no-decay", pattern, "without this pattern")?;
        }
    }
    for group in &args.groups {
        if !own.groups.contains(group) {
            given.refuse_option("--group", &group.pattern, "without this group")?;
        }
    }
    for pattern in &args.keep_statistics {
        if !own.keep_statistics.contains(pattern) {
            given.refuse_option("--keep-statistics", pattern, "without this pattern")?;
        }
    }
    if let Some(accumulate) = args.accumulate.filter(|&of| own.accumulation != of.into()) {
        given.refuse_option("--accumulate", accumulate.name(), "with sums of the other type")?;
    }
    for metric in args.measure.iter().filter_map(|measure| measure.metric()) {
        if !own.metrics.contains(&metric) {
            given.refuse_option("--measure", metric.name(), "without counting it")?;
        }
    }
    args.check_measures(own.loss)?;
    given.check_option("--label-smoothing", args.label_smoothing, own.label_smoothing)
}

fn optimizer_name(optimizer: Optimizer) -> OptimizerName {
    match optimizer {
        Optimizer::Sgd { .. } => OptimizerName::Sgd,
        Optimizer::Adam(_) => OptimizerName::Adam,
        Optimizer::AdamW(_) => OptimizerName::Adamw,
        Optimizer::Lamb(_) => OptimizerName::Lamb,
        Optimizer::Rmsprop(_) => OptimizerName::Rmsprop,
        Optimizer::Muon(_) => OptimizerName::Muon,
        Optimizer::Composed(ComposedOptions { rule, decoupled, .. }) => match rule {
            StepRule::Damped { .. } => OptimizerName::Sgd,
            StepRule::Amsgrad { .. } if decoupled => OptimizerName::Adamw,
            StepRule::Amsgrad { .. } => OptimizerName::Adam,
            StepRule::Adagrad { .. } => OptimizerName::Adagrad,
            StepRule::Adadelta { .. } => OptimizerName::Adadelta,
            StepRule::Adamax { .. } => OptimizerName::Adamax,
            StepRule::Nadam { .. } => OptimizerName::Nadam,
            StepRule::Radam { .. } => OptimizerName::Radam,
            StepRule::Lion { .. } => OptimizerName::Lion,
            StepRule::Adafactor(_) => OptimizerName::Adafactor,
        },
    }
}

/// An optimizer's number by the option that sets it.
fn optimizer_number(optimizer: &Optimizer, option: &str) -> Option<f64> {
    match (optimizer, option) {
        (_, "--lr") => Some(optimizer.lr()),
        (Optimizer::Sgd { momentum, .. }, "--momentum") => Some(*momentum),
        (Optimizer::Sgd { weight_decay, .. }, "--weight-decay") => Some(*weight_decay),
        (Optimizer::Sgd { .. }, _) => None,
        (Optimizer::Adam(adam) | Optimizer::AdamW(adam) | Optimizer::Lamb(adam), _) => {
            let AdamOptions { beta1, beta2, eps, weight_decay, .. } = *adam;
            match option {
                "--beta1" => Some(beta1),
                "--beta2" => Some(beta2),
                "--eps" => Some(eps),
                "--weight-decay" => Some(weight_decay),
                _ => None,
            }
        }
        (Optimizer::Muon(options), _) => match option {
            "--eps" => Some(options.eps),
            "--momentum" => Some(options.momentum),
            "--weight-decay" => Some(options.weight_decay),
            _ => None,
        },
        (Optimizer::Composed(options), "--weight-decay") => Some(options.weight_decay),
        (Optimizer::Composed(options), _) => {
            let name = option.trim_start_matches("--").replace('-', "_");
            let numbers = options.rule.numbers();
            numbers.into_iter().find(|(own, _, _)| *own == name).map(|(_, value, _)| value)
        }
        (Optimizer::Rmsprop(options), _) => match option {
            "--alpha" => Some(options.alpha),
            "--eps" => Some(options.eps),
            "--momentum" => Some(options.momentum),
            "--weight-decay" => Some(options.weight_decay),
            _ => None,
        },
    }
}
