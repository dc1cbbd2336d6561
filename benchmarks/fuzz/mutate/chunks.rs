//! Edits of PNG: of the content of chunks, which then have the right checksum, and of their order.

use super::bytes;
use super::frames::checksum;
use super::random::Random;

/// Bytes before the first chunk.
const SIGNATURE: usize = 8;

/// A few edits; `None` where it is no PNG.
pub fn edit(image: &[u8], other: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let (signature, rest) = image.split_at_checked(SIGNATURE)?;
    let mut chunks = parse(rest)?;
    let [at, to] = [random.below(chunks.len()), random.below(chunks.len())];
    match random.below(8) {
        0 => drop(chunks.remove(at)),
        1 => chunks.insert(to, chunks[at].clone()),
        2 => chunks.swap(at, to),
        _ => chunks[at].1 = bytes::edit(chunks[at].1.clone(), other, random),
    }
    let written = chunks.iter().flat_map(|(kind, content)| {
        let summed = [&kind[..], content].concat();
        let length = (content.len() as u32).to_be_bytes();
        [&length[..], &summed, &checksum(&summed).to_be_bytes()].concat()
    });
    Some(signature.iter().copied().chain(written).collect())
}

type Chunk = ([u8; 4], Vec<u8>);

fn parse(mut rest: &[u8]) -> Option<Vec<Chunk>> {
    let mut chunks = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk() {
        let (kind, behind) = behind.split_first_chunk()?;
        let (content, behind) = behind.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        rest = behind.get(4..)?;
        chunks.push((*kind, content.to_vec()));
    }
    (!chunks.is_empty()).then_some(chunks)
}
