//! A warp: registers of 32 lanes, and which lanes are where. Lanes that go on together are a group; where branches divide
//! them there are several, of which the one that is furthest behind goes on, so that they meet again.

use super::math::Lanes;
use super::program::{Source, Special, Truth};
use super::traffic::Traffic;

/// The reason that a group does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It goes on.
    No,
    /// A barrier of the block: number, and how many threads it is for (0 for all).
    Barrier(u32, u32),
    /// Other lanes of the warp.
    Members(u32),
}

/// Lanes that go on together.
#[derive(Clone, Debug)]
pub struct Group {
    pub lanes: u32,
    pub at: u32,
    pub wait: Wait,
    /// Calls that they are in, by their instructions.
    pub calls: Vec<u32>,
}

/// A copy beside the kernel: lane, where to, bytes.
pub type Flight = (u64, Vec<u8>);

/// See the module.
#[derive(Default)]
pub struct Warp {
    pub number: u32,
    pub values: Vec<Lanes>,
    pub predicates: Vec<u32>,
    pub groups: Vec<Group>,
    /// Memory of the threads, lane by lane.
    pub local: Vec<u8>,
    /// Copies that were not committed, and committed groups, oldest first.
    pub open: Vec<Flight>,
    pub committed: Vec<Vec<Flight>>,
    /// Coordinates of threads.
    pub threads: [Lanes; 3],
    /// Steps since another group went on.
    patience: u32,
}

/// The steps after which another group goes on, in case this one waits for it.
const PATIENCE: u32 = 10_000;

impl Warp {
    /// Prepares a warp for a new block: lanes, first instruction, sizes.
    pub fn reset(&mut self, number: u32, lanes: u32, at: u32, sizes: [usize; 3]) {
        let [values, predicates, local] = sizes;
        self.number = number;
        self.values.resize(values, [0xA5A5_A5A5_A5A5_A5A5; 32]);
        self.predicates.resize(predicates, 0);
        self.local.resize(local * 32, 0xA5);
        self.groups.clear();
        self.groups.push(Group { lanes, at, wait: Wait::No, calls: Vec::new() });
        self.open.clear();
        self.committed.clear();
        self.patience = 0;
    }

    /// Lanes that have not ended.
    pub fn live(&self) -> u32 {
        self.groups.iter().fold(0, |lanes, group| lanes | group.lanes)
    }

    /// The group that goes on next.
    pub fn choose(&mut self) -> Option<usize> {
        if let [only] = &self.groups[..] {
            return (only.wait == Wait::No).then_some(0);
        }
        self.meet();
        self.patience += 1;
        let free = (0..self.groups.len()).filter(|&n| self.groups[n].wait == Wait::No);
        if self.patience.is_multiple_of(PATIENCE) {
            return free.max_by_key(|&n| self.groups[n].at);
        }
        free.min_by_key(|&n| self.groups[n].at)
    }

    /// Groups that are at the same place become one.
    fn meet(&mut self) {
        let mut n = 0;
        while n < self.groups.len() {
            let same = |other: &Group, this: &Group| {
                other.at == this.at && other.wait == this.wait && other.calls == this.calls
            };
            let before = (0..n).find(|&m| same(&self.groups[m], &self.groups[n]));
            match before {
                Some(m) => {
                    let lanes = self.groups.swap_remove(n).lanes;
                    self.groups[m].lanes |= lanes;
                }
                None => n += 1,
            }
        }
    }

    /// Lets the lanes of a group that are not among `lanes` go on at another place.
    pub fn part(&mut self, group: usize, lanes: u32, others_at: u32) {
        let others = self.groups[group].lanes & !lanes;
        if others != 0 {
            let calls = self.groups[group].calls.clone();
            self.groups[group].lanes = lanes;
            self.groups.push(Group { lanes: others, at: others_at, wait: Wait::No, calls });
        }
    }

    /// A value of all lanes.
    pub fn get(&self, source: Source, here: &Here) -> Lanes {
        match source {
            Source::Register(number) => self.values[number as usize],
            Source::Number(value) => [value; 32],
            Source::Special(special) => self.special(special, here),
        }
    }

    /// A value of all lanes where it lies, or put into `own` where no register holds it.
    pub fn read<'a>(&'a self, source: Source, own: &'a mut Lanes, here: &Here) -> &'a Lanes {
        if let Source::Register(number) = source {
            return &self.values[number as usize];
        }
        *own = self.get(source, here);
        own
    }

    /// A value of one lane.
    pub fn get_lane(&self, source: Source, lane: usize, here: &Here) -> u64 {
        match source {
            Source::Register(number) => self.values[number as usize][lane],
            Source::Number(value) => value,
            Source::Special(special) => self.special(special, here)[lane],
        }
    }

    /// Sets a register of some lanes.
    pub fn set(&mut self, register: u16, lanes: u32, values: &Lanes) {
        let to = &mut self.values[register as usize];
        if lanes == u32::MAX {
            *to = *values;
            return;
        }
        for lane in 0..32 {
            if lanes >> lane & 1 == 1 {
                to[lane] = values[lane];
            }
        }
    }

    /// A truth value of all lanes.
    pub fn truth(&self, truth: Truth) -> u32 {
        match truth {
            Truth::Constant(value) => {
                if value {
                    u32::MAX
                } else {
                    0
                }
            }
            Truth::Predicate(number, negated) => {
                let bits = self.predicates[number as usize];
                if negated { !bits } else { bits }
            }
        }
    }

    /// Sets a predicate of some lanes.
    pub fn set_truth(&mut self, predicate: u16, lanes: u32, bits: u32) {
        let to = &mut self.predicates[predicate as usize];
        *to = *to & !lanes | bits & lanes;
    }

    fn special(&self, special: Special, here: &Here) -> Lanes {
        let lanes = |f: fn(u32) -> u32| std::array::from_fn(|lane| u64::from(f(lane as u32)));
        let same = |value: u32| [u64::from(value); 32];
        match special {
            Special::Thread(axis) => self.threads[axis],
            Special::Threads(axis) => same(here.threads[axis]),
            Special::Block(axis) => same(here.block[axis]),
            Special::Blocks(axis) => same(here.blocks[axis]),
            Special::Lane => lanes(|lane| lane),
            Special::Warp => same(self.number),
            Special::Warps => same(here.threads.iter().product::<u32>().div_ceil(32)),
            Special::LanesEqual => lanes(|lane| 1 << lane),
            Special::LanesLess => lanes(|lane| (1 << lane) - 1),
            Special::LanesUpTo => lanes(|lane| u32::MAX >> (31 - lane)),
            Special::LanesGreater => lanes(|lane| !(u32::MAX >> (31 - lane))),
            Special::LanesFrom => lanes(|lane| u32::MAX << lane),
            Special::Clock => [here.instructions; 32],
            Special::Multiprocessor => same(here.number % 132),
            Special::Multiprocessors => same(132),
            Special::DynamicShared => same(here.shared[1] as u32),
            Special::TotalShared => same((here.shared[0] + here.shared[1]) as u32),
            Special::Zero => same(0),
        }
    }
}

/// The place of a block in its launch, and other facts that all its threads can read.
#[derive(Clone, Debug, Default)]
pub struct Here {
    pub threads: [u32; 3],
    pub block: [u32; 3],
    pub blocks: [u32; 3],
    /// Number of the block.
    pub number: u32,
    /// Instructions of the launch so far.
    pub instructions: u64,
    /// Shared memory that the kernel declares, and that of the launch.
    pub shared: [usize; 2],
    /// Loads and stores of the launch so far.
    pub loads: Traffic,
    pub stores: Traffic,
}
