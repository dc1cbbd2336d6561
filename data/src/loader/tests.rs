//! Loaders give every sample once, the same on every mesh, resume anywhere, and use bounded memory.

use std::collections::BTreeSet;
use std::sync::Condvar;
use std::time::Duration;

use graphc_host::tensor::HostTensor;
use graphc_ir::shard::split_range;
use graphc_ir::types::DType;

use super::*;
use crate::dataset::{Field, FieldKind};

/// A data set whose samples know their number: `x` is an image made of it, `labels` is the number. It records the samples that are read.
struct Numbers {
    samples: usize,
    fields: [Field; 2],
    read: Mutex<Vec<usize>>,
    more: Condvar,
    /// The sample that cannot be read, and whether that is a panic.
    bad: Option<(usize, bool)>,
}

const SHAPE: [usize; 3] = [1, 4, 4];

impl Numbers {
    fn new(samples: usize) -> Self {
        let fields = [
            Field::new("x", TensorType::new(DType::U8, SHAPE), FieldKind::Image),
            Field::new("labels", TensorType::new(DType::I64, []), FieldKind::Labels),
        ];
        Self { samples, fields, read: Mutex::default(), more: Condvar::new(), bad: None }
    }

    fn reads(&self) -> usize {
        self.read.lock().expect("no panic").len()
    }

    /// Waits until this many samples were read.
    fn wait_for(&self, reads: usize) {
        let read = self.read.lock().expect("no panic");
        let more =
            self.more.wait_timeout_while(read, Duration::from_secs(300), |r| r.len() < reads);
        assert!(!more.expect("no panic").1.timed_out(), "{reads} samples within 300 s");
    }
}

impl Dataset for Numbers {
    fn name(&self) -> &str {
        "numbers"
    }

    fn samples(&self) -> usize {
        self.samples
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn read(&self, sample: usize, field: usize, into: &mut [u8]) -> Result<(), DatasetError> {
        match self.bad {
            Some((bad, true)) if bad == sample => panic!("sample {sample}"),
            Some((bad, false)) if bad == sample => {
                return Err(DatasetError::unreadable_file("a file", format!("sample {sample}")));
            }
            _ => {}
        }
        match field {
            0 => into.iter_mut().enumerate().for_each(|(i, pixel)| *pixel = (sample * 7 + i) as u8),
            _ => {
                into.copy_from_slice(&(sample as i64).to_ne_bytes());
                self.read.lock().expect("no panic").push(sample);
                self.more.notify_all();
            }
        }
        Ok(())
    }
}

fn inputs(batch: usize) -> BTreeMap<String, TensorType> {
    let x = TensorType::new(DType::F32, [&[batch][..], &SHAPE].concat());
    let labels = TensorType::new(DType::I64, [batch]);
    [("x".to_owned(), x), ("labels".to_owned(), labels)].into()
}

fn options(last: LastBatch) -> LoaderOptions {
    let augment = Augment { pad: 2, flip: true };
    LoaderOptions { last, augment, ..LoaderOptions::training(11) }
}

fn loader(samples: usize, batch: usize, last: LastBatch) -> Loader {
    Loader::new(Arc::new(Numbers::new(samples)), &inputs(batch), options(last)).expect("it fits")
}

/// Returns the rows that rank `rank` of `ranks` reads if its inputs are S(0).
fn rows(batch: usize, ranks: usize, rank: usize) -> BTreeMap<String, Vec<Range<usize>>> {
    let mine = || std::iter::once(split_range(batch, ranks, rank)).collect();
    [("x".to_owned(), mine()), ("labels".to_owned(), mine())].into()
}

fn labels(batch: &Batch) -> Vec<i64> {
    batch.feeds["labels"].to_i64().expect("i64")
}

fn taken(feeds: Feeds) -> Vec<Batch> {
    feeds.map(|batch| batch.expect("it can be read")).collect()
}

#[test]
fn every_sample_comes_once_an_epoch_on_any_number_of_ranks() {
    for (last, batches, once) in
        [(LastBatch::Drop, 3, 24), (LastBatch::Wrap, 4, 26), (LastBatch::Pad, 4, 26)]
    {
        let whole = loader(26, 8, last);
        assert_eq!((whole.batches(), whole.samples()), (batches, once));
        for epoch in 0..2 {
            let expected = taken(whole.epoch(epoch).expect("threads"));
            let all: Vec<i64> = expected.iter().flat_map(labels).collect();
            let seen: BTreeSet<i64> = all[..once].iter().copied().collect();
            assert_eq!((all.len(), seen.len()), (batches as usize * 8, once), "{last:?}");
            match last {
                LastBatch::Drop | LastBatch::Join => {}
                LastBatch::Wrap => assert_eq!(all[once..], all[..32 - once]),
                LastBatch::Pad => assert_eq!(all[once..], [IGNORED; 6]),
            }
            for ranks in [1, 3, 4] {
                assert_eq!(joined(&whole, ranks, epoch), expected, "{ranks} ranks");
            }
        }
    }
}

/// Joins the rows that ranks read into the batches of an epoch.
fn joined(whole: &Loader, ranks: usize, epoch: u64) -> Vec<Batch> {
    let parts: Vec<Vec<Batch>> = (0..ranks)
        .map(|rank| {
            let part = whole.clone().with_rows(&rows(whole.batch(), ranks, rank));
            taken(part.epoch(epoch).expect("threads"))
        })
        .collect();
    let join = |index: usize| {
        let mut batch = parts[0][index].clone();
        for (name, ty) in inputs(whole.batch()) {
            let parts = parts.iter().map(|part| part[index].feeds[&name].bytes());
            let bytes = parts.collect::<Vec<_>>().concat();
            batch.feeds.insert(name, HostTensor::new(ty.dtype, ty.shape, bytes).expect("all rows"));
        }
        batch
    };
    (0..parts[0].len()).map(join).collect()
}

#[test]
fn a_rank_reads_its_rows_alone() {
    for (rank, rows_of_rank) in [(0, 3), (1, 3), (2, 2)] {
        let set = Arc::new(Numbers::new(24));
        let whole =
            Loader::new(set.clone(), &inputs(8), options(LastBatch::Drop)).expect("it fits");
        let part = whole.with_rows(&rows(8, 3, rank));
        let batches = taken(part.epoch(0).expect("threads"));
        assert_eq!(set.reads(), 3 * rows_of_rank);
        assert!(batches.iter().all(|batch| batch.feeds["x"].shape() == [rows_of_rank, 1, 4, 4]));
    }
    let nothing = loader(24, 8, LastBatch::Drop).with_rows(&[("x".to_owned(), vec![])].into());
    assert_eq!(nothing.make(0).expect("it can be read").feeds["x"].shape(), [0, 1, 4, 4]);
}

#[test]
fn equal_loaders_give_equal_batches_and_others_others() {
    let of = |seed, epoch| {
        let options = LoaderOptions { seed, ..options(LastBatch::Drop) };
        let loader = Loader::new(Arc::new(Numbers::new(26)), &inputs(8), options).expect("it fits");
        taken(loader.epoch(epoch).expect("threads"))
    };
    assert_eq!(of(1, 1), of(1, 1));
    assert_ne!(of(1, 1), of(2, 1));
    let order = |batches: &[Batch]| batches.iter().flat_map(labels).collect::<Vec<_>>();
    assert_ne!(order(&of(1, 1)), order(&of(1, 2)));
}

#[test]
fn images_are_augmented_anew_in_each_epoch() {
    let options = LoaderOptions { shuffle: false, ..options(LastBatch::Drop) };
    let loader = Loader::new(Arc::new(Numbers::new(8)), &inputs(8), options).expect("it fits");
    let [first, second] = [0, 1].map(|step| loader.make(step).expect("it can be read"));
    assert_eq!(labels(&first), labels(&second));
    assert_ne!(first.feeds["x"], second.feeds["x"]);
}

#[test]
fn any_step_can_be_gone_on_from() {
    let loader = loader(26, 8, LastBatch::Wrap);
    let all: Vec<Batch> = loader
        .from_step(0)
        .expect("threads")
        .take(12)
        .map(|b| b.expect("it can be read"))
        .collect();
    let places: Vec<_> = all.iter().map(|batch| (batch.step, (batch.epoch, batch.index))).collect();
    assert_eq!(places, (0..12).map(|step| (step, loader.place(step))).collect::<Vec<_>>());
    for first in [1, 4, 7] {
        let later = loader.from_step(first).expect("threads").take(12 - first as usize);
        let later: Vec<Batch> = later.map(|batch| batch.expect("it can be read")).collect();
        assert_eq!(later, all[first as usize..]);
    }
    assert_eq!(taken(loader.epoch_from(1, 2).expect("threads")), all[6..8]);
    assert!(taken(loader.epoch_from(1, 9).expect("threads")).is_empty());
    assert_eq!(loader.make(9).expect("it can be read"), all[9]);
}

#[test]
fn evaluation_counts_every_sample_once() {
    let options = LoaderOptions::evaluation();
    let loader = Loader::new(Arc::new(Numbers::new(5)), &inputs(8), options).expect("it fits");
    let batches = taken(loader.epoch(0).expect("threads"));
    let [batch] = &batches[..] else { panic!("one batch, not {}", batches.len()) };
    assert_eq!((batch.samples, labels(batch)), (5, vec![0, 1, 2, 3, 4, -100, -100, -100]));
    assert!(batch.feeds["x"].to_f32().expect("f32")[5 * 16..].iter().all(|&x| x == 0.0));
}

#[test]
fn a_small_set_wraps_more_than_once() {
    let options = LoaderOptions { shuffle: false, ..options(LastBatch::Wrap) };
    let loader = Loader::new(Arc::new(Numbers::new(3)), &inputs(8), options).expect("it fits");
    assert_eq!(labels(&loader.make(5).expect("it can be read")), [0, 1, 2, 0, 1, 2, 0, 1]);
}

#[test]
fn epochs_that_join_follow_each_other_without_a_gap() {
    // Also where a batch is more than an epoch.
    for (samples, batch) in [(26, 8), (3, 8)] {
        let joined = loader(samples, batch, LastBatch::Join);
        let steps = 3 * samples as u64;
        let all: Vec<Batch> = joined
            .from_step(0)
            .expect("threads")
            .take(steps as usize)
            .map(|batch| batch.expect("it can be read"))
            .collect();
        // Each epoch has every sample once, in the order that it has without joining.
        let alone = loader(samples, 1, LastBatch::Drop);
        let epochs = (0..steps * batch as u64 / samples as u64)
            .flat_map(|epoch| taken(alone.epoch(epoch).expect("threads")))
            .flat_map(|batch| labels(&batch));
        assert_eq!(all.iter().flat_map(labels).collect::<Vec<_>>(), epochs.collect::<Vec<_>>());
        assert!(all.iter().all(|batch| batch.samples == batch.feeds["labels"].shape()[0]));
        // Any step anew, and by ranks that read their rows alone.
        for step in [1, 7, steps - 1] {
            let expected = &all[step as usize];
            assert_eq!(joined.make(step).as_ref(), Ok(expected));
            let of_rank = |rank| {
                let part = joined.clone().with_rows(&rows(batch, 2, rank));
                labels(&part.make(step).expect("it can be read"))
            };
            assert_eq!([of_rank(0), of_rank(1)].concat(), labels(expected));
        }
    }
}

#[test]
fn batches_are_made_two_ahead_and_no_more() {
    let set = Arc::new(Numbers::new(800));
    let loader = Loader::new(set.clone(), &inputs(8), options(LastBatch::Drop)).expect("it fits");
    let mut feeds = loader.epoch(0).expect("threads");
    for taken in 0..20 {
        set.wait_for((taken + 2) * 8);
        assert!(set.reads() <= (taken + 2) * 8, "{} after {taken} batches", set.reads());
        feeds.next().expect("100 batches").expect("it can be read");
    }
    drop(feeds);
    let read = set.reads();
    assert!(read <= 22 * 8, "{read}");
    drop(loader);
    // The threads have ended, so nobody else holds the set.
    assert_eq!(Arc::strong_count(&set), 1);
}

#[test]
fn errors_and_panics_of_a_data_set_are_errors_of_the_loader() {
    for (panics, text) in [
        (false, "cannot read a file: sample 5"),
        (true, "of sample 5 of numbers: reading it panicked: sample 5"),
    ] {
        let set = Numbers { bad: Some((5, panics)), ..Numbers::new(24) };
        let options = LoaderOptions { shuffle: false, ..options(LastBatch::Drop) };
        let loader = Loader::new(Arc::new(set), &inputs(4), options).expect("it fits");
        let mut feeds = loader.epoch(0).expect("threads");
        assert_eq!(labels(&feeds.next().expect("6 batches").expect("it is whole")), [0, 1, 2, 3]);
        let error = feeds.next().expect("6 batches").expect_err("sample 5").to_string();
        assert!(error.contains(text), "{error}");
        assert!(feeds.next().is_none());
    }
}

#[test]
fn samplers_of_ranks_give_together_what_one_loader_gives() {
    let whole = loader(24, 8, LastBatch::Drop);
    for ranks in [2, 4] {
        let part = |rank| {
            let sampler = DistributedSampler::new(24, ranks, rank, Remainder::Drop).shuffled(11);
            let options = LoaderOptions { sampler: Some(sampler), ..options(LastBatch::Drop) };
            let set = Arc::new(Numbers::new(24));
            let loader = Loader::new(set, &inputs(8 / ranks), options).expect("it fits");
            assert_eq!((loader.batches(), loader.samples()), (3, 24 / ranks));
            taken(loader.epoch(2).expect("threads"))
        };
        let parts: Vec<Vec<Batch>> = (0..ranks).map(part).collect();
        for (step, expected) in taken(whole.epoch(2).expect("threads")).iter().enumerate() {
            let mut found: Vec<i64> = parts.iter().flat_map(|part| labels(&part[step])).collect();
            let mut expected = labels(expected);
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "step {step} of {ranks} ranks");
        }
    }
}

#[test]
fn what_cannot_be_loaded_is_said() {
    let fails = |samples, inputs: &BTreeMap<String, TensorType>, options| {
        let loader = Loader::new(Arc::new(Numbers::new(samples)), inputs, options);
        loader.expect_err("it does not fit").to_string()
    };
    let few = fails(5, &inputs(8), options(LastBatch::Drop));
    assert!(few.contains("5 samples, fewer than a batch of 8: take a smaller batch"));
    let sampler = Some(DistributedSampler::new(9, 2, 0, Remainder::Drop));
    let of_rank = LoaderOptions { sampler, ..options(LastBatch::Drop) };
    let few = fails(9, &inputs(8), of_rank);
    assert!(few.contains("4 samples for this rank, fewer than a batch of 8"), "{few}");
    let many = fails(1 << 58, &inputs(8), options(LastBatch::Join));
    assert!(many.contains("288230376151711744 samples, and the order of so many"), "{many}");
    assert!(fails(0, &inputs(8), options(LastBatch::Wrap)).contains("has no samples"));
    assert!(fails(8, &inputs(0), options(LastBatch::Wrap)).contains("batch of no samples"));
    assert!(fails(8, &BTreeMap::new(), options(LastBatch::Wrap)).contains("no inputs to feed"));
    let mut uneven = inputs(4);
    uneven.insert("labels".into(), TensorType::new(DType::I64, [2]));
    assert!(fails(8, &uneven, options(LastBatch::Drop)).contains("batches of 2 and 4 samples"));
    let sampler = Some(DistributedSampler::new(9, 2, 0, Remainder::Drop));
    let other = LoaderOptions { sampler, ..options(LastBatch::Drop) };
    assert!(fails(8, &inputs(2), other).contains("for 9 samples, and numbers has 8"));
    let mut narrow = inputs(4);
    narrow.insert("labels".into(), TensorType::new(DType::U8, [4]));
    assert!(fails(8, &narrow, LoaderOptions::evaluation()).contains("which has no -100"));
}

#[test]
fn labels_that_do_not_fit_are_errors() {
    let mut narrow = inputs(4);
    narrow.insert("labels".into(), TensorType::new(DType::U8, [4]));
    let options = LoaderOptions { shuffle: false, ..options(LastBatch::Drop) };
    let loader = Loader::new(Arc::new(Numbers::new(260)), &narrow, options).expect("it fits");
    loader.make(63).expect("below 256");
    let error = loader.make(64).expect_err("256").to_string();
    assert!(error.contains("`labels` of sample 256 of numbers: 256 does not fit u8"), "{error}");
}
