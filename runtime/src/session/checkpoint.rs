//! Sessions and checkpoints.

use std::collections::BTreeMap;
use std::path::PathBuf;

use graphc_comm::JobEnd;
use graphc_ir::enter_span;
use graphc_plan::{RegisterKind, TensorKind};

use super::Session;
use crate::checkpoint::{
    Checkpoint, CheckpointError, Checkpoints, ExpectedVariable, HeldShard, ManifestHeader,
    TrainingSettings,
};

impl Session {
    /// Saves all variables after all steps begun so far, whose number names the checkpoint. Returns its directory.
    /// For a session that holds all ranks of its plan.
    ///
    /// # Errors
    /// Where it cannot be written (then nothing half-written is left), one of that step exists, or a rank has failed.
    pub fn save_checkpoint(&mut self, to: &mut Checkpoints) -> Result<PathBuf, CheckpointError> {
        self.save_checkpoint_with(to, &mut || Ok(()))
    }

    /// Saves as [`Session::save_checkpoint`] does, together with the other processes of the job: each of them calls this
    /// after the same step, with the same directory, which all of them see. `barrier` returns when all processes have
    /// called it, and is an error where one of them has ended.
    ///
    /// # Errors
    /// As of [`Session::save_checkpoint`]. The other processes are then told by their barrier.
    pub fn save_checkpoint_with(
        &mut self,
        to: &mut Checkpoints,
        barrier: &mut dyn FnMut() -> Result<(), JobEnd>,
    ) -> Result<PathBuf, CheckpointError> {
        self.wait_idle()?;
        let step = self.next_step();
        let _span = enter_span!("save_checkpoint", step = step);
        let leads = self.ranks().any(|rank| rank == 0);
        if leads {
            to.begin_checkpoint(step)?;
        }
        self.write_checkpoint(to, step, leads, barrier).inspect_err(|_| to.abandon_checkpoint(step))
    }

    fn write_checkpoint(
        &self,
        to: &Checkpoints,
        step: u64,
        leads: bool,
        barrier: &mut dyn FnMut() -> Result<(), JobEnd>,
    ) -> Result<PathBuf, CheckpointError> {
        barrier()?;
        let own = self.ranks().map(|rank| (rank, Vec::new()));
        let mut ranks: BTreeMap<u32, Vec<HeldShard<'_>>> = own.collect();
        self.stored_shards().for_each(|held| ranks.entry(held.rank).or_default().push(held));
        let parts = to.write_parts(step, &ranks, &self.aside, !leads)?;
        barrier()?;
        if !leads {
            return Ok(to.path(step));
        }
        let Self { seed, plan, .. } = self;
        let (model, mesh, settings) = (&plan.name, &plan.mesh, &self.settings());
        let header = ManifestHeader { step, seed: *seed, model, mesh, settings };
        to.publish_checkpoint(header, plan.world_size, parts)
    }

    /// Sets all variables to what a checkpoint holds, whatever mesh, stages or strategy wrote it. The session must have
    /// been made with the checkpoint's step as [`SessionOptions::first_step`](crate::SessionOptions::first_step) and with
    /// its seed. Each rank reads what its own shards need.
    ///
    /// # Errors
    /// Where the variables are not those of the plan, by name, element type and shape (but for states of weights that are
    /// trained in one of both alone, and for what no step changes); where a file is damaged (some variables may then be
    /// set), or a rank has failed.
    pub fn load_checkpoint(&mut self, from: &Checkpoint) -> Result<(), CheckpointError> {
        self.wait_idle()?;
        let (expected, own_seed) = (self.next_step(), self.seed);
        let (found, seed) = (from.step(), from.seed());
        let _span = enter_span!("load_checkpoint", step = found);
        if (found, seed) != (expected, own_seed) {
            return Err(CheckpointError::Position { found, seed, expected, own_seed });
        }
        from.check_variables(&self.expected_variables())?;
        let held: Vec<_> = self.stored_shards().collect();
        from.fill_shards(&held)?;
        let beside: Vec<&str> = self.aside.keys().map(String::as_str).collect();
        let beside = beside.into_iter().filter(|name| from.variables().contains_key(*name));
        let beside = from.read(&beside.collect::<Vec<_>>())?;
        self.aside.extend(beside);
        Ok(())
    }

    /// Returns the shards that checkpoints hold: tables are computed again.
    fn stored_shards(&self) -> impl Iterator<Item = HeldShard<'_>> {
        self.variables.iter_shards().filter(|held| held.kind != TensorKind::Table)
    }

    /// Describes the options that decide what a step does (the optimizer with its numbers and schedule, the loss, the
    /// inputs' types and so the batch) in which this session differs from the one that saved a checkpoint: a sentence
    /// each. All of them may be changed; who did not mean to wants to know. Nothing is known of checkpoints of versions
    /// that did not record it.
    pub fn changes_since(&self, checkpoint: &Checkpoint) -> Vec<String> {
        checkpoint.settings().map_or(Vec::new(), |before| self.settings().describe_changes(before))
    }

    fn settings(&self) -> TrainingSettings {
        TrainingSettings::of_plan(&self.plan, self.inputs())
    }

    /// Returns the variables of all ranks, whether this session holds them or not, and what lies beside them.
    fn expected_variables(&self) -> BTreeMap<&str, ExpectedVariable> {
        let updated = self.plan.updated_variables();
        let registers = self.plan.programs.iter().flat_map(|program| &program.registers);
        let variables = registers.filter_map(|register| match &register.kind {
            RegisterKind::Variable { name, role, .. } => {
                let ty = self.plan.layouts[register.layout.index()].ty();
                let updated = updated.contains(name.as_str());
                // In inference nothing is changed, and all of it is what a checkpoint is loaded for.
                let may_lack = *role == TensorKind::Parameter && !updated && self.plan.training;
                Some((name.as_str(), ExpectedVariable { ty, kind: *role, updated, may_lack }))
            }
            RegisterKind::Activation => None,
        });
        let mut wanted: BTreeMap<&str, ExpectedVariable> = variables.collect();
        for (name, tensor) in &self.aside {
            let (ty, kind) = (tensor.ty(), TensorKind::Parameter);
            wanted.insert(name, ExpectedVariable { ty, kind, updated: false, may_lack: true });
        }
        wanted
    }
}
