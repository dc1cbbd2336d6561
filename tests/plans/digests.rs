//! The same command gives the same plan, byte for byte, from one version of graphc to the next, unless that is meant.
//!
//! `digests.txt` has a line for each plan: the first digits of the SHA-256 of its file, and the arguments of `graphc compile`. A change that should
//! leave plans alone leaves this file alone. One that alters plans writes it anew (`UPDATE_EXPECT=1`), and the difference says which plans are others.

use expect_test::expect_file;
use sha2::{Digest, Sha256};

use crate::support::{Scratch, succeeds};

/// Plans that are made at once.
const AT_ONCE: usize = 2;

/// Returns the first digits of the digest of the plan that these arguments make.
fn plan_digest(folder: &Scratch, index: usize, args: &str) -> String {
    let plan = folder.path(&format!("{index}.json"));
    succeeds(["compile", "-o", plan.as_str()].into_iter().chain(args.split(' ')));
    let digest = Sha256::digest(std::fs::read(plan).expect("a plan"));
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn plans_are_those_that_are_recorded() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plans/digests.txt");
    let recorded = std::fs::read_to_string(path).expect("the digests");
    let lines = recorded.lines().map(|line| line.split_once(' ').expect("a digest, and arguments"));
    let args: Vec<&str> = lines.map(|(_, args)| args).collect();
    assert!(args.len() >= 60, "only {} plans are compared", args.len());
    let folder = Scratch::new();
    let line =
        |(index, args): (usize, &&str)| (index, plan_digest(&folder, index, args) + " " + args);
    let of_thread = |thread: usize| args.iter().enumerate().skip(thread).step_by(AT_ONCE).map(line);
    let mut found: Vec<(usize, String)> = std::thread::scope(|scope| {
        let spawn = |thread| scope.spawn(move || of_thread(thread).collect::<Vec<_>>());
        let threads: Vec<_> = (0..AT_ONCE).map(spawn).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("plans that are made")).collect()
    });
    found.sort();
    let found: String = found.iter().map(|(_, line)| format!("{line}\n")).collect();
    expect_file![path].assert_eq(&found);
}
