//! Checkpoints that one layout has saved and another loads, in one process and in several.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use graphc_comm::memory::{ArenaRange, HostArena};
use graphc_ir::shard::Rect;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::{CompileOptions, Layout, TensorKind};

use super::save::CheckpointParts;
use super::{
    Checkpoint, CheckpointError, Checkpoints, ExpectedVariable, HeldShard, ManifestHeader,
    TrainingSettings,
};
use crate::device::DeviceMemory;

const SHAPE: [usize; 2] = [5, 6];

/// A variable on all ranks of a layout.
struct Spread {
    layout: Layout,
    shards: Vec<(u32, Rect, DeviceMemory, ArenaRange)>,
}

impl Spread {
    fn new(hierarchy: &[usize], sbp: &str) -> Self {
        let ranks: Vec<u32> = (0..hierarchy.iter().product::<usize>() as u32).collect();
        let layout = Layout {
            shape: SHAPE.to_vec(),
            dtype: DType::U8,
            microbatch_dim: None,
            ranks: ranks.clone(),
            hierarchy: hierarchy.to_vec(),
            sbp: sbp.parse().expect("an SBP"),
        };
        let shard = |rank: u32| {
            let rect = layout.rect(rank, 0, 1).expect("of the mesh");
            let place = ArenaRange { offset: 0, bytes: rect.elements() };
            (rank, rect, DeviceMemory::Cpu(HostArena::new(64).expect("small")), place)
        };
        let shards = ranks.into_iter().map(shard).collect();
        Self { layout, shards }
    }

    /// Every element is its place in the whole; of partial values the last holds a share of 100.
    fn filled(hierarchy: &[usize], sbp: &str) -> Self {
        let spread = Self::new(hierarchy, sbp);
        for (rank, rect, memory, place) in &spread.shards {
            let partial = sbp.contains('P');
            let fill = |target: &mut [u8]| {
                for (local, element) in target.iter_mut().enumerate() {
                    let (row, column) = (local / rect.extent[1], local % rect.extent[1]);
                    let value = ((row + rect.origin[0]) * SHAPE[1] + column + rect.origin[1]) as u8;
                    *element = match (partial, rank) {
                        (false, _) => value,
                        (true, 0) => value + 100,
                        (true, _) => 0u8.wrapping_sub(100),
                    };
                }
            };
            memory.write(*place, fill);
        }
        spread
    }

    fn held(&self) -> impl Iterator<Item = HeldShard<'_>> {
        self.shards.iter().map(|(rank, rect, memory, place)| HeldShard {
            name: "w",
            kind: TensorKind::Parameter,
            layout: &self.layout,
            rank: *rank,
            rect,
            memory,
            place: *place,
            updated: true,
        })
    }

    fn ranks(&self, keep: impl Fn(u32) -> bool) -> BTreeMap<u32, Vec<HeldShard<'_>>> {
        self.held().filter(|held| keep(held.rank)).map(|held| (held.rank, vec![held])).collect()
    }

    fn save(&self, folder: &Path, step: u64) {
        let mut checkpoints = Checkpoints::create(folder, 1).expect("writable");
        checkpoints.begin_checkpoint(step).expect("nothing there");
        let none = BTreeMap::new();
        let parts =
            checkpoints.write_parts(step, &self.ranks(|_| true), &none, false).expect("writable");
        publish(&checkpoints, step, self.shards.len(), parts).expect("whole");
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        self.held().map(|held| held.memory.read(held.place, <[u8]>::to_vec)).collect()
    }
}

fn publish(
    to: &Checkpoints,
    step: u64,
    ranks: usize,
    parts: CheckpointParts,
) -> Result<PathBuf, CheckpointError> {
    let settings = &TrainingSettings::from_options(&CompileOptions::default(), &BTreeMap::new());
    let header = ManifestHeader { step, seed: 0, model: "m", mesh: &[4], settings };
    to.publish_checkpoint(header, ranks, parts)
}

#[test]
fn any_layout_loads_what_any_other_has_saved() {
    let layouts: [(&[usize], &str); 8] = [
        (&[1], "B"),
        (&[4], "B"),
        (&[4], "S(0)"),
        (&[3], "S(1)"),
        (&[2, 2], "S(0),S(0)"),
        (&[2, 2], "B,S(1)"),
        (&[2, 2], "S(1),B"),
        (&[7], "S(0)"),
    ];
    for (saved_on, saved) in layouts.into_iter().chain([(&[2usize][..], "P")]) {
        let folder = tempfile::tempdir().expect("a folder");
        Spread::filled(saved_on, saved).save(folder.path(), 1);
        let checkpoint = Checkpoint::open(folder.path()).expect("complete");
        for (hierarchy, sbp) in layouts {
            let loaded = Spread::new(hierarchy, sbp);
            let held: Vec<_> = loaded.held().collect();
            checkpoint.fill_shards(&held).expect("whole");
            let expected = Spread::filled(hierarchy, sbp).bytes();
            assert_eq!(loaded.bytes(), expected, "{saved} on {saved_on:?} to {sbp}");
        }
    }
}

#[test]
fn nothing_is_stored_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    Spread::filled(&[2, 2], "B,S(1)").save(folder.path(), 7);
    let names = std::fs::read_dir(folder.path().join("step-00000007")).expect("the checkpoint");
    let mut names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"]);
}

#[test]
fn processes_write_their_ranks_and_the_first_gathers() {
    let folder = tempfile::tempdir().expect("a folder");
    let spread = Spread::filled(&[4], "S(0)");
    let (own, others) = (spread.ranks(|rank| rank < 2), spread.ranks(|rank| rank >= 2));
    let mut first = Checkpoints::create(folder.path(), 1).expect("writable");
    let second = Checkpoints::create(folder.path(), 1).expect("the same directory");
    first.begin_checkpoint(3).expect("nothing there");
    let parts = first.write_parts(3, &own, &BTreeMap::new(), false).expect("writable");
    let error = publish(&first, 3, 4, parts).expect_err("ranks 2 and 3 are missing");
    assert!(error.to_string().contains("nothing from rank 2"), "{error}");
    assert!(Checkpoint::latest(folder.path()).expect("readable").is_none());
    first.begin_checkpoint(3).expect("leftovers are removed");
    second.write_parts(3, &others, &BTreeMap::new(), true).expect("writable");
    let parts = first.write_parts(3, &own, &BTreeMap::new(), false).expect("writable");
    publish(&first, 3, 4, parts).expect("whole");
    let checkpoint = Checkpoint::open(folder.path()).expect("complete");
    let whole = checkpoint.read(&["w"]).expect("whole");
    assert_eq!(whole["w"].bytes(), (0..30).collect::<Vec<u8>>());
    let names = std::fs::read_dir(checkpoint.path()).expect("the checkpoint");
    assert_eq!(names.count(), 5, "four ranks and the manifest");
}

#[test]
fn a_job_does_not_save_where_another_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut one = Checkpoints::create(folder.path(), 1).expect("writable");
    one.claim().expect("free");
    let mut other = Checkpoints::create(folder.path(), 1).expect("writable");
    assert!(matches!(other.claim(), Err(CheckpointError::InUse { .. })));
    drop(one);
    other.claim().expect("free again");
}

#[test]
fn a_file_where_a_folder_is_needed_is_refused_as_such() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.json");
    std::fs::write(&path, "text").expect("it is writable");
    let said = graphc_host::data::make_folder(&path).expect_err("a file").to_string();
    let error = Checkpoints::create(&path, 1).expect_err("a file").to_string();
    assert_eq!(error, format!("no checkpoint can be saved to {}: {said}", path.display()));
}

#[test]
fn the_last_are_kept_and_none_is_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let spread = Spread::filled(&[2], "S(0)");
    spread.save(folder.path(), 1);
    spread.save(folder.path(), 2);
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    let mut checkpoints = Checkpoints::create(folder.path(), 1).expect("writable");
    for step in [1, 2] {
        assert!(matches!(checkpoints.begin_checkpoint(step), Err(CheckpointError::Later { .. })));
    }
    checkpoints.begin_checkpoint(3).expect("the next");
}

#[test]
fn other_variables_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    Spread::filled(&[2], "S(0)").save(folder.path(), 1);
    let checkpoint = Checkpoint::open(folder.path()).expect("complete");
    let ty = TensorType::new(DType::U8, SHAPE);
    let check = |variables: &[(&'static str, &TensorType)]| {
        let kind = TensorKind::Parameter;
        let wanted = |ty: &TensorType| ExpectedVariable {
            ty: ty.clone(),
            kind,
            updated: true,
            may_lack: false,
        };
        let variables = variables.iter().map(|&(name, ty)| (name, wanted(ty))).collect();
        checkpoint.check_variables(&variables).map_err(|error| error.to_string())
    };
    check(&[("w", &ty)]).expect("the same");
    let error = check(&[("w", &ty), ("b", &ty)]).expect_err("no b");
    assert!(error.contains("lacks variable `b` (u8[5, 6])"), "{error}");
    let error = check(&[]).expect_err("no w");
    assert!(error.contains("has variable `w` (u8[5, 6]), which the plan lacks"), "{error}");
    let error = check(&[("w", &TensorType::new(DType::F32, [5]))]).expect_err("another type");
    assert!(error.contains("`w` is f32[5], but") && error.contains("u8[5, 6]"), "{error}");
}
