//! The trait of data sets.
//!
//! A data set reads one field of one sample into memory that it is given, from any thread. Files are read where a sample
//! lies, so a process holds no set, but labels and what was packed.

use graphc_ir::types::TensorType;
use graphc_runtime::HostTensor;

use crate::error::DatasetError;

/// A number of samples, all of the same fields, each of which can be read at any time, from any thread.
pub trait Dataset: Send + Sync {
    /// Its name in messages.
    fn name(&self) -> &str;

    /// The number of samples.
    fn samples(&self) -> usize;

    /// The fields of a sample.
    fn fields(&self) -> &[Field];

    /// Reads field number `field` of a sample into `into`, which has as many bytes as the field. `sample` and `field` are
    /// below their numbers.
    ///
    /// # Errors
    /// Where what lies there cannot be read, or is no such sample.
    fn read(&self, sample: usize, field: usize, into: &mut [u8]) -> Result<(), DatasetError>;

    /// The tensor of a name that belongs to no sample, but to the set, where it holds one: what an input is fed with that is the
    /// same in every step.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn read_whole(&self, _name: &str) -> Result<Option<HostTensor>, DatasetError> {
        Ok(None)
    }

    /// A line for whoever uses it, where it is read in another way than its files ask for.
    fn note(&self) -> Option<&str> {
        None
    }
}

/// A part of each sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its name: an input of the graph of this name is fed with it.
    pub name: String,
    /// Its type in one sample, without a dim of samples.
    pub ty: TensorType,
    /// Its meaning.
    pub kind: FieldKind,
}

/// The meaning of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// An image: `u8` of `[channels, height, width]`, which is augmented.
    Image,
    /// Classes: integers, of which -100 means none.
    Labels,
    /// Anything else.
    Plain,
}

/// Which part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The samples to train on.
    Train,
    /// The samples that are held out.
    Test,
}

impl std::fmt::Display for Split {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Train => "train",
            Self::Test => "test",
        })
    }
}

impl Field {
    /// A field.
    pub fn new(name: &str, ty: TensorType, kind: FieldKind) -> Self {
        Self { name: name.to_owned(), ty, kind }
    }
}

/// A data set in a line: its name, its number of samples, its fields. Processes of a job can compare it.
pub fn describe_dataset(set: &dyn Dataset) -> String {
    let fields = set.fields().iter().map(|field| format!("{} {}", field.name, field.ty));
    let fields: Vec<String> = fields.collect();
    format!("{} with {} samples of {}", set.name(), set.samples(), fields.join(", "))
}
