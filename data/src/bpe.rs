//! Text by the tokens of a tokenizer as Hugging Face's `tokenizers` saves it.

use std::path::Path;

use graphc_runtime::data::read_file;
use tokenizers::Tokenizer;

use crate::dataset::{Dataset, Field, Split};
use crate::error::DatasetError;
use crate::text::{self, fields, tenths, windows};

const LAYOUT: &str = "text by tokens is a folder with tokenizer.json, as the tokenizers library saves it, and .txt files: train.txt and \
                      test.txt (or valid.txt) are the parts of that name; of other files the last tenth is held out";
/// As long as a tokenizer or a text may be: tokens are held in memory.
const MOST_BYTES: u64 = 16 << 30;

/// Text by tokens. A sample is a window of `length` tokens, one behind the other, as `tokens`, `i64[length]`, and the tokens
/// that follow each of them, as `labels`.
#[derive(Debug)]
pub struct BpeText {
    name: String,
    fields: [Field; 2],
    tokens: Vec<u32>,
    samples: usize,
    vocabulary: usize,
}

impl BpeText {
    /// The `.txt` files of a folder with a `tokenizer.json`, in windows of `length` tokens. They are taken apart here and now.
    ///
    /// # Errors
    /// Where a file is missing, is no tokenizer or no UTF-8, or there is less than a window of text.
    pub fn open(folder: &Path, split: Split, length: usize) -> Result<Self, DatasetError> {
        let name = format!("bpe:{} ({split})", folder.display());
        let path = folder.join("tokenizer.json");
        let tokenizer = Tokenizer::from_bytes(content(&path)?);
        let tokenizer = tokenizer.map_err(|error| damaged(&path, error.to_string()))?;
        let (files, both) = text::files(folder, split)?;
        let mut tokens = Vec::new();
        for file in files {
            let text = String::from_utf8(content(&file)?);
            let text = text.map_err(|error| damaged(&file, error.to_string()))?;
            let encoded = tokenizer.encode_fast(text, false);
            tokens.extend_from_slice(encoded.map_err(|e| damaged(&file, e.to_string()))?.get_ids());
        }
        if both {
            let range = tenths(tokens.len() as u64, split);
            tokens = tokens[range.start as usize..range.end as usize].to_vec();
        }
        let samples = windows(tokens.len() as u64, length, &name)?;
        let vocabulary = tokenizer.get_vocab_size(true);
        Ok(Self { name, fields: fields(length), tokens, samples, vocabulary })
    }

    /// How many different tokens there are.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }
}

fn content(path: &Path) -> Result<Vec<u8>, DatasetError> {
    let name = path.display().to_string();
    read_file(path, MOST_BYTES).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => DatasetError::Missing { path: name, layout: LAYOUT },
        _ => DatasetError::Read { path: name, reason: error.to_string() },
    })
}

fn damaged(path: &Path, reason: String) -> DatasetError {
    DatasetError::Damaged { path: path.display().to_string(), reason, layout: LAYOUT }
}

impl Dataset for BpeText {
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
        let targets = into.as_chunks_mut::<8>().0;
        let first = sample * targets.len() + field;
        for (target, &token) in targets.iter_mut().zip(&self.tokens[first..]) {
            *target = i64::from(token).to_ne_bytes();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Byte pairs: `a`, `b` and a space, of which `a b` and `ab ab` merge.
    const TOKENIZER: &str = r#"{
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"a": 0, "b": 1, " ": 2, "ab": 3, "abab": 4},
            "merges": [["a", "b"], ["ab", "ab"]]
        }
    }"#;

    fn folder(tokenizer: &str, text: &[u8]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer).expect("writable");
        std::fs::write(folder.path().join("train.txt"), text).expect("writable");
        folder
    }

    fn tokens(set: &BpeText, sample: usize, field: usize) -> Vec<i64> {
        let mut bytes = vec![0; set.fields()[field].ty.bytes()];
        set.read(sample, field, &mut bytes).expect("it is there");
        bytes.as_chunks::<8>().0.iter().map(|token| i64::from_ne_bytes(*token)).collect()
    }

    #[test]
    fn pairs_that_merge_are_one_token() {
        let folder = folder(TOKENIZER, b"abab aba b");
        let set = BpeText::open(folder.path(), Split::Train, 2).expect("a text");
        // abab, space, ab, a, space, b.
        assert_eq!((set.samples(), set.vocabulary()), (2, 5));
        assert_eq!((tokens(&set, 0, 0), tokens(&set, 0, 1)), (vec![4, 2], vec![2, 3]));
        assert_eq!((tokens(&set, 1, 0), tokens(&set, 1, 1)), (vec![3, 0], vec![0, 2]));
    }

    #[test]
    fn what_is_missing_or_damaged_is_said() {
        let fails = |tokenizer: &str, text: &[u8]| {
            let folder = folder(tokenizer, text);
            BpeText::open(folder.path(), Split::Train, 2).expect_err("no text").to_string()
        };
        assert!(fails("{}", b"ab").contains("tokenizer.json is damaged"));
        assert!(fails(TOKENIZER, b"\xFF\xFE").contains("train.txt is damaged"));
        assert!(fails(TOKENIZER, b"ab").contains("too few"));
        let nowhere = BpeText::open(Path::new("/nowhere"), Split::Train, 2).expect_err("absent");
        assert!(
            nowhere.to_string().contains("/nowhere/tokenizer.json is not there: text by"),
            "{nowhere}"
        );
    }
}
