//! Hyperparameters of training that all optimizers have: what may be said, what it means, and whether a plan says the same.

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use graphc_ir::learning_rate::{Curve, LrSchedule, LrScheduleError, Warmup};
use graphc_plan::{Accumulation, CompileOptions, Loss, Metric, ParameterGroup};

use super::value_name;
use super::values::{parse_above_zero, parse_whole_share};

/// Options of schedules, clipping and groups of parameters.
#[derive(Args, Clone)]
pub(crate) struct HyperparameterArgs {
    /// The learning rate by the step: constant (default), step:SIZE,GAMMA, multistep:A,B,..,GAMMA, cosine:STEPS,
    /// linear:STEPS (both may have ,FLOOR, a part of the rate) or onecycle:STEPS
    #[arg(long, value_name = "SCHEDULE", value_parser = parse_curve)]
    pub lr_schedule: Option<Curve>,
    /// Steps in which the learning rate rises linearly, from 1 / (STEPS + 1) or START of it
    #[arg(long, value_name = "STEPS[,START]", value_parser = parse_warmup)]
    pub warmup: Option<Warmup>,
    /// Scale gradients down to this norm, of all of them together
    #[arg(long, value_name = "NORM", value_parser = parse_above_zero)]
    pub clip_norm: Option<f64>,
    /// Clip each element of the gradients to this absolute value
    #[arg(long, value_name = "VALUE", value_parser = parse_above_zero)]
    pub clip_value: Option<f64>,
    /// Weights without weight decay, by pattern
    #[arg(long, value_name = "PATTERN")]
    pub no_decay: Vec<String>,
    /// Weights with a learning rate of their own, by pattern: FACTOR times the rate, and DECAY their weight decay, if it
    /// is given. Of several that fit a name the first counts, and all of them before --no-decay
    #[arg(long = "group", value_name = "PATTERN=FACTOR[,DECAY]", value_parser = parse_group)]
    pub groups: Vec<ParameterGroup>,
    /// Batch norms that normalize by their running statistics, which stay as they are, by a pattern of these' names: '*' for all
    #[arg(long, value_name = "PATTERN")]
    pub keep_statistics: Vec<String>,
    /// In which type gradients of half precision are summed over microbatches; default f32. half takes half the memory
    /// and rounds each addition
    #[arg(long, value_name = "TYPE", value_enum)]
    pub accumulate: Option<AccumulationChoice>,
    /// What metrics say of each step besides its loss: shares of labels for which no class, or fewer than five, score more; the
    /// exponential of the loss; its samples and seconds
    #[arg(long, value_name = "METRICS", value_enum, value_delimiter = ',')]
    pub measure: Vec<Measure>,
    /// What to do where the loss is no finite number; default stop. skip is part of the plan
    #[arg(long, value_enum)]
    pub on_nan: Option<OnNan>,
    /// Share of the target that all classes have alike, for cross_entropy
    #[arg(long, value_name = "SHARE", value_parser = parse_whole_share)]
    pub label_smoothing: Option<f64>,
}

/// The answer to a loss that is no finite number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnNan {
    /// End the training with an error that names the first tensor that was not finite
    Stop,
    /// Leave all variables as they are in such a step, and go on
    Skip,
    /// Go on
    Ignore,
}

/// In which type gradients of half precision are summed over microbatches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccumulationChoice {
    /// In f32
    F32,
    /// In their own type
    Half,
}

impl AccumulationChoice {
    /// Returns its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Half => "half",
        }
    }
}

impl From<AccumulationChoice> for Accumulation {
    fn from(of: AccumulationChoice) -> Self {
        match of {
            AccumulationChoice::F32 => Self::F32,
            AccumulationChoice::Half => Self::Half,
        }
    }
}

/// A number that can be said of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lowercase")]
pub(crate) enum Measure {
    /// For which share of labels no class scores more
    Top1,
    /// For which share of labels fewer than five classes score more
    Top5,
    /// The exponential of the loss
    Perplexity,
    /// Its samples, and the seconds that it took, which differ from run to run
    Speed,
}

impl Measure {
    /// Returns the metric that the plan counts for it.
    pub(crate) fn metric(self) -> Option<Metric> {
        match self {
            Self::Top1 => Some(Metric::Top1),
            Self::Top5 => Some(Metric::Top5),
            Self::Perplexity | Self::Speed => None,
        }
    }
}

/// A group of weights: `PATTERN=FACTOR[,DECAY]`.
fn parse_group(text: &str) -> Result<ParameterGroup, String> {
    let usage = || {
        format!(
            "`{text}` is no group: write 'PATTERN=FACTOR' or 'PATTERN=FACTOR,DECAY', with numbers that are 0 or more"
        )
    };
    // Names may have an equals sign; numbers have none.
    let (pattern, numbers) = text.rsplit_once('=').ok_or_else(usage)?;
    let number = |text: &str| {
        let number = text.trim().parse().ok();
        number.filter(|number: &f64| number.is_finite() && *number >= 0.0).ok_or_else(usage)
    };
    let (lr, decay) = match numbers.split_once(',') {
        Some((lr, decay)) => (number(lr)?, Some(number(decay)?)),
        None => (number(numbers)?, None),
    };
    Ok(ParameterGroup { weight_decay: decay, ..ParameterGroup::of(pattern.trim(), lr) })
}

fn parse_curve(text: &str) -> Result<Curve, String> {
    text.parse().map_err(|error: LrScheduleError| error.to_string())
}

fn parse_warmup(text: &str) -> Result<Warmup, String> {
    text.parse().map_err(|error: LrScheduleError| error.reason)
}

impl HyperparameterArgs {
    /// Whether a training goes on whatever is not finite.
    pub(crate) fn ignores_non_finite(&self) -> bool {
        self.on_nan == Some(OnNan::Ignore)
    }

    /// Puts the options into those of the compiler.
    pub(crate) fn apply(&self, options: &mut CompileOptions) -> Result<()> {
        let given = self.given_option();
        if let (None, Some(flag)) = (&options.optimizer, given) {
            bail!("{flag} is an option of training: it needs --optimizer");
        }
        let curve = self.lr_schedule.clone().unwrap_or_default();
        options.lr_schedule = LrSchedule { curve, warmup: self.warmup };
        options.lr_schedule.check()?;
        (options.clip_norm, options.clip_value) = (self.clip_norm, self.clip_value);
        let no_decay = self.no_decay.iter().map(ParameterGroup::no_decay);
        options.groups = self.groups.iter().cloned().chain(no_decay).collect();
        options.keep_statistics.clone_from(&self.keep_statistics);
        options.accumulation = self.accumulate.map_or(Accumulation::F32, Accumulation::from);
        self.check_measures(options.loss)?;
        options.metrics.clear();
        for metric in self.measure.iter().filter_map(|measure| measure.metric()) {
            if !options.metrics.contains(&metric) {
                options.metrics.push(metric);
            }
        }
        options.skip_non_finite = self.on_nan == Some(OnNan::Skip);
        options.label_smoothing = self.label_smoothing.unwrap_or(0.0);
        Ok(())
    }

    /// Checks that there are labels where they are needed: all but the speed is measured against labels, whether the plan counts it or not.
    pub(crate) fn check_measures(&self, loss: Option<Loss>) -> Result<()> {
        let Some(first) = self.measure.iter().find(|&&measure| measure != Measure::Speed) else {
            return Ok(());
        };
        let name = value_name(first);
        ensure!(
            loss.is_some_and(Loss::has_labels),
            "--measure {name} needs --loss cross_entropy or nll, and labels to measure against"
        );
        Ok(())
    }

    /// Returns one of the options that only an optimizer has a use for, if it is given.
    fn given_option(&self) -> Option<&'static str> {
        let all = [
            ("--lr-schedule", self.lr_schedule.is_some()),
            ("--warmup", self.warmup.is_some()),
            ("--clip-norm", self.clip_norm.is_some()),
            ("--clip-value", self.clip_value.is_some()),
            ("--no-decay", !self.no_decay.is_empty()),
            ("--group", !self.groups.is_empty()),
            ("--keep-statistics", !self.keep_statistics.is_empty()),
            ("--accumulate", self.accumulate.is_some()),
            ("--on-nan", self.on_nan.is_some()),
        ];
        all.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }
}
