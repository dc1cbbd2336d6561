//! Optimizers whose step the compiler composes of other ops: their rules, with the numbers of torch.optim's classes.

use serde::{Deserialize, Serialize};

/// An optimizer whose step is composed of ops of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComposedOptions {
    /// How the direction of a step follows from gradients.
    pub rule: StepRule,
    /// Learning rate.
    pub lr: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Whether weights decay by themselves, as AdamW's do; otherwise the decay is a part of the gradient (L2).
    pub decoupled: bool,
}

/// How the direction of a step follows from gradients: the step is `w - lr direction`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepRule {
    /// A momentum that takes a part of each gradient but the first: torch.optim.SGD with `dampening`.
    Damped {
        /// Momentum.
        momentum: f64,
        /// The part of a gradient that the momentum does not take.
        dampening: f64,
    },
    /// Adam with the greatest second moment of all steps (Reddi et al., arXiv 1904.09237): torch.optim.Adam and AdamW with `amsgrad`.
    Amsgrad {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// The term that is added to the root of the second moment.
        eps: f64,
    },
    /// Adagrad (Duchi et al., JMLR 12, 2011).
    Adagrad {
        /// How much the learning rate falls with each step.
        lr_decay: f64,
        /// What sums of squares begin with.
        initial: f64,
        /// The term that is added to the root of the sum of squares.
        eps: f64,
    },
    /// Adadelta (Zeiler, arXiv 1212.5701).
    Adadelta {
        /// Decay of the means of squares.
        rho: f64,
        /// The term that is added to means of squares, under their roots.
        eps: f64,
    },
    /// Adamax (Kingma and Ba, arXiv 1412.6980, section 7.1).
    Adamax {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the greatest gradient.
        beta2: f64,
        /// The term that is added to a gradient's size.
        eps: f64,
    },
    /// NAdam (Dozat, ICLR workshop 2016).
    Nadam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// The term that is added to the root of the second moment.
        eps: f64,
        /// How fast the momentum rises to `beta1`.
        momentum_decay: f64,
    },
    /// RAdam (Liu et al., arXiv 1908.03265).
    Radam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// The term that is added to the root of the second moment.
        eps: f64,
    },
    /// Lion (Chen et al., arXiv 2302.06675).
    Lion {
        /// The share of the momentum in the direction.
        beta1: f64,
        /// Decay of the momentum.
        beta2: f64,
    },
    /// Adafactor (Shazeer and Stern, arXiv 1804.04235).
    Adafactor(AdafactorOptions),
}

/// Parameters of Adafactor: torch.optim's, or with `fixed_rate` those of transformers with `relative_step=False` and without `beta1`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdafactorOptions {
    /// Means of squares take a share of `n^-decay_exponent` of those of update n, counted from 1.
    pub decay_exponent: f64,
    /// The least root of a mean of squares; with `fixed_rate` what is added to squares.
    pub eps: f64,
    /// The least root mean square of a variable, by which its steps are scaled.
    pub least_scale: f64,
    /// The greatest root mean square of a step before it is scaled.
    pub clip: f64,
    /// Whether the rate has no limit, which is `1 / sqrt(n)` otherwise. Weights then decay by the scaled rate.
    pub fixed_rate: bool,
    /// Whether steps are not scaled by the root mean square of their variable.
    pub unscaled: bool,
}

impl ComposedOptions {
    /// Makes SGD whose momentum takes a part of each gradient but the first.
    pub fn damped(lr: f64, momentum: f64, dampening: f64) -> Self {
        Self::coupled(lr, StepRule::Damped { momentum, dampening })
    }

    /// Returns torch.optim.Adam's defaults with `amsgrad`, with this learning rate.
    pub fn amsgrad(lr: f64) -> Self {
        Self::coupled(lr, StepRule::Amsgrad { beta1: 0.9, beta2: 0.999, eps: 1e-8 })
    }

    /// Returns torch.optim.Adagrad's defaults, with this learning rate.
    pub fn adagrad(lr: f64) -> Self {
        Self::coupled(lr, StepRule::Adagrad { lr_decay: 0.0, initial: 0.0, eps: 1e-10 })
    }

    /// Returns torch.optim.Adadelta's defaults, with this learning rate, which is usually 1.
    pub fn adadelta(lr: f64) -> Self {
        Self::coupled(lr, StepRule::Adadelta { rho: 0.9, eps: 1e-6 })
    }

    /// Returns torch.optim.Adamax's defaults, with this learning rate.
    pub fn adamax(lr: f64) -> Self {
        Self::coupled(lr, StepRule::Adamax { beta1: 0.9, beta2: 0.999, eps: 1e-8 })
    }

    /// Returns torch.optim.NAdam's defaults, with this learning rate.
    pub fn nadam(lr: f64) -> Self {
        let rule = StepRule::Nadam { beta1: 0.9, beta2: 0.999, eps: 1e-8, momentum_decay: 0.004 };
        Self::coupled(lr, rule)
    }

    /// Returns torch.optim.RAdam's defaults, with this learning rate.
    pub fn radam(lr: f64) -> Self {
        Self::coupled(lr, StepRule::Radam { beta1: 0.9, beta2: 0.999, eps: 1e-8 })
    }

    /// Returns the defaults of Lion's authors, with this learning rate.
    pub fn lion(lr: f64) -> Self {
        let rule = StepRule::Lion { beta1: 0.9, beta2: 0.99 };
        Self { decoupled: true, ..Self::coupled(lr, rule) }
    }

    /// Returns torch.optim.Adafactor's defaults for variables of `f32`, with this learning rate, which is usually 0.01.
    pub fn adafactor(lr: f64) -> Self {
        let rule = StepRule::Adafactor(AdafactorOptions {
            decay_exponent: 0.8,
            eps: f64::from(f32::EPSILON),
            least_scale: 1e-3,
            clip: 1.0,
            fixed_rate: false,
            unscaled: false,
        });
        Self { decoupled: true, ..Self::coupled(lr, rule) }
    }

    fn coupled(lr: f64, rule: StepRule) -> Self {
        Self { rule, lr, weight_decay: 0.0, decoupled: false }
    }
}

impl StepRule {
    /// Returns the rule's numbers by the names of the command line's options, each with whether it is a share, of at least 0 and less than 1.
    pub fn numbers(self) -> Vec<(&'static str, f64, bool)> {
        let moments = |beta1, beta2| vec![("beta1", beta1, true), ("beta2", beta2, true)];
        let with = |mut numbers: Vec<_>, name, value| {
            numbers.push((name, value, false));
            numbers
        };
        match self {
            Self::Damped { momentum, dampening } => {
                vec![("momentum", momentum, false), ("dampening", dampening, false)]
            }
            Self::Amsgrad { beta1, beta2, eps }
            | Self::Adamax { beta1, beta2, eps }
            | Self::Radam { beta1, beta2, eps } => with(moments(beta1, beta2), "eps", eps),
            Self::Adagrad { lr_decay, initial, eps } => vec![
                ("lr_decay", lr_decay, false),
                ("initial_accumulator", initial, false),
                ("eps", eps, false),
            ],
            Self::Adadelta { rho, eps } => vec![("alpha", rho, true), ("eps", eps, false)],
            Self::Nadam { beta1, beta2, eps, momentum_decay } => {
                with(with(moments(beta1, beta2), "eps", eps), "momentum_decay", momentum_decay)
            }
            Self::Lion { beta1, beta2 } => moments(beta1, beta2),
            Self::Adafactor(of) => vec![
                ("eps", of.eps, false),
                ("decay_exponent", of.decay_exponent, false),
                ("least_scale", of.least_scale, false),
                ("clip_step", of.clip, false),
            ],
        }
    }
}
