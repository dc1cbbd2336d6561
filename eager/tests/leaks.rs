//! Operations in a row leave no memory allocated. This test has a process of its own, so that it counts only its own allocations.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use common::{Failure, on, on_job, sbp};
use graphc_eager::{Eager, GlobalTensor};
use graphc_ir::mesh::Placement;
use graphc_runtime::job::TransportLinks;

/// An allocator that counts the bytes that are allocated and not freed.
struct Counting;

static ALIVE: AtomicI64 = AtomicI64::new(0);

// SAFETY: the system's allocator does what is asked; only numbers are counted beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALIVE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Does five operations, some of which communicate.
fn round(eager: &Eager, x: &GlobalTensor) -> Result<GlobalTensor, Failure> {
    let pair = Placement::mesh(&[2])?;
    let y = x.to_global(&pair, &sbp("S(1)"))?;
    let z = (x + &y)?.matmul(x)?.relu()?;
    drop(eager.randn([8, 8], &pair, &sbp("S(0)"))?);
    Ok((z * 0.001)?.to_global(&pair, &sbp("S(0)"))?)
}

/// No memory stays allocated after many operations. The parts run one after the other, because all live memory is counted together.
#[test]
fn operations_in_a_row_keep_nothing() {
    ten_thousand_operations_keep_nothing();
    plans_of_many_shapes_are_not_kept_for_ever();
    shapes_of_many_tensors_are_not_kept_for_ever();
}

fn ten_thousand_operations_keep_nothing() {
    let threads = on(2, |eager| alive(&eager));
    let processes =
        on_job((2, TransportLinks::Auto), Duration::from_secs(600), |eager| alive(&eager));
    let processes = processes.into_iter().map(|rank| rank.expect("every rank succeeds"));
    for rank in threads.into_iter().chain(processes) {
        let grown = rank[3] - rank[0];
        assert!(grown.abs() < 16 << 10, "{grown} bytes more after 1500 rounds: {rank:?}");
    }
}

/// Returns the bytes that are allocated after 500, 1000, 1500 and 2000 rounds.
fn alive(eager: &Eager) -> Result<Vec<i64>, Failure> {
    let mut x = eager.ones([8, 8], &Placement::mesh(&[2])?, &sbp("S(0)"))?;
    let mut alive = Vec::new();
    for turn in 0..2000 {
        x = round(eager, &x)?;
        if turn % 500 == 499 {
            // Between two of these calls each rank is at the same place.
            x.to_host()?;
            alive.push(ALIVE.load(Ordering::Relaxed));
            x.to_host()?;
        }
    }
    Ok(alive)
}

/// Plans that were not called for long are dropped. Each shape has plans of its own.
fn plans_of_many_shapes_are_not_kept_for_ever() {
    let alive = on(1, |eager| {
        let mut alive = Vec::new();
        for size in 1..=900 {
            // Without elements, so that memory is that of plans alone.
            let x = eager.ones([size, 0], &eager.all(), &sbp("B"))?;
            (&x + &x)?;
            alive.push(ALIVE.load(Ordering::Relaxed));
        }
        Ok(alive)
    });
    // Beyond the plans that are kept nothing grows.
    let (filled, grown) = (alive[0][255] - alive[0][0], alive[0][899] - alive[0][644]);
    assert!(grown < filled / 30, "{filled} bytes for 256 plans, {grown} for as many more");
}

/// A shape for which nothing was planned is forgotten with its tensors.
fn shapes_of_many_tensors_are_not_kept_for_ever() {
    let alive = on(1, |eager| {
        let mut alive = Vec::new();
        for size in 1..=4096 {
            eager.ones([size, 0], &eager.all(), &sbp("B"))?;
            alive.push(ALIVE.load(Ordering::Relaxed));
        }
        Ok(alive)
    });
    let grown = alive[0][4095] - alive[0][1023];
    assert!(grown < 128 << 10, "{grown} bytes more for 3072 shapes");
}
