//! The choice of weights that are trained: the user's, by name or pattern, over the model's.

use graphc_ir::graph::Graph;
use graphc_ir::op::Op;
use graphc_ir::ops::Variable;
use graphc_ir::pattern::matches_pattern;
use graphc_ir::types::TensorType;

use super::{ImportError, ImportOptions};

/// The most names that an error lists.
const MOST_NAMES: usize = 6;

/// The user's patterns, and which of them have matched anything.
pub(super) struct TrainedPatterns {
    freeze: Vec<(String, bool)>,
    train: Vec<(String, bool)>,
}

/// Sets which variables of a graph are trained, by patterns of names: what `--freeze` and `--train` do for a file. A variable that no pattern matches
/// stays as the graph says. [`ImportOptions::train`] wins over [`ImportOptions::freeze`].
///
/// ```
/// use graphc_import::{ImportOptions, choose_trained};
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Linear, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("a new head on old layers");
/// let x = g.input("x", DType::F32, [4, 5]);
/// let [body, head] = ["body", "head"].map(|name| Linear::new(&g, name, 5, 5));
/// g.output("y", &head.forward(&body.forward(&x)));
/// let mut graph = g.finish()?;
/// let train = vec!["head.*".into()];
/// let options = ImportOptions { freeze: vec!["*".into()], train, ..ImportOptions::default() };
/// choose_trained(&mut graph, &options)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error if a pattern matches no variable, or a variable that is to be trained holds no floating-point numbers.
pub fn choose_trained(graph: &mut Graph, options: &ImportOptions) -> Result<(), ImportError> {
    let mut patterns = TrainedPatterns::new(options);
    for variable in variables_mut(graph) {
        let (name, ty) = (variable.name.clone(), variable.ty.clone());
        variable.trainable = patterns.is_trained((&name, &[]), &ty, variable.trainable)?;
    }
    let names: Vec<String> = variables_mut(graph).map(|variable| variable.name.clone()).collect();
    patterns.check_matched(names.iter().map(String::as_str))
}

/// Iterates over the variables of a graph.
pub(super) fn variables_mut(graph: &mut Graph) -> impl Iterator<Item = &mut Variable> {
    graph.nodes.iter_mut().filter_map(|node| match &mut node.op {
        Op::Variable(variable) => Some(variable),
        _ => None,
    })
}

impl TrainedPatterns {
    pub(super) fn new(options: &ImportOptions) -> Self {
        let unmatched = |patterns: &[String]| patterns.iter().map(|p| (p.clone(), false)).collect();
        Self { freeze: unmatched(&options.freeze), train: unmatched(&options.train) }
    }

    /// Whether a weight is trained, if the model says `default`. Patterns of weights to be trained win over patterns of weights to be frozen, so that
    /// a user can freeze all weights but a few. A weight that the exporter has made of others goes by their names as well.
    ///
    /// # Errors
    /// Returns an error if a weight that is to be trained is no floating-point tensor.
    pub(super) fn is_trained(
        &mut self,
        (name, parts): (&str, &[String]),
        ty: &TensorType,
        default: bool,
    ) -> Result<bool, ImportError> {
        let matches = |patterns: &mut [(String, bool)]| {
            let names = parts.iter().map(String::as_str).chain([name]);
            names.map(|name| mark_matches(patterns, name)).fold(false, |any, own| any | own)
        };
        let frozen = matches(&mut self.freeze);
        if matches(&mut self.train) {
            if !ty.dtype.is_float() {
                let reason = format!("it is {ty}, and only floating-point numbers can be");
                return Err(ImportError::Train { name: name.into(), reason });
            }
            return Ok(true);
        }
        Ok(default && !frozen)
    }

    /// Refuses a pattern that has matched none of these weights, because a user who gives one means some.
    ///
    /// # Errors
    /// Returns an error if there is such a pattern.
    pub(super) fn check_matched<'a>(
        &self,
        weights: impl Iterator<Item = &'a str>,
    ) -> Result<(), ImportError> {
        let named =
            |(patterns, option)| find_unmatched(patterns).map(move |pattern| (pattern, option));
        let options = [(&self.freeze[..], "--freeze"), (&self.train[..], "--train")];
        let Some((pattern, option)) = options.into_iter().find_map(named) else { return Ok(()) };
        let mut names: Vec<String> = weights.map(|name| format!("`{name}`")).collect();
        if names.len() > MOST_NAMES {
            let more = names.len() - MOST_NAMES;
            names.truncate(MOST_NAMES);
            names.push(format!("{more} more"));
        }
        Err(ImportError::Pattern { option, pattern: pattern.into(), weights: names.join(", ") })
    }
}

/// Returns the first pattern that has matched nothing.
fn find_unmatched(patterns: &[(String, bool)]) -> Option<&str> {
    patterns.iter().find(|(_, matched)| !matched).map(|(pattern, _)| pattern.as_str())
}

/// Marks every pattern that matches.
fn mark_matches(patterns: &mut [(String, bool)], name: &str) -> bool {
    let mut found = false;
    for (pattern, matched) in patterns {
        let matches = matches_pattern(pattern, name);
        *matched |= matches;
        found |= matches;
    }
    found
}
