//! Text by bytes, with a vocabulary of 256.

use std::path::{Path, PathBuf};

use graphc_ir::types::{DType, TensorType};

use crate::content::FileContent;
use crate::dataset::{Dataset, Field, FieldKind, Split};
use crate::error::DatasetError;

pub(crate) const LAYOUT: &str = "text is one file, or a folder of .txt files: train.txt and test.txt (or valid.txt) are the parts of \
                      that name; of other files, in the order of their names, the last tenth is held out";

/// Text by bytes. A sample is a window of `length` bytes. Its field `tokens`, `i64[length]`, has these bytes, and its field `labels` has the byte
/// that follows each of them. Windows follow one another.
#[derive(Debug)]
pub struct ByteText {
    name: String,
    fields: [Field; 2],
    parts: Vec<FileSpan>,
    samples: usize,
}

/// A range of a file's bytes, which follows those of the spans before it.
#[derive(Debug)]
struct FileSpan {
    content: FileContent,
    from: u64,
    bytes: u64,
}

/// Lists the files of a split, and tells whether they hold both splits.
pub(crate) fn list_split_files(
    path: &Path,
    split: Split,
) -> Result<(Vec<PathBuf>, bool), DatasetError> {
    if !path.is_dir() {
        return Ok((vec![path.to_owned()], true));
    }
    let named: &[&str] = match split {
        Split::Train => &["train.txt"],
        Split::Test => &["test.txt", "valid.txt"],
    };
    if let Some(file) = named.iter().map(|name| path.join(name)).find(|file| file.exists()) {
        return Ok((vec![file], false));
    }
    let name = path.display().to_string();
    let fail = |error: std::io::Error| DatasetError::unreadable_file(&name, error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(fail)? {
        let file = entry.map_err(fail)?.path();
        if file.extension().is_some_and(|extension| extension == "txt") && file.is_file() {
            files.push(file);
        }
    }
    files.sort_unstable();
    let alone = files.iter().any(|file| file.ends_with("train.txt") || file.ends_with("test.txt"));
    if files.is_empty() || alone {
        let wanted = path.join(if alone { named[0] } else { "*.txt" });
        return Err(DatasetError::Missing { path: wanted.display().to_string(), layout: LAYOUT });
    }
    Ok((files, true))
}

/// Returns the range of a split: the first nine tenths of the text for training, and the rest for testing.
pub(crate) fn range_of_split(all: u64, split: Split) -> std::ops::Range<u64> {
    let trained = all - all / 10;
    match split {
        Split::Train => 0..trained,
        Split::Test => trained..all,
    }
}

/// Returns the fields of a data set of text in windows.
pub(crate) fn window_fields(length: usize) -> [Field; 2] {
    let ty = || TensorType::new(DType::I64, [length]);
    [Field::new("tokens", ty(), FieldKind::Plain), Field::new("labels", ty(), FieldKind::Labels)]
}

/// Counts the windows. A window also needs the token that follows it.
pub(crate) fn count_windows(tokens: u64, length: usize, name: &str) -> Result<usize, DatasetError> {
    let windows = if length == 0 { 0 } else { tokens.saturating_sub(1) / length as u64 };
    if windows == 0 {
        let text = format!(
            "{name} has {tokens} tokens, too few for one window of {length} and the token behind it"
        );
        return Err(DatasetError::Loader(text));
    }
    Ok(windows as usize)
}

impl ByteText {
    /// Opens a file, or the `.txt` files of a folder, in windows of `length` bytes. `train.txt` and `test.txt` (or `valid.txt`) are the splits;
    /// otherwise the last tenth of the text is held out.
    ///
    /// # Errors
    /// Returns an error if there is no such file, or less than a window of text.
    pub fn open(path: &Path, split: Split, length: usize) -> Result<Self, DatasetError> {
        let name = format!("text:{} ({split})", path.display());
        let (files, both) = list_split_files(path, split)?;
        let contents = files.iter().map(|file| FileContent::open(file, LAYOUT));
        let contents = contents.collect::<Result<Vec<_>, _>>()?;
        let all = contents.iter().map(FileContent::bytes).sum();
        let range = if both { range_of_split(all, split) } else { 0..all };
        let bytes = range.end - range.start;
        let samples = count_windows(bytes, length, &name)?;
        Ok(Self { fields: window_fields(length), parts: cut_spans(contents, range), samples, name })
    }

    /// Reads bytes from position `at` on, across files.
    fn read_bytes(&self, mut at: u64, mut into: &mut [u8]) -> Result<(), DatasetError> {
        for part in &self.parts {
            if into.is_empty() {
                break;
            }
            if at >= part.bytes {
                at -= part.bytes;
                continue;
            }
            let count = (part.bytes - at).min(into.len() as u64) as usize;
            let (now, later) = into.split_at_mut(count);
            part.content.read_at(part.from + at, now)?;
            (at, into) = (0, later);
        }
        Ok(())
    }
}

/// Cuts a range out of the bytes of all files, and returns its part of each file.
fn cut_spans(contents: Vec<FileContent>, range: std::ops::Range<u64>) -> Vec<FileSpan> {
    let (mut parts, mut before) = (Vec::new(), 0);
    for content in contents {
        let (first, last) = (before, before + content.bytes());
        let (from, to) = (range.start.max(first), range.end.min(last));
        if from < to {
            parts.push(FileSpan { content, from: from - first, bytes: to - from });
        }
        before = last;
    }
    parts
}

impl Dataset for ByteText {
    fn name(&self) -> &str {
        &self.name
    }

    fn samples(&self) -> usize {
        self.samples
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn read(&self, sample: usize, field: usize, into: &mut [u8]) -> Result<(), DatasetError> {
        let length = into.len() / size_of::<i64>();
        let mut bytes = vec![0; length];
        self.read_bytes((sample * length + field) as u64, &mut bytes)?;
        for (token, byte) in into.as_chunks_mut::<8>().0.iter_mut().zip(bytes) {
            *token = i64::from(byte).to_ne_bytes();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("writable");
        }
        folder
    }

    fn text(set: &ByteText, sample: usize, field: usize) -> String {
        let mut tokens = vec![0; set.fields()[field].ty.bytes()];
        set.read(sample, field, &mut tokens).expect("it is there");
        let tokens = tokens.as_chunks::<8>().0.iter().map(|token| i64::from_ne_bytes(*token));
        tokens.map(|token| char::from(token as u8)).collect()
    }

    #[test]
    fn windows_follow_each_other_across_files() {
        // 20 bytes: 18 are trained on.
        let folder = folder(&[("b.txt", "hijklmnopqrst"), ("a.txt", "abcdefg"), ("c.md", "no")]);
        let train = ByteText::open(folder.path(), Split::Train, 5).expect("text");
        assert_eq!(train.samples(), 3);
        assert_eq!((text(&train, 0, 0), text(&train, 0, 1)), ("abcde".into(), "bcdef".into()));
        assert_eq!((text(&train, 1, 0), text(&train, 2, 1)), ("fghij".into(), "lmnop".into()));
        let test = ByteText::open(folder.path(), Split::Test, 1).expect("text");
        assert_eq!(
            (test.samples(), text(&test, 0, 0), text(&test, 0, 1)),
            (1, "s".into(), "t".into())
        );
    }

    #[test]
    fn files_of_a_split_are_that_split() {
        let both = folder(&[("train.txt", "abcd"), ("valid.txt", "xyz")]);
        let open = |split| ByteText::open(both.path(), split, 2);
        assert_eq!(text(&open(Split::Train).expect("text"), 0, 0), "ab");
        assert_eq!(text(&open(Split::Test).expect("text"), 0, 1), "yz");
        let one = ByteText::open(&both.path().join("train.txt"), Split::Train, 1).expect("a file");
        assert_eq!(one.samples(), 3);
    }

    #[test]
    fn missing_and_short_text_is_an_error() {
        let alone = folder(&[("train.txt", "abcd")]);
        let fails = |path: &Path, split, length| {
            ByteText::open(path, split, length).expect_err("no text").to_string()
        };
        assert!(fails(alone.path(), Split::Test, 2).contains("test.txt is not there: text is"));
        assert!(fails(alone.path(), Split::Train, 4).contains("4 tokens, too few"));
        assert!(fails(alone.path(), Split::Train, 0).contains("too few"));
        let empty = folder(&[]);
        assert!(fails(empty.path(), Split::Train, 1).contains("*.txt is not there"));
        assert!(fails(&empty.path().join("none.txt"), Split::Train, 1).contains("none.txt is not"));
    }
}
