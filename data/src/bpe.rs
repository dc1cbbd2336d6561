//! Text by the tokens of a tokenizer that Hugging Face's `tokenizers` library saved.

use std::path::Path;

use graphc_host::data::read_file;

use crate::dataset::{Dataset, Field, Split};
use crate::error::DatasetError;
use crate::text::{self, count_windows, range_of_split, window_fields};
use crate::tokenizer::{self, Saved, TokenizedTexts};

const LAYOUT: &str = "text by tokens is a folder with tokenizer.json, as the tokenizers library saves it, and .txt files: train.txt and \
                      test.txt (or valid.txt) are the parts of that name; of other files the last tenth is held out";
/// The most bytes that a text may have, because it is held in memory.
const MOST_BYTES: u64 = 16 << 30;

/// Text by tokens. A sample is a window of `length` tokens. Its field `tokens`, `i64[length]`, has these tokens, and its field `labels` has the token
/// that follows each of them. Windows follow one another.
#[derive(Debug)]
pub struct BpeText {
    name: String,
    fields: [Field; 2],
    tokens: Vec<u32>,
    samples: usize,
    vocabulary: usize,
    note: Option<String>,
}

impl BpeText {
    /// Opens the `.txt` files of a folder that has a `tokenizer.json`, in windows of `length` tokens. Each file is split into tokens at once and as a
    /// whole. The tokens are the same in every run, whatever the tokenizer's file says of truncation and dropout.
    ///
    /// # Errors
    /// Returns an error if a file is missing, if it is no tokenizer or no UTF-8, or if there is less than a window of text.
    pub fn open(folder: &Path, split: Split, length: usize) -> Result<Self, DatasetError> {
        let name = format!("bpe:{} ({split})", folder.display());
        let path = folder.join("tokenizer.json");
        let saved = Saved::from_json(&read_content(&path, tokenizer::LONGEST)?);
        let saved = saved.map_err(|reason| damaged_error(&path, reason))?;
        let (files, both) = text::list_split_files(folder, split)?;
        let texts = files.iter().map(|file| {
            let text = String::from_utf8(read_content(file, MOST_BYTES)?);
            text.map_err(|error| damaged_error(file, error.to_string()))
        });
        let apart = saved.take_apart(texts, |reason| damaged_error(&path, reason))?;
        let TokenizedTexts { mut tokens, vocabulary } = apart;
        if both {
            let range = range_of_split(tokens.len() as u64, split);
            tokens = tokens[range.start as usize..range.end as usize].to_vec();
        }
        let samples = count_windows(tokens.len() as u64, length, &name)?;
        let note = saved.left_out().map(|parts| {
            let path = path.display();
            format!("{path} asks for {parts}: left out, as a text is taken apart as a whole, and alike in every run")
        });
        Ok(Self { name, fields: window_fields(length), tokens, samples, vocabulary, note })
    }

    /// Returns the number of different tokens of the tokenizer.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary
    }
}

fn read_content(path: &Path, most: u64) -> Result<Vec<u8>, DatasetError> {
    let name = path.display().to_string();
    read_file(path, most).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => DatasetError::Missing { path: name, layout: LAYOUT },
        _ => DatasetError::Read { path: name, reason: error.to_string() },
    })
}

fn damaged_error(path: &Path, reason: String) -> DatasetError {
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

    fn note(&self) -> Option<&str> {
        self.note.as_deref()
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

    /// A tokenizer of byte pairs with the tokens `a`, `b` and space, in which `a b` and `ab ab` merge.
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
        assert_eq!((set.samples(), set.vocabulary_size()), (2, 5));
        assert_eq!((tokens(&set, 0, 0), tokens(&set, 0, 1)), (vec![4, 2], vec![2, 3]));
        assert_eq!((tokens(&set, 1, 0), tokens(&set, 1, 1)), (vec![3, 0], vec![0, 2]));
    }

    #[test]
    fn texts_come_one_after_the_other_and_the_first_that_is_none_is_the_error() {
        let saved = Saved::from_json(TOKENIZER.as_bytes()).expect("a tokenizer");
        let mut given = 0;
        let texts = ["abab", "a", "", "b"].into_iter().map(|text| {
            given += 1;
            if text.is_empty() { Err("no text".to_owned()) } else { Ok(text.to_owned()) }
        });
        let error = saved.take_apart(texts, |reason| reason).expect_err("the third is none");
        assert_eq!((error.as_str(), given), ("no text", 3));
        let texts = ["abab", "a b"].into_iter().map(|text| Ok::<_, String>(text.to_owned()));
        let apart = saved.take_apart(texts, |reason| reason).expect("texts");
        assert_eq!(apart.tokens, [4, 0, 2, 1]);
    }

    #[test]
    fn a_text_is_taken_apart_as_a_whole_and_alike_in_every_run() {
        let text = "abab aba b".repeat(50);
        let plain = folder(TOKENIZER, text.as_bytes());
        let open = |folder: &tempfile::TempDir| {
            BpeText::open(folder.path(), Split::Train, 2).expect("a text")
        };
        let expected = open(&plain);
        assert_eq!(expected.note(), None);
        let truncated = TOKENIZER.replace(
            "\"truncation\": null, \"padding\": null",
            "\"truncation\": {\"direction\": \"Right\", \"max_length\": 4, \"strategy\": \"LongestFirst\", \"stride\": 0}, \
             \"padding\": {\"strategy\": {\"Fixed\": 4611686018427387904}, \"direction\": \"Right\", \"pad_to_multiple_of\": null, \
             \"pad_id\": 0, \"pad_type_id\": 0, \"pad_token\": \"a\"}",
        );
        let dropped = truncated.replace("\"dropout\": null", "\"dropout\": 0.5");
        for (tokenizer, said) in [(truncated, "truncation:"), (dropped, "truncation and dropout:")]
        {
            let folder = folder(&tokenizer, text.as_bytes());
            let [set, again] = [open(&folder), open(&folder)];
            assert!(set.note().expect("a word").contains(said), "{:?}", set.note());
            assert_eq!((&set.tokens, &again.tokens), (&expected.tokens, &expected.tokens));
        }
    }

    #[test]
    fn what_the_library_would_give_up_at_is_an_error() {
        let fails = |from: &str, to: &str| {
            let tokenizer = TOKENIZER.replace(from, to);
            assert_ne!(tokenizer, TOKENIZER, "{from}");
            let folder = folder(&tokenizer, b"abab aba b");
            let opened = BpeText::open(folder.path(), Split::Train, 2);
            let error = opened.err().map_or_else(String::new, |error| error.to_string());
            assert!(error.contains("tokenizer.json is damaged"), "{to}: {error}");
            error
        };
        fails("\"unk_token\": null", "\"unk_token\": 7");
        let long = format!("\"{}\": 5, \"a\": 0", "x".repeat(1 << 20));
        assert!(fails("\"a\": 0", &long).contains("a token has 1048576 bytes, of at most 4096"));
        let replaced =
            "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"aa\"}";
        let often = [replaced; 40].join(", ");
        let often =
            format!("\"normalizer\": {{\"type\": \"Sequence\", \"normalizers\": [{often}]}}");
        assert!(fails("\"normalizer\": null", &often).contains("1099511627776 times as long"));
        let deep = format!("{}null{}", "[".repeat(500), "]".repeat(500));
        fails("\"normalizer\": null", &format!("\"normalizer\": {deep}"));
    }

    #[test]
    fn a_panic_of_the_library_is_an_error_of_the_file() {
        // Pieces of no length: of those the library makes chunks.
        let unigram = r#"{
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "FixedLength", "length": 0}, "post_processor": null, "decoder": null,
            "model": {"type": "Unigram", "unk_id": null, "vocab": [["a", 0.0]], "byte_fallback": false}
        }"#;
        let folder = folder(unigram, b"abab aba b");
        let opened = BpeText::open(folder.path(), Split::Train, 2);
        let error = opened.expect_err("no tokenizer").to_string();
        assert!(error.contains("tokenizer.json is damaged"), "{error}");
        assert!(error.contains("the tokenizers library gave up (chunk size"), "{error}");
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
