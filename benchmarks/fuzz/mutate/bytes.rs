//! Edits of bytes of which nothing is known.

use super::random::Random;

/// The longest input that edits make.
const LONGEST: usize = 1 << 20;

/// A few edits, with pieces of another input.
pub fn edit(mut bytes: Vec<u8>, other: &[u8], random: &mut Random) -> Vec<u8> {
    for _ in 0..1 + random.below(4) {
        edit_once(&mut bytes, other, random);
    }
    bytes.truncate(LONGEST);
    bytes
}

fn edit_once(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(8) {
        0 => bytes.truncate(at),
        1 => bytes.splice(at..at, piece(other, random).iter().copied()).for_each(drop),
        2 => {
            let from = piece(bytes, random).to_vec();
            bytes.splice(at..at, from).for_each(drop);
        }
        3 => {
            let end = (at + 1 + random.below(16)).min(bytes.len());
            bytes.drain(at.min(end)..end);
        }
        4 | 5 => write_number(bytes, at, random),
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
    }
}

/// Writes an edge number of 1, 2, 4 or 8 bytes, of either order.
fn write_number(bytes: &mut [u8], at: usize, random: &mut Random) {
    let width = 1 << random.below(4);
    let number = random.number();
    let little = number.to_le_bytes();
    let big = number.to_be_bytes();
    let written = if random.one_in(2) { &little[..width] } else { &big[8 - width..] };
    let room = bytes.len().saturating_sub(at).min(width);
    bytes[at..at + room].copy_from_slice(&written[..room]);
}

fn piece<'a>(of: &'a [u8], random: &mut Random) -> &'a [u8] {
    let begin = random.below(of.len());
    let end = (begin + 1 + random.below(64)).min(of.len());
    &of[begin..end]
}
