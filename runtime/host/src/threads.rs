//! Threads that are begun with a name, and tasks that several threads do.
//!
//! Where the system gives fewer threads than are wanted, what only goes faster by them is done with those that there are:
//! files of checkpoints, compilation of kernels, random numbers. Ranks, streams and connections need theirs; lacking one
//! is an error that says what to allow.

use std::any::Any;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};

/// Starts a thread.
///
/// # Errors
/// Where the system gives none: what it says, and what can be done.
pub fn start_thread<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(work).map_err(explain_thread_error)
}

/// Adds advice to the system's error where it gives no thread or no process; other errors stay as they are.
pub fn explain_thread_error(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(
            error.kind(),
            format!(
                "the system gives no more threads or processes ({error}): end others, or allow the user and the container more of \
                 them (`ulimit -u`; the limit of pids)"
            ),
        ),
        _ => error,
    }
}

/// Returns the message of a thread that has panicked.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text")
}

/// Runs a number of tasks on as many threads as the process may use, or as the system gives, and returns their results
/// in order.
pub fn side_by_side<R: Send>(tasks: usize, task: impl Fn(usize) -> R + Sync) -> Vec<R> {
    /// The stack of a process's first thread: NVIDIA's compiler is made for that, and other threads of ours have less.
    const STACK: usize = 8 << 20;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(tasks);
    let next = AtomicUsize::new(0);
    let work = || {
        let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&at| at < tasks);
        std::iter::from_fn(take).map(|at| (at, task(at))).collect::<Vec<_>>()
    };
    let mut done = std::thread::scope(|scope| {
        let start = |_| Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        // Where the system gives no more threads those that are there do it.
        let helpers: Vec<_> = (1..threads).filter_map(|number| start(number).ok()).collect();
        let mut done = work();
        for helper in helpers {
            let theirs = helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            done.extend(theirs);
        }
        done
    });
    done.sort_by_key(|&(at, _)| at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_their_tasks() {
        assert_eq!(side_by_side(100, |task| task * task), Vec::from_iter((0..100).map(|n| n * n)));
        assert!(side_by_side(0, |task| task).is_empty());
    }

    #[test]
    fn only_a_lack_of_threads_is_explained() {
        let lack = explain_thread_error(io::ErrorKind::WouldBlock.into());
        assert_eq!(lack.kind(), io::ErrorKind::WouldBlock);
        assert!(lack.to_string().contains("ulimit -u"), "{lack}");
        let other = explain_thread_error(io::ErrorKind::NotFound.into());
        assert!(!other.to_string().contains("ulimit"), "{other}");
    }
}
