//! Events of a card: places in streams that other streams wait for, or that tell how much time is between them.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{result, sys};

use super::driver::{CardContext, Trouble, driver_trouble};
use super::library::Library;

/// An event.
#[derive(Debug)]
pub(super) struct Mark {
    context: Arc<CardContext>,
    raw: sys::CUevent,
}

// SAFETY: an event may be used from any thread.
unsafe impl Send for Mark {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mark {}

impl Mark {
    /// Makes an event that is waited for.
    pub(super) fn new(context: &Arc<CardContext>) -> Result<Self, Trouble> {
        Self::with_flags(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// Makes an event that records its time.
    pub(super) fn new_timed(context: &Arc<CardContext>) -> Result<Self, Trouble> {
        Self::with_flags(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with_flags(context: &Arc<CardContext>, flags: sys::CUevent_flags) -> Result<Self, Trouble> {
        context.make_current()?;
        let raw = result::event::create(flags).map_err(driver_trouble("cannot make an event"))?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    pub(super) fn raw(&self) -> sys::CUevent {
        self.raw
    }

    /// Returns the time from this event to a later one of its stream; both are timed and have come.
    pub(super) fn elapsed_until(&self, later: &Self) -> Result<Duration, Trouble> {
        type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
        self.context.make_current()?;
        // By the name of its first version, which every driver has: the second came with CUDA 12.8.
        let found =
            Library::Driver.find().map_err(|missing| Trouble::from_text(missing.to_string()))?;
        let mut milliseconds = 0.0f32;
        // SAFETY: that is the function's type in the driver's header; both events were made here and are kept.
        unsafe {
            let elapsed = found.opened.get::<Elapsed>(b"cuEventElapsedTime");
            let elapsed = elapsed.map_err(|error| Trouble::from_text(error.to_string()))?;
            let asked = elapsed(&mut milliseconds, self.raw, later.raw).result();
            asked.map_err(driver_trouble("cannot ask for the time between events"))?;
        }
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: it was made once.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}
