//! CIFAR-10 and CIFAR-100 in their binary format: records of one or two labels and 3072 bytes of an image, channel after
//! channel, row after row (Krizhevsky, "Learning multiple layers of features from tiny images", 2009).

use std::path::{Path, PathBuf};

use crate::content::FileContent;
use crate::dataset::Split;
use crate::error::DatasetError;
use crate::records::{ImagePart, ImageSet};

/// The shape of an image: channels, height, width.
pub(crate) const SHAPE: [usize; 3] = [3, 32, 32];
/// The bytes of an image.
pub(crate) const IMAGE: usize = 3072;
/// The number of samples in each file of the published CIFAR-10.
const TRUE_SAMPLES: usize = 10_000;
/// The most bytes that a file may have. All its labels are read when it is opened, and images lie between them.
const MOST_BYTES: u64 = 16 << 30;
/// The number of records that are read at a time.
const CHUNK: usize = 256;

const LAYOUT_10: &str = "a CIFAR-10 set is a folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin, of 3073 bytes \
                         for each image (label, red, green, blue); unpack cifar-10-binary.tar.gz from \
                         https://www.cs.toronto.edu/~kriz/cifar.html there, or write a synthetic set with `graphc data synth \
                         cifar10 DIR`";
const LAYOUT_100: &str = "a CIFAR-100 set is a folder with train.bin and test.bin, of 3074 bytes for each image (coarse label, \
                          fine label, red, green, blue); unpack cifar-100-binary.tar.gz from \
                          https://www.cs.toronto.edu/~kriz/cifar.html there";

/// The properties in which CIFAR-10 and CIFAR-100 differ.
struct CifarFormat {
    name: &'static str,
    /// The folder that the archive unpacks to.
    inner: &'static str,
    /// The number of classes of each label of a record; the last label is the one that is learned.
    classes: &'static [u8],
    layout: &'static str,
}

const CIFAR_10: CifarFormat = CifarFormat {
    name: "cifar10",
    inner: "cifar-10-batches-bin",
    classes: &[10],
    layout: LAYOUT_10,
};
const CIFAR_100: CifarFormat = CifarFormat {
    name: "cifar100",
    inner: "cifar-100-binary",
    classes: &[20, 100],
    layout: LAYOUT_100,
};

/// The files of training images of a CIFAR-10 set.
pub(crate) const TRAIN_FILES: [&str; 5] = [
    "data_batch_1.bin",
    "data_batch_2.bin",
    "data_batch_3.bin",
    "data_batch_4.bin",
    "data_batch_5.bin",
];
/// The file of held-out images of a CIFAR-10 set.
pub(crate) const TEST_FILE: &str = "test_batch.bin";

/// Opens CIFAR-10 in its binary format: `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin` in the folder, or in `cifar-10-batches-bin` in
/// it.
///
/// # Errors
/// Returns an error if a file of the split is missing, was cut off or is damaged.
pub fn cifar10(folder: &Path, split: Split) -> Result<ImageSet, DatasetError> {
    let folder = find_data_folder(folder, &CIFAR_10, "data_batch_1.bin");
    let files: &[&str] = if split == Split::Train { &TRAIN_FILES } else { &[TEST_FILE] };
    let set = open_files(&folder, &CIFAR_10, files, split)?;
    if split == Split::Test && is_true_set(&folder) && set.labels().len() != TRUE_SAMPLES {
        let reason = format!("it has {} images, not {TRUE_SAMPLES}", set.labels().len());
        let path = folder.join(TEST_FILE).display().to_string();
        return Err(DatasetError::Damaged { path, reason, layout: LAYOUT_10 });
    }
    Ok(set)
}

/// Opens CIFAR-100 in its binary format, with its fine labels: `train.bin` and `test.bin` in the folder, or in `cifar-100-binary` in it.
///
/// # Errors
/// Returns an error if the file of the split is missing, was cut off or is damaged.
pub fn cifar100(folder: &Path, split: Split) -> Result<ImageSet, DatasetError> {
    let folder = find_data_folder(folder, &CIFAR_100, "train.bin");
    let file = if split == Split::Train { "train.bin" } else { "test.bin" };
    open_files(&folder, &CIFAR_100, &[file], split)
}

/// Whether the first training file is as long as the published one.
fn is_true_set(folder: &Path) -> bool {
    let first = std::fs::metadata(folder.join(TRAIN_FILES[0]));
    first.is_ok_and(|first| first.len() == (TRUE_SAMPLES * (IMAGE + 1)) as u64)
}

/// Returns the folder that the files lie in: `folder`, or the folder in it that the published archive unpacks to.
fn find_data_folder(folder: &Path, format: &CifarFormat, file: &str) -> PathBuf {
    let inner = folder.join(format.inner);
    let there = !folder.join(file).exists() && inner.is_dir();
    if there { inner } else { folder.to_owned() }
}

fn open_files(
    folder: &Path,
    format: &CifarFormat,
    files: &[&str],
    split: Split,
) -> Result<ImageSet, DatasetError> {
    let (mut parts, mut labels) = (Vec::new(), Vec::new());
    for file in files {
        let part = open_part(&folder.join(file), format)?;
        read_labels(&part, format, &mut labels)?;
        parts.push(part);
    }
    check_counts(&parts, format)?;
    let name = format!("{}:{} ({split})", format.name, folder.display());
    Ok(ImageSet::new(name, SHAPE, parts, labels))
}

/// Opens the images of a file. No image and no label is read yet.
fn open_part(path: &Path, format: &CifarFormat) -> Result<ImagePart, DatasetError> {
    let content = FileContent::open(path, format.layout)?;
    let first = format.classes.len() as u64;
    let (stride, bytes) = (first + IMAGE as u64, content.bytes());
    if bytes > MOST_BYTES {
        let reason = format!("it has {bytes} bytes, and a file may have {MOST_BYTES}");
        return Err(content.damaged_error(reason, format.layout));
    }
    if bytes == 0 || bytes % stride != 0 {
        let reason = format!("it has {bytes} bytes, which is no multiple of {stride}");
        return Err(content.damaged_error(reason, format.layout));
    }
    Ok(ImagePart { content, samples: (bytes / stride) as usize, first, stride })
}

/// Reads the labels of a file. It reads whole records in order, which costs less than to seek each label.
fn read_labels(
    part: &ImagePart,
    format: &CifarFormat,
    labels: &mut Vec<u8>,
) -> Result<(), DatasetError> {
    let stride = part.stride as usize;
    let mut chunk = vec![0; CHUNK * stride];
    for first in (0..part.samples).step_by(CHUNK) {
        let count = CHUNK.min(part.samples - first);
        let records = &mut chunk[..count * stride];
        part.content.read_at((first * stride) as u64, records)?;
        for (place, record) in records.chunks_exact(stride).enumerate() {
            labels.push(read_label(record, format).map_err(|reason| {
                let reason = format!("image {} has {reason}", first + place);
                part.content.damaged_error(reason, format.layout)
            })?);
        }
    }
    Ok(())
}

fn read_label(record: &[u8], format: &CifarFormat) -> Result<u8, String> {
    let mut label = 0;
    for (&found, &classes) in record.iter().zip(format.classes) {
        if found >= classes {
            return Err(format!("label {found}, and there are {classes} classes"));
        }
        label = found;
    }
    Ok(label)
}

/// Checks that the files of a set have equally many images, or that the first ones have one more than the rest. So a file that was cut off between
/// two images is found.
fn check_counts(parts: &[ImagePart], format: &CifarFormat) -> Result<(), DatasetError> {
    let most = |parts: &[ImagePart]| parts.iter().map(|part| part.samples).max().unwrap_or(0);
    let all = most(parts);
    for (place, part) in parts.iter().enumerate() {
        if part.samples < most(&parts[place..]) || part.samples + 1 < all {
            let reason = format!("it has {} images where others have {all}", part.samples);
            return Err(part.content.damaged_error(reason, format.layout));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset;

    /// Writes a file of records. Record number `i` has `i % classes[0]` as its first label, and `i` as each of its pixels.
    fn write(path: &Path, classes: &[u8], samples: std::ops::Range<usize>) {
        let record = |i: usize| {
            let labels = classes.iter().map(move |&classes| (i % usize::from(classes)) as u8);
            labels.chain(std::iter::repeat_n(i as u8, IMAGE))
        };
        std::fs::write(path, samples.flat_map(record).collect::<Vec<_>>()).expect("writable");
    }

    fn set(counts: [usize; 5]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let mut first = 0;
        for (file, count) in TRAIN_FILES.iter().zip(counts) {
            write(&folder.path().join(file), &[10], first..first + count);
            first += count;
        }
        write(&folder.path().join(TEST_FILE), &[10], 100..103);
        folder
    }

    fn sample(set: &ImageSet, index: usize) -> (u8, i64) {
        let (mut image, mut label) = ([0; IMAGE], [0; 8]);
        set.read(index, 0, &mut image).expect("it is there");
        set.read(index, 1, &mut label).expect("it is there");
        assert!(image.iter().all(|&pixel| pixel == image[0]));
        (image[0], i64::from_ne_bytes(label))
    }

    #[test]
    fn samples_of_all_files_are_read() {
        let folder = set([3, 3, 2, 2, 2]);
        let train = cifar10(folder.path(), Split::Train).expect("a set");
        assert_eq!(train.samples(), 12);
        let all: Vec<_> = (0..12).map(|index| sample(&train, index)).collect();
        assert_eq!(all, (0..12).map(|i| (i, i64::from(i % 10))).collect::<Vec<_>>());
        let test = cifar10(folder.path(), Split::Test).expect("a set");
        assert_eq!((test.samples(), sample(&test, 2)), (3, (102, 2)));
        assert!(format!("{test:?}").contains("images u8[3, 32, 32], labels i64[]"), "{test:?}");
    }

    #[test]
    fn a_folder_as_the_archive_has_it_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("cifar-100-binary");
        std::fs::create_dir(&inner).expect("a folder");
        write(&inner.join("train.bin"), &[20, 100], 30..35);
        write(&inner.join("test.bin"), &[20, 100], 0..2);
        let train = cifar100(folder.path(), Split::Train).expect("a set");
        assert_eq!((train.samples(), sample(&train, 4)), (5, (34, 34)));
        assert_eq!(cifar100(folder.path(), Split::Test).expect("a set").samples(), 2);
    }

    /// Returns the error of a set after `spoil` was done to the file.
    fn spoiled(file: &str, spoil: impl Fn(&Path)) -> String {
        let folder = set([2; 5]);
        let path = folder.path().join(file);
        spoil(&path);
        let opened = [Split::Train, Split::Test].map(|split| cifar10(folder.path(), split));
        let errors: Vec<_> = opened.into_iter().filter_map(Result::err).collect();
        let [error] = &errors[..] else { panic!("one split is wrong, not {errors:?}") };
        let text = error.to_string();
        for part in [&path.display().to_string(), "data_batch_5.bin", "www.cs.toronto.edu"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        text
    }

    #[test]
    fn missing_short_and_damaged_files_are_errors() {
        let missing = spoiled("data_batch_3.bin", |path| std::fs::remove_file(path).expect("it"));
        assert!(missing.contains("is not there"), "{missing}");
        let cut = |bytes: u64| {
            move |path: &Path| {
                let file = std::fs::File::options().write(true).open(path).expect("it");
                file.set_len(bytes).expect("writable");
            }
        };
        assert!(spoiled(TEST_FILE, cut(0)).contains("0 bytes"));
        assert!(spoiled(TEST_FILE, cut(5000)).contains("no multiple of 3073"));
        // It takes no room on the disk, but would take hours to be read.
        let long = spoiled(TEST_FILE, cut(3073 << 28));
        assert!(long.contains("824902156288 bytes, and a file may have 17179869184"), "{long}");
        assert!(spoiled("data_batch_2.bin", cut(3073)).contains("1 images where others have 2"));
        let label = spoiled("data_batch_1.bin", |path| {
            let mut bytes = std::fs::read(path).expect("it");
            bytes[3073] = 10;
            std::fs::write(path, bytes).expect("writable");
        });
        assert!(label.contains("image 1 has label 10, and there are 10 classes"), "{label}");
    }

    #[test]
    fn half_of_the_true_test_file_is_an_error() {
        let folder = set([2; 5]);
        let first = std::fs::File::options().write(true).open(folder.path().join(TRAIN_FILES[0]));
        first.expect("it").set_len(10_000 * 3073).expect("sparse");
        let error = cifar10(folder.path(), Split::Test).expect_err("3 images").to_string();
        assert!(error.contains("3 images, not 10000"), "{error}");
    }

    #[test]
    fn a_file_that_shrinks_after_it_was_opened_is_an_error() {
        let folder = set([2; 5]);
        let train = cifar10(folder.path(), Split::Train).expect("a set");
        std::fs::write(folder.path().join(TRAIN_FILES[1]), "").expect("writable");
        let error = train.read(2, 0, &mut [0; IMAGE]).expect_err("it is empty").to_string();
        assert!(error.contains("data_batch_2.bin"), "{error}");
    }
}
