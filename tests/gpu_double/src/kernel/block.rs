//! A block: its warps go on in an order that the seed chooses, until all have ended; barriers hold them together.

use super::math::Lanes;
use super::program::{Action, Program, Tell};
use super::report::{Report, Wrong};
use super::shared::Shared;
use super::warp::{Here, Wait, Warp};
use crate::memory::{Access, Heard};

/// Most steps that a warp makes before another one has its turn.
const TURN: usize = 512;

/// An error, and the instruction, warp and lane that made it.
pub struct Fault {
    pub wrong: Wrong,
    pub at: u32,
    pub warp: u32,
    pub lane: u32,
}

/// A block with all that its threads can reach.
pub struct Block<'a, 'm> {
    pub program: &'a Program,
    pub arguments: &'a [u8],
    /// The argument that was read last.
    pub argument: Vec<u8>,
    pub memory: &'a mut Access<'m>,
    pub shared: Shared,
    pub here: Here,
    /// Bytes of a thread's own memory.
    pub local: usize,
    /// Barriers passed.
    pub epoch: u32,
    /// For each warp, the barrier up to which it knows of each other warp.
    pub known: Vec<[u32; 32]>,
    /// Blocks heard of.
    pub heard: Heard,
    /// Whether the block has made a fence, so that its atomic accesses tell what it wrote.
    pub fenced: bool,
    /// The writes that atomic accesses have told of, by address.
    pub told: &'a mut super::told::Told,
    pub random: u64,
    /// Operands of an instruction that lie in no register.
    pub operands: [Lanes; 3],
}

impl Block<'_, '_> {
    /// Executes all warps to their ends.
    pub fn run(&mut self, warps: &mut [Warp]) -> Result<(), Fault> {
        loop {
            let ready: Vec<usize> = (0..warps.len()).filter(|&n| can_go_on(&warps[n])).collect();
            if ready.is_empty() {
                if warps.iter().all(|warp| warp.groups.is_empty()) {
                    return Ok(());
                }
                if !self.pass_barrier(warps)? {
                    return Err(self.stuck(warps));
                }
                continue;
            }
            let chosen = ready[self.choose(ready.len())];
            let turn = self.choose(TURN) + 1;
            self.run_warp(&mut warps[chosen], turn)?;
        }
    }

    fn choose(&mut self, limit: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) as usize % limit
    }

    /// Lets all threads go on that wait at a barrier which is complete; whether there was one.
    fn pass_barrier(&mut self, warps: &mut [Warp]) -> Result<bool, Fault> {
        let waiting: Vec<(u32, u32)> = warps.iter().flat_map(barriers).collect();
        for &(number, threads) in &waiting {
            if self.complete(warps, number, threads)? {
                self.open(warps, number);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether as many threads wait at a barrier as it is for. All must wait at the same instruction if it is for all.
    fn complete(&self, warps: &[Warp], number: u32, threads: u32) -> Result<bool, Fault> {
        let mut places = warps.iter().flat_map(|warp| {
            let here = move |wait| matches!(wait, Wait::Barrier(n, _) if n == number);
            let groups = warp.groups.iter().filter(move |group| here(group.wait));
            groups.map(|group| (warp.number, group.lanes, group.at))
        });
        let live: u32 = warps.iter().map(|warp| warp.live().count_ones()).sum();
        let count: u32 = places.clone().map(|(_, lanes, _)| lanes.count_ones()).sum();
        if threads > 0 {
            return Ok(count >= threads);
        }
        let first = places.next();
        for (warp, lanes, at) in places {
            if let Some((_, _, other)) = first.filter(|(_, _, other)| *other != at) {
                let line = self.program.code[other as usize].line;
                let wrong = Wrong::Barriers { line, text: String::from(self.program.line(line)) };
                return Err(Fault { wrong, at, warp, lane: lanes.trailing_zeros() });
            }
        }
        Ok(count == live)
    }

    /// Opens a barrier: all that wait at it go on, and know what the others did.
    fn open(&mut self, warps: &mut [Warp], number: u32) {
        let here = |wait: Wait| matches!(wait, Wait::Barrier(n, _) if n == number);
        let takes_part = |warp: &Warp| warp.groups.iter().any(|group| here(group.wait));
        let parts: Vec<usize> = (0..warps.len()).filter(|&n| takes_part(&warps[n])).collect();
        let mut joint = [0; 32];
        for &part in &parts {
            let known = self.known[part];
            joint.iter_mut().zip(known).for_each(|(joint, known)| *joint = known.max(*joint));
            joint[part] = self.epoch;
        }
        for &part in &parts {
            self.known[part] = joint;
        }
        self.epoch += 1;
        let told = tell(self.program, warps, here);
        for warp in warps.iter_mut() {
            for n in 0..warp.groups.len() {
                if here(warp.groups[n].wait) {
                    let at = warp.groups[n].at;
                    let lanes = warp.groups[n].lanes;
                    answer(self.program, warp, at, lanes, told);
                    warp.groups[n].wait = Wait::No;
                    warp.groups[n].at += 1;
                }
            }
        }
    }

    /// Describes who waits where, when nobody goes on.
    fn stuck(&self, warps: &[Warp]) -> Fault {
        let mut waiting = Vec::new();
        for warp in warps {
            for group in &warp.groups {
                let line = self.program.code[group.at as usize].line;
                let (lanes, text) = (group.lanes, self.program.line(line));
                let number = warp.number;
                waiting.push(format!(
                    "lanes {lanes:#x} of warp {number} wait at line {line} `{text}`"
                ));
            }
        }
        waiting.truncate(4);
        let first = warps.iter().find(|warp| !warp.groups.is_empty());
        let place = first.map(|warp| (warp.number, &warp.groups[0]));
        let (warp, lane, at) =
            place.map_or((0, 0, 0), |(warp, g)| (warp, g.lanes.trailing_zeros(), g.at));
        Fault { wrong: Wrong::Stuck { waiting: waiting.join("; ") }, at, warp, lane }
    }

    /// A fault with the names of its kernel, block and thread.
    pub fn report(&self, kernel: &str, fault: Fault) -> Report {
        let line = self.program.code[fault.at as usize].line;
        let number = fault.warp * 32 + fault.lane;
        let [x, y, _] = self.here.threads;
        Report {
            kernel: String::from(kernel),
            block: self.here.block,
            thread: [number % x, number / x % y, number / x / y],
            line,
            text: String::from(self.program.line(line)),
            wrong: fault.wrong,
        }
    }
}

fn can_go_on(warp: &Warp) -> bool {
    warp.groups.iter().any(|group| group.wait == Wait::No)
}

fn barriers(warp: &Warp) -> impl Iterator<Item = (u32, u32)> + '_ {
    warp.groups.iter().filter_map(|group| match group.wait {
        Wait::Barrier(number, threads) => Some((number, threads)),
        _ => None,
    })
}

/// Counts the waiting threads for which the barrier's truth value holds, and all of them.
fn tell(program: &Program, warps: &[Warp], here: impl Fn(Wait) -> bool) -> (u32, u32) {
    let (mut holds, mut all) = (0, 0);
    for warp in warps {
        for group in warp.groups.iter().filter(|group| here(group.wait)) {
            if let Action::Barrier(barrier) = &program.code[group.at as usize].action
                && let Some((_, about)) = barrier.tell
            {
                holds += (warp.truth(about) & group.lanes).count_ones();
                all += group.lanes.count_ones();
            }
        }
    }
    (holds, all)
}

fn answer(program: &Program, warp: &mut Warp, at: u32, lanes: u32, (holds, all): (u32, u32)) {
    let Action::Barrier(barrier) = &program.code[at as usize].action else { return };
    let bits = |truth: bool| if truth { u32::MAX } else { 0 };
    match barrier.tell {
        Some((Tell::All(to), _)) => warp.set_truth(to, lanes, bits(holds == all)),
        Some((Tell::Any(to), _)) => warp.set_truth(to, lanes, bits(holds > 0)),
        Some((Tell::Count(to), _)) => warp.set(to, lanes, &[u64::from(holds); 32]),
        None => {}
    }
}
