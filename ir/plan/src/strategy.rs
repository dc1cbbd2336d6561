//! Fixed ways to lay a training out, for all axes of the mesh or for each.

use std::fmt;
use std::str::FromStr;

use graphc_ir::ops::Input;
use graphc_ir::sbp::{NdSbp, Sbp};
use serde::{Deserialize, Serialize};

/// The way in which signatures are chosen: `auto`, `data`, `zero1`, `zero2`, `zero3`, these with `:cp`, `megatron`, `megatron:sp`, `hsdp`, or a name for each
/// axis of the mesh, e.g. `data,zero3` (the same as `hsdp`), `zero3,megatron` or `zero1,zero1:cp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Strategy {
    /// The choice of the planner.
    Auto,
    /// Data parallelism: weights whole everywhere, gradients and statistics of batches all-reduced.
    Data,
    /// Data parallelism with optimizer states sharded (Rajbhandari et al., arXiv 1910.02054, section 5).
    Zero1,
    /// Data parallelism as `zero1`, with gradients sharded too.
    Zero2,
    /// Data parallelism as `zero2`, with parameters sharded too.
    Zero3,
    /// Tensor parallelism: the innermost mesh axis splits the model, the others the batch (Shoeybi et al., arXiv 1909.08053).
    Megatron,
    /// Tensor parallelism as `megatron`, and between the products of that axis it splits sequences (Korthikanti et al., arXiv 2205.05198, section
    /// 4.2.2).
    MegatronSp,
    /// Context parallelism: the innermost axis splits sequences, the others the batch, and each shares what the stage says. Only inputs, parameters and
    /// states are laid out so. The planner chooses the rest, and with it how queries reach the keys and values of other ranks: by an all-gather of
    /// these (Dubey et al., arXiv 2407.21783, section 3.3.2), or by an all-to-all after which each rank has whole sequences of some heads (Jacobs et al., arXiv
    /// 2309.14509).
    Context(ZeroStage),
    /// A strategy for each axis.
    Mixed(AxisStrategies),
}

/// The stage of ZeRO: what the ranks of an axis share, instead of a copy for each (Rajbhandari et al., arXiv 1910.02054, section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZeroStage {
    /// Nothing: each rank has a copy.
    Nothing,
    /// The states of the optimizer.
    States,
    /// States and gradients.
    Gradients,
    /// States, gradients and parameters.
    Parameters,
}

impl ZeroStage {
    /// The strategy of an axis that splits samples.
    fn of_samples(self) -> AxisStrategy {
        match self {
            Self::Nothing => AxisStrategy::Data,
            Self::States => AxisStrategy::Zero1,
            Self::Gradients => AxisStrategy::Zero2,
            Self::Parameters => AxisStrategy::Zero3,
        }
    }
}

/// The strategy along one axis of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisStrategy {
    /// As [`Strategy::Data`].
    Data,
    /// As [`Strategy::Zero1`].
    Zero1,
    /// As [`Strategy::Zero2`].
    Zero2,
    /// As [`Strategy::Zero3`].
    Zero3,
    /// As [`Strategy::Megatron`], of the innermost axis alone.
    Megatron,
    /// As [`Strategy::MegatronSp`], of the innermost axis alone.
    MegatronSp,
    /// As [`Strategy::Context`], of this axis.
    Context(ZeroStage),
}

impl AxisStrategy {
    /// Returns what the ranks of the axis share.
    fn stage(self) -> ZeroStage {
        match self {
            Self::Data | Self::Megatron | Self::MegatronSp => ZeroStage::Nothing,
            Self::Zero1 => ZeroStage::States,
            Self::Zero2 => ZeroStage::Gradients,
            Self::Zero3 => ZeroStage::Parameters,
            Self::Context(stage) => stage,
        }
    }

    /// Whether optimizer states are split over the axis.
    pub fn shards_states(self) -> bool {
        self.stage() >= ZeroStage::States
    }

    /// Whether gradients are split over the axis.
    pub fn shards_gradients(self) -> bool {
        self.stage() >= ZeroStage::Gradients
    }

    /// Whether parameters are split over the axis.
    pub fn shards_parameters(self) -> bool {
        self.stage() >= ZeroStage::Parameters
    }

    /// Returns the layout over the axis of an input: split along its sequences or its samples, or whole.
    pub fn lay_input(self, input: &Input) -> Sbp {
        let dim = match self {
            Self::Megatron | Self::MegatronSp => None,
            Self::Context(_) => sequence_dim(input),
            Self::Data | Self::Zero1 | Self::Zero2 | Self::Zero3 => input.samples_dim(),
        };
        dim.map_or(Sbp::Broadcast, Sbp::Split)
    }

    /// Whether the axis splits sequences instead of samples.
    pub fn splits_sequences(self) -> bool {
        matches!(self, Self::Context(_))
    }

    /// Whether the axis splits the model.
    pub fn splits_model(self) -> bool {
        matches!(self, Self::Megatron | Self::MegatronSp)
    }

    fn as_strategy(self) -> Strategy {
        match self {
            Self::Data => Strategy::Data,
            Self::Zero1 => Strategy::Zero1,
            Self::Zero2 => Strategy::Zero2,
            Self::Zero3 => Strategy::Zero3,
            Self::Megatron => Strategy::Megatron,
            Self::MegatronSp => Strategy::MegatronSp,
            Self::Context(stage) => Strategy::Context(stage),
        }
    }

    /// The strategy of an axis beside it: what it shares is shared there too, and samples are split.
    fn beside(self) -> Self {
        self.stage().of_samples()
    }
}

/// The most axes that are named one by one.
const MOST_AXES: usize = 4;

/// A strategy for each of the innermost axes, outermost first. Axes beyond them are treated as the first that is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisStrategies {
    /// The innermost axis first.
    inner: [Option<AxisStrategy>; MOST_AXES],
}

impl AxisStrategies {
    /// Hybrid sharding: `zero3` over the innermost axis, and copies over the others (Zhao et al., arXiv 2304.11277, section 3.2.2).
    pub const HSDP: Self =
        Self { inner: [Some(AxisStrategy::Zero3), Some(AxisStrategy::Data), None, None] };

    /// Returns the strategies of so many axes, outermost first; `None` if they are not 2 to 4, or one that splits the model is not the innermost.
    pub fn of_axes(axes: &[AxisStrategy]) -> Option<Self> {
        let (_, outer) = axes.split_last()?;
        let fits = (2..=MOST_AXES).contains(&axes.len());
        if !fits || outer.iter().any(|axis| axis.splits_model()) {
            return None;
        }
        let mut inner = [None; MOST_AXES];
        inner.iter_mut().zip(axes.iter().rev()).for_each(|(to, &axis)| *to = Some(axis));
        Some(Self { inner })
    }

    /// Returns the number of axes that are named.
    pub fn count(&self) -> usize {
        self.inner.iter().flatten().count()
    }

    /// Returns the strategy of an axis, counted from the innermost one.
    fn of_inner(&self, axis: usize) -> AxisStrategy {
        let last = self.count() - 1;
        let named = self.inner[axis.min(last)].unwrap_or(AxisStrategy::Data);
        if axis > last { named.beside() } else { named }
    }
}

impl Strategy {
    /// Those that are one name for all axes.
    pub const ALL: [Self; 11] = [
        Self::Auto,
        Self::Data,
        Self::Zero1,
        Self::Zero2,
        Self::Zero3,
        Self::Megatron,
        Self::MegatronSp,
        Self::Context(ZeroStage::Nothing),
        Self::Context(ZeroStage::States),
        Self::Context(ZeroStage::Gradients),
        Self::Context(ZeroStage::Parameters),
    ];

    /// Hybrid sharding, [`AxisStrategies::HSDP`].
    pub const HSDP: Self = Self::Mixed(AxisStrategies::HSDP);

    /// Returns what the strategy does along each of so many axes, outermost first.
    pub fn over_axes(self, axes: usize) -> Vec<AxisStrategy> {
        let alone = |axis| match self {
            Self::Auto | Self::Data => AxisStrategy::Data,
            Self::Zero1 => AxisStrategy::Zero1,
            Self::Zero2 => AxisStrategy::Zero2,
            Self::Zero3 => AxisStrategy::Zero3,
            Self::Megatron if axis == 0 => AxisStrategy::Megatron,
            Self::MegatronSp if axis == 0 => AxisStrategy::MegatronSp,
            Self::Megatron | Self::MegatronSp => AxisStrategy::Data,
            Self::Context(stage) if axis == 0 => AxisStrategy::Context(stage),
            Self::Context(stage) => stage.of_samples(),
            Self::Mixed(mixed) => mixed.of_inner(axis),
        };
        (0..axes).rev().map(alone).collect()
    }

    /// Returns the layout of an input on a mesh of so many axes.
    pub fn lay_input(self, axes: usize, input: &Input) -> NdSbp {
        NdSbp(self.over_axes(axes).into_iter().map(|axis| axis.lay_input(input)).collect())
    }

    /// Returns whether the innermost mesh axis splits the model.
    pub fn splits_model(self) -> bool {
        self.over_axes(1)[0].splits_model()
    }

    /// Returns whether parameters are split over ranks that gather them where they are read.
    pub fn shards_parameters(self) -> bool {
        self.over_axes(MOST_AXES).into_iter().any(AxisStrategy::shards_parameters)
    }

    /// Returns whether an axis splits sequences.
    pub fn splits_sequences(self) -> bool {
        self.over_axes(MOST_AXES).into_iter().any(AxisStrategy::splits_sequences)
    }

    /// Returns whether the planner chooses signatures: all of them, or all but those of inputs, parameters and states. Beside an axis that splits the
    /// model, one that splits sequences is part of a fixed plan.
    pub fn is_planned(self) -> bool {
        self == Self::Auto || self.splits_sequences() && !self.splits_model()
    }

    fn single(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.to_string() == text)
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Data => "data",
            Self::Zero1 => "zero1",
            Self::Zero2 => "zero2",
            Self::Zero3 => "zero3",
            Self::Megatron => "megatron",
            Self::MegatronSp => "megatron:sp",
            Self::Context(stage) => {
                return write!(f, "{}:cp", stage.of_samples().as_strategy());
            }
            Self::Mixed(mixed) => {
                let names = mixed.inner.iter().flatten().rev();
                let names: Vec<String> = names.map(|axis| axis.as_strategy().to_string()).collect();
                return f.write_str(&names.join(","));
            }
        })
    }
}

/// The error of a text that is no strategy.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no strategy: they are {}, hsdp, or a name for each of 2 to 4 axes, such as data,zero3, zero1,zero1:cp or zero1,data:cp,megatron:sp, of \
     which only the last may be megatron or megatron:sp, and none auto",
    Strategy::ALL.map(|strategy| strategy.to_string()).join(", ")
)]
pub struct StrategyError {
    /// The text that was read.
    pub text: String,
}

graphc_ir::readable_debug!(StrategyError);

impl FromStr for Strategy {
    type Err = StrategyError;

    /// Reads a name, or names of axes between commas or slashes.
    fn from_str(text: &str) -> Result<Self, StrategyError> {
        let error = || StrategyError { text: text.to_owned() };
        if text == "hsdp" {
            return Ok(Self::HSDP);
        }
        if let Some(single) = Self::single(text) {
            return Ok(single);
        }
        let axis = |name: &str| match Self::single(name)? {
            Self::Auto => None,
            single => Some(single.over_axes(1)[0]),
        };
        let axes: Option<Vec<AxisStrategy>> = text.split([',', '/']).map(axis).collect();
        let mixed = axes.and_then(|axes| AxisStrategies::of_axes(&axes));
        mixed.map(Self::Mixed).ok_or_else(error)
    }
}

impl TryFrom<String> for Strategy {
    type Error = StrategyError;

    fn try_from(text: String) -> Result<Self, StrategyError> {
        text.parse()
    }
}

impl From<Strategy> for String {
    fn from(strategy: Strategy) -> Self {
        strategy.to_string()
    }
}

/// Returns the dim of an input that counts the elements of a sequence: the first beside that of samples. An input without samples has none.
fn sequence_dim(input: &Input) -> Option<usize> {
    let samples = input.samples_dim()?;
    (0..input.ty.shape.len()).find(|&dim| dim != samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_axes_are_read_and_written() {
        use AxisStrategy::{Data, MegatronSp, Zero1, Zero3};
        let mixed: Strategy = "zero3,megatron:sp".parse().expect("a mix");
        assert_eq!(mixed.to_string(), "zero3,megatron:sp");
        assert_eq!(mixed.over_axes(3), [Zero3, Zero3, MegatronSp]);
        assert!(mixed.splits_model() && mixed.shards_parameters());
        assert_eq!("data/zero3".parse(), Ok(Strategy::HSDP));
        assert_eq!("hsdp".parse(), Ok(Strategy::HSDP));
        assert_eq!(Strategy::HSDP.over_axes(2), [Data, Zero3]);
        assert_eq!(
            "data,zero1,zero3".parse::<Strategy>().map(|s| s.over_axes(2)),
            Ok(vec![Zero1, Zero3])
        );
        for single in Strategy::ALL {
            assert_eq!(single.to_string().parse(), Ok(single));
        }
        assert_eq!(Strategy::Megatron.over_axes(2), [Data, AxisStrategy::Megatron]);
        let context = AxisStrategy::Context;
        let alone: Strategy = "zero1:cp".parse().expect("a strategy");
        assert_eq!(alone.over_axes(2), [Zero1, context(ZeroStage::States)]);
        let mixed: Strategy = "zero3:cp,data".parse().expect("a mix");
        assert_eq!(mixed.over_axes(3), [Zero3, context(ZeroStage::Parameters), Data]);
        assert!(alone.is_planned() && mixed.is_planned() && mixed.shards_parameters());
        let beside: Strategy = "zero1,zero1:cp,megatron:sp".parse().expect("a mix");
        assert!(beside.splits_sequences() && beside.splits_model() && !beside.is_planned());
        for wrong in [
            "megatron,data:cp",
            "auto:cp",
            "megatron:cp",
            "",
            "fast",
            "auto,data",
            "megatron,data",
            "data,",
            "data,data,data,data,data",
        ] {
            assert!(wrong.parse::<Strategy>().is_err(), "{wrong}");
        }
    }
}
