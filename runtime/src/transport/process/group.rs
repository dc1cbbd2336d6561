//! Exchanges between processes: a queue for each pair and direction.

use std::time::Duration;

use super::{ReceiveEnd, SendEnd};
use crate::transport::{Group, Offer, TransportError};

/// One rank's end of a group.
pub(super) struct ProcessGroup {
    /// Per member of the group; none for this rank.
    ends: Vec<Option<(SendEnd, ReceiveEnd)>>,
}

impl ProcessGroup {
    pub(super) fn new(ends: Vec<Option<(SendEnd, ReceiveEnd)>>) -> Self {
        Self { ends }
    }

    fn ends(&mut self, peer: usize) -> &mut (SendEnd, ReceiveEnd) {
        self.ends[peer].as_mut().expect("a rank offers nothing to itself and takes nothing")
    }
}

impl Group for ProcessGroup {
    fn exchange(
        &mut self,
        pieces: &[&[u8]],
        offers: &[Offer],
        takes: &[usize],
        read: &mut dyn FnMut(usize, &[&[u8]]),
    ) -> Result<Duration, TransportError> {
        let mut waited = Duration::ZERO;
        for offer in offers {
            waited += self.ends(offer.peer).0.show(&pieces[offer.pieces.clone()])?;
        }
        for (index, &from) in takes.iter().enumerate() {
            waited += self.ends(from).1.take(&mut |pieces| read(index, pieces))?;
        }
        for offer in offers {
            waited += self.ends(offer.peer).0.settle()?;
        }
        Ok(waited)
    }
}
