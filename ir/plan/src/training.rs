//! The parts of a training: losses, metrics, optimizers.

use serde::{Deserialize, Serialize};

use super::ComposedOptions;

/// A loss on the first output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Cross entropy of logits and integer labels, the mean over labels that are not ignored.
    CrossEntropy,
    /// Negative log likelihood of log-probabilities and integer labels, the mean over labels that are not ignored.
    Nll,
    /// Mean squared error against `target`.
    Mse,
    /// Binary cross entropy of logits against `target`, the mean.
    Bce,
    /// Huber loss against `target`: squared error near it, absolute error from 1 on, the mean.
    Huber,
    /// Mean absolute error against `target`.
    L1,
    /// The sum of the output.
    Sum,
}

impl Loss {
    /// Returns the name of the loss in plans and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::CrossEntropy => "cross_entropy",
            Self::Nll => "nll",
            Self::Mse => "mse",
            Self::Bce => "bce",
            Self::Huber => "huber",
            Self::L1 => "l1",
            Self::Sum => "sum",
        }
    }

    /// Returns whether the loss compares scores of classes with `labels`.
    pub fn has_labels(self) -> bool {
        matches!(self, Self::CrossEntropy | Self::Nll)
    }
}

/// A count of the first output against the labels of a loss. It is an output of its name; with any there is the output
/// `samples`, the number of labels that are not ignored. All are sums over the whole batch, so that those of several batches
/// may be added; a last batch of fewer samples is filled up with labels of -100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// The number of labels whose score no class exceeds: the output `top1`.
    Top1,
    /// The number of labels whose score fewer than five classes exceed: the output `top5`.
    Top5,
}

/// The name of the output that counts the labels which are not ignored, where there are metrics.
pub const SAMPLES: &str = "samples";

/// The name of the output that has the loss of each row, where that is asked for ([`CompileOptions::row_losses`](super::CompileOptions::row_losses)).
pub const ROW_LOSSES: &str = "loss.rows";

/// The name of the state that counts the steps that were not made, where they may be left out
/// ([`CompileOptions::skip_non_finite`](super::CompileOptions::skip_non_finite)). It is 0 of a training that made all.
pub const SKIPPED_STEPS: &str = "state.skipped_steps";

impl Metric {
    /// Returns the name of the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Top1 => "top1",
            Self::Top5 => "top5",
        }
    }
}

/// Trained variables that are updated with numbers of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParameterGroup {
    /// The pattern of their names, `*` standing for any characters.
    pub pattern: String,
    /// The factor of the learning rate.
    pub lr: f64,
    /// Their weight decay; `None`: the optimizer's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// The optimizer that updates them; `None`: that of the options. Schedule and clipping are those of the options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<Optimizer>,
}

impl ParameterGroup {
    /// Makes a group of variables that learn at this many times the rate of the others.
    ///
    /// ```
    /// use graphc_plan::{CompileOptions, Optimizer, ParameterGroup};
    ///
    /// let groups = vec![
    ///     ParameterGroup::of("*.embedding", 0.1),
    ///     ParameterGroup::no_decay("*.bias"),
    ///     ParameterGroup::updated_by("head.*", Optimizer::sgd(0.05)),
    /// ];
    /// let optimizer = Some(Optimizer::adamw(3e-4));
    /// let options = CompileOptions { optimizer, groups, ..CompileOptions::default() };
    /// # assert_eq!(options.groups[2].lr, 1.0);
    /// ```
    pub fn of(pattern: impl Into<String>, lr: f64) -> Self {
        Self { pattern: pattern.into(), lr, weight_decay: None, optimizer: None }
    }

    /// Makes a group of variables that do not decay: norms and biases, usually.
    pub fn no_decay(pattern: impl Into<String>) -> Self {
        Self { weight_decay: Some(0.0), ..Self::of(pattern, 1.0) }
    }

    /// Makes a group of variables that another optimizer than that of the options updates, with its own learning rate.
    pub fn updated_by(pattern: impl Into<String>, optimizer: Optimizer) -> Self {
        Self { optimizer: Some(optimizer), ..Self::of(pattern, 1.0) }
    }
}

/// An optimizer with the parameters of torch.optim's class of that name.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase")]
pub enum Optimizer {
    /// Stochastic gradient descent.
    Sgd {
        /// Learning rate.
        lr: f64,
        /// Momentum.
        momentum: f64,
        /// Whether the momentum is Nesterov's.
        nesterov: bool,
        /// L2 penalty.
        weight_decay: f64,
    },
    /// Adam.
    Adam(AdamOptions),
    /// AdamW: decoupled weight decay.
    AdamW(AdamOptions),
    /// LAMB (You et al., arXiv 1904.00962, algorithm 2).
    Lamb(AdamOptions),
    /// RMSprop.
    Rmsprop(RmspropOptions),
    /// Muon (Jordan et al., kellerjordan.github.io/posts/muon) for matrices and batches of them, such as the weights of experts. Variables
    /// of other ranks are updated by AdamW with its defaults, at Muon's learning rate and weight decay.
    Muon(MuonOptions),
    /// One whose step is composed of other ops: Adagrad, Adadelta, Adamax, NAdam, RAdam, Lion, Adafactor, Adam with `amsgrad`, SGD with `dampening`.
    Composed(ComposedOptions),
}

impl Optimizer {
    /// Makes stochastic gradient descent without momentum and without weight decay, as torch.optim.SGD with this learning rate alone.
    pub fn sgd(lr: f64) -> Self {
        Self::Sgd { lr, momentum: 0.0, nesterov: false, weight_decay: 0.0 }
    }

    /// Makes Adam with torch.optim.Adam's defaults.
    pub fn adam(lr: f64) -> Self {
        Self::Adam(AdamOptions::adam(lr))
    }

    /// Makes AdamW with torch.optim.AdamW's defaults.
    pub fn adamw(lr: f64) -> Self {
        Self::AdamW(AdamOptions::adamw(lr))
    }

    /// Makes LAMB with the defaults of FusedLAMB in NVIDIA's Apex.
    pub fn lamb(lr: f64) -> Self {
        Self::Lamb(AdamOptions::lamb(lr))
    }

    /// Makes RMSprop with torch.optim.RMSprop's defaults.
    pub fn rmsprop(lr: f64) -> Self {
        Self::Rmsprop(RmspropOptions::new(lr))
    }

    /// Makes Muon with the numbers of [`MuonOptions::new`].
    pub fn muon(lr: f64) -> Self {
        Self::Muon(MuonOptions::new(lr))
    }

    /// Makes Adagrad with torch.optim.Adagrad's defaults.
    pub fn adagrad(lr: f64) -> Self {
        Self::Composed(ComposedOptions::adagrad(lr))
    }

    /// Makes Adadelta with torch.optim.Adadelta's defaults, but for the learning rate, of which its is 1.
    pub fn adadelta(lr: f64) -> Self {
        Self::Composed(ComposedOptions::adadelta(lr))
    }

    /// Makes Adamax with torch.optim.Adamax's defaults.
    pub fn adamax(lr: f64) -> Self {
        Self::Composed(ComposedOptions::adamax(lr))
    }

    /// Makes NAdam with torch.optim.NAdam's defaults.
    pub fn nadam(lr: f64) -> Self {
        Self::Composed(ComposedOptions::nadam(lr))
    }

    /// Makes RAdam with torch.optim.RAdam's defaults.
    pub fn radam(lr: f64) -> Self {
        Self::Composed(ComposedOptions::radam(lr))
    }

    /// Makes Lion with the defaults of its authors.
    pub fn lion(lr: f64) -> Self {
        Self::Composed(ComposedOptions::lion(lr))
    }

    /// Makes Adafactor with torch.optim.Adafactor's defaults, but for the learning rate, of which its is 0.01.
    pub fn adafactor(lr: f64) -> Self {
        Self::Composed(ComposedOptions::adafactor(lr))
    }

    /// Returns the learning rate that a schedule multiplies.
    pub fn lr(&self) -> f64 {
        match self {
            Self::Sgd { lr, .. } => *lr,
            Self::Adam(options) | Self::AdamW(options) | Self::Lamb(options) => options.lr,
            Self::Rmsprop(options) => options.lr,
            Self::Muon(options) => options.lr,
            Self::Composed(options) => options.lr,
        }
    }

    /// Returns the same optimizer with another weight decay.
    #[must_use]
    pub fn with_weight_decay(mut self, decay: f64) -> Self {
        match &mut self {
            Self::Sgd { weight_decay, .. } => *weight_decay = decay,
            Self::Adam(options) | Self::AdamW(options) | Self::Lamb(options) => {
                options.weight_decay = decay;
            }
            Self::Rmsprop(options) => options.weight_decay = decay,
            Self::Muon(options) => options.weight_decay = decay,
            Self::Composed(options) => options.weight_decay = decay,
        }
        self
    }
}

/// Parameters of RMSprop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmspropOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the mean of squares.
    pub alpha: f64,
    /// The term that is added to the root.
    pub eps: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// Momentum.
    pub momentum: f64,
    /// Whether gradients are divided by their deviation, not by their mean square.
    pub centered: bool,
}

impl RmspropOptions {
    /// Returns torch.optim.RMSprop's defaults, with this learning rate.
    pub fn new(lr: f64) -> Self {
        Self { lr, alpha: 0.99, eps: 1e-8, weight_decay: 0.0, momentum: 0.0, centered: false }
    }
}

/// Parameters of Muon.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MuonOptions {
    /// Learning rate.
    pub lr: f64,
    /// Momentum: the share of the mean of gradients that stays.
    pub momentum: f64,
    /// Whether the momentum is Nesterov's.
    pub nesterov: bool,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// The coefficients of the Newton-Schulz iteration `X <- a X + (b A + c A A) X` with `A = X X^T`.
    pub coefficients: [f64; 3],
    /// The number of iterations.
    pub iterations: u32,
    /// The least norm by which a matrix is divided before the iteration.
    pub eps: f64,
    /// The factor of the learning rate.
    pub rate: MuonRate,
}

/// The factor of Muon's learning rate for a matrix that is stored as `rows` by `columns`, as torch.optim.Muon's `adjust_lr_fn` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MuonRate {
    /// The root of `rows / columns`, at least 1.
    Original,
    /// 0.2 times the root of the greater extent: an update is as large as AdamW's, so that both take one learning rate (Liu et al., arXiv
    /// 2502.16982, section 2.2).
    MatchRmsAdamw,
}

impl MuonOptions {
    /// Returns torch.optim.Muon's defaults, with this learning rate, but for the factor of the rate: this one does not depend on which way a
    /// matrix is stored, and AdamW takes the same rate.
    pub fn new(lr: f64) -> Self {
        Self {
            lr,
            momentum: 0.95,
            nesterov: true,
            weight_decay: 0.1,
            coefficients: [3.4445, -4.7750, 2.0315],
            iterations: 5,
            eps: 1e-7,
            rate: MuonRate::MatchRmsAdamw,
        }
    }

    /// Returns the options of AdamW for variables that are no matrices.
    pub fn of_others(&self) -> AdamOptions {
        AdamOptions { weight_decay: self.weight_decay, ..AdamOptions::adamw(self.lr) }
    }
}

impl MuonRate {
    /// Returns the factor of the learning rate for a matrix of so many rows and columns.
    pub fn factor(self, rows: usize, columns: usize) -> f64 {
        let [rows, columns] = [rows, columns].map(|extent| extent.max(1) as f64);
        match self {
            Self::Original => (rows / columns).max(1.0).sqrt(),
            Self::MatchRmsAdamw => 0.2 * rows.max(columns).sqrt(),
        }
    }
}

/// Parameters of Adam, AdamW and LAMB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// The term that is added to the root of the second moment.
    pub eps: f64,
    /// Weight decay.
    pub weight_decay: f64,
}

impl AdamOptions {
    /// Returns torch.optim.Adam's defaults, with this learning rate.
    pub fn adam(lr: f64) -> Self {
        Self { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }

    /// Returns torch.optim.AdamW's defaults, with this learning rate.
    pub fn adamw(lr: f64) -> Self {
        Self { weight_decay: 0.01, ..Self::adam(lr) }
    }

    /// Returns the defaults of FusedLAMB in NVIDIA's Apex, with this learning rate.
    pub fn lamb(lr: f64) -> Self {
        Self { eps: 1e-6, ..Self::adamw(lr) }
    }
}
