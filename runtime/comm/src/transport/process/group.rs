//! Exchanges between processes: a queue for each pair and direction.

use std::time::Duration;

use super::{ReceiveEnd, SendEnd};
use crate::transport::{ExchangeGroup, Lending, Lent, Offer, TransportError, Work};

/// One rank's end of a group.
pub(super) struct ProcessGroup {
    /// The ends of each member of the group; none for this rank.
    ends: Vec<Option<(SendEnd, ReceiveEnd)>>,
}

impl ProcessGroup {
    pub(super) fn new(ends: Vec<Option<(SendEnd, ReceiveEnd)>>) -> Self {
        Self { ends }
    }

    fn peer_ends(&mut self, peer: usize) -> &mut (SendEnd, ReceiveEnd) {
        self.ends[peer].as_mut().expect("a rank offers nothing to itself and takes nothing")
    }
}

impl ExchangeGroup for ProcessGroup {
    fn exchange(
        &mut self,
        pieces: &[&[u8]],
        offers: &[Offer],
        takes: &[usize],
        read: &mut dyn FnMut(usize, &[&[u8]]),
    ) -> Result<Duration, TransportError> {
        let mut waited = Duration::ZERO;
        for offer in offers {
            waited += self.peer_ends(offer.peer).0.show_pieces(&pieces[offer.pieces.clone()])?;
        }
        for (index, &from) in takes.iter().enumerate() {
            waited += self.peer_ends(from).1.receive_pieces(&mut |pieces| read(index, pieces))?;
        }
        for offer in offers {
            waited += self.peer_ends(offer.peer).0.settle_loans()?;
        }
        Ok(waited)
    }

    fn as_lending(&mut self) -> Option<&mut dyn Lending> {
        let shared = |ends: &Option<(SendEnd, ReceiveEnd)>| {
            matches!(ends, None | Some((SendEnd::Shared(_), ReceiveEnd::Shared(_))))
        };
        self.ends.iter().all(shared).then_some(self)
    }
}

impl Lending for ProcessGroup {
    fn lend(&mut self, own: &[Lent<'_>], work: &mut Work<'_>) -> Result<Duration, TransportError> {
        let mut waited = Duration::ZERO;
        let pieces: Vec<&[u8]> = own.iter().map(Lent::bytes).collect();
        for (sender, _) in self.ends.iter_mut().flatten() {
            waited += sender.show_pieces(&pieces)?;
        }
        let mut held: Vec<Vec<Lent<'_>>> = Vec::with_capacity(self.ends.len());
        for ends in &mut self.ends {
            let mut lent = own.to_vec();
            if let Some((_, ReceiveEnd::Shared(receiver))) = ends {
                let (time, theirs) = receiver.hold_lent()?;
                waited += time;
                lent = theirs;
            }
            held.push(lent);
        }
        work(&|rank| &held[rank]);
        for (_, receiver) in self.ends.iter_mut().flatten() {
            if let ReceiveEnd::Shared(receiver) = receiver {
                receiver.release_lent();
            }
        }
        for (sender, _) in self.ends.iter().flatten() {
            waited += sender.settle_loans()?;
        }
        Ok(waited)
    }
}
