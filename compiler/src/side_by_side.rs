//! Two things at once, where each is the same whether they are or not.

use rayon::ThreadPoolBuilder;

/// The stack of the second thread, as main threads have: passes follow graphs in depth.
const STACK: usize = 8 << 20;

/// Does two things, the second in a thread of its own; one after the other where there is none to be had.
///
/// The thread is not one of those that all of rayon's work shares: the second may wait for the first, and what the first has done in
/// parallel must not wait for it.
pub fn side_by_side<A, B: Send>(
    first: impl FnOnce() -> A,
    second: impl FnOnce() -> B + Send,
) -> (A, B) {
    let Ok(pool) = ThreadPoolBuilder::new().num_threads(1).stack_size(STACK).build() else {
        return (first(), second());
    };
    let mut given = None;
    let first = pool.in_place_scope(|scope| {
        scope.spawn(|_| given = Some(second()));
        first()
    });
    (first, given.expect("what is begun in a scope ends in it"))
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
