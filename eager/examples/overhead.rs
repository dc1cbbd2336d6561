//! Measures the cost of an eager operation whose plan is cached, in microseconds: the median of rounds of 1000 calls, and the best round. Tensors
//! have four elements, so that little but overhead is measured.
//!
//! ```text
//! cargo run --release -p graphc-eager --example overhead            1 and 2 ranks, as threads
//! graphc launch --standalone --nproc-per-node 2 -- target/release/examples/overhead
//! ```

use std::time::Instant;

use graphc_eager::{Eager, EagerError, GlobalTensor};
use graphc_runtime::dist::{self, Group};

type Failure = Box<dyn std::error::Error>;
type Operation = fn(&GlobalTensor, &GlobalTensor) -> Result<GlobalTensor, EagerError>;

/// The number of rounds, unless the command line gives another.
const ROUNDS: usize = 15;
const CALLS: usize = 1000;

/// The operations that are measured. The second has operands in different layouts; the third makes partial sums.
const OPERATIONS: [(&str, Operation); 4] = [
    ("add, S(0) and S(0)", |x, _| x + x),
    ("add, S(0) and B", |x, y| x + y),
    ("sum over S(0)", |x, _| x.sum(&[0], false)),
    ("matmul, S(0) and B", |x, y| x.matmul(y)),
];

fn main() -> Result<(), Failure> {
    let alone = dist::run(1, measure)?;
    let under_launch = std::env::var_os("WORLD_SIZE").is_some();
    let pairs = if under_launch { Vec::new() } else { dist::spawn(2, measure)? };
    for line in alone.into_iter().chain(pairs.into_iter().take(1)).flatten() {
        println!("{line}");
    }
    Ok(())
}

fn measure(group: Group) -> Result<Vec<String>, Failure> {
    let rounds = std::env::args().nth(1).map_or(Ok(ROUNDS), |rounds| rounds.parse())?.max(1);
    let eager = Eager::new(&group)?;
    if eager.rank() == 0 {
        eprintln!("{rounds} rounds on {} ranks", eager.world_size());
    }
    let (all, n) = (eager.all(), eager.world_size());
    let x = eager.ones([2, 2], &all, &"S(0)".parse()?)?;
    let y = eager.ones([2, 2], &all, &"B".parse()?)?;
    let mut lines = Vec::new();
    for (name, operation) in OPERATIONS {
        let mut times = Vec::new();
        for _ in 0..rounds {
            let begun = Instant::now();
            for _ in 0..CALLS {
                operation(&x, &y)?;
            }
            times.push(begun.elapsed().as_secs_f64() * 1e6 / CALLS as f64);
        }
        times.sort_by(f64::total_cmp);
        let (median, best) = (times[rounds / 2], times[0]);
        if eager.rank() == 0 {
            lines.push(format!("{n} ranks, {name}: {median:.2} us, best {best:.2} us"));
        }
    }
    Ok(lines)
}
