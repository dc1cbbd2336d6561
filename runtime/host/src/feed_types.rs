//! The types of the tensors that a step is fed with.

use std::collections::BTreeMap;
use std::ops::Range;

use graphc_ir::types::{Samples, TensorType};

/// The inputs that a step takes: whoever has it can make feeds without the session that executes the step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedTypes {
    /// The type of each input, for a whole batch.
    pub inputs: BTreeMap<String, TensorType>,
    /// The dim of each input that counts samples. For inputs that are not listed it is the first.
    pub samples: BTreeMap<String, Samples>,
    /// The rows of each input that are read, as ascending ranges of the batch. Inputs that are not listed are read whole.
    pub rows: BTreeMap<String, Vec<Range<usize>>>,
}
