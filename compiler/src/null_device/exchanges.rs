//! Lists the senders and receivers in each channel, rank by rank. Channels between the same two layouts are computed once.

use std::collections::BTreeMap;

use graphc_ir::ids::LayoutId;
use graphc_plan::{Layout, Plan};

use crate::boxing::Senders;
use crate::cluster::{AlphaBeta, alpha_beta};
use crate::cost::{exchange_seconds, messages_seconds};

/// One exchange between two layouts.
pub(super) struct Exchange {
    /// What each receiver takes.
    pub incoming: BTreeMap<u32, Incoming<u32>>,
    /// The ranks that take something from a sender, by sender.
    pub receivers: BTreeMap<u32, Vec<u32>>,
}

/// What one receiver takes in an exchange.
pub(super) struct Incoming<Sender> {
    /// The senders from which it takes something, perhaps including itself.
    pub senders: Vec<Sender>,
    /// The seconds on the way: packing, the link and unpacking.
    pub seconds: f64,
    /// Of these, the seconds for which the receiver has the link.
    pub on_link: f64,
    /// The link. Those of different levels of the machines are used at the same time.
    pub link: AlphaBeta,
}

/// The exchanges of a plan.
pub(super) struct Exchanges {
    distinct: Vec<Exchange>,
    of_channel: Vec<usize>,
}

impl Exchanges {
    /// Finds the exchanges of all channels.
    pub(super) fn new(plan: &Plan) -> Self {
        let mut known: BTreeMap<(LayoutId, LayoutId), usize> = BTreeMap::new();
        let mut exchanges = Self { distinct: Vec::new(), of_channel: Vec::new() };
        for channel in &plan.channels {
            let index = *known.entry((channel.from, channel.to)).or_insert_with(|| {
                let layout = |id: LayoutId| &plan.layouts[id.index()];
                exchanges.distinct.push(find_exchange(
                    plan,
                    layout(channel.from),
                    layout(channel.to),
                ));
                exchanges.distinct.len() - 1
            });
            exchanges.of_channel.push(index);
        }
        exchanges
    }

    /// Returns each different exchange once.
    pub(super) fn all(&self) -> &[Exchange] {
        &self.distinct
    }

    /// Returns the exchange of a channel.
    pub(super) fn of_channel(&self, channel: usize) -> &Exchange {
        &self.distinct[self.of_channel[channel]]
    }
}

fn find_exchange(plan: &Plan, from: &Layout, to: &Layout) -> Exchange {
    let mut ranks: Vec<u32> = from.ranks.iter().chain(&to.ranks).copied().collect();
    ranks.sort_unstable();
    ranks.dedup();
    let link = alpha_beta(&plan.cluster, &ranks, None);
    let mut all = Senders::new(from, plan.microbatches);
    let (mut incoming, mut receivers) = (BTreeMap::new(), BTreeMap::<u32, Vec<u32>>::new());
    for (position, &receiver) in to.ranks.iter().enumerate() {
        let (mut senders, mut messages, mut bytes) = (Vec::new(), 0, 0);
        all.visit_senders(to, position, &mut |sender, part| {
            let sender = from.ranks[sender];
            senders.push(sender);
            receivers.entry(sender).or_default().push(receiver);
            if sender != receiver {
                messages += 1;
                bytes += part;
            }
        });
        let bytes = bytes as f64;
        let seconds = exchange_seconds(&plan.cluster, link, messages, bytes);
        let on_link = messages_seconds(link, messages, bytes);
        incoming.insert(receiver, Incoming { senders, seconds, on_link, link });
    }
    Exchange { incoming, receivers }
}
