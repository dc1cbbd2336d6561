//! Two things at once, where each is the same whether they are or not.

use std::sync::Mutex;
use std::thread::{Builder, scope};

/// The stack of the second thread, as main threads have: passes follow graphs in depth.
const STACK: usize = 8 << 20;

/// Does two things, the second in a thread of its own; one after the other where there is none to be had.
pub fn side_by_side<A, B: Send>(
    first: impl FnOnce() -> A,
    second: impl FnOnce() -> B + Send,
) -> (A, B) {
    let second = Mutex::new(Some(second));
    let run = || {
        let second = second.lock().ok().and_then(|mut second| second.take());
        second.expect("it is run once")()
    };
    scope(|scope| match Builder::new().stack_size(STACK).spawn_scoped(scope, run) {
        Ok(running) => {
            let first = first();
            (first, running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        }
        Err(_) => (first(), run()),
    })
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
    fn the_second_may_wait_for_the_first() {
        let (tell, told) = std::sync::mpsc::channel();
        let (first, second) = side_by_side(move || tell.send(7).is_ok(), move || told.recv());
        assert_eq!((first, second), (true, Ok(7)));
    }
}
