//! Options of training that all optimizers have: what may be said, what it means, and whether a plan says the same.

use anyhow::{Result, bail, ensure};
use clap::Args;
use graphc_ir::learning_rate::{Curve, LrSchedule, LrScheduleError, Warmup};
use graphc_ir::plan::{CompileOptions, ParameterGroup};

use super::contradictions::Given;

/// Options of schedules, clipping and groups of parameters.
#[derive(Args, Clone)]
pub struct TrainingArgs {
    /// The learning rate by the step: constant (default), step:SIZE,GAMMA, multistep:A,B,..,GAMMA, cosine:STEPS,
    /// linear:STEPS (both may have ,FLOOR, a part of the rate) or onecycle:STEPS
    #[arg(long, value_name = "SCHEDULE", value_parser = curve)]
    pub lr_schedule: Option<Curve>,
    /// Steps in which the learning rate rises linearly, from 1 / (STEPS + 1) or START of it
    #[arg(long, value_name = "STEPS[,START]", value_parser = warmup)]
    pub warmup: Option<Warmup>,
    /// Scale gradients down to this norm, of all of them together
    #[arg(long, value_name = "NORM", allow_negative_numbers = true)]
    pub clip_norm: Option<f64>,
    /// Clip each element of the gradients to this absolute value
    #[arg(long, value_name = "VALUE", allow_negative_numbers = true)]
    pub clip_value: Option<f64>,
    /// Weights without weight decay, by pattern
    #[arg(long, value_name = "PATTERN")]
    pub no_decay: Vec<String>,
    /// Share of the target that all classes have alike, for cross_entropy
    #[arg(long, value_name = "SHARE")]
    pub label_smoothing: Option<f64>,
}

fn curve(text: &str) -> Result<Curve, String> {
    text.parse().map_err(|error: LrScheduleError| error.to_string())
}

fn warmup(text: &str) -> Result<Warmup, String> {
    text.parse().map_err(|error: LrScheduleError| error.reason)
}

impl TrainingArgs {
    /// Puts the options into those of the compiler.
    pub fn apply(&self, options: &mut CompileOptions) -> Result<()> {
        let given = self.given();
        if let (None, Some(flag)) = (&options.optimizer, given) {
            bail!("{flag} is an option of training: it needs --optimizer");
        }
        let curve = self.lr_schedule.clone().unwrap_or_default();
        options.lr_schedule = LrSchedule { curve, warmup: self.warmup };
        options.lr_schedule.check()?;
        for (flag, value) in [("--clip-norm", self.clip_norm), ("--clip-value", self.clip_value)] {
            let holds = value.is_none_or(|value| value.is_finite() && value > 0.0);
            ensure!(holds, "{flag} is a number above 0, not {}", value.unwrap_or_default());
        }
        (options.clip_norm, options.clip_value) = (self.clip_norm, self.clip_value);
        options.groups = self.no_decay.iter().map(ParameterGroup::no_decay).collect();
        options.label_smoothing = self.label_smoothing.unwrap_or(0.0);
        Ok(())
    }

    /// One of the options that only an optimizer has a use for, if it is given.
    fn given(&self) -> Option<&'static str> {
        let all = [
            ("--lr-schedule", self.lr_schedule.is_some()),
            ("--warmup", self.warmup.is_some()),
            ("--clip-norm", self.clip_norm.is_some()),
            ("--clip-value", self.clip_value.is_some()),
            ("--no-decay", !self.no_decay.is_empty()),
        ];
        all.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }

    /// Refuses the first option that a plan contradicts.
    pub fn check(&self, given: &Given<'_>, own: &CompileOptions) -> Result<()> {
        let schedule = &own.lr_schedule;
        if let Some(curve) = self.lr_schedule.as_ref().filter(|curve| **curve != schedule.curve) {
            given.differs("--lr-schedule", &curve.to_string(), &format!("with {schedule}"))?;
        }
        if let Some(warmup) = self.warmup.filter(|warmup| Some(*warmup) != schedule.warmup) {
            given.differs("--warmup", &warmup.to_string(), &format!("with {schedule}"))?;
        }
        let clips = [
            ("--clip-norm", self.clip_norm, own.clip_norm),
            ("--clip-value", self.clip_value, own.clip_value),
        ];
        for (flag, value, own) in clips {
            let Some(value) = value.filter(|&value| Some(value) != own) else { continue };
            let own = own.map_or("without it".into(), |own| format!("with {own}"));
            given.differs(flag, &value.to_string(), &own)?;
        }
        for pattern in &self.no_decay {
            if !own.groups.contains(&ParameterGroup::no_decay(pattern)) {
                given.differs("--no-decay", pattern, "without this pattern")?;
            }
        }
        given.is("--label-smoothing", self.label_smoothing, own.label_smoothing)
    }
}
