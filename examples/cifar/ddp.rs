//! Training with `DataParallel`: each rank has a plan of its own and its own samples, gradients are averaged. Batch norms
//! normalize by the samples of their rank, as under torch's DistributedDataParallel.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use graphc::data::{DistributedSampler, ImageSet, Remainder};
use graphc::dist;
use graphc::prelude::*;

use super::cifar::{Options, Recipe, Sums, Tensors, Trainer, evaluation, run};

/// Trains on the launcher's ranks, or on threads of this process.
pub fn train(options: &Options, recipe: &Recipe) -> Result<()> {
    let world = std::env::var("WORLD_SIZE").ok().and_then(|text| text.parse().ok());
    let ranks: usize = options.mesh(world)?.iter().product();
    ensure!(
        ranks > 0 && options.batch.is_multiple_of(ranks),
        "--batch {} is cut into {ranks} equal parts: take a multiple of {ranks}",
        options.batch
    );
    let sets = options.sets()?;
    let train = |group| train_rank(options, recipe, &sets, &group).map_err(|e| format!("{e:#}"));
    dist::run(ranks as u32, train)?;
    Ok(())
}

fn train_rank(
    options: &Options,
    recipe: &Recipe,
    [train, test]: &[Arc<ImageSet>; 2],
    group: &Group,
) -> Result<()> {
    let (rank, ranks) = (group.rank(), group.world_size());
    let own = options.batch / ranks;
    let resumed = options.resumed()?;
    let session = options.session(resumed.as_ref());
    let (first_step, seed) = (session.first_step, session.seed);
    let training = options.training(recipe, train.samples())?;
    let parallel = DataParallelOptions { training, session, ..DataParallelOptions::default() };
    let graph = (recipe.network)(own, 1)?;
    let mut ddp = DataParallel::new(group, graph, &BTreeMap::new(), &parallel)?;
    if let Some(checkpoint) = &resumed {
        ddp.load_checkpoint(checkpoint)?;
    }
    let source = options.source()?;
    let sampler = DistributedSampler::new(train.samples(), ranks, rank, Remainder::Drop);
    let sampled = LoaderOptions { sampler: Some(sampler.shuffled(seed)), ..source.training(seed) };
    let loader = Loader::new(Arc::clone(train) as _, ddp.inputs(), sampled)?;

    let cluster = preset("cpu").context("a preset")?;
    let plan = compile((recipe.network)(own, 1)?, &evaluation(), &cluster, None)?.plan;
    let tester = Session::new(&plan, &BTreeMap::new(), SessionOptions::default())?;
    let tests = held_out(Arc::clone(test), &tester, source.evaluation(), (rank, ranks))?;
    let mut trainer = Ddp { group: group.clone(), ddp, tester, tests };
    run(options, &mut trainer, &loader, first_step, ranks)
}

/// The rows of a rank of the same batches that one plan for all ranks is evaluated on: every sample counts once.
fn held_out(
    set: Arc<ImageSet>,
    tester: &Session,
    options: LoaderOptions,
    (rank, ranks): (usize, usize),
) -> Result<Loader> {
    let (mut whole, mut rows) = (tester.inputs().clone(), BTreeMap::new());
    for (name, ty) in &mut whole {
        let own = *ty.shape.first().ok_or_else(|| anyhow!("{name} has no dim of samples"))?;
        ty.shape[0] = own * ranks;
        let mine: Vec<Range<usize>> = std::iter::once(rank * own..(rank + 1) * own).collect();
        rows.insert(name.clone(), mine);
    }
    Ok(Loader::new(set, &whole, options)?.with_rows(&rows))
}

struct Ddp {
    group: Group,
    ddp: DataParallel,
    tester: Session,
    tests: Loader,
}

impl Trainer for Ddp {
    fn leads(&self) -> bool {
        self.group.rank() == 0
    }

    fn step(&mut self, feeds: Tensors) -> Result<Vec<Tensors>> {
        Ok(vec![self.ddp.train_step(feeds)?])
    }

    fn finish(&mut self) -> Result<Vec<Tensors>> {
        Ok(Vec::new())
    }

    fn total(&mut self, sums: Sums) -> Result<Sums> {
        let own = [sums.loss, sums.top1, sums.samples];
        let mut all = HostTensor::from_f64(DType::F32, [3], &own)?;
        self.group.all_reduce(&mut all, ReduceOp::Sum)?;
        let all = all.to_f64();
        Ok(Sums { loss: all[0], top1: all[1], samples: all[2] })
    }

    fn evaluate(&mut self) -> Result<Sums> {
        self.ddp.copy_to(&mut self.tester)?;
        let mut sums = Sums::default();
        for batch in self.tests.epoch(0)? {
            sums.add(&self.tester.step(batch?.feeds)?.wait()?)?;
        }
        self.total(sums)
    }

    fn save(&mut self, to: &mut Checkpoints) -> Result<()> {
        self.ddp.save_checkpoint(to)?;
        Ok(())
    }
}
