//! MNIST, and sets in its format.

use std::path::{Path, PathBuf};

use crate::content::FileContent;
use crate::dataset::Split;
use crate::error::DatasetError;
use crate::idx::Idx;
use crate::records::{ImagePart, ImageSet};

const LAYOUT: &str = "an MNIST set is a folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and \
                      t10k-labels-idx1-ubyte, each plain or with .gz behind its name; get them from \
                      https://ossci-datasets.s3.amazonaws.com/mnist/ (or http://yann.lecun.com/exdb/mnist/), or write a \
                      synthetic set with `graphc data synth mnist DIR`";
const CLASSES: u8 = 10;

/// Returns the names of the files of a split: that of images and that of labels.
pub(crate) fn split_file_names(split: Split) -> [&'static str; 2] {
    match split {
        Split::Train => ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"],
        Split::Test => ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"],
    }
}

/// Opens MNIST in its IDX format, plain or gzip: the four files in the folder, or in `MNIST/raw` in it, where torchvision puts them.
///
/// # Errors
/// Returns an error if a file of the split is missing, was cut off or is damaged, or if the two do not have equally many samples.
pub fn mnist(folder: &Path, split: Split) -> Result<ImageSet, DatasetError> {
    let raw = folder.join("MNIST/raw");
    let inner = if raw.is_dir() { &raw } else { folder };
    let [images, labels] = split_file_names(split).map(|file| candidate_paths(inner, file));
    let (images, labels) = (Idx::<3>::open(images, LAYOUT)?, Idx::<1>::open(labels, LAYOUT)?);
    let [samples, height, width] = images.dims;
    if labels.dims[0] != samples {
        let reason = format!(
            "it has {} labels, and {} has {samples} images",
            labels.dims[0],
            images.content.path()
        );
        return Err(labels.content.damaged_error(reason, LAYOUT));
    }
    let classes = read_labels(&labels)?;
    let stride = (height * width) as u64;
    let part = ImagePart { content: images.content, samples, first: images.data, stride };
    let name = format!("mnist:{} ({split})", folder.display());
    Ok(ImageSet::new(name, [1, height, width], vec![part], classes))
}

/// Returns the paths that a file may have. In some copies its name has a dot in place of a hyphen.
fn candidate_paths(folder: &Path, file: &str) -> [PathBuf; 2] {
    [folder.join(file), folder.join(file.replace("-idx", ".idx"))]
}

fn read_labels(file: &Idx<1>) -> Result<Vec<u8>, DatasetError> {
    let content: &FileContent = &file.content;
    let mut labels = vec![0; file.dims[0]];
    content.read_at(file.data, &mut labels)?;
    match labels.iter().position(|&label| label >= CLASSES) {
        None => Ok(labels),
        Some(sample) => {
            let label = labels[sample];
            let reason =
                format!("sample {sample} has label {label}, and there are {CLASSES} classes");
            Err(content.damaged_error(reason, LAYOUT))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::dataset::Dataset;

    fn idx(dims: &[u32], data: &[u8]) -> Vec<u8> {
        let head = [0, 0, 8, dims.len() as u8].into_iter();
        head.chain(dims.iter().flat_map(|dim| dim.to_be_bytes())).chain(data.to_vec()).collect()
    }

    /// Writes a set with three images of 2 x 3 pixels in each split. The training files are compressed.
    fn set() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for split in [Split::Train, Split::Test] {
            let contents = [idx(&[3, 2, 3], &(0..18).collect::<Vec<_>>()), idx(&[3], &[7, 0, 9])];
            for (file, content) in split_file_names(split).into_iter().zip(contents) {
                let path = folder.path().join(file);
                match split {
                    Split::Train => {
                        std::fs::write(format!("{}.gz", path.display()), gzip(&content))
                    }
                    Split::Test => std::fs::write(path, content),
                }
                .expect("writable");
            }
        }
        folder
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory")
    }

    #[test]
    fn plain_and_packed_files_are_read() {
        let folder = set();
        for split in [Split::Train, Split::Test] {
            let set = mnist(folder.path(), split).expect("a set");
            assert_eq!((set.samples(), set.labels()), (3, &[7, 0, 9][..]));
            assert_eq!(set.fields()[0].ty.shape, [1, 2, 3]);
            let mut image = [0; 6];
            set.read(1, 0, &mut image).expect("it is there");
            assert_eq!(image, [6, 7, 8, 9, 10, 11]);
        }
    }

    #[test]
    fn names_and_folders_as_others_have_them_are_found() {
        let folder = set();
        let raw = folder.path().join("MNIST/raw");
        std::fs::create_dir_all(&raw).expect("a folder");
        for file in split_file_names(Split::Test) {
            let renamed = raw.join(file.replace("-idx", ".idx"));
            std::fs::rename(folder.path().join(file), renamed).expect("the same disk");
        }
        assert_eq!(mnist(folder.path(), Split::Test).expect("a set").samples(), 3);
    }

    /// Returns the error of a set in which a file has this content, or is missing if `content` is `None`.
    fn spoiled(file: &str, split: Split, content: Option<&[u8]>) -> String {
        let folder = set();
        let path = folder.path().join(file);
        match content {
            Some(content) => std::fs::write(&path, content).expect("writable"),
            None => std::fs::remove_file(&path).expect("it is there"),
        }
        let text = mnist(folder.path(), split).expect_err("it is spoiled").to_string();
        let name = path.display().to_string();
        for part in [name.trim_end_matches(".gz"), "t10k-labels-idx1-ubyte", "data synth mnist"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        text
    }

    #[test]
    fn missing_short_and_damaged_files_are_errors() {
        let [images, labels] = split_file_names(Split::Test);
        let test = |file, content: &[u8]| spoiled(file, Split::Test, Some(content));
        let good = idx(&[3, 2, 3], &[0; 18]);
        assert!(spoiled(images, Split::Test, None).contains("is not there"));
        assert!(
            test(images, &good[..good.len() - 1])
                .contains("33 bytes where its head says [3, 2, 3]")
        );
        assert!(test(images, &good[..10]).contains("fewer than its head"));
        assert!(test(images, &[]).contains("0 bytes"));
        assert!(
            test(labels, &good).contains("begins with [00, 00, 08, 03], not with [00, 00, 08, 01]")
        );
        assert!(test(labels, &idx(&[2], &[1, 2])).contains("2 labels, and "));
        assert!(test(labels, &idx(&[3], &[1, 10, 2])).contains("sample 1 has label 10"));
        assert!(test(labels, &idx(&[0], &[])).contains("says [0] elements"));
        assert!(test(images, &idx(&[u32::MAX; 3], &[])).contains("bytes where its head says"));
    }

    #[test]
    fn a_file_of_several_members_of_gzip_is_read_as_a_whole() {
        let folder = set();
        let file = split_file_names(Split::Train)[0];
        let content = idx(&[3, 2, 3], &(0..18).collect::<Vec<_>>());
        let (head, rest) = content.split_at(20);
        let path = folder.path().join(format!("{file}.gz"));
        std::fs::write(&path, [gzip(head), gzip(rest)].concat()).expect("writable");
        assert_eq!(mnist(folder.path(), Split::Train).expect("a set").samples(), 3);
    }

    #[test]
    fn damaged_gzip_is_an_error() {
        let file = "train-images-idx3-ubyte.gz";
        let whole = gzip(&idx(&[3, 2, 3], &[5; 18]));
        let mut flipped = whole.clone();
        let last = flipped.len() - 5; // in the checksum
        flipped[last] ^= 1;
        for content in [&whole[..whole.len() / 2], b"not gzip at all", &flipped, &[]] {
            let text = spoiled(file, Split::Train, Some(content));
            assert!(text.contains("no whole file of gzip"), "{text}");
        }
        let garbage = spoiled(file, Split::Train, Some(&[&whole[..], b"more"].concat()));
        assert!(garbage.contains("no whole file of gzip"), "{garbage}");
        let twice = spoiled(file, Split::Train, Some(&[&whole[..], &whole[..]].concat()));
        assert!(twice.contains("68 bytes where its head says"), "{twice}");
        let gone = spoiled(file, Split::Train, None);
        assert!(gone.contains("is not there"), "{gone}");
    }
}
