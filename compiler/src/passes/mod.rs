//! The passes, which turn a user's graph into a training graph with stages and rates.
//!
//! Each pass is a free function in a file of its own. [`crate::pipeline`] lists them in order. No pass chooses a
//! layout, since that is the planner's work. Some modules here are no passes but answer questions that several of
//! them ask, such as `layers` and `samples`.

use graphc_ir::graph::Graph;
use graphc_ir::ids::ValueId;

use error::PassError;

mod adafactor;
mod append;
pub mod attention;
pub mod autocast;
pub mod autodiff;
pub mod averages;
pub mod batch_first;
pub mod channels_last;
pub mod clipping;
mod composed;
mod constants;
pub mod decompose;
pub mod error;
mod fetched;
pub(crate) mod float8;
pub mod functions;
pub mod groups;
pub mod joined;
pub mod layers;
pub mod loss;
pub mod loss_scale;
mod muon;
pub mod optimizer;
pub mod padding;
pub mod pins;
pub mod rates;
mod rebuild;
pub mod recompute;
pub mod regather;
pub(crate) mod rows;
pub mod samples;
mod selective;
pub mod simplify;
pub mod skipping;
pub mod staging;
pub mod statistics;
pub mod training_mode;
mod update_ops;
mod views;
mod wanted;
pub mod zigzag;

/// The output that is the loss of a graph which [`loss::attach_loss`] has seen.
pub const LOSS: &str = "loss";

/// The prefix of a tensor's name in that of its gradient.
pub const GRADIENT: &str = "grad.";

/// The value of an output.
fn find_output(graph: &Graph, name: &str) -> Option<ValueId> {
    graph.outputs.iter().find(|output| output.name == name).map(|output| output.value)
}

/// Checks that no value and no output has a name.
fn name_is_free(pass: &'static str, graph: &Graph, name: &str) -> Result<(), PassError> {
    let output = graph.outputs.iter().find(|output| output.name == name);
    let Some(value) = graph.find(name).or(output.map(|output| output.value)) else {
        return Ok(());
    };
    let source_of = graph.producer(value).source.clone();
    Err(PassError::NameTaken { pass, name: name.into(), source_of })
}
