//! Writing checkpoints: each rank its file, then one manifest for all.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use graphc_host::data::{make_folder, read_file};
use graphc_host::tensor::HostTensor;
use graphc_host::threads::side_by_side;
use graphc_ir::sbp::{ReduceKind, Sbp};
use graphc_plan::TensorKind;

use super::manifest::{CheckpointPart, LONGEST_MANIFEST, Manifest};
use super::stored::{StoredBytes, StoredRectangle, write_rank_part};
use super::{CheckpointError, HeldShard, folder};

pub(crate) use super::manifest::ManifestHeader;

/// A directory into which one job saves its checkpoints.
///
/// ```
/// # use std::{collections::BTreeMap, path::Path};
/// use graphc_runtime::{Checkpoint, Checkpoints, Session, SessionOptions};
/// # fn example(plan: graphc_plan::check::VerifiedPlan) -> Result<(), Box<dyn std::error::Error>> {
/// # let (weights, feeds) = (BTreeMap::new(), BTreeMap::new());
///
/// let folder = Path::new("checkpoints");
/// let mut session = Session::new(&plan, &weights, SessionOptions::default())?;
/// let mut checkpoints = Checkpoints::create(folder, 2)?; // the last two are kept
/// session.step(feeds)?.wait()?;
/// session.save_checkpoint(&mut checkpoints)?; // checkpoints/step-00000001
///
/// let checkpoint = Checkpoint::open(folder)?; // the latest
/// let (first_step, seed) = (checkpoint.step(), checkpoint.seed());
/// let options = SessionOptions { first_step, seed, ..SessionOptions::default() };
/// let mut resumed = Session::new(&plan, &weights, options)?;
/// resumed.load_checkpoint(&checkpoint)?; // the next step is step 1
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Checkpoints {
    directory: PathBuf,
    keep: usize,
    accepts_not_finite: bool,
    lock: Option<File>,
}

impl Checkpoints {
    /// Opens the directory at `path`, which is made where it does not exist. The last `keep` checkpoints (at least 1)
    /// are kept.
    ///
    /// # Errors
    /// Where it cannot be made or written to.
    pub fn create(path: impl AsRef<Path>, keep: usize) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let fail = |error: std::io::Error| CheckpointError::Directory {
            path: path.display().to_string(),
            reason: error.to_string(),
        };
        make_folder(path).map_err(fail)?;
        // Found out now and not after the first thousand steps.
        let probe = tempfile::Builder::new().prefix(folder::PROBE).tempdir_in(path);
        probe.and_then(tempfile::TempDir::close).map_err(fail)?;
        let (directory, keep) = (path.to_owned(), keep.max(1));
        Ok(Self { directory, keep, accepts_not_finite: false, lock: None })
    }

    /// Saves variables as well that training has made infinite or no number. The checkpoint says which they are
    /// ([`Checkpoint::not_finite`](super::Checkpoint::not_finite)); without this it is not written.
    pub fn accept_not_finite(self) -> Self {
        Self { accepts_not_finite: true, ..self }
    }

    /// Claims the directory for this process until it ends, however it ends. Saving does so too, in the process of
    /// rank 0. Where the file system has no locks nothing is claimed.
    ///
    /// # Errors
    /// Where another running process has claimed it.
    pub fn claim(&mut self) -> Result<(), CheckpointError> {
        if self.lock.is_some() {
            return Ok(());
        }
        let folder = File::open(&self.directory)
            .map_err(|error| CheckpointError::cannot_write(&self.directory, error))?;
        if let Err(std::fs::TryLockError::WouldBlock) = folder.try_lock() {
            return Err(CheckpointError::InUse { path: self.directory.display().to_string() });
        }
        self.lock = Some(folder);
        Ok(())
    }

    /// Renames directories that are named like checkpoints and lack a manifest, of which nobody knows what they hold, so
    /// that checkpoints of those steps can be saved again: their names before and now. For the process of rank 0 once it
    /// has claimed the directory; saving does so too.
    ///
    /// # Errors
    /// Where one cannot be renamed.
    pub fn set_aside_incomplete(&self) -> Result<Vec<(PathBuf, PathBuf)>, CheckpointError> {
        let incomplete = folder::list_incomplete(&self.directory)?.into_iter();
        incomplete.map(|(_, path)| folder::set_aside(&path).map(|aside| (path, aside))).collect()
    }

    /// Checks that the next checkpoint may be that after `step` steps: that there is none of as many or more, which
    /// would be another run's.
    ///
    /// # Errors
    /// Where there is one.
    pub fn check_next(&self, step: u64) -> Result<(), CheckpointError> {
        match folder::list_complete(&self.directory)?.pop() {
            Some((last, path)) if last >= step => {
                Err(CheckpointError::Later { path: path.display().to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Makes the directory in which all ranks write. For the process of rank 0, before the others write.
    pub(crate) fn begin_checkpoint(&mut self, step: u64) -> Result<(), CheckpointError> {
        self.claim()?;
        folder::remove_leftovers(&self.directory)?;
        self.set_aside_incomplete()?;
        self.check_next(step)?;
        let partial = self.partial_path(step);
        std::fs::create_dir(&partial)
            .map_err(|error| CheckpointError::cannot_write(&partial, error))
    }

    /// Writes the shards of ranks of this process, and for each rank what it has written. Rank 0 adds tensors that no rank has a
    /// variable for.
    pub(crate) fn write_parts(
        &self,
        step: u64,
        ranks: &BTreeMap<u32, Vec<HeldShard<'_>>>,
        aside: &BTreeMap<String, HostTensor>,
        told: bool,
    ) -> Result<CheckpointParts, CheckpointError> {
        let partial = self.partial_path(step);
        let ranks: Vec<_> = ranks.iter().collect();
        let write = |at: usize| {
            let (&rank, shards) = ranks[at];
            let mut all: Vec<StoredRectangle<'_>> = shards.iter().map(stored_rectangle).collect();
            for (name, tensor) in aside.iter().filter(|_| rank == 0) {
                all.push(StoredRectangle::from_host_tensor(
                    name,
                    TensorKind::Parameter,
                    tensor,
                    false,
                ));
            }
            let part = write_rank_part(&partial, rank, all)?;
            if told {
                let path = partial.join(folder::part_name(rank));
                let json = serde_json::to_vec(&part);
                let json = json.map_err(|error| CheckpointError::cannot_write(&path, error))?;
                write_synced(&path, &json)?;
            }
            Ok((rank, part))
        };
        let parts = side_by_side(ranks.len(), write);
        parts.into_iter().collect::<Result<_, _>>().map(CheckpointParts)
    }

    /// Completes the checkpoint of a world of so many ranks, and removes what is older than those to be kept. For the
    /// process of rank 0, after all others have written; `parts` are its own.
    pub(crate) fn publish_checkpoint(
        &self,
        header: ManifestHeader<'_>,
        world_size: usize,
        parts: CheckpointParts,
    ) -> Result<PathBuf, CheckpointError> {
        let (partial, path) = (self.partial_path(header.step), self.path(header.step));
        let parts = gather_parts(&partial, world_size, parts)?;
        let manifest = Manifest::new(header, parts);
        let manifest =
            manifest.map_err(|reason| CheckpointError::cannot_complete(&partial, reason))?;
        if !self.accepts_not_finite && !manifest.not_finite.is_empty() {
            let names = manifest.not_finite.into_iter().collect();
            return Err(CheckpointError::NotFinite { step: header.step, names });
        }
        let file = partial.join(folder::MANIFEST);
        let json =
            manifest.to_json().map_err(|error| CheckpointError::cannot_write(&file, error))?;
        write_synced(&file, json.as_bytes())?;
        folder::sync_directory(&partial)?;
        std::fs::rename(&partial, &path)
            .map_err(|error| CheckpointError::cannot_write(&path, error))?;
        folder::sync_directory(&self.directory)?;
        self.prune_checkpoints()?;
        Ok(path)
    }

    /// Removes what a failed attempt has left.
    pub(crate) fn abandon_checkpoint(&self, step: u64) {
        // The reason of the failure is what is told; what this leaves the next attempt removes.
        let _ = folder::remove_directory(&self.partial_path(step));
    }

    /// Returns the path of the checkpoint after so many steps.
    pub fn path(&self, step: u64) -> PathBuf {
        self.directory.join(folder::checkpoint_name(step))
    }

    pub(super) fn partial_path(&self, step: u64) -> PathBuf {
        self.directory.join(folder::partial_name(step))
    }

    fn prune_checkpoints(&self) -> Result<(), CheckpointError> {
        let found = folder::list_complete(&self.directory)?;
        let old = &found[..found.len().saturating_sub(self.keep)];
        old.iter().try_for_each(|(step, path)| folder::retire_checkpoint(path, *step))
    }
}

/// The files that the ranks of one process have written, by rank.
pub(crate) struct CheckpointParts(pub(super) BTreeMap<u32, CheckpointPart>);

/// Gathers the parts of all ranks: those of other processes are read and removed.
fn gather_parts(
    partial: &Path,
    world_size: usize,
    own: CheckpointParts,
) -> Result<Vec<CheckpointPart>, CheckpointError> {
    let mut own = own.0;
    let part = |rank: u32| {
        if let Some(part) = own.remove(&rank) {
            return Ok(part);
        }
        let path = partial.join(folder::part_name(rank));
        let text = read_file(&path, LONGEST_MANIFEST).map_err(|error| {
            let place = "do all processes see the same directory?";
            CheckpointError::cannot_complete(
                partial,
                format!("nothing from rank {rank} ({error}): {place}"),
            )
        })?;
        let part = serde_json::from_slice(&text);
        let part = part.map_err(|error| CheckpointError::damaged(&path, error))?;
        std::fs::remove_file(&path).map_err(|error| CheckpointError::cannot_write(&path, error))?;
        Ok(part)
    };
    (0..world_size as u32).map(part).collect()
}

/// Returns the rectangle that a shard adds to a checkpoint.
fn stored_rectangle<'a>(shard: &HeldShard<'a>) -> StoredRectangle<'a> {
    StoredRectangle {
        name: shard.name,
        kind: shard.kind,
        dtype: shard.layout.dtype,
        shape: &shard.layout.shape,
        rect: shard.rect.clone(),
        added: first_replica(shard),
        bytes: StoredBytes::Of(shard.memory, shard.place),
        updated: shard.updated,
    }
}

/// Returns how the shard combines with those of ranks before it; `None` where one of them holds the same.
fn first_replica(shard: &HeldShard<'_>) -> Option<Option<ReduceKind>> {
    let coordinates = shard.layout.coordinates(shard.rank)?;
    let axes = || shard.layout.sbp.0.iter().zip(&coordinates);
    if axes().any(|(sbp, &coordinate)| *sbp == Sbp::Broadcast && coordinate > 0) {
        return None;
    }
    Some(axes().find_map(|(sbp, &coordinate)| match sbp {
        Sbp::Partial(kind) if coordinate > 0 => Some(*kind),
        _ => None,
    }))
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let write = || {
        // Made anew: a link that somebody has put there is not followed.
        let mut file = File::create_new(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error: std::io::Error| CheckpointError::cannot_write(path, error))
}
