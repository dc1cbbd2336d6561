//! Synthetic sets in the true formats of CIFAR-10 and MNIST, for machines that can download nothing.
//!
//! The class of an image is its texture (`textures.rs`), which fills a square of random size at a random position, in random phase, in two random
//! colours. A convolution of few pixels tells textures apart wherever they are. Mirrored images keep their class, because trainings mirror images.
//! All numbers are integers and come from Philox, so the files are the same bits everywhere.
//!
//! No linear classifier gets beyond 55 % of them right. An image is as likely as its negative (the colours exchanged, around the mean of all images),
//! which has the same class. If a linear classifier has both right, the sum of the scores says that their class is the one that it gives to the mean
//! image. Of all other classes it has at most one of the two right: 1/2 (1 + 1/10).

mod textures;

use std::path::{Path, PathBuf};

use graphc_host::data::{read_file, write_file};
use graphc_ir::shard::split_range;

use crate::cifar::{self, TEST_FILE, TRAIN_FILES};
use crate::dataset::Split;
use crate::error::DatasetError;
use crate::mnist;
use textures::Painter;

/// The most training samples of a set, because each file must fit memory.
pub(crate) const MOST_SAMPLES: usize = 1_000_000;
/// The least training samples of a set, because each file has at least one.
pub(crate) const LEAST_SAMPLES: usize = 10;

/// The format of a synthetic set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynthSet {
    /// CIFAR-10: 3 x 32 x 32.
    Cifar10,
    /// MNIST: 28 x 28.
    Mnist,
}

/// Returns the number of held-out samples for this many training samples: a fifth, as in CIFAR-10.
pub fn held_out(samples: usize) -> usize {
    samples / 5
}

/// Writes a set of `samples` training samples, and a fifth as many held-out ones, of ten classes. The sizes of classes differ by one at most, among
/// the training samples and among the held-out ones. The files are a function of `samples` and `seed`; those that exist already must be the same.
///
/// # Errors
/// Returns an error if the number of samples is out of bounds, if another file is in the way, or if the folder cannot be written.
pub fn write_set(
    set: SynthSet,
    folder: &Path,
    samples: usize,
    seed: u64,
) -> Result<Vec<PathBuf>, DatasetError> {
    let fail = |reason: String| {
        let path = folder.display().to_string();
        Err(DatasetError::Write { path, reason })
    };
    if !(LEAST_SAMPLES..=MOST_SAMPLES).contains(&samples) {
        return fail(format!("a set has {LEAST_SAMPLES} to {MOST_SAMPLES} samples, not {samples}"));
    }
    if let Err(error) = std::fs::create_dir_all(folder) {
        return fail(error.to_string());
    }
    let files = match set {
        SynthSet::Cifar10 => cifar_files(samples, seed),
        SynthSet::Mnist => mnist_files(samples, seed),
    };
    let mut written = Vec::new();
    for (name, make) in files {
        let path = folder.join(name);
        write_new_file(&path, &make())?;
        written.push(path);
    }
    Ok(written)
}

/// A file's name, and the function that makes its content, so that a single content is in memory at a time.
type File = (&'static str, Box<dyn Fn() -> Vec<u8>>);

fn cifar_files(samples: usize, seed: u64) -> Vec<File> {
    let file = |name: &'static str, split, range: std::ops::Range<usize>| -> File {
        (
            name,
            Box::new(move || cifar_records(Painter::new(cifar::SHAPE, seed, split), range.clone())),
        )
    };
    let parts = TRAIN_FILES.len();
    let train = TRAIN_FILES
        .iter()
        .enumerate()
        .map(|(part, name)| file(name, Split::Train, split_range(samples, parts, part)));
    train.chain([file(TEST_FILE, Split::Test, 0..held_out(samples))]).collect()
}

fn cifar_records(painter: Painter, range: std::ops::Range<usize>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(range.len() * (1 + cifar::IMAGE));
    for sample in range {
        bytes.push(painter.class(sample));
        painter.paint(sample, &mut bytes);
    }
    bytes
}

fn mnist_files(samples: usize, seed: u64) -> Vec<File> {
    let split_files = |split, samples: usize| -> [File; 2] {
        let painter = move || Painter::new([1, 28, 28], seed, split);
        let [images, labels] = mnist::split_file_names(split);
        let paint = move || {
            let mut bytes = idx_header(&[samples, 28, 28]);
            (0..samples).for_each(|sample| painter().paint(sample, &mut bytes));
            bytes
        };
        let name = move || {
            let classes = (0..samples).map(|sample| painter().class(sample));
            idx_header(&[samples]).into_iter().chain(classes).collect()
        };
        [(images, Box::new(paint)), (labels, Box::new(name))]
    };
    let (train, test) =
        (split_files(Split::Train, samples), split_files(Split::Test, held_out(samples)));
    train.into_iter().chain(test).collect()
}

/// Makes the head of an IDX file of bytes.
fn idx_header(dims: &[usize]) -> Vec<u8> {
    let words = dims.iter().flat_map(|&dim| (dim as u32).to_be_bytes());
    [0, 0, 8, dims.len() as u8].into_iter().chain(words).collect()
}

/// Writes a file, unless it exists with the same content. A different file, perhaps of the true set, is not overwritten.
fn write_new_file(path: &Path, bytes: &[u8]) -> Result<(), DatasetError> {
    if !path.exists() {
        return Ok(write_file(path, bytes)?);
    }
    if read_file(path, bytes.len() as u64).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    let reason = "there is another file of that name: take another folder, or remove it first";
    Err(DatasetError::Write { path: path.display().to_string(), reason: reason.into() })
}

#[cfg(test)]
mod tests;
