use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::ThreadPool;

fn pool(threads: usize, spin: u64) -> ThreadPool {
    ThreadPool::new(threads, Duration::from_micros(spin), |index| format!("helper {index}"))
        .expect("threads start")
}

/// Counts how many times each part of a task was done.
fn counted(pool: &ThreadPool, count: usize) -> Vec<usize> {
    let done: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
    pool.run(count, &|part| {
        done[part].fetch_add(1, Ordering::Relaxed);
    });
    done.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_part_is_done_once_by_helpers_that_sleep_or_look() {
    for (threads, spin) in [(1, 0), (2, 0), (2, 1000), (3, 0), (3, 20), (5, 0)] {
        let pool = pool(threads, spin);
        for task in 0..3000 {
            let count = task % 13;
            assert_eq!(counted(&pool, count), vec![1; count], "{threads} threads, task {task}");
        }
    }
}

#[test]
fn results_are_seen_by_the_caller_and_by_the_next_task() {
    let pool = pool(3, 20);
    let sums: Vec<AtomicUsize> = (0..8).map(|_| AtomicUsize::new(0)).collect();
    for task in 0..2000 {
        // Each part reads what another part of the task before has written.
        pool.run(8, &|part| {
            if task % 2 == part % 2 {
                let of = sums[(part + 1) % 8].load(Ordering::Relaxed);
                sums[part].store(of + 1, Ordering::Relaxed);
            }
        });
    }
    let sums: Vec<usize> = sums.iter().map(|sum| sum.load(Ordering::Relaxed)).collect();
    assert_eq!(sums, [1999, 2000, 1999, 2000, 1999, 2000, 1999, 2000]);
}

#[test]
fn callers_beside_each_other_and_within_each_other_get_their_work_done() {
    let pool = pool(3, 20);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..500).for_each(|_| assert_eq!(counted(&pool, 7), [1; 7])));
        }
    });
    let inner = AtomicUsize::new(0);
    pool.run(4, &|_| {
        pool.run(5, &|_| {
            inner.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(inner.into_inner(), 20);
}

#[test]
fn a_panic_reaches_the_caller_when_all_parts_are_done_and_leaves_the_pool_whole() {
    let pool = pool(2, 20);
    for failing in 0..6 {
        let done = AtomicUsize::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(6, &|part| {
                done.fetch_add(1, Ordering::Relaxed);
                assert!(part != failing, "part {failing}");
            });
        }));
        let panic = result.expect_err("one part panics");
        assert_eq!(panic.downcast_ref::<String>().unwrap(), &format!("part {failing}"));
        assert_eq!(done.into_inner(), 6);
    }
    assert_eq!(counted(&pool, 6), [1; 6]);
}
