//! Messages from each rank to the next, waiting for each and without waiting.
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
    let (rank, n) = (group.rank(), group.world_size());
    let (next, last) = ((rank + 1) % n, (rank + n - 1) % n);
    if n == 1 {
        return Ok("rank 0 is alone: messages need two ranks at least".into());
    }
    // Waiting: rank 0 sends first, all others receive first, so the token goes round.
    let mut token = [10.0_f32];
    if rank > 0 {
        group.recv(&mut token[..], last)?;
    }
    group.send(&token[..], next)?;
    if rank == 0 {
        group.recv(&mut token[..], last)?;
    }
    // Without waiting: all send, all receive, and do something else meanwhile.
    let sent = group.isend(vec![rank as i64; 1000], next)?;
    let received = group.irecv(vec![0_i64; 1000], last)?;
    let meanwhile: usize = (0..1000).sum();
    let received = received.wait()?;
    sent.wait()?;
    assert!(token == [10.0] && received == vec![last as i64; 1000] && meanwhile == 499_500);
    Ok(format!("rank {rank} has {token:?} and {} numbers of rank {last}", received.len()))
}
