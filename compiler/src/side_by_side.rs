//! Runs several pieces of work at once, with the same results as one after the other.
//!
//! The results never depend on the number of threads. If the system gives fewer threads than there are processors, or none, the same work is done
//! with those that there are.

use std::sync::{Mutex, OnceLock};

use graphc_ir::trace::current_span;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// The numbers of shared threads that are tried in turn until the system gives them. 0 means as many as rayon would take: one for each processor, or
/// what `RAYON_NUM_THREADS` says.
const NUMBERS: [usize; 5] = [0, 16, 8, 4, 2];
/// The stack of each thread, which is as large as that of main threads because passes follow graphs in depth.
const STACK: usize = 8 << 20;

/// Does two things at once, the second in a thread of its own. If there is no thread, it does one after the other.
///
/// The thread is not one of rayon's shared threads. The second may wait for the first, and parallel work of the first must not wait for it.
pub(crate) fn side_by_side<A, B: Send>(
    first: impl FnOnce() -> A,
    second: impl FnOnce() -> B + Send,
) -> (A, B) {
    let Ok(pool) = ThreadPoolBuilder::new().num_threads(1).stack_size(STACK).build() else {
        return (first(), second());
    };
    let mut given = None;
    let span = current_span();
    let first = pool.in_place_scope(|scope| {
        scope.spawn(|_| {
            let _span = span.entered();
            given = Some(second());
        });
        first()
    });
    (first, given.expect("what is begun in a scope ends in it"))
}

/// Does the same work with each of several items, in the shared threads. The results are in the order of the items.
pub(crate) fn map_side_by_side<T: Send, R: Send>(
    items: Vec<T>,
    work: impl Fn(T) -> R + Sync + Send,
) -> Vec<R> {
    let span = current_span();
    let inside = |item| {
        let _span = span.clone().entered();
        work(item)
    };
    match shared_pool() {
        Some(pool) => pool.install(|| items.into_par_iter().map(inside).collect()),
        None => items.into_iter().map(work).collect(),
    }
}

/// Does the same work with each of several items, in as many threads as there are shared ones. The results are in the order of the items.
///
/// The threads are not the shared ones, so the work may wait for what those do.
pub(crate) fn map_in_own_threads<T: Send, R: Send>(
    items: Vec<T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    const UNHARMED: &str = "no thread panics while it holds this";
    let threads = shared_pool().map_or(1, ThreadPool::current_num_threads).min(items.len());
    let mut done: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let queue = Mutex::new(items.into_iter().zip(&mut done));
    let take_all = || {
        loop {
            let Some((item, result)) = queue.lock().expect(UNHARMED).next() else { break };
            *result = Some(work(item));
        }
    };
    repeat_side_by_side(threads, &take_all);
    drop(queue);
    done.into_iter().map(|result| result.expect("each item is taken once")).collect()
}

/// Does the same thing in so many threads at once, of which the calling one is the first.
fn repeat_side_by_side(threads: usize, work: &(dyn Fn() + Sync)) {
    match threads {
        0 | 1 => work(),
        _ => {
            side_by_side(|| repeat_side_by_side(threads - 1, work), work);
        }
    }
}

/// Returns the shared threads, or `None` if there is only the calling thread.
fn shared_pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    POOL.get_or_init(|| make_pool(&NUMBERS)).as_ref()
}

/// Makes a pool with the first of these numbers of threads that the system gives.
fn make_pool(numbers: &[usize]) -> Option<ThreadPool> {
    let build = |&threads: &usize| {
        ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK).build().ok()
    };
    // One thread more than the one that calls would only take its place.
    numbers.iter().find_map(build).filter(|pool| pool.current_num_threads() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_done_and_what_they_give_is_in_order() {
        let numbers = [1, 2, 3];
        let (first, second) = side_by_side(|| numbers.len(), || numbers.iter().sum::<i32>());
        assert_eq!((first, second), (3, 6));
    }

    #[test]
    fn what_is_made_of_items_is_in_their_order() {
        let squares = map_side_by_side((0..1000).collect(), |number: usize| number * number);
        assert_eq!(squares, Vec::from_iter((0..1000).map(|number| number * number)));
    }

    #[test]
    fn own_threads_may_wait_for_shared_ones() {
        let of = |number: usize| map_side_by_side(vec![number; 3], |number| 2 * number).len();
        let found = map_in_own_threads((0..50).collect(), |number| (number, of(number)));
        assert_eq!(found, Vec::from_iter((0..50).map(|number| (number, 3))));
        assert!(map_in_own_threads(Vec::<usize>::new(), of).is_empty());
    }

    #[test]
    fn a_pool_of_one_thread_is_none() {
        assert!(make_pool(&[1]).is_none());
        assert!(make_pool(&[2]).is_some_and(|pool| pool.current_num_threads() == 2));
    }

    #[test]
    fn the_second_may_wait_for_the_first() {
        let (tell, told) = std::sync::mpsc::channel();
        let (first, second) = side_by_side(move || tell.send(7).is_ok(), move || told.recv());
        assert_eq!((first, second), (true, Ok(7)));
    }
}
