//! A plan file has been compiled with its options: what is given beside it may repeat them, and not contradict them.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;

use anyhow::{Context, Result, bail};
use graphc_compiler::passes::pattern::fits;
use graphc_ir::graph::Graph;
use graphc_ir::plan::{Action, AdamOptions, Optimizer, Plan, RmspropOptions};

use super::args::{Count, LossChoice, OptimizerName, SharedArgs};
use super::options;

/// Options that are given, as far as they were compared.
pub struct Given<'a> {
    path: &'a Path,
}

/// Refuses the first option that a plan contradicts.
pub fn check_options(path: &Path, plan: &Plan, args: &SharedArgs) -> Result<()> {
    let given = Given { path };
    machines(&given, plan, args)?;
    graph(&given, plan, args)?;
    optimizer(&given, plan, args)?;
    let own = &plan.options;
    args.training.check(&given, own)?;
    given.is("--strategy", args.strategy, own.strategy)?;
    given.is("--recompute", args.recompute, own.recompute)?;
    match (args.ema, own.ema) {
        (Some(ema), None) => given.differs("--ema", &ema.to_string(), "without averages")?,
        (given_ema, own) => given.is("--ema", given_ema, own.unwrap_or_default())?,
    }
    if let Some(precision) = args.precision.filter(|&given| Some(given) != own.precision) {
        let own =
            own.precision.map_or("as the model is written".into(), |own| format!("with {own}"));
        given.differs("--precision", &precision.to_string(), &own)?;
    }
    given.is("--effort", args.effort, own.effort.unwrap_or(100))?;
    given.is("--memory", args.memory, own.memory.unwrap_or(plan.cluster.device.memory))?;
    if let Some(pin) = args.pins.iter().find(|pin| !own.pins.contains(pin)) {
        let text = format!("{}={}", pin.pattern, pin.sbp);
        return given.differs("--pin", &text, "without this pin");
    }
    Ok(())
}

impl Given<'_> {
    /// An option that is given is the plan's.
    pub fn is<T: PartialEq + Debug>(&self, option: &str, given: Option<T>, own: T) -> Result<()> {
        match given {
            Some(given) if given != own => {
                let text = |value: &T| format!("{value:?}").to_lowercase();
                self.differs(option, &text(&given), &format!("with {}", text(&own)))
            }
            _ => Ok(()),
        }
    }

    /// Says that an option is not what the plan was compiled with.
    pub fn differs(&self, option: &str, given: &str, own: &str) -> Result<()> {
        bail!(
            "{option} {given} contradicts {}, which was compiled {own}: leave the option out, or compile the model again \
             with it",
            self.path.display()
        )
    }
}

fn machines(given: &Given<'_>, plan: &Plan, args: &SharedArgs) -> Result<()> {
    if let Some(name) = &args.cluster {
        // What framework it names is judged below.
        let cluster = options::run_by(options::cluster(name)?, Some(&plan.cluster.framework));
        if cluster != plan.cluster {
            return given.differs("--cluster", name, &format!("for `{}`", plan.cluster.name));
        }
    }
    if let Some(framework) = args.framework.as_ref().filter(|&f| *f != plan.cluster.framework) {
        let own = format!("as `{}` runs it", plan.cluster.framework.name);
        return given.differs("--framework", &framework.name, &own);
    }
    let own = &plan.options;
    given.is("--mesh", args.mesh.as_ref().map(|mesh| &mesh.0), &plan.mesh)?;
    given.is("--schedule", args.schedule, own.schedule)?;
    let counts = [
        ("--stages", args.stages, own.auto_stages, plan.stages),
        ("--microbatches", args.microbatches, own.auto_microbatches, plan.microbatches),
    ];
    for (option, count, auto, own) in counts {
        match count {
            None => {}
            Some(Count::Of(number)) => given.is(option, Some(number), own)?,
            Some(Count::Auto) if auto => {}
            Some(Count::Auto) => given.differs(option, "auto", &format!("with {own}"))?,
        }
    }
    Ok(())
}

/// The samples of each input that is fed along a dim of them.
fn batches(plan: &Plan) -> Vec<usize> {
    let fed = plan.programs.iter().flat_map(|program| {
        program.actors.iter().filter_map(move |actor| match actor.action {
            Action::Feed { samples, .. } => {
                let register = &program.registers[actor.outputs.first()?.index()];
                samples.count(&plan.layouts[register.layout as usize].shape)
            }
            _ => None,
        })
    });
    fed.collect()
}

/// The first pattern of `--fetch` that fits an output of the plan's model which the plan does not give, or none of them.
fn lacked_outputs<'a>(plan: &Plan, patterns: &'a [String]) -> Result<Option<&'a String>> {
    let model = model_of(plan)?;
    let given: BTreeSet<&str> = outputs(plan).collect();
    let is_given = |pattern: &&String| {
        let mut fitting = model
            .outputs
            .iter()
            .map(|output| output.name.as_str())
            .filter(|name| fits(pattern, name))
            .peekable();
        fitting.peek().is_some() && fitting.all(|name| given.contains(name))
    };
    Ok(patterns.iter().find(|pattern| !is_given(pattern)))
}

/// The names of what a plan gives.
fn outputs(plan: &Plan) -> impl Iterator<Item = &str> {
    let actors = plan.programs.iter().flat_map(|program| &program.actors);
    actors.filter_map(|actor| match &actor.action {
        Action::Fetch { output, .. } => Some(output.as_str()),
        _ => None,
    })
}

fn graph(given: &Given<'_>, plan: &Plan, args: &SharedArgs) -> Result<()> {
    for rows in batches(plan) {
        given.is("--batch", args.batch, rows)?;
    }
    for (name, value) in &args.dims {
        if let Some(&own) = plan.options.dims.get(name) {
            given.is(&format!("--dim {name}"), Some(*value), own)?;
        } else if name != "batch" {
            given.differs("--dim", &format!("{name}={value}"), "without this dim")?;
        }
    }
    if let Some(loss) = &args.loss {
        self::loss(given, plan, loss)?;
    }
    if !args.fetch.is_empty()
        && let Some(pattern) = lacked_outputs(plan, &args.fetch)?
    {
        given.differs("--fetch", pattern, "without such an output")?;
    }
    // The plan's graph says which weights are trained, not by which patterns.
    for (option, patterns) in [("--freeze", &args.freeze), ("--train", &args.train)] {
        if let Some(pattern) = patterns.first() {
            given.differs(option, pattern, "with its weights frozen or trained as they are")?;
        }
    }
    if let Some(pattern) = args.stop_gradient.first() {
        given.differs("--stop-gradient", pattern, "with gradients that end where they do")?;
    }
    if args.keep_eval {
        given.differs("--keep-eval", "", "in the mode that it has")?;
    }
    Ok(())
}

fn loss(given: &Given<'_>, plan: &Plan, loss: &LossChoice) -> Result<()> {
    let trains_on_output = plan.options.loss.is_none() && plan.options.differentiates();
    let outputs = if trains_on_output { model_of(plan)?.outputs } else { Vec::new() };
    let own = match (plan.options.loss, outputs.into_iter().next()) {
        (Some(loss), _) => Some(LossChoice::Of(loss)),
        (None, output) => output.map(|output| LossChoice::Output(output.name)),
    };
    if own.as_ref() == Some(loss) {
        return Ok(());
    }
    let own = own.map_or("without one".into(), |own| format!("with {own}"));
    given.differs("--loss", &loss.to_string(), &own)
}

/// The graph of the model of which a plan was made.
fn model_of(plan: &Plan) -> Result<Graph> {
    graphc_ir::text::parse(&plan.graph.join("\n")).context("the plan's graph cannot be read")
}

fn optimizer(given: &Given<'_>, plan: &Plan, args: &SharedArgs) -> Result<()> {
    let numbers = [
        ("--lr", args.lr),
        ("--momentum", args.momentum),
        ("--weight-decay", args.weight_decay),
        ("--beta1", args.beta1),
        ("--beta2", args.beta2),
        ("--eps", args.eps),
        ("--alpha", args.alpha),
    ];
    let own = plan.options.optimizer;
    if let Some(optimizer) = args.optimizer
        && own.map(name) != Some(optimizer)
    {
        let text = |name: OptimizerName| format!("{name:?}").to_lowercase();
        let own = own.map_or("without one".into(), |own| format!("with {}", text(name(own))));
        given.differs("--optimizer", &text(optimizer), &own)?;
    }
    for (option, value) in numbers {
        let Some(value) = value else { continue };
        match own.and_then(|own| number(&own, option)) {
            Some(own) => given.is(option, Some(value), own)?,
            None => given.differs(option, &value.to_string(), "without such an option")?,
        }
    }
    let nesterov = matches!(own, Some(Optimizer::Sgd { nesterov: true, .. }));
    if args.nesterov && !nesterov {
        given.differs("--nesterov", "", "without it")?;
    }
    let centered = matches!(own, Some(Optimizer::Rmsprop(RmspropOptions { centered: true, .. })));
    if args.centered && !centered {
        given.differs("--centered", "", "without it")?;
    }
    Ok(())
}

fn name(optimizer: Optimizer) -> OptimizerName {
    match optimizer {
        Optimizer::Sgd { .. } => OptimizerName::Sgd,
        Optimizer::Adam(_) => OptimizerName::Adam,
        Optimizer::AdamW(_) => OptimizerName::Adamw,
        Optimizer::Lamb(_) => OptimizerName::Lamb,
        Optimizer::Rmsprop(_) => OptimizerName::Rmsprop,
    }
}

/// An optimizer's number by the option that sets it.
fn number(optimizer: &Optimizer, option: &str) -> Option<f64> {
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
        (Optimizer::Rmsprop(options), _) => match option {
            "--alpha" => Some(options.alpha),
            "--eps" => Some(options.eps),
            "--momentum" => Some(options.momentum),
            "--weight-decay" => Some(options.weight_decay),
            _ => None,
        },
    }
}
