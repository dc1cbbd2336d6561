//! Plan files, and the models that they name.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use graphc_compiler::check::verify_plan;
use graphc_compiler::mixing::find_mixing_op;
use graphc_import::weights::Weights;
use graphc_import::{ImportOptions, document_path, load_model};
use graphc_ir::hex::encode_hex;
use graphc_plan::check::{Seal, VerifiedPlan};
use graphc_plan::{Plan, WeightsSource, read_plan};
use graphc_runtime::Checkpoint;
use graphc_runtime::data::open_file;
use sha2::{Digest, Sha256};

use super::data_files::read_text;
use super::output::print_message;

/// The model file by path and content.
pub(super) fn weights_source(path: &Path) -> Result<WeightsSource> {
    Ok(WeightsSource { path: path.display().to_string(), sha256: hash_file(&document_path(path))? })
}

/// Whether a path names a plan.
pub(super) fn is_plan(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// Reads a plan, and checks by planning again that its graph compiles to it.
pub(super) fn load_valid_plan(path: &Path) -> Result<VerifiedPlan> {
    verify_plan(&load_plan(path)?).with_context(|| format!("{} is not valid", path.display()))
}

/// Reads a plan and checks all that can be checked without planning again: enough to show, to simulate and to execute it.
pub(super) fn load_sound_plan(path: &Path) -> Result<VerifiedPlan> {
    VerifiedPlan::check(load_plan(path)?)
        .with_context(|| format!("{} is not valid", path.display()))
}

/// Bytes of the longest plan: that of the largest model on the most ranks has a hundredth.
const LONGEST_PLAN: u64 = 1 << 32;

/// Refuses a model where a plan is asked for: it is no text, or another one.
fn check_is_no_model(path: &Path) -> Result<()> {
    let is_model = path.extension().is_some_and(|ending| ending == "onnx" || ending == "gir");
    let path = path.display();
    ensure!(
        !is_model,
        "{path} is a model and no plan: make one with `graphc compile {path} -o plan.json`"
    );
    Ok(())
}

/// Reads a plan. It needs no seal, as all of it is checked; that one is broken is told.
pub(super) fn load_plan(path: &Path) -> Result<Plan> {
    check_is_no_model(path)?;
    let text = read_text(path, LONGEST_PLAN, "plan ")?;
    let mut plan = read_plan(&text).with_context(|| {
        format!("{} is no plan (`graphc compile MODEL -o plan.json` writes one)", path.display())
    })?;
    find_model_beside(path, &mut plan);
    if Seal::from_text(&text) == Seal::Broken {
        let path = path.display();
        let advice = format!("compile again, or look at it with `graphc verify --seal {path}`");
        print_message("warning", &format!("{path} was changed after it was sealed: {advice}"));
    }
    Ok(plan)
}

/// A plan that was carried to another machine takes its weights from the model that lies beside it, where there is none at its old place.
fn find_model_beside(plan_path: &Path, plan: &mut Plan) {
    let Some(source) = &mut plan.weights else { return };
    let old = Path::new(&source.path);
    let Some(name) = old.file_name().filter(|_| !old.exists()) else { return };
    let beside = plan_path.with_file_name(name);
    if beside.is_file() {
        source.path = beside.display().to_string();
    }
}

/// The model's weights that a plan names; an error where the file has changed since.
pub(super) fn plan_weights(plan: &Plan) -> Result<Weights> {
    let Some(source) = &plan.weights else { return Ok(Weights::default()) };
    let path = Path::new(&source.path);
    let found = hash_file(&document_path(path)).with_context(|| {
        format!(
            "the plan takes its weights from {}: put that file there, or beside the plan",
            source.path
        )
    })?;
    ensure!(
        found == source.sha256,
        "{} has changed since the plan was made (SHA-256 {found}, the plan has {}): compile again",
        source.path,
        source.sha256
    );
    Ok(load_model(path, &plan.options.dims, ImportOptions::default())?.weights)
}

/// SHA-256 of a file, in hexadecimal.
pub(super) fn hash_file(path: &Path) -> Result<String> {
    let cannot = || format!("cannot read {}", path.display());
    let mut file = open_file(path).with_context(cannot)?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        let read = file.read(&mut buffer).with_context(cannot)?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
    }
    Ok(encode_hex(&hash.finalize()))
}

/// Returns a text that is equal on ranks with the same first weights: a digest of a file's content, or a checkpoint's model and step.
pub(super) fn digest_weights(path: Option<&Path>) -> Result<String> {
    let Some(path) = path else { return Ok("none".into()) };
    if !path.is_dir() {
        return hash_file(path).with_context(|| format!("cannot read {}", path.display()));
    }
    let checkpoint = Checkpoint::open(path)?;
    Ok(format!("{} after {} steps", checkpoint.model(), checkpoint.step()))
}

/// Says that a model makes something of several samples together, if it does: what it gives then depends on how samples come in batches, and on
/// those that fill up the last one.
pub(super) fn warn_of_mixing(plan: &Plan, batch: usize) {
    if let Some(op) = find_mixing_op(plan) {
        let text = format!(
            "`{op}` makes something of several samples together, so results depend on which {batch} samples are in a batch, and on those that fill up \
             the last one: take all at once with --batch"
        );
        print_message("warning", &text);
    }
}
