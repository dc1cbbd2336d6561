//! The trait of data sets.
//!
//! A data set reads one field of one sample into memory that it is given, from any thread. Files are read when a sample is read, so a process holds
//! no set in memory, only labels and the content of compressed files.

use graphc_host::tensor::HostTensor;
use graphc_ir::types::TensorType;

use crate::error::DatasetError;

/// A number of samples with the same fields. Each can be read at any time, from any thread.
pub trait Dataset: Send + Sync {
    /// Returns its name for messages.
    fn name(&self) -> &str;

    /// Returns the number of samples.
    fn samples(&self) -> usize;

    /// Returns the fields of a sample.
    fn fields(&self) -> &[Field];

    /// Reads field number `field` of a sample into `into`, which has as many bytes as the field. `sample` and `field` are below the numbers of
    /// samples and fields.
    ///
    /// # Errors
    /// Returns an error if the data cannot be read, or is not such a sample: a program's own is [`DatasetError::Custom`], which `?` makes of an
    /// [`io::Error`](std::io::Error) or a boxed error. The loader puts the names of the set, the sample and the field before it.
    fn read(&self, sample: usize, field: usize, into: &mut [u8]) -> Result<(), DatasetError>;

    /// Returns the tensor of this name that belongs to the whole set and not to a sample, if there is one. It feeds an input that is the same in
    /// every step.
    ///
    /// # Errors
    /// Returns an error if it cannot be read.
    fn read_whole(&self, _name: &str) -> Result<Option<HostTensor>, DatasetError> {
        Ok(None)
    }

    /// Returns a line for the user if the set is read in another way than its files ask for.
    fn note(&self) -> Option<&str> {
        None
    }
}

/// A part of each sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// The name. An input of the graph of this name is fed with the field.
    pub name: String,
    /// The type in one sample, without a dim of samples.
    pub ty: TensorType,
    /// The meaning.
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

/// A part of a data set: the samples to train on, or those that are held out.
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
    /// Makes a field.
    pub fn new(name: &str, ty: TensorType, kind: FieldKind) -> Self {
        Self { name: name.to_owned(), ty, kind }
    }
}

/// Describes a data set in a line: its name, its number of samples, its fields. Processes of a job can compare these lines.
pub fn describe_dataset(set: &dyn Dataset) -> String {
    let fields = set.fields().iter().map(|field| format!("{} {}", field.name, field.ty));
    let fields: Vec<String> = fields.collect();
    format!("{} with {} samples of {}", set.name(), set.samples(), fields.join(", "))
}
