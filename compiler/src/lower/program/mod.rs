//! Programs, each one rank's part of the tasks (`build`), and the plan's tables for readers (`tables`).

pub(in crate::lower) mod build;
pub(in crate::lower) mod tables;
