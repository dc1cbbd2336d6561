//! Messages between two ranks, waiting for each and without waiting.
//!
//!     cargo run --release --example messages
//!     graphc launch --standalone --nproc-per-node 2 -- target/release/examples/messages

use graphc::dist::{self, DistError, Group};

fn main() -> Result<(), DistError> {
    for line in dist::run(2, messages)? {
        println!("{line}");
    }
    Ok(())
}

fn messages(group: Group) -> Result<String, DistError> {
    let (rank, peer) = (group.rank(), 1 - group.rank());
    // Waiting: one sends while the other receives.
    let mut first = [10.0_f32];
    match rank {
        0 => group.send(&first[..], peer)?,
        _ => group.recv(&mut first[..], peer)?,
    }
    // Without waiting: both send, both receive, and do something else meanwhile.
    let sent = group.isend(vec![rank as i64; 1000], peer)?;
    let received = group.irecv(vec![0_i64; 1000], peer)?;
    let meanwhile: usize = (0..1000).sum();
    let received = received.wait()?;
    sent.wait()?;
    assert!(first == [10.0] && received == vec![peer as i64; 1000] && meanwhile == 499_500);
    Ok(format!("rank {rank} has {first:?} and {} numbers of rank {peer}", received.len()))
}
