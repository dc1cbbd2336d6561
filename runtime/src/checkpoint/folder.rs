//! Names in a directory of checkpoints, and what makes them durable.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::CheckpointError;

/// The file that makes a directory a checkpoint.
pub(super) const MANIFEST: &str = "manifest.json";

/// How the name begins under which a process finds out whether it may write.
pub(super) const PROBE: &str = ".writable-";

/// The name of the checkpoint after this many steps.
pub(super) fn checkpoint_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// The name under which it is written.
pub(super) fn partial_name(step: u64) -> String {
    format!(".step-{step:08}.partial")
}

/// The name of a rank's file.
pub(super) fn shards_name(rank: u32) -> String {
    format!("rank-{rank:05}.safetensors")
}

/// The name of what a rank tells the one that gathers.
pub(super) fn part_name(rank: u32) -> String {
    format!("part-{rank:05}.json")
}

/// The complete checkpoints of a directory with their steps, in ascending order. None where there is no directory.
pub(super) fn complete(directory: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let mut found = Vec::new();
    for (name, path) in entries(directory)? {
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

/// Removes what killed runs have left.
pub(super) fn clean(directory: &Path) -> Result<(), CheckpointError> {
    for (name, path) in entries(directory)? {
        let partial = name.starts_with(".step-") && name.ends_with(".partial");
        if partial || name.starts_with(PROBE) {
            remove(&path)?;
        }
    }
    Ok(())
}

fn entries(directory: &Path) -> Result<Vec<(String, PathBuf)>, CheckpointError> {
    let read = |error: std::io::Error| CheckpointError::read(directory, error);
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
pub(super) fn remove(path: &Path) -> Result<(), CheckpointError> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(CheckpointError::write(path, error))
        }
        _ => Ok(()),
    }
}

/// Removes a complete checkpoint: hidden first, so that nobody takes what is half removed for complete.
pub(super) fn retire(path: &Path, step: u64) -> Result<(), CheckpointError> {
    let hidden = path.with_file_name(partial_name(step));
    std::fs::rename(path, &hidden).map_err(|error| CheckpointError::write(path, error))?;
    remove(&hidden)
}

/// Makes the names in a directory durable.
pub(super) fn sync(directory: &Path) -> Result<(), CheckpointError> {
    let synced = File::open(directory).and_then(|folder| folder.sync_all());
    synced.map_err(|error| CheckpointError::write(directory, error))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(steps(complete(folder.path()).expect("readable")), [10, 100_000_000]);
        clean(folder.path()).expect("writable");
        assert!(!folder.path().join(".step-00000040.partial").exists());
        assert!(complete(&folder.path().join("none")).expect("nothing there").is_empty());
    }
}
