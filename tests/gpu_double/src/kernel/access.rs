//! Loads, stores and atomic changes of a group of lanes. Lanes whose addresses follow each other are one access, which is
//! as good as theirs: memory asks for the warp alone.

use super::block::Block;
use super::math::Type;
use super::program::{Address, Atomic, Load, Room, Store};
use super::report::Wrong;
use super::shared::Me;
use super::step::{Acted, room_of};
use super::warp::Warp;
use crate::memory::{Kind, Trouble, Who};

/// Addresses of lanes in one memory.
struct Places {
    room: Room,
    lanes: u32,
    at: [u64; 32],
}

impl Places {
    fn touched(&self) -> impl Iterator<Item = u64> {
        lanes_of(self.lanes).map(|lane| self.at[lane])
    }
}

impl Block<'_, '_> {
    /// Loads one value or several that follow each other.
    pub fn load(&mut self, load: &Load, warp: &mut Warp, lanes: u32) -> Acted<()> {
        let element = load.kind.bytes();
        let size = element * load.to.len();
        let kind = if load.atomic { Kind::AtomicRead } else { Kind::Read };
        let mut values = [[0; 32]; 4];
        for places in self.places(&load.address, size, warp, lanes)? {
            if load.atomic {
                self.tell(&places);
            } else if places.room == Room::Global {
                self.here.loads.count(places.touched(), size);
            }
            self.each(&places, size, kind, warp, |lane, bytes| {
                for (number, part) in bytes.chunks_exact(element).enumerate().take(4) {
                    values[number][lane] = read(part, load.kind);
                }
            })?;
        }
        for (to, values) in load.to.iter().zip(&values) {
            if let Some(to) = to {
                warp.set(*to, lanes, values);
            }
        }
        Ok(())
    }

    /// Stores one value or several that follow each other.
    pub fn store(&mut self, store: &Store, warp: &mut Warp, lanes: u32) -> Acted<()> {
        let element = store.kind.bytes();
        let size = element * store.from.len();
        let kind = if store.atomic { Kind::AtomicWrite } else { Kind::Write };
        let values: Vec<_> = store.from.iter().map(|from| warp.get(*from, &self.here)).collect();
        for places in self.places(&store.address, size, warp, lanes)? {
            if store.atomic {
                self.tell(&places);
            } else if matches!(places.room, Room::Global | Room::Shared) {
                collide(&places, |lane| values.iter().map(|v| v[lane]).collect(), element)?;
            }
            if places.room == Room::Global && !store.atomic {
                self.here.stores.count(places.touched(), size);
            }
            self.each(&places, size, kind, warp, |lane, bytes| {
                for (part, values) in bytes.chunks_exact_mut(element).zip(&values) {
                    part.copy_from_slice(&values[lane].to_le_bytes()[..element]);
                }
            })?;
        }
        Ok(())
    }

    /// Changes values one lane after the other.
    pub fn atomic(&mut self, atomic: &Atomic, warp: &mut Warp, lanes: u32) -> Acted<()> {
        let operands = atomic.operands.map(|operand| warp.get(operand, &self.here));
        let size = atomic.kind.bytes();
        let mut old = [0; 32];
        for places in self.places(&atomic.address, size, warp, lanes)? {
            self.tell(&places);
            for lane in lanes_of(places.lanes) {
                let single = Places { lanes: 1 << lane, ..places };
                self.each(&single, size, Kind::Atomic, warp, |lane, bytes| {
                    old[lane] = read(bytes, atomic.kind);
                    let [a, b] = [operands[0][lane], operands[1][lane]];
                    let new = (atomic.change)(atomic.kind, old[lane], a, b);
                    bytes.copy_from_slice(&new.to_le_bytes()[..size]);
                })?;
            }
        }
        if let Some(to) = atomic.to {
            warp.set(to, lanes, &old);
        }
        Ok(())
    }

    /// Blocks tell each other what they know where they touch memory atomically.
    fn tell(&mut self, places: &Places) {
        if places.room == Room::Global {
            let (block, fenced) = (self.here.number + 1, self.fenced);
            for lane in lanes_of(places.lanes) {
                self.told.access(places.at[lane], block, fenced, &mut self.heard);
            }
        }
    }

    /// Addresses of all lanes, by memory; each must be a multiple of what is touched there.
    fn places(
        &self,
        address: &Address,
        size: usize,
        warp: &Warp,
        lanes: u32,
    ) -> Acted<Vec<Places>> {
        let base = warp.get(address.base, &self.here);
        let at: [u64; 32] =
            std::array::from_fn(|lane| base[lane].wrapping_add(address.offset as u64));
        if let Some(lane) = lanes_of(lanes).find(|lane| !at[*lane].is_multiple_of(size as u64)) {
            let wrong = Trouble::Misaligned { address: at[lane], bytes: size };
            return Err((wrong.into(), lane as u32));
        }
        if address.room != Room::Generic {
            let narrow = matches!(address.room, Room::Shared | Room::Local);
            let at = if narrow { at.map(|at| at & 0xFFFF_FFFF) } else { at };
            return Ok(vec![Places { room: address.room, lanes, at }]);
        }
        let parts = [Room::Global, Room::Shared, Room::Local].map(|room| Places {
            room,
            lanes: lanes_of(lanes)
                .filter(|lane| room_of(at[*lane]) == room)
                .fold(0, |bits, lane| bits | 1 << lane),
            at: if room == Room::Global { at } else { at.map(|at| at & 0xFFFF_FFFF) },
        });
        Ok(parts.into_iter().filter(|part| part.lanes != 0).collect())
    }

    /// Touches the bytes of each lane and does something with them.
    fn each(
        &mut self,
        places: &Places,
        size: usize,
        kind: Kind,
        warp: &mut Warp,
        mut action: impl FnMut(usize, &mut [u8]),
    ) -> Acted<()> {
        let mut rest = places.lanes;
        while rest != 0 {
            let (run, bytes) = run(rest, &places.at, size);
            let first = run.trailing_zeros() as usize;
            let start = places.at[first];
            let touched = match places.room {
                Room::Local => own(warp, self.local, first, start, size),
                _ => self.touch(places.room, start, bytes, kind, warp.number),
            };
            match touched {
                Ok(slice) => {
                    for lane in lanes_of(if places.room == Room::Local { 1 << first } else { run })
                    {
                        let offset = (places.at[lane] - start) as usize;
                        action(lane, &mut slice[offset..offset + size]);
                    }
                }
                Err(wrong) => return Err(self.blame(places, run, size, kind, warp, wrong)),
            }
            rest &= if places.room == Room::Local { !(1 << first) } else { !run };
        }
        Ok(())
    }

    /// The lane of a run that did wrong, and what that is for it alone.
    fn blame(
        &mut self,
        places: &Places,
        run: u32,
        size: usize,
        kind: Kind,
        warp: &Warp,
        wrong: Wrong,
    ) -> (Wrong, u32) {
        for lane in lanes_of(run) {
            if let Err(wrong) = self.touch(places.room, places.at[lane], size, kind, warp.number) {
                return (wrong, lane as u32);
            }
        }
        (wrong, run.trailing_zeros())
    }

    fn touch(
        &mut self,
        room: Room,
        at: u64,
        bytes: usize,
        kind: Kind,
        warp: u32,
    ) -> Result<&mut [u8], Wrong> {
        match room {
            Room::Shared => self.shared.touch(
                at,
                bytes,
                kind,
                Me { warp, epoch: self.epoch, known: &self.known[warp as usize] },
            ),
            Room::Arguments => self.argument(at, bytes),
            _ => self.global(at, bytes, kind, warp),
        }
    }

    /// Memory of a card, as a warp touches it.
    pub fn global(
        &mut self,
        at: u64,
        bytes: usize,
        kind: Kind,
        warp: u32,
    ) -> Result<&mut [u8], Wrong> {
        let who = Who {
            operation: self.memory.operation,
            block: self.here.number + 1,
            warp,
            epoch: self.epoch,
            known: &self.known[warp as usize],
            heard: Some(&self.heard),
        };
        Ok(self.memory.touch(at, bytes, kind, &who)?)
    }

    /// Arguments, which are copied because kernels only read them.
    fn argument(&mut self, at: u64, bytes: usize) -> Result<&mut [u8], Wrong> {
        let (size, start) = (self.arguments.len(), at as usize);
        if at > size as u64 || bytes > size - start {
            return Err(Wrong::ArgumentsOutside { at, bytes, size });
        }
        self.argument.clear();
        self.argument.extend_from_slice(&self.arguments[start..start + bytes]);
        Ok(&mut self.argument)
    }
}

fn own(
    warp: &mut Warp,
    local: usize,
    lane: usize,
    at: u64,
    bytes: usize,
) -> Result<&mut [u8], Wrong> {
    let start = at as usize;
    if at > local as u64 || bytes > local - start {
        return Err(Wrong::LocalOutside { at, bytes, size: local });
    }
    Ok(&mut warp.local[lane * local + start..lane * local + start + bytes])
}

/// Numbers of lanes.
pub fn lanes_of(lanes: u32) -> impl Iterator<Item = usize> {
    let mut rest = lanes;
    std::iter::from_fn(move || {
        let lane = rest.trailing_zeros();
        rest &= rest.wrapping_sub(1);
        (lane < 32).then_some(lane as usize)
    })
}

/// The first lanes whose addresses follow each other or are the same, and how many bytes they are.
fn run(lanes: u32, at: &[u64; 32], size: usize) -> (u32, usize) {
    let first = lanes.trailing_zeros() as usize;
    let (mut run, mut last) = (0, at[first]);
    for lane in lanes_of(lanes) {
        if at[lane] != last && at[lane] != last + size as u64 {
            break;
        }
        last = at[lane];
        run |= 1 << lane;
    }
    (run, (last - at[first]) as usize + size)
}

/// Lanes that write different values to the same address.
fn collide(places: &Places, values: impl Fn(usize) -> Vec<u64>, element: usize) -> Acted<()> {
    let mut order: Vec<usize> = lanes_of(places.lanes).collect();
    if order.windows(2).all(|pair| places.at[pair[0]] < places.at[pair[1]]) {
        return Ok(());
    }
    let mask = super::math::integers::mask(8 * element as u32);
    order.sort_by_key(|lane| places.at[*lane]);
    for pair in order.windows(2) {
        let same = places.at[pair[0]] == places.at[pair[1]];
        let bits = |lane| values(lane).into_iter().map(|v| v & mask).collect::<Vec<_>>();
        if same && bits(pair[0]) != bits(pair[1]) {
            let lanes = [pair[0] as u32, pair[1] as u32];
            let address = places.at[pair[0]];
            return Err((Wrong::Collision { lanes, address }, lanes[1]));
        }
    }
    Ok(())
}

/// A value as registers hold it.
fn read(bytes: &[u8], kind: Type) -> u64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let value = u64::from_le_bytes(wide);
    let shift = 64 - 8 * bytes.len() as u32;
    if kind.signed() { ((value << shift) as i64 >> shift) as u64 } else { value }
}
