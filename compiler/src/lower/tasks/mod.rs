//! Tasks: what all ranks do, before it is split into programs.
//!
//! `task_graph` holds them. `collect` makes them from the nodes of the graph, with those that bring operands into other layouts (`copies`).
//! `segments` and `sort` put them in order.

pub(in crate::lower) mod collect;
mod copies;
pub(in crate::lower) mod segments;
pub(in crate::lower) mod sort;
pub(in crate::lower) mod task_graph;
