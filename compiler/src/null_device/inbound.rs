//! The links over which a rank receives. A link carries the messages to one rank one after the other.

use crate::cluster::AlphaBeta;

/// The times at which the links to one rank are taken, link by link.
#[derive(Default)]
pub(super) struct InboundLinks {
    /// Of each link: the times at which it is taken, ascending, with gaps between them.
    taken: Vec<(AlphaBeta, Vec<(f64, f64)>)>,
}

impl InboundLinks {
    /// Takes a link for so many seconds, as soon as it is free for as long from the time `ready` on. Returns when that begins.
    ///
    /// Messages are carried in the order in which a rank receives them. One that was sent late leaves the link to those
    /// behind it until then.
    pub(super) fn take(&mut self, link: AlphaBeta, ready: f64, seconds: f64) -> f64 {
        if seconds <= 0.0 {
            return ready;
        }
        let index = self.taken.iter().position(|(known, _)| *known == link).unwrap_or_else(|| {
            self.taken.push((link, Vec::new()));
            self.taken.len() - 1
        });
        let taken = &mut self.taken[index].1;
        let mut place = taken.partition_point(|&(_, end)| end < ready);
        let mut start = ready;
        while taken.get(place).is_some_and(|&(next, _)| next < start + seconds) {
            start = start.max(taken[place].1);
            place += 1;
        }
        taken.insert(place, (start, start + seconds));
        // Times without a gap between them become one.
        if taken.get(place + 1).is_some_and(|&(next, _)| next <= start + seconds) {
            taken[place].1 = taken.remove(place + 1).1;
        }
        if place > 0 && taken[place - 1].1 >= start {
            taken[place - 1].1 = taken.remove(place).1;
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: AlphaBeta = AlphaBeta { alpha: 1.0, beta: 1.0 };
    const SLOW: AlphaBeta = AlphaBeta { alpha: 2.0, beta: 2.0 };

    #[test]
    fn messages_over_one_link_arrive_one_after_the_other() {
        let mut links = InboundLinks::default();
        assert_eq!(links.take(FAST, 0.0, 2.0), 0.0);
        assert_eq!(links.take(FAST, 1.0, 2.0), 2.0, "the first has the link until then");
        assert_eq!(links.take(SLOW, 1.0, 2.0), 1.0, "another link is free");
        assert_eq!(links.take(FAST, 1.0, 0.0), 1.0, "what a rank has itself comes over no link");
        assert_eq!(links.taken[0].1, [(0.0, 4.0)]);
    }

    #[test]
    fn a_message_that_was_sent_late_leaves_the_link_to_others_until_then() {
        let mut links = InboundLinks::default();
        assert_eq!(links.take(FAST, 10.0, 5.0), 10.0);
        assert_eq!(links.take(FAST, 1.0, 4.0), 1.0);
        assert_eq!(links.take(FAST, 1.0, 6.0), 15.0, "the gap is too short");
        assert_eq!(links.take(FAST, 1.0, 5.0), 5.0, "the gap is just long enough");
        assert_eq!(links.taken[0].1, [(1.0, 21.0)]);
        assert_eq!(links.take(FAST, 0.0, 1.0), 0.0);
        assert_eq!(links.taken[0].1, [(0.0, 21.0)]);
    }
}
