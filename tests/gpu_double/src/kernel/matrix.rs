//! Matrices: fragments in shared memory, products by a whole warp. Which lane holds what is as PTX has it (`ldmatrix`,
//! `mma.sync`): lane l has rows l / 4 and columns from 2 (l % 4) on.

use super::access::lanes_of;
use super::block::Block;
use super::math::{Brain, Half, Lane, Type};
use super::program::{Address, Product, Source};
use super::report::Wrong;
use super::shared::Me;
use super::step::Acted;
use super::warp::{Flight, Here, Warp};
use crate::memory::{Kind, Trouble};

/// Bytes of a row of a small matrix: 8 values of 16 bits.
const ROW: usize = 16;

impl Block<'_, '_> {
    /// Loads matrices of 8 x 8; row r of matrix m is where lane 8 m + r says.
    pub fn load_matrix(
        &mut self,
        to: &[u16],
        address: &Address,
        transposed: bool,
        warp: &mut Warp,
        lanes: u32,
    ) -> Acted<()> {
        whole(lanes)?;
        for (number, to) in to.iter().enumerate() {
            let mut rows = [[0u16; 8]; 8];
            for (row, values) in rows.iter_mut().enumerate() {
                let bytes = self.row(address, 8 * number + row, Kind::Read, warp)?;
                for (value, pair) in values.iter_mut().zip(bytes.chunks_exact(2)) {
                    *value = u16::from_le_bytes([pair[0], pair[1]]);
                }
            }
            let value = |row: usize, column: usize| {
                u64::from(if transposed { rows[column][row] } else { rows[row][column] })
            };
            let pair = |lane: usize| {
                let (row, column) = (lane / 4, lane % 4 * 2);
                value(row, column) | value(row, column + 1) << 16
            };
            warp.set(*to, lanes, &std::array::from_fn(pair));
        }
        Ok(())
    }

    /// Stores matrices of 8 x 8.
    pub fn store_matrix(
        &mut self,
        from: &[Source],
        address: &Address,
        transposed: bool,
        warp: &mut Warp,
        lanes: u32,
    ) -> Acted<()> {
        whole(lanes)?;
        for (number, from) in from.iter().enumerate() {
            let values = warp.get(*from, &self.here);
            let value = |row: usize, column: usize| {
                let (row, column) = if transposed { (column, row) } else { (row, column) };
                (values[row * 4 + column / 2] >> (16 * (column % 2))) as u16
            };
            for row in 0..8 {
                let bytes = self.row(address, 8 * number + row, Kind::Write, warp)?;
                for (column, pair) in bytes.chunks_exact_mut(2).enumerate() {
                    pair.copy_from_slice(&value(row, column).to_le_bytes());
                }
            }
        }
        Ok(())
    }

    fn row(&mut self, address: &Address, lane: usize, kind: Kind, warp: &Warp) -> Acted<&mut [u8]> {
        let base = warp.get_lane(address.base, lane, &self.here);
        let at = base.wrapping_add(address.offset as u64) & 0xFFFF_FFFF;
        if !at.is_multiple_of(ROW as u64) {
            let wrong = Trouble::Misaligned { address: at, bytes: ROW };
            return Err((wrong.into(), lane as u32));
        }
        let known = &self.known[warp.number as usize];
        let me = Me { warp: warp.number, epoch: self.epoch, known };
        self.shared.touch(at, ROW, kind, me).map_err(|wrong| (wrong, lane as u32))
    }

    /// Begins copies to shared memory; what is not given is filled with zeros.
    pub fn copy_async(
        &mut self,
        [to, from]: [Address; 2],
        bytes: usize,
        given: Option<Source>,
        warp: &mut Warp,
        lanes: u32,
    ) -> Acted<()> {
        let mut touched = Vec::with_capacity(32);
        for lane in lanes_of(lanes) {
            let wrong = |wrong| (wrong, lane as u32);
            if ![4, 8, 16].contains(&bytes) {
                return Err(wrong(Wrong::CopySize { bytes }));
            }
            let at = |address: Address| {
                let base = warp.get_lane(address.base, lane, &self.here);
                base.wrapping_add(address.offset as u64)
            };
            let (to, from) = (at(to) & 0xFFFF_FFFF, at(from));
            let given = given.map_or(bytes, |given| {
                (warp.get_lane(given, lane, &self.here) as u32 as usize).min(bytes)
            });
            let flight = self.begin_copy(to, from, bytes, given, warp.number).map_err(wrong)?;
            warp.open.push(flight);
            touched.extend((given > 0).then_some(from));
        }
        self.here.loads.count(touched.into_iter(), bytes);
        Ok(())
    }

    fn begin_copy(
        &mut self,
        to: u64,
        from: u64,
        bytes: usize,
        given: usize,
        warp: u32,
    ) -> Result<Flight, Wrong> {
        for address in [to, from] {
            if address % bytes as u64 != 0 {
                return Err(Trouble::Misaligned { address, bytes }.into());
            }
        }
        let mut data = vec![0; bytes];
        if given > 0 {
            let source = self.global(from, given, Kind::Read, warp)?;
            data[..given].copy_from_slice(source);
        }
        let known = &self.known[warp as usize];
        self.shared.announce(to, bytes, Me { warp, epoch: self.epoch, known })?;
        Ok((to, data))
    }

    /// Waits until no more than so many groups of copies are under way.
    pub fn copy_wait(&mut self, keep: usize, warp: &mut Warp) {
        let known = &self.known[warp.number as usize];
        let me = Me { warp: warp.number, epoch: self.epoch, known };
        let done = warp.committed.len().saturating_sub(keep);
        for (to, data) in warp.committed.drain(..done).flatten() {
            self.shared.arrive(to, &data, me);
        }
    }
}

fn whole(lanes: u32) -> Acted<()> {
    if lanes == u32::MAX {
        Ok(())
    } else {
        Err((Wrong::PartOfWarp { lanes }, lanes.trailing_zeros()))
    }
}

/// `c + a b`, with sums in f32.
pub fn multiply(product: &Product, warp: &mut Warp, lanes: u32, here: &Here) -> Acted<()> {
    whole(lanes)?;
    let inner = product.inner;
    let mut a = [[0f32; 32]; 16];
    let mut b = [[0f32; 8]; 32];
    for (number, source) in product.a.iter().enumerate() {
        let values = warp.get(*source, here);
        for (lane, value) in values.into_iter().enumerate() {
            for (part, value) in parts(value, product.factors) {
                let (row, column) = place(lane, number, part, product.factors);
                a[row][column] = value;
            }
        }
    }
    for (number, source) in product.b.iter().enumerate() {
        let values = warp.get(*source, here);
        for (lane, value) in values.into_iter().enumerate() {
            for (part, value) in parts(value, product.factors) {
                // The same as of the first factor, without its second rows.
                let (column, row) = place(lane, 2 * number, part, product.factors);
                b[row][column] = value;
            }
        }
    }
    let mut sums = sums(product, warp, here);
    for (sums, a) in sums.iter_mut().zip(&a) {
        for (a, b) in a[..inner].iter().zip(&b) {
            sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
        }
    }
    keep(product, &sums, warp);
    Ok(())
}

/// Row and column of a value of the first factor: lane, register, place in the register.
fn place(lane: usize, register: usize, part: usize, kind: Type) -> (usize, usize) {
    let row = lane / 4 + 8 * (register % 2);
    match kind {
        Type::Tf32 => (row, lane % 4 + 4 * (register / 2)),
        _ => (row, lane % 4 * 2 + part + 8 * (register / 2)),
    }
}

/// Values in a register, with their places.
fn parts(bits: u64, kind: Type) -> impl Iterator<Item = (usize, f32)> {
    let count = if kind == Type::Tf32 { 1 } else { 2 };
    (0..count).map(move |part| (part, value(bits >> (16 * part), kind)))
}

fn value(bits: u64, kind: Type) -> f32 {
    match kind {
        Type::Tf32 => f32::from_bits(bits as u32 & !0x1FFF),
        Type::F16 => Half::of(bits).to_f32(),
        _ => Brain::of(bits).to_f32(),
    }
}

/// Returns the summand, by rows.
fn sums(product: &Product, warp: &Warp, here: &Here) -> [[f32; 8]; 16] {
    let mut sums = [[0f32; 8]; 16];
    for (number, source) in product.c.iter().enumerate() {
        let values = warp.get(*source, here);
        for lane in 0..32 {
            match product.sums.0 {
                Type::F32 => {
                    let (row, column) = (lane / 4 + 8 * (number / 2), lane % 4 * 2 + number % 2);
                    sums[row][column] = f32::of(values[lane]);
                }
                _ => {
                    let row = &mut sums[lane / 4 + 8 * number];
                    let pair = <[Half; 2]>::of(values[lane]);
                    row[lane % 4 * 2] = pair[0].to_f32();
                    row[lane % 4 * 2 + 1] = pair[1].to_f32();
                }
            }
        }
    }
    sums
}

fn keep(product: &Product, sums: &[[f32; 8]; 16], warp: &mut Warp) {
    for (number, to) in product.to.iter().enumerate() {
        let value = |lane: usize| match product.sums.1 {
            Type::F32 => sums[lane / 4 + 8 * (number / 2)][lane % 4 * 2 + number % 2].bits(),
            _ => {
                let row = &sums[lane / 4 + 8 * number][lane % 4 * 2..];
                [Half::from_f32(row[0]), Half::from_f32(row[1])].bits()
            }
        };
        warp.set(*to, u32::MAX, &std::array::from_fn(value));
    }
}
