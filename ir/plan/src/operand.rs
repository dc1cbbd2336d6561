//! The sources of a kernel's operands.

use graphc_ir::ids::RegisterId;
use serde::{Deserialize, Serialize};

use super::Actor;

/// The source of an operand of a kernel. A plan's file has one number for it: n for input n, and -1-n for update n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "i32", into = "i32")]
pub enum OperandSource {
    /// An input of the actor, by its place among the inputs.
    Input(usize),
    /// A variable that the actor updates in place, by its place among the updates.
    Update(usize),
}

impl OperandSource {
    /// Returns the place among the actor's inputs; `None` of a variable that the actor updates.
    pub fn input_index(self) -> Option<usize> {
        match self {
            Self::Input(place) => Some(place),
            Self::Update(_) => None,
        }
    }

    /// Returns whether it is a variable that the actor updates in place.
    pub fn is_update(self) -> bool {
        matches!(self, Self::Update(_))
    }
}

impl From<i32> for OperandSource {
    fn from(number: i32) -> Self {
        match usize::try_from(number) {
            Ok(place) => Self::Input(place),
            Err(_) => Self::Update((-1 - number) as usize),
        }
    }
}

/// The conversion to the number that a file has for a source; a place that no number stands for becomes the last number, since no actor has so many
/// registers.
impl From<OperandSource> for i32 {
    fn from(source: OperandSource) -> Self {
        let number = |place| Self::try_from(place).unwrap_or(Self::MAX);
        match source {
            OperandSource::Input(place) => number(place),
            OperandSource::Update(place) => -1 - number(place),
        }
    }
}

impl Actor {
    /// Returns the register of an operand; `None` where the actor has no such input or update.
    pub fn operand_register(&self, source: OperandSource) -> Option<RegisterId> {
        let register = match source {
            OperandSource::Input(place) => self.inputs.get(place),
            OperandSource::Update(place) => self.updates.get(place),
        };
        register.copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_number_for_it() {
        let sources = [
            OperandSource::Input(0),
            OperandSource::Input(7),
            OperandSource::Update(0),
            OperandSource::Update(3),
        ];
        let text = serde_json::to_string(&sources).expect("JSON");
        assert_eq!(text, "[0,7,-1,-4]");
        assert_eq!(serde_json::from_str::<[OperandSource; 4]>(&text).expect("sources"), sources);
        for number in [i32::MIN, -1, 0, i32::MAX] {
            assert_eq!(i32::from(OperandSource::from(number)), number);
        }
    }
}
