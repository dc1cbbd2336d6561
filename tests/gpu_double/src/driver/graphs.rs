//! Graphs that were captured, and their launches.

use super::context::device;
use super::{Handle, put};
use crate::code::Code;
use crate::machine;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(
    place: *mut Handle,
    graph: Handle,
    _: u64,
) -> i32 {
    machine::call(|machine| {
        let executable = machine.instantiate(graph as u64)?;
        // SAFETY: see `put`.
        unsafe { put(place, executable as Handle) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(executable: Handle, stream: Handle) -> i32 {
    machine::call(|machine| {
        let stream = machine.stream(stream as u64, device())?;
        machine.launch_graph(executable as u64, stream)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphUpload(_: Handle, _: Handle) -> i32 {
    Code::Success as i32
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(executable: Handle) -> i32 {
    machine::call(|machine| machine.destroy_executable(executable as u64))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: Handle) -> i32 {
    machine::call(|machine| machine.destroy_graph(graph as u64))
}

/// The number of nodes; their handles are numbers without a meaning.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetNodes(
    graph: Handle,
    nodes: *mut Handle,
    count: *mut usize,
) -> i32 {
    machine::call(|machine| {
        let found = machine.graph_nodes(graph as u64)?;
        if count.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller gives `count` places where it gives any.
        unsafe {
            if !nodes.is_null() {
                let room = (*count).min(found);
                (0..room).for_each(|at| nodes.add(at).write((at + 1) as Handle));
            }
            put(count, found)
        }
    })
}
