//! Work of libraries on streams: it has its turn, and is done again by each replay of a graph.

use std::ffi::c_void;
use std::ptr::null_mut;

use gpu_double::driver::{context, copies, graphs, memory, streams};
use gpu_double::work::{Access, Poll, Work, current_device, device_of, submit};

/// Waits a few times, then doubles a byte.
struct Twice {
    address: u64,
    waits: u32,
}

impl Work for Twice {
    fn name(&self) -> &str {
        "twice"
    }

    fn poll(&mut self, memory: &mut Access<'_>) -> Poll {
        if self.waits < 3 {
            self.waits += 1;
            return Poll::NotYet;
        }
        let doubled = memory.read(self.address, 1).map(|bytes| bytes[0] * 2);
        let written = doubled.and_then(|value| {
            memory.write(self.address, 1)?[0] = value;
            Ok(())
        });
        written.map_or_else(Poll::Failed, |()| Poll::Done)
    }

    fn again(&self) -> Box<dyn Work> {
        Box::new(Twice { address: self.address, waits: 0 })
    }
}

fn read(stream: *mut c_void, address: u64) -> u8 {
    let mut byte = 0u8;
    // SAFETY: a place for one byte.
    let code = unsafe { copies::cuMemcpyDtoHAsync_v2((&raw mut byte).cast(), address, 1, stream) };
    assert_eq!(code, 0);
    byte
}

#[test]
fn work_is_done_in_its_turn_and_again_in_each_replay() {
    let (mut place, mut stream, mut address) = (null_mut(), null_mut(), 0);
    // SAFETY: places for handles and an address.
    unsafe {
        assert_eq!(context::cuDevicePrimaryCtxRetain(&mut place, 2), 0);
        assert_eq!(context::cuCtxSetCurrent(place), 0);
        assert_eq!(streams::cuStreamCreate(&mut stream, 1), 0);
        assert_eq!(memory::cuMemAlloc_v2(&mut address, 1), 0);
    }
    assert_eq!((current_device(), device_of(stream)), (Some(2), 2));
    assert_eq!(copies::cuMemsetD8Async(address, 3, 1, stream), 0);
    assert_eq!(submit(stream, Box::new(Twice { address, waits: 0 })), 0);
    assert_eq!(read(stream, address), 6);
    let (mut graph, mut executable) = (null_mut(), null_mut());
    assert_eq!(streams::cuStreamBeginCapture_v2(stream, 1), 0);
    assert_eq!(submit(stream, Box::new(Twice { address, waits: 2 })), 0);
    // SAFETY: places for handles.
    unsafe {
        assert_eq!(streams::cuStreamEndCapture(stream, &mut graph), 0);
        assert_eq!(graphs::cuGraphInstantiateWithFlags(&mut executable, graph, 0), 0);
    }
    assert_eq!(read(stream, address), 6);
    assert_eq!(graphs::cuGraphLaunch(executable, stream), 0);
    assert_eq!(graphs::cuGraphLaunch(executable, stream), 0);
    assert_eq!(read(stream, address), 24);
}
