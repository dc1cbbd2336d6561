//! The text format (`.gir`), the graph's only external form: one node a line, `parse(print(g)) == g`.
//!
//! ```text
//! graph @mlp {
//!   stage 0 on cpu[0, 1] as 2
//!   %x = input "x" : f32[batch, 20]
//!   %w = variable "w" {init={"normal": {"mean": 0, "std": 0.02}}, trainable=true} : f32[64, 20]
//!   %2 = matmul %x, %w {transpose_b=true} stage 0 pin "S(0)" : f32[16, 64]
//!   %3, %4 = split %2 {axis=1, sizes=[32, 32]} on cpu[0, 1] as 2 pin ("S(0)", _) : f32[16, 32], f32[16, 32]
//!   return "logits" = %3
//! }
//! ```
//!
//! Attributes come from the payload's serde form, so a new op needs nothing here: `name` stands before the braces, `ty`
//! after the colon, and a `false` may be left out. Extents may be names and products (`2*batch`), bound by
//! [`parse_with`]; [`print_for_any_batch`] writes them. Read [`print_graph`] first, then `syntax` (text to statements), then `resolve` (statements to a graph).

mod error;
mod lex;
mod payload;
mod print;
mod reader;
mod resolve;
mod suggest;
mod symbolic;
mod syntax;

pub use error::{ParseError, ParseErrors};
pub use print::print_graph;
pub use resolve::{Unresolved, parse_graph, parse_with};
pub use suggest::{nearest_name, suggest_name};
pub use symbolic::print_for_any_batch;
