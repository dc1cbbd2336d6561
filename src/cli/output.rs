//! Files and standard output: what is written where, and what must not be overwritten.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Prints to standard output. A reader that has seen enough (`| head`) is no error.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

/// A file of the command line, with the option that names it.
pub type Named<'a> = (&'a str, Option<&'a Path>);

/// Refuses outputs that would overwrite an input or each other.
pub fn check_distinct(inputs: &[Named<'_>], outputs: &[Named<'_>]) -> Result<()> {
    let named = |files: &[Named<'_>]| -> Vec<(String, PathBuf)> {
        let found = files.iter().filter_map(|(name, path)| Some((name.to_string(), (*path)?)));
        found.map(|(name, path)| (name, path.to_path_buf())).collect()
    };
    let mut taken = named(inputs);
    for (name, path) in named(outputs) {
        for (other, theirs) in &taken {
            ensure!(
                !same_file(&path, theirs),
                "{name} would overwrite {} ({other}): choose another file",
                theirs.display()
            );
        }
        taken.push((name, path));
    }
    Ok(())
}

/// Whether two paths lead to one file, which need not exist yet. Devices may be written to twice.
fn same_file(one: &Path, other: &Path) -> bool {
    let device = |path: &Path| path.metadata().is_ok_and(|found| !found.is_file());
    !device(one) && resolved(one) == resolved(other)
}

fn resolved(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    std::fs::canonicalize(path).unwrap_or_else(|_| {
        let folder = std::fs::canonicalize(folder.unwrap_or(Path::new(".")));
        folder.map_or_else(
            |_| path.into(),
            |folder| folder.join(path.file_name().unwrap_or_default()),
        )
    })
}
