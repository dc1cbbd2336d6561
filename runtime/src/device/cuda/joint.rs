//! Several actors as one launch: updates of several variables, which finds their registers in a table in the card's memory, and a
//! matrix product with the chain behind it, or with sums of a factor.

use graphc_ir::op::Op;
use graphc_kernels::cuda::{self, Behind, CallRegister, Entry, Shard, Sums};

use super::super::call::{ProductPair, Unprepared, With};
use super::super::port::{Port, Turn};
use super::driver::{CardBuffer, Trouble};
use super::launch::{CardLaunch, describe_shards};
use super::{CardShared, Cuda, ways};

/// The registers of an update: its operands and its results, each of one slot.
pub(crate) type Registers = [Vec<Port>; 2];

impl CardLaunch {
    /// # Errors
    /// Where updates by this rule cannot be one launch, or the card does not take it.
    pub(crate) fn prepare_joint(
        device: &Cuda,
        actor: &str,
        op: &Op,
        members: Vec<Registers>,
    ) -> Result<Self, Unprepared> {
        let of_each: Vec<_> =
            members.iter().map(|[operands, _]| describe_shards(operands)).collect();
        let none =
            || Unprepared::Registers("is joined with others, which its op does not do".into());
        let mut call = cuda::join_alike(op, &of_each).ok_or_else(none)?;
        let table = std::mem::take(&mut call.table);
        let [mut operands, mut results] = [Vec::new(), Vec::new()];
        for [from, to] in members {
            operands.extend(from);
            results.extend(to);
        }
        let upload = || upload_table(device, &table, [&operands, &results]);
        let table = device.has_card().then(upload).transpose();
        let table = table.map_err(|trouble| Unprepared::Device(trouble.to_string()))?;
        Self::of_one(device, actor, call, table, [operands, results])
    }

    /// Prepares a product and what goes with it; `None` where the library makes the product and not both: then they are better two
    /// launches.
    pub(crate) fn prepare_pair(device: &Cuda, actor: &str, pair: ProductPair<'_>) -> Option<Self> {
        let ProductPair { op, factors, with, results } = pair;
        let of_factors: [Shard; 2] = describe_shards(&factors).try_into().ok()?;
        let of_results = describe_shards(&results);
        let (call, others) = match with {
            With::Chain { chain, operands, product, keeps, shared } => {
                let of_chain = describe_shards(&operands);
                let behind = Behind { chain, operands: &of_chain, product, keeps, shared: &shared };
                (cuda::join_chain(op, &of_factors, behind, &of_results)?, operands)
            }
            With::Sums { factor, operand, reduce } => {
                let [made, sums] = &of_results[..] else { return None };
                let operand = &describe_shards(&[operand])[0];
                let of = Sums { factor, operand, reduce };
                (cuda::join_sums(op, &of_factors, of, [made, sums])?, Vec::new())
            }
            With::Accumulation => {
                let [sum] = &of_results[..] else { return None };
                let calls = cuda::join_accumulation(op, &of_factors, sum)?;
                if !calls.iter().all(|call| is_made_whole(&device.shared, call)) {
                    return None;
                }
                let launch = Self::of_two(device, actor, calls, [factors, results]).ok()?;
                return (!device.refuses).then_some(launch);
            }
            // Updates of all variables are one launch.
            With::Update { .. } => return None,
        };
        let all = factors.into_iter().chain(others).collect();
        if !is_made_whole(&device.shared, &call) {
            return None;
        }
        // What cannot be prepared is refused as two launches as well, and then it is said why.
        let launch = Self::of_one(device, actor, call, None, [all, results]).ok()?;
        // Where no card is its kernels are known now, and those of shorter chains are asked for next.
        (!device.refuses).then_some(launch)
    }
}

/// Whether the products among a call's launches are.
fn is_made_whole(shared: &CardShared, call: &cuda::Call) -> bool {
    call.launches.iter().all(|launch| match launch {
        cuda::Launch::Product(product) => ways::is_made_whole(shared, product),
        cuda::Launch::Kernel(_) | cuda::Launch::Clear { .. } | cuda::Launch::Copy { .. } => true,
    })
}

/// Uploads the table to the card's memory; places are counted from where all registers begin.
pub(super) fn upload_table(
    device: &Cuda,
    table: &[Entry],
    [operands, results]: [&[Port]; 2],
) -> Result<CardBuffer, Trouble> {
    let first = Turn { step: 0, microbatch: 0, microbatches: 1 };
    let word = |entry: &Entry| match *entry {
        Entry::Place(CallRegister::Operand(index)) => {
            operands[index].content_range(first).offset as u64
        }
        Entry::Place(CallRegister::Result(index)) => {
            results[index].content_range(first).offset as u64
        }
        Entry::Number(number) => number,
    };
    let bytes: Vec<u8> = table.iter().flat_map(|entry| word(entry).to_ne_bytes()).collect();
    let buffer = CardBuffer::new(device.context()?, bytes.len())?;
    buffer.write(0, &bytes)?;
    Ok(buffer)
}
