//! Channels in modelled time: when each content was sent and received, by rank.

use std::collections::BTreeMap;

use graphc_ir::plan::{Channel, Plan};

use crate::boxing::source_ranks;
use crate::cluster::alpha_beta;
use crate::cost::exchange_seconds;

/// The state of one channel.
pub struct ChannelState {
    slots: u64,
    /// By receiver: the ranks from which it takes something, itself perhaps, and seconds on the way.
    sources: BTreeMap<u32, (Vec<u32>, f64)>,
    /// By sender: the ranks that take something from it.
    receivers: BTreeMap<u32, Vec<u32>>,
    /// By sender: when it sent each content.
    sent: BTreeMap<u32, Vec<f64>>,
    /// By receiver: when it had received each content.
    received: BTreeMap<u32, Vec<f64>>,
}

impl ChannelState {
    /// The state before the first step.
    pub fn new(plan: &Plan, channel: &Channel, unlimited: bool) -> Self {
        let (from, to) = (&plan.layouts[channel.from as usize], &plan.layouts[channel.to as usize]);
        let mut ranks: Vec<u32> = from.ranks.iter().chain(&to.ranks).copied().collect();
        ranks.sort_unstable();
        ranks.dedup();
        let link = alpha_beta(&plan.cluster, &ranks, None);
        let (mut sources, mut receivers) = (BTreeMap::new(), BTreeMap::<u32, Vec<u32>>::new());
        for (position, &receiver) in to.ranks.iter().enumerate() {
            let need = to.rect_at(position, 0, plan.microbatches);
            let (mut senders, mut messages, mut bytes) = (Vec::new(), 0, 0);
            for sender in source_ranks(from, receiver, position) {
                let held = from.rect(sender, 0, plan.microbatches);
                let Some(rect) = held.and_then(|held| held.intersect(&need)) else { continue };
                senders.push(sender);
                receivers.entry(sender).or_default().push(receiver);
                if sender != receiver {
                    messages += 1;
                    bytes += rect.elements() * from.dtype.size();
                }
            }
            let seconds = exchange_seconds(&plan.cluster, link, messages, bytes as f64);
            sources.insert(receiver, (senders, seconds));
        }
        Self {
            slots: if unlimited { u64::MAX } else { u64::from(channel.slots.max(1)) },
            sources,
            receivers,
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
        }
    }

    /// When a sender that is ready at `now` may send content `content`; or the receiver that it waits for.
    pub fn may_send(&self, sender: u32, content: u64, now: f64) -> Result<f64, u32> {
        let Some(freed) = content.checked_sub(self.slots) else { return Ok(now) };
        let mut time = now;
        for &receiver in self.receivers.get(&sender).into_iter().flatten() {
            let received = self.received.get(&receiver).and_then(|r| r.get(freed as usize));
            time = time.max(*received.ok_or(receiver)?);
        }
        Ok(time)
    }

    /// When a receiver that is ready at `now` has content `content`; or the sender that it waits for.
    pub fn may_receive(&self, receiver: u32, content: u64, now: f64) -> Result<f64, u32> {
        let Some((senders, seconds)) = self.sources.get(&receiver) else { return Ok(now) };
        let mut time = now;
        for sender in senders {
            let sent = self.sent.get(sender).and_then(|sent| sent.get(content as usize));
            time = time.max(*sent.ok_or(*sender)? + seconds);
        }
        Ok(time)
    }

    /// A rank has sent its next content.
    pub fn send(&mut self, sender: u32, time: f64) {
        self.sent.entry(sender).or_default().push(time);
    }

    /// A rank has received its next content.
    pub fn receive(&mut self, receiver: u32, time: f64) {
        self.received.entry(receiver).or_default().push(time);
    }

    /// The ranks that may go on when `rank` has sent or received.
    pub fn partners(&self, rank: u32) -> Vec<u32> {
        let senders = self.sources.get(&rank).map_or(&[][..], |(senders, _)| senders);
        let receivers = self.receivers.get(&rank).map_or(&[][..], Vec::as_slice);
        let mut partners = [senders, receivers].concat();
        partners.sort_unstable();
        partners.dedup();
        partners
    }

    /// The greatest number of contents that were under way at once from any sender.
    pub fn under_way(&self) -> u32 {
        let mut most = 0;
        for (sender, sent) in &self.sent {
            let times = |receiver| self.received.get(receiver);
            let received: Vec<&Vec<f64>> =
                self.receivers.get(sender).into_iter().flatten().filter_map(times).collect();
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
