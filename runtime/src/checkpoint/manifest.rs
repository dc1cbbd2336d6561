//! What a checkpoint says of itself.

use std::collections::BTreeMap;
use std::path::Path;

use graphc_ir::plan::TensorKind;
use graphc_ir::sbp::ReduceKind;
use graphc_ir::shard::Rect;
use graphc_ir::types::{DType, TensorType};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::CheckpointError;

/// The version of the manifest that this build reads and writes.
pub(super) const VERSION: u32 = 1;

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
    /// Where its elements are.
    pub(super) pieces: Vec<Piece>,
}

/// A rectangle of a variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    pub(super) file: String,
    /// The tensor's name in the file.
    pub(super) tensor: String,
    #[serde(flatten)]
    pub(super) rect: Rect,
    /// Combined with what the pieces before it brought: the variable lies as partial values.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) reduce: Option<ReduceKind>,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileRecord {
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// What one rank adds to a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) variables: BTreeMap<String, VariableRecord>,
    pub(super) files: BTreeMap<String, FileRecord>,
}

/// What is said of a whole checkpoint besides what ranks add.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header<'a> {
    /// Number of finished steps.
    pub(crate) step: u64,
    pub(crate) seed: u64,
    pub(crate) model: &'a str,
    pub(crate) mesh: &'a [usize],
}

impl VariableRecord {
    /// The type of the whole.
    pub fn ty(&self) -> TensorType {
        TensorType { dtype: self.dtype, shape: self.shape.clone() }
    }

    /// Whether every piece lies in the whole, and together they are as many elements as it has.
    fn covered(&self) -> bool {
        let inside = |piece: &Piece| {
            let Rect { origin, extent } = &piece.rect;
            let fits = |((&origin, &extent), &shape): ((&usize, &usize), &usize)| {
                origin.checked_add(extent).is_some_and(|end| end <= shape)
            };
            origin.len() == self.shape.len()
                && extent.len() == self.shape.len()
                && origin.iter().zip(extent).zip(&self.shape).all(fits)
        };
        let copied = self.pieces.iter().filter(|piece| piece.reduce.is_none());
        let elements = |extent: &[usize]| {
            extent.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent))
        };
        let copied = copied.map(|piece| elements(&piece.rect.extent));
        let sum = copied.sum::<Option<usize>>();
        self.pieces.iter().all(inside) && sum.is_some() && sum == elements(&self.shape)
    }
}

impl Manifest {
    /// The manifest of what all ranks have added.
    ///
    /// # Errors
    /// Where ranks do not agree on a variable, or pieces of one are missing: what is wrong.
    pub(super) fn new(header: Header<'_>, parts: Vec<Part>) -> Result<Self, String> {
        let mut whole = Part::default();
        for part in parts {
            whole.files.extend(part.files);
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
        let missing = whole.variables.iter().find(|(_, record)| !record.covered());
        if let Some((name, _)) = missing {
            return Err(format!("no rank has written some elements of variable `{name}`"));
        }
        let Part { variables, files } = whole;
        let Header { step, seed, model, mesh } = header;
        let (format, version) = (FORMAT.to_owned(), VERSION);
        let (model, mesh, sha256) = (model.to_owned(), mesh.to_vec(), String::new());
        Ok(Self { format, version, step, seed, model, mesh, variables, files, sha256 })
    }

    /// The file's content.
    pub(super) fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&Self { sha256: self.seal()?, ..self.clone() })
    }

    /// Reads a manifest and checks that it is whole.
    pub(super) fn read(path: &Path) -> Result<Self, CheckpointError> {
        let text =
            std::fs::read_to_string(path).map_err(|error| CheckpointError::read(path, error))?;
        let not = |reason: String| CheckpointError::NotACheckpoint {
            path: path.display().to_string(),
            reason,
        };
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| not(error.to_string()))?;
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
        manifest.check(path)?;
        Ok(manifest)
    }

    fn check(&self, path: &Path) -> Result<(), CheckpointError> {
        if self.seal().is_ok_and(|seal| seal != self.sha256) {
            return Err(CheckpointError::damaged(path, "its content does not match its SHA-256"));
        }
        let plain = |name: &String| Path::new(name).file_name().is_some_and(|last| last == &**name);
        for (name, record) in &self.variables {
            let listed = |piece: &Piece| self.files.contains_key(&piece.file) && plain(&piece.file);
            if !record.covered() || !record.pieces.iter().all(listed) {
                let reason = format!("the pieces of variable `{name}` are not the whole");
                return Err(CheckpointError::damaged(path, reason));
            }
        }
        Ok(())
    }

    /// SHA-256 of the manifest without it.
    fn seal(&self) -> Result<String, serde_json::Error> {
        let unsealed = Self { sha256: String::new(), ..self.clone() };
        Ok(hexadecimal(&Sha256::digest(serde_json::to_vec(&unsealed)?)))
    }
}

/// Bytes as text.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(pieces: &[(usize, usize)]) -> VariableRecord {
        let piece = |&(origin, extent): &(usize, usize)| Piece {
            file: "rank-00000.safetensors".into(),
            tensor: "w".into(),
            rect: Rect { origin: vec![origin], extent: vec![extent] },
            reduce: None,
        };
        let pieces = pieces.iter().map(piece).collect();
        VariableRecord { kind: TensorKind::Parameter, dtype: DType::F32, shape: vec![5], pieces }
    }

    fn part(record: VariableRecord) -> Part {
        let file = FileRecord { bytes: 8, sha256: String::new() };
        Part {
            variables: [("w".to_owned(), record)].into(),
            files: [("rank-00000.safetensors".to_owned(), file)].into(),
        }
    }

    const HEADER: Header<'_> = Header { step: 3, seed: 7, model: "m", mesh: &[2] };

    #[test]
    fn parts_must_cover_the_whole() {
        let parts = vec![part(record(&[(0, 3)])), part(record(&[(3, 2)]))];
        let manifest = Manifest::new(HEADER, parts).expect("3 and 2 are 5");
        assert_eq!(manifest.variables["w"].pieces.len(), 2);
        let error = Manifest::new(HEADER, vec![part(record(&[(0, 3)]))]).expect_err("3 of 5");
        assert!(error.contains("`w`"), "{error}");
        let beyond = vec![part(record(&[(0, 3), (4, 2)]))];
        Manifest::new(HEADER, beyond).expect_err("element 5 is outside");
        let overflow = record(&[(usize::MAX, 5)]);
        Manifest::new(HEADER, vec![part(overflow)]).expect_err("no panic");
    }

    #[test]
    fn a_changed_digit_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("manifest.json");
        let manifest = Manifest::new(HEADER, vec![part(record(&[(0, 5)]))]).expect("whole");
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
