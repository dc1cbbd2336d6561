//! One instruction of a group of lanes.

use super::block::{Block, Fault};
use super::math::Lanes;
use super::math::integers::insert;
use super::program::{
    Action, Barrier, Call, Join, LOCAL_WINDOW, Room, SHARED_WINDOW, Source, Step, Truth,
};
use super::report::Wrong;
use super::warp::{Here, Wait, Warp};

/// A result, or an error and the first lane that made it.
pub type Acted<T> = Result<T, (Wrong, u32)>;

impl Block<'_, '_> {
    /// Executes at most so many instructions of a warp.
    pub fn run_warp(&mut self, warp: &mut Warp, turn: usize) -> Result<(), Fault> {
        let program = self.program;
        for _ in 0..turn {
            let Some(group) = warp.choose() else { return Ok(()) };
            let at = warp.groups[group].at;
            let step = &program.code[at as usize];
            let lanes = guarded(step, warp, warp.groups[group].lanes);
            self.here.instructions += u64::from(lanes.count_ones());
            if lanes == 0 {
                warp.groups[group].at += 1;
                continue;
            }
            self.act(step, warp, group, lanes).map_err(|(wrong, lane)| Fault {
                wrong,
                at,
                warp: warp.number,
                lane,
            })?;
        }
        Ok(())
    }

    fn act(&mut self, step: &Step, warp: &mut Warp, group: usize, lanes: u32) -> Acted<()> {
        if compute(&step.action, warp, lanes, &self.here, &mut self.operands) {
            warp.groups[group].at += 1;
            return Ok(());
        }
        match &step.action {
            Action::Load(load) => self.load(load, warp, lanes)?,
            Action::Store(store) => self.store(store, warp, lanes)?,
            Action::Atomic(atomic) => self.atomic(atomic, warp, lanes)?,
            Action::CopyAsync { to, from, bytes, given } => {
                self.copy_async([*to, *from], *bytes, *given, warp, lanes)?;
            }
            Action::CopyCommit => {
                let open = std::mem::take(&mut warp.open);
                warp.committed.push(open);
            }
            Action::CopyWait(keep) => self.copy_wait(*keep, warp),
            Action::LoadMatrix { to, address, transposed } => {
                self.load_matrix(to, address, *transposed, warp, lanes)?;
            }
            Action::StoreMatrix { from, address, transposed } => {
                self.store_matrix(from, address, *transposed, warp, lanes)?;
            }
            Action::Product(product) => super::matrix::multiply(product, warp, lanes, &self.here)?,
            Action::Fence => self.fenced = true,
            Action::Trap => return Err((Wrong::Trap, lanes.trailing_zeros())),
            action => return self.go(action, warp, group, lanes),
        }
        warp.groups[group].at += 1;
        Ok(())
    }

    /// Executes an action that changes where lanes go on.
    fn go(&mut self, action: &Action, warp: &mut Warp, group: usize, lanes: u32) -> Acted<()> {
        let next = warp.groups[group].at + 1;
        warp.part(group, lanes, next);
        match action {
            Action::Branch(target) => warp.groups[group].at = *target,
            Action::BranchTable(index, table) => {
                branch_table(*index, table, warp, group, &self.here)?;
            }
            Action::Call(call) => call_function(call, warp, group, self.local)?,
            Action::Return => self.return_from(warp, group),
            Action::Exit => end(warp, group),
            Action::Barrier(barrier) => self.arrive(barrier, warp, group),
            Action::Together(together, members) => {
                self.together(together, *members, warp, group)?;
            }
            _ => unreachable!("all other actions go on with the next instruction"),
        }
        Ok(())
    }

    fn return_from(&mut self, warp: &mut Warp, group: usize) {
        let Some(call) = warp.groups[group].calls.pop() else { return end(warp, group) };
        if let Action::Call(call) = &self.program.code[call as usize].action {
            copy_local(&call.results, warp, warp.groups[group].lanes, self.local);
        }
        warp.groups[group].at = call + 1;
    }

    fn arrive(&mut self, barrier: &Barrier, warp: &mut Warp, group: usize) {
        let lane = warp.groups[group].lanes.trailing_zeros() as usize;
        let number = warp.get_lane(barrier.number, lane, &self.here) as u32;
        let threads = barrier.threads.map_or(0, |t| warp.get_lane(t, lane, &self.here) as u32);
        let all = self.here.threads.iter().product::<u32>();
        let threads = if threads == all { 0 } else { threads };
        warp.groups[group].wait = Wait::Barrier(number, threads);
    }
}

fn guarded(step: &Step, warp: &Warp, lanes: u32) -> u32 {
    let truth = step.guard.map(|guard| Truth::Predicate(guard.predicate, guard.negated));
    truth.map_or(lanes, |truth| lanes & warp.truth(truth))
}

/// Lanes end. Others may have waited for them alone.
fn end(warp: &mut Warp, group: usize) {
    warp.groups.swap_remove(group);
    for group in &mut warp.groups {
        if matches!(group.wait, Wait::Members(_)) {
            group.wait = Wait::No;
        }
    }
}

fn branch_table(
    index: Source,
    table: &[u32],
    warp: &mut Warp,
    group: usize,
    here: &Here,
) -> Acted<()> {
    let (values, lanes, at) =
        (warp.get(index, here), warp.groups[group].lanes, warp.groups[group].at);
    let first = lanes.trailing_zeros();
    let value = values[first as usize] & 0xFFFF_FFFF;
    let same = (0..32).filter(|&l| lanes >> l & 1 == 1 && values[l] & 0xFFFF_FFFF == value);
    let same = same.fold(0u32, |bits, lane| bits | 1 << lane);
    warp.part(group, same, at);
    let labels = table.len();
    let wrong = Wrong::Table { index: value, labels };
    warp.groups[group].at = *table.get(value as usize).ok_or((wrong, first))?;
    Ok(())
}

fn call_function(call: &Call, warp: &mut Warp, group: usize, local: usize) -> Acted<()> {
    let (at, lanes) = (warp.groups[group].at, warp.groups[group].lanes);
    if warp.groups[group].calls.contains(&at) {
        return Err((Wrong::Recursion, lanes.trailing_zeros()));
    }
    copy_local(&call.arguments, warp, lanes, local);
    warp.groups[group].calls.push(at);
    warp.groups[group].at = call.target;
    Ok(())
}

/// Copies between places of the threads' own memory.
fn copy_local(copies: &[(usize, usize, usize)], warp: &mut Warp, lanes: u32, local: usize) {
    for &(from, to, bytes) in copies {
        for lane in (0..32).filter(|lane| lanes >> lane & 1 == 1) {
            let base = lane * local;
            warp.local.copy_within(base + from..base + from + bytes, base + to);
        }
    }
}

/// Does what concerns registers alone; whether the instruction is of that kind.
fn compute(
    action: &Action,
    warp: &mut Warp,
    lanes: u32,
    here: &Here,
    [first, second, third]: &mut [Lanes; 3],
) -> bool {
    match action {
        Action::Nothing => {}
        Action::One(to, a, f) => {
            let result = f(warp.read(*a, first, here));
            warp.set(*to, lanes, &result);
        }
        Action::Two(to, [a, b], f) => {
            let result = f(warp.read(*a, first, here), warp.read(*b, second, here));
            warp.set(*to, lanes, &result);
        }
        Action::Three(to, [a, b, c], f) => {
            let a = warp.read(*a, first, here);
            let result = f(a, warp.read(*b, second, here), warp.read(*c, third, here));
            warp.set(*to, lanes, &result);
        }
        Action::Move(to, from) => {
            let value = warp.get(*from, here);
            warp.set(*to, lanes, &value);
        }
        Action::Compare { to, of: [a, b], compare, join } => {
            let bits = compare(warp.read(*a, first, here), warp.read(*b, second, here));
            decide(*to, bits, *join, warp, lanes);
        }
        Action::Select { to, of: [a, b], by } => {
            let (a, b) = (warp.read(*a, first, here), warp.read(*b, second, here));
            let by = warp.truth(*by);
            let pick = |lane| if by >> lane & 1 == 1 { a[lane] } else { b[lane] };
            let picked = std::array::from_fn(pick);
            warp.set(*to, lanes, &picked);
        }
        Action::Logic { to, join, of: [a, b], negate } => {
            let bits = joined(*join, warp.truth(*a), warp.truth(*b));
            warp.set_truth(*to, lanes, if *negate { !bits } else { bits });
        }
        _ => return compute_rarely(action, warp, lanes, here),
    }
    true
}

fn compute_rarely(action: &Action, warp: &mut Warp, lanes: u32, here: &Here) -> bool {
    match action {
        Action::Insert { to, from: [x, into, place, length], bits } => {
            let f = insert(*bits);
            let [x, into] = [x, into].map(|source| warp.get(*source, here));
            let [place, length] = [place, length].map(|source| warp.get(*source, here));
            let field = |l| f(x[l], into[l], place[l] as u32, length[l] as u32);
            warp.set(*to, lanes, &std::array::from_fn(field));
        }
        Action::Set { to, of: [a, b], compare, join, truth } => {
            let bits = compare(&warp.get(*a, here), &warp.get(*b, here));
            let bits = join.map_or(bits, |(join, with)| joined(join, bits, warp.truth(with)));
            let value = |lane| if bits >> lane & 1 == 1 { *truth } else { 0 };
            warp.set(*to, lanes, &std::array::from_fn(value));
        }
        Action::Test { to, of, test } => {
            let bits = bits_of(&test(&warp.get(*of, here)));
            warp.set_truth(*to, lanes, bits);
        }
        Action::Pack { to, parts, bits } => {
            let mask = super::math::integers::mask(*bits);
            let mut packed = [0; 32];
            for (number, part) in parts.iter().enumerate() {
                let part = warp.get(*part, here);
                (0..32).for_each(|l| packed[l] |= (part[l] & mask) << (number as u32 * bits));
            }
            warp.set(*to, lanes, &packed);
        }
        Action::Unpack { to, from, bits } => {
            let mask = super::math::integers::mask(*bits);
            let packed = warp.get(*from, here);
            for (number, to) in to.iter().enumerate() {
                if let Some(to) = to {
                    let part = |l: usize| packed[l] >> (number as u32 * bits) & mask;
                    warp.set(*to, lanes, &std::array::from_fn(part));
                }
            }
        }
        Action::IsRoom { to, of, room } => {
            let addresses = warp.get(*of, here);
            let inside = |lane: &usize| room_of(addresses[*lane]) == *room;
            let bits = (0..32).filter(inside).fold(0, |bits, lane| bits | 1 << lane);
            warp.set_truth(*to, lanes, bits);
        }
        Action::ActiveLanes(to) => warp.set(*to, lanes, &[u64::from(lanes); 32]),
        _ => return false,
    }
    true
}

/// The memory of a generic address.
pub fn room_of(address: u64) -> Room {
    match address {
        LOCAL_WINDOW.. => Room::Local,
        SHARED_WINDOW.. => Room::Shared,
        _ => Room::Global,
    }
}

/// Puts a comparison, joined with another truth value, and its opposite into predicates.
fn decide(
    to: [Option<u16>; 2],
    bits: u32,
    join: Option<(Join, Truth)>,
    warp: &mut Warp,
    lanes: u32,
) {
    let with = join.map(|(join, with)| (join, warp.truth(with)));
    for (to, bits) in to.into_iter().zip([bits, !bits]) {
        let bits = with.map_or(bits, |(join, with)| joined(join, bits, with));
        if let Some(to) = to {
            warp.set_truth(to, lanes, bits);
        }
    }
}

fn joined(join: Join, a: u32, b: u32) -> u32 {
    match join {
        Join::And => a & b,
        Join::Or => a | b,
        Join::Xor => a ^ b,
        Join::First => a,
    }
}

fn bits_of(values: &Lanes) -> u32 {
    (0..32).fold(0, |bits, lane| bits | u32::from(values[lane] & 1 == 1) << lane)
}
