//! Recognises attention that a model writes as a product, softmax and a product, and lets the one op stand for it that never has the
//! matrix of scores in memory: exports of other frameworks know no such op.
//!
//! A site of attention is a product whose first operand comes from a softmax over its last dim, of what comes from a product (`find.rs`, where to
//! start reading). It is replaced where that gives the same function: scores are scaled by numbers alone, and whether a mask is the
//! causal one or hides nothing is decided by computing it (`passes/constants.rs`, `masks.rs`), never by its form. All else that is added to
//! scores, or hides some of them, is the op's bias (`terms.rs`).
//!
//! Rows that are masked whole give what they gave. Where masks are low numbers, all keys weigh the same, and the op has it so. Where
//! they are -inf, softmax gives no number, so such a mask is taken only if each row is known to have a key, or if the model puts zeros in
//! the place of those weights, as PyTorch's exports do (`guards.rs`): the op gives 0 for such rows. Queries, keys
//! and values are traced to what they were before transposes, reshapes and repetitions of heads (`heads.rs`), so heads that share
//! keys are read as they are. Values may be wider or narrower than keys (`widths.rs`). Nothing is replaced whose scores or weights somebody
//! else reads or asks a layout of, nor what is on several stages.

mod find;
mod guards;
mod head_scale;
mod heads;
mod kept;
mod masks;
mod rewrite;
mod terms;
mod widths;

use std::collections::BTreeMap;

use graphc_ir::graph::Graph;
use graphc_ir::op::Op;
use graphc_plan::CompileOptions;

use crate::passes::error::PassError;

pub use find::AttentionSite;
pub(crate) use find::find_sites;
pub use kept::Kept;

const PASS: &str = "attention";

/// Replaces each attention that is recognised by one op.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(crate) fn fuse_attention(graph: Graph, options: &CompileOptions) -> Result<Graph, PassError> {
    if options.keep_attention {
        return Ok(graph);
    }
    let found: Vec<find::FoundAttention> =
        find_sites(&graph, options).into_iter().filter_map(|site| site.found.ok()).collect();
    if found.is_empty() {
        return Ok(graph);
    }
    let rewritten = rewrite::rewrite_attention(&graph, options, &found);
    rewritten.map_err(|error| PassError::Op { pass: PASS, error })
}

/// The attentions of a graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attentions {
    /// The number of those that are one op, as written or as recognised.
    pub whole: usize,
    /// The names of the softmax results of all others, by the reason that leaves them in parts.
    pub in_parts: BTreeMap<Kept, Vec<String>>,
}

/// Counts the attentions of a graph as the pass would leave it.
pub(crate) fn count_attentions(graph: &Graph, options: &CompileOptions) -> Attentions {
    let written = graph.nodes.iter().filter(|node| matches!(node.op, Op::Attention(_)));
    let mut found = Attentions { whole: written.count(), in_parts: BTreeMap::new() };
    for site in find_sites(graph, options) {
        let asked = options.keep_attention.then_some(Kept::Asked);
        match asked.or(site.kept_reason()) {
            None => found.whole += 1,
            Some(kept) => {
                let softmax = graph.display_name(graph.node(site.softmax).results[0]);
                found.in_parts.entry(kept).or_default().push(softmax);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
