//! Calls of the MPI library. A buffer that the library may read or write belongs to the call ([`Flying`]) until the
//! library says that it is done; where that never comes, the memory is given up rather than freed.

use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;

use mpi::ffi;
use mpi::topology::SimpleCommunicator;
use mpi::traits::AsRaw;

/// All of graphc's messages have this tag.
const TAG: c_int = 0;

/// A group of processes and the messages between them.
#[derive(Debug)]
pub(crate) struct MpiCommunicator {
    raw: ffi::MPI_Comm,
}

// SAFETY: a communicator is a handle that the library lets any thread use at the thread level that `MpiWorld` insists on.
unsafe impl Send for MpiCommunicator {}
// SAFETY: as above.
unsafe impl Sync for MpiCommunicator {}

/// A call under way, and its buffer.
#[derive(Debug)]
pub(crate) struct Flying {
    request: ffi::MPI_Request,
    /// The buffer, until the call is done.
    buffer: Option<Vec<u8>>,
    /// The number of bytes that the buffer holds then.
    length: usize,
}

// SAFETY: as for `MpiCommunicator`; the buffer is this structure's own.
unsafe impl Send for Flying {}

/// Checks that a call went well; if not, returns the library's text.
fn check_code(code: c_int) -> io::Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0_u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length = 0;
    // SAFETY: the text has room for the longest that the library writes.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &raw mut length) };
    let text = text.get(..length.max(0) as usize).unwrap_or_default();
    Err(io::Error::other(format!("MPI says: {}", String::from_utf8_lossy(text))))
}

fn to_mpi_count(length: usize) -> io::Result<c_int> {
    c_int::try_from(length).map_err(|_| io::Error::other("a message beyond what MPI counts"))
}

impl MpiCommunicator {
    /// Takes a communicator over, whose errors are told from now on instead of ending the process.
    pub(super) fn new(own: SimpleCommunicator) -> io::Result<Self> {
        let raw = own.as_raw();
        // The end of MPI frees it; before that nobody may.
        std::mem::forget(own);
        // SAFETY: a live communicator and a constant of the library.
        check_code(unsafe { ffi::MPI_Comm_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN) })?;
        Ok(Self { raw })
    }

    /// Begins to send a message.
    ///
    /// # Errors
    /// Where the library says so.
    pub(crate) fn send(&self, buffer: Vec<u8>, to: u32) -> io::Result<Flying> {
        let (start, length) = (buffer.as_ptr().cast::<c_void>(), buffer.len());
        let (count, to) = (to_mpi_count(length)?, to as c_int);
        Flying::start(buffer, length, |request| {
            // SAFETY: the bytes stay where they are, and unchanged, until the request is done: `Flying` keeps them.
            unsafe { ffi::MPI_Isend(start, count, ffi::RSMPI_UINT8_T, to, TAG, self.raw, request) }
        })
    }

    /// Begins to receive the next message of anybody, if one has come, into a buffer that `buffer` gives for its length.
    /// Returns from whom it is.
    ///
    /// # Errors
    /// Where the library says so.
    pub(crate) fn receive(
        &self,
        buffer: impl FnOnce(usize) -> Vec<u8>,
    ) -> io::Result<Option<(u32, Flying)>> {
        let (mut found, mut count) = (0, 0);
        let mut message = MaybeUninit::uninit();
        let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
        // SAFETY: everything is written to places of the right types.
        check_code(unsafe {
            let (message, status) = (message.as_mut_ptr(), status.as_mut_ptr());
            ffi::MPI_Improbe(ffi::RSMPI_ANY_SOURCE, TAG, self.raw, &raw mut found, message, status)
        })?;
        if found == 0 {
            return Ok(None);
        }
        // SAFETY: the library has filled the status in, as it found a message.
        let from = unsafe { status.assume_init_ref() }.MPI_SOURCE;
        // SAFETY: as above.
        check_code(unsafe {
            ffi::MPI_Get_count(status.as_ptr(), ffi::RSMPI_UINT8_T, &raw mut count)
        })?;
        let length = count.max(0) as usize;
        let mut buffer = buffer(length);
        buffer.clear();
        buffer.reserve(length);
        let start = buffer.as_mut_ptr().cast::<c_void>();
        let flying = Flying::start(buffer, length, |request| {
            // SAFETY: the message was found above; the buffer has room for it and stays until the request is done.
            unsafe {
                ffi::MPI_Imrecv(start, count, ffi::RSMPI_UINT8_T, message.as_mut_ptr(), request)
            }
        })?;
        Ok(Some((from as u32, flying)))
    }

    /// Begins to bring rank 0's bytes to all, which bring as many.
    ///
    /// # Errors
    /// Where the library says so.
    pub(crate) fn broadcast(&self, mut buffer: Vec<u8>) -> io::Result<Flying> {
        let (start, length) = (buffer.as_mut_ptr().cast::<c_void>(), buffer.len());
        let count = to_mpi_count(length)?;
        Flying::start(buffer, length, |request| {
            // SAFETY: the bytes stay where they are until the request is done: `Flying` keeps them.
            unsafe { ffi::MPI_Ibcast(start, count, ffi::RSMPI_UINT8_T, 0, self.raw, request) }
        })
    }

    /// Begins to wait for all processes.
    ///
    /// # Errors
    /// Where the library says so.
    pub(crate) fn barrier(&self) -> io::Result<Flying> {
        Flying::start(Vec::new(), 0, |request| {
            // SAFETY: a live communicator and a place for the request.
            unsafe { ffi::MPI_Ibarrier(self.raw, request) }
        })
    }
}

impl Flying {
    fn start(
        buffer: Vec<u8>,
        length: usize,
        call: impl FnOnce(*mut ffi::MPI_Request) -> c_int,
    ) -> io::Result<Self> {
        // SAFETY: a constant of the library.
        let request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let mut flying = Self { request, buffer: Some(buffer), length };
        check_code(call(&raw mut flying.request))?;
        Ok(flying)
    }

    /// Takes the buffer, if the call is done. Not to be asked again then.
    ///
    /// # Errors
    /// Where the library says so.
    pub(crate) fn take_if_done(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut done = 0;
        // SAFETY: the request is one that the library has made, or none, which is done.
        check_code(unsafe {
            ffi::MPI_Test(&raw mut self.request, &raw mut done, ffi::RSMPI_STATUS_IGNORE)
        })?;
        if done == 0 {
            return Ok(None);
        }
        let mut buffer = self.buffer.take().unwrap_or_default();
        debug_assert!(buffer.capacity() >= self.length);
        // SAFETY: a call that sends leaves its bytes; one that receives has written so many, for which there was room.
        unsafe { buffer.set_len(self.length.min(buffer.capacity())) };
        Ok(Some(buffer))
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        // The library may still touch it.
        std::mem::forget(self.buffer.take());
    }
}
