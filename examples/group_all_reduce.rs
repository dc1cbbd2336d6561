//! An all-reduce in a group of some of the ranks.
//!
//!     cargo run --release --example group_all_reduce
//!     graphc launch --standalone --nproc-per-node 3 -- target/release/examples/group_all_reduce

use graphc::dist::{self, DistError, Group, ReduceOp};

fn main() -> Result<(), DistError> {
    for line in dist::run(3, work)? {
        println!("{line}");
    }
    Ok(())
}

fn work(world: Group) -> Result<String, DistError> {
    // All ranks of the world found the group; those that are not in it get none.
    let rank = world.rank();
    let even: Vec<usize> = (0..world.world_size()).step_by(2).collect();
    let Some(group) = world.new_group(&even)? else {
        return Ok(format!("rank {rank} is in no group"));
    };
    let mut ones = [1.0_f32, rank as f32];
    group.all_reduce(&mut ones[..], ReduceOp::Sum)?;
    assert_eq!(ones, [even.len() as f32, even.iter().sum::<usize>() as f32]);
    Ok(format!("rank {rank} is rank {} of {:?} and has {ones:?}", group.rank(), group.ranks()))
}
