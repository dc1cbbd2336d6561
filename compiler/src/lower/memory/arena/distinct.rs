//! Leaves repeated blocks out of the order of a step.
//!
//! A block may have the same items at the same places as another. It then says nothing new of who lives with whom, or
//! of how much lives at once. What is left does not grow with the number of microbatches.

use std::collections::BTreeSet;

use super::Span;

/// Returns the lives of all items in the order without repeated blocks, and its length. Items that always live have none. `starts` are the places
/// where blocks begin, the last one past all.
pub(super) fn distinct_lives(items: &[&[Span]], starts: &[usize]) -> (Vec<Vec<Span>>, usize) {
    let places = find_kept_blocks(items, starts);
    let length = places.iter().flatten().map(|&(start, block)| start + block).max().unwrap_or(0);
    let times = items.iter().map(|item| {
        let mut lives: Vec<Span> = Vec::new();
        visit_blocks(item, starts, &mut |block, first, last| {
            let Some((start, _)) = places[block] else { return };
            match lives.last_mut() {
                Some(before) if before.1 + 1 >= start + first => before.1 = start + last,
                _ => lives.push((start + first, start + last)),
            }
        });
        lives
    });
    (times.collect(), length)
}

/// Returns the beginning and the length of each block that is kept; `None` for all others.
fn find_kept_blocks(items: &[&[Span]], starts: &[usize]) -> Vec<Option<(usize, usize)>> {
    let blocks = starts.len().saturating_sub(1);
    let mut prints = vec![(0u64, 0u64); blocks];
    for (index, item) in items.iter().enumerate() {
        visit_blocks(item, starts, &mut |block, first, last| {
            let print = &mut prints[block];
            print.0 = print.0.wrapping_add(mix_hash(index, first, last, 0x9E37_79B9_7F4A_7C15));
            print.1 = print.1.wrapping_add(mix_hash(index, first, last, 0xC2B2_AE3D_27D4_EB4F));
        });
    }
    let mut known = BTreeSet::new();
    let mut next = 0;
    let mut keep = |block: usize| {
        let length = starts[block + 1] - starts[block];
        let start = next;
        let new = known.insert((length, prints[block]));
        next += if new { length } else { 0 };
        new.then_some((start, length))
    };
    (0..blocks).map(&mut keep).collect()
}

/// Calls `found` with each block in which an item lives, and the item's first and last place there.
fn visit_blocks(item: &[Span], starts: &[usize], found: &mut dyn FnMut(usize, usize, usize)) {
    let mut block = 0;
    for &(made, last) in item {
        if starts[block + 1] <= made {
            block = starts.partition_point(|&start| start <= made) - 1;
        }
        while block + 1 < starts.len() && starts[block] <= last {
            let (begin, end) = (starts[block], starts[block + 1]);
            if begin < end {
                found(block, made.max(begin) - begin, last.min(end - 1) - begin);
            }
            block += 1;
        }
        block -= 1;
    }
}

/// Returns a number that almost surely differs for different arguments. If it does not, two items share bytes that may not, and the plan's proof
/// (`check::memory`) fails.
fn mix_hash(item: usize, first: usize, last: usize, seed: u64) -> u64 {
    let mut hash = seed;
    for part in [item, first, last] {
        hash = (hash ^ part as u64).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        hash ^= hash >> 32;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_repeat_are_left_out() {
        // Blocks of 3 places; the first item lives inside each, the second from each to the next.
        let inside = [(0, 1), (3, 4), (6, 7), (9, 10)];
        let across = [(2, 3), (5, 6), (8, 9)];
        let (times, length) = distinct_lives(&[&inside, &across], &[0, 3, 6, 9, 12]);
        assert_eq!(length, 9, "the third block is as the second");
        assert_eq!(times[0], [(0, 1), (3, 4), (6, 7)]);
        assert_eq!(times[1], [(2, 3), (5, 6)]);
    }

    #[test]
    fn a_life_over_several_blocks_is_kept_whole() {
        let (times, length) = distinct_lives(&[&[(1, 7)]], &[0, 3, 6, 9]);
        assert_eq!((times[0].as_slice(), length), (&[(1, 7)][..], 9));
        assert_eq!(distinct_lives(&[&[]], &[0, 3, 6]).1, 3, "both blocks are empty");
    }
}
