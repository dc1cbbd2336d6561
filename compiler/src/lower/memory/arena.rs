//! Places registers in the arena of a rank: registers that never live at the same time share bytes.
//!
//! Lifetimes are places in the order of the program's actions, which is cyclic from step to step. Blocks that repeat
//! are left out of the order (`distinct`), so that the work does not grow with microbatches. A program reports
//! `arena_bytes` beside `live_bytes`, the most that is alive at one time. No arrangement can need less than that.
//!
//! Placement is a greedy best fit, largest first: each register takes the smallest gap between those placed that live
//! at the same time (Pisarchyk and Lee, arXiv 2001.03288, section 4). The best of several orders is kept. While the
//! arena is larger than what lives at once, orders are mended for a bounded time: what reached the top is placed
//! before all else. Registers that always live lie below everything. Of very many items only the order of beginning
//! is tried, which needs no list of who meets whom.

mod distinct;

/// An item that needs a place. Registers that share memory are one item.
#[derive(Clone, Debug)]
pub(in crate::lower) struct Item {
    /// Bytes.
    pub bytes: u64,
    /// The first and last places of its lives in the order, ascending; `None` if it always lives.
    pub lives: Option<Vec<Span>>,
    /// Its lives as seen by each stream, if there are two: until they end, the results of that stream may not take its memory. The last place of a
    /// life is that of the last action of the stream which may come before all has been read.
    pub until: Option<[Vec<Span>; 2]>,
    /// The stream that makes it.
    pub maker: usize,
}

/// The first and last place in the order, both included.
pub(in crate::lower) type Span = (usize, usize);

/// The places of all items.
#[derive(Clone, Debug)]
pub(in crate::lower) struct Arena {
    /// The offset of each item.
    pub offsets: Vec<u64>,
    /// The bytes of the arena.
    pub bytes: u64,
    /// The greatest number of bytes that live at one time.
    pub live_bytes: u64,
}

/// The number of items beyond which only the order of beginning is tried, without a table of the items that live at the same time.
const MOST_COMPARED: usize = 2048;

/// The most times that an order is mended. The arena of the references' plans is up to 4.7 % above what lives at once
/// where nothing is mended, up to 2.7 % after 64 rounds and up to 0.4 % after 400, but for plans whose registers have
/// several slots.
const MENDINGS: usize = 400;

/// The most pairs of items living at the same time that all rounds of an order look at together. It takes some 50 ms.
const MOST_PAIRS: usize = 1 << 22;

/// The most such pairs if memory is short. It takes some 200 ms.
const MOST_PAIRS_WHERE_SHORT: usize = 1 << 24;

/// The aim of a search for places.
struct Aim {
    /// Bytes that suffice.
    bytes: u64,
    /// The most pairs of items that an order's rounds look at together.
    pairs: usize,
    /// Whether all orders are tried, with a table of the items that live at the same time.
    compares: bool,
}

/// Places all items. `starts` are the places in the order where blocks begin, the last one past all: a tensor that lives in a block for one
/// microbatch often lives at the same places for the next. If memory is short, all items should lie within `within` bytes. Better places are then
/// looked for until they do, and longer than otherwise.
pub(in crate::lower) fn place_items(
    items: &[Item],
    starts: &[usize],
    within: Option<u64>,
) -> Arena {
    let (times, length) = distinct::distinct_lives(&all_spans(items), starts);
    let live_bytes = live_bytes(items, &times, length);
    let (apart, shared): (Vec<usize>, Vec<usize>) =
        (0..items.len()).partition(|&i| items[i].lives.is_none());
    let mut offsets = vec![0; items.len()];
    let mut base = 0;
    for &item in &apart {
        offsets[item] = base;
        base += items[item].bytes;
    }
    let timed: Vec<Timed<'_>> = shared
        .iter()
        .map(|&item| {
            let lives = times[SPANS * item].as_slice();
            let until = match items[item].until {
                Some(_) => [times[SPANS * item + 1].as_slice(), &times[SPANS * item + 2]],
                None => [lives, lives],
            };
            Timed { bytes: items[item].bytes, lives, until, maker: items[item].maker }
        })
        .collect();
    let aim = Aim {
        bytes: live_bytes.max(within.unwrap_or(0)).saturating_sub(base),
        pairs: if within.is_some() { MOST_PAIRS_WHERE_SHORT } else { MOST_PAIRS },
        compares: within.is_some() || timed.len() <= MOST_COMPARED,
    };
    let (bytes, placed) = place_timed(&timed, &aim);
    for (&item, offset) in shared.iter().zip(placed) {
        offsets[item] = base + offset;
    }
    Arena { offsets, bytes: base + bytes, live_bytes }
}

/// The number of lists of spans of an item.
const SPANS: usize = 3;

/// Returns the lives of all items, each followed by its lives as seen by each stream.
fn all_spans(items: &[Item]) -> Vec<&[Span]> {
    let mut spans: Vec<&[Span]> = Vec::with_capacity(SPANS * items.len());
    for item in items {
        spans.push(item.lives.as_deref().unwrap_or_default());
        match &item.until {
            Some([first, second]) => spans.extend([first.as_slice(), second]),
            None => spans.extend([&[][..], &[]]),
        }
    }
    spans
}

/// An item that may share bytes with others.
struct Timed<'a> {
    bytes: u64,
    lives: &'a [Span],
    /// Its lives as seen by each stream: until they end, the results of that stream may not take these bytes.
    until: [&'a [Span]; 2],
    maker: usize,
}

impl Timed<'_> {
    fn meets(&self, other: &Self) -> bool {
        let (a, b) = (self.until[other.maker], other.until[self.maker]);
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
        self.lives.first().map_or(0, |life| life.0)
    }

    fn end(&self) -> usize {
        self.until.iter().filter_map(|lives| lives.last()).map(|life| life.1).max().unwrap_or(0)
    }

    fn duration(&self) -> usize {
        self.lives.iter().map(|life| life.1 - life.0 + 1).sum()
    }
}

/// Returns the best placement of several orders.
fn place_timed(items: &[Timed<'_>], aim: &Aim) -> (u64, Vec<u64>) {
    let mut orders: [Vec<usize>; 3] = std::array::from_fn(|_| (0..items.len()).collect());
    let size = |i: usize| std::cmp::Reverse(items[i].bytes);
    let long = |i: usize| std::cmp::Reverse(items[i].duration());
    orders[2].sort_by_key(|&i| (items[i].begin(), size(i), i));
    if !aim.compares {
        return by_beginning(items, &orders[2]);
    }
    orders[0].sort_by_key(|&i| (size(i), items[i].begin(), i));
    orders[1].sort_by_key(|&i| (long(i), size(i), i));
    let meetings = MeetingTable::new(items);
    let mut best: Option<(u64, Vec<u64>)> = None;
    for order in orders {
        let placed = mend_placement(items, &meetings, order, aim);
        if best.as_ref().is_none_or(|best| placed.0 < best.0) {
            best = Some(placed);
        }
        if best.as_ref().is_some_and(|best| best.0 <= aim.bytes) {
            break;
        }
    }
    best.unwrap_or_default()
}

/// Places items by best fit in an order, and then again with those that reached the top before all others.
fn mend_placement(
    items: &[Timed<'_>],
    meetings: &MeetingTable,
    mut order: Vec<usize>,
    aim: &Aim,
) -> (u64, Vec<u64>) {
    let mut best = best_fit(items, meetings, &order);
    let mut last = best.clone();
    let pairs = 2 * meetings.count + items.len();
    for _ in 0..MENDINGS.min(aim.pairs / pairs.max(1)) {
        if best.0 <= aim.bytes {
            break;
        }
        let (end, offsets) = &last;
        let (mut first, rest): (Vec<usize>, Vec<usize>) =
            order.iter().partition(|&&item| offsets[item] + items[item].bytes == *end);
        first.extend(rest);
        order = first;
        last = best_fit(items, meetings, &order);
        if last.0 < best.0 {
            best.clone_from(&last);
        }
    }
    best
}

/// A table of the items that live at the same time: a row of bits for each item.
struct MeetingTable {
    bits: Vec<u64>,
    /// The number of words of a row.
    words: usize,
    /// The number of pairs that live at the same time.
    count: usize,
}

impl MeetingTable {
    fn new(items: &[Timed<'_>]) -> Self {
        let words = items.len().div_ceil(64);
        let mut all = Self { bits: vec![0; words * items.len()], words, count: 0 };
        let mut order: Vec<usize> = (0..items.len()).filter(|&i| items[i].bytes > 0).collect();
        order.sort_by_key(|&i| items[i].begin());
        for (place, &i) in order.iter().enumerate() {
            // What begins when an item has ended does not meet it.
            let end = items[i].end();
            let later = order[place + 1..].iter().take_while(|&&j| items[j].begin() <= end);
            for &j in later.filter(|&&j| items[i].meets(&items[j])) {
                all.bits[i * words + j / 64] |= 1 << (j % 64);
                all.bits[j * words + i / 64] |= 1 << (i % 64);
                all.count += 1;
            }
        }
        all
    }

    /// The items that live at the same time as one, a bit for each.
    fn row(&self, item: usize) -> &[u64] {
        &self.bits[item * self.words..][..self.words]
    }
}

/// Places items by best fit in the order of beginning. Of the items that are placed, only those that have not ended may live at the same time as the
/// next.
///
/// All that lives is looked at for each item, which is the part of placing that grows faster than a model's layers. So
/// what is looked at is small and lies in a row, lists of lives are compared only where an item lives more than once,
/// and what has ended is cleared away only when it may be a fifth of it all: until then it meets nothing.
fn by_beginning(items: &[Timed<'_>], order: &[usize]) -> (u64, Vec<u64>) {
    let mut offsets = vec![0; items.len()];
    // Placed and not ended, by offset.
    let mut active: Vec<Active> = Vec::new();
    let mut end = 0;
    let mut uncleared = 0;
    for &item in order.iter().filter(|&&item| items[item].bytes > 0) {
        let now = &items[item];
        uncleared += 1;
        if 5 * uncleared > active.len() {
            let begin = now.begin();
            active.retain(|other| other.end >= begin);
            uncleared = 0;
        }
        let mut next = Active::new(now, item);
        let met = active.iter().filter(|other| other.meets(&next, items));
        offsets[item] = smallest_gap(met.map(|other| other.bytes), now.bytes);
        next.bytes = (offsets[item], offsets[item] + now.bytes);
        let place = active.partition_point(|other| other.bytes.0 < next.bytes.0);
        active.insert(place, next);
        end = end.max(next.bytes.1);
    }
    (end, offsets)
}

/// An item that may be alive when others are placed.
#[derive(Clone, Copy)]
struct Active {
    /// The first byte in the arena, and the one past the last.
    bytes: (u64, u64),
    /// The last place of all its lives.
    end: usize,
    /// Its life as seen by each stream, if it has only one there.
    until: [Option<Span>; 2],
    maker: usize,
    item: usize,
}

impl Active {
    fn new(of: &Timed<'_>, item: usize) -> Self {
        let only = |lives: &[Span]| if let [only] = lives { Some(*only) } else { None };
        let until = of.until.map(only);
        Self { bytes: (0, 0), end: of.end(), until, maker: of.maker, item }
    }

    /// Whether two items live at the same time, as [`Timed::meets`] says. It is faster for items that live once.
    fn meets(&self, other: &Self, items: &[Timed<'_>]) -> bool {
        match (self.until[other.maker], other.until[self.maker]) {
            (Some(a), Some(b)) => a.1 >= b.0 && b.1 >= a.0,
            _ => items[self.item].meets(&items[other.item]),
        }
    }
}

/// The most items that are kept in the order of their offsets while they are placed.
const FEW_ITEMS: usize = 2048;

/// Places items by best fit in an order. Of all that are placed, only those that live at the same time as the next are looked at, by offset. Of the
/// many items of a deep model these are few, so they are sorted for each; few items are kept in order instead.
fn best_fit(items: &[Timed<'_>], meetings: &MeetingTable, order: &[usize]) -> (u64, Vec<u64>) {
    if items.len() <= FEW_ITEMS {
        fit_few(items, meetings, order)
    } else {
        fit_many(items, meetings, order)
    }
}

fn fit_many(items: &[Timed<'_>], meetings: &MeetingTable, order: &[usize]) -> (u64, Vec<u64>) {
    let mut offsets = vec![0; items.len()];
    let mut is_placed = vec![0u64; meetings.words];
    let mut met: Vec<(u64, u64)> = Vec::new();
    let mut end = 0;
    for &item in order {
        let bytes = items[item].bytes;
        met.clear();
        let placed = meetings.row(item).iter().zip(&is_placed).map(|(met, placed)| met & placed);
        met.extend(ones(placed).map(|other| (offsets[other], offsets[other] + items[other].bytes)));
        met.sort_unstable();
        let offset = smallest_gap(met.iter().copied(), bytes);
        offsets[item] = offset;
        is_placed[item / 64] |= 1 << (item % 64);
        end = end.max(offset + bytes);
    }
    (end, offsets)
}

/// Places items as [`fit_many`] does, with all that are placed in the order of their offsets.
fn fit_few(items: &[Timed<'_>], meetings: &MeetingTable, order: &[usize]) -> (u64, Vec<u64>) {
    let mut offsets = vec![0; items.len()];
    let mut placed: Vec<((u64, u64), usize)> = Vec::with_capacity(items.len());
    let mut end = 0;
    for &item in order {
        let (bytes, row) = (items[item].bytes, meetings.row(item));
        let meets = |other: usize| row[other / 64] >> (other % 64) & 1 == 1;
        let met = placed.iter().filter(|&&(_, other)| meets(other)).map(|&(bytes, _)| bytes);
        let offset = smallest_gap(met, bytes);
        offsets[item] = offset;
        let own = (offset, offset + bytes);
        placed.insert(placed.partition_point(|&(other, _)| other < own), (own, item));
        end = end.max(own.1);
    }
    (end, offsets)
}

/// Returns the places of the ones in rows of bits.
fn ones(words: impl Iterator<Item = u64>) -> impl Iterator<Item = usize> {
    words.enumerate().flat_map(|(word, mut bits)| {
        std::iter::from_fn(move || {
            let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(64 * word + bit)
        })
    })
}

/// Returns the offset of the smallest gap that takes `bytes`, or the end of all if there is none.
fn smallest_gap(taken: impl Iterator<Item = (u64, u64)>, bytes: u64) -> u64 {
    let mut free = 0;
    let mut best: Option<(u64, u64)> = None;
    for (begin, end) in taken {
        let gap = begin.saturating_sub(free);
        if begin >= free && gap >= bytes && best.is_none_or(|(smallest, _)| gap < smallest) {
            best = Some((gap, free));
            if gap == bytes {
                break;
            }
        }
        free = free.max(end);
    }
    best.map_or(free, |(_, offset)| offset)
}

fn live_bytes(items: &[Item], times: &[Vec<Span>], length: usize) -> u64 {
    let mut always = 0;
    let mut change = vec![0i64; length + 1];
    for (item, lives) in items.iter().zip(times.iter().step_by(SPANS)) {
        if item.lives.is_none() {
            always += item.bytes;
        }
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
        Item { bytes, lives: Some(lives.to_vec()), until: None, maker: 0 }
    }

    #[test]
    fn what_never_lives_at_the_same_time_shares_bytes() {
        let items = [item(64, &[(0, 1), (4, 5)]), item(128, &[(2, 3)]), item(64, &[(3, 4)])];
        let arena = place_items(&items, &[0, 6], None);
        assert_eq!((arena.bytes, arena.live_bytes), (192, 192));
        assert_eq!(arena.offsets[0], 0);
    }

    #[test]
    fn orders_are_mended_until_nothing_is_wasted() {
        // Bytes, first and last place. Largest first, longest first and in the order of beginning: each leaves a hole.
        const ITEMS: [(u64, usize, usize); 8] = [
            (1, 3, 6),
            (5, 9, 11),
            (4, 5, 9),
            (3, 4, 7),
            (3, 4, 4),
            (2, 8, 8),
            (3, 6, 9),
            (2, 1, 5),
        ];
        let arena = place_items(
            &ITEMS.map(|(bytes, first, last)| item(bytes, &[(first, last)])),
            &[0, 12],
            None,
        );
        assert_eq!((arena.bytes, arena.live_bytes), (12, 12));
    }

    #[test]
    fn a_stream_takes_memory_when_it_knows_that_the_other_has_read_it() {
        // The first lasts until place 0, of which stream 1 knows at place 3 alone.
        let first = Item { until: Some([vec![(0, 0)], vec![(0, 2)]]), ..item(64, &[(0, 0)]) };
        let next = |stream: usize, at: usize| {
            let until = Some([vec![(at, at)], vec![(at, at)]]);
            Item { until, maker: stream, ..item(64, &[(at, at)]) }
        };
        let bytes =
            |stream, at| place_items(&[first.clone(), next(stream, at)], &[0, 4], None).bytes;
        assert_eq!([bytes(0, 1), bytes(1, 1), bytes(1, 2), bytes(1, 3)], [64, 128, 128, 64]);
    }

    #[test]
    fn few_items_are_placed_where_many_would_be() {
        let number = |i: usize| (i * 7919 + i * i % 41) % 64;
        let lives: Vec<[Span; 1]> =
            (0..200).map(|i| [(number(i), number(i) + number(3 * i + 1) / 4)]).collect();
        let mut items = Vec::new();
        for (i, lives) in lives.iter().enumerate() {
            // Some take nothing.
            let bytes = 64 * (number(5 * i + 2) as u64 / 8);
            items.push(Timed { bytes, lives, until: [lives, &[]], maker: 0 });
        }
        let meetings = MeetingTable::new(&items);
        let order: Vec<usize> = (0..200).map(|i| i * 77 % 200).collect();
        let many = fit_many(&items, &meetings, &order);
        assert_eq!(fit_few(&items, &meetings, &order), many);
        assert!(many.0 > 0 && meetings.count > 200, "{} and {}", many.0, meetings.count);
    }

    #[test]
    fn many_items_are_placed_in_the_order_of_beginning() {
        // Every item lives with the next four.
        let count = 2 * MOST_COMPARED;
        let sizes = [64, 192, 128, 320];
        let items: Vec<Item> = (0..count).map(|i| item(sizes[i % 4], &[(i, i + 4)])).collect();
        let arena = place_items(&items, &[0, count + 4], None);
        for i in 0..count {
            for j in i + 1..(i + 5).min(count) {
                let (a, b) = (arena.offsets[i], arena.offsets[j]);
                assert!(a + items[i].bytes <= b || b + items[j].bytes <= a, "{i} and {j}");
            }
        }
        assert!(arena.bytes * 2 <= arena.live_bytes * 3, "{} of {}", arena.bytes, arena.live_bytes);
    }
}
