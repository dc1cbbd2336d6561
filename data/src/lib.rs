//! Data sets and loaders, which feed a training.
//!
//! A [`Dataset`] is a number of samples that are read one by one: CIFAR, MNIST, folders of images, text, safetensors. A [`Source`] names one as
//! command lines do (`cifar10:DIR`). A [`Loader`] makes the feeds of steps from a data set, in an order that is shuffled by seed and epoch, in
//! threads of its own. It reads only the rows that its process's ranks use.
//!
//! Everything here is a function of data, seed, epoch and sample. So it is the same on every mesh, and any step can be made again. This crate knows
//! no plan; it learns from the types of inputs what a graph is fed with.
//!
//! Files are checked when they are opened: sizes, heads, labels, and that files of a set are equally long. So files that were cut off between two
//! samples are found. Start reading with [`Loader`].

#![warn(unreachable_pub)]

mod augment;
#[cfg(feature = "bpe")]
mod bpe;
mod cifar;
mod content;
mod convert;
mod dataset;
mod error;
mod idx;
#[cfg(feature = "images")]
mod images;
mod loader;
mod mnist;
mod records;
mod sampler;
mod source;
pub mod synth;
mod tensors;
mod text;
#[cfg(feature = "bpe")]
mod tokenizer;

pub use augment::{Augment, Normalize};
#[cfg(feature = "bpe")]
pub use bpe::BpeText;
pub use cifar::{cifar10, cifar100};
pub use dataset::{Dataset, Field, FieldKind, Split, describe_dataset};
pub use error::DatasetError;
#[cfg(feature = "images")]
pub use images::ImageFolder;
pub use loader::{Batch, Feeds, IGNORED, LastBatch, Loader, LoaderOptions};
pub use mnist::mnist;
pub use records::ImageSet;
pub use sampler::{DistributedSampler, Remainder};
pub use source::{Kind, Source};
pub use tensors::TensorSet;
pub use text::ByteText;
