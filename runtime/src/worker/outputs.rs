//! Which ranks hold the parts of an output, and which want them.

use graphc_ir::sbp::Sbp;
use graphc_plan::{Action, Layout, Plan};

/// The processes that get a step's outputs; on the others they are zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputsAt {
    /// All: every process sees the same.
    #[default]
    AllRanks,
    /// Rank 0 alone.
    Rank0,
    /// Rank 0 alone; but the outputs of these names all.
    Rank0But(&'static [&'static str]),
}

impl OutputsAt {
    pub(crate) fn wants_output(self, rank: u32, output: &str) -> bool {
        match self {
            Self::AllRanks => true,
            Self::Rank0 => rank == 0,
            Self::Rank0But(of_all) => rank == 0 || of_all.contains(&output),
        }
    }
}

/// The first tag of outputs, beyond those of channels.
const FIRST_TAG: u32 = 1 << 31;

/// Returns the tag of an output.
pub(crate) fn output_tag(output: usize) -> u32 {
    FIRST_TAG + output as u32
}

/// A fetch: how an output leaves one rank.
pub(crate) struct Fetch<'a> {
    pub(crate) layout: &'a Layout,
    /// The microbatches in which it does, in order.
    pub(crate) microbatches: Vec<u32>,
}

/// Finds the layout and the microbatches in which `rank` fetches an output; `None` where it does not.
pub(crate) fn find_fetch<'a>(plan: &'a Plan, rank: u32, name: &str) -> Option<Fetch<'a>> {
    let program = plan.programs.get(plan.ranks.get(rank as usize)?.program.index())?;
    let is_it = |action: &Action| matches!(action, Action::Fetch { output, .. } if output == name);
    let actor = program.actors.iter().position(|actor| is_it(&actor.action))?;
    let register = program.registers.get(program.actors[actor].inputs.first()?.index())?;
    let layout = plan.layouts.get(register.layout.index())?;
    let items = program.streams.iter().flat_map(|stream| {
        let holds = move |block: u32| {
            let block = stream.blocks.get(block as usize);
            block.is_some_and(|block| block.iter().any(|id| id.index() == actor))
        };
        stream.order.iter().filter(move |item| holds(item.block)).map(|item| item.microbatch)
    });
    Some(Fetch { layout, microbatches: items.collect() })
}

/// Whether two ranks of a layout hold the same.
pub(crate) fn ranks_hold_same(layout: &Layout, a: u32, b: u32) -> bool {
    let (Some(a), Some(b)) = (layout.coordinates(a), layout.coordinates(b)) else { return false };
    let splits = layout.sbp.0.iter().map(|sbp| matches!(sbp, Sbp::Split(_)));
    splits.zip(a.iter().zip(&b)).all(|(split, (a, b))| !split || a == b)
}

/// Returns the first rank of the layout that holds what `rank` holds.
pub(crate) fn first_holder(layout: &Layout, rank: u32) -> Option<u32> {
    layout.ranks.iter().copied().find(|&other| ranks_hold_same(layout, rank, other))
}

/// Returns the ranks to which `rank` sends its part of an output, and how many messages a step.
pub(crate) fn output_readers(
    plan: &Plan,
    rank: u32,
    output: &str,
    outputs_at: OutputsAt,
) -> (Vec<u32>, usize) {
    let Some(fetch) = find_fetch(plan, rank, output) else { return (Vec::new(), 0) };
    if first_holder(fetch.layout, rank) != Some(rank) {
        return (Vec::new(), 0);
    }
    let wants = |&reader: &u32| {
        outputs_at.wants_output(reader, output) && !ranks_hold_same(fetch.layout, rank, reader)
    };
    let readers = (0..plan.world_size as u32).filter(wants).collect();
    (readers, fetch.microbatches.len())
}
