//! Execution of what lanes of a warp do together: all members that are named must come, wherever they are.

use super::access::lanes_of;
use super::block::Block;
use super::math::{Lanes, Type};
use super::program::{Answer, Question, Reduction, Shuffle, Source, Together, Truth, Way};
use super::report::Wrong;
use super::step::Acted;
use super::warp::{Here, Wait, Warp};

impl Block<'_, '_> {
    /// Waits for all members, or does what they came for.
    pub fn together(
        &mut self,
        together: &Together,
        members: Source,
        warp: &mut Warp,
        group: usize,
    ) -> Acted<()> {
        let lanes = gather(members, warp, group, &self.here)?;
        if lanes != 0 {
            perform(together, warp, lanes, &self.here)?;
        }
        Ok(())
    }
}

/// Lanes that are complete, which then go on; none while some are missing.
fn gather(members: Source, warp: &mut Warp, group: usize, here: &Here) -> Acted<u32> {
    let (lanes, at) = (warp.groups[group].lanes, warp.groups[group].at);
    let masks = warp.get(members, here);
    let first = lanes.trailing_zeros();
    let named = masks[first as usize] as u32;
    let same = lanes_of(lanes).filter(|lane| masks[*lane] as u32 == named);
    let same = same.fold(0u32, |bits, lane| bits | 1 << lane);
    if let Some(lane) = lanes_of(same & !named).next() {
        return Err((Wrong::NotMember { members: named }, lane as u32));
    }
    warp.part(group, same, at);
    let wait = Wait::Members(named);
    let here = |g: &super::warp::Group| g.at == at && g.wait == wait;
    let waiting = warp.groups.iter().filter(|g| here(g)).fold(0, |bits, g| bits | g.lanes);
    if (same | waiting) & named != warp.live() & named {
        warp.groups[group].wait = wait;
        return Ok(0);
    }
    let calls = warp.groups[group].calls.clone();
    let mut n = 0;
    warp.groups.retain(|g| {
        n += 1;
        n - 1 != group && !here(g)
    });
    let lanes = same | waiting;
    let wait = Wait::No;
    warp.groups.push(super::warp::Group { lanes, at: at + 1, wait, calls });
    Ok(lanes)
}

fn perform(together: &Together, warp: &mut Warp, lanes: u32, here: &Here) -> Acted<()> {
    match together {
        Together::Barrier => {}
        Together::Shuffle(shuffle) => exchange(shuffle, warp, lanes, here)?,
        Together::Vote { question, to, about } => vote(*question, *to, *about, warp, lanes),
        Together::Match { all, kind, to, same, value } => {
            let value = warp.get(*value, here);
            matching(*all, *kind, (*to, *same), &value, warp, lanes);
        }
        Together::Reduce { how, kind, to, value } => {
            let value = warp.get(*value, here);
            let result = reduce(*how, *kind, &value, lanes);
            warp.set(*to, lanes, &[result; 32]);
        }
        Together::Elect { lane, to } => {
            let leader = lanes.trailing_zeros();
            if let Some(lane) = lane {
                warp.set(*lane, lanes, &[u64::from(leader); 32]);
            }
            warp.set_truth(*to, lanes, 1 << leader);
        }
    }
    Ok(())
}

fn exchange(shuffle: &Shuffle, warp: &mut Warp, lanes: u32, here: &Here) -> Acted<()> {
    let [value, by, bounds, _] = shuffle.operands.map(|operand| warp.get(operand, here));
    let (mut result, mut in_range) = (value, 0);
    for lane in lanes_of(lanes) {
        let (from, ok) = partner(shuffle.way, lane as u32, by[lane] as u32, bounds[lane] as u32);
        if lanes >> from & 1 == 0 {
            return Err((Wrong::AbsentLane { lane: from }, lane as u32));
        }
        result[lane] = value[from as usize];
        in_range |= u32::from(ok) << lane;
    }
    warp.set(shuffle.to.0, lanes, &result);
    if let Some(to) = shuffle.to.1 {
        warp.set_truth(to, lanes, in_range);
    }
    Ok(())
}

/// The lane that a lane takes its value from, and whether it is in range (PTX, `shfl.sync`).
fn partner(way: Way, lane: u32, by: u32, bounds: u32) -> (u32, bool) {
    let (clamp, segment) = (bounds & 31, bounds >> 8 & 31);
    let by = by & 31;
    let most = (lane & segment) | (clamp & !segment);
    let (from, ok) = match way {
        Way::Up => (lane.wrapping_sub(by), lane as i32 - by as i32 >= most as i32),
        Way::Down => (lane + by, lane + by <= most),
        Way::Butterfly => (lane ^ by, lane ^ by <= most),
        Way::Index => {
            let from = (lane & segment) | (by & !segment);
            (from, from <= most)
        }
    };
    if ok { (from & 31, true) } else { (lane, false) }
}

fn vote(question: Question, to: Answer, about: Truth, warp: &mut Warp, lanes: u32) {
    let bits = warp.truth(about) & lanes;
    let holds = match question {
        Question::All => bits == lanes,
        Question::Any => bits != 0,
        Question::Uniform => bits == 0 || bits == lanes,
        Question::Ballot => false,
    };
    match to {
        Answer::Register(to) => warp.set(to, lanes, &[u64::from(bits); 32]),
        Answer::Predicate(to) => warp.set_truth(to, lanes, if holds { u32::MAX } else { 0 }),
    }
}

fn matching(
    all: bool,
    kind: Type,
    (to, same): (u16, Option<u16>),
    value: &Lanes,
    warp: &mut Warp,
    lanes: u32,
) {
    let mask = super::math::integers::mask(8 * kind.bytes() as u32);
    let equal = |lane: usize| {
        let others = lanes_of(lanes).filter(|other| value[*other] & mask == value[lane] & mask);
        others.fold(0u32, |bits, other| bits | 1 << other)
    };
    let mut result = [0; 32];
    let mut holds = 0;
    for lane in lanes_of(lanes) {
        let bits = equal(lane);
        let complete = bits == lanes;
        result[lane] = u64::from(if all && !complete { 0 } else { bits });
        holds |= u32::from(complete) << lane;
    }
    warp.set(to, lanes, &result);
    if let Some(same) = same {
        warp.set_truth(same, lanes, holds);
    }
}

fn reduce(how: Reduction, kind: Type, value: &Lanes, lanes: u32) -> u64 {
    let values = lanes_of(lanes).map(|lane| value[lane] as u32);
    let signed = kind == Type::S32;
    let less = |a: u32, b: u32| if signed { (a as i32) < b as i32 } else { a < b };
    let result = values.reduce(|a, b| match how {
        Reduction::Add => a.wrapping_add(b),
        Reduction::Least => {
            if less(a, b) {
                a
            } else {
                b
            }
        }
        Reduction::Greatest => {
            if less(a, b) {
                b
            } else {
                a
            }
        }
        Reduction::And => a & b,
        Reduction::Or => a | b,
        Reduction::Xor => a ^ b,
    });
    u64::from(result.unwrap_or(0))
}
