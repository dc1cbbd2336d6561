//! Images of one size with a class each, at regular positions of files. CIFAR and MNIST are stored like this.

use std::fmt;

use graphc_ir::types::{DType, TensorType};

use crate::content::FileContent;
use crate::dataset::{Dataset, Field, FieldKind};
use crate::error::DatasetError;

/// Images with a class each: fields `images`, `u8[channels, height, width]`, and `labels`, `i64[]`.
pub struct ImageSet {
    name: String,
    fields: [Field; 2],
    parts: Vec<ImagePart>,
    /// The class of each sample, in the order of the parts.
    labels: Vec<u8>,
}

/// The images of one file.
#[derive(Debug)]
pub(crate) struct ImagePart {
    pub(crate) content: FileContent,
    pub(crate) samples: usize,
    /// The position of the first image, in bytes.
    pub(crate) first: u64,
    /// The distance from one image to the next, in bytes.
    pub(crate) stride: u64,
}

impl fmt::Debug for ImageSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::describe_dataset(self))
    }
}

impl ImageSet {
    /// Makes a set of parts. `labels` has as many elements as all parts have images.
    pub(crate) fn new(
        name: String,
        shape: [usize; 3],
        parts: Vec<ImagePart>,
        labels: Vec<u8>,
    ) -> Self {
        let fields = [
            Field::new("images", TensorType::new(DType::U8, shape), FieldKind::Image),
            Field::new("labels", TensorType::new(DType::I64, []), FieldKind::Labels),
        ];
        Self { name, fields, parts, labels }
    }

    /// Returns the class of each sample.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    fn read_image(&self, mut sample: usize, into: &mut [u8]) -> Result<(), DatasetError> {
        for part in &self.parts {
            if sample < part.samples {
                return part.content.read_at(part.first + sample as u64 * part.stride, into);
            }
            sample -= part.samples;
        }
        Err(DatasetError::unreadable_file(&self.name, "there is no such sample"))
    }
}

impl Dataset for ImageSet {
    fn name(&self) -> &str {
        &self.name
    }

    fn samples(&self) -> usize {
        self.labels.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn read(&self, sample: usize, field: usize, into: &mut [u8]) -> Result<(), DatasetError> {
        if field == 0 {
            return self.read_image(sample, into);
        }
        into.copy_from_slice(&i64::from(self.labels[sample]).to_ne_bytes());
        Ok(())
    }
}
