//! Ranks that are processes: this executable, started again for each rank.

mod communicators;
mod programs;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::Duration;

use communicators::*;
use gpu_double::nccl::exports::ncclCommAbort;
use gpu_double::nccl::init::UniqueId;
use programs::{download, part, process, said, synchronize, upload};

/// The id of a test's communicator, handed to its processes.
const ID: &str = "GPU_DOUBLE_TEST_ID";

/// Returns this process's rank, if it is one.
fn me() -> Option<usize> {
    part().map(|rank| rank.parse().expect("a rank"))
}

fn id() -> UniqueId {
    let text = std::env::var(ID).expect("an id");
    let bytes: Vec<u8> = text.split(' ').map(|byte| byte.parse().expect("a byte")).collect();
    UniqueId(bytes.try_into().expect("128 bytes"))
}

/// A process for each rank of a test.
fn start(name: &str, ranks: usize) -> Vec<Child> {
    let id = unique_id().0.map(|byte| byte.to_string()).join(" ");
    let start = |rank: usize| {
        let mut command = process(name, &rank.to_string());
        command.env(ID, &id).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("a process")
    };
    (0..ranks).map(start).collect()
}

/// Waits until all ranks have ended well; gives what they said.
fn finish(children: Vec<Child>) -> Vec<String> {
    let outputs = children.into_iter().map(|child| child.wait_with_output().expect("its end"));
    outputs.map(|output| said(&output)).collect()
}

#[test]
fn processes_add_and_exchange() {
    let Some(rank) = me() else {
        return drop(finish(start("processes_add_and_exchange", 3)));
    };
    let me = init(id(), rank, 3);
    // Longer than what a socket holds.
    let count = 1 << 18;
    let buffer = upload(&vec![rank as f32 + 1.0; count]);
    done(&me, all_reduce(buffer, buffer, count, F32, SUM, &me));
    assert_eq!(download::<f32>(buffer, count), vec![6.0; count]);
    let (next, before) = ((rank + 1) % 3, (rank + 2) % 3);
    let (from, to) = (upload(&vec![rank as f32; count]), programs::room(4 * count));
    assert_eq!(group_start(), 0);
    assert_eq!(send(from, count, F32, next as i32, &me), 0);
    assert_eq!(receive(to, count, F32, before as i32, &me), 0);
    done(&me, group_end());
    assert_eq!(download::<f32>(to, count), vec![before as f32; count]);
    let part = split(&me, (rank % 2) as i32, 0).expect("a part");
    let one = upload(&[1f32]);
    done(&part, all_reduce(one, one, 1, F32, SUM, &part));
    assert_eq!(download::<f32>(one, 1), [part.ranks as f32]);
    destroy(&part);
    destroy(&me);
}

#[test]
fn a_rank_may_leave_before_the_others_know_their_sum() {
    let name = "a_rank_may_leave_before_the_others_know_their_sum";
    let Some(rank) = me() else { return drop(finish(start(name, 2))) };
    let me = init(id(), rank, 2);
    let buffer = upload(&[1f32]);
    done(&me, all_reduce(buffer, buffer, 1, F32, SUM, &me));
    if rank == 1 {
        // Rank 0, in whose process the hub is, is gone by now.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(asynchronous(me.communicator), 0);
    }
    destroy(&me);
}

#[test]
fn the_others_get_their_sums_before_rank_0_goes_on() {
    let name = "the_others_get_their_sums_before_rank_0_goes_on";
    let Some(rank) = me() else { return drop(finish(start(name, 2))) };
    let me = init(id(), rank, 2);
    let count = 1 << 20;
    let buffer = upload(&vec![1f32; count]);
    done(&me, reduce(buffer, buffer, count, 1, &me));
    if rank == 0 {
        // Without a goodbye, and the hub with it.
        std::process::exit(0);
    }
    assert_eq!(download::<f32>(buffer, count), vec![2.0; count]);
}

/// Rank `dying` is killed while the other waits for it.
fn a_rank_dies(name: &str, dying: usize) {
    let Some(rank) = me() else {
        let mut children = start(name, 2);
        let mut dead = children.remove(dying);
        let mut waiting = children.remove(0);
        let mut said = BufReader::new(waiting.stdout.take().expect("a pipe"));
        let waits = said.by_ref().lines().map_while(Result::ok).any(|line| line.contains(WAITS));
        assert!(waits, "the other rank ended early");
        dead.kill().expect("it runs");
        dead.wait().expect("its end");
        // The pipe stays open until the other has ended.
        return drop((finish(vec![waiting]), said));
    };
    let me = init(id(), rank, 2);
    let buffer = upload(&[1f32]);
    done(&me, all_reduce(buffer, buffer, 1, F32, SUM, &me));
    if rank == dying {
        std::thread::sleep(Duration::from_secs(3600));
    }
    assert_eq!(all_reduce(buffer, buffer, 1, F32, SUM, &me), 0);
    println!("{WAITS}");
    while asynchronous(me.communicator) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(asynchronous(me.communicator), REMOTE_ERROR);
    assert_eq!(last_error(&me), format!("rank {dying} is gone"));
    assert_eq!(ncclCommAbort(me.communicator) as i32, 0);
    assert_ne!(synchronize(me.stream), 0);
}

/// The line that a rank prints when it waits for one that is about to die.
const WAITS: &str = "rank waits";

#[test]
fn a_dead_rank_is_a_remote_error_of_the_others() {
    a_rank_dies("a_dead_rank_is_a_remote_error_of_the_others", 1);
}

#[test]
fn a_dead_rank_0_is_one_as_well() {
    a_rank_dies("a_dead_rank_0_is_one_as_well", 0);
}

#[test]
fn what_processes_call_is_compared() {
    let Some(rank) = me() else {
        let said = finish(start("what_processes_call_is_compared", 2)).concat();
        let expected = "collective 0 is AllReduce(Sum) of ";
        return assert!(said.contains(expected) && said.contains("8 x F32"), "{said}");
    };
    let me = init(id(), rank, 2);
    let buffer = upload(&[1f32; 8]);
    assert_eq!(all_reduce(buffer, buffer, 7 + rank, F32, SUM, &me), 0);
    assert_ne!(synchronize(me.stream), 0);
}

#[test]
fn one_device_of_two_processes_is_refused() {
    let Some(rank) = me() else {
        let said = finish(start("one_device_of_two_processes_is_refused", 2)).concat();
        return assert!(said.contains("use one device, device 0 of this machine"), "{said}");
    };
    assert_eq!(init_on(id(), rank, 2, 0).err(), Some(INVALID_USAGE));
}
