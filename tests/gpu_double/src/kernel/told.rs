//! Messages of blocks to each other by atomic accesses after fences, as the last block of a reduction learns that the
//! others have written their parts.

use std::collections::HashMap;

use crate::memory::Heard;

/// Blocks whose writes an address tells of.
#[derive(Default)]
pub struct Told {
    by_address: HashMap<u64, Vec<u64>>,
    blocks: u32,
}

impl Told {
    /// Messages for a launch of so many blocks.
    pub fn of(blocks: u32) -> Told {
        Told { by_address: HashMap::new(), blocks }
    }

    /// A block has an atomic access: it hears what others told there, and tells what it knows if it has made a fence.
    pub fn access(&mut self, address: u64, block: u32, fenced: bool, heard: &mut Heard) {
        if let Some(told) = self.by_address.get(&address) {
            add(&mut heard.blocks, told);
            let others = heard.blocks.iter().map(|word| word.count_ones()).sum::<u32>();
            heard.all = others + u32::from(!heard.has(block)) >= self.blocks;
        }
        if fenced {
            let told = self.by_address.entry(address).or_default();
            add(told, &heard.blocks);
            set(told, block);
        }
    }
}

fn add(to: &mut Vec<u64>, from: &[u64]) {
    to.resize(to.len().max(from.len()), 0);
    to.iter_mut().zip(from).for_each(|(to, from)| *to |= from);
}

fn set(to: &mut Vec<u64>, block: u32) {
    let word = block as usize / 64;
    to.resize(to.len().max(word + 1), 0);
    to[word] |= 1 << (block % 64);
}
