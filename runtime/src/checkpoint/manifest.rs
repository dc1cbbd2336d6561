//! The manifest of a checkpoint: what it says of itself.
//!
//! It is checked before it is believed. Pieces of a variable form a grid, as shards do, so none overlap. No piece is
//! larger than its file, whose size is compared before memory is asked for. It records the optimizer with its numbers,
//! the loss and the inputs' types. Who goes on with others is told (`Session::changes_since`), and may.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use graphc_host::data::read_file;
use graphc_ir::hex::encode_hex;
use graphc_ir::sbp::ReduceKind;
use graphc_ir::shard::Rect;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::TensorKind;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{CheckpointError, TrainingSettings};

/// The version of the manifest that this build reads and writes.
pub(super) const VERSION: u32 = 1;

/// Bytes that no manifest has: one of a million pieces has a tenth.
pub(super) const LONGEST_MANIFEST: u64 = 1 << 31;

const FORMAT: &str = "graphc checkpoint";

/// The content of `manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: String,
    pub(super) version: u32,
    /// Number of finished steps.
    pub(super) step: u64,
    pub(super) seed: u64,
    /// The plan's name.
    pub(super) model: String,
    /// The mesh that wrote it: for readers, not needed to load it.
    pub(super) mesh: Vec<usize>,
    /// Variables that training has made infinite or no number, where they were to be saved all the same.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) not_finite: BTreeSet<String>,
    /// The settings that it was trained with; earlier versions did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) settings: Option<TrainingSettings>,
    pub(super) variables: BTreeMap<String, VariableRecord>,
    pub(super) files: BTreeMap<String, FileRecord>,
    /// SHA-256 of this manifest with an empty string here.
    pub(super) sha256: String,
}

/// A variable of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariableRecord {
    /// `parameter` or `state` (of the optimizer).
    pub kind: TensorKind,
    /// Element type.
    pub dtype: DType,
    /// Shape of the whole.
    pub shape: Vec<usize>,
    /// The places of its elements.
    pub(super) pieces: Vec<VariablePiece>,
}

/// A rectangle of a variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VariablePiece {
    pub(super) file: String,
    /// The tensor's name in the file.
    pub(super) tensor: String,
    #[serde(flatten)]
    pub(super) rect: Rect,
    /// The reduction that combines it with the pieces before it, where the variable lies as partial values.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) reduce: Option<ReduceKind>,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileRecord {
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// The part of one rank in a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CheckpointPart {
    pub(super) variables: BTreeMap<String, VariableRecord>,
    pub(super) files: BTreeMap<String, FileRecord>,
    /// Variables of which some element that it has written is infinite or no number, though training changes them.
    #[serde(default)]
    pub(super) not_finite: BTreeSet<String>,
}

/// The terms of a whole checkpoint, besides the parts of ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManifestHeader<'a> {
    /// Number of finished steps.
    pub(crate) step: u64,
    pub(crate) seed: u64,
    pub(crate) model: &'a str,
    pub(crate) mesh: &'a [usize],
    pub(crate) settings: &'a TrainingSettings,
}

impl VariableRecord {
    /// Returns the type of the whole.
    pub fn ty(&self) -> TensorType {
        TensorType { dtype: self.dtype, shape: self.shape.clone() }
    }

    /// Whether the pieces are the whole, each element once: they form a grid, as shards do. Of partial values, which are
    /// combined with what is there, each part of the grid has equally many.
    fn is_covered(&self) -> bool {
        let (reduced, copied): (Vec<&VariablePiece>, Vec<&VariablePiece>) =
            self.pieces.iter().partition(|piece| piece.reduce.is_some());
        let rects: BTreeSet<Corners<'_>> = copied.iter().map(|piece| piece.corners()).collect();
        if rects.len() != copied.len() || !is_grid(&rects, &self.shape) {
            return false;
        }
        let mut added: BTreeMap<Corners<'_>, usize> = BTreeMap::new();
        for piece in reduced {
            *added.entry(piece.corners()).or_default() += 1;
        }
        let times = added.values().next().copied().unwrap_or(0);
        let everywhere = added.is_empty() || added.len() == rects.len();
        everywhere && added.iter().all(|(at, &count)| count == times && rects.contains(at))
    }

    /// Returns the bytes of a piece; `None` where there are too many to count.
    fn count_piece_bytes(&self, piece: &VariablePiece) -> Option<u64> {
        let size = self.dtype.size() as u64;
        piece.rect.extent.iter().try_fold(size, |bytes, &extent| bytes.checked_mul(extent as u64))
    }
}

/// Origin and extent of a rectangle.
type Corners<'a> = (&'a [usize], &'a [usize]);

impl VariablePiece {
    fn corners(&self) -> Corners<'_> {
        (&self.rect.origin, &self.rect.extent)
    }
}

/// Whether these rectangles are all combinations of ranges that divide each dim of the shape.
fn is_grid(rects: &BTreeSet<Corners<'_>>, shape: &[usize]) -> bool {
    if shape.contains(&0) {
        return rects.is_empty();
    }
    if !rects.iter().all(|(origin, extent)| [origin.len(), extent.len()] == [shape.len(); 2]) {
        return false;
    }
    let mut combinations = Some(1usize);
    for (dim, &whole) in shape.iter().enumerate() {
        let ranges: BTreeSet<(usize, usize)> =
            rects.iter().map(|(origin, extent)| (origin[dim], extent[dim])).collect();
        let follows = |end: usize, &(start, extent): &(usize, usize)| {
            end.checked_add(extent).filter(|_| start == end && extent > 0)
        };
        if ranges.iter().try_fold(0, follows) != Some(whole) {
            return false;
        }
        combinations = combinations.and_then(|count| count.checked_mul(ranges.len()));
    }
    combinations == Some(rects.len())
}

impl Manifest {
    /// Makes the manifest of what all ranks have added.
    ///
    /// # Errors
    /// Where ranks do not agree on a variable, or pieces of one are missing: what is wrong.
    pub(super) fn new(
        header: ManifestHeader<'_>,
        parts: Vec<CheckpointPart>,
    ) -> Result<Self, String> {
        let mut whole = CheckpointPart::default();
        for part in parts {
            whole.files.extend(part.files);
            whole.not_finite.extend(part.not_finite);
            for (name, record) in part.variables {
                let Some(known) = whole.variables.get_mut(&name) else {
                    whole.variables.insert(name, record);
                    continue;
                };
                if (known.kind, known.ty()) != (record.kind, record.ty()) {
                    let (one, other) = (known.ty(), record.ty());
                    return Err(format!("ranks have variable `{name}` as {one} and as {other}"));
                }
                known.pieces.extend(record.pieces);
            }
        }
        let missing = whole.variables.iter().find(|(_, record)| !record.is_covered());
        if let Some((name, _)) = missing {
            return Err(format!("no rank has written some elements of variable `{name}`"));
        }
        let CheckpointPart { variables, files, not_finite } = whole;
        let ManifestHeader { step, seed, model, mesh, settings } = header;
        let settings = Some(settings.clone());
        let (format, version) = (FORMAT.to_owned(), VERSION);
        let (model, mesh, sha256) = (model.to_owned(), mesh.to_vec(), String::new());
        Ok(Self {
            format,
            version,
            step,
            seed,
            model,
            mesh,
            not_finite,
            settings,
            variables,
            files,
            sha256,
        })
    }

    /// Returns the file's content.
    pub(super) fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&Self { sha256: self.compute_seal()?, ..self.clone() })
    }

    /// Reads a manifest and checks that it is whole.
    pub(super) fn read(path: &Path) -> Result<Self, CheckpointError> {
        let text = read_file(path, LONGEST_MANIFEST);
        let text = text.map_err(|error| CheckpointError::cannot_read(path, error))?;
        let not = |reason: String| CheckpointError::NotACheckpoint {
            path: path.display().to_string(),
            reason,
        };
        let value: serde_json::Value =
            serde_json::from_slice(&text).map_err(|error| not(error.to_string()))?;
        if value["format"] != FORMAT {
            return Err(not(format!("its format is not \"{FORMAT}\"")));
        }
        let found = value["version"].as_u64().ok_or_else(|| not("it has no version".into()))?;
        if found != u64::from(VERSION) {
            let path = path.display().to_string();
            return Err(CheckpointError::Version { path, found, own: VERSION });
        }
        let manifest: Self =
            serde_json::from_value(value).map_err(|error| not(error.to_string()))?;
        manifest.check_content(path)?;
        Ok(manifest)
    }

    fn check_content(&self, path: &Path) -> Result<(), CheckpointError> {
        if self.compute_seal().is_ok_and(|seal| seal != self.sha256) {
            return Err(CheckpointError::damaged(path, "its content does not match its SHA-256"));
        }
        let plain = |name: &String| Path::new(name).file_name().is_some_and(|last| last == &**name);
        let mut left: BTreeMap<&str, u64> = BTreeMap::new();
        let mut tensors: BTreeSet<(&str, &str)> = BTreeSet::new();
        for (name, record) in &self.variables {
            if !record.is_covered() {
                let reason =
                    format!("the pieces of variable `{name}` are not the whole, each element once");
                return Err(CheckpointError::damaged(path, reason));
            }
            for piece in &record.pieces {
                let file = self.files.get(&piece.file).filter(|_| plain(&piece.file));
                let once = tensors.insert((&piece.file, &piece.tensor));
                let left = left.entry(&piece.file).or_insert(file.map_or(0, |file| file.bytes));
                // So nothing is larger than the files are, whose sizes are compared before memory is asked for.
                let rest =
                    record.count_piece_bytes(piece).and_then(|bytes| left.checked_sub(bytes));
                let (Some(_), true, Some(rest)) = (file, once, rest) else {
                    let of = format!("of variable `{name}` in {}", piece.file);
                    let reason =
                        format!("the piece `{}` {of} is not what a file holds", piece.tensor);
                    return Err(CheckpointError::damaged(path, reason));
                };
                *left = rest;
            }
        }
        Ok(())
    }

    /// Computes SHA-256 of the manifest without it.
    fn compute_seal(&self) -> Result<String, serde_json::Error> {
        let unsealed = Self { sha256: String::new(), ..self.clone() };
        Ok(encode_hex(&Sha256::digest(serde_json::to_vec(&unsealed)?)))
    }
}

#[cfg(test)]
mod tests {
    use graphc_plan::CompileOptions;

    use super::*;

    fn record(pieces: &[(usize, usize)]) -> VariableRecord {
        let piece = |&(origin, extent): &(usize, usize)| VariablePiece {
            file: "rank-00000.safetensors".into(),
            tensor: format!("w from {origin}"),
            rect: Rect { origin: vec![origin], extent: vec![extent] },
            reduce: None,
        };
        let pieces = pieces.iter().map(piece).collect();
        VariableRecord { kind: TensorKind::Parameter, dtype: DType::F32, shape: vec![5], pieces }
    }

    fn part(record: VariableRecord) -> CheckpointPart {
        let file = FileRecord { bytes: 64, sha256: String::new() };
        CheckpointPart {
            variables: [("w".to_owned(), record)].into(),
            files: [("rank-00000.safetensors".to_owned(), file)].into(),
            not_finite: BTreeSet::new(),
        }
    }

    fn manifest(parts: Vec<CheckpointPart>) -> Result<Manifest, String> {
        let settings =
            &TrainingSettings::from_options(&CompileOptions::default(), &BTreeMap::new());
        Manifest::new(ManifestHeader { step: 3, seed: 7, model: "m", mesh: &[2], settings }, parts)
    }

    /// The result of reading a manifest that was changed and sealed again.
    fn reread(change: impl FnOnce(&mut Manifest)) -> Result<Manifest, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("manifest.json");
        let mut changed = manifest(vec![part(record(&[(0, 2), (2, 3)]))]).expect("whole");
        change(&mut changed);
        std::fs::write(&path, changed.to_json().expect("JSON")).expect("writable");
        Manifest::read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn parts_must_cover_the_whole() {
        let parts = vec![part(record(&[(0, 3)])), part(record(&[(3, 2)]))];
        assert_eq!(manifest(parts).expect("3 and 2 are 5").variables["w"].pieces.len(), 2);
        let error = manifest(vec![part(record(&[(0, 3)]))]).expect_err("3 of 5");
        assert!(error.contains("`w`"), "{error}");
        manifest(vec![part(record(&[(0, 3), (4, 2)]))]).expect_err("element 5 is outside");
        manifest(vec![part(record(&[(usize::MAX, 5)]))]).expect_err("no panic");
    }

    #[test]
    fn pieces_that_overlap_are_refused() {
        // As many elements as there are, but element 1 twice and element 4 never.
        let overlapping = record(&[(0, 2), (1, 3)]);
        manifest(vec![part(overlapping.clone())]).expect_err("an element twice");
        reread(|m| _ = m.variables.insert("w".into(), overlapping)).expect_err("likewise");
        let mut added = record(&[(0, 5), (0, 5), (0, 2)]);
        added.pieces[1].reduce = Some(ReduceKind::Sum);
        added.pieces[2].reduce = Some(ReduceKind::Sum);
        assert!(!added.is_covered(), "a part of the sum");
        added.pieces.pop();
        assert!(added.is_covered());
    }

    #[test]
    fn nothing_is_larger_than_its_file() {
        reread(|_| ()).expect("unchanged");
        let claim = |manifest: &mut Manifest| {
            let whole = record(&[(0, 1 << 40)]);
            let huge = VariableRecord { shape: vec![1 << 40], ..whole };
            manifest.variables.insert("w".into(), huge);
        };
        let error = reread(claim).expect_err("4 TB in 64 bytes");
        assert!(error.contains("variable `w` in rank-00000.safetensors"), "{error}");
        let twice = |manifest: &mut Manifest| {
            let again = manifest.variables["w"].clone();
            manifest.variables.insert("again".into(), again);
        };
        reread(twice).expect_err("one tensor of a file for two variables");
    }

    #[test]
    fn a_manifest_without_settings_is_one_of_an_earlier_version() {
        let earlier = reread(|manifest| manifest.settings = None).expect("readable");
        assert!(earlier.settings.is_none());
    }

    #[test]
    fn a_changed_digit_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("manifest.json");
        let manifest = manifest(vec![part(record(&[(0, 5)]))]).expect("whole");
        let text = manifest.to_json().expect("JSON");
        std::fs::write(&path, &text).expect("writable");
        assert_eq!(Manifest::read(&path).expect("whole").step, 3);
        std::fs::write(&path, text.replace("\"step\":3", "\"step\":4")).expect("writable");
        let error = Manifest::read(&path).expect_err("changed").to_string();
        assert!(error.contains("is damaged"), "{error}");
        std::fs::write(&path, text.replace("\"version\":1", "\"version\":9")).expect("writable");
        let error = Manifest::read(&path).expect_err("another version").to_string();
        assert!(error.contains("has version 9, this build reads 1"), "{error}");
        std::fs::write(&path, "[1]").expect("writable");
        let error = Manifest::read(&path).expect_err("something else").to_string();
        assert!(error.contains("is no manifest"), "{error}");
    }
}
