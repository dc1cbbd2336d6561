//! Learning rates as functions of the step: a base, and a schedule that multiplies it.
//!
//! Every schedule is the closed form of a class of `torch.optim.lr_scheduler` (its `step()` called once after each step of
//! the optimizer), so a rate depends on the number of the step alone: nothing is kept, and a resumed training goes on in it.
//!
//! | text | at step `t`, from 0 | PyTorch |
//! |---|---|---|
//! | `constant` | 1 | no scheduler |
//! | `step:SIZE,GAMMA` | `GAMMA^(t / SIZE)`, rounded down | `StepLR(SIZE, GAMMA)` |
//! | `multistep:A,B,..,GAMMA` | `GAMMA^n`, n of A, B, .. are at most `t` | `MultiStepLR([A, B, ..], GAMMA)` |
//! | `cosine:STEPS[,FLOOR]` | `FLOOR + (1 - FLOOR) (1 + cos(pi x)) / 2` | `CosineAnnealingLR(STEPS - W, FLOOR lr)` |
//! | `linear:STEPS[,FLOOR]` | `1 - (1 - FLOOR) x` | `LinearLR(1, FLOOR, STEPS - W)` |
//! | `onecycle:STEPS` | up from 1/25 to 1 and down to 1/250000, both along a cosine | `OneCycleLR(lr, STEPS, cycle_momentum=False)` |
//!
//! A warm-up of `W` steps, `warmup:W[,START]`, rises linearly from `START` (default `1 / (W + 1)`) to 1 at step `W`, as
//! `LinearLR(START, 1, W)` does. Steps are always those of the whole training: with `step` and `multistep` it is a further factor
//! (`ChainedScheduler`); `cosine` and `linear` come after it (`SequentialLR` with the milestone `W`) and end at `STEPS`:
//! `x = (t - W) / (STEPS - W)`. Of `onecycle` it is the rise itself (`pct_start = W / STEPS`, default 0.3; `div_factor = 1 / START`,
//! default 25). What ends at `STEPS` stays there.

use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::scalar::Scalar;

/// The factor of a learning rate as a function of the step. Its text is that of the module's table, after the warm-up if there is one:
/// `warmup:100 cosine:1000`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LrSchedule {
    /// The course after the warm-up.
    pub curve: Curve,
    /// The first steps.
    pub warmup: Option<Warmup>,
}

/// The course of a learning rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Curve {
    /// The base.
    #[default]
    Constant,
    /// Multiplied by `gamma` after every `size` steps.
    Step {
        /// Steps between.
        size: u64,
        /// The factor.
        gamma: Scalar,
    },
    /// Multiplied by `gamma` at each milestone.
    MultiStep {
        /// Steps, ascending.
        milestones: Vec<u64>,
        /// The factor.
        gamma: Scalar,
    },
    /// Half a wave of a cosine, down to `floor` of the base.
    Cosine {
        /// Steps of the whole training.
        steps: u64,
        /// The rate at its end, as a part of the base.
        floor: Scalar,
    },
    /// A line down to `floor` of the base.
    Linear {
        /// Steps of the whole training.
        steps: u64,
        /// The rate at its end, as a part of the base.
        floor: Scalar,
    },
    /// One cycle: up to the base and down to nearly nothing (Smith and Topin, arXiv 1708.07120).
    OneCycle {
        /// Steps of the whole training.
        steps: u64,
    },
}

/// A linear rise of the learning rate. Its text is `STEPS` or `STEPS,START`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Warmup {
    /// The step from which the rate is whole.
    pub steps: u64,
    /// The part of it at step 0; `None`: 1 / (steps + 1), of one cycle 1 / 25.
    pub start: Option<Scalar>,
}

/// A text or a value that is no schedule.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no schedule of the learning rate: {reason}; they are constant, step:SIZE,GAMMA, \
     multistep:A,B,..,GAMMA, cosine:STEPS[,FLOOR], linear:STEPS[,FLOOR] and onecycle:STEPS"
)]
pub struct LrScheduleError {
    /// The text.
    pub text: String,
    /// The reason that the text is no schedule.
    pub reason: String,
}

crate::readable_debug!(LrScheduleError);

impl From<Curve> for LrSchedule {
    fn from(curve: Curve) -> Self {
        Self { curve, warmup: None }
    }
}

impl LrSchedule {
    /// The schedule after a linear rise over these steps.
    #[must_use]
    pub fn after_warmup(self, steps: u64) -> Self {
        Self { warmup: Some(Warmup { steps, start: None }), ..self }
    }

    /// Whether the rate is the base at every step.
    pub fn is_constant(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the factor of the base at a step, counted from 0.
    ///
    /// ```
    /// use graphc_ir::learning_rate::LrSchedule;
    ///
    /// let schedule: LrSchedule = "warmup:3 cosine:13".parse()?;
    /// let factors = [0, 1, 3, 8, 13, 20].map(|step| (schedule.factor(step) * 100.0).round());
    /// assert_eq!(factors, [25.0, 50.0, 100.0, 50.0, 0.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn factor(&self, step: u64) -> f64 {
        let rise = self.warmup.as_ref().map_or(1.0, |warmup| warmup.factor(step));
        match &self.curve {
            Curve::Constant => rise,
            Curve::Step { size, gamma } => rise * gamma.0.powf((step / (*size).max(1)) as f64),
            Curve::MultiStep { milestones, gamma } => {
                let passed = milestones.iter().filter(|&&milestone| milestone <= step).count();
                rise * gamma.0.powf(passed as f64)
            }
            _ if step < self.steps_before_curve() => rise,
            Curve::Cosine { steps, floor } => {
                let wave = (1.0 + (PI * self.curve_progress(step, *steps)).cos()) / 2.0;
                floor.0 + (1.0 - floor.0) * wave
            }
            Curve::Linear { steps, floor } => {
                1.0 - (1.0 - floor.0) * self.curve_progress(step, *steps)
            }
            Curve::OneCycle { steps } => self.one_cycle(step, *steps),
        }
    }

    /// Steps before the curve begins: of one cycle none, as it rises by itself.
    fn steps_before_curve(&self) -> u64 {
        match self.curve {
            Curve::OneCycle { .. } => 0,
            _ => self.warmup.map_or(0, |warmup| warmup.steps),
        }
    }

    /// Returns the share of the steps from the end of the warm-up to `steps` that are done.
    fn curve_progress(&self, step: u64, steps: u64) -> f64 {
        let (done, all) =
            (step - self.steps_before_curve(), steps.saturating_sub(self.steps_before_curve()));
        if done >= all { 1.0 } else { done as f64 / all as f64 }
    }

    /// Returns the factor of `OneCycleLR` of two phases. Its first phase ends at `pct_start steps - 1`, which may lie between two steps.
    fn one_cycle(&self, step: u64, steps: u64) -> f64 {
        let rise = self.warmup.map_or(0.3 * steps as f64, |warmup| warmup.steps as f64);
        let start = self.warmup.and_then(|warmup| warmup.start).map_or(1.0 / 25.0, |start| start.0);
        let (top, last) = (rise - 1.0, steps.saturating_sub(1) as f64);
        let step = (step as f64).min(last);
        let wave =
            |from: f64, to: f64, share: f64| to + (from - to) / 2.0 * (1.0 + (PI * share).cos());
        match step {
            step if step <= top && top > 0.0 => wave(start, 1.0, step / top),
            step if last > top => wave(1.0, start / 1e4, (step - top) / (last - top)),
            _ => 1.0,
        }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// The first that makes no sense.
    pub fn check(&self) -> Result<(), LrScheduleError> {
        let fault =
            self.curve.find_fault().or_else(|| self.warmup.as_ref().and_then(Warmup::find_fault));
        let short = || {
            let steps = self.curve.training_steps()?;
            let rise = self.warmup.map_or(0, |warmup| warmup.steps);
            (steps <= rise).then(|| format!("it ends at step {steps}, its warm-up at {rise}"))
        };
        match fault.or_else(short) {
            None => Ok(()),
            Some(reason) => Err(LrScheduleError { text: self.to_string(), reason }),
        }
    }
}

impl Curve {
    /// Steps of the whole training, if it ends.
    fn training_steps(&self) -> Option<u64> {
        match self {
            Self::Cosine { steps, .. } | Self::Linear { steps, .. } | Self::OneCycle { steps } => {
                Some(*steps)
            }
            Self::Constant | Self::Step { .. } | Self::MultiStep { .. } => None,
        }
    }

    fn find_fault(&self) -> Option<String> {
        let gamma = |gamma: f64| {
            (!gamma.is_finite() || gamma < 0.0)
                .then(|| format!("GAMMA is a number of at least 0, not {gamma}"))
        };
        match self {
            Self::Constant => None,
            Self::Step { size: 0, .. } => Some("SIZE is at least 1".into()),
            Self::Step { gamma: factor, .. } => gamma(factor.0),
            Self::MultiStep { milestones, .. } if !milestones.is_sorted_by(|a, b| a < b) => {
                Some("its steps ascend".into())
            }
            Self::MultiStep { gamma: factor, .. } => gamma(factor.0),
            Self::Cosine { floor, .. } | Self::Linear { floor, .. } if !is_fraction(floor.0) => {
                Some(format!("FLOOR is a part of the learning rate, 0 to 1, not {floor}"))
            }
            Self::Cosine { steps, .. } | Self::Linear { steps, .. } | Self::OneCycle { steps } => {
                (*steps == 0).then(|| "STEPS is at least 1".into())
            }
        }
    }
}

impl Warmup {
    fn factor(&self, step: u64) -> f64 {
        if step >= self.steps {
            return 1.0;
        }
        let start = self.start.map_or(1.0 / (self.steps as f64 + 1.0), |start| start.0);
        start + (1.0 - start) * step as f64 / self.steps as f64
    }

    fn find_fault(&self) -> Option<String> {
        match (self.steps, self.start) {
            (0, _) => Some("a warm-up has at least 1 step".into()),
            (_, Some(start)) if !is_fraction(start.0) => Some(format!(
                "a warm-up starts at a part of the learning rate, 0 to 1, not {start}"
            )),
            _ => None,
        }
    }
}

fn is_fraction(value: f64) -> bool {
    (0.0..=1.0).contains(&value)
}

impl fmt::Display for LrSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(warmup) = &self.warmup {
            write!(f, "warmup:{warmup} ")?;
        }
        self.curve.fmt(f)
    }
}

impl fmt::Display for Curve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let floor =
            |floor: &Scalar| if floor.is_zero() { String::new() } else { format!(",{floor}") };
        match self {
            Self::Constant => f.write_str("constant"),
            Self::Step { size, gamma } => write!(f, "step:{size},{gamma}"),
            Self::MultiStep { milestones, gamma } => {
                f.write_str("multistep:")?;
                milestones.iter().try_for_each(|milestone| write!(f, "{milestone},"))?;
                gamma.fmt(f)
            }
            Self::Cosine { steps, floor: least } => write!(f, "cosine:{steps}{}", floor(least)),
            Self::Linear { steps, floor: least } => write!(f, "linear:{steps}{}", floor(least)),
            Self::OneCycle { steps } => write!(f, "onecycle:{steps}"),
        }
    }
}

impl fmt::Display for Warmup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.start {
            None => self.steps.fmt(f),
            Some(start) => write!(f, "{},{start}", self.steps),
        }
    }
}

impl FromStr for LrSchedule {
    type Err = LrScheduleError;

    fn from_str(text: &str) -> Result<Self, LrScheduleError> {
        let text = text.trim();
        let schedule = match text.strip_prefix("warmup:").and_then(|rest| rest.split_once(' ')) {
            Some((warmup, curve)) => Self { curve: curve.parse()?, warmup: Some(warmup.parse()?) },
            None => Self { curve: text.parse()?, warmup: None },
        };
        schedule.check()?;
        Ok(schedule)
    }
}

impl FromStr for Curve {
    type Err = LrScheduleError;

    fn from_str(text: &str) -> Result<Self, LrScheduleError> {
        let text = text.trim();
        let curve =
            parse_curve(text).map_err(|reason| LrScheduleError { text: text.into(), reason })?;
        match curve.find_fault() {
            None => Ok(curve),
            Some(reason) => Err(LrScheduleError { text: text.into(), reason }),
        }
    }
}

fn parse_curve(text: &str) -> Result<Curve, String> {
    let (name, numbers) = text.split_once(':').unwrap_or((text, ""));
    let numbers: Vec<&str> = match numbers {
        "" => Vec::new(),
        numbers => numbers.split(',').map(str::trim).collect(),
    };
    let floor = |rest: &[&str]| rest.first().map_or(Ok(Scalar(0.0)), |floor| parse_number(floor));
    match (name, numbers.as_slice()) {
        ("constant", []) => Ok(Curve::Constant),
        ("step", [size, gamma]) => {
            Ok(Curve::Step { size: parse_step_count(size)?, gamma: parse_number(gamma)? })
        }
        ("multistep", [milestones @ .., gamma]) if !milestones.is_empty() => {
            let milestones = milestones.iter().map(|milestone| parse_step_count(milestone));
            Ok(Curve::MultiStep {
                milestones: milestones.collect::<Result<_, _>>()?,
                gamma: parse_number(gamma)?,
            })
        }
        ("cosine", [steps, rest @ ..]) if rest.len() < 2 => {
            Ok(Curve::Cosine { steps: parse_step_count(steps)?, floor: floor(rest)? })
        }
        ("linear", [steps, rest @ ..]) if rest.len() < 2 => {
            Ok(Curve::Linear { steps: parse_step_count(steps)?, floor: floor(rest)? })
        }
        ("onecycle", [steps]) => Ok(Curve::OneCycle { steps: parse_step_count(steps)? }),
        ("constant", _) => Err("constant has no numbers".into()),
        ("step", _) => Err(explain_form("step:SIZE,GAMMA", "step:30,0.1")),
        ("multistep", _) => Err(explain_form("multistep:A,B,..,GAMMA", "multistep:60,80,0.1")),
        ("cosine", _) => Err(explain_form("cosine:STEPS or cosine:STEPS,FLOOR", "cosine:1000")),
        ("linear", _) => Err(explain_form("linear:STEPS or linear:STEPS,FLOOR", "linear:1000")),
        ("onecycle", _) => Err(explain_form("onecycle:STEPS", "onecycle:1000")),
        _ => Err(format!("there is no `{name}`")),
    }
}

/// Explains how to write a schedule whose name is known.
fn explain_form(form: &str, example: &str) -> String {
    format!("write {form}, as in {example}")
}

fn parse_step_count(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is no number of steps"))
}

fn parse_number(text: &str) -> Result<Scalar, String> {
    text.parse().map(Scalar).map_err(|_| format!("`{text}` is no number"))
}

impl FromStr for Warmup {
    type Err = LrScheduleError;

    fn from_str(text: &str) -> Result<Self, LrScheduleError> {
        let error = |reason| LrScheduleError { text: format!("warmup:{text}"), reason };
        let (steps, start) = match text.split_once(',') {
            Some((steps, start)) => (steps, Some(parse_number(start.trim()).map_err(error)?)),
            None => (text, None),
        };
        let warmup = Self { steps: parse_step_count(steps.trim()).map_err(error)?, start };
        warmup.find_fault().map_or(Ok(warmup), |reason| Err(error(reason)))
    }
}

impl From<LrSchedule> for String {
    fn from(schedule: LrSchedule) -> Self {
        schedule.to_string()
    }
}

impl TryFrom<String> for LrSchedule {
    type Error = LrScheduleError;

    fn try_from(text: String) -> Result<Self, LrScheduleError> {
        text.parse()
    }
}

/// The learning rate of an update: a base with its schedule. It is written as a number where it is constant, else as the
/// base before the schedule: `0.1 warmup:100 cosine:1000`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "WrittenRate", into = "WrittenRate")]
pub struct LearningRate {
    /// The rate that the schedule multiplies.
    pub base: Scalar,
    /// The factor of the rate as a function of the step.
    pub schedule: LrSchedule,
}

impl From<f64> for LearningRate {
    fn from(base: f64) -> Self {
        Self { base: Scalar(base), schedule: LrSchedule::default() }
    }
}

impl LearningRate {
    /// The rate at a step, from 0.
    pub fn rate_at(&self, step: u64) -> f64 {
        self.base.0 * self.schedule.factor(step)
    }

    /// The rate at a step, from 0, or what stands in its place.
    pub fn at_or_given(&self, step: u64, given: Option<GivenRate>) -> f64 {
        given.map_or_else(|| self.rate_at(step), |given| given.rate_for_base(self.base.0))
    }
}

/// A learning rate that a program gives while it trains. It stands in the place of base and schedule alike; groups of variables keep
/// their factors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GivenRate {
    /// The rate of variables that are in no group.
    pub rate: f64,
    /// The base that the plan has for them; not 0.
    pub planned: f64,
}

impl GivenRate {
    /// The rate of variables for which the plan has this base.
    ///
    /// ```
    /// use graphc_ir::learning_rate::GivenRate;
    ///
    /// let given = GivenRate { rate: 0.3, planned: 0.5 };
    /// assert_eq!([0.5, 0.25, 0.0].map(|base| given.rate_for_base(base)), [0.3, 0.15, 0.0]);
    /// ```
    pub fn rate_for_base(self, base: f64) -> f64 {
        // A quotient of 1 could round.
        if base == self.planned { self.rate } else { base / self.planned * self.rate }
    }
}

/// The form in which a learning rate is written.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenRate {
    Number(f64),
    Text(String),
}

impl From<LearningRate> for WrittenRate {
    fn from(rate: LearningRate) -> Self {
        match rate.schedule.is_constant() && rate.base.0.is_finite() {
            true => Self::Number(rate.base.0),
            false => Self::Text(format!("{} {}", rate.base, rate.schedule)),
        }
    }
}

impl TryFrom<WrittenRate> for LearningRate {
    type Error = LrScheduleError;

    fn try_from(form: WrittenRate) -> Result<Self, LrScheduleError> {
        let text = match form {
            WrittenRate::Number(base) => return Ok(base.into()),
            WrittenRate::Text(text) => text,
        };
        let (base, schedule) = text.split_once(' ').unwrap_or((&text, "constant"));
        let base =
            parse_number(base).map_err(|reason| LrScheduleError { text: text.clone(), reason })?;
        Ok(Self { base, schedule: schedule.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors<const N: usize>(text: &str, steps: [u64; N]) -> [f64; N] {
        let schedule: LrSchedule = text.parse().expect("a schedule");
        steps.map(|step| schedule.factor(step))
    }

    #[test]
    fn a_schedule_is_its_text() {
        for text in [
            "constant",
            "step:30,0.1",
            "multistep:30,60,90,0.1",
            "cosine:100",
            "cosine:100,0.1",
            "linear:100,0.25",
            "onecycle:7",
            "warmup:5 constant",
            "warmup:5,0.01 cosine:100",
        ] {
            let schedule: LrSchedule = text.parse().expect(text);
            assert_eq!(schedule.to_string(), text);
            let json = serde_json::to_string(&schedule).expect("a text");
            assert_eq!(serde_json::from_str::<LrSchedule>(&json).expect("a schedule"), schedule);
            let rate = LearningRate { base: Scalar(0.1), schedule };
            let json = serde_json::to_string(&rate).expect("a number or a text");
            assert_eq!(
                serde_json::from_str::<LearningRate>(&json).expect("a rate"),
                rate,
                "{json}"
            );
        }
        let constant = serde_json::to_string(&LearningRate::from(0.1)).expect("a number");
        assert_eq!(constant, "0.1");
    }

    #[test]
    fn what_is_no_schedule_says_why() {
        for (text, reason) in [
            ("cosin:100", "there is no `cosin`"),
            ("step:0,0.1", "SIZE is at least 1"),
            ("step:5", "write step:SIZE,GAMMA, as in step:30,0.1"),
            ("cosine", "write cosine:STEPS or cosine:STEPS,FLOOR, as in cosine:1000"),
            ("constant:1", "constant has no numbers"),
            ("step:5,-1", "GAMMA is a number of at least 0, not -1"),
            ("multistep:0.1", "write multistep:A,B,..,GAMMA, as in multistep:60,80,0.1"),
            ("multistep:9,5,0.1", "its steps ascend"),
            ("cosine:x", "`x` is no number of steps"),
            ("cosine:100,2", "FLOOR is a part of the learning rate, 0 to 1, not 2"),
            ("onecycle:0", "STEPS is at least 1"),
            ("warmup:0 constant", "a warm-up has at least 1 step"),
            ("warmup:10 linear:10", "it ends at step 10, its warm-up at 10"),
        ] {
            let error = text.parse::<LrSchedule>().expect_err(text);
            assert_eq!(error.reason, reason, "{text}");
            assert!(error.to_string().contains("onecycle:STEPS"));
        }
    }

    #[test]
    fn steps_and_milestones_count_from_the_first() {
        assert_eq!(factors("step:2,0.5", [0, 1, 2, 4, 6]), [1.0, 1.0, 0.5, 0.25, 0.125]);
        assert_eq!(factors("multistep:2,3,0.5", [0, 1, 2, 3, 9]), [1.0, 1.0, 0.5, 0.25, 0.25]);
        assert_eq!(factors("warmup:3 step:2,0.5", [0, 1, 2, 3]), [0.25, 0.5, 0.375, 0.5]);
    }

    #[test]
    fn what_ends_stays_where_it_ended() {
        assert_eq!(factors("linear:4,0.5", [0, 2, 4, 9]), [1.0, 0.75, 0.5, 0.5]);
        assert_eq!(
            factors("warmup:2,0 linear:4", [0, 1, 2, 3, 4, 5]),
            [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
        );
        let [first, last, after] = factors("onecycle:10", [0, 9, 20]);
        assert!((first - 0.04).abs() < 1e-15 && last == after && (last - 4e-6).abs() < 1e-15);
    }

    #[test]
    fn one_cycle_may_be_shorter_than_its_phases() {
        for steps in 1..8u64 {
            let schedule = LrSchedule::from(Curve::OneCycle { steps });
            assert!((0..10).all(|step| (0.0..=1.0).contains(&schedule.factor(step))), "{steps}");
        }
    }
}
