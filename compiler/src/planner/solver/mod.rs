//! Minimising a cost-function network: variables with few labels, costs of labels, of pairs of them, and of tensors that several
//! variables read.
//!
//! Nothing here knows graphs, meshes or memory: what a label stands for is known outside. Elimination is exact where the
//! network is narrow ([`eliminate`]); elsewhere messages prove a bound ([`dual`]) and lead to a plan ([`dive`]), labels that no
//! better plan can have are dropped ([`minimise`]), and what is left is divided ([`subdivide`]). Start reading with [`minimise::minimise`].

pub(super) mod bound;
pub(super) mod branch_and_bound;
mod bucket;
mod dive;
pub(super) mod dual;
mod eliminate;
mod joint;
pub(super) mod minimise;
pub(super) mod network;
mod quotient;
pub(super) mod share;
mod subdivide;
pub(super) mod tables;
mod terms;
