//! Synthetic sets have the promised content. No linear function of pixels tells their classes apart, and differences of near pixels do.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::*;
use crate::dataset::Dataset;
use crate::records::ImageSet;

fn files(set: SynthSet, samples: usize, seed: u64) -> BTreeMap<String, Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let written = write_set(set, folder.path(), samples, seed).expect("it is writable");
    let name = |path: &PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
    let content = |path: &PathBuf| std::fs::read(path).expect("it was written");
    written.iter().map(|path| (name(path), content(path))).collect()
}

fn digest(files: &BTreeMap<String, Vec<u8>>) -> String {
    let all: Vec<u8> = files.values().flatten().copied().collect();
    Sha256::digest(&all).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn sets_are_of_the_true_format() {
    let folder = tempfile::tempdir().expect("a folder");
    write_set(SynthSet::Cifar10, folder.path(), 53, 1).expect("it is writable");
    write_set(SynthSet::Mnist, folder.path(), 53, 1).expect("it is writable");
    for (split, samples) in [(Split::Train, 53), (Split::Test, 10)] {
        for set in [cifar::cifar10(folder.path(), split), mnist::mnist(folder.path(), split)] {
            let set = set.expect("a set");
            assert_eq!(set.samples(), samples);
            let mut counts = [0; 10];
            set.labels().iter().for_each(|&label| counts[usize::from(label)] += 1);
            assert!(counts.iter().all(|&count| (samples / 10..=samples / 10 + 1).contains(&count)));
        }
    }
    let sizes = TRAIN_FILES.map(|file| folder.path().join(file).metadata().expect("it").len());
    assert_eq!(sizes, [11, 11, 11, 10, 10].map(|samples| samples * 3073));
}

#[test]
fn files_are_the_same_bits_everywhere() {
    let digests = [SynthSet::Cifar10, SynthSet::Mnist].map(|set| digest(&files(set, 30, 7)));
    assert_eq!(digests, ["853492dd91fd79ac", "60712dda92fbee2a"]);
    assert_ne!(files(SynthSet::Mnist, 30, 7), files(SynthSet::Mnist, 30, 8));
}

#[test]
fn the_true_set_is_not_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let again = || write_set(SynthSet::Mnist, folder.path(), 20, 0);
    again().expect("it is writable");
    again().expect("the same again");
    let path = folder.path().join("t10k-labels-idx1-ubyte");
    std::fs::write(&path, "precious").expect("writable");
    let error = again().expect_err("another file").to_string();
    assert!(error.contains("t10k-labels-idx1-ubyte: there is another file"), "{error}");
    assert_eq!(std::fs::read(&path).expect("it is there"), b"precious");
}

#[test]
fn numbers_of_samples_have_bounds() {
    let folder = tempfile::tempdir().expect("a folder");
    for samples in [0, LEAST_SAMPLES - 1, MOST_SAMPLES + 1] {
        write_set(SynthSet::Cifar10, folder.path(), samples, 0).expect_err("out of bounds");
    }
    write_set(SynthSet::Cifar10, Path::new("/dev/null/inside"), 10, 0).expect_err("no folder");
}

/// The features and the class of each sample.
type Rows = Vec<(Vec<f32>, u8)>;

/// Returns the pixels of each sample as numbers around 0, with a bias.
fn pixels(set: &ImageSet) -> Rows {
    let mut image = vec![0; set.fields()[0].ty.bytes()];
    let row = |sample: usize| {
        set.read(sample, 0, &mut image).expect("it is there");
        let numbers = image.iter().map(|&pixel| f32::from(pixel) / 128.0 - 1.0);
        (numbers.chain([1.0]).collect(), set.labels()[sample])
    };
    (0..set.samples()).map(row).collect()
}

/// Returns for each sample the share of pixels that differ from the pixel a few points away, for each distance. A convolution of 9 x 9, squared and
/// averaged over the image, can learn such features.
fn likeness(set: &ImageSet) -> Rows {
    let [_, height, width] = set.fields()[0].ty.shape[..] else { panic!("an image") };
    let mut image = vec![0; set.fields()[0].ty.bytes()];
    let mut row = |sample: usize| {
        set.read(sample, 0, &mut image).expect("it is there");
        let apart = |dy: usize, dx: usize| {
            let pairs = (0..height - dy).flat_map(|y| (0..width - dx).map(move |x| (y, x)));
            let differ = |(y, x): (usize, usize)| {
                image[y * width + x].abs_diff(image[(y + dy) * width + x + dx]) > 36
            };
            pairs.filter(|&pair| differ(pair)).count() as f32 / (height * width) as f32
        };
        let shifts = (0..7).flat_map(|dy| (0..7).map(move |dx| (dy, dx)));
        let features: Vec<f32> = shifts.map(|(dy, dx)| apart(dy, dx)).collect();
        (features.into_iter().map(|share| 4.0 * share).chain([1.0]).collect(), set.labels()[sample])
    };
    (0..set.samples()).map(&mut row).collect()
}

/// Trains softmax regression by stochastic gradient descent. Returns its accuracy on the samples that it was trained on, and on held-out ones.
fn regression(train: &Rows, test: &Rows, (epochs, rate): (usize, f32)) -> [f64; 2] {
    let width = train[0].0.len();
    let mut weights = vec![0.0_f32; 10 * width];
    for _ in 0..epochs {
        for (features, class) in train {
            let mut scores = scores(&weights, features);
            let most = scores.iter().copied().fold(f32::MIN, f32::max);
            scores.iter_mut().for_each(|score| *score = (*score - most).exp());
            let sum: f32 = scores.iter().sum();
            for (other, (score, row)) in
                scores.iter().zip(weights.chunks_exact_mut(width)).enumerate()
            {
                let slope =
                    rate * (score / sum - f32::from(u8::from(other == usize::from(*class))));
                row.iter_mut().zip(features).for_each(|(weight, x)| *weight -= slope * x);
            }
        }
    }
    [train, test].map(|rows| {
        let right = rows.iter().filter(|(features, class)| {
            let scores = scores(&weights, features);
            let best = (0..10).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
            best == Some(usize::from(*class))
        });
        right.count() as f64 / rows.len() as f64
    })
}

fn scores(weights: &[f32], features: &[f32]) -> Vec<f32> {
    let dot = |row: &[f32]| row.iter().zip(features).map(|(weight, x)| weight * x).sum();
    weights.chunks_exact(features.len()).map(dot).collect()
}

#[test]
fn no_linear_function_of_pixels_sees_the_class_and_local_differences_do() {
    for kind in [SynthSet::Cifar10, SynthSet::Mnist] {
        let folder = tempfile::tempdir().expect("a folder");
        write_set(kind, folder.path(), 2000, 3).expect("it is writable");
        let open = match kind {
            SynthSet::Cifar10 => cifar::cifar10,
            SynthSet::Mnist => mnist::mnist,
        };
        let [train, test] = [Split::Train, Split::Test].map(|split| open(folder.path(), split));
        let (train, test) = (train.expect("a set"), test.expect("a set"));
        let [learned, held] = regression(&pixels(&train), &pixels(&test), (8, 2e-3));
        // It learns by heart, which is of little use.
        assert!(learned > 0.4 && held < 0.5, "{kind:?}: {learned} learned, {held} held out");
        let [learned, held] = regression(&likeness(&train), &likeness(&test), (30, 0.1));
        assert!(held > 0.9, "{kind:?}: {learned} learned, {held} held out");
    }
}
