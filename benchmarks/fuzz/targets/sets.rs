//! Images and tokenizers: data sets behind features.

use std::path::Path;

#[cfg(feature = "bpe")]
use graphc::data::BpeText;
#[cfg(feature = "images")]
use graphc::data::ImageFolder;
use graphc::prelude::Split;

#[cfg(feature = "images")]
use super::at;
use super::files::read_samples;
use super::{Outcome, words};

/// Small images.
#[cfg(feature = "images")]
pub fn images_corpus() -> Vec<Vec<u8>> {
    super::read_folder(&at("benchmarks/fuzz/images"))
}

/// Reads a folder of one image.
#[cfg(feature = "images")]
pub fn feed_image(input: &[u8], folder: &Path) -> Outcome {
    let class = folder.join("train/class");
    std::fs::create_dir_all(&class).expect("the folder is writable");
    std::fs::write(class.join("image.png"), input).expect("the folder is writable");
    let read = |channels| {
        let set = ImageFolder::open(folder, Split::Train, [channels, 5, 7]).map_err(words)?;
        read_samples(&set)
    };
    read(3).and(read(1))
}

/// Tokenizers of the kinds that the library has.
#[cfg(feature = "bpe")]
pub fn tokenizer_corpus() -> Vec<Vec<u8>> {
    TOKENIZERS.map(|text| text.as_bytes().to_vec()).to_vec()
}

#[cfg(feature = "bpe")]
const TOKENIZERS: [&str; 3] = [
    r#"{
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"a": 0, "b": 1, " ": 2, "ab": 3, "abab": 4},
            "merges": [["a", "b"], ["ab", "ab"]]
        }
    }"#,
    r#"{
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 64, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": [{"id": 0, "content": "[PAD]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Lowercase"}, {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "a"}]},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\s+|(?=b)"}, "behavior": "Isolated", "invert": false},
        "post_processor": null, "decoder": null,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "\u0023\u0023",
            "max_input_chars_per_word": 100, "vocab": {"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3, "\u0023\u0023b": 4, " ": 5}}
    }"#,
    r#"{
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -2.0], ["ab", -1.5]], "byte_fallback": false}
    }"#,
];

/// Takes a text apart by a tokenizer.
#[cfg(feature = "bpe")]
pub fn feed_tokenizer(input: &[u8], folder: &Path) -> Outcome {
    std::fs::write(folder.join("tokenizer.json"), input).expect("the folder is writable");
    let text = "abab aba b\nab ba aaaa bbbb caf\u{e9} \u{1f600} ab";
    std::fs::write(folder.join("train.txt"), text).expect("the folder is writable");
    let set = BpeText::open(folder, Split::Train, 2).map_err(words)?;
    read_samples(&set)
}
