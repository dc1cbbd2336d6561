//! The axes of a row's mesh: the slowest links first, as Megatron-LM orders its groups.

use anyhow::{Result, ensure};
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_plan::Pin;

use super::row::Published;

/// The parts of a model that the ranks of an axis have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Stages.
    Stages,
    /// Copies of all.
    Copies,
    /// Shares of what all of them hold.
    Shares,
    /// Parts of each sequence.
    Sequences,
    /// Parts of each block.
    Blocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    role: Role,
    ranks: usize,
    /// Whether each of its ranks has experts of its own.
    experts: bool,
}

/// The axes of a mesh, outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axes(Vec<Axis>);

impl Axes {
    /// The axes of a row of which `inner` ranks share what all ranks of data parallelism hold. Ranks that have experts of their own are the
    /// innermost ones of a stage: those that share blocks, then those that share sequences, then those of data parallelism.
    ///
    /// # Errors
    /// Returns an error if the ranks of experts are no such group.
    pub fn of_row(row: &Published, inner: usize) -> Result<Self> {
        let &Published { stages, tensor, context, experts, .. } = row;
        let of_data = experts / (tensor * context).min(experts);
        ensure!(
            experts == 1 || experts == of_data * tensor * context && inner.is_multiple_of(of_data),
            "experts on {experts} ranks: these are no multiple of {} that share blocks and sequences, or no part of {inner} that share states",
            tensor * context
        );
        let axis = |role, ranks, experts| Axis { role, ranks, experts };
        let all = [
            (stages > 1 || tensor > 1, axis(Role::Stages, stages, false)),
            (row.data / inner > 1, axis(Role::Copies, row.data / inner, false)),
            (of_data == 1 || inner > of_data, axis(Role::Shares, inner / of_data, false)),
            (of_data > 1, axis(Role::Shares, of_data, true)),
            (context > 1, axis(Role::Sequences, context, experts > 1)),
            (tensor > 1, axis(Role::Blocks, tensor, experts > 1)),
        ];
        Ok(Self(all.into_iter().filter(|(is, _)| *is).map(|(_, axis)| axis).collect()))
    }

    /// Returns the number of axes.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the ranks of each axis.
    pub fn mesh(&self) -> Vec<usize> {
        self.0.iter().map(|axis| axis.ranks).collect()
    }

    /// Whether ranks have experts of their own.
    pub fn has_experts(&self) -> bool {
        self.0.iter().any(|axis| axis.experts)
    }

    /// Returns the axes whose ranks share what all of them hold. Ranks that share sequences do so, too.
    pub fn shared(&self) -> Vec<usize> {
        let shares = |axis: &Axis| matches!(axis.role, Role::Shares | Role::Sequences);
        let all = self.0.iter().enumerate();
        all.filter(|(_, axis)| shares(axis) && axis.ranks > 1).map(|(index, _)| index).collect()
    }

    /// Returns a layout with one SBP for each axis.
    fn layout(&self, sbp: impl Fn(usize, &Axis) -> Sbp) -> NdSbp {
        NdSbp(self.0.iter().enumerate().map(|(index, axis)| sbp(index, axis)).collect())
    }

    /// Returns the layout of experts, `[experts, ..]`: apart over their ranks, and in shards of the next dim over axes of `split`.
    pub fn lay_experts(&self, split: &[usize]) -> NdSbp {
        self.layout(|index, axis| match axis.experts {
            true => Sbp::Split(0),
            false if split.contains(&index) => Sbp::Split(1),
            false => Sbp::Broadcast,
        })
    }

    /// Returns the pins of `[batch, sequence]` where ranks share sequences: of the labels, and so of tokens.
    pub fn pin_sequences(&self) -> Vec<Pin> {
        if self.0.iter().all(|axis| axis.role != Role::Sequences) {
            return Vec::new();
        }
        let sbp = self.layout(|_, axis| match axis.role {
            Role::Copies | Role::Shares => Sbp::Split(0),
            Role::Sequences => Sbp::Split(1),
            Role::Stages | Role::Blocks => Sbp::Broadcast,
        });
        vec![Pin { pattern: "labels".into(), sbp }]
    }
}
