//! Inputs made from those of a corpus: edited as what they are, so that most come past the first check, and now and then as
//! bytes. What has a checksum or a length mostly gets the right one.

mod bytes;
#[cfg(feature = "images")]
mod chunks;
mod frames;
mod json;
mod random;
mod text;
mod wire;

use serde_json::Value;
use sha2::{Digest, Sha256};

pub use frames::frame;
pub use random::Random;

/// The format of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Bytes without a known format.
    Bytes,
    /// Text.
    Text,
    /// JSON.
    Json,
    /// JSON with the SHA-256 of itself: the manifest of a checkpoint.
    Sealed,
    /// A JSON head, its length before it, and bytes: safetensors.
    Headed,
    /// Protocol Buffers.
    Wire,
    /// Frames between processes.
    Frames,
    /// PNG.
    #[cfg(feature = "images")]
    Chunks,
}

/// The input of a case: a corpus's own while they last, then edited ones.
pub fn input(form: Form, corpus: &[Vec<u8>], seed: u64, case: u64) -> Vec<u8> {
    if let Some(own) = usize::try_from(case).ok().and_then(|case| corpus.get(case)) {
        return own.clone();
    }
    let mut random = Random::new(seed, case);
    let [base, other] = [0, 1].map(|_| &corpus[random.below(corpus.len())]);
    edit(form, base, other, &mut random)
}

fn edit(form: Form, base: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let plain = form != Form::Bytes && random.one_in(8);
    let edited = match form {
        _ if plain => None,
        Form::Bytes => None,
        Form::Text => edited_text(base, other, random),
        Form::Json => edited_json(base, other, random).map(|value| value.to_string().into_bytes()),
        Form::Sealed => edited_json(base, other, random).map(|value| sealed(value, random)),
        Form::Headed => edited_head(base, other, random),
        Form::Wire => Some(wire::edit(base, other, random)),
        Form::Frames => Some(frames::edit(base, other, random)),
        #[cfg(feature = "images")]
        Form::Chunks => chunks::edit(base, other, random),
    };
    edited.unwrap_or_else(|| bytes::edit(base.to_vec(), other, random))
}

fn edited_text(base: &[u8], other: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let [base, other] = [base, other].map(std::str::from_utf8);
    Some(text::edit(base.ok()?, other.ok()?, random).into_bytes())
}

fn edited_json(base: &[u8], other: &[u8], random: &mut Random) -> Option<Value> {
    let mut document = serde_json::from_slice(base).ok()?;
    json::edit(&mut document, &serde_json::from_slice(other).ok()?, random);
    Some(document)
}

/// Seals a manifest with the checksum of what it says now, or leaves the old one in one of 16 cases.
fn sealed(mut manifest: Value, random: &mut Random) -> Vec<u8> {
    if manifest.is_object() && !random.one_in(16) {
        manifest["sha256"] = "".into();
        let digest = Sha256::digest(manifest.to_string());
        let text: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        manifest["sha256"] = text.into();
    }
    manifest.to_string().into_bytes()
}

fn edited_head(base: &[u8], other: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let [(head, rest), (other, _)] = [base, other].map(split_head);
    let head = edited_json(head?, other?, random)?.to_string();
    let length = match random.one_in(16) {
        true => random.number(),
        false => head.len() as u64,
    };
    Some([&length.to_le_bytes(), head.as_bytes(), rest].concat())
}

/// The JSON, where it is there, and what comes behind it.
fn split_head(file: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let Some((length, rest)) = file.split_first_chunk() else { return (None, file) };
    let length = usize::try_from(u64::from_le_bytes(*length)).ok();
    match length.and_then(|length| rest.split_at_checked(length)) {
        Some((head, rest)) => (Some(head), rest),
        None => (None, file),
    }
}
