//! Reading checkpoints: the rectangles that a rank needs, out of the pieces that overlap them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use graphc_host::data::{file_dtype, open_file};
use graphc_host::tensor::HostTensor;
use graphc_host::threads::side_by_side;
use graphc_ir::hex::encode_hex;
use graphc_ir::shard::Rect;
use graphc_plan::TensorKind;
use memmap2::Mmap;
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};

use super::manifest::{FileRecord, Manifest, VariablePiece, VariableRecord};
use super::{CheckpointError, HeldShard, TrainingSettings, folder};
use crate::rectangles::{Move, fill_identity, masked_kind};

/// A complete checkpoint. Its manifest is in memory, its tensors in their files.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

impl Checkpoint {
    /// Opens the checkpoint at `path`, or the latest complete one in the directory `path`.
    ///
    /// # Errors
    /// Where there is none, or its manifest is damaged or of another version. Other files are checked when they are
    /// read.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        if path.join(folder::MANIFEST).is_file() {
            return Self::from_directory(path.to_owned());
        }
        if !path.is_dir() {
            return Err(CheckpointError::Absent { path: path.display().to_string() });
        }
        let nothing = || CheckpointError::Nothing { path: path.display().to_string() };
        Self::latest(path)?.ok_or_else(nothing)
    }

    /// Opens the latest complete checkpoint in a directory, which need not exist.
    ///
    /// # Errors
    /// Where the directory cannot be read, or the checkpoint's manifest is damaged or of another version.
    pub fn latest(directory: &Path) -> Result<Option<Self>, CheckpointError> {
        let last = folder::list_complete(directory)?.pop();
        last.map(|(_, path)| Self::from_directory(path)).transpose()
    }

    /// Returns the directories beside this checkpoint that are named like later ones and lack a manifest: somebody has
    /// removed it, as graphc writes a checkpoint under another name until it is whole.
    ///
    /// # Errors
    /// Where the directory cannot be read.
    pub fn incomplete_after(&self) -> Result<Vec<PathBuf>, CheckpointError> {
        let Some(directory) = self.path.parent() else { return Ok(Vec::new()) };
        let found = folder::list_incomplete(directory)?.into_iter();
        Ok(found.filter(|(step, _)| *step > self.step()).map(|(_, path)| path).collect())
    }

    fn from_directory(path: PathBuf) -> Result<Self, CheckpointError> {
        let manifest = Manifest::read(&path.join(folder::MANIFEST))?;
        Ok(Self { path, manifest })
    }

    /// Returns the checkpoint's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of finished steps: the number of the next one.
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// Returns the job's seed.
    pub fn seed(&self) -> u64 {
        self.manifest.seed
    }

    /// Variables that training had made infinite or no number when it was saved all the same
    /// ([`Checkpoints::accept_not_finite`](super::Checkpoints::accept_not_finite)).
    pub fn not_finite(&self) -> impl Iterator<Item = &str> {
        self.manifest.not_finite.iter().map(String::as_str)
    }

    /// Returns the name of the plan that was trained.
    pub fn model(&self) -> &str {
        &self.manifest.model
    }

    /// Returns the settings of training that the checkpoint records, if it does.
    pub(crate) fn settings(&self) -> Option<&TrainingSettings> {
        self.manifest.settings.as_ref()
    }

    pub(super) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the records of its variables, by name.
    pub fn variables(&self) -> &BTreeMap<String, VariableRecord> {
        &self.manifest.variables
    }

    /// Reads the model's own variables, trained and not, by name: what a session of inference begins with. States of the optimizer are not among
    /// them.
    ///
    /// ```no_run
    /// use graphc_runtime::{Checkpoint, Session, SessionOptions};
    /// # fn inference(plan: &graphc_plan::check::VerifiedPlan) -> Result<(), Box<dyn std::error::Error>> {
    /// let weights = Checkpoint::open("checkpoints".as_ref())?.weights()?;
    /// let session = Session::new(plan, &weights, SessionOptions::default())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Where a file is damaged.
    pub fn weights(&self) -> Result<BTreeMap<String, HostTensor>, CheckpointError> {
        let own =
            self.variables().iter().filter(|(_, record)| record.kind == TensorKind::Parameter);
        self.read(&own.map(|(name, _)| name.as_str()).collect::<Vec<_>>())
    }

    /// Reads whole variables, by name.
    ///
    /// # Errors
    /// Where the checkpoint has none of that name or a file is damaged.
    pub fn read(&self, names: &[&str]) -> Result<BTreeMap<String, HostTensor>, CheckpointError> {
        let mut records = Vec::new();
        for &name in names {
            let nothing = || CheckpointError::damaged(&self.path, format!("it lacks `{name}`"));
            records.push((name, self.manifest.variables.get(name).ok_or_else(nothing)?));
        }
        let files = self.map_files(records.iter().flat_map(|(_, record)| &record.pieces))?;
        let files = self.parse_files(&files)?;
        let mut tensors = BTreeMap::new();
        for (name, record) in records {
            let mut tensor = HostTensor::zeros(record.dtype, record.shape.clone());
            let whole = Rect::whole(&record.shape);
            self.copy_rectangle(record, &files, &whole, tensor.bytes_mut())?;
            tensors.insert(name.to_owned(), tensor);
        }
        Ok(tensors)
    }

    /// Fills shards whose variables were checked. No worker may be in a step.
    pub(crate) fn fill_shards(&self, shards: &[HeldShard<'_>]) -> Result<(), CheckpointError> {
        let held = |shard: &&HeldShard<'_>| self.manifest.variables.contains_key(shard.name);
        let shards: Vec<&HeldShard<'_>> = shards.iter().filter(held).collect();
        let record = |shard: &HeldShard<'_>| &self.manifest.variables[shard.name];
        let needed = |piece: &&VariablePiece, shard: &HeldShard<'_>| {
            piece.rect.intersect(shard.rect).is_some()
        };
        let pieces = shards.iter().filter(|shard| masked_kind(shard.layout, shard.rank).is_none());
        let pieces =
            pieces.flat_map(|shard| record(shard).pieces.iter().filter(move |p| needed(p, shard)));
        let files = self.map_files(pieces)?;
        let files = self.parse_files(&files)?;
        for shard in &shards {
            shard.memory.write(shard.place, |target| {
                match masked_kind(shard.layout, shard.rank) {
                    Some(kind) => {
                        fill_identity(shard.layout.dtype, kind, target);
                        Ok(())
                    }
                    None => self.copy_rectangle(record(shard), &files, shard.rect, target),
                }
            })?;
        }
        Ok(())
    }

    /// Copies a rectangle of a variable out of the pieces that overlap it, in their order.
    fn copy_rectangle(
        &self,
        record: &VariableRecord,
        files: &BTreeMap<&str, SafeTensors<'_>>,
        target: &Rect,
        memory: &mut [u8],
    ) -> Result<(), CheckpointError> {
        for piece in &record.pieces {
            let Some(part) = piece.rect.intersect(target) else { continue };
            let path = || self.path.join(&piece.file);
            let view = files.get(piece.file.as_str()).map(|file| file.tensor(&piece.tensor));
            let Some(Ok(view)) = view else {
                let reason = format!("it has no tensor `{}`", piece.tensor);
                return Err(CheckpointError::damaged(&path(), reason));
            };
            if view.dtype() != file_dtype(record.dtype) || view.shape() != piece.rect.extent {
                let reason = format!("tensor `{}` is not what the manifest says", piece.tensor);
                return Err(CheckpointError::damaged(&path(), reason));
            }
            let copy = Move::new(record.dtype, &part, &piece.rect, target);
            copy.apply(piece.reduce, view.data(), memory);
        }
        Ok(())
    }

    /// Maps the files of these pieces, each checked against the manifest.
    fn map_files<'a>(
        &'a self,
        pieces: impl Iterator<Item = &'a VariablePiece>,
    ) -> Result<Vec<(&'a str, Mmap)>, CheckpointError> {
        let names: BTreeSet<&str> = pieces.map(|piece| piece.file.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let map = |at: usize| {
            let name = names[at];
            let map = map_checked_file(&self.path.join(name), &self.manifest.files[name])?;
            Ok((name, map))
        };
        side_by_side(names.len(), map).into_iter().collect()
    }

    fn parse_files<'a>(
        &self,
        files: &'a [(&'a str, Mmap)],
    ) -> Result<BTreeMap<&'a str, SafeTensors<'a>>, CheckpointError> {
        let parse = |(name, map): &'a (&'a str, Mmap)| {
            let file = SafeTensors::deserialize(map);
            let file =
                file.map_err(|error| CheckpointError::damaged(&self.path.join(name), error))?;
            Ok((*name, file))
        };
        files.iter().map(parse).collect()
    }
}

fn map_checked_file(path: &Path, record: &FileRecord) -> Result<Mmap, CheckpointError> {
    let read = |error: std::io::Error| CheckpointError::cannot_read(path, error);
    let file = open_file(path).map_err(read)?;
    let bytes = file.metadata().map_err(read)?.len();
    if bytes != record.bytes {
        let reason = format!("it has {bytes} bytes, the manifest says {}", record.bytes);
        return Err(CheckpointError::damaged(path, reason));
    }
    let map = graphc_host::memory::map_file(&file).map_err(read)?;
    if encode_hex(&Sha256::digest(&map)) != record.sha256 {
        return Err(CheckpointError::damaged(path, "its content does not match its SHA-256"));
    }
    Ok(map)
}
