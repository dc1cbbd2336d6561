//! Copies between host and card that neither waits for go through memory of the host that the card reaches.

use graphc_comm::memory::{ArenaRange, HostArena};

use super::driver::{Pinned, Queue, Trouble};

/// Memory through which copies between host and card go, while neither waits for the other.
#[derive(Default)]
pub(super) struct HostStaging {
    /// Copies to the card that may be under way.
    busy: Vec<Pinned>,
    free: Vec<Pinned>,
    /// Copies from the card that are under way, and where they go.
    coming: Vec<(Pinned, ArenaRange)>,
}

impl HostStaging {
    pub(super) fn take_buffer(&mut self, queue: &Queue, bytes: usize) -> Result<Pinned, Trouble> {
        let fits = self.free.iter().enumerate().filter(|(_, pinned)| pinned.bytes() >= bytes);
        match fits.min_by_key(|(_, pinned)| pinned.bytes()).map(|(index, _)| index) {
            Some(index) => Ok(self.free.swap_remove(index)),
            None => Pinned::new(queue.context(), bytes.next_power_of_two()),
        }
    }

    pub(super) fn upload(&mut self, queue: &Queue, from: &[u8], to: u64) -> Result<(), Trouble> {
        self.fill_and_upload(queue, from.len(), to, |into| into.copy_from_slice(from)).1
    }

    /// Lets `write` fill memory that is then copied; it is called whatever happens.
    pub(super) fn fill_and_upload<R>(
        &mut self,
        queue: &Queue,
        bytes: usize,
        to: u64,
        write: impl FnOnce(&mut [u8]) -> R,
    ) -> (R, Result<(), Trouble>) {
        match self.take_buffer(queue, bytes) {
            Ok(mut pinned) => {
                let result = write(pinned.slice_mut(bytes));
                let begun = queue.upload(&pinned, bytes, to);
                self.busy.push(pinned);
                (result, begun)
            }
            Err(trouble) => (write(&mut vec![0; bytes]), Err(trouble)),
        }
    }

    pub(super) fn begin_download(
        &mut self,
        queue: &Queue,
        from: u64,
        place: ArenaRange,
    ) -> Result<(), Trouble> {
        let mut pinned = self.take_buffer(queue, place.bytes)?;
        let begun = queue.download(from, &mut pinned, place.bytes);
        self.coming.push((pinned, place));
        begun
    }

    /// Takes what was downloaded, as the stream is idle.
    pub(super) fn end_downloads(&mut self, image: &HostArena) {
        for (pinned, place) in self.coming.drain(..) {
            image.write(place).copy_from_slice(pinned.slice(place.bytes));
            self.free.push(pinned);
        }
        self.all_done();
    }

    /// Frees all busy buffers, as the stream is idle.
    pub(super) fn all_done(&mut self) {
        self.free.append(&mut self.busy);
    }
}
