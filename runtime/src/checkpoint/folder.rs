//! Names in a directory of checkpoints, and what makes them durable.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::CheckpointError;

/// The file that makes a directory a checkpoint.
pub(super) const MANIFEST: &str = "manifest.json";

/// The prefix of the name of the file by which a process finds out whether it may write.
pub(super) const PROBE: &str = ".writable-";

/// Returns the name of the checkpoint after this many steps.
pub(super) fn checkpoint_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// Returns the name under which a checkpoint is written.
pub(super) fn partial_name(step: u64) -> String {
    format!(".step-{step:08}.partial")
}

/// Returns the name of a rank's file.
pub(super) fn shards_name(rank: u32) -> String {
    format!("rank-{rank:05}.safetensors")
}

/// Returns the name of the file by which a rank tells its part to the one that gathers.
pub(super) fn part_name(rank: u32) -> String {
    format!("part-{rank:05}.json")
}

/// Lists the complete checkpoints of a directory with their steps, in ascending order. None where there is no
/// directory.
pub(super) fn list_complete(directory: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let mut found = Vec::new();
    for (name, path) in list_entries(directory)? {
        let step = name.strip_prefix("step-").and_then(|step| step.parse().ok());
        if let Some(step) = step
            && path.join(MANIFEST).is_file()
        {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Lists the directories that are named like checkpoints and have no manifest, in ascending order of their steps.
pub(super) fn list_incomplete(directory: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let is_checkpoint = |step: &u64, path: &Path| path.ends_with(checkpoint_name(*step));
    let step = |name: &str| name.strip_prefix("step-").and_then(|step| step.parse().ok());
    let found = list_entries(directory)?.into_iter();
    let found = found.filter_map(|(name, path)| step(&name).map(|step| (step, path)));
    let mut found: Vec<(u64, PathBuf)> = found
        .filter(|(step, path)| is_checkpoint(step, path) && path.is_dir())
        .filter(|(_, path)| std::fs::symlink_metadata(path.join(MANIFEST)).is_err())
        .collect();
    found.sort();
    Ok(found)
}

/// Gives an incomplete checkpoint a name under which it is in nobody's way: that name.
pub(super) fn set_aside(path: &Path) -> Result<PathBuf, CheckpointError> {
    let name = |number: u32| path.with_extension(format!("incomplete-{number}"));
    let free = (1..).map(name).find(|name| std::fs::symlink_metadata(name).is_err());
    let aside = free.expect("numbers do not end before names are free");
    std::fs::rename(path, &aside).map_err(|error| CheckpointError::cannot_write(path, error))?;
    Ok(aside)
}

/// Removes what killed runs have left.
pub(super) fn remove_leftovers(directory: &Path) -> Result<(), CheckpointError> {
    for (name, path) in list_entries(directory)? {
        let partial = name.starts_with(".step-") && name.ends_with(".partial");
        if partial || name.starts_with(PROBE) {
            remove_directory(&path)?;
        }
    }
    Ok(())
}

fn list_entries(directory: &Path) -> Result<Vec<(String, PathBuf)>, CheckpointError> {
    let read = |error: std::io::Error| CheckpointError::cannot_read(directory, error);
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(read)?,
    };
    let named = |entry: std::fs::DirEntry| (entry.file_name().into_string(), entry.path());
    let mut found = Vec::new();
    for entry in entries {
        // A name that is no UTF-8 is none of ours.
        if let (Ok(name), path) = named(entry.map_err(read)?) {
            found.push((name, path));
        }
    }
    Ok(found)
}

/// Removes a directory with all that is in it. One that is gone is no error.
pub(super) fn remove_directory(path: &Path) -> Result<(), CheckpointError> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(CheckpointError::cannot_write(path, error))
        }
        _ => Ok(()),
    }
}

/// Removes a complete checkpoint: hidden first, so that nobody takes what is half removed for complete.
pub(super) fn retire_checkpoint(path: &Path, step: u64) -> Result<(), CheckpointError> {
    let hidden = path.with_file_name(partial_name(step));
    std::fs::rename(path, &hidden).map_err(|error| CheckpointError::cannot_write(path, error))?;
    remove_directory(&hidden)
}

/// Makes the names in a directory durable.
pub(super) fn sync_directory(directory: &Path) -> Result<(), CheckpointError> {
    let synced = File::open(directory).and_then(|folder| folder.sync_all());
    synced.map_err(|error| CheckpointError::cannot_write(directory, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_manifest_is_set_aside_under_a_name_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for _ in 0..2 {
            std::fs::create_dir(at("step-00000006")).expect("a folder");
            std::fs::write(at("step-00000006").join("rank-00000.safetensors"), "x").expect("room");
            let found = list_incomplete(folder.path()).expect("readable");
            assert_eq!(found, [(6, at("step-00000006"))]);
            set_aside(&found[0].1).expect("writable");
        }
        assert!(list_incomplete(folder.path()).expect("readable").is_empty());
        for name in ["step-00000006.incomplete-1", "step-00000006.incomplete-2"] {
            assert!(at(name).join("rank-00000.safetensors").is_file());
        }
        assert!(list_complete(folder.path()).expect("readable").is_empty());
    }

    #[test]
    fn only_directories_with_a_manifest_are_complete() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, whole) in [
            ("step-00000010", true),
            ("step-100000000", true),
            ("step-00000030", false),
            (".step-00000040.partial", true),
            ("step-x", true),
        ] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
            if whole {
                std::fs::write(folder.path().join(name).join(MANIFEST), "{}").expect("a file");
            }
        }
        let steps = |found: Vec<(u64, PathBuf)>| found.into_iter().map(|f| f.0).collect::<Vec<_>>();
        assert_eq!(steps(list_complete(folder.path()).expect("readable")), [10, 100_000_000]);
        remove_leftovers(folder.path()).expect("writable");
        assert!(!folder.path().join(".step-00000040.partial").exists());
        assert!(list_complete(&folder.path().join("none")).expect("nothing there").is_empty());
    }
}
