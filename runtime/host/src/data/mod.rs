//! Files and feeds: tensors in safetensors files, metrics as JSON lines and as event files, batches of a data set.

mod batches;
mod events;
mod files;
mod metrics;
mod pieces;
mod recognise;
mod rows;
mod stored;
mod tensors;

pub use batches::Batches;
pub use events::EventWriter;
pub use files::{check_writable, make_folder, open_file, read_file, write_file, write_with};
pub use metrics::MetricsWriter;
pub use pieces::Pieces;
pub use rows::TensorFile;
pub use tensors::{
    file_dtype, head_of_file, load_safetensors, order_in_file, place_in_file, save_each,
    save_safetensors,
};

use graphc_ir::types::TensorType;

/// The errors of reading files and data sets.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum HostFileError {
    /// A file that cannot be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// A file that cannot be written; nothing half-written is left.
    #[error("cannot write {path}: {reason}")]
    Write {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// An element type that graphc lacks.
    #[error("{path}: tensor `{name}` has elements of {dtype}, which graphc has no type for")]
    DType {
        /// The file.
        path: String,
        /// The tensor.
        name: String,
        /// Its element type.
        dtype: String,
    },
    /// A data set without a tensor that the graph needs.
    #[error("the data has no tensor `{name}` ({ty}); it has {found:?}")]
    InputMissing {
        /// The input.
        name: String,
        /// The type that the graph needs, for a batch.
        ty: TensorType,
        /// The tensors that the data has.
        found: Vec<String>,
    },
    /// A tensor of which no batches can be made.
    #[error("`{name}` is {found}, but a batch is {expected}: {reason}")]
    InputType {
        /// The input.
        name: String,
        /// The type that the graph needs, for a batch.
        expected: TensorType,
        /// The type that the data has.
        found: TensorType,
        /// The reason why it does not fit.
        reason: String,
    },
    /// Tensors of a data set with different numbers of samples.
    #[error("the data's tensors have different numbers of samples: {0:?}")]
    Samples(Vec<(String, usize)>),
    /// An input that is the same in every step, of which the data has another tensor.
    #[error(
        "`{name}` is {found}, and the model takes {expected}, the same in every step, because no dim of it counts samples: \
         export it with the batch's symbol where its samples lie, or give it whole"
    )]
    Whole {
        /// The input.
        name: String,
        /// The type that the graph needs.
        expected: TensorType,
        /// The type that the data has.
        found: TensorType,
    },
}

graphc_ir::readable_debug!(HostFileError);
