//! Edits of what processes send each other: frames of messages of queues, whose head has a checksum, and messages of the
//! control plane, a JSON head and bytes.

use super::random::Random;
use super::{bytes, json};

/// The first bytes of a frame.
const MAGIC: u32 = 0x6772_6631;
/// Bytes of a frame's head before its checksum.
const SUMMED: usize = 36;

/// Bytes of a frame's head.
const HEAD: usize = SUMMED + SUM;
/// Bytes of a checksum.
const SUM: usize = 4;

/// The frame of a message of these pieces, whose checksum stands behind it.
pub fn frame(kind: u32, [key, sequence]: [u64; 2], pieces: &[&[u8]]) -> Vec<u8> {
    let lengths: Vec<u8> =
        pieces.iter().flat_map(|piece| (piece.len() as u64).to_le_bytes()).collect();
    let content = [lengths, pieces.concat()].concat();
    let mut frame = Vec::new();
    frame.extend([MAGIC, kind].map(u32::to_le_bytes).concat());
    frame.extend([key, sequence, content.len() as u64].map(u64::to_le_bytes).concat());
    frame.extend((pieces.len() as u32).to_le_bytes());
    let sum = checksum(&frame);
    frame.extend(sum.to_le_bytes());
    let behind =
        if pieces.is_empty() { Vec::new() } else { checksum(&content).to_le_bytes().to_vec() };
    [frame, content, behind].concat()
}

/// Edits a frame, and gives its head and its message the right checksums; a message of the control plane its length.
pub fn edit(base: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut edited = match base.get(12) {
        Some(b'{' | b'"') => return edited_message(base, other, random),
        _ => base.to_vec(),
    };
    if edited.len() < HEAD || random.one_in(4) {
        edited = bytes::edit(edited, other, random);
    } else {
        // One of: kind, key, sequence, length, number of pieces, length of the first piece.
        let (at, width) = *random.pick(&[(4, 4), (8, 8), (16, 8), (24, 8), (32, 4), (40, 8)]);
        write(&mut edited, at, &random.number().to_le_bytes()[..width]);
        if at == 40 {
            // So that the length of all agrees with it, as far as that can be.
            let piece = edited.get(40..48).and_then(|piece| piece.try_into().ok());
            let length = u64::from_le_bytes(piece.unwrap_or_default()).wrapping_add(8);
            write(&mut edited, 24, &length.to_le_bytes());
        }
    }
    if let Some(summed) = edited.get(..SUMMED) {
        let sum = checksum(summed);
        write(&mut edited, SUMMED, &sum.to_le_bytes());
    }
    if edited.len() > HEAD + SUM {
        let end = edited.len() - SUM;
        let sum = checksum(&edited[HEAD..end]);
        write(&mut edited, end, &sum.to_le_bytes());
    }
    edited
}

fn write(bytes: &mut [u8], at: usize, what: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + what.len()) {
        place.copy_from_slice(what);
    }
}

/// A message of the control plane: its JSON edited, with the right length.
fn edited_message(base: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let head = |message: &[u8]| {
        let length = message.get(..4).and_then(|length| length.try_into().ok());
        let end = 12 + u32::from_le_bytes(length.unwrap_or_default()) as usize;
        let value = message.get(12..end).and_then(|head| serde_json::from_slice(head).ok());
        value.map(|value: serde_json::Value| (value, message[end..].to_vec()))
    };
    let Some((mut value, rest)) = head(base) else {
        return bytes::edit(base.to_vec(), other, random);
    };
    let spare = head(other).map_or(value.clone(), |(value, _)| value);
    json::edit(&mut value, &spare, random);
    let head = value.to_string();
    let lengths = [&(head.len() as u32).to_le_bytes()[..], &base[4..12]].concat();
    [&lengths, head.as_bytes(), &rest].concat()
}

/// CRC-32 (ISO 3309), bit by bit.
pub fn checksum(bytes: &[u8]) -> u32 {
    let bit = |sum: u32| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
    let byte = |sum: u32, &byte: &u8| (0..8).fold(sum ^ u32::from(byte), |sum, _| bit(sum));
    !bytes.iter().fold(u32::MAX, byte)
}
