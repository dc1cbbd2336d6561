//! Places registers in the arena: registers that never live at the same time share bytes.
//!
//! Greedy best fit, largest first, each register into the smallest gap between those placed that live at the same time
//! (Pisarchyk and Lee, arXiv 2001.03288, section 4); the best of several orders is kept.

/// What needs a place: registers that share memory count as one.
#[derive(Clone, Debug)]
pub struct Item {
    /// Bytes.
    pub bytes: u64,
    /// When it lives: first and last place in the order, ascending; `None`: always.
    pub lives: Option<Vec<(usize, usize)>>,
    /// The only stream that touches it; `None` where several do.
    pub stream: Option<usize>,
}

/// Where everything lies.
#[derive(Clone, Debug)]
pub struct Arena {
    /// Offset of each item.
    pub offsets: Vec<u64>,
    /// Bytes of the arena.
    pub bytes: u64,
    /// The greatest number of bytes that live at one time.
    pub live_bytes: u64,
}

impl Item {
    fn meets(&self, other: &Item) -> bool {
        if self.stream.is_none() || self.stream != other.stream {
            return true;
        }
        let (Some(a), Some(b)) = (&self.lives, &other.lives) else { return true };
        let (mut i, mut j) = (0, 0);
        while i < a.len() && j < b.len() {
            if a[i].1 < b[j].0 {
                i += 1;
            } else if b[j].1 < a[i].0 {
                j += 1;
            } else {
                return true;
            }
        }
        false
    }

    fn begin(&self) -> usize {
        self.lives.as_ref().and_then(|lives| lives.first()).map_or(0, |life| life.0)
    }

    fn duration(&self) -> usize {
        let length =
            |lives: &Vec<(usize, usize)>| lives.iter().map(|life| life.1 - life.0 + 1).sum();
        self.lives.as_ref().map_or(usize::MAX, length)
    }
}

/// Places all items. `length` is the number of actions of a step.
pub fn place(items: &[Item], length: usize) -> Arena {
    let live_bytes = live_bytes(items, length);
    let neighbours = neighbours(items);
    let mut orders: [Vec<usize>; 3] = std::array::from_fn(|_| (0..items.len()).collect());
    let size = |i: usize| std::cmp::Reverse(items[i].bytes);
    let long = |i: usize| std::cmp::Reverse(items[i].duration());
    orders[0].sort_by_key(|&i| (size(i), items[i].begin(), i));
    orders[1].sort_by_key(|&i| (long(i), size(i), i));
    orders[2].sort_by_key(|&i| (items[i].begin(), size(i), i));
    let mut best: Option<(u64, Vec<u64>)> = None;
    for order in orders {
        let (bytes, offsets) = best_fit(items, &neighbours, &order);
        if best.as_ref().is_none_or(|best| bytes < best.0) {
            best = Some((bytes, offsets));
        }
        if bytes == live_bytes {
            break;
        }
    }
    let (bytes, offsets) = best.unwrap_or_default();
    Arena { offsets, bytes, live_bytes }
}

/// The items that live at the same time as each.
fn neighbours(items: &[Item]) -> Vec<Vec<usize>> {
    let mut neighbours = vec![Vec::new(); items.len()];
    for (i, a) in items.iter().enumerate() {
        for (j, b) in items.iter().enumerate().skip(i + 1) {
            if a.bytes > 0 && b.bytes > 0 && a.meets(b) {
                neighbours[i].push(j);
                neighbours[j].push(i);
            }
        }
    }
    neighbours
}

fn best_fit(items: &[Item], neighbours: &[Vec<usize>], order: &[usize]) -> (u64, Vec<u64>) {
    let mut placed: Vec<Option<u64>> = vec![None; items.len()];
    let mut end = 0;
    for &item in order {
        let mut taken: Vec<(u64, u64)> = neighbours[item]
            .iter()
            .filter_map(|&other| placed[other].map(|offset| (offset, offset + items[other].bytes)))
            .collect();
        taken.sort_unstable();
        let offset = smallest_gap(&taken, items[item].bytes);
        placed[item] = Some(offset);
        end = end.max(offset + items[item].bytes);
    }
    (end, placed.into_iter().map(Option::unwrap_or_default).collect())
}

/// The offset of the smallest gap that takes `bytes`; behind everything where there is none.
fn smallest_gap(taken: &[(u64, u64)], bytes: u64) -> u64 {
    let mut free = 0;
    let mut best: Option<(u64, u64)> = None;
    for &(begin, end) in taken {
        let gap = begin.saturating_sub(free);
        if begin >= free && gap >= bytes && best.is_none_or(|(smallest, _)| gap < smallest) {
            best = Some((gap, free));
        }
        free = free.max(end);
    }
    best.map_or(free, |(_, offset)| offset)
}

fn live_bytes(items: &[Item], length: usize) -> u64 {
    let mut always = 0;
    let mut change = vec![0i64; length + 1];
    for item in items {
        let Some(lives) = &item.lives else {
            always += item.bytes;
            continue;
        };
        for &(first, last) in lives {
            change[first] += item.bytes as i64;
            change[last + 1] -= item.bytes as i64;
        }
    }
    let mut now = 0;
    let peak = change.iter().map(|change| {
        now += change;
        now
    });
    always + peak.max().unwrap_or(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(bytes: u64, lives: &[(usize, usize)]) -> Item {
        Item { bytes, lives: Some(lives.to_vec()), stream: Some(0) }
    }

    #[test]
    fn what_never_lives_at_the_same_time_shares_bytes() {
        let items = [item(64, &[(0, 1), (4, 5)]), item(128, &[(2, 3)]), item(64, &[(3, 4)])];
        let arena = place(&items, 6);
        assert_eq!((arena.bytes, arena.live_bytes), (192, 192));
        assert_eq!(arena.offsets[0], 0);
    }

    #[test]
    fn what_several_streams_touch_shares_nothing() {
        let apart = Item { stream: None, ..item(64, &[(0, 0)]) };
        let arena = place(&[apart, item(64, &[(1, 1)])], 2);
        assert_eq!((arena.bytes, arena.live_bytes), (128, 64));
    }
}
