//! Metrics as JSON lines.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::files::{append_whole, write_error};
use super::{HostFileError, read_file};

/// Writes one JSON object a line. Every line reaches the file at once, so that it can be followed, and whole or not at
/// all.
#[derive(Debug)]
pub struct MetricsWriter {
    path: PathBuf,
    file: File,
    /// The last step that the file had when it was opened.
    last_step: Option<u64>,
}

impl MetricsWriter {
    /// Creates a file; an old one of that name is overwritten.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn create(path: &Path) -> Result<Self, HostFileError> {
        let file = File::create(path).map_err(|e| write_error(path, &e))?;
        Ok(Self { path: path.to_owned(), file, last_step: None })
    }

    /// Opens the end of a file that may exist: for a resumed training.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn append(path: &Path) -> Result<Self, HostFileError> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.map_err(|e| write_error(path, &e))?;
        Ok(Self { path: path.to_owned(), file, last_step: None })
    }

    /// Opens the file of a training that goes on at `step`: lines of earlier steps stay, those of later ones, which a
    /// killed run may have written after its last checkpoint, go; so does a line that was cut off.
    ///
    /// # Errors
    /// Where it cannot be read or written.
    pub fn resume(path: &Path, step: u64) -> Result<Self, HostFileError> {
        let mut last_step = None;
        if std::fs::metadata(path).is_ok_and(|found| found.is_file()) {
            let text = read_file(path, u64::MAX).map_err(|e| HostFileError::Read {
                path: path.display().to_string(),
                reason: e.to_string(),
            })?;
            let mut earlier = |line: &&[u8]| {
                let line: Option<serde_json::Value> = serde_json::from_slice(line).ok();
                let found = line.and_then(|line| line["step"].as_u64());
                let earlier = found.filter(|&found| found < step);
                last_step = earlier.or(last_step);
                earlier.is_some()
            };
            let kept: Vec<&[u8]> =
                text.split_inclusive(|&byte| byte == b'\n').filter(|line| earlier(line)).collect();
            super::write_file(path, &kept.concat())?;
        }
        Ok(Self { last_step, ..Self::append(path)? })
    }

    /// Returns the last step of which a resumed file has a line.
    pub fn last_step(&self) -> Option<u64> {
        self.last_step
    }

    /// Writes one line, e.g. `{"step":0,"loss":2.302}`.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write(&mut self, line: &impl Serialize) -> Result<(), HostFileError> {
        let mut text = serde_json::to_string(line).map_err(|e| write_error(&self.path, &e))?;
        text.push('\n');
        append_whole(&mut self.file, &self.path, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_can_be_read_while_the_file_is_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("losses.jsonl");
        let mut metrics = MetricsWriter::create(&path).expect("it is writable");
        metrics.write(&serde_json::json!({"step": 0, "loss": 2.5})).expect("it is writable");
        let mut more = MetricsWriter::append(&path).expect("it is writable");
        more.write(&serde_json::json!({"step": 1})).expect("it is writable");
        let text = std::fs::read_to_string(&path).expect("it exists");
        assert_eq!(text, "{\"step\":0,\"loss\":2.5}\n{\"step\":1}\n");
    }

    #[test]
    fn a_resumed_training_continues_its_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("losses.jsonl");
        std::fs::write(&path, "{\"step\":0}\n{\"step\":1}\n{\"step\":2}\n{\"st").expect("writable");
        let mut metrics = MetricsWriter::resume(&path, 1).expect("it is writable");
        assert_eq!(metrics.last_step(), Some(0));
        metrics.write(&serde_json::json!({"step": 1, "loss": 2.5})).expect("it is writable");
        let text = std::fs::read_to_string(&path).expect("it exists");
        assert_eq!(text, "{\"step\":0}\n{\"step\":1,\"loss\":2.5}\n");
        let absent = folder.path().join("new.jsonl");
        let none = MetricsWriter::resume(&absent, 5).expect("it is writable");
        assert_eq!(none.last_step(), None);
        assert_eq!(std::fs::read(&absent).expect("it exists"), b"");
    }
}
