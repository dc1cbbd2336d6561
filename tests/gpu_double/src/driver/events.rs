//! Events.

use super::context::{current, device};
use super::{Handle, put};
use crate::machine;

/// Flag of events that measure no times.
const NO_TIMES: u32 = 2;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(place: *mut Handle, flags: u32) -> i32 {
    machine::call(|machine| {
        current()?;
        let event = machine.create_event(flags & NO_TIMES == 0);
        // SAFETY: see `put`.
        unsafe { put(place, event as Handle) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Handle) -> i32 {
    machine::call(|machine| machine.destroy_event(event as u64))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> i32 {
    machine::call(|machine| {
        let stream = machine.stream(stream as u64, device())?;
        machine.record_event(event as u64, stream)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecordWithFlags(event: Handle, stream: Handle, _: u32) -> i32 {
    cuEventRecord(event, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: Handle) -> i32 {
    machine::call(|machine| {
        let place = machine.place_of_event(event as u64)?;
        machine.query(&place)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Handle) -> i32 {
    machine::wait(|machine| {
        let place = machine.place_of_event(event as u64)?;
        Ok(place)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(time: *mut f32, from: Handle, to: Handle) -> i32 {
    machine::call(|machine| {
        let elapsed = machine.elapsed(from as u64, to as u64)?;
        // SAFETY: see `put`.
        unsafe { put(time, elapsed) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(time: *mut f32, from: Handle, to: Handle) -> i32 {
    // SAFETY: handed on.
    unsafe { cuEventElapsedTime(time, from, to) }
}
