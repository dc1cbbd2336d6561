//! Evaluations of a training on its way.

use anyhow::Result;
use graphc_data::Source;
use graphc_plan::{Plan, TensorKind};
use graphc_runtime::Session;
use serde_json::Value;

use crate::cli::eval::Evaluation;

/// Evaluates a training on its way.
pub(super) struct Watch {
    evaluation: Evaluation,
    /// The weights that go from one session to the other.
    names: Vec<String>,
    /// Steps between evaluations; `None`: there is one, at the end.
    every: Option<u64>,
    patience: Option<usize>,
    best: f64,
    /// Evaluations since the best.
    worse: usize,
}

impl Watch {
    /// Evaluates on what is held out of a source after every so many steps.
    pub(super) fn new(
        session: Session,
        plan: &Plan,
        source: &Source,
        every: Option<u64>,
        patience: Option<usize>,
    ) -> Result<Self> {
        let variables = session.variables().into_iter();
        let names = variables.filter(|(_, (kind, _))| *kind == TensorKind::Parameter);
        let names = names.map(|(name, _)| name).collect();
        let evaluation = Evaluation::new(session, plan, source)?;
        Ok(Self { evaluation, names, every, patience, best: f64::INFINITY, worse: 0 })
    }

    /// Whether evaluations find this.
    pub(super) fn finds_metric(&self, metric: &str) -> bool {
        self.evaluation.finds_metric(metric)
    }

    /// Whether an evaluation is due after so many steps, besides that at the end.
    pub(super) fn is_due(&self, finished: u64) -> bool {
        self.every.is_some_and(|every| finished.is_multiple_of(every))
    }

    /// Evaluates the weights that a session has now: what comes out, and whether patience is at its end.
    pub(super) fn evaluate(&mut self, of: &mut Session) -> Result<(Value, bool)> {
        for name in &self.names {
            let value = of.variable(name)?;
            self.evaluation.session.set_variable(name, &value)?;
        }
        let scores = self.evaluation.run()?;
        let loss = scores["loss"].as_f64().unwrap_or(f64::INFINITY);
        self.worse = if loss < self.best { 0 } else { self.worse + 1 };
        self.best = self.best.min(loss);
        Ok((scores, self.patience.is_some_and(|patience| self.worse >= patience)))
    }
}
