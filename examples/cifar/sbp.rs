//! Training by SBP: one plan for all ranks, in which the compiler has placed the communication.

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::{Context, Result};
use graphc::plan::TensorKind;
use graphc::prelude::*;

use super::{Options, Recipe, Sums, Tensors, Trainer, evaluation, run};

/// Steps under way at once.
const DEPTH: usize = 3;

/// Trains on the launcher's ranks, or on threads of this process.
pub fn train(options: &Options, recipe: &Recipe) -> Result<()> {
    let job = Job::from_environment()?;
    let result = train_on(options, recipe, job.as_ref());
    if let (Some(job), Err(error)) = (&job, &result) {
        job.fail(format!("{error:#}"));
    }
    result
}

fn train_on(options: &Options, recipe: &Recipe, job: Option<&Arc<Job>>) -> Result<()> {
    let mesh = options.mesh(job.map(|job| job.world_size() as usize))?;
    let [train, test] = options.sets()?;
    let cluster = preset("cpu").context("a preset")?;
    let plan = |options: CompileOptions, batch: usize| -> Result<VerifiedPlan> {
        let graph = (recipe.network)(batch, mesh.len())?;
        Ok(compile(graph, &CompileOptions { mesh: mesh.clone(), ..options }, &cluster, None)?.plan)
    };
    let training = plan(options.training(recipe, train.samples())?, options.batch)?;
    let evaluation = plan(evaluation(), options.batch)?;

    let resumed = options.resumed()?;
    let own = options.session(resumed.as_ref());
    let (first_step, seed) = (own.first_step, own.seed);
    let mut session = Session::with_job(job, &training, &BTreeMap::new(), own)?;
    if let Some(checkpoint) = &resumed {
        session.load_checkpoint(checkpoint)?;
    }
    let tester = Session::with_job(job, &evaluation, &BTreeMap::new(), SessionOptions::default())?;
    let source = options.source()?;
    let loader = Loader::for_session(train, &session, source.training(seed))?;
    let tests = Loader::for_session(test, &tester, source.evaluation())?;
    let under_way = VecDeque::new();
    let mut trainer = Sbp { job: job.cloned(), session, under_way, tester, tests };
    run(options, &mut trainer, &loader, first_step, mesh.iter().product())
}

struct Sbp {
    job: Option<Arc<Job>>,
    session: Session,
    under_way: VecDeque<graphc::runtime::StepHandle>,
    tester: Session,
    tests: Loader,
}

impl Trainer for Sbp {
    fn leads(&self) -> bool {
        self.session.leads()
    }

    fn step(&mut self, feeds: Tensors) -> Result<Vec<Tensors>> {
        self.under_way.push_back(self.session.step(feeds)?);
        let done = if self.under_way.len() < DEPTH { None } else { self.under_way.pop_front() };
        Ok(done.map(|step| step.wait()).transpose()?.into_iter().collect())
    }

    fn finish(&mut self) -> Result<Vec<Tensors>> {
        self.under_way.drain(..).map(|step| Ok(step.wait()?)).collect()
    }

    /// Returns the sums as they are: all ranks have the outputs of the whole batch.
    fn total(&mut self, sums: Sums) -> Result<Sums> {
        Ok(sums)
    }

    fn evaluate(&mut self) -> Result<Sums> {
        let variables = self.tester.variables();
        let weights = variables.iter().filter(|(_, (kind, _))| *kind == TensorKind::Parameter);
        let names = weights.map(|(name, _)| name.as_str());
        self.tester.copy_variables(&mut self.session, names)?;
        let mut sums = Sums::default();
        for batch in self.tests.epoch(0)? {
            sums.add(&self.tester.step(batch?.feeds)?.wait()?)?;
        }
        Ok(sums)
    }

    fn save(&mut self, to: &mut Checkpoints) -> Result<()> {
        let mut barrier = || self.job.as_ref().map_or(Ok(()), |job| job.barrier());
        self.session.save_checkpoint_with(to, &mut barrier)?;
        Ok(())
    }
}
