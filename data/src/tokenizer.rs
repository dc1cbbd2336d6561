//! Tokenizers as Hugging Face's `tokenizers` saves them, and texts taken apart by them.
//!
//! A file may say anything, and the library takes it at its word: it panics at some of it, and takes all memory for
//! other. So its JSON is looked through first, and what is of no use here, or would make windows of text something else,
//! is left out. The library runs in a thread of its own, whose panic is an error of the file. Start reading with
//! [`Saved`].

use std::sync::Once;

use graphc_runtime::{memory_and_swap, threads};
use serde_json::Value;
use tokenizers::Tokenizer;

/// Bytes of the longest file of a tokenizer: the largest that are known have an eighth.
pub(crate) const LONGEST: u64 = 256 << 20;

/// Bytes of the longest token: the library keeps a token as a chain as deep.
const LONGEST_TOKEN: usize = 4096;

/// The most times as long as a text that what comes of it may be, before it is taken apart.
const MOST_GROWTH: f64 = 64.0;

/// The growth that replacements of usual tokenizers may cause, by single characters, of which few are replaced.
const USUAL_GROWTH: f64 = 4.0;

/// Bytes of memory that the library takes for a byte of text: its alignment with the text it came from, 18, twice where
/// it is split, and what it notes of a token for every few; some 220 where each byte is a token.
const TEXT_BYTES: f64 = 80.0;

/// Bytes of the stack of the thread: what lies in each other in a file is no deeper.
const STACK: usize = 64 << 20;

/// The name of the thread.
const THREAD: &str = "tokenizer";

/// A saved tokenizer whose JSON was looked through.
#[derive(Debug)]
pub(crate) struct Saved {
    json: Value,
    /// The treatment of texts that it asks for, and that is not done here.
    left_out: Vec<&'static str>,
    growth: f64,
}

/// Texts taken apart.
#[derive(Debug)]
pub(crate) struct TokenizedTexts {
    pub(crate) tokens: Vec<u32>,
    /// The number of different tokens.
    pub(crate) vocabulary: usize,
}

impl Saved {
    /// Reads the content of a file.
    ///
    /// # Errors
    /// Where it is no JSON, or says what takes more memory than makes sense: what is wrong.
    pub(crate) fn from_json(content: &[u8]) -> Result<Self, String> {
        let mut json: Value = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        if !json["model"].is_object() {
            return Err("it has no `model`".into());
        }
        let longest = list_tokens(&json).map(str::len).max().unwrap_or(0);
        if longest > LONGEST_TOKEN {
            return Err(format!("a token has {longest} bytes, of at most {LONGEST_TOKEN}"));
        }
        let growth =
            replacement_growth(&json["normalizer"]) * replacement_growth(&json["pre_tokenizer"]);
        if growth > MOST_GROWTH {
            return Err(format!("its replacements make a text {growth:.0} times as long"));
        }
        let left_out = leave_out(&mut json);
        Ok(Self { json, left_out, growth })
    }

    /// The treatment of texts that it asks for, and that is not done here; `None` where that is nothing.
    pub(crate) fn left_out(&self) -> Option<String> {
        (!self.left_out.is_empty()).then(|| self.left_out.join(" and "))
    }

    /// Takes texts apart, one after the other: one is in memory at a time. `damaged` makes an error of what is wrong.
    ///
    /// # Errors
    /// Where it is no tokenizer, cannot take a text apart, or there is no memory for that; and the first of the texts.
    pub(crate) fn take_apart<E: Send>(
        &self,
        texts: impl Iterator<Item = Result<String, E>> + Send,
        damaged: impl Fn(String) -> E + Sync,
    ) -> Result<TokenizedTexts, E> {
        let apart = run_in_thread(|| {
            let tokenizer = self.build_tokenizer().map_err(&damaged)?;
            let mut tokens = Vec::new();
            for text in texts {
                let text = text?;
                self.check_memory(text.len()).map_err(&damaged)?;
                let encoded = tokenizer.encode_fast(text.as_str(), false);
                let encoded = encoded.map_err(|error| damaged(error.to_string()))?;
                tokens.extend_from_slice(encoded.get_ids());
            }
            Ok(TokenizedTexts { tokens, vocabulary: tokenizer.get_vocab_size(true) })
        });
        apart.unwrap_or_else(|reason| Err(damaged(reason)))
    }

    fn build_tokenizer(&self) -> Result<Tokenizer, String> {
        let json = serde_json::to_vec(&self.json).map_err(|error| error.to_string())?;
        Tokenizer::from_bytes(json).map_err(|error| error.to_string())
    }

    /// Refuses a text of so many bytes that there is no memory to take it apart.
    fn check_memory(&self, bytes: usize) -> Result<(), String> {
        let Some(memory) = memory_and_swap() else { return Ok(()) };
        let needed = bytes as f64 * TEXT_BYTES * (self.growth / USUAL_GROWTH).max(1.0);
        if needed <= memory as f64 {
            return Ok(());
        }
        Err(format!(
            "to take a text of {bytes} bytes apart takes about {needed:.0} bytes of memory, of {memory}: cut it in files"
        ))
    }
}

/// The tokens of a vocabulary, in either form, and those that were added to it.
fn list_tokens(json: &Value) -> impl Iterator<Item = &str> {
    let vocabulary = &json["model"]["vocab"];
    let named = vocabulary.as_object().into_iter().flatten().map(|(token, _)| token.as_str());
    let listed = vocabulary.as_array().into_iter().flatten().filter_map(|pair| pair[0].as_str());
    let added = json["added_tokens"].as_array().into_iter().flatten();
    named.chain(listed).chain(added.filter_map(|token| token["content"].as_str()))
}

/// The most times as long as a text that all replacements make of it.
fn replacement_growth(json: &Value) -> f64 {
    let inner: f64 = match json {
        Value::Object(fields) => fields.values().map(replacement_growth).product(),
        Value::Array(items) => items.iter().map(replacement_growth).product(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1.0,
    };
    let Some(content) = json["content"].as_str() else { return inner };
    // An expression may fit where nothing is.
    let own = match json["pattern"]["String"].as_str() {
        Some(pattern) if !pattern.is_empty() => content.len() as f64 / pattern.len() as f64,
        _ => 1.0 + content.len() as f64,
    };
    inner * own.max(1.0)
}

/// Leaves out what belongs to single short texts, and what makes other tokens of the same text: what of it was asked for.
fn leave_out(json: &mut Value) -> Vec<&'static str> {
    let mut left_out = Vec::new();
    if !json["truncation"].is_null() {
        left_out.push("truncation");
    }
    if json["model"]["dropout"].as_f64().is_some_and(|dropout| dropout != 0.0) {
        left_out.push("dropout");
    }
    // What stands before or behind a text, and how texts are made of tokens, is not asked for.
    for part in ["truncation", "padding", "post_processor", "decoder"] {
        json[part] = Value::Null;
    }
    if json["model"]["type"] == "BPE" || !json["model"]["dropout"].is_null() {
        json["model"]["dropout"] = Value::Null;
    }
    left_out
}

/// Does work in a thread of its own, which says nothing where it panics.
///
/// # Errors
/// Where it panics, or there is no thread: why.
fn run_in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    silence_panics();
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name(THREAD.into()).stack_size(STACK);
        let thread = builder.spawn_scoped(scope, work);
        let thread = thread.map_err(|error| threads::explain_thread_error(error).to_string())?;
        thread.join().map_err(|panic| {
            let text = threads::panic_text(panic.as_ref()).trim();
            format!("the tokenizers library gave up ({text})")
        })
    })
}

/// Has no panic of that thread printed, as it becomes an error.
fn silence_panics() {
    static SILENCED: Once = Once::new();
    SILENCED.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().name() != Some(THREAD) {
                hook(panic);
            }
        }));
    });
}
