//! What several actors do as one launch: updates of several variables, which finds their registers in a table in the card's memory,
//! and a matrix product with the chain behind it.

use graphc_ir::op::Op;
use graphc_ir::ops::MatMul;
use graphc_ir::plan::FusedOp;
use graphc_kernels::cuda::{self, Behind, Entry, Shard, Slot};

use super::super::call::Unprepared;
use super::super::port::{Port, Turn};
use super::Cuda;
use super::driver::{Buffer, Trouble};
use super::launch::{Launch, shards};

/// The registers of an update: its operands and its results, each of one slot.
pub(crate) type Registers = [Vec<Port>; 2];

impl Launch {
    /// # Errors
    /// Where updates by this rule cannot be one launch, or the card does not take it.
    pub(crate) fn prepare_joint(
        device: &Cuda,
        actor: &str,
        op: &Op,
        members: Vec<Registers>,
    ) -> Result<Self, Unprepared> {
        let of_each: Vec<_> = members.iter().map(|[operands, _]| shards(operands)).collect();
        let none =
            || Unprepared::Registers("is joined with others, which its op does not do".into());
        let mut call = cuda::join_updates(op, &of_each).ok_or_else(none)?;
        let table = std::mem::take(&mut call.table);
        let [mut operands, mut results] = [Vec::new(), Vec::new()];
        for [from, to] in members {
            operands.extend(from);
            results.extend(to);
        }
        let table = upload(device, &table, [&operands, &results]);
        let table = table.map_err(|trouble| Unprepared::Device(trouble.to_string()))?;
        Self::of_one(device, actor, call, Some(table), [operands, results])
    }

    /// A product and the chain behind it; `None` where the library does not compute both.
    pub(crate) fn prepare_pair(device: &Cuda, actor: &str, pair: Pair<'_>) -> Option<Self> {
        let Pair { op, factors, chain, operands, product, out } = pair;
        let [of_chain, result] = [&operands[..], std::slice::from_ref(&out)].map(shards);
        let behind = Behind { chain, operands: &of_chain, product };
        let factors_of: [Shard; 2] = shards(&factors).try_into().ok()?;
        let call = cuda::join_chain(op, &factors_of, behind, result.first()?)?;
        let all = factors.into_iter().chain(operands).collect();
        // What is refused here is prepared as two launches.
        Self::of_one(device, actor, call, None, [all, vec![out]]).ok()
    }
}

/// A product and the chain behind it.
pub(crate) struct Pair<'a> {
    pub(crate) op: &'a MatMul,
    /// Both factors.
    pub(crate) factors: Vec<Port>,
    pub(crate) chain: &'a FusedOp,
    /// The chain's operands.
    pub(crate) operands: Vec<Port>,
    /// Which of them is the product.
    pub(crate) product: usize,
    /// The chain's result.
    pub(crate) out: Port,
}

/// The table in the card's memory; places are counted from where all registers begin.
fn upload(
    device: &Cuda,
    table: &[Entry],
    [operands, results]: [&[Port]; 2],
) -> Result<Buffer, Trouble> {
    let first = Turn { step: 0, microbatch: 0, microbatches: 1 };
    let word = |entry: &Entry| match *entry {
        Entry::Place(Slot::Operand(index)) => operands[index].place(first).offset as u64,
        Entry::Place(Slot::Result(index)) => results[index].place(first).offset as u64,
        Entry::Number(number) => number,
    };
    let bytes: Vec<u8> = table.iter().flat_map(|entry| word(entry).to_ne_bytes()).collect();
    let buffer = Buffer::new(&device.shared.context, bytes.len())?;
    buffer.write(0, &bytes)?;
    Ok(buffer)
}
