//! The loss: one of graphc's own, or an output of the model.

use std::ffi::OsStr;
use std::fmt;

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error, ValueEnum};
use graphc_plan::Loss;

/// The text that comes before the name of an output.
const OUTPUT: &str = "output:";

/// The number that a training minimises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LossChoice {
    /// A loss on the first output.
    Of(Loss),
    /// The output of this name.
    Output(String),
}

impl LossChoice {
    /// The loss that the compiler attaches, if any.
    pub(crate) fn attached_loss(&self) -> Option<Loss> {
        match self {
            Self::Of(loss) => Some(*loss),
            Self::Output(_) => None,
        }
    }
}

impl fmt::Display for LossChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(loss) => f.write_str(loss.name()),
            Self::Output(name) => write!(f, "{OUTPUT}{name}"),
        }
    }
}

/// Reads a name of a loss, or `output:NAME`.
#[derive(Clone, Copy)]
pub(crate) struct LossParser;

impl TypedValueParser for LossParser {
    type Value = LossChoice;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<LossChoice, Error> {
        match value.to_str().and_then(|text| text.strip_prefix(OUTPUT)) {
            Some("") => Err(nameless_output(command, arg)),
            Some(name) => Ok(LossChoice::Output(name.into())),
            None => {
                let names = EnumValueParser::<LossName>::new();
                Ok(LossChoice::Of(names.parse_ref(command, arg, value)?.into()))
            }
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let help = "An output of the model, by name: a number, or the mean of many";
        let output = PossibleValue::new("output:NAME").help(help);
        let names = LossName::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        Some(Box::new(names.chain([output])))
    }
}

/// Returns the error about an output without a name.
fn nameless_output(command: &Command, arg: Option<&Arg>) -> Error {
    let mut error = Error::new(ErrorKind::InvalidValue).with_cmd(command);
    let option = arg.map_or("--loss <LOSS>".to_owned(), ToString::to_string);
    error.insert(ContextKind::InvalidArg, ContextValue::String(option));
    error.insert(ContextKind::InvalidValue, ContextValue::String(OUTPUT.into()));
    let valid = ContextValue::Strings(vec!["output:NAME, with the name of an output".into()]);
    error.insert(ContextKind::ValidValue, valid);
    error
}

/// Names of losses.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
enum LossName {
    /// Cross entropy of logits and integer labels
    CrossEntropy,
    /// Negative log likelihood of log-probabilities
    Nll,
    /// Mean squared error
    Mse,
    /// Binary cross entropy of logits
    Bce,
    /// Squared error near the target, absolute error from 1 on
    Huber,
    /// Mean absolute error
    L1,
    /// The sum of the output
    Sum,
}

impl From<LossName> for Loss {
    fn from(name: LossName) -> Self {
        match name {
            LossName::CrossEntropy => Self::CrossEntropy,
            LossName::Nll => Self::Nll,
            LossName::Mse => Self::Mse,
            LossName::Bce => Self::Bce,
            LossName::Huber => Self::Huber,
            LossName::L1 => Self::L1,
            LossName::Sum => Self::Sum,
        }
    }
}
