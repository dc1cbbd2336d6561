//! The options that a plan is compiled with: the user's, and the machines.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use graphc_ir::learning_rate::LrSchedule;
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::DType;
use serde::{Deserialize, Serialize};

use crate::{Loss, Metric, Optimizer, ParameterGroup, Strategy};

/// The options of compile, run and train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompileOptions {
    /// The extents of the mesh of all ranks of the job, row-major.
    pub mesh: Vec<usize>,
    /// The number of pipeline stages; divides the first axis.
    pub stages: usize,
    /// The number of microbatches, the parts of a step's batch.
    pub microbatches: usize,
    /// Whether the number of stages, and where they are cut, is the compiler's choice, whatever `stages` says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub auto_stages: bool,
    /// Whether the number of microbatches is the compiler's choice, whatever `microbatches` says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub auto_microbatches: bool,
    /// The order of microbatches.
    pub schedule: Schedule,
    /// The values of symbolic dims, by name.
    pub dims: BTreeMap<String, usize>,
    /// The loss on the first output; `None`: inference, or a graph whose first output is the loss itself.
    pub loss: Option<Loss>,
    /// The share of the target of cross entropy that all classes have alike.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub label_smoothing: f64,
    /// The metrics that are counted besides the loss, in training and evaluation alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,
    /// Whether the mean of each row of the first output is the output `loss.rows`, of a loss against a target. An evaluation adds up those of the
    /// samples alone, and leaves out those of rows that fill up a batch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub row_losses: bool,
    /// The outputs of the graph that the plan gives, by name pattern, `*` standing for any characters; the loss, and what is counted beside it, it
    /// always gives. Empty: a training on `loss` gives these alone, so that e.g. the scores of a language model are neither kept nor copied; anything
    /// else gives all outputs of the graph, a graph among it whose first output is its own loss.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fetch: Vec<String>,
    /// The optimizer; `None`: inference.
    pub optimizer: Option<Optimizer>,
    /// Whether steps go up the gradients instead of down, so that the loss grows: torch.optim's `maximize`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub maximize: bool,
    /// Whether each trained variable has a count of its own updates, the state `state.step.<variable>`, for variables that were trained
    /// from different steps on. Otherwise all are corrected by the number of the step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_counts: bool,
    /// The schedule of the learning rate, as a function of the step.
    #[serde(default, skip_serializing_if = "LrSchedule::is_constant")]
    pub lr_schedule: LrSchedule,
    /// The greatest norm of all gradients together: torch.nn.utils.clip_grad_norm_. What the norm was before is the
    /// output `grad_norm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// The greatest absolute value of an element of a gradient: torch.nn.utils.clip_grad_value_, after `clip_norm` if there are
    /// both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_value: Option<f64>,
    /// The groups of trained variables that have numbers of their own; of several groups that a variable fits the first counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<ParameterGroup>,
    /// Batch norms that a training leaves as inference has them, by name patterns of their running statistics, `*` standing for any
    /// characters: they normalize by these, which then stay as they are. Their scales and shifts are trained all the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep_statistics: Vec<String>,
    /// The element type in which gradients of half precision are summed over microbatches.
    #[serde(default, skip_serializing_if = "Accumulation::is_f32")]
    pub accumulation: Accumulation,
    /// Whether a step whose loss is not finite leaves all variables as they are: weights, states of the optimizer, running
    /// statistics, averages. The output `skipped` is then 1.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_non_finite: bool,
    /// The share of itself that the moving average of each trained variable keeps at a step; `None`: there are no averages. They
    /// are states named `state.ema.<variable>`, of f32, and begin as the variables after the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema: Option<f64>,
    /// Whether, without an optimizer, the loss is differentiated all the same, and the graph gives the gradient of each trained variable as the
    /// output `grad.<variable>`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gradients: bool,
    /// Tensors, by name pattern, whose gradients of the loss are outputs `grad.<tensor>`: inputs, named results of ops or variables. With neither
    /// an optimizer nor `gradients` the model is in the mode of inference.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gradients_of: Vec<String>,
    /// Whether, with an optimizer, nothing is differentiated and the gradient of each trained variable is fed as the input `grad.<variable>`. It is a
    /// plan of updates alone, for gradients that are made elsewhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub updates_alone: bool,
    /// The strategy, which says how signatures are chosen: `auto`, `data`, `zero1`, `zero2`, `zero3`, `megatron` or `megatron:sp`, or one of these but
    /// `auto` for each axis of the mesh, outermost first, such as `data,zero3`.
    pub strategy: Strategy,
    /// The choice of activations that are computed again in the backward pass.
    #[serde(default, skip_serializing_if = "Recompute::is_none")]
    pub recompute: Recompute,
    /// The form of cross entropy: one op, or several.
    #[serde(default, skip_serializing_if = "CrossEntropyForm::is_auto")]
    pub cross_entropy: CrossEntropyForm,
    /// Whether attention that the model writes in parts stays so, with its scores in memory, instead of becoming one op.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_attention: bool,
    /// Whether sequences that ranks share lie in one piece on each, so that under a causal mask the last rank has the most to do, instead of in early and late
    /// chunks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_order: bool,
    /// The element type of automatic mixed precision outside the regions that the graph itself has; `None`: every op computes
    /// in the types that the model says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<DType>,
    /// The recipe by which tensors are scaled, if the precision is of 8 bits.
    #[serde(default, skip_serializing_if = "Float8Recipe::is_rowwise")]
    pub float8_recipe: Float8Recipe,
    /// Layouts that the user asks for, by name pattern.
    pub pins: Vec<Pin>,
    /// The bytes that a rank may use; `None`: the device's memory.
    pub memory: Option<u64>,
    /// The work that the search for a plan may take, in percent of all that it would take, 1 to 100; `None`: all of it. With less the
    /// best plan that was found by then is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<u32>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            mesh: vec![1],
            stages: 1,
            microbatches: 1,
            auto_stages: false,
            auto_microbatches: false,
            schedule: Schedule::OneForwardOneBackward,
            dims: BTreeMap::new(),
            loss: None,
            label_smoothing: 0.0,
            metrics: Vec::new(),
            row_losses: false,
            fetch: Vec::new(),
            optimizer: None,
            maximize: false,
            own_counts: false,
            lr_schedule: LrSchedule::default(),
            clip_norm: None,
            clip_value: None,
            groups: Vec::new(),
            keep_statistics: Vec::new(),
            accumulation: Accumulation::F32,
            skip_non_finite: false,
            ema: None,
            gradients: false,
            gradients_of: Vec::new(),
            updates_alone: false,
            strategy: Strategy::Auto,
            recompute: Recompute::None,
            cross_entropy: CrossEntropyForm::Auto,
            keep_attention: false,
            keep_order: false,
            precision: None,
            float8_recipe: Float8Recipe::Rowwise,
            pins: Vec::new(),
            memory: None,
            effort: None,
        }
    }
}

impl CompileOptions {
    /// Returns as much of a limit of work, of 1 at least, as the effort leaves.
    pub fn within_effort(&self, work: u64) -> u64 {
        let percent = u64::from(self.effort.unwrap_or(100).clamp(1, 100));
        (work * percent).div_ceil(100)
    }

    /// Returns whether the loss is differentiated.
    pub fn differentiates_loss(&self) -> bool {
        self.trains_variables() || !self.gradients_of.is_empty()
    }

    /// Returns whether the loss is differentiated by trained variables, with the model in the mode of training.
    pub fn trains_variables(&self) -> bool {
        (self.optimizer.is_some() && !self.updates_alone) || self.gradients
    }

    /// Returns the learning rate at a step, from 0, of variables that are in no group. `None` without an optimizer.
    pub fn learning_rate(&self, step: u64) -> Option<f64> {
        self.optimizer.map(|optimizer| optimizer.lr() * self.lr_schedule.factor(step))
    }
}

/// The order of microbatches in a pipeline. Its text is `1f1b`, `gpipe` or `interleaved:V`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Schedule {
    /// The schedule of one forward, one backward (1F1B) (PipeDream-Flush, Narayanan et al., arXiv 2006.09503, section 3.2).
    OneForwardOneBackward,
    /// The schedule of all forwards, then all backwards (Huang et al., arXiv 1811.06965).
    Gpipe,
    /// The schedule of one forward, one backward, where each stage has several chunks of layers (Narayanan et al., arXiv 2104.04473, section 2.2).
    Interleaved {
        /// The number of chunks of a stage.
        chunks: usize,
    },
}

impl Schedule {
    /// Returns the number of chunks of layers that a stage has; 1 where the schedule does not interleave.
    pub fn chunks_per_stage(&self) -> usize {
        match self {
            Self::Interleaved { chunks } => *chunks,
            Self::OneForwardOneBackward | Self::Gpipe => 1,
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneForwardOneBackward => f.write_str("1f1b"),
            Self::Gpipe => f.write_str("gpipe"),
            Self::Interleaved { chunks } => write!(f, "interleaved:{chunks}"),
        }
    }
}

impl From<Schedule> for String {
    fn from(schedule: Schedule) -> Self {
        schedule.to_string()
    }
}

/// The error of a text that is no schedule.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no schedule: they are 1f1b, gpipe and interleaved:V, V chunks of layers for each stage, 2 to 256"
)]
pub struct ScheduleError {
    /// The text that was read.
    pub text: String,
}

graphc_ir::readable_debug!(ScheduleError);

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let chunks = text.strip_prefix("interleaved:").and_then(|chunks| chunks.parse().ok());
        match (text, chunks) {
            ("1f1b", _) => Ok(Self::OneForwardOneBackward),
            ("gpipe", _) => Ok(Self::Gpipe),
            (_, Some(chunks @ 2..=256)) => Ok(Self::Interleaved { chunks }),
            _ => Err(ScheduleError { text: text.into() }),
        }
    }
}

impl TryFrom<String> for Schedule {
    type Error = ScheduleError;

    fn try_from(text: String) -> Result<Self, ScheduleError> {
        text.parse()
    }
}

/// The choice of activations that are kept from the forward pass for the backward pass (Chen et al., arXiv 1604.06174).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// All activations are kept.
    #[default]
    None,
    /// The inputs of each block are kept, and what takes much computing, such as products with weights; what is cheap is computed again: scores of
    /// attention, norms, activation functions (Korthikanti et al., arXiv 2205.05198, section 5).
    Selective,
    /// The inputs of each block are kept; what it computes is computed again right before its backward pass.
    Full,
    /// All activations are kept, and where they do not fit the memory as many as possible: what takes the fewest seconds for its bytes is computed
    /// again first.
    Auto,
}

impl fmt::Display for Recompute {
    /// As in plans and on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Selective => "selective",
            Self::Full => "full",
            Self::Auto => "auto",
        })
    }
}

impl Recompute {
    /// Returns whether nothing is computed again.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// The recipe by which the tensors of products in 8 bits are scaled: what has one scale, and which products there are (torchao calls this
/// `Float8LinearRecipeName`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Float8Recipe {
    /// torchao's `rowwise_with_gw_hp`: each row has a scale, and gradients of weights are products of bf16. No scale depends on the batch.
    #[default]
    Rowwise,
    /// torchao's `tensorwise`, with Transformer Engine's formats (`Float8CurrentScaling`): each tensor has a scale, gradients are f8e5m2, and gradients of weights
    /// are products in 8 bits too. The scales are those of a whole microbatch.
    Tensorwise,
}

impl Float8Recipe {
    /// Returns whether each row has a scale.
    pub fn is_rowwise(&self) -> bool {
        *self == Self::Rowwise
    }
}

/// The element type in which gradients of half precision are summed over microbatches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accumulation {
    /// The type f32: the error does not grow with the number of microbatches.
    #[default]
    F32,
    /// The type of the gradients, which takes half the memory and, where ranks sum them as well, with half the traffic: each addition is rounded.
    /// Megatron-LM does so for fp16 unless told otherwise.
    Half,
}

impl Accumulation {
    /// Returns whether sums lose nothing of half precision.
    pub fn is_f32(&self) -> bool {
        *self == Self::F32
    }
}

/// The form of cross entropy: one op, which keeps classes whole, or parts, between which classes may be split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CrossEntropyForm {
    /// The cheaper form; of fixed strategies and pins, what they need.
    #[default]
    Auto,
    /// The form of one op, unless a pin splits its classes.
    Whole,
    /// The form of parts.
    Parts,
}

impl CrossEntropyForm {
    /// Returns whether it is the compiler's choice.
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// A layout that the user asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// The name of a tensor, `*` standing for any characters.
    pub pattern: String,
    /// The layout: one SBP for each mesh axis.
    pub sbp: NdSbp,
}

pub(super) fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_its_text() {
        for schedule in [
            Schedule::OneForwardOneBackward,
            Schedule::Gpipe,
            Schedule::Interleaved { chunks: 2 },
            Schedule::Interleaved { chunks: 256 },
        ] {
            assert_eq!(schedule.to_string().parse(), Ok(schedule));
            let json = serde_json::to_string(&schedule).expect("a text");
            assert_eq!(json, format!("\"{schedule}\""));
            assert_eq!(serde_json::from_str::<Schedule>(&json).expect("a schedule"), schedule);
        }
        for text in ["", "interleaved", "interleaved:1", "interleaved:257", "interleaved:-2"] {
            let error = text.parse::<Schedule>().expect_err(text).to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("1f1b"), "{error}");
        }
    }
}
