//! The sources, documents and examples themselves, and damaged input.

mod bad_input;
mod documents;
mod examples;
mod fuzz;
mod modules;
mod names;
mod ops_table;
#[path = "../support/mod.rs"]
mod support;
mod workspace;

/// The folders of the product's libraries. The command lies in `src`, beside them.
const LIBRARIES: [&str; 13] = [
    "ir",
    "ir/plan",
    "ir/nn",
    "compiler",
    "compiler/solver",
    "compiler/import",
    "kernels",
    "runtime",
    "runtime/host",
    "runtime/comm",
    "data",
    "eager",
    "graphc",
];
