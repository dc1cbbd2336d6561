//! The hand-over under many schedules.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::Crew;
use crate::explore::explore;

/// Every part is done once, before its call returns, and helpers end: with two helpers, and two callers of two tasks each.
fn tasks_of_two_callers() {
    let crew = Arc::new(Crew::new(3, Duration::ZERO));
    let helper = |index| {
        let crew = Arc::clone(&crew);
        shuttle::thread::spawn(move || crew.help(index))
    };
    let helpers = [helper(1), helper(2)];
    let caller = |counts: [usize; 2]| {
        let crew = Arc::clone(&crew);
        shuttle::thread::spawn(move || {
            for count in counts {
                let done: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                crew.run(count, &|part| {
                    done[part].fetch_add(1, Ordering::Relaxed);
                });
                assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == 1), "{done:?}");
            }
        })
    };
    let callers = [caller([3, 1]), caller([2, 4])];
    callers.into_iter().for_each(|caller| caller.join().expect("every part is done once"));
    crew.end();
    helpers.into_iter().for_each(|helper| helper.join().expect("helpers do not panic"));
}

#[test]
fn every_part_is_done_once_under_every_schedule() {
    explore(600, tasks_of_two_callers);
}
