//! Reads tokenizers in the format of Hugging Face's `tokenizers` library, and splits texts into tokens with them.
//!
//! A file may hold anything, and the library trusts it: it panics at some content, and takes all memory for other. So the JSON is checked first. What
//! is of no use here, or would change how windows of text are made, is removed. The library runs in a thread of its own, and a panic of that thread
//! becomes an error of the file. Start reading with [`Saved`].

use std::sync::Once;

use graphc_host::memory::memory_and_swap;
use graphc_host::threads;
use serde_json::Value;
use tokenizers::Tokenizer;

/// The most bytes that a tokenizer's file may have. The largest known files have an eighth of that.
pub(crate) const LONGEST: u64 = 256 << 20;

/// The most bytes that a token may have. The library keeps a token as a chain whose depth is the token's length.
const LONGEST_TOKEN: usize = 4096;

/// The most that replacements may lengthen a text before it is split, as a multiple of its length.
const MOST_GROWTH: f64 = 64.0;

/// The growth by the replacements of usual tokenizers. These replace single characters, and few of them.
const USUAL_GROWTH: f64 = 4.0;

/// The bytes of memory that the library takes for a byte of text: 18 for its alignment with the original text, twice if the text is split, and its
/// notes on a token for every few bytes. It takes about 220 if each byte is a token.
const TEXT_BYTES: f64 = 80.0;

/// The bytes of the thread's stack. They suffice for the nesting of any file that is accepted.
const STACK: usize = 64 << 20;

/// The name of the thread.
const THREAD: &str = "tokenizer";

/// A saved tokenizer whose JSON was checked.
#[derive(Debug)]
pub(crate) struct Saved {
    json: Value,
    /// The treatment of texts that the file asks for and that is not done here.
    left_out: Vec<&'static str>,
    growth: f64,
}

/// Texts as tokens.
#[derive(Debug)]
pub(crate) struct TokenizedTexts {
    pub(crate) tokens: Vec<u32>,
    /// The number of different tokens of the tokenizer.
    pub(crate) vocabulary: usize,
}

impl Saved {
    /// Reads the content of a file.
    ///
    /// # Errors
    /// Returns the reason if the content is not JSON, has no model, or asks for an unreasonable amount of memory.
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

    /// Returns the treatment of texts that the file asks for and that is not done here, or `None` if there is none.
    pub(crate) fn left_out(&self) -> Option<String> {
        (!self.left_out.is_empty()).then(|| self.left_out.join(" and "))
    }

    /// Splits texts into tokens, one after the other, with a single text in memory at a time. `damaged` makes an error of a reason.
    ///
    /// # Errors
    /// Returns an error if this is no tokenizer, if it cannot split a text, if there is not the memory for that, or the first error among the texts.
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

    /// Refuses a text of this many bytes if there is not enough memory to split it.
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

/// Lists the tokens of a vocabulary, which is an object or an array, and those that were added to it.
fn list_tokens(json: &Value) -> impl Iterator<Item = &str> {
    let vocabulary = &json["model"]["vocab"];
    let named = vocabulary.as_object().into_iter().flatten().map(|(token, _)| token.as_str());
    let listed = vocabulary.as_array().into_iter().flatten().filter_map(|pair| pair[0].as_str());
    let added = json["added_tokens"].as_array().into_iter().flatten();
    named.chain(listed).chain(added.filter_map(|token| token["content"].as_str()))
}

/// Returns the most that all replacements together may lengthen a text, as a multiple of its length.
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

/// Removes what applies to single short texts, and what makes different tokens of the same text. Returns the settings of these that the file asked
/// for.
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

/// Does work in a thread of its own. If it panics, nothing is printed.
///
/// # Errors
/// Returns the reason if the work panics, or if no thread can be started.
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

/// Prevents that a panic of that thread is printed, because it becomes an error.
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
