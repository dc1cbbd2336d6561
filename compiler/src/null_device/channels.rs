//! Channels in modelled time: the times when each content was sent and received, by class of ranks.

use graphc_plan::Channel;

use super::classes::Classes;
use super::exchanges::{Exchange, Incoming};
use super::inbound::InboundLinks;

/// The state of one channel.
pub(super) struct ChannelState {
    slots: u64,
    /// What receivers take from classes of senders, by class of receivers.
    incoming: Vec<Option<Incoming<usize>>>,
    /// The classes that take something from senders, by class of senders.
    receivers: Vec<Vec<usize>>,
    /// The times when each content was sent, by class of senders.
    sent: Vec<Vec<f64>>,
    /// The times when each content had been received, by class of receivers.
    received: Vec<Vec<f64>>,
}

impl ChannelState {
    /// Makes the state before the first step.
    pub(super) fn new(
        channel: &Channel,
        exchange: &Exchange,
        classes: &Classes,
        unlimited: bool,
    ) -> Self {
        let of = |ranks: &[u32]| -> Vec<usize> {
            let mut classes: Vec<usize> =
                ranks.iter().map(|&rank| classes.of[rank as usize]).collect();
            classes.sort_unstable();
            classes.dedup();
            classes
        };
        let incoming = |rank: &u32| {
            let Incoming { senders, seconds, on_link, link } = exchange.incoming.get(rank)?;
            let (seconds, on_link, link) = (*seconds, *on_link, *link);
            Some(Incoming { senders: of(senders), seconds, on_link, link })
        };
        let receivers =
            |rank: &u32| exchange.receivers.get(rank).map_or(Vec::new(), |ranks| of(ranks));
        let count = classes.first.len();
        Self {
            slots: if unlimited { u64::MAX } else { u64::from(channel.slots.max(1)) },
            incoming: classes.first.iter().map(incoming).collect(),
            receivers: classes.first.iter().map(receivers).collect(),
            sent: vec![Vec::new(); count],
            received: vec![Vec::new(); count],
        }
    }

    /// Returns the time when a sender that is ready at `now` may send content `content`, or the receiver that it waits for.
    pub(super) fn may_send(&self, sender: usize, content: u64, now: f64) -> Result<f64, usize> {
        let Some(freed) = content.checked_sub(self.slots) else { return Ok(now) };
        let mut time = now;
        for &receiver in &self.receivers[sender] {
            let received = self.received[receiver].get(freed as usize);
            time = time.max(*received.ok_or(receiver)?);
        }
        Ok(time)
    }

    /// Has a receiver that is ready at `now` take content `content`, its next one, over its links, and returns the time when it has it, or the sender that it
    /// waits for.
    pub(super) fn receive(
        &mut self,
        receiver: usize,
        content: u64,
        now: f64,
        links: &mut InboundLinks,
    ) -> Result<f64, usize> {
        let mut time = now;
        if let Some(incoming) = &self.incoming[receiver] {
            let mut sent = 0.0f64;
            for &sender in &incoming.senders {
                sent = sent.max(*self.sent[sender].get(content as usize).ok_or(sender)?);
            }
            let begin = links.take(incoming.link, sent, incoming.on_link);
            time = time.max(begin + incoming.seconds);
        }
        self.received[receiver].push(time);
        Ok(time)
    }

    /// Records that a class has sent its next content.
    pub(super) fn send(&mut self, sender: usize, time: f64) {
        self.sent[sender].push(time);
    }

    /// Returns the classes that may go on when `class` has sent or received.
    pub(super) fn partners(&self, class: usize) -> Vec<usize> {
        let senders = self.incoming[class].as_ref().map_or(&[][..], |incoming| &incoming.senders);
        let mut partners = [senders, &self.receivers[class]].concat();
        partners.sort_unstable();
        partners.dedup();
        partners
    }

    /// Returns the greatest number of contents that were under way at once from any sender.
    pub(super) fn under_way(&self) -> u32 {
        let mut most = 0;
        for (sender, sent) in self.sent.iter().enumerate() {
            let received: Vec<&Vec<f64>> =
                self.receivers[sender].iter().map(|&receiver| &self.received[receiver]).collect();
            let gone = |content: usize, time: f64| {
                received.iter().all(|r| r.get(content).is_some_and(|&at| at <= time))
            };
            let mut oldest = 0;
            for (content, &time) in sent.iter().enumerate() {
                while oldest < content && gone(oldest, time) {
                    oldest += 1;
                }
                most = most.max(content + 1 - oldest);
            }
        }
        most as u32
    }
}
